"""Checks that every policy must pass, whether it is built in or from your own package. Call a check from a test with your class and a configuration.

    def test_my_trigger() -> None:
        check_trigger(MyTrigger, {"num_samples": 10})

    def test_my_strategy() -> None:
        check_selection(MyStrategy, {"maximum_keys_in_memory": 100})

Each check raises AssertionError with the broken rule, the stream, and the difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from modyn.config.base import load_section
from modyn.errors import CorruptStateError
from modyn.records import EvalInterval, Int64Array, Interval, KeysAndWeights, SampleBatch
from modyn.selector.presampling import PresamplingPolicy
from modyn.selector.selection import SelectionPolicy
from modyn.selector.window import (
    Selection,
    SelectionContext,
    SelectionWindow,
    StateFiles,
    StatefulPolicy,
    trigger_before_window,
    window_of_trigger,
)
from modyn.state_folders import SHARED_MEMORY
from modyn.supervisor.evaluation.base import EvaluationStrategy, TrainedModel
from modyn.supervisor.triggers.base import Trigger, TriggerContext, next_position
from modyn.supervisor.triggers.measures.label_clock import LabelClock
from modyn.supervisor.triggers.measures.questions import NO_EVIDENCE, EvidenceSource
from modyn.testing.decisions import decide, require
from modyn.testing.memory_reader import MemoryReader

__all__ = [
    "MAX_STATE_BYTES",
    "Resumable",
    "check_evaluation_strategy",
    "check_presampling",
    "check_selection",
    "check_state_is_refused",
    "check_trigger",
    "decide",
    "example_samples",
    "example_streams",
    "intervals_of_run",
    "require",
]

MAX_STATE_BYTES = 2**20
"""Largest size of a state. The size has a limit because the state is journalled after every batch."""

_DAY = 86_400
T = TypeVar("T")
P = TypeVar("P", bound=StatefulPolicy)
_BOUNDARIES = (0, 40, 41, 41, 200, 400)
"""Number of samples in the stream at each trigger. The numbers of new samples are 0, 40, 1, 0, 159 and 200."""


def example_streams(num_samples: int = 400) -> dict[str, SampleBatch]:
    """Return streams by name, with unusual but valid times: late, equal, future and negative times, and gaps. Every call returns the same streams."""
    rng = np.random.default_rng(20240131)
    position = np.arange(num_samples)
    daily = position * (_DAY // 8)
    times = {
        "one sample": np.array([1_000_000]),
        "every second": position + 1_600_000_000,
        "eight each day": daily,
        "before 1970": daily - 30 * 365 * _DAY,
        "all at the same time": np.full(num_samples, 12_345),
        "uneven, many equal": np.sort(rng.integers(0, 60 * _DAY, num_samples) // _DAY * _DAY),
        "late samples": daily - (rng.random(num_samples) < 0.2) * rng.integers(0, 30 * _DAY, num_samples),
        "one in the far future": np.where(position == num_samples // 3, daily + 100 * 365 * _DAY, daily),
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
    source: EvidenceSource = NO_EVIDENCE,
) -> None:
    """Check that a trigger policy is repeatable, does not change its input, does not depend on batch sizes, accepts empty batches, resumes from a
    saved state and from journalled verdicts, does not change its state when it answers questions, and checks only at allowed positions.

    Args: config: options of the policy, which are checked too. streams: streams by name; None: `example_streams()`. context: None: a context that has
    only a seed. source: deterministic object that answers the policy's questions.

    >>> from modyn.supervisor.triggers.amount import DataAmountTrigger
    >>> check_trigger(DataAmountTrigger, {"num_samples": 10})
    """
    context = context or TriggerContext(seed=1)

    def fresh() -> Trigger:
        return policy(load_section(policy.Config, config), context)

    require(bool(policy.__doc__), f"{policy.__name__} has no docstring; its first line is the decision rule")
    _check_empty_batch(fresh(), fresh())
    check_state_is_refused(policy.__name__, fresh())
    delay = fresh().label_delay
    for name, given in (example_streams() if streams is None else streams).items():
        where, stream = f"{policy.__name__} on '{name}'", LabelClock(delay).take(0, given) if delay else given
        whole = decide(fresh(), [stream], where, source=source)
        # Questions need not be repeated here: `decide` above has checked that they change no state.
        decided = partial(decide, where=where, source=source, asks_twice=False)
        require(decided(fresh(), [stream]) == whole, f"{where}: a second instance decides otherwise")
        replayed = decided(fresh(), [stream], verdicts=whole)
        require(replayed == whole, f"{where}: decides {whole}, but {replayed} when its verdicts are replayed")
        for split in _splits(stream):
            found = decided(fresh(), split)
            sizes = [len(batch) for batch in split]
            require(found == whole, f"{where}: decides {whole} in one batch, but {found} in batches of {sizes}")
        for at in {0, 1, len(stream) // 3, len(stream) // 2, len(stream)}:
            first = fresh()
            before = decided(first, [stream.slice(0, at)])
            second = _restored(first, fresh(), where)
            fired = [record.position for record in before if record.fires]
            pending = stream.num_labelled(at) - (stream.num_labelled(fired[-1]) if fired else 0)
            left = [stream.slice(at, len(stream))]
            after = decided(second, left, before=before, position=at, pending=pending)
            require(after == whole, f"{where}: decides {whole}, but {after} when restored after {at} samples")


def check_evaluation_strategy(
    strategy: type[EvaluationStrategy], config: Mapping[str, Any], runs: Sequence[Sequence[Interval]] | None = None
) -> None:
    """Check that an evaluation strategy is repeatable and returns non-empty intervals in the order of their anchors.

    Args: config: options of the strategy, which are checked too. runs: training intervals of the models of each run; None: a run without models, and
    a run with models.

    >>> from modyn.supervisor.evaluation.slicing import SlicingEvalStrategy
    >>> check_evaluation_strategy(SlicingEvalStrategy, {"eval_every": "1d", "eval_start_from": 0, "eval_end_at": "1970-02-01"})
    """
    default = [(), (Interval(0, 100), Interval(90, 300), Interval(300, 301))]
    require(bool(strategy.__doc__), f"{strategy.__name__} has no docstring; its first line is the rule")
    for run in default if runs is None else runs:
        built, other = (strategy(load_section(strategy.Config, config)) for _ in range(2))
        end = max((interval.end for interval in run), default=0) + 199
        intervals = intervals_of_run(built, run, end)
        where = f"{strategy.__name__} after trainings on {list(run)}"
        again = [intervals_of_run(asked, run, end) for asked in (built, other)]
        require(again == [intervals, intervals], f"{where}: asked again, it answers otherwise")
        require(all(i.start < i.end for i in intervals), f"{where}: gives empty intervals: {intervals}")
        anchors = [interval.anchor for interval in intervals]
        require(anchors == sorted(anchors), f"{where}: anchors do not ascend: {anchors}")


def intervals_of_run(strategy: EvaluationStrategy, data: Sequence[Interval], stream_end: int | None = None) -> list[EvalInterval]:
    """Return all intervals of a strategy for a run, each interval once.

    Args: data: training intervals of the run's models. stream_end: first time after all samples of the run; None: the run has not ended.
    """
    ends = accumulate((interval.end for interval in data), max)
    models = [TrainedModel(at, at, interval, end) for at, (interval, end) in enumerate(zip(data, ends, strict=True))]
    added = (strategy.after_training(models[:count]) for count in range(1, len(models) + 1))
    last = strategy.at_end(models, stream_end) if models and stream_end is not None else ()
    return list(dict.fromkeys(chain(strategy.intervals(), *added, last)))


def _splits(stream: SampleBatch) -> Iterator[list[SampleBatch]]:
    """Yield the stream in batches of one sample, of seven samples, and of random sizes with empty batches in between."""
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
    asked.observe(SampleBatch.empty())
    require(next_position(asked, SampleBatch.empty(), 0) is None, f"{name}: checks in an empty batch")
    require(asked.state() == untouched.state(), f"{name}: an empty batch changes its state")


class Resumable(Protocol):
    """A policy that resumes from a saved state."""

    def state(self) -> dict[str, Any]:
        """Return the state that later decisions depend on, as JSON values."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state`. Raises CorruptStateError for other values."""


def check_state_is_refused(name: str, policy: Resumable) -> None:
    """Check that `load_state` refuses a state that lacks its version or a field, or has additional fields. Raises AssertionError with a message that
    begins with `name`.
    """
    good = policy.state()
    require("version" in good, f"{name}: its state has no `version`")
    for bad in ({**good, "version": -1}, {}, {**good, "unknown": 1}):
        try:
            policy.load_state(bad)
        except CorruptStateError:
            continue
        raise AssertionError(
            f"{name}: load_state accepts {bad}; raise CorruptStateError for states that this version cannot read"
        )


@dataclass(frozen=True)
class _Selecting(Generic[P]):
    """A policy to check. make: creates an instance. select: calls the selection of an instance."""

    make: Callable[[], P]
    select: Callable[[P, SelectionWindow, SelectionContext], Selection]
    limit: int
    tail_triggers: int | None


def example_samples(num_samples: int = 400) -> dict[str, SampleBatch]:
    """Return streams by name: with keys in and out of order, and with balanced labels, skewed labels, labels of one class, and real numbers as
    labels. Every call returns the same streams."""
    rng = np.random.default_rng(20240131)
    position = np.arange(num_samples)
    skewed = np.minimum(rng.geometric(0.5, num_samples), 6)
    return {
        "ascending keys": SampleBatch(position * 3, position, position % 10),
        "shuffled keys": SampleBatch(rng.permutation(num_samples), np.sort(rng.integers(-50, 50, num_samples)), skewed),
        "one class": SampleBatch(position + 2**40, np.zeros(num_samples, np.int64), np.zeros(num_samples, np.int64)),
        "real labels": SampleBatch(position, position, rng.random(num_samples)),
    }


def check_selection(policy: type[SelectionPolicy], options: Mapping[str, Any]) -> None:
    """Check that a strategy is repeatable for a seed, does not depend on the chunks of its window, does not change its input, accepts empty windows,
    respects `limit` and the order of the stream, and resumes from a saved state. Args: options: section `selection_strategy` without `name`.

    >>> from modyn.selector.selection.new_data import NewDataStrategy
    >>> check_selection(NewDataStrategy, {"maximum_keys_in_memory": 10, "limit": 7, "limit_reset": "sampleUAR"})
    """
    config = load_section(policy.Config, options)
    _check_policy(policy, _Selecting(lambda: policy(config), policy.select, config.limit, config.tail_triggers))


def check_presampling(
    policy: type[PresamplingPolicy], options: Mapping[str, Any], limit: int = 150, refused: Collection[str] = ()
) -> None:
    """Check a presampling policy in the same way as `check_selection` checks a strategy.

    Args: options: section `presampling_config` without `strategy`. refused: names of `example_samples` that the policy refuses, such as "real labels"
    if the policy needs classes.

    >>> from modyn.selector.presampling.random_sampling import RandomPresampling
    >>> check_presampling(RandomPresampling, {"ratio": 30})
    """
    config = load_section(policy.Config, options)

    def select(made: PresamplingPolicy, window: SelectionWindow, context: SelectionContext) -> Selection:
        return made.select(window, min(limit, len(window)), context)

    for tail_triggers in (None, 0, 1):
        _check_policy(policy, _Selecting(lambda: policy(config), select, limit, tail_triggers), refused)


def _check_policy(policy: type[P], selecting: _Selecting[P], refused: Collection[str] = ()) -> None:
    name = policy.__name__
    require(bool(policy.__doc__), f"{name} has no docstring; its first line is the decision rule")
    check_state_is_refused(name, selecting.make())
    for stream_name, samples in example_samples().items():
        where = f"{name} on '{stream_name}'"
        if stream_name in refused:
            continue
        whole = _select_all(where, selecting, samples)
        again = _select_all(where, selecting, samples)
        require(_equal(whole, again), f"{where}: a second instance with the same seed selects otherwise")
        for chunk_size in (1, 7, 64):
            found = _select_all(where, selecting, samples, chunk_size)
            require(_equal(whole, found), f"{where}: selects otherwise when its window is read {chunk_size} samples at a time")
        restored = _select_all(where, selecting, samples, restore=True)
        require(_equal(whole, restored), f"{where}: selects otherwise when its state is saved and loaded between triggers")


def _select_all(
    where: str, selecting: _Selecting[P], samples: SampleBatch, chunk_size: int = 10_000, restore: bool = False
) -> list[KeysAndWeights]:
    """Return the trigger sets of a whole run."""
    # The files are in memory, because each trigger syncs its files. On a disk, the sync takes longer than the policy itself.
    memory = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with TemporaryDirectory(prefix="modyn-policy-", dir=memory) as folder:
        return _select_in(Path(folder), where, selecting, samples, chunk_size, restore)


def _select_in(
    folder: Path, where: str, selecting: _Selecting[P], samples: SampleBatch, chunk_size: int, restore: bool
) -> list[KeysAndWeights]:
    policy, reader, found, files = selecting.make(), MemoryReader(samples), list[KeysAndWeights](), StateFiles(folder, 0)
    for trigger_id, end in enumerate(_BOUNDARIES):
        before = trigger_before_window(trigger_id, selecting.tail_triggers)
        window = window_of_trigger(reader, 0 if before is None else _BOUNDARIES[before], end, 1)
        window = replace(window, chunk_size=chunk_size)
        files, ends = StateFiles(folder, trigger_id, files.references()), np.array(_BOUNDARIES[:trigger_id], np.int64)
        context = SelectionContext(11, trigger_id, files, partial(np.copy, ends), column=lambda _, keys: keys % 7)
        selection = selecting.select(policy, window, context)
        selected = KeysAndWeights.concatenate(list(selection.chunks))
        if selection.ranges is not None:
            named = [samples.keys[first:last] for first, last in selection.ranges]
            same = np.array_equal(np.concatenate([samples.keys[:0], *named]), selected.keys) and bool(
                (selected.weights == 1).all()
            )
            require(same, f"{where}, trigger {trigger_id}: its ranges {selection.ranges} are not its keys with weight 1")
        _check_set(
            f"{where}, trigger {trigger_id}", samples.keys[window.start : end], selection.num_keys, selected, selecting.limit
        )
        found.append(selected)
        if restore:
            text = json.dumps(policy.state())
            policy = selecting.make()
            policy.load_state(json.loads(text))
    return found


def _check_set(where: str, window: Int64Array, num_keys: int, selected: KeysAndWeights, limit: int) -> None:
    keys, weights = selected.keys, selected.weights
    require(
        len(keys) == len(weights) == num_keys, f"{where}: promises {num_keys} keys, gives {len(keys)} and {len(weights)} weights"
    )
    require(keys.dtype == np.int64 and weights.dtype == np.float32, f"{where}: keys are {keys.dtype}, weights {weights.dtype}")
    require(bool(np.isfinite(weights).all() and (weights >= 0).all()), f"{where}: weights must be finite and not negative")
    require(limit < 0 or len(keys) <= limit, f"{where}: selects {len(keys)} keys, limit is {limit}")
    position = {key: index for index, key in enumerate(window.tolist())}
    chosen = [position.get(key, -1) for key in keys.tolist()]
    require(-1 not in chosen, f"{where}: selects keys that are not in the window")
    require(all(a < b for a, b in pairwise(chosen)), f"{where}: leaves the stream's order, or repeats a key")
    require(len(window) == 0 or len(keys) > 0, f"{where}: selects nothing from {len(window)} samples")


def _equal(left: list[KeysAndWeights], right: list[KeysAndWeights]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(np.array_equal(a.keys, b.keys) and np.array_equal(a.weights, b.weights) for a, b in pairs)
