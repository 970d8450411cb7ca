"""Parts of a figure. The package says how to write one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one side. value: in the figure's unit. details: further numbers by name with unit, e.g. `first batch, s`."""

    value: float
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One of the programs compared. `run(ready)` calls `ready` right before its clock starts. fresh: called before each cold run, ends the
    processes that still map the data from earlier runs, because mapped files cannot be made cold."""

    name: str
    run: Callable[[Callable[[], None]], Measured]
    fresh: Callable[[], None] | None = None
    files: Sequence[Path] = ()
    """Files that it reads, if they are not `Case.data`."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Side that cannot run here, and what to do about it."""

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One comparison. target: the least accepted ratio. data: files and folders that are not in the page cache when a cold run begins."""

    name: str
    target: float | None
    ours: Side
    theirs: Side | float | Missing | None
    data: Sequence[Path] = ()
    cold: bool = True
    """Whether a cold run gives new information. If not, the figure says why."""


@dataclass(frozen=True, slots=True)
class Setting:
    """folder: empty, on disk, deleted afterwards. samples: how many the figure works on. pairs: rounds that will be run."""

    folder: Path
    samples: int
    pairs: int


IN_MEMORY = "data still in memory at the start, %"
"""Detail of a cold run."""
_COLD_BELOW = 5.0
"""Percent of the data that may still be in memory."""


class Conclude(Protocol):
    """Read all results in the order of cases, and return paragraphs for the report."""

    def __call__(self, results: Sequence[Result], name: str) -> str: ...


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Runs of a case, warm or cold, round by round; theirs is empty if there is no other side. warming: runs that do not count, by
    side; the first of a process starts, for example, the fork server that later ones use."""

    case: Case
    cold: bool
    ours: list[Measured] = field(default_factory=list)
    theirs: list[Measured] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    warming: dict[str, Measured] = field(default_factory=dict)

    @property
    def cache(self) -> str:
        """State of the page cache: `warm`, `cold`, or the share that was in memory although it was meant to be cold."""
        if not self.cold:
            return "warm"
        left = max((run.details.get(IN_MEMORY, 0.0) for run in (*self.ours, *self.theirs)), default=0.0)
        return "cold" if left <= _COLD_BELOW else f"not cold, {left:.0f} % in memory"


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """samples: of the full figure. smoke_samples: few, for a test that all of it runs. pairs: rounds, where nothing else is asked for."""

    letter: str
    title: str
    unit: str
    samples: int
    smoke_samples: int
    prepare: Callable[[Setting], AbstractContextManager[Sequence[Case]]]
    more_is_better: bool = True
    pairs: int = 5
    conclude: Conclude | None = None


def letters() -> list[str]:
    """Return the letters of all figures, and the name `gpu`."""
    return sorted(path.stem.removeprefix("figure_") for path in Path(__file__).parent.glob("figure_*.py"))


def load(letter: str) -> Figure:
    figure = import_module(f"benchmark.data_path.figure_{letter}").FIGURE
    assert isinstance(figure, Figure)
    assert figure.letter == letter
    return figure
