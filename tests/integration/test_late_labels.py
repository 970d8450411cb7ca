"""Labels that come after their samples, through all services: live by key and by the command line, and by the clock of a replay."""

from __future__ import annotations

import json

import numpy as np

from modyn.config.dataset import DatasetConfig
from modyn.storage.client import NewRecord
from modyn.supervisor.client import RunMode, RunState
from modyn.testing.stack import DAY, NUM_CLASSES, NUM_FEATURES, TINY_PARSER, RunningStack, tiny_evaluation, tiny_pipeline
from modyn.testing.waiting import eventually
from tests.support.killed_stack import trigger_set_keys

LIVE, REPLAYED = "late-live", "late-replay"


def record(number: int, label: int | None) -> NewRecord:
    payload = np.eye(NUM_FEATURES, dtype=np.float32)[number % NUM_CLASSES].tobytes()
    return NewRecord(f"key-{number}", payload, label, 1_000 + number)


def test_a_production_run_trains_on_records_once_they_are_labelled(running_stack: RunningStack) -> None:
    stack = running_stack
    with stack.client() as client:
        client.register_dataset(DatasetConfig.model_validate({"name": LIVE, "base_path": "records://"}))
        client.append_records(LIVE, [record(i, i % NUM_CLASSES if i < 20 else None) for i in range(60)])
        path = stack.folder / "late.yaml"
        path.write_text(tiny_pipeline(LIVE, evaluation=tiny_evaluation(LIVE, days=1)))
        run = client.run(path, mode=RunMode.PRODUCTION, final_trigger=True)
        eventually(lambda: client.show(run.run_id).num_samples == 60)
        assert client.show(run.run_id).num_triggers == 0

        labels = stack.folder / "labels.jsonl"
        labelled = [*range(59, 39, -1), *range(20, 30)]
        labels.write_text("".join(json.dumps({"key": f"key-{i}", "label": i % NUM_CLASSES}) + "\n" for i in labelled))
        for expected in ("30 records labelled, 0 had a label", "0 records labelled, 30 had a label"):
            done = stack.modyn("data", "label", LIVE, labels)
            assert expected in done.stderr
        assert "10" in stack.modyn("data", "show", LIVE).stdout.partition("num_unlabelled")[2].splitlines()[0]
        eventually(lambda: len(client.supervisor.triggers(run.run_id)) == 1)
        eventually(lambda: client.supervisor.triggers(run.run_id)[0].model_id is not None)
        assert trigger_set_keys(client, run.run_id, 0) == [*range(20), *labelled], "in the order in which the labels came"
        client.finish(run.run_id)
        ended = client.wait(run.run_id)
        assert ended.state is RunState.FINISHED, ended.error
        assert "the labels of 10 of 60 samples have not come" in ended.message
        assert {result.num_samples for result in client.evaluator.results(run.run_id)} == {50}, "none without a label"
        shown = stack.modyn("show", run.run_id).stdout
        assert "without labels" in shown
        assert "10, which wait for labels" in shown


def test_a_replay_decides_and_trains_on_labels_that_have_come(running_stack: RunningStack) -> None:
    """100 samples a day; labels come a day late. The evaluator reads labels, and the selector selects, in the order of these."""
    stack = running_stack
    stack.tiny_dataset(REPLAYED, num_samples=400, num_files=4)
    drift = {
        "id": "DataDriftTrigger",
        "on": "labels",
        "evaluation_interval": "1d",
        "windowing_strategy": {"id": "AmountWindowingStrategy", "amount_ref": 80, "amount_cur": 80},
        "metrics": {"m": {"id": "MMDDriftMetric", "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": -1}}},
    }
    data = {"dataset_id": REPLAYED, "bytes_parser_function": TINY_PARSER, "label_delay": "1d"}
    with stack.client() as client:
        run = stack.run(tiny_pipeline(REPLAYED, data=data, trigger=drift))
        assert run.state is RunState.FINISHED, run.error
        triggers = client.supervisor.triggers(run.run_id)
        checks = client.supervisor.checks(run.run_id)
        assert [trigger.num_waiting for trigger in triggers] == [100] * len(triggers)
        clock = [trigger.fired_at_timestamp for trigger in triggers]
        seen: list[int] = []
        for number, now in enumerate(clock):
            keys = trigger_set_keys(client, run.run_id, number)
            times = client.storage.samples_by_key(REPLAYED, np.array(keys, np.int64)).timestamps
            assert times.max() + DAY <= now
            seen += keys
        assert seen == list(range(len(seen)))
        assert len(seen) == 200, "the labels of the third and fourth day come after the last check, or after the stream"
        assert [check.numbers.get("current_samples") for check in checks] == [None, 80]
        assert "the labels of 100 of 400 samples have not come" in run.message
