"""Drift metrics, registered by the `id` of an entry of `metrics` in a drift trigger. A metric measures the distance between two sets of samples."""

from __future__ import annotations

from typing import Final

from modyn.evaluator.drift.base import Drift, DriftMetric, compare, missing_modules
from modyn.registry import Registry

__all__ = ["DRIFT_METRICS", "Drift", "DriftMetric", "compare", "missing_modules"]

_HERE: Final = "modyn.evaluator.drift"

DRIFT_METRICS: Final[Registry[type[DriftMetric]]] = Registry(
    group="modyn.drift_metrics",
    kind="drift metric",
    builtin={
        "AlibiDetectCVMDriftMetric": f"{_HERE}.alibi:AlibiDetectCVMDriftMetric",
        "AlibiDetectKSDriftMetric": f"{_HERE}.alibi:AlibiDetectKSDriftMetric",
        "AlibiDetectMmdDriftMetric": f"{_HERE}.alibi:AlibiDetectMmdDriftMetric",
        "CVMDriftMetric": f"{_HERE}.cramer_von_mises:CVMDriftMetric",
        "ChiSquaredDriftMetric": f"{_HERE}.chi_squared:ChiSquaredDriftMetric",
        "DomainClassifierDriftMetric": f"{_HERE}.domain_classifier:DomainClassifierDriftMetric",
        "EnergyDriftMetric": f"{_HERE}.energy:EnergyDriftMetric",
        "EvidentlyHellingerDistanceDriftMetric": f"{_HERE}.evidently:EvidentlyHellingerDistanceDriftMetric",
        "EvidentlyModelDriftMetric": f"{_HERE}.evidently:EvidentlyModelDriftMetric",
        "EvidentlyRatioDriftMetric": f"{_HERE}.evidently:EvidentlyRatioDriftMetric",
        "EvidentlySimpleDistanceDriftMetric": f"{_HERE}.evidently:EvidentlySimpleDistanceDriftMetric",
        "HellingerDriftMetric": f"{_HERE}.histograms:HellingerDriftMetric",
        "JensenShannonDriftMetric": f"{_HERE}.histograms:JensenShannonDriftMetric",
        "KSDriftMetric": f"{_HERE}.kolmogorov_smirnov:KSDriftMetric",
        "MMDDriftMetric": f"{_HERE}.mmd:MMDDriftMetric",
        "MeanDistanceDriftMetric": f"{_HERE}.means:MeanDistanceDriftMetric",
        "PSIDriftMetric": f"{_HERE}.histograms:PSIDriftMetric",
        "SlicedWassersteinDriftMetric": f"{_HERE}.wasserstein:SlicedWassersteinDriftMetric",
        "WassersteinDriftMetric": f"{_HERE}.wasserstein:WassersteinDriftMetric",
    },
)
