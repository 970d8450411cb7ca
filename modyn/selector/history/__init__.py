"""History policies, which draw samples from a run's history for proactive training. Each file has one policy. The key `strategy` in `online.history`
chooses it.

The trigger set of an online trigger is the sequence of its steps. A step has `step_samples` new keys in the order of the stream, then
`history_samples` keys of earlier samples. The last step may have fewer new keys. With `update_samples`, online updates train on the new keys. The
drawn keys then belong to the step after these updates, and may include the new keys. The batches depend only on the section `online`.
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
"""Options that count triggers. A pipeline with the section `online` may not have these options, because online triggers would be counted too."""
_GAP: Final = 8192
"""Positions that are at most this far apart are read together, because reading the samples in between costs less than a separate read."""


@dataclass(frozen=True, slots=True)
class DueSteps:
    """The steps to train now. Step i trains on the new samples [begins[i], begins[i + 1]) of the window, and on samples of the history [0,
    begins[i]).

    begins: int64 (steps + 1,), ascending.
    """

    begins: Int64Array

    @classmethod
    def over(cls, first: int, end: int, step_samples: int) -> DueSteps:
        """Return the steps over new samples [first, end).

        >>> DueSteps.over(10, 15, 2).begins.tolist()
        [10, 12, 14, 15]
        """
        return cls(np.array([*range(first, end, step_samples), end], np.int64))

    def __len__(self) -> int:
        return len(self.begins) - 1


class HistoryPolicy(ABC):
    """Draws samples of the history. The drawn samples depend only on the configuration, the window, the context and the policy's files."""

    Config: ClassVar[type[Section]]

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def draw(self, window: SelectionWindow, steps: DueSteps, size: int, context: SelectionContext) -> Int64Array:
        """Draw `size` samples of the history for each step. Returns the numbers of these samples in the window: int64 (steps, size).

        If a history has fewer than `size` samples, samples repeat. Args: window: window from the beginning of the stream, without deleted samples.
        steps: steps for which to draw; each step has at least one earlier sample.
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
    """Return every mistake in `online.history` of a pipeline, and every option that conflicts with the section `online`."""
    section = pipeline.get(ONLINE)
    if not isinstance(section, Mapping) or check_section(OnlineConfig, section, ONLINE):
        return []  # The supervisor reports the mistakes of the section.
    found = check_policy(HISTORY, load_section(OnlineConfig, section, ONLINE).history, "strategy", f"{ONLINE}.history")
    if asked := asked_scores(pipeline):
        which = f"selection_strategy asks trainings for scores of samples ({', '.join(asked)}), which proactive steps do not give"
        found.append(Problem(ONLINE, f"{which}; choose a selection without scores, or remove the section"))
    which = "counts triggers, including those of proactive steps. The two are not available together yet"
    for path in _COUNT_TRIGGERS:
        value: Any = pipeline
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        # An option with the value False, 0 or an empty list counts no triggers.
        if value:
            found.append(Problem(path, f"{which}; remove it, or the section {ONLINE}"))
    return found


def select_online(
    section: Mapping[str, Any], window: SelectionWindow, first_new: int, context: SelectionContext, *, tests_only: bool = False
) -> Selection:
    """Select the trigger set of an online trigger. Args: section: the section `online`. window: window from the beginning of the stream. first_new:
    number of the first new sample in the window. tests_only: draw no history.
    """
    config = load_section(OnlineConfig, {**section, **(TESTS_ONLY if tests_only else {})}, ONLINE)
    kind, options = load_policy(HISTORY, config.history, "strategy", f"{ONLINE}.history")
    steps = DueSteps.over(first_new, len(window), config.step_samples)
    new, size = np.arange(first_new, len(window)), config.history_samples
    # The step after online updates may also draw the samples of the updates.
    ends = steps.begins[:-1] if config.update_samples is None else steps.begins[1:]
    # If all samples before the first step were deleted, the first new sample of this step is the history.
    ends = np.maximum(ends, min(1, len(window)))
    drawn = kind(options).draw(window, DueSteps(np.append(ends, len(window))), size, context) if size and len(new) else None
    numbers = new if drawn is None else _in_steps(new, drawn, config.step_samples)
    return Selection(len(numbers), iter([KeysAndWeights.unweighted(keys_of(window, numbers))]))


def _in_steps(new: Int64Array, drawn: Int64Array, step_samples: int) -> Int64Array:
    """Return the numbers of the new samples and of the drawn history, step by step."""
    parts = np.split(new, range(step_samples, len(new), step_samples))
    return np.concatenate([part for pair in zip(parts, drawn, strict=True) for part in pair])


def keys_of(window: SelectionWindow, numbers: Int64Array) -> Int64Array:
    """Return the keys of the samples with these numbers in the window, in the same order, with repetitions: int64 (n,)."""
    wanted, order = np.unique(numbers, return_inverse=True)
    far = np.flatnonzero(np.diff(wanted) > _GAP) + 1
    bounds = pairwise([0, *far.tolist(), len(wanted)])
    near: Iterator[Int64Array] = (wanted[start:stop] for start, stop in bounds if stop > start)
    return np.concatenate([np.zeros(0, np.int64), *window.keys_at(near)])[order.reshape(-1)]
