"""The drift metrics of alibi-detect: AlibiDetectMmdDriftMetric, AlibiDetectKSDriftMetric and AlibiDetectCVMDriftMetric.

The library computes the distances and p-values. The library has the Business Source License and needs NumPy 1: `pip install 'modyn[alibi]'`. The
metrics MMDDriftMetric, KSDriftMetric and CVMDriftMetric compute the same estimators without the library.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from modyn.config.base import Matching, Section
from modyn.evaluator.drift.base import NEVER_NEGATIVE, UNIT, Drift, DriftMetric, PermutationConfig
from modyn.evaluator.drift.features import combined
from modyn.evaluator.drift.mmd import UNBIASED_MMD

if TYPE_CHECKING:
    import torch


class AlibiDetectConfig(Section):
    """Options of all metrics of alibi-detect."""

    p_val: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="significance level for the library. It does not decide whether the trigger fires: give PValueDecisionCriterion a level",
    )


class _AlibiDetectMetric(DriftMetric):
    """Base of the metrics of alibi-detect. The library's own decision is not used."""

    needs = ("alibi_detect",)
    extra = "alibi"

    @classmethod
    def without_effect(cls, config: Section) -> dict[str, str]:
        """See `DriftMetric.without_effect`."""
        assert isinstance(config, AlibiDetectConfig)
        if config.p_val == AlibiDetectConfig.model_fields["p_val"].default:
            return {}
        return {"p_val": _decides_nothing(f"{{id: PValueDecisionCriterion, p_val: {config.p_val:g}}}")}


def _decides_nothing(criterion: str) -> str:
    return (
        f"has no effect, since the decision of the library is not used; leave it out, and write decision_criterion: {criterion}"
    )


class AlibiDetectMmdConfig(AlibiDetectConfig, PermutationConfig):
    """Options of AlibiDetectMmdDriftMetric."""

    kernel: Literal["GaussianRBF"] = Field("GaussianRBF", description="class name in `alibi_detect.utils.pytorch.kernels`")
    configure_kernel_from_x_ref: bool = Field(
        True, description="the bandwidth is the median distance within the reference; if false, within both sets together"
    )
    threshold: float | None = Field(
        None,
        description="accepted for files of other systems, without effect: the `decision_criterion` decides whether the trigger fires",
    )
    device: Annotated[str, Matching(r"^(cpu|cuda(:\d+)?)$", "write cpu, cuda or cuda:N")] | None = Field(
        None, description="device that computes the distance; by default, the device of the samples"
    )

    @property
    def least_p_value(self) -> float:
        """Return the smallest possible p-value. The library's p-value is a share of permutations and may be 0."""
        return 0.0


class AlibiDetectMmdDriftMetric(_AlibiDetectMetric):
    """The unbiased squared maximum mean discrepancy of `alibi_detect.cd.MMDDrift` (torch).

    The p-value is the share of permutations whose distance is at least the measured distance; it may be 0. The computation needs memory for several
    copies of the kernel matrix of all pairs.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = AlibiDetectMmdDriftMetric(AlibiDetectMmdConfig())
    >>> round(compare(metric, torch.arange(20.0), torch.arange(20.0) + 10).distance, 3)
    0.295
    """

    Config: ClassVar[type[Section]] = AlibiDetectMmdConfig
    distance_range = UNBIASED_MMD

    @classmethod
    def without_effect(cls, config: Section) -> dict[str, str]:
        """See `DriftMetric.without_effect`."""
        assert isinstance(config, AlibiDetectMmdConfig)
        found = super().without_effect(config)
        if config.threshold is not None:
            found["threshold"] = _decides_nothing(f"{{id: ThresholdDecisionCriterion, threshold: {config.threshold:g}}}")
        return found

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """See `DriftMetric.compare`."""
        import torch
        from alibi_detect.cd.pytorch.mmd import MMDDriftTorch
        from alibi_detect.utils.pytorch.distance import mmd2_from_kernel_matrix

        device = torch.device(self.config.device) if self.config.device else reference.device
        detector = MMDDriftTorch(
            reference.cpu().numpy(),
            p_val=self.config.p_val,
            configure_kernel_from_x_ref=self.config.configure_kernel_from_x_ref,
            n_permutations=self.config.num_permutations or 0,
            device=device,
        )
        if self.config.num_permutations is None:  # `predict` fails without permutations.
            matrix = detector.kernel_matrix(reference.to(device), current.to(device))
            return Drift(float(mmd2_from_kernel_matrix(matrix, len(current))))
        # The global generator of the CPU is seeded, because the library permutes with this generator.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            found = detector.predict(current.cpu().numpy())["data"]
        return Drift(float(found["distance"]), float(found["p_val"]))


class AlibiDetectFeatureTestConfig(AlibiDetectConfig):
    """Options of tests that compare one feature at a time."""

    correction: Literal["bonferroni", "fdr"] = Field(
        "bonferroni",
        description="how the p-values of the features are combined; the library detects drift if the result is below `p_val`",
    )


class AlibiDetectKSConfig(AlibiDetectFeatureTestConfig):
    """Options of AlibiDetectKSDriftMetric."""

    alternative_hypothesis: Literal["two-sided", "greater", "less"] = Field(
        "two-sided",
        description="differences of the distribution functions that count: all, or only where the reference is above or below",
    )


class _FeatureTest(_AlibiDetectMetric):
    """Base of the tests that compare one feature at a time. The distance is the mean of the statistics; the detector corrects the p-values."""

    centred = False

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """See `DriftMetric.compare`."""
        found = self._detector(reference.cpu().numpy()).predict(current.cpu().numpy())["data"]
        return Drift(float(found["distance"].mean()), combined(found["p_val"], self.config.correction))

    @abstractmethod
    def _detector(self, reference: Any) -> Any:
        """Create the detector of the library. Args: reference: (n, d)."""


class AlibiDetectKSDriftMetric(_FeatureTest):
    """The Kolmogorov-Smirnov statistic of each feature, from `alibi_detect.cd.KSDrift`. The p-values are asymptotic for any number of samples.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = AlibiDetectKSDriftMetric(AlibiDetectKSConfig())
    >>> round(compare(metric, torch.arange(20.0), torch.arange(20.0) + 10).distance, 3)
    0.5
    """

    Config: ClassVar[type[Section]] = AlibiDetectKSConfig
    distance_range = UNIT

    def _detector(self, reference: Any) -> Any:
        from alibi_detect.cd import KSDrift

        return KSDrift(
            reference,
            p_val=self.config.p_val,
            correction=self.config.correction,
            alternative=self.config.alternative_hypothesis,
        )


class AlibiDetectCVMDriftMetric(_FeatureTest):
    """The Cramér-von Mises statistic of each feature, from `alibi_detect.cd.CVMDrift`.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = AlibiDetectCVMDriftMetric(AlibiDetectFeatureTestConfig())
    >>> round(compare(metric, torch.arange(20.0), torch.arange(20.0) + 10).distance, 3)
    1.669
    """

    Config: ClassVar[type[Section]] = AlibiDetectFeatureTestConfig
    distance_range = NEVER_NEGATIVE

    def _detector(self, reference: Any) -> Any:
        from alibi_detect.cd import CVMDrift

        return CVMDrift(reference, p_val=self.config.p_val, correction=self.config.correction)
