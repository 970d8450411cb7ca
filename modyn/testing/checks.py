"""Checks that every policy must pass, ours and those of a user's own package. Call them from a test with your class and a configuration.

    def test_my_trigger() -> None:
        check_trigger(MyTrigger, {"num_samples": 10})

Each raises AssertionError that says which rule was broken, on which stream, and how.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from modyn.config.base import load_section
from modyn.errors import CorruptStateError
from modyn.records import Interval, SampleBatch
from modyn.supervisor.evaluation.base import EvaluationStrategy, IntervalContext
from modyn.supervisor.triggers.base import Trigger, TriggerContext

MAX_STATE_BYTES = 2**20
"""A state is journalled after every batch."""

_DAY = 86_400


def example_streams(num_samples: int = 400) -> dict[str, SampleBatch]:
    """Streams by name, with the times that are legal and awkward: late, equal, future and negative ones, and gaps. Always the same."""
    rng = np.random.default_rng(20240131)
    position = np.arange(num_samples)
    daily = position * (_DAY // 8)
    times = {
        "one sample": np.array([1_000_000]),
        "every second": position + 1_600_000_000,
        "eight a day": daily,
        "before 1970": daily - 30 * 365 * _DAY,
        "all at one time": np.full(num_samples, 12_345),
        "uneven, many equal": np.sort(rng.integers(0, 60 * _DAY, num_samples) // _DAY * _DAY),
        "late samples": daily - (rng.random(num_samples) < 0.2) * rng.integers(0, 30 * _DAY, num_samples),
        "one from the far future": np.where(position == num_samples // 3, daily + 100 * 365 * _DAY, daily),
        "gaps of a year": daily + position // 50 * 365 * _DAY,
    }
    return {
        name: SampleBatch(np.arange(len(column)), column.astype(np.int64), rng.integers(0, 5, len(column)))
        for name, column in times.items()
    }


def check_trigger(
    policy: type[Trigger],
    config: Mapping[str, Any],
    *,
    streams: Mapping[str, SampleBatch] | None = None,
    context: TriggerContext | None = None,
) -> None:
    """That a triggering policy is repeatable, leaves its input alone, does not depend on how the stream is cut into batches, takes
    empty batches, goes on from a saved state, and fires only where it may.

    >>> from modyn.supervisor.triggers.amount import DataAmountTrigger
    >>> check_trigger(DataAmountTrigger, {"num_samples": 10})
    """
    context = context or TriggerContext(seed=1)

    def fresh() -> Trigger:
        return policy(load_section(policy.Config, config), context)

    require(bool(policy.__doc__), f"{policy.__name__} has no docstring; its first line is the decision rule")
    _check_empty_batch(fresh(), fresh())
    check_state_is_refused(policy.__name__, fresh())
    for name, stream in (example_streams() if streams is None else streams).items():
        where = f"{policy.__name__} on '{name}'"
        whole = _decide(fresh(), [stream], where)
        require(_decide(fresh(), [stream], where) == whole, f"{where}: a second instance decides otherwise")
        for split in _splits(stream):
            found = _decide(fresh(), split, where)
            sizes = [len(batch) for batch in split]
            require(found == whole, f"{where}: fires at {whole} in one batch, but at {found} in batches of {sizes}")
        for at in {0, 1, len(stream) // 3, len(stream) // 2, len(stream)}:
            first = fresh()
            before = _decide(first, [stream.slice(0, at)], where)
            second = _restored(first, fresh(), where)
            after = _decide(second, [stream.slice(at, len(stream))], where, start=at, last=before[-1] if before else 0)
            require(
                before + after == whole, f"{where}: fires at {whole}, but at {before + after} when restored after {at} samples"
            )


def check_evaluation_strategy(
    strategy: type[EvaluationStrategy], config: Mapping[str, Any], contexts: Sequence[IntervalContext] | None = None
) -> None:
    """That an evaluation strategy is repeatable and gives intervals that hold time, in the order of their anchors.

    >>> from modyn.supervisor.evaluation.slicing import SlicingEvalStrategy
    >>> check_evaluation_strategy(SlicingEvalStrategy, {"eval_every": "1d", "eval_start_from": 0, "eval_end_at": "1970-02-01"})
    """
    triggers = (Interval(0, 100), Interval(90, 300), Interval(300, 301))
    default = [IntervalContext(), IntervalContext(triggers), IntervalContext(triggers, stream_end=500)]
    require(bool(strategy.__doc__), f"{strategy.__name__} has no docstring; its first line is the rule")
    for context in default if contexts is None else contexts:
        built = strategy(load_section(strategy.Config, config))
        intervals = list(built.intervals(context))
        where = f"{strategy.__name__} with {context}"
        again = list(strategy(load_section(strategy.Config, config)).intervals(context))
        require(list(built.intervals(context)) == intervals == again, f"{where}: asked again, it answers otherwise")
        require(all(i.start < i.end for i in intervals), f"{where}: gives empty intervals: {intervals}")
        anchors = [interval.anchor for interval in intervals]
        require(anchors == sorted(anchors), f"{where}: anchors do not ascend: {anchors}")
        require(len(set(intervals)) == len(intervals), f"{where}: gives an interval twice: {intervals}")
        if not strategy.depends_on_run:
            everywhere = list(built.intervals(IntervalContext()))
            require(intervals == everywhere, f"{where}: depends on the run, but says that it does not")


def require(holds: bool, message: str) -> None:
    """Raise AssertionError with `message` unless the condition holds."""
    if not holds:
        raise AssertionError(message)


def _decide(trigger: Trigger, batches: Sequence[SampleBatch], where: str, start: int = 0, last: int = 0) -> list[int]:
    """Positions in the stream at which `trigger` fires, checking each batch's answer. `start`, `last`: samples and firing before them."""
    fired: list[int] = []
    for batch in batches:
        copies = [column.copy() for column in (batch.keys, batch.timestamps, batch.labels)]
        cuts = list(trigger.cuts(batch))
        for column, copy in zip((batch.keys, batch.timestamps, batch.labels), copies, strict=True):
            require(np.array_equal(column, copy), f"{where}: changes the samples that it is given")
        require(all(type(cut) is int for cut in cuts), f"{where}: positions must be int, found {cuts}")
        require(all(0 <= cut <= len(batch) for cut in cuts), f"{where}: fires at {cuts} in a batch of {len(batch)}")
        for cut in cuts:
            require(start + cut > last, f"{where}: fires at {start + cut} although no sample came since {last}")
            last = start + cut
            fired.append(last)
        start += len(batch)
    return fired


def _splits(stream: SampleBatch) -> Iterator[list[SampleBatch]]:
    """The stream in batches of one, of seven, and of random sizes with empty ones between."""
    size = len(stream)
    rng = np.random.default_rng(7)
    for step in (1, 7):
        yield [stream.slice(at, min(at + step, size)) for at in range(0, size, step)]
    for _ in range(3):
        edges = [0, *np.sort(rng.integers(0, size + 1, min(size, 12))).tolist(), size]
        yield [stream.slice(a, b) for a, b in pairwise(edges)]


def _restored(old: Trigger, new: Trigger, where: str) -> Trigger:
    text = json.dumps(old.state())
    require(
        len(text) <= MAX_STATE_BYTES,
        f"{where}: its state has {len(text)} bytes of JSON; at most {MAX_STATE_BYTES} are journalled",
    )
    new.load_state(json.loads(text))
    require(json.dumps(new.state()) == text, f"{where}: after load_state, state() is {new.state()}, not {text}")
    return new


def _check_empty_batch(asked: Trigger, untouched: Trigger) -> None:
    name = type(asked).__name__
    require(list(asked.cuts(SampleBatch.empty())) == [], f"{name}: fires on an empty batch")
    require(asked.state() == untouched.state(), f"{name}: an empty batch changes its state")


class Resumable(Protocol):
    """A policy that goes on from a saved state."""

    def state(self) -> dict[str, Any]:
        """Return all that the rest of the stream depends on, as JSON values."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned. Raises CorruptStateError for anything else."""


def check_state_is_refused(name: str, policy: Resumable) -> None:
    """That the policy takes no state but one that it has saved."""
    good = policy.state()
    require("version" in good, f"{name}: its state has no `version`")
    for bad in ({**good, "version": -1}, {}, {**good, "unknown": 1}):
        try:
            policy.load_state(bad)
        except CorruptStateError:
            continue
        raise AssertionError(f"{name}: load_state accepts {bad}; raise CorruptStateError for what this version cannot read")
