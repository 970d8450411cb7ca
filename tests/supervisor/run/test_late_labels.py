"""A sample is selectable once its label has come by the stream's clock, against an oracle by brute force; also when the supervisor dies."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.config.label_delay import check_label_delay, label_delay
from modyn.config.system import SupervisorConfig
from modyn.db.engine import Database
from modyn.records import NO_LABEL, SampleBatch
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.records import NewRun, RunMode, RunOptions
from modyn.supervisor.simulation.engine import SimulatedPolicy, Simulation
from modyn.supervisor.simulation.training_forecast import TrainingForecast
from modyn.supervisor.triggers import TriggerContext, build_trigger
from modyn.supervisor.triggers.measures.label_clock import LabelClock, LateBatch
from modyn.testing.services import InMemoryServices, pipeline_yaml
from tests.supervisor.run.test_crash import Bomb, Crash, WiredJournal, drive, revive

SELECTION = {"name": "NewDataStrategy", "maximum_keys_in_memory": 100, "tail_triggers": 0}
AMOUNT: dict[str, Any] = {"id": "DataAmountTrigger", "num_samples": 6}
TIME: dict[str, Any] = {"id": "TimeTrigger", "every": "10s"}


def stream_of(timestamps: list[int]) -> SampleBatch:
    """Samples in this order."""
    times = np.array(timestamps, np.int64)
    return SampleBatch(np.arange(len(times)) + 100, times, np.arange(len(times)) % 3)


def came(timestamps: list[int], delay: int, position: int) -> list[int]:
    """The positions of the samples whose labels have come before a position of the stream, by the definition, in the order in which they came."""
    order: list[int] = []
    for end in range(1, position + 1):
        clock = max(timestamps[:end])
        new = [at for at in range(end) if clock - timestamps[at] >= delay and at not in order]
        order += sorted(new, key=lambda at: (timestamps[at], at))
    return order


def run(database: Database, services: InMemoryServices, **sections: Any) -> tuple[Journal, Any]:
    """A finished run over the samples of `services`, in batches of 5, and its journal."""
    journal, final = Journal(database), bool(sections.pop("final_trigger", False))
    options = RunOptions(RunMode.EXPERIMENT, final_trigger=final)
    info = services.storage.client().dataset("train")
    new = NewRun(options, "Test", pipeline_yaml(**sections), "p.yaml", {}, 7, info.num_samples, info.next_key)
    run_id = journal.create(new).run_id
    drive(journal, services, run_id, Bomb(), SupervisorConfig(stream_batch_size=5))
    return journal, journal.run(run_id)


def with_samples(folder: Path, timestamps: list[int]) -> InMemoryServices:
    """Services with these samples in dataset `train`."""
    folder.mkdir()
    services = InMemoryServices(folder)
    services.storage.add_dataset("train")
    services.storage.add_samples("train", timestamps=timestamps)
    return services


@settings(max_examples=15)
@given(
    timestamps=st.lists(st.integers(-30, 30), min_size=1, max_size=24),
    delay=st.sampled_from([0, 1, 7, 20, 1000]),
    cuts=st.lists(st.integers(0, 24), max_size=4),
    unlabelled=st.sets(st.integers(0, 23), max_size=4),
)
def test_labels_come_as_the_definition_says_however_the_stream_is_cut(
    timestamps: list[int], delay: int, cuts: list[int], unlabelled: set[int]
) -> None:
    stream = stream_of(timestamps)
    without = sorted(at for at in unlabelled if at < len(stream))
    stream.labels[without] = NO_LABEL
    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    in_memory = LabelClock(delay)
    clock = LabelClock(delay, lambda at, number: stream.slice(at, min(at + number, at + 3)))
    found: list[int] = []
    for start, stop in pairwise(bounds):
        batch = clock.take(start, stream.slice(start, stop))
        assert in_memory.take(start, stream.slice(start, stop)).came.keys.tolist() == batch.came.keys.tolist()
        for position in range(stop - start + 1):
            expected = [at for at in came(timestamps, delay, start + position) if at not in without]
            assert len(found) + batch.num_labelled(position) == len(expected)
            assert [*found, *(batch.slice(0, position).labelled.keys - 100).tolist()] == expected
        found += (batch.came.keys - 100).tolist()
        assert batch.came.timestamps.tolist() == [timestamps[at] for at in found[len(found) - len(batch.came) :]]
        clocks = [max(timestamps[: start + with_sample]) for with_sample in range(1, stop - start + 1)]
        assert batch.came_at.tolist() == [
            clocks[with_sample] for with_sample, number in enumerate(np.diff(batch.counts)) for _ in range(number)
        ]
        resumed = LabelClock(delay, lambda at, number: stream.slice(at, min(at + number, at + 2)))
        resumed.restore(clock.first_waiting, stop, max(timestamps[:stop]))
        clock = resumed


def test_a_slice_has_the_labels_that_come_with_it() -> None:
    batch = LabelClock(3).take(0, stream_of([0, 1, 2, 3, 9, 9]))
    assert [batch.num_labelled(position) for position in range(7)] == [0, 0, 0, 0, 1, 4, 4]
    assert [batch.position_with(number) for number in (1, 2, 4, 5)] == [4, 5, 5, 7]
    parts = [batch.slice(0, 4), batch.slice(4, 5), batch.slice(5, 6)]
    assert all(isinstance(part, LateBatch) for part in parts)
    assert [part.labelled.keys.tolist() for part in parts] == [[100], [101, 102, 103], []]


@pytest.mark.parametrize(
    ("trigger", "delay", "final"),
    [(AMOUNT, 4, False), (AMOUNT, 25, True), (TIME, 4, True), (TIME, 25, False), (TIME, 500, True), (AMOUNT, 0, True)],
)
def test_each_sample_is_trained_on_once_after_its_label_has_come(
    database: Database, tmp_path: Path, trigger: dict[str, Any], delay: int, final: bool
) -> None:
    timestamps = [0, 1, 1, 5, 6, 9, 9, 20, 21, 22, 30, 31, 31, 31, 40, 41, 43, 44, 60, 61, 62]
    services = with_samples(tmp_path / "x", timestamps)
    data = {"dataset_id": "train", "label_delay": delay}
    journal, done = run(database, services, trigger=trigger, data=data, selection_strategy=SELECTION, final_trigger=final)
    triggers, sets = journal.triggers(done.run_id), services.selector.runs[done.run_id].sets
    before: list[int] = []
    for record, trigger_set in zip(triggers, sets, strict=True):
        expected = came(timestamps, delay, record.position)
        assert [*before, *trigger_set.keys.tolist()] == expected
        assert record.num_waiting == record.position - len(expected)
        assert record.num_keys == len(trigger_set)
        before = expected
    if trigger["id"] == "DataAmountTrigger":
        of_policy = triggers[:-1] if final and triggers else triggers
        positions = [at for at in range(1, len(timestamps) + 1) if len(came(timestamps, delay, at)) >= 6]
        assert all(len(found) >= 6 for found in sets[: len(of_policy)])
        assert bool(positions) is bool(sets[: len(of_policy)])
    waiting = len(timestamps) - len(came(timestamps, delay, len(timestamps)))
    assert done.num_waiting == waiting
    assert (f"the labels of {waiting} of 21 samples" in done.message) is bool(waiting), done.message
    if final:
        assert sorted(before) == sorted(came(timestamps, delay, len(timestamps))), "what is selectable is trained on at the end"


def test_a_delay_of_a_trigger_holds_for_trainings_too(database: Database, tmp_path: Path) -> None:
    """The option existed before `data.label_delay`: 40 of 40 keys of the first trigger were samples whose labels had not come."""
    services = with_samples(tmp_path / "x", list(range(100)))
    trigger = {
        "id": "PerformanceTrigger",
        "label_delay": "30s",
        "evaluation_interval_data_points": 10,
        "warmup_intervals": 4,
        "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 20},
        "evaluation": {"dataset": {"dataset_id": "train", "batch_size": 4, "metrics": [{"name": "Accuracy"}]}},
        "decision_criteria": {
            "low": {"id": "StaticPerformanceThresholdCriterion", "metric": "Accuracy", "metric_threshold": 0.1}
        },
    }
    journal, done = run(database, services, trigger=trigger)
    triggers, sets = journal.triggers(done.run_id), services.selector.runs[done.run_id].sets
    assert sets
    for record, trigger_set in zip(triggers, sets, strict=True):
        assert trigger_set.keys.max() + 30 <= record.fired_at_timestamp


def test_history_and_limits_count_what_is_selectable(database: Database, tmp_path: Path) -> None:
    services = with_samples(tmp_path / "x", list(range(40)))
    section = {"name": "NewDataStrategy", "maximum_keys_in_memory": 100, "limit": 12, "limit_reset": "lastX"}
    _, done = run(database, services, data={"dataset_id": "train", "label_delay": 15}, selection_strategy=section)
    sets = [found.keys.tolist() for found in services.selector.runs[done.run_id].sets]
    assert sets == [list(range(10)), list(range(8, 20))]


def test_steps_of_proactive_training_take_samples_with_labels(database: Database, tmp_path: Path) -> None:
    services = with_samples(tmp_path / "x", list(range(60)))
    trigger = {"id": "DataAmountTrigger", "num_samples": 8}
    journal, done = run(
        database,
        services,
        data={"dataset_id": "train", "label_delay": 20},
        trigger={"id": "InitialTrigger", "num_samples": 10},
        online={"trigger": trigger, "step_samples": 4, "history_samples": 2, "history": {"strategy": "Uniform"}},
    )
    sets = [found.keys for found in services.selector.runs[done.run_id].sets]
    records = journal.triggers(done.run_id)
    assert [record.position for record in records] == [30, 36, 44, 52, 60], "online.trigger counts each 8 labels from the start"
    assert sets[0].tolist() == list(range(10))
    bounds = pairwise([10, 16, 24, 32, 40])
    for record, keys, (start, stop) in zip(records[1:], sets[1:], bounds, strict=True):
        assert keys.max() == record.position - 21
        assert {*range(start, stop)} <= {*keys.tolist()}


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(1, 13))])
def test_killed_at_every_boundary_the_same_labels_are_trained_on(database: Database, tmp_path: Path, first: int) -> None:
    yaml = pipeline_yaml(data={"dataset_id": "train", "label_delay": 13}, trigger={"id": "DataAmountTrigger", "num_samples": 7})

    def begin(folder: str) -> tuple[InMemoryServices, Journal, Any]:
        services, journal = with_samples(tmp_path / folder, list(range(35))), Journal(database)
        new = NewRun(RunOptions(RunMode.EXPERIMENT, final_trigger=True), "Test", yaml, "p.yaml", {}, 7, 35, 35)
        return services, journal, journal.create(new).run_id

    def outcome(services: InMemoryServices, journal: Journal, run_id: Any) -> list[Any]:
        found = services.selector.runs[run_id]
        triggers = [(t.position, t.num_keys, t.num_waiting, t.weights_sha256) for t in journal.triggers(run_id)]
        assert found.labels is not None
        return [
            triggers,
            [keys.keys.tolist() for keys in found.sets],
            found.labels.keys.tolist(),
            journal.run(run_id).num_waiting,
        ]

    quiet, undisturbed = Bomb(), begin("undisturbed")
    config = SupervisorConfig(stream_batch_size=5)
    drive(WiredJournal(database, quiet), undisturbed[0], undisturbed[2], quiet, config)
    expected = outcome(*undisturbed)
    assert expected[1] == [list(range(7)), list(range(7, 14)), list(range(14, 21)), [21]]
    assert expected[3] == 13
    for at in range(first + 1, quiet.count + 1, 13):
        services, journal, run_id = begin(str(at))
        bomb = Bomb(at)
        with suppress(Crash):
            drive(WiredJournal(database, bomb), services, run_id, bomb, config)
        revive(journal, services, run_id, SupervisorConfig(stream_batch_size=4))
        assert outcome(services, journal, run_id) == expected, f"killed at boundary {at}"


def test_contradicting_delays_are_refused() -> None:
    pipeline = {"data": {"label_delay": "7d"}, "trigger": {"id": "PerformanceTrigger", "label_delay": "1d"}}
    (problem,) = check_label_delay(pipeline)
    assert problem.path == "trigger.label_delay"
    assert label_delay({"trigger": {"id": "OfAPlugin", "inner": {"label_delay": "1d"}}}) == 86_400
    assert "is 1d, and data.label_delay is 1w" in problem.message
    assert not check_label_delay({"data": {"label_delay": "1d"}, "trigger": {"label_delay": "24h"}})
    subtriggers = {"a": {"id": "PerformanceTrigger", "label_delay": "2h"}}
    assert label_delay({"data": {}, "online": {"trigger": {"id": "EnsembleTrigger", "subtriggers": subtriggers}}}) == 7200


@pytest.mark.parametrize("delay", [4, 25])
def test_a_simulation_fires_as_the_run_does(database: Database, tmp_path: Path, delay: int) -> None:
    timestamps = [0, 1, 1, 5, 6, 9, 9, 20, 21, 22, 30, 31, 31, 31, 40, 41, 43, 44, 60, 61, 62]
    stream = stream_of(timestamps)

    context = TriggerContext(label_delay=delay)
    policies = {section["id"]: SimulatedPolicy(build_trigger(section, context), TrainingForecast()) for section in (AMOUNT, TIME)}
    simulation = Simulation(policies, labels=LabelClock(delay))
    for start, stop in ((0, 12), (12, 17), (17, 21)):
        simulation.process(stream.slice(start, stop))
    for number, section in enumerate((AMOUNT, TIME)):
        services = with_samples(tmp_path / str(number), timestamps)
        journal, done = run(database, services, trigger=section, data={"dataset_id": "train", "label_delay": delay})
        expected = [(trigger.position, trigger.num_keys) for trigger in journal.triggers(done.run_id)]
        assert [(fired.position, fired.num_keys) for fired in simulation.policies[section["id"]].triggers] == expected
