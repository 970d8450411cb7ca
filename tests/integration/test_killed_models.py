"""Trainings of each model of tables, images and texts end with the same weights, even if their workers and services are killed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

from modyn.config.dataset import DatasetConfig
from modyn.config.system_sections.buckets import RECORDS
from modyn.storage.client import NewRecord
from modyn.supervisor.client import RunState
from modyn.testing.stack import RunningStack, tiny_pipeline, tiny_training
from modyn.testing.waiting import eventually
from tests.support.comparison import differences, outcome
from tests.support.killed_stack import WORKERS, KilledStack
from tests.support.model_uses import EACH, Use
from tests.support.training import NUM_CLASSES, payload_of

NUM_SAMPLES = 400


@pytest.mark.slow
@pytest.mark.timeout(600)
@EACH
def test_kills_change_no_weight(own_stack: Callable[..., RunningStack], use: Use) -> None:
    stack = own_stack()
    with stack.client() as client:
        client.register_dataset(DatasetConfig.model_validate({"name": "numbers", "base_path": RECORDS}))
        client.append_records(
            "numbers", [NewRecord(f"key {key}", payload_of(key), key % NUM_CLASSES, key) for key in range(NUM_SAMPLES)]
        )
        eventually(lambda: client.dataset("numbers").num_samples == NUM_SAMPLES)
        checkpoints = {"checkpointing": {"activated": True, "interval": 3}, "epochs_per_trigger": 3, "shuffle": True, "seed": 3}
        sections = {
            "model": use.model,
            "data": {**use.data, "dataset_id": "numbers"},
            "training": tiny_training(**checkpoints),
            "trigger": {"id": "DataAmountTrigger", "num_samples": NUM_SAMPLES // 2},
        }
        path = stack.pipeline_file("numbers", **yaml.safe_load(tiny_pipeline("numbers", **sections)))
        expected = client.wait(client.run(path).run_id)
        assert expected.state is RunState.FINISHED, expected.error
        for run_id in KilledStack(stack, client).runs_under_kills(path, (WORKERS, "trainer_server"), num_kills=4, seed=5):
            assert differences(outcome(client, expected.run_id), outcome(client, run_id)) == []
