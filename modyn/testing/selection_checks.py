"""Checks that every selection and presampling policy must pass, ours and those of a user's own package.

    def test_my_strategy() -> None:
        check_selection(MyStrategy, {"maximum_keys_in_memory": 100})

Each raises AssertionError that says which rule was broken, on which stream, and how.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from modyn.config.base import load_section
from modyn.records import Int64Array, KeysAndWeights, SampleBatch
from modyn.selector.presampling import PresamplingPolicy
from modyn.selector.selection import SelectionPolicy
from modyn.selector.stream_checks import trigger_starts
from modyn.selector.window import Selection, SelectionContext, SelectionWindow
from modyn.testing.checks import Resumable, check_state_is_refused, require

_BOUNDARIES = (0, 40, 41, 41, 300, 700)
"""How many samples each trigger covers: none, some, one more, no more, many."""


class _Policy(Resumable, Protocol):
    def select(self, window: SelectionWindow, context: SelectionContext) -> Selection: ...


class _Presampled:
    """A presampling policy with the face of a strategy."""

    def __init__(self, policy: PresamplingPolicy, limit: int) -> None:
        self.policy, self.limit = policy, limit
        self.state, self.load_state = policy.state, policy.load_state

    def select(self, window: SelectionWindow, context: SelectionContext) -> Selection:
        return self.policy.select(window, min(self.limit, len(window)), context)


class MemoryReader:
    """A stream in memory whose arrays refuse to be changed."""

    def __init__(self, samples: SampleBatch) -> None:
        for column in (samples.keys, samples.timestamps, samples.labels):
            column.flags.writeable = False
        self.samples = samples

    def read(self, start: int, end: int) -> SampleBatch:
        """Samples [start, end) of the stream."""
        return self.samples.slice(start, end)

    def read_keys(self, start: int, end: int) -> Int64Array:
        """Keys of the samples [start, end): int64 (n,)."""
        return self.samples.keys[start:end]


def example_samples(num_samples: int = 700) -> dict[str, SampleBatch]:
    """Streams by name: keys in and out of order, labels balanced, skewed, of one class and real. Always the same."""
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
    """That a strategy with these options (the section without `name`) is repeatable for a seed, does not depend on the pieces in which
    its window is read, leaves its input alone, takes empty windows, keeps `limit` and the order of the stream, and goes on from a saved
    state.

    >>> from modyn.selector.selection.new_data import NewDataStrategy
    >>> check_selection(NewDataStrategy, {"maximum_keys_in_memory": 10, "limit": 7, "limit_reset": "sampleUAR"})
    """
    config = load_section(policy.Config, options)
    _check(policy.__name__, policy.__doc__, lambda: policy(config), config.limit, config.tail_triggers)


def check_presampling(policy: type[PresamplingPolicy], options: Mapping[str, Any], limit: int = 150) -> None:
    """The same of a presampling policy; `options` is `presampling_config` without `strategy`.

    >>> from modyn.selector.presampling.random_sampling import RandomPresampling
    >>> check_presampling(RandomPresampling, {"ratio": 30})
    """
    config = load_section(policy.Config, options)
    for tail_triggers in (None, 0, 1):
        _check(policy.__name__, policy.__doc__, lambda: _Presampled(policy(config), limit), limit, tail_triggers)


def _check(name: str, doc: str | None, fresh: Callable[[], _Policy], limit: int, tail_triggers: int | None) -> None:
    require(bool(doc), f"{name} has no docstring; its first line is the decision rule")
    check_state_is_refused(name, fresh())
    for stream_name, samples in example_samples().items():
        where = f"{name} on '{stream_name}'"
        whole = _run(where, fresh, samples, limit, tail_triggers, piece=10_000)
        again = _run(where, fresh, samples, limit, tail_triggers, piece=10_000)
        require(_equal(whole, again), f"{where}: a second instance with the same seed selects otherwise")
        for piece in (1, 7, 64):
            found = _run(where, fresh, samples, limit, tail_triggers, piece)
            require(_equal(whole, found), f"{where}: selects otherwise when its window is read {piece} samples at a time")
        restored = _run(where, fresh, samples, limit, tail_triggers, piece=10_000, restore=True)
        require(_equal(whole, restored), f"{where}: selects otherwise when its state is saved and loaded between triggers")


def _run(
    where: str,
    fresh: Callable[[], _Policy],
    samples: SampleBatch,
    limit: int,
    tail_triggers: int | None,
    piece: int,
    restore: bool = False,
) -> list[KeysAndWeights]:
    """The trigger sets of a whole run."""
    policy, reader, found = fresh(), MemoryReader(samples), []
    for trigger_id, end in enumerate(_BOUNDARIES):
        starts = trigger_starts(_BOUNDARIES, trigger_id, tail_triggers)
        window = SelectionWindow(reader, starts[0], end, piece, starts)
        selection = policy.select(window, SelectionContext(11, trigger_id))
        selected = KeysAndWeights.concatenate(list(selection.parts))
        _check_set(f"{where}, trigger {trigger_id}", samples.keys[starts[0] : end], selection.num_keys, selected, limit)
        found.append(selected)
        if restore:
            text = json.dumps(policy.state())
            policy = fresh()
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
