"""Known traps that only show when the real parts work together; those of one part are tested with that part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from modyn.records import Interval
from modyn.supervisor.client import RunState
from modyn.testing.stack import (
    DAY,
    RunningStack,
    tiny_dataset_config,
    tiny_evaluation,
    tiny_pipeline,
    tiny_training,
    write_tiny_files,
)
from tests.support.comparison import outcome


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
    assert (run.state, "diverged" in run.error) == (RunState.FAILED, True), (
        "a run that continues has made no model at its end either"
    )
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
    """Commands and services run no code of users: only workers do, and only in a run."""
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
