"""The drift metrics of evidently: EvidentlyModel-, EvidentlyRatio-, EvidentlySimpleDistance- and EvidentlyHellingerDistanceDriftMetric.

The library computes; distances are its own. It is told not to report its use: `DO_NOT_TRACK=1`. `pip install 'modyn[evidently]'`.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.drift.base import Drift, DriftMetric

if TYPE_CHECKING:
    import torch


class EvidentlyConfig(Section):
    """Options of the metrics that reduce the samples first."""

    num_pca_component: int | None = Field(
        None,
        ge=1,
        description="principal components of the reference that are compared; none: the features as they are",
        examples=[10],
    )


class EvidentlyModelConfig(EvidentlyConfig):
    """Options of EvidentlyModelDriftMetric."""

    bootstrap: bool = Field(
        False,
        description="whether the library compares with random predictions; takes time, and what fires is decided by `decision_criterion`",
    )
    quantile_probability: float = Field(
        0.95, gt=0, lt=1, description="quantile of the random ones that the library compares with"
    )


class EvidentlyRatioConfig(EvidentlyConfig):
    """Options of EvidentlyRatioDriftMetric."""

    component_stattest: Literal[
        "wasserstein", "anderson", "cramer_von_mises", "ed", "empirical_mmd", "es", "hellinger", "jensenshannon", "kl_div", "ks",
        "mannw", "psi", "t_test",
    ] = Field("wasserstein", description="the library's test of one feature")  # fmt: skip
    component_stattest_threshold: float = Field(
        0.1, ge=0, allow_inf_nan=False, description="distance above which, or p-value below which, a feature has drifted"
    )


class EvidentlySimpleDistanceConfig(EvidentlyConfig):
    """Options of EvidentlySimpleDistanceDriftMetric."""

    distance_metric: Literal["euclidean", "cosine", "cityblock", "chebyshev"] = Field(
        "euclidean", description="between the means of both sets"
    )
    bootstrap: bool = Field(
        False,
        description="whether the library compares with draws of the reference; takes time, and what fires is decided by `decision_criterion`",
    )


_BOOTSTRAP: Final = ("bootstrap", "quantile_probability")
_DECIDES_NOTHING: Final = (
    "has no effect on the distance, and the library decides nothing here; leave it out, and write decision_criterion: "
    "{id: DynamicQuantileThresholdCriterion}, which compares with earlier distances"
)


class _EvidentlyMetric(DriftMetric):
    """Hands both sets to the library as frames, as they are: some of its distances change by a shift of all samples."""

    needs = ("evidently",)
    extra = "evidently"
    has_test = False
    centred = False

    @classmethod
    def without_effect(cls, config: Section) -> dict[str, str]:
        """See `DriftMetric.without_effect`."""
        fields = {name: field for name, field in type(config).model_fields.items() if name in _BOOTSTRAP}
        return {name: _DECIDES_NOTHING for name, field in fields.items() if getattr(config, name) != field.default}

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """See `DriftMetric.compare`. The library draws by generators whose beginning it fixes itself: `seed` changes nothing."""
        os.environ["DO_NOT_TRACK"] = "1"
        import pandas as pd

        with _numpy_generator_kept():
            return Drift(float(self._distance(*(pd.DataFrame(rows.cpu().numpy()) for rows in (reference, current)))))

    @abstractmethod
    def _distance(self, reference: Any, current: Any) -> Any:
        """The library's distance, a number. Args: reference, current: frames of their own, (n, d) and (m, d)."""


class EvidentlyModelDriftMetric(_EvidentlyMetric):
    """The area under the ROC curve of a linear classifier that is trained to tell the sets apart, on half of them that it did not see."""

    Config: ClassVar[type[Section]] = EvidentlyModelConfig
    in_unit_interval = True

    def _distance(self, reference: Any, current: Any) -> Any:
        from evidently.legacy.metrics.data_drift.embedding_drift_methods import model

        method: Any = model(
            bootstrap=self.config.bootstrap,
            quantile_probability=self.config.quantile_probability,
            pca_components=self.config.num_pca_component,
        )
        return method(current, reference)[0]


class EvidentlyRatioDriftMetric(_EvidentlyMetric):
    """The share of features that have drifted, each by a test of its own."""

    Config: ClassVar[type[Section]] = EvidentlyRatioConfig
    in_unit_interval = True

    def _distance(self, reference: Any, current: Any) -> Any:
        from evidently.legacy.metrics.data_drift.embedding_drift_methods import ratio

        method: Any = ratio(
            component_stattest=self.config.component_stattest,
            component_stattest_threshold=self.config.component_stattest_threshold,
            pca_components=self.config.num_pca_component,
        )
        return method(current, reference)[0]


class EvidentlySimpleDistanceDriftMetric(_EvidentlyMetric):
    """The distance between the means of both sets."""

    Config: ClassVar[type[Section]] = EvidentlySimpleDistanceConfig
    in_unit_interval = False

    def _distance(self, reference: Any, current: Any) -> Any:
        from evidently.legacy.metrics.data_drift.embedding_drift_methods import distance

        method: Any = distance(
            dist=self.config.distance_metric, bootstrap=self.config.bootstrap, pca_components=self.config.num_pca_component
        )
        return method(current, reference)[0]


class EvidentlyHellingerDistanceDriftMetric(_EvidentlyMetric):
    """The mean of the features' Hellinger distances, each between histograms over the values of both sets, with bins by Sturges' rule."""

    Config: ClassVar[type[Section]] = Section
    in_unit_interval = True

    def _distance(self, reference: Any, current: Any) -> Any:
        from evidently.legacy.calculations.stattests import hellinger_stat_test
        from evidently.legacy.core import ColumnType

        scores = [
            hellinger_stat_test(reference[name], current[name], ColumnType.Numerical, None).drift_score for name in reference
        ]
        return np.mean(scores)


@contextmanager
def _numpy_generator_kept() -> Iterator[None]:
    """Give NumPy's global generator back as it was: the library seeds it."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)
