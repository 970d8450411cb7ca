"""The drift metric EnergyDriftMetric."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from modyn.config.base import Section
from modyn.evaluator.drift.base import NEVER_NEGATIVE, Drift, DriftMetric, PermutationConfig

if TYPE_CHECKING:
    import torch

    from modyn.evaluator.drift.kept_sums import PartedWindow, SumKeeper
    from modyn.evaluator.drift.pairs import PairSums


class EnergyDriftMetric(DriftMetric):
    """The energy distance sqrt(2 E|X - Y| - E|X - X'| - E|Y - Y'|), for samples with any number of features (Székely and Rizzo 2013).

    The energy distance needs no bandwidth. The p-value comes from a permutation test.

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = EnergyDriftMetric(PermutationConfig())
    >>> drift = compare(metric, torch.arange(20.0), torch.arange(20.0) + 10)
    >>> round(drift.distance, 3)
    2.89
    """

    Config: ClassVar[type[Section]] = PermutationConfig
    distance_range = NEVER_NEGATIVE

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """See `DriftMetric.compare`."""
        import torch

        from modyn.evaluator.drift.pairs import pair_sums, permutation_p_value, permuted_pair_sums, typical_distances

        n, m, num = len(reference), len(current), self.config.num_permutations
        unit, _ = typical_distances(reference, current)
        if num is None:
            return Drift(math.sqrt(unit) * float(_energy(pair_sums(reference, current, torch.sqrt_, unit), n, m)))
        generator = torch.Generator().manual_seed(self.seed)
        found = _energy(permuted_pair_sums(reference, current, torch.sqrt_, num, generator, unit), n, m)
        return Drift(math.sqrt(unit) * float(found[0]), permutation_p_value(found))

    def compare_kept(self, reference: PartedWindow, current: PartedWindow, sums: SumKeeper) -> Drift | None:
        """See `DriftMetric.compare_kept`. Without permutations, kept sums are used if the reference has unequal samples."""
        if self.config.num_permutations is not None:
            return None
        unit = sums.kept.get(b"energy" + reference.name, lambda: _unit_of(reference))
        if not unit:
            return None
        found = sums.pair_sums(reference, current, lambda squares, unit: squares.sqrt().mul_(1 / unit), b"sqr", unit)
        return Drift(math.sqrt(unit) * float(_energy(found, len(reference), len(current))))


def _unit_of(reference: PartedWindow) -> float:
    """Return a typical distance within the reference; 0 if all inspected samples are equal."""
    from modyn.evaluator.drift.pairs import has_unequal, typical_distances

    rows = reference.read_all()
    return typical_distances(rows, rows)[0] if has_unequal(rows) else 0.0


def _energy(sums: PairSums, n: int, m: int) -> torch.Tensor:
    squared = 2 * sums.between / (n * m) - sums.within_x / n**2 - sums.within_y / m**2
    return squared.clamp(min=0).sqrt()
