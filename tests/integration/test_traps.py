"""Known traps that only show when the real parts work together; those of one part are tested with that part."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from modyn.config.base import load_section
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetSource
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.plan import BatchPosition
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.records import Interval
from modyn.selector.client import SelectorClient
from modyn.supervisor.client import RunState
from modyn.testing.stack import (
    DAY,
    RECORD,
    TINY_PARSER,
    RunningStack,
    tiny_dataset_config,
    tiny_evaluation,
    tiny_pipeline,
    tiny_training,
    write_tiny_files,
)
from tests.support.comparison import outcome


def test_payloads_and_labels_arrive_with_their_key_from_disk_to_tensor(running_stack: RunningStack) -> None:
    """Sorting by file and answering by position pairs them wrongly, and training would never notice: shuffled, over several files,
    partitions, requests and workers."""
    folder = running_stack.tiny_dataset("paired", num_samples=300, num_files=7)
    on_disk = np.concatenate([np.frombuffer(path.read_bytes(), RECORD) for path in sorted(folder.iterdir())])
    run = running_stack.run(
        tiny_pipeline(
            "paired",
            trigger={"id": "DataAmountTrigger", "num_samples": 300},
            selection_strategy={
                "name": "CoresetStrategy",
                "maximum_keys_in_memory": 37,
                "tail_triggers": 0,
                "presampling_config": {"strategy": "Random", "ratio": 80},
            },
        )
    )
    assert run.state is RunState.FINISHED, run.error
    config = running_stack.config
    with SelectorClient(config.endpoint("selector")) as selector:
        trigger_set = selector.trigger_set(run.run_id, 0)
    assert trigger_set.num_keys == 240
    data = load_section(DataConfig, {"dataset_id": "paired", "bytes_parser_function": TINY_PARSER}, "data")
    options = LoadOptions(
        batch_size=16,
        drop_last=False,
        shuffle=True,
        seed=3,
        epochs=2,
        num_prefetched_partitions=4,
        parallel_prefetch_requests=3,
    )
    dataset = TriggerSetDataset(trigger_set, data, DatasetSource(config, "paired").connect, options, BatchPosition(0, 0))
    seen: list[int] = []
    with BatchLoader(dataset, 0, pin_memory=False) as loader:
        for batch in loader:
            keys = [int(key) for key in batch.keys]
            assert torch.equal(torch.as_tensor(batch.labels), torch.from_numpy(on_disk["label"][keys].copy()))
            assert torch.equal(torch.as_tensor(batch.data), torch.from_numpy(on_disk["features"][keys].copy()))
            seen += keys
    assert len(seen) == 480
    assert sorted(seen[:240]) == sorted(seen[240:]) == sorted(set(seen))
    assert seen[:240] != sorted(seen[:240])


@pytest.mark.parametrize(("on_divergence", "num_triggers"), [("fail", 1), ("keep_previous", 2)])
def test_a_training_that_diverges_stores_no_model(running_stack: RunningStack, on_divergence: str, num_triggers: int) -> None:
    running_stack.tiny_dataset("diverging")
    optimizers = [
        {
            "name": "default",
            "algorithm": "SGD",
            "param_groups": [{"module": "model", "config": {"lr": 1e10, "weight_decay": 1e30}}],
        }
    ]
    training = tiny_training(optimizers=optimizers, epochs_per_trigger=3, on_divergence=on_divergence)
    run = running_stack.run(tiny_pipeline("diverging", training=training, evaluation=tiny_evaluation("diverging")))
    assert (run.state, "diverged" in run.error) == (RunState.FAILED, True), "also a run that goes on has made no model at its end"
    with running_stack.client() as client:
        found = outcome(client, run.run_id)
        assert len(found.triggers) == num_triggers
        assert not any(trigger.weights_sha256 for trigger in found.triggers)
        assert not found.evaluations


def test_a_sample_on_a_boundary_is_evaluated_in_one_interval(running_stack: RunningStack) -> None:
    """Intervals are [start, end) from the handler in the pipeline to the samples that the model sees."""
    stack = running_stack
    folder = stack.folder / "data" / "edges"
    write_tiny_files(folder, num_samples=90, num_files=3)
    for day, path in enumerate(sorted(folder.iterdir())):
        os.utime(path, (day * DAY, day * DAY))
    with stack.client() as client:
        client.register_dataset(tiny_dataset_config("edges", folder))
        client.ingest("edges")
        for day in range(3):
            assert client.storage.count_samples("edges", Interval(day * DAY, (day + 1) * DAY)) == 30
        run = stack.run(tiny_pipeline("edges", evaluation=tiny_evaluation("edges", days=3)))
        assert run.state is RunState.FINISHED, run.error
        cells = outcome(client, run.run_id).evaluations
        assert [(cell.start // DAY, cell.num_samples) for cell in cells] == [(0, 30), (1, 30), (2, 30)]
        replayed = client.wait(
            client.run(stack.folder / "pipeline.yaml", from_timestamp=DAY, to_timestamp=2 * DAY, max_triggers=1).run_id
        )
        assert (replayed.total_samples, replayed.num_samples) == (30, 30)


def test_checking_a_file_executes_nothing_in_it(running_stack: RunningStack, tmp_path: Path) -> None:
    """Neither in the command nor in any service: only workers run a user's code, and only in a run."""
    running_stack.tiny_dataset("unchecked")
    mark = tmp_path / "executed"
    touch = f"open({str(mark)!r}, 'w').close()"
    parser = f"{touch}\nimport torch\n\ndef bytes_parser_function(data: memoryview, _={touch}) -> torch.Tensor:\n    {touch}\n"
    evaluation = tiny_evaluation("unchecked")
    evaluation["datasets"][0]["bytes_parser_function"] = parser  # type: ignore[index]
    text = tiny_pipeline("unchecked", data={"dataset_id": "unchecked", "bytes_parser_function": parser}, evaluation=evaluation)
    (tmp_path / "pipeline.yaml").write_text(text)
    with running_stack.client() as client:
        assert client.check(tmp_path / "pipeline.yaml") == []
    done = running_stack.modyn("check", tmp_path / "pipeline.yaml")
    assert done.returncode == 0, done.stderr
    assert not mark.exists()


def test_a_seed_reaches_every_sampler_and_two_runs_at_once_do_not_disturb_each_other(running_stack: RunningStack) -> None:
    """Both runs draw from one dataset, at the same time, in the same services."""
    running_stack.tiny_dataset("shared", num_samples=200, num_files=4)
    text = tiny_pipeline(
        "shared",
        selection_strategy={
            "name": "CoresetStrategy",
            "maximum_keys_in_memory": 20,
            "tail_triggers": 2,
            "presampling_config": {"strategy": "Random", "ratio": 30},
        },
        training=tiny_training(seed=21, shuffle=True),
    )
    path = running_stack.folder / "shared.yaml"
    path.write_text(text)
    with running_stack.client() as client:
        runs = [client.run(path).run_id for _ in range(3)]
        found = [outcome(client, client.wait(run_id).run_id) for run_id in runs]
    assert len(found[0].triggers) == 4
    assert found[0].triggers == found[1].triggers == found[2].triggers
