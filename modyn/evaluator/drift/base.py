"""What a drift metric is: it compares two sets of samples, and says how far apart the distributions are that they were drawn from.

Imports torch only for types: the configuration of a metric is checked where torch need not be.
"""

from __future__ import annotations

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import Field

from modyn.config.base import Section
from modyn.errors import ConfigError, DataError, UserCodeError
from modyn.evaluator.drift.middle import middle

if TYPE_CHECKING:
    import torch

    from modyn.evaluator.drift.kept_sums import PartedWindow, SumKeeper


LARGEST: Final = 1e18
"""Squares of larger values, or their sums, may be infinite in float32."""
UNFIT: Final = f"not finite (NaN or infinity) or beyond {LARGEST:.0e}"


class TooFewSamplesError(DataError):
    """The samples are too few for this metric: it measures nothing, and its criterion votes no."""


@dataclass(frozen=True, slots=True)
class Drift:
    """What one metric says of two sets of samples."""

    distance: float
    """The larger, the further apart. Estimators without bias may be below 0."""
    p_value: float | None = None
    """The probability of so large a distance, or a larger one, if both sets are of one distribution. None: the metric has no test."""


class DriftMetric(ABC):
    """One distance between two sets of samples, built from its `Config`.

    A metric is a pure function of its arguments: whatever it draws, it draws from a generator that begins with `seed`, so that the same
    samples give the same distance.
    """

    Config: ClassVar[type[Section]]
    """Options of the metric: the keys of its entry beside `id` and `decision_criterion`."""

    min_samples: ClassVar[int] = 2
    """Samples that each of the two sets must have at least."""

    centred: ClassVar[bool] = True
    """Whether `compare` is given both sets shifted by one point in the middle of the reference: distances between samples do not change by it."""

    by_rank: ClassVar[bool] = False
    """Whether only order and equality of a feature's values count: of numbers that float32 may not tell apart, as labels are, `compare` is
    given the ranks among the distinct values of both sets."""

    by_category: ClassVar[bool] = False
    """Whether each distinct value is a category, as classes are, and not a number that lies near to others."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Modules beyond those of every installation. They are imported only in `compare`."""

    extra: ClassVar[str] = "drift"
    """The extra of modyn that brings them. Empty: none does."""

    has_test: ClassVar[bool] = True
    """Whether it gives a p-value. One whose `Config` is a `PermutationConfig` does so if permutations are asked for."""

    def __init__(self, config: Any, seed: int = 0) -> None:
        self.config: Any = config
        self.seed = seed

    in_unit_interval: ClassVar[bool | None] = None
    """Whether its distances lie in [0, 1], as some stream detectors need; None: not known."""

    @classmethod
    def gives_p_value(cls, config: Section) -> bool:
        """Whether it does with these options."""
        return cls.has_test and (not isinstance(config, PermutationConfig) or config.num_permutations is not None)

    @classmethod
    def without_effect(cls, config: Section) -> dict[str, str]:
        """Options that are given and change nothing, by name, and what to write in place of each: warnings of `check`."""
        return {}

    @classmethod
    def blind_to_classes(cls, config: Section) -> str:
        """Why labels may change without its seeing it where they are classes, as a clause; empty: it sees each class."""
        if cls.by_category:
            return ""
        return "it compares labels as numbers, so classes that change places may look the same to it"

    @abstractmethod
    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """Measure the distance.

        Args: reference: (n, d) float32. current: (m, d) float32, on the same device. Neither holds NaN, infinity or values
            beyond `LARGEST`; both have at least `min_samples` rows. Most values of the reference are around 0 in each column, unless
            `centred` is false or they are ranks.
        Raises: TooFewSamplesError: it measures nothing with these samples.
        """

    def compare_kept(self, reference: PartedWindow, current: PartedWindow, sums: SumKeeper) -> Drift | None:
        """Measure the same distance, up to rounding, of sums over pairs of samples that are kept from question to question; None: `compare` is
        to be called. Which of both is called depends on the configuration and the samples alone."""
        return None


class PermutationConfig(Section):
    """Options of metrics with a permutation test."""

    num_permutations: int | None = Field(
        None, ge=1, le=100_000, description="random divisions that the p-value is computed of; none: no p-value", examples=[100]
    )

    @property
    def least_p_value(self) -> float:
        """What no p-value lies below: the division that is compared counts as one of them, (1 + 0) / (1 + num). 1 without permutations."""
        return 1 / (1 + (self.num_permutations or 0))


def missing_modules(metric: DriftMetric | type[DriftMetric]) -> str:
    """Say which modules that a metric needs are not installed, and what brings them; empty if none. Imports none of them."""
    missing = [name for name in metric.needs if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    name = metric.__name__ if isinstance(metric, type) else type(metric).__name__
    by = f"; pip install 'modyn[{metric.extra}]'" if metric.extra else ""
    return f"{name} needs {', '.join(missing)}, which is not installed where it is computed{by}"


def compare(metric: DriftMetric, reference: torch.Tensor, current: torch.Tensor) -> Drift:
    """Check both sets, centre them, and let the metric compare them. This is how metrics are called.

    Centred in float64 before anything is squared: in float32, at an offset of 10⁴, the differences between samples are rounded away.

    Args: reference, current: (n, …) and (m, …) of any numbers, on one device; what lies behind the first dimension is flattened.
    Raises: DataError: they have different widths, too few rows (TooFewSamplesError: of the values that they have), or values that are not finite.
        UserCodeError: the metric returned no number. ConfigError: modules that the metric needs are not installed.
    """
    import torch

    if missing := missing_modules(metric):
        raise ConfigError(missing)

    reference, current = (part.reshape(len(part), -1) if len(part) else part.reshape(0, 1) for part in (reference, current))
    name = type(metric).__name__
    for part, rows in (("reference", reference), ("current", current)):
        if len(rows) < metric.min_samples:
            raise DataError(
                f"{name} needs at least {metric.min_samples} {part} samples, and there are {len(rows)}; use larger windows"
            )
        if unfit := num_unfit(rows):
            raise DataError(
                f"{unfit} of {len(rows)} {part} samples have values that are {UNFIT}, so {name} says nothing about drift"
            )
    if reference.shape[1] != current.shape[1]:
        raise DataError(
            f"{name} compares samples of one width, and got {reference.shape[1]} reference and {current.shape[1]} current values"
        )
    if metric.by_rank and {reference.dtype, current.dtype} != {torch.float32}:
        reference, current = _ranks(reference, current)
    centre = (
        middle(reference) if metric.centred else torch.zeros(reference.shape[1], dtype=torch.float64, device=reference.device)
    )
    return _checked(metric, metric.compare(*(_centred(rows, centre) for rows in (reference, current))))


def compare_kept(metric: DriftMetric, reference: PartedWindow, current: PartedWindow, sums: SumKeeper) -> Drift | None:
    """Let the metric compare two windows by kept sums; None: it keeps none. Raises: as `compare`."""
    found = None if metric.needs else metric.compare_kept(reference, current, sums)
    return None if found is None else _checked(metric, found)


def centred_rows(rows: torch.Tensor) -> torch.Tensor:
    """Rows around the middle of these, as `DriftMetric.compare` is given a reference, (n, d) float32. Args: rows: (n, d)."""
    return _centred(rows, middle(rows))


def _checked(metric: DriftMetric, drift: Drift) -> Drift:
    name = type(metric).__name__
    if not isinstance(drift, Drift) or not _is_sound(drift):
        raise UserCodeError(
            f"{name} returned {drift!r}; it must return a Drift whose distance is a finite number, as `float(…)` makes it of a tensor, and whose "
            "p-value is None or in [0, 1]"
        )
    return Drift(float(drift.distance), None if drift.p_value is None else float(drift.p_value))


def _is_sound(drift: Drift) -> bool:
    numbers = [drift.distance] if drift.p_value is None else [drift.distance, drift.p_value]
    if any(isinstance(number, bool) or not isinstance(number, Real) for number in numbers):
        return False
    return math.isfinite(drift.distance) and (drift.p_value is None or 0 <= drift.p_value <= 1)


def num_unfit(rows: torch.Tensor) -> int:
    """How many rows hold what distances cannot be computed of. Args: rows: (n, d)."""
    return sum(int((~(block.double().abs() <= LARGEST)).any(1).sum()) for block in _blocks(rows))


def column_means(rows: torch.Tensor) -> torch.Tensor:
    """The mean of each column, float64 (d,). Args: rows: (n, d)."""
    import torch

    sums = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    for block in _blocks(rows):
        sums += block.sum(0, dtype=torch.float64)
    return sums / len(rows)


def _ranks(reference: torch.Tensor, current: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of the distinct values of its column, in both sets, each value is: 0 the least. (n, d) and (m, d), float32."""
    import torch

    both = torch.cat([reference, current])
    ranks = torch.empty(both.shape, dtype=torch.float32, device=both.device)
    for column, values in enumerate(both.T):
        ranks[:, column] = values.unique(return_inverse=True)[1]
    return ranks[: len(reference)], ranks[len(reference) :]


def _centred(rows: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    import torch

    if rows.dtype == torch.float64:
        return (rows - centre).float()
    centred = torch.empty(rows.shape, dtype=torch.float32, device=rows.device)
    for block, source in zip(_blocks(centred), _blocks(rows), strict=True):
        block.copy_(source.double() - centre)
    return centred


def _blocks(rows: torch.Tensor) -> Sequence[torch.Tensor]:
    """The rows in blocks, as views: what is made of all rows at once may take many times their memory."""
    return [rows[first : first + 4096] for first in range(0, len(rows), 4096)]
