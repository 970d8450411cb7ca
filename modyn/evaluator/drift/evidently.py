"""The drift metrics of evidently: EvidentlyModel-, EvidentlyRatio-, EvidentlySimpleDistance- and EvidentlyHellingerDistanceDriftMetric.

The library computes the distances. `DO_NOT_TRACK=1` turns off the library's usage reports. Install: `pip install 'modyn[evidently]'`.
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
from modyn.evaluator.drift.base import NEVER_NEGATIVE, UNIT, Drift, DriftMetric

if TYPE_CHECKING:
    import torch


class EvidentlyConfig(Section):
    """Options of the metrics that first reduce the number of features."""

    num_pca_component: int | None = Field(
        None,
        ge=1,
        description="number of principal components of the reference on which the sets are compared; none: all features",
        examples=[10],
    )


class EvidentlyModelConfig(EvidentlyConfig):
    """Options of EvidentlyModelDriftMetric."""

    bootstrap: bool = Field(
        False,
        description="also compare with random predictions. This takes time, but has no effect: the `decision_criterion` decides whether the "
        "trigger fires",
    )
    quantile_probability: float = Field(0.95, gt=0, lt=1, description="quantile of the random predictions for this comparison")


class EvidentlyRatioConfig(EvidentlyConfig):
    """Options of EvidentlyRatioDriftMetric."""

    component_stattest: Literal[
        "wasserstein", "anderson", "cramer_von_mises", "ed", "empirical_mmd", "es", "hellinger", "jensenshannon", "kl_div", "ks",
        "mannw", "psi", "t_test",
    ] = Field("wasserstein", description="the library's test for one feature")  # fmt: skip
    component_stattest_threshold: float = Field(
        0.1,
        ge=0,
        allow_inf_nan=False,
        description="a feature has drifted if its distance is above this number, or its p-value below",
    )


class EvidentlySimpleDistanceConfig(EvidentlyConfig):
    """Options of EvidentlySimpleDistanceDriftMetric."""

    distance_metric: Literal["euclidean", "cosine", "cityblock", "chebyshev"] = Field(
        "euclidean", description="distance between the means of both sets"
    )
    bootstrap: bool = Field(
        False,
        description="also compare with draws from the reference. This takes time, but has no effect: the `decision_criterion` decides whether "
        "the trigger fires",
    )


_BOOTSTRAP: Final = ("bootstrap", "quantile_probability")
_DECIDES_NOTHING: Final = (
    "has no effect on the distance, and the decision of the library is not used; leave it out, and write decision_criterion: {id: "
    "DynamicQuantileThresholdCriterion}, which compares with earlier distances"
)


class _EvidentlyMetric(DriftMetric):
    """Base of the metrics of evidently. Both sets are passed without centring, because centring would change some distances of the library."""

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
        """See `DriftMetric.compare`. `seed` has no effect, because the library seeds its own generators."""
        os.environ["DO_NOT_TRACK"] = "1"
        import pandas as pd

        with _restore_numpy_generator():
            return Drift(float(self._distance(*(pd.DataFrame(rows.cpu().numpy()) for rows in (reference, current)))))

    @abstractmethod
    def _distance(self, reference: Any, current: Any) -> Any:
        """Return the distance that the library computes. Args: reference, current: frames (n, d) and (m, d), which the library may change."""


class EvidentlyModelDriftMetric(_EvidentlyMetric):
    """The area under the ROC curve of a linear classifier that separates the sets. The classifier is trained on half of the samples and measured on
    the other half.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = EvidentlyModelDriftMetric(EvidentlyModelConfig())
    >>> round(compare(metric, torch.arange(20.0), torch.arange(20.0) + 10).distance, 3)
    0.636
    """

    Config: ClassVar[type[Section]] = EvidentlyModelConfig
    distance_range = UNIT

    def _distance(self, reference: Any, current: Any) -> Any:
        from evidently.legacy.metrics.data_drift.embedding_drift_methods import model

        method: Any = model(
            bootstrap=self.config.bootstrap,
            quantile_probability=self.config.quantile_probability,
            pca_components=self.config.num_pca_component,
        )
        return method(current, reference)[0]


class EvidentlyRatioDriftMetric(_EvidentlyMetric):
    """The share of features that have drifted, according to a test of each feature.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = EvidentlyRatioDriftMetric(EvidentlyRatioConfig())
    >>> round(compare(metric, torch.arange(20.0), torch.arange(20.0) + 10).distance, 3)
    1.0
    """

    Config: ClassVar[type[Section]] = EvidentlyRatioConfig
    distance_range = UNIT

    def _distance(self, reference: Any, current: Any) -> Any:
        from evidently.legacy.metrics.data_drift.embedding_drift_methods import ratio

        method: Any = ratio(
            component_stattest=self.config.component_stattest,
            component_stattest_threshold=self.config.component_stattest_threshold,
            pca_components=self.config.num_pca_component,
        )
        return method(current, reference)[0]


class EvidentlySimpleDistanceDriftMetric(_EvidentlyMetric):
    """The distance between the means of both sets.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = EvidentlySimpleDistanceDriftMetric(EvidentlySimpleDistanceConfig())
    >>> round(compare(metric, torch.arange(20.0), torch.arange(20.0) + 10).distance, 3)
    10.0
    """

    Config: ClassVar[type[Section]] = EvidentlySimpleDistanceConfig
    distance_range = NEVER_NEGATIVE

    @classmethod
    def range_of(cls, config: Section) -> tuple[float, float] | None:
        """See `DriftMetric.range_of`."""
        assert isinstance(config, EvidentlySimpleDistanceConfig)
        return (0, 2) if config.distance_metric == "cosine" else cls.distance_range

    def _distance(self, reference: Any, current: Any) -> Any:
        from evidently.legacy.metrics.data_drift.embedding_drift_methods import distance

        method: Any = distance(
            dist=self.config.distance_metric, bootstrap=self.config.bootstrap, pca_components=self.config.num_pca_component
        )
        return method(current, reference)[0]


class EvidentlyHellingerDistanceDriftMetric(_EvidentlyMetric):
    """The mean Hellinger distance of the features. The histograms cover the values of both sets, and have bins by Sturges' rule.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = EvidentlyHellingerDistanceDriftMetric(Section())
    >>> round(compare(metric, torch.arange(20.0), torch.arange(20.0) + 10).distance, 3)
    0.707
    """

    Config: ClassVar[type[Section]] = Section
    distance_range = UNIT

    def _distance(self, reference: Any, current: Any) -> Any:
        from evidently.legacy.calculations.stattests import hellinger_stat_test
        from evidently.legacy.core import ColumnType

        scores = [
            hellinger_stat_test(reference[name], current[name], ColumnType.Numerical, None).drift_score for name in reference
        ]
        return np.mean(scores)


@contextmanager
def _restore_numpy_generator() -> Iterator[None]:
    """Restore NumPy's global generator after the block, because the library seeds it."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)
