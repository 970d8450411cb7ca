"""How proactive training draws from the history of a run: one way a file, found by the `strategy` of `online.history`.

The trigger set of an online trigger is the sequence of its steps: `step_samples` new keys in the order of the stream, then `history_samples` keys
of samples before these, and so on; the last step may have fewer new ones. With `update_samples` the new keys are those of online updates, and the
drawn ones those of the step behind them, which may draw these too. So its batches are known from the section alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np

from modyn.config.base import Problem, Section, check_section, load_section
from modyn.config.online import ONLINE, TESTS_ONLY, OnlineConfig
from modyn.config.policy import check_policy, load_policy
from modyn.records import Int64Array, KeysAndWeights
from modyn.registry import Registry
from modyn.selector.selection import asked_scores
from modyn.selector.window import Selection, SelectionContext, SelectionWindow

_COUNT_TRIGGERS: Final = (
    "selection_strategy.warmup_triggers",
    "selection_strategy.downsampling_list",
    "selection_strategy.downsampling_config.downsampling_list",
    "training.num_samples_to_pass",
)
_GAP: Final = 8192
"""Positions: what lies nearer to each other is read as one."""


@dataclass(frozen=True, slots=True)
class DueSteps:
    """The steps that are due: step i takes the new samples with numbers [begins[i], begins[i + 1]) of the window, and history from [0, begins[i]).

    begins: int64 (steps + 1,), ascending.
    """

    begins: Int64Array

    @classmethod
    def over(cls, first: int, end: int, step_samples: int) -> DueSteps:
        """Those over new samples [first, end).

        >>> DueSteps.over(10, 15, 2).begins.tolist()
        [10, 12, 14, 15]
        """
        return cls(np.array([*range(first, end, step_samples), end], np.int64))

    def __len__(self) -> int:
        return len(self.begins) - 1


class HistoryPolicy(ABC):
    """Draws samples of the history. What it draws depends on its configuration, the window, the context and its files only."""

    Config: ClassVar[type[Section]]

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def draw(self, window: SelectionWindow, steps: DueSteps, size: int, context: SelectionContext) -> Int64Array:
        """Return the numbers of the samples in the window that each step takes of its history: int64 (steps, size).

        Where a history has fewer than `size`, samples come more than once. Args: window: from the begin of the stream, without deleted samples.
        steps: each has a history.
        """


HISTORY: Final[Registry[type[HistoryPolicy]]] = Registry(
    group="modyn.history",
    kind="history sampling",
    builtin={
        "Reservoir": "modyn.selector.history.reservoir:ReservoirHistory",
        "TimeWeighted": "modyn.selector.history.time_weighted:TimeWeightedHistory",
        "Uniform": "modyn.selector.history.uniform:UniformHistory",
        "Window": "modyn.selector.history.window:WindowHistory",
    },
)


def check_history(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake in how the section `online` of a whole pipeline draws from the history."""
    section = pipeline.get(ONLINE)
    if not isinstance(section, Mapping) or check_section(OnlineConfig, section, ONLINE):
        return []  # It is the supervisor that refuses those.
    found = check_policy(HISTORY, load_section(OnlineConfig, section, ONLINE).history, "strategy", f"{ONLINE}.history")
    if asked := asked_scores(pipeline):
        which = f"selection_strategy asks trainings for scores of samples ({', '.join(asked)}), which proactive steps do not give"
        found.append(Problem(ONLINE, f"{which}; choose a selection without scores, or remove the section"))
    which = "counts triggers, and those of proactive steps are among them, which is not available together yet"
    for path in _COUNT_TRIGGERS:
        value: Any = pipeline
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value:
            found.append(Problem(path, f"{which}; remove it, or the section {ONLINE}"))
    return found


def select_online(
    section: Mapping[str, Any], window: SelectionWindow, first_new: int, context: SelectionContext, *, tests_only: bool = False
) -> Selection:
    """Select the trigger set of an online trigger. Args: section: `online`. window: from the begin of the stream. first_new: number of the first
    new sample in it. tests_only: nothing is drawn."""
    config = load_section(OnlineConfig, {**section, **(TESTS_ONLY if tests_only else {})}, ONLINE)
    kind, options = load_policy(HISTORY, config.history, "strategy", f"{ONLINE}.history")
    steps = DueSteps.over(first_new, len(window), config.step_samples)
    new, size = np.arange(first_new, len(window)), config.history_samples
    # What online updates have learned from is history of the step behind them.
    ends = steps.begins[:-1] if config.update_samples is None else steps.begins[1:]
    # What stands before the first step may have been deleted: its own new samples are all the history that there is then.
    ends = np.maximum(ends, min(1, len(window)))
    drawn = kind(options).draw(window, DueSteps(np.append(ends, len(window))), size, context) if size and len(new) else None
    numbers = new if drawn is None else _in_steps(new, drawn, config.step_samples)
    return Selection(len(numbers), iter([KeysAndWeights.unweighted(keys_of(window, numbers))]))


def _in_steps(new: Int64Array, drawn: Int64Array, step_samples: int) -> Int64Array:
    """The new numbers and those of the history, step by step."""
    parts = np.split(new, range(step_samples, len(new), step_samples))
    return np.concatenate([part for pair in zip(parts, drawn, strict=True) for part in pair])


def keys_of(window: SelectionWindow, numbers: Int64Array) -> Int64Array:
    """The keys of the samples with these numbers in the window, in their order, which may repeat: int64 (n,)."""
    wanted, order = np.unique(numbers, return_inverse=True)
    far = np.flatnonzero(np.diff(wanted) > _GAP) + 1
    bounds = pairwise([0, *far.tolist(), len(wanted)])
    near: Iterator[Int64Array] = (wanted[start:stop] for start, stop in bounds if stop > start)
    return np.concatenate([np.zeros(0, np.int64), *window.keys_at(near)])[order.reshape(-1)]
