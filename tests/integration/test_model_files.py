"""A run keeps the file of its model: it is trained, evaluated, stopped, resumed and loaded after the file has changed and is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from modyn.errors import ConfigError
from modyn.models.names import text_sha256
from modyn.supervisor.client import RunState
from modyn.testing.stack import (
    NUM_CLASSES,
    NUM_FEATURES,
    RunningStack,
    tiny_evaluation,
    tiny_pipeline,
)
from modyn.testing.waiting import eventually

NET = """
from torch import nn


class Net(nn.Linear):
    def __init__(self, width: int, num_classes: int):
        super().__init__(width, num_classes)
"""


def test_a_run_keeps_the_file_of_its_model(running_stack: RunningStack, tmp_path: Path) -> None:
    running_stack.tiny_dataset("kept-file", num_samples=110)
    net, pipeline = tmp_path / "net.py", tmp_path / "pipeline.yaml"
    net.write_text(NET)
    config = {"width": NUM_FEATURES, "num_classes": NUM_CLASSES}
    model = {"id": "./net.py:Net", "config": config}
    with running_stack.client() as client:
        pipeline.write_text(tiny_pipeline("kept-file", model={**model, "config": {"widht": 3}}))
        with pytest.raises(ConfigError, match=r"pipeline.yaml:6: model.config.widht: .* did you mean 'width'?"):
            client.run(pipeline)
        pipeline.write_text(tiny_pipeline("kept-file", model=model, evaluation=tiny_evaluation("kept-file")))
        run = client.run(pipeline, "production", max_triggers=3)
        eventually(lambda: client.show(run.run_id).num_triggers == 2)
        client.stop(run.run_id)
        eventually(lambda: client.show(run.run_id).state is RunState.STOPPED)

        net.write_text("raise RuntimeError('another file')")
        resumed = client.resume(run.run_id)
        assert resumed.message.startswith(f"{net} has changed since the run was submitted")
        net.unlink()
        assert client.finish(run.run_id)
        found = client.wait(run.run_id)
        assert (found.state, found.failed_evaluations) == (RunState.FINISHED, 0)
        (newest,) = client.models(run.run_id)["model_id"].tail(1)
        stored = client.model(int(newest))
        assert text_sha256(stored.model_definition) == text_sha256(NET)
        assert client.load_model(int(newest)).out_features == NUM_CLASSES
