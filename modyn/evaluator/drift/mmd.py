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

MEDIAN_ROWS: Final = 5000
"""Rows that the median distance is computed of; of more, so many are drawn."""


EQUAL: Final = 1e-3
"""The share of the least distance between unequal samples that is √2 σ where the median between any samples is 0."""


class MMDConfig(PermutationConfig):
    """Options of MMDDriftMetric."""

    bandwidth: float | None = Field(
        None,
        ge=1e-12,
        le=1e12,
        description="σ of the kernel; none: the median heuristic, σ² = half the median of the squared distances",
    )
    configure_kernel_from_x_ref: bool = Field(
        True,
        description="whether the median is taken over the reference alone, which keeps σ the same from check to check; else over both",
    )
    biased: bool = Field(
        False, description="whether a sample is also compared with itself (never negative, larger with few samples)"
    )

    @model_validator(mode="after")
    def _one_bandwidth(self) -> Self:
        if self.bandwidth is not None and "configure_kernel_from_x_ref" in self.model_fields_set:
            raise ValueError("configure_kernel_from_x_ref has no effect beside a bandwidth; leave one of them out")
        return self


class MMDDriftMetric(DriftMetric):
    """The squared maximum mean discrepancy with a Gaussian kernel k(a, b) = exp(-|a - b|² / 2σ²).

    mean k(x, x') + mean k(y, y') - 2 mean k(x, y), over pairs of different samples; without bias it is 0 in the mean where there is no
    drift, and may be negative. The p-value is that of a permutation test, (1 + #{as large}) / (1 + permutations). The matrix of the kernel
    is not held. (Gretton and others: A Kernel Two-Sample Test, JMLR 2012, lemma 6; Modyn, SIGMOD'25, section 5.1.)
    """

    Config: ClassVar[type[Section]] = MMDConfig
    in_unit_interval = False

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
        """Where σ is given, or of the reference alone: then it is computed once a reference. See `DriftMetric.compare_kept`."""
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
        """The unit, by the reference alone; 0: where its samples are equal, as far as is looked, the current ones are needed too."""
        import torch

        from modyn.evaluator.drift.pairs import has_unequal

        if 2 <= len(reference) <= MEDIAN_ROWS and (median := sums.median_squared_distance(reference)):
            return math.sqrt(median)
        rows = reference.read_all()
        return self._unit(rows, rows, torch.Generator().manual_seed(self.seed)) if has_unequal(rows) else 0.0

    def _unit(self, reference: torch.Tensor, current: torch.Tensor, generator: torch.Generator) -> float:
        """√2 σ: the kernel is exp(-|a - b|² / unit²)."""
        import torch

        from modyn.evaluator.drift.pairs import median_squared_distance, typical_distances

        if self.config.bandwidth is not None:
            return self._given_unit
        rows = reference if self.config.configure_kernel_from_x_ref else torch.cat([reference, current])
        if len(rows) > MEDIAN_ROWS:
            rows = rows[torch.randperm(len(rows), generator=generator)[:MEDIAN_ROWS].to(rows.device)]
        typical, least = typical_distances(reference, current)
        # Where more than half of all pairs are equal the median is 0, and any small σ tells equal from unequal samples.
        return math.sqrt(median_squared_distance(rows, typical)) or EQUAL * least


def _kernel(squares: torch.Tensor) -> torch.Tensor:
    """From |a - b|² / unit², in place."""
    return squares.neg_().exp_()


def _scaled_kernel(squares: torch.Tensor, unit: float) -> torch.Tensor:
    """From |a - b|²."""
    return (squares * (-1 / unit**2)).exp_()
