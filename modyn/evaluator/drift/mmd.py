"""The drift metric MMDDriftMetric."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, ClassVar, Final, Self

from pydantic import Field, model_validator

from modyn.config.base import Section
from modyn.evaluator.drift.base import Drift, DriftMetric, PermutationConfig

if TYPE_CHECKING:
    import torch

    from modyn.evaluator.drift.kept_sums import PartedWindow, SumKeeper
    from modyn.evaluator.drift.pairs import PairSums

UNBIASED_MMD: Final = (-1.0, 2.0)
"""The range of the unbiased estimate with a kernel in [0, 1]: at least -(1/n + 1/m), with n and m of at least 2."""
MEDIAN_ROWS: Final = 5000
"""Number of rows from which the median distance is computed; larger sets are sampled."""


EQUAL: Final = 1e-3
"""If the median of all distances is 0, √2 σ is this share of the smallest distance between unequal samples."""


class MMDConfig(PermutationConfig):
    """Options of MMDDriftMetric."""

    bandwidth: float | None = Field(
        None,
        ge=1e-12,
        le=1e12,
        description="width σ of the kernel; by default, σ² is half the median of the squared distances",
    )
    configure_kernel_from_x_ref: bool = Field(
        True,
        description="the median is taken over the reference alone, so that σ is the same for all checks; if false, over both sets",
    )
    biased: bool = Field(
        False,
        description="pairs of a sample with itself count; then the distance is never negative, and larger with few samples",
    )

    @model_validator(mode="after")
    def _one_bandwidth(self) -> Self:
        if self.bandwidth is not None and "configure_kernel_from_x_ref" in self.model_fields_set:
            raise ValueError("configure_kernel_from_x_ref has no effect together with a bandwidth; leave one of them out")
        return self


class MMDDriftMetric(DriftMetric):
    """The squared maximum mean discrepancy with a Gaussian kernel k(a, b) = exp(-|a - b|² / 2σ²).

    The distance is mean k(x, x') + mean k(y, y') - 2 mean k(x, y), over pairs of different samples. The estimator is unbiased: without drift, the
    distance is 0 on average, and may be negative. The p-value comes from a permutation test, (1 + #{at least as large}) / (1 + permutations). The
    kernel matrix is never in memory as a whole. (Gretton and others: A Kernel Two-Sample Test, JMLR 2012, lemma 6; Modyn, SIGMOD'25, section 5.1.)

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = MMDDriftMetric(MMDConfig())
    >>> drift = compare(metric, torch.arange(20.0), torch.arange(20.0) + 10)
    >>> round(drift.distance, 3)
    0.295
    """

    Config: ClassVar[type[Section]] = MMDConfig
    distance_range = UNBIASED_MMD

    @classmethod
    def range_of(cls, config: Section) -> tuple[float, float] | None:
        """See `DriftMetric.range_of`."""
        assert isinstance(config, MMDConfig)
        return (0, cls.distance_range[1]) if config.biased else cls.distance_range

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """See `DriftMetric.compare`."""
        import torch

        from modyn.evaluator.drift.pairs import pair_sums, permutation_p_value, permuted_pair_sums

        generator = torch.Generator().manual_seed(self.seed)
        unit, n, m = self._unit(reference, current, generator), len(reference), len(current)
        if self.config.num_permutations is None:
            return Drift(float(self._mmd(pair_sums(reference, current, _kernel, unit), n, m)))
        sums = permuted_pair_sums(reference, current, _kernel, self.config.num_permutations, generator, unit)
        found = self._mmd(sums, n, m)
        return Drift(float(found[0]), permutation_p_value(found))

    def compare_kept(self, reference: PartedWindow, current: PartedWindow, sums: SumKeeper) -> Drift | None:
        """See `DriftMetric.compare_kept`. The metric uses kept sums if σ is given or depends on the reference alone. Then σ is computed once for each
        reference.
        """
        config = self.config
        if config.num_permutations is not None:
            return None
        if config.bandwidth is not None:
            unit = self._given_unit
        elif config.configure_kernel_from_x_ref:
            unit = sums.kept.get(b"MMD" + struct.pack("<q", self.seed) + reference.name, lambda: self._unit_of(reference, sums))
        else:
            return None
        if not unit:
            return None
        n, m = len(reference), len(current)
        return Drift(float(self._mmd(sums.pair_sums(reference, current, _scaled_kernel, b"exp", unit), n, m)))

    def _mmd(self, sums: PairSums, n: int, m: int) -> torch.Tensor:
        between = 2 * sums.between / (n * m)
        if self.config.biased:  # k(a, a) = 1
            return (sums.within_x + n) / n**2 + (sums.within_y + m) / m**2 - between
        return sums.within_x / (n * (n - 1)) + sums.within_y / (m * (m - 1)) - between

    @property
    def _given_unit(self) -> float:
        return math.sqrt(2) * float(self.config.bandwidth)

    def _unit_of(self, reference: PartedWindow, sums: SumKeeper) -> float:
        """Return the unit of the reference alone. Return 0 if all inspected samples are equal; the unit then depends on the current samples too."""
        import torch

        from modyn.evaluator.drift.pairs import has_unequal

        if 2 <= len(reference) <= MEDIAN_ROWS and (median := sums.median_squared_distance(reference)):
            return math.sqrt(median)
        rows = reference.read_all()
        return self._unit(rows, rows, torch.Generator().manual_seed(self.seed)) if has_unequal(rows) else 0.0

    def _unit(self, reference: torch.Tensor, current: torch.Tensor, generator: torch.Generator) -> float:
        """Return √2 σ: the kernel is exp(-|a - b|² / unit²)."""
        import torch

        from modyn.evaluator.drift.pairs import median_squared_distance, typical_distances

        if self.config.bandwidth is not None:
            return self._given_unit
        rows = reference if self.config.configure_kernel_from_x_ref else torch.cat([reference, current])
        if len(rows) > MEDIAN_ROWS:
            rows = rows[torch.randperm(len(rows), generator=generator)[:MEDIAN_ROWS].to(rows.device)]
        typical, least = typical_distances(reference, current)
        # If more than half of all pairs are equal, the median is 0. Any small σ then separates equal from unequal samples.
        return math.sqrt(median_squared_distance(rows, typical)) or EQUAL * least


def _kernel(squares: torch.Tensor) -> torch.Tensor:
    """Compute the kernel from |a - b|² / unit², in place."""
    return squares.neg_().exp_()


def _scaled_kernel(squares: torch.Tensor, unit: float) -> torch.Tensor:
    """Compute the kernel from |a - b|²."""
    return (squares * (-1 / unit**2)).exp_()
