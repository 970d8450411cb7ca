"""The drift metrics of alibi-detect: AlibiDetectMmdDriftMetric, AlibiDetectKSDriftMetric and AlibiDetectCVMDriftMetric.

The library computes; distances and p-values are its own. It is under the Business Source License, and needs NumPy 1: `modyn[alibi]`. The metrics
MMDDriftMetric, KSDriftMetric and CVMDriftMetric are the same estimators without it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from modyn.config.base import Matching, Section
from modyn.evaluator.drift.base import Drift, DriftMetric, PermutationConfig
from modyn.evaluator.drift.features import combined

if TYPE_CHECKING:
    import torch


class AlibiDetectConfig(Section):
    """Options of all metrics of alibi-detect."""

    p_val: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="significance level that the library is given; what fires is decided by `decision_criterion`: "
        "PValueDecisionCriterion takes a level",
    )


class _AlibiDetectMetric(DriftMetric):
    """What the library decides by its level plays no role here."""

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
    return f"has no effect, since the library decides nothing here; leave it out, and write decision_criterion: {criterion}"


class AlibiDetectMmdConfig(AlibiDetectConfig, PermutationConfig):
    """Options of AlibiDetectMmdDriftMetric."""

    kernel: Literal["GaussianRBF"] = Field("GaussianRBF", description="class of `alibi_detect.utils.pytorch.kernels`")
    configure_kernel_from_x_ref: bool = Field(
        True, description="whether the bandwidth is by the median distance within the reference; else between both sets"
    )
    threshold: float | None = Field(
        None, description="without effect, in files of other systems: what fires is decided by `decision_criterion`"
    )
    device: Annotated[str, Matching(r"^(cpu|cuda(:\d+)?)$", "write cpu, cuda or cuda:N")] | None = Field(
        None, description="where it is computed; none: where the samples are"
    )

    @property
    def least_p_value(self) -> float:
        """The library's is the share of divisions whose distance is as large, which may be none."""
        return 0.0


class AlibiDetectMmdDriftMetric(_AlibiDetectMetric):
    """The squared maximum mean discrepancy of `alibi_detect.cd.MMDDrift` (torch), without bias.

    The p-value is the share of permutations whose distance is at least as large, and may be 0. The kernel of all pairs is held, several times.
    """

    Config: ClassVar[type[Section]] = AlibiDetectMmdConfig
    in_unit_interval = False

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
        with torch.random.fork_rng(devices=[]):  # It permutes by the global generator of the CPU.
            torch.default_generator.manual_seed(self.seed)
            found = detector.predict(current.cpu().numpy())["data"]
        return Drift(float(found["distance"]), float(found["p_val"]))


class AlibiDetectFeatureTestConfig(AlibiDetectConfig):
    """Options of tests of one feature at a time."""

    correction: Literal["bonferroni", "fdr"] = Field(
        "bonferroni", description="how the features' p-values become one, which lies below `p_val` where the library sees drift"
    )


class AlibiDetectKSConfig(AlibiDetectFeatureTestConfig):
    """Options of AlibiDetectKSDriftMetric."""

    alternative_hypothesis: Literal["two-sided", "greater", "less"] = Field(
        "two-sided",
        description="which difference of the distribution functions counts: any, or that of the reference being above or below",
    )


class _FeatureTest(_AlibiDetectMetric):
    """A detector that tests each feature: the mean of the statistics is the distance, the p-values are corrected as by the detector."""

    centred = False

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """See `DriftMetric.compare`."""
        found = self._detector(reference.cpu().numpy()).predict(current.cpu().numpy())["data"]
        return Drift(float(found["distance"].mean()), combined(found["p_val"], self.config.correction))

    @abstractmethod
    def _detector(self, reference: Any) -> Any:
        """The detector of the library. Args: reference: (n, d)."""


class AlibiDetectKSDriftMetric(_FeatureTest):
    """The Kolmogorov-Smirnov statistic of each feature, by `alibi_detect.cd.KSDrift`; its p-values are asymptotic for any number of samples."""

    Config: ClassVar[type[Section]] = AlibiDetectKSConfig
    in_unit_interval = True

    def _detector(self, reference: Any) -> Any:
        from alibi_detect.cd import KSDrift

        return KSDrift(
            reference,
            p_val=self.config.p_val,
            correction=self.config.correction,
            alternative=self.config.alternative_hypothesis,
        )


class AlibiDetectCVMDriftMetric(_FeatureTest):
    """The Cramér-von Mises statistic of each feature, by `alibi_detect.cd.CVMDrift`."""

    Config: ClassVar[type[Section]] = AlibiDetectFeatureTestConfig
    in_unit_interval = False

    def _detector(self, reference: Any) -> Any:
        from alibi_detect.cd import CVMDrift

        return CVMDrift(reference, p_val=self.config.p_val, correction=self.config.correction)
