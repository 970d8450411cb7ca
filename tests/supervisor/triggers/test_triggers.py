"""Trigger policies: the registry, the checks that all of them pass, and golden decisions on fixed streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from random import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.policy import check_policy
from modyn.errors import ConfigError, CorruptStateError, UserCodeError
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, SampleBatch
from modyn.supervisor.evidence import Evidence
from modyn.supervisor.triggers import TRIGGERS, Check, CheckContext, Trigger, TriggerContext, build_trigger
from modyn.supervisor.triggers.amount import DataAmountConfig, DataAmountTrigger
from modyn.supervisor.triggers.base import CheckRecord, next_position
from modyn.testing.checks import check_trigger, decide, example_streams
from tests.support.trigger_sections import streams_of_each

CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("DataAmountTrigger", {"num_samples": 1}),
    ("DataAmountTrigger", {"num_samples": 37}),
    ("DataAmountTrigger", {"num_samples": 150}),
    ("DataAmountTrigger", {"num_samples": 10**9}),
    ("InitialTrigger", {"num_samples": 1}),
    ("InitialTrigger", {"num_samples": 37}),
    ("InitialTrigger", {"num_samples": 10**9}),
    ("TimeTrigger", {"every": "1s"}),
    ("TimeTrigger", {"every": "1d"}),
    ("TimeTrigger", {"every": "1w", "start_timestamp": "1970-01-03"}),
    ("TimeTrigger", {"every": "1y", "start_timestamp": -(10**9)}),
    ("TimeTrigger", {"every": 86400, "start_timestamp": 0}),
]


def _batch(*timestamps: int) -> SampleBatch:
    times = np.array(timestamps, np.int64)
    return SampleBatch(np.arange(len(times)), times, np.zeros(len(times), np.int64))


def _positions(records: Sequence[CheckRecord]) -> list[int]:
    return [record.position for record in records if record.fires]


def _fired(section: Mapping[str, Any], *timestamps: int) -> list[int]:
    return _positions(decide(build_trigger(section), [_batch(*timestamps)]))


def test_the_registry_holds_what_we_mean_it_to() -> None:
    assert set(TRIGGERS.builtin) == {
        "AutoDrift",
        "AvoidableMisclassificationCostTrigger",
        "DataAmountTrigger",
        "InitialTrigger",
        "DataDriftTrigger",
        "DataIncorporationLatencyCostTrigger",
        "DynamicScheduleTrigger",
        "EnsembleTrigger",
        "PerformanceTrigger",
        "StreamDetectorTrigger",
        "TimeTrigger",
    }
    assert not TRIGGERS.not_yet


@pytest.mark.parametrize(("name", "titles"), streams_of_each({f"{id_} {config}": config for id_, config in CONFIGS}, 150))
def test_every_policy_passes_the_checks(name: str, titles: list[str]) -> None:
    (config,), streams = [config for id_, config in CONFIGS if name == f"{id_} {config}"], example_streams(150)
    check_trigger(TRIGGERS.get(name.split(maxsplit=1)[0]), config, streams={title: streams[title] for title in titles})


@pytest.mark.parametrize(
    ("num_samples", "count", "expected"),
    [(1, 3, [1, 2, 3]), (3, 7, [3, 6]), (3, 3, [3]), (4, 3, []), (5, 0, [])],
)
def test_amount(num_samples: int, count: int, expected: list[int]) -> None:
    assert _fired({"id": "DataAmountTrigger", "num_samples": num_samples}, *range(count)) == expected


@pytest.mark.parametrize(
    ("timestamps", "expected"),
    [
        pytest.param([0, 5, 9], [], id="one period does not fire before it is over"),
        pytest.param([0, 9, 10], [2], id="a sample on the boundary belongs to the next period"),
        pytest.param([0, 9, 11, 20], [2, 3], id="fires before the first sample past the boundary"),
        pytest.param([0, 45, 46, 50], [1, 3], id="a gap over several periods fires once, and boundaries stay on the grid"),
        pytest.param([0, 12, 3, 9, 12, 20], [1, 5], id="late samples never fire"),
        pytest.param([0, 10, 10, 10, 20, 20], [1, 4], id="equal timestamps fire once"),
        pytest.param([0, 1000, 11, 25, 1001, 1010], [1, 5], id="a timestamp from the future is taken at its word"),
        pytest.param([-25, -20, -5, 5], [2, 3], id="time before 1970"),
        pytest.param([], [], id="no sample"),
    ],
)
def test_time_from_the_first_sample(timestamps: list[int], expected: list[int]) -> None:
    assert _fired({"id": "TimeTrigger", "every": "10s"}, *timestamps) == expected


@pytest.mark.parametrize(
    ("start", "timestamps", "expected"),
    [
        pytest.param(5, [6, 14, 15], [2], id="boundaries are start + k * every"),
        pytest.param(0, [57, 59, 60], [2], id="periods before the first sample are empty and fire nothing"),
        pytest.param(100, [3, 50, 99, 109, 110], [4], id="samples before the start belong to the first period"),
        pytest.param("1970-01-01T00:01:00", [60, 69, 70], [2], id="a date"),
    ],
)
def test_time_from_a_given_start(start: int | str, timestamps: list[int], expected: list[int]) -> None:
    assert _fired({"id": "TimeTrigger", "every": "10s", "start_timestamp": start}, *timestamps) == expected


def test_time_at_the_ends_of_int64() -> None:
    section = {"id": "TimeTrigger", "every": 1}
    assert _fired(section, MIN_TIMESTAMP, 0, MAX_TIMESTAMP) == [1, 2]
    assert _fired({**section, "start_timestamp": MAX_TIMESTAMP}, MIN_TIMESTAMP, 0, MAX_TIMESTAMP) == []
    assert _fired({**section, "every": "99999999999999y"}, MIN_TIMESTAMP, 0, MAX_TIMESTAMP) == [], "longer than all of int64"


def _time_oracle(timestamps: list[int], every: int, start: int | None) -> Iterator[int]:
    """The rule, sample by sample."""
    boundary: int | None = None
    for position, time in enumerate(timestamps):
        start = time if start is None else start
        if boundary is None:
            boundary = start + every
            fires = False
        else:
            fires = time >= boundary
        while time >= boundary:
            boundary += every
        if fires:
            yield position


_TIMES = st.lists(st.integers(-50, 200), max_size=40)
_EDGES = st.lists(st.integers(0, 40), max_size=6)


def _in_batches(timestamps: list[int], edges: list[int]) -> list[SampleBatch]:
    whole, bounds = _batch(*timestamps), [0, *sorted(min(edge, len(timestamps)) for edge in edges), len(timestamps)]
    return [whole.slice(start, stop) for start, stop in pairwise(bounds)]


@given(_TIMES, _EDGES, st.integers(1, 30), st.none() | st.integers(-60, 210))
def test_time_decides_as_the_rule_says(timestamps: list[int], edges: list[int], every: int, start: int | None) -> None:
    section = {"id": "TimeTrigger", "every": every, "start_timestamp": start}
    fired = _positions(decide(build_trigger(section), _in_batches(timestamps, edges)))
    assert fired == list(_time_oracle(timestamps, every, start))


@pytest.mark.parametrize("every", [7, 255, 256, 257, 767, 768, 769, 4_000, 9_000])
def test_time_decides_as_the_rule_says_far_into_a_long_batch(every: int) -> None:
    times = list(range(10_000))
    assert _fired({"id": "TimeTrigger", "every": every}, *times) == list(_time_oracle(times, every, None))


@given(_TIMES, _EDGES, st.integers(1, 30))
def test_amount_decides_as_the_rule_says(timestamps: list[int], edges: list[int], num_samples: int) -> None:
    section = {"id": "DataAmountTrigger", "num_samples": num_samples}
    fired = _positions(decide(build_trigger(section), _in_batches(timestamps, edges)))
    assert fired == list(range(num_samples, len(timestamps) + 1, num_samples))


@pytest.mark.parametrize("section", [{"id": "TimeTrigger", "every": 7}, {"id": "DataAmountTrigger", "num_samples": 3}], ids=str)
@given(timestamps=_TIMES, at=st.integers(0, 40))
def test_a_policy_that_is_resumed_anywhere_decides_as_before(section: dict[str, Any], timestamps: list[int], at: int) -> None:
    whole, at = decide(build_trigger(section), [_batch(*timestamps)]), min(at, len(timestamps))
    old, new = build_trigger(section), build_trigger(section)
    before = decide(old, [_batch(*timestamps[:at])])
    new.load_state(json.loads(json.dumps(old.state())))
    assert decide(new, [_batch(*timestamps).slice(at, len(timestamps))], before=before, position=at) == whole


@pytest.mark.parametrize(
    ("section", "path", "message"),
    [
        (
            {},
            "trigger.id",
            "is required: the name of a trigger, one of AutoDrift, Avoid",
        ),
        ({"id": 3}, "trigger.id", "is required"),
        ({"id": "DataAmountTriger", "num_samples": 3}, "trigger.id", "did you mean 'DataAmountTrigger'?"),
        ({"id": "DataAmountTrigger"}, "trigger.num_samples", "is required"),
        (
            {"id": "DataAmountTrigger", "num_samples": 0},
            "trigger.num_samples",
            "0 is wrong: input should be greater than or equal to 1",
        ),
        ({"id": "DataAmountTrigger", "num_samples": 1, "num_sample": 2}, "trigger.num_sample", "did you mean 'num_samples'?"),
        ({"id": "TimeTrigger", "every": "3 fortnights"}, "trigger.every", "is not a duration"),
        ({"id": "TimeTrigger", "every": "0d"}, "trigger.every", "is wrong: input should be greater than or equal to 1"),
        ({"id": "TimeTrigger", "every": "1d", "start_timestamp": "soon"}, "trigger.start_timestamp", "is not a timestamp"),
    ],
)
def test_mistakes_in_the_section(section: dict[str, Any], path: str, message: str) -> None:
    problems = check_policy(TRIGGERS, section, "id", "trigger")
    assert [problem.path for problem in problems] == [path]
    assert message in problems[0].message
    with pytest.raises(ConfigError) as caught:
        build_trigger(section)
    assert message in caught.value.message


@pytest.mark.parametrize(
    "state", [{"version": 1, "pending": "3"}, {"version": 1, "pending": True}, {"version": 1}, {"pending": 3}]
)
def test_a_state_that_cannot_be_read_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(CorruptStateError, match="saved state of DataAmountTrigger"):
        build_trigger({"id": "DataAmountTrigger", "num_samples": 5}).load_state(state)


class _Wrong(DataAmountTrigger):
    """Breaks one rule, named by the test."""


class _CountsBatches(_Wrong):
    """Checks at the end of each batch."""

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        return len(batch) if start < len(batch) else None


class _ChangesItsInput(_Wrong):
    """Writes into the batch."""

    def observe(self, samples: SampleBatch) -> None:
        samples.labels[:] = 0
        super().observe(samples)


class _ChecksWhereItHasChecked(_Wrong):
    """Returns the position that was decided on."""

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        return max(start, 0)


class _Forgets(_Wrong):
    """Loses its count."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state({**state, "pending": 0} if state.get("pending") else state)


class _ReadsAnything(_Wrong):
    """Takes any state."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._pending = state.get("pending", 0)


class _Remembers(_Wrong):
    """Shares its count between instances, as state in a class does."""

    shared = 0

    def observe(self, samples: SampleBatch) -> None:
        self._pending = self._pending or type(self).shared
        super().observe(samples)
        type(self).shared = self._pending


class _CountsWhenAsked(_Wrong):
    """Changes its state in a question."""

    def check(self, context: CheckContext) -> Check:
        self._pending = 0
        return Check(fires=True)


class _Draws(_Wrong):
    """Draws from a generator that no seed reaches."""

    def check(self, context: CheckContext) -> Check:
        return Check(fires=True, evidence=[Evidence("drawn", random())])


class _MissesReplayedVerdicts(_Wrong):
    """Continues only from verdicts that it has made itself."""

    def check(self, context: CheckContext) -> Check:
        self.made = context.position
        return Check(fires=True, evidence=[Evidence("position", float(context.position))])

    def checked(self, record: CheckRecord) -> None:
        self._pending = 0 if getattr(self, "made", 0) == record.position else 1


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (_CountsBatches, "in batches of"),
        (_ChangesItsInput, "changes the samples"),
        (_Forgets, "after load_state"),
        (_ReadsAnything, "load_state accepts"),
        (_Remembers, "in batches of|a second instance"),
        (_CountsWhenAsked, "check changes its state"),
        (_Draws, "asked again, answers otherwise"),
        (_MissesReplayedVerdicts, "when its verdicts are replayed"),
    ],
)
def test_the_checks_can_fail(policy: type[Trigger], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_trigger(policy, {"num_samples": 7})


def test_a_position_that_does_not_ascend_is_refused() -> None:
    with pytest.raises(
        UserCodeError, match="_ChecksWhereItHasChecked wants to check at position 0 of a batch of 3 samples, after 0"
    ):
        next_position(_ChecksWhereItHasChecked(DataAmountConfig(num_samples=3)), _batch(1, 2, 3), 0)


def test_context_reaches_the_policy() -> None:
    trigger = build_trigger({"id": "DataAmountTrigger", "num_samples": 5}, TriggerContext(seed=9))
    assert trigger.context.seed == 9
