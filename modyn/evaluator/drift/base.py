"""The interface of a drift metric, which measures the distance between the distributions of two sets of samples. The module imports torch for types
only, because configurations are checked on machines without torch.
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
"""Largest absolute value of a compared number. Squares and sums of larger values may overflow float32."""
UNIT: Final = (0.0, 1.0)
NEVER_NEGATIVE: Final = (0.0, math.inf)
UNFIT: Final = f"not finite (NaN or infinity) or beyond {LARGEST:.0e}"


class TooFewSamplesError(DataError):
    """The metric cannot measure a distance, because there are too few samples. The criterion of the metric then votes against a trigger."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The result of one drift metric for two sets of samples."""

    distance: float
    """The measured distance. Larger values mean a larger difference. Unbiased estimators may be negative."""
    p_value: float | None = None
    """Probability of a distance at least this large if both sets have the same distribution. None if the metric has no test."""


class DriftMetric(ABC):
    """One distance between two sets of samples, built from its `Config`.

    A metric is a pure function of its arguments. A metric draws random numbers only from a generator with `seed`, so that the same samples give the
    same distance.
    """

    Config: ClassVar[type[Section]]
    """Options of the metric: the keys of its entry except `id` and `decision_criterion`."""

    min_samples: ClassVar[int] = 2
    """Smallest number of samples in each of the two sets."""

    centred: ClassVar[bool] = True
    """Whether the middle of the reference is subtracted from both sets before `compare`. The subtraction does not change the distances between
    samples."""

    by_rank: ClassVar[bool] = False
    """Whether the metric uses only the order and the equality of a feature's values. `compare` then receives ranks among the distinct values of both
    sets, because float32 may round different numbers, such as labels, to the same number."""

    by_category: ClassVar[bool] = False
    """Whether each distinct value is a category, such as a class, so that all distinct values are equally far from each other."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Optional modules that the metric needs. These modules are imported only in `compare`."""

    extra: ClassVar[str] = "drift"
    """Extra of modyn that installs the optional modules; empty if no extra installs the modules."""

    has_test: ClassVar[bool] = True
    """Whether the metric returns a p-value. If `Config` is a `PermutationConfig`, the metric returns a p-value only if permutations are requested."""

    def __init__(self, config: Any, seed: int = 0) -> None:
        self.config: Any = config
        self.seed = seed

    distance_range: ClassVar[tuple[float, float] | None] = None
    """The smallest and the largest possible distance; None if the range is not known. Thresholds outside the range are refused, and some stream
    detectors require [0, 1]."""

    @classmethod
    def range_of(cls, config: Section) -> tuple[float, float] | None:
        """Return the range of the distances with these options."""
        return cls.distance_range

    @classmethod
    def gives_p_value(cls, config: Section) -> bool:
        """Return whether the metric returns a p-value with these options."""
        return cls.has_test and (not isinstance(config, PermutationConfig) or config.num_permutations is not None)

    @classmethod
    def without_effect(cls, config: Section) -> dict[str, str]:
        """Return a warning for each given option without effect, by the name of the option. `modyn check` prints the warnings."""
        return {}

    @classmethod
    def blind_to_classes(cls, config: Section) -> str:
        """Explain why this metric may miss a change of class labels; empty if the metric counts each class. The text is a clause."""
        if cls.by_category:
            return ""
        return "it compares labels as numbers, so swapped classes may look the same to it"

    @abstractmethod
    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """Measure the distance.

        Args: reference: (n, d) float32. current: (m, d) float32, on the same device. No value is NaN, infinite or larger than `LARGEST`; both sets
        have at least `min_samples` rows. Most values of each column of the reference are near 0, unless `centred` is false or the values are ranks.
        Raises: TooFewSamplesError: these samples are too few for this metric.
        """

    def compare_kept(self, reference: PartedWindow, current: PartedWindow, sums: SumKeeper) -> Drift | None:
        """Measure the distance of `compare`, up to rounding, from cached sums over pairs of samples.

        Returns None if `compare` must be called instead. The choice depends only on the configuration and the samples.
        """
        return None


class PermutationConfig(Section):
    """Options of metrics with a permutation test."""

    num_permutations: int | None = Field(
        None, ge=1, le=100_000, description="number of random permutations for the p-value; none: no p-value", examples=[100]
    )

    @property
    def least_p_value(self) -> float:
        """Return the smallest possible p-value: (1 + 0) / (1 + num), because the actual division counts as one of the permutations. The value is
        1 without permutations.
        """
        return 1 / (1 + (self.num_permutations or 0))


def missing_modules(metric: DriftMetric | type[DriftMetric]) -> str:
    """Return a text that names the missing modules of a metric and their installation; empty if no module is missing. No module is imported."""
    missing = [name for name in metric.needs if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    name = metric.__name__ if isinstance(metric, type) else type(metric).__name__
    by = f"; pip install 'modyn[{metric.extra}]'" if metric.extra else ""
    return f"{name} needs {', '.join(missing)}, which is not installed where it is computed{by}"


def compare(metric: DriftMetric, reference: torch.Tensor, current: torch.Tensor) -> Drift:
    """Check both sets, centre them, and let the metric compare them. Callers use this function instead of `DriftMetric.compare`.

    The values are centred in float64 before they are squared: in float32, an offset of 10⁴ would round away the differences between samples.

    Args: reference, current: (n, …) and (m, …) of any numeric dtype, on one device; the other dimensions are flattened.
    Raises: DataError: the sets have different widths, or values that are not finite. TooFewSamplesError, a DataError: a set has too few rows.
        UserCodeError: the metric did not return a finite number. ConfigError: modules that the metric needs are not installed.
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
            raise DataError(f"{unfit} of {len(rows)} {part} samples have values that are {UNFIT}, so {name} cannot measure drift")
    if reference.shape[1] != current.shape[1]:
        raise DataError(
            f"{name} compares samples of one width, and got {reference.shape[1]} reference and {current.shape[1]} current values"
        )
    # Metrics by rank compare only the order of values. Ranks distinguish int64 and float64 values that float32 rounds to the same number.
    if metric.by_rank and {reference.dtype, current.dtype} != {torch.float32}:
        reference, current = _ranks(reference, current)
    centre = (
        middle(reference) if metric.centred else torch.zeros(reference.shape[1], dtype=torch.float64, device=reference.device)
    )
    return _checked(metric, metric.compare(*(_centred(rows, centre) for rows in (reference, current))))


def compare_kept(metric: DriftMetric, reference: PartedWindow, current: PartedWindow, sums: SumKeeper) -> Drift | None:
    """Let the metric compare two windows by cached sums. Returns None if the metric uses no cached sums. Raises: see `compare`."""
    found = None if metric.needs else metric.compare_kept(reference, current, sums)
    return None if found is None else _checked(metric, found)


def centred_rows(rows: torch.Tensor) -> torch.Tensor:
    """Subtract the middle of the rows, like `compare` for a reference. Args: rows: (n, d). Returns: (n, d) float32."""
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
    """Count the rows with a value that is not finite, or whose absolute value is larger than `LARGEST`. Args: rows: (n, d)."""
    return sum(int((~(block.double().abs() <= LARGEST)).any(1).sum()) for block in _blocks(rows))


def column_means(rows: torch.Tensor) -> torch.Tensor:
    """Return the mean of each column, float64 (d,). Args: rows: (n, d)."""
    import torch

    sums = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    for block in _blocks(rows):
        sums += block.sum(0, dtype=torch.float64)
    return sums / len(rows)


def _ranks(reference: torch.Tensor, current: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace each value by its rank among the distinct values of its column in both sets, starting at 0. Returns: (n, d) and (m, d), float32."""
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
    # The rows are converted block by block, because a float64 copy of all rows would need twice the memory of the result.
    centred = torch.empty(rows.shape, dtype=torch.float32, device=rows.device)
    for block, source in zip(_blocks(centred), _blocks(rows), strict=True):
        block.copy_(source.double() - centre)
    return centred


def _blocks(rows: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the rows in blocks, as views. Processing all rows at once may need many times the memory of the rows."""
    return [rows[first : first + 4096] for first in range(0, len(rows), 4096)]
