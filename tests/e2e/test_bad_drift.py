"""Bad input to a drift trigger, on real services: models, distances and data that fail, and what is killed or stopped during a check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modyn.local.service_process import is_alive
from modyn.records import RunId
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.supervisor.client import CheckRecord, RunState
from modyn.testing.stack import DAY, TINY_PARSER, RunningStack, tiny_dataset_config, tiny_training
from modyn.testing.waiting import eventually
from tests.support.drifting_data import drifting_dataset, drifting_pipeline
from tests.support.killed_stack import KilledStack

pytestmark = pytest.mark.timeout(300)

THRESHOLD = {"id": "ThresholdDecisionCriterion", "threshold": 0.1}


@pytest.fixture(scope="module")
def stack(running_stack: RunningStack) -> RunningStack:
    drifting_dataset(running_stack, "bad-drift")
    return running_stack


@pytest.fixture
def plugin(running_stack: RunningStack) -> Path:
    """The folder of the broken plug-in, in which its distances write and read files."""
    assert running_stack.plug_ins is not None
    return running_stack.plug_ins


def pipeline(
    metric: str = "MMDDriftMetric", on: str = "embeddings", dataset: str = "bad-drift", every: int = 25, **sections: Any
) -> str:
    """Return a pipeline with a drift trigger that has one metric, `far`, and checks every 25 of 600 samples."""
    trigger = {
        "id": "DataDriftTrigger",
        "on": on,
        "evaluation_interval_data_points": every,
        "windowing_strategy": {"id": "AmountWindowingStrategy", "amount_ref": 50, "amount_cur": 25},
        "metrics": {"far": {"id": metric, "decision_criterion": THRESHOLD}},
    }
    return drifting_pipeline(dataset, trigger, **sections)


def refused(stack: RunningStack, text: str) -> str:
    """Return the message of `modyn check` for a pipeline; `modyn run` must refuse it too."""
    file = stack.folder / "bad.yaml"
    file.write_text(text)
    assert stack.modyn("run", file).returncode == 1
    done = stack.modyn("check", file)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout + done.stderr


def failed(stack: RunningStack, text: str) -> tuple[str, str]:
    """Return id and error of a run that fails at its first check, after its first training."""
    run = stack.run(text)
    assert (run.state, run.num_triggers) == (RunState.FAILED, 1)
    return run.run_id, run.error


def checks(stack: RunningStack, run_id: str) -> list[CheckRecord]:
    with stack.client() as client:
        return client.supervisor.checks(RunId(run_id))


@pytest.mark.slow
def test_a_model_that_has_diverged_is_named_with_windows_and_advice_and_resumed_in_vain(stack: RunningStack) -> None:
    run_id, error = failed(stack, pipeline(model={"id": "Diverged"}))
    assert f"drift of embeddings of run {run_id}, model " in error
    assert "reference [0, 25), current [25, 50)" in error
    assert "25 of 25 reference samples have embeddings that are not finite" in error
    assert "has diverged: lower its learning rate or clip its gradients" in error
    done = stack.modyn("resume", run_id)
    assert done.returncode == 1
    assert "has diverged: lower its learning rate" in done.stdout
    with stack.client() as client:
        assert client.show(run_id).num_triggers == 1, "what was trained is not trained again"


def test_a_model_without_embedding_is_refused_where_they_are_compared(stack: RunningStack) -> None:
    said = refused(stack, pipeline(model={"id": "NoLinear"}))
    assert "trigger.on: embeddings are compared, and 'NoLinear' has none" in said
    for on in ("payload", "predictions"):
        run = stack.run(pipeline(on=on, every=150, model={"id": "NoLinear"}))
        assert run.state is RunState.FINISHED, run.error
        assert any("far" in check.numbers for check in checks(stack, run.run_id)), on


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("Raises", "drift metric 'far' (Raises) raised IndexError: list index out of range; it compared 25 reference and 25 "),
        (
            "Words",
            "drift metric 'far': Words returned Drift(distance='far', p_value=None); it must return a Drift whose distance is a ",
        ),
    ],
)
def test_a_distance_that_fails_is_named(stack: RunningStack, metric: str, words: str) -> None:
    run_id, error = failed(stack, pipeline(metric, "labels"))
    assert words in error
    assert f"of run {run_id}, reference [0, 25), current [25, 50)" in error


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("NoPolicy", "faulty:NoPolicy has no class `Config` of its options"),
        ("Uninstalled", "cannot import 'not_there:Distance': No module named 'not_there'; install the package"),
        ("Raised", "there is no drift metric 'Raised', did you mean 'Raises'?"),
    ],
)
def test_a_plugin_that_is_not_a_distance_is_refused(stack: RunningStack, metric: str, words: str) -> None:
    said = refused(stack, pipeline(metric, "labels"))
    assert "trigger.metrics.far.id: " in said
    assert words in said


def test_a_check_whose_worker_was_killed_is_made_by_another(stack: RunningStack, plugin: Path) -> None:
    run = stack.run(pipeline("DiesOnce", "labels"))
    assert run.state is RunState.FINISHED, run.error
    assert (plugin / "died").exists()
    assert len([check for check in checks(stack, run.run_id) if "far" in check.numbers]) == 23


def waiting(stack: RunningStack, plugin: Path, dataset: str = "bad-drift") -> tuple[str, int]:
    """Start a run and wait until a worker is in its first check; its id, and the worker's."""
    for name in ("waits", "go on"):
        (plugin / name).unlink(missing_ok=True)
    file = stack.folder / "waits.yaml"
    file.write_text(pipeline("Waits", "labels", dataset))
    with stack.client() as client:
        run_id = client.run(file).run_id
    eventually(lambda: (plugin / "waits").exists() and (plugin / "waits").read_text())
    return run_id, int((plugin / "waits").read_text())


@pytest.mark.slow
def test_a_run_that_is_stopped_during_a_check_ends_and_its_worker_too(stack: RunningStack, plugin: Path) -> None:
    run_id, worker = waiting(stack, plugin)
    kept = stack.modyn("data", "delete", "bad-drift", "--yes")
    assert kept.returncode == 1
    assert f"dataset 'bad-drift' is read by {run_id}; stop these runs first" in kept.stderr
    assert stack.modyn("stop", run_id).returncode == 0
    with stack.client() as client:
        assert client.wait(run_id).state is RunState.STOPPED
    eventually(lambda: not is_alive(worker))
    (plugin / "go on").touch()
    assert stack.modyn("resume", run_id).returncode == 0
    assert len([check for check in checks(stack, run_id) if "far" in check.numbers]) == 23


@pytest.mark.slow
def test_a_check_whose_evaluator_was_killed_is_made_again(stack: RunningStack, plugin: Path) -> None:
    run_id, worker = waiting(stack, plugin)
    with stack.client() as client:
        KilledStack(stack, client).kill("evaluator")
        eventually(lambda: not is_alive(worker))
        (plugin / "go on").touch()
        run = client.wait(run_id)
    assert run.state is RunState.FINISHED, run.error
    assert len([check for check in checks(stack, run_id) if "far" in check.numbers]) == 23


def test_a_reference_whose_samples_were_deleted_measures_nothing(stack: RunningStack, plugin: Path) -> None:
    drifting_dataset(stack, "emptied")
    run_id, _ = waiting(stack, plugin, "emptied")
    with stack.client() as client, StorageClient(stack.config.endpoint("storage")) as storage:
        with SelectorClient(stack.config.endpoint("selector")) as selector:
            reference = selector.samples(RunId(run_id), 0, 25)
        storage.delete_samples("emptied", reference.keys)
        (plugin / "go on").touch()
        run = client.wait(run_id)
    assert run.state is RunState.FINISHED, run.error
    first, *others = [check for check in checks(stack, run_id) if "reference_samples" in check.numbers]
    assert "far" in first.numbers, "it was read before"
    assert {check.numbers["reference_samples"] for check in others} == {0}
    assert not any("far" in check.numbers or check.fires for check in others)


def test_labels_of_a_regression_are_compared(stack: RunningStack) -> None:
    folder = stack.folder / "data" / "regression"
    folder.mkdir(parents=True)
    records = np.zeros(200, np.dtype([("label", "<f4"), ("features", "<f4", (4,))]))
    records["label"] = np.random.default_rng(1).normal(0, 1, 200) + 3 * (np.arange(200) >= 100)
    path = folder / "day.bin"
    path.write_bytes(records.tobytes())
    os.utime(path, (DAY, DAY))
    layout = {"record_size": records.itemsize, "label_size": 4, "label_type": "float", "byteorder": "little"}
    with stack.client() as client:
        client.register_dataset(tiny_dataset_config("regression", folder, file_wrapper_config=layout))
        client.ingest("regression")
    model = {"id": "LogisticRegression", "config": {"input_size": 4, "num_classes": 1}}
    column = "def label_transformer_function(labels):\n    return labels.float().unsqueeze(-1)"
    data = {"dataset_id": "regression", "bytes_parser_function": TINY_PARSER, "label_transformer_function": column}
    training = tiny_training(optimization_criterion={"name": "MSELoss"})
    run = stack.run(pipeline("KSDriftMetric", "labels", model=model, training=training, data=data))
    assert run.state is RunState.FINISHED, run.error
    distances = {check.position: check.numbers["far"] for check in checks(stack, run.run_id) if "far" in check.numbers}
    assert max(distances, key=distances.__getitem__) == 125, "the labels move after 100"
