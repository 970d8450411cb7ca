"""Bad input: each kind causes an error that names the problem, its place and a remedy; nothing hangs or is lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from modyn.client import Reindexed
from modyn.testing.stack import (
    NUM_CLASSES,
    NUM_FEATURES,
    RECORD,
    RunningStack,
    tiny_dataset_config,
    tiny_evaluation,
    tiny_pipeline,
    tiny_training,
    write_tiny_files,
)
from modyn.testing.waiting import eventually
from tests.support.runs import messages_of


@pytest.fixture(scope="module")
def stack(running_stack: RunningStack) -> RunningStack:
    running_stack.tiny_dataset("sound")
    return running_stack


def refused(stack: RunningStack, pipeline: str) -> str:
    """Return the message of `modyn run` for a refused pipeline; no run must be created."""
    file = stack.folder / "bad.yaml"
    file.write_text(pipeline)
    with stack.client() as client:
        before = len(client.runs())
        done = stack.modyn("run", file)
        assert done.returncode == 1, done.stderr
        assert len(client.runs()) == before
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def failed(stack: RunningStack, pipeline: str) -> str:
    """Return the error of a failed run; `modyn show` and `modyn watch` must report the same error."""
    file = stack.folder / "fails.yaml"
    file.write_text(pipeline)
    done = stack.modyn("run", file)
    assert done.returncode == 1, done.stderr
    run_id = done.stderr.split()[1]
    with stack.client() as client:
        run = client.show(run_id)
    assert run.state == "failed"
    assert run.error
    assert run.error in done.stdout
    assert "Traceback" not in done.stderr
    return run.error


def test_an_unknown_key(stack: RunningStack) -> None:
    text = tiny_pipeline("sound", training=tiny_training(batch_sise=3))
    line = 1 + next(number for number, found in enumerate(text.splitlines()) if "batch_sise" in found)
    message = refused(stack, text)
    assert f"bad.yaml:{line}: training.batch_sise: there is no such key, did you mean 'batch_size'? Allowed: " in message


def test_every_mistake_of_every_service_at_once(stack: RunningStack) -> None:
    text = tiny_pipeline(
        "sound",
        model={"id": "SmalCNN", "config": {}},
        training=tiny_training(batch_size=0),
        trigger={"id": "TimTrigger", "every": "1d"},
        selection_strategy={"name": "NewDatStrategy"},
    )
    message = refused(stack, text)
    for words in (
        *("'SmalCNN', did you mean 'SmallCNN'? Registered: ", "LogisticRegression, MLP, ", "entry-point group 'modyn.models'"),
        *("training.batch_size: 0", "'TimeTrigger'", "'NewDataStrategy'"),
    ):
        assert words in message, message


def test_a_missing_dataset(stack: RunningStack) -> None:
    message = refused(stack, tiny_pipeline("soudn"))
    assert "data.dataset_id: there is no dataset 'soudn', did you mean 'sound'?" in message
    assert "`modyn data register` adds one" in message


def test_a_parser_that_raises_is_named_with_key_and_line(stack: RunningStack) -> None:
    parser = (
        "import torch\n\ndef bytes_parser_function(data: memoryview) -> torch.Tensor:\n    numbers = [1]\n    return numbers[7]\n"
    )
    error = failed(stack, tiny_pipeline("sound", data={"dataset_id": "sound", "bytes_parser_function": parser}))
    assert "bytes_parser_function" in error
    assert "sample 0 of dataset 'sound'" in error
    assert "line 5" in error
    assert "IndexError: list index out of range" in error


def test_a_label_out_of_range(stack: RunningStack) -> None:
    model = {"id": "LogisticRegression", "config": {"input_size": NUM_FEATURES, "num_classes": NUM_CLASSES - 1}}
    error = failed(stack, tiny_pipeline("sound", model=model))
    assert "label" in error
    assert str(NUM_CLASSES - 1) in error
    assert "num_classes" in error or "classes" in error


def test_a_truncated_file_is_set_aside_and_the_other_files_are_indexed(stack: RunningStack) -> None:
    folder = stack.folder / "data" / "torn"
    write_tiny_files(folder, num_samples=60, num_files=3)
    torn = folder / "day-0001.bin"
    whole = torn.read_bytes()
    torn.write_bytes(whole[:-5])
    os.utime(torn, (86_400, 86_400))
    with stack.client() as client:
        client.register_dataset(tiny_dataset_config("torn", folder))
    done = stack.modyn("data", "ingest", "torn")
    assert done.returncode == 0
    assert "40 samples in" in done.stderr
    assert "1 file was set aside; `modyn data problems torn` lists the reasons" in done.stderr
    message = stack.modyn("data", "problems", "torn").stdout
    assert "day-0001.bin" in message
    assert str(len(whole) - 5) in message
    assert str(RECORD.itemsize) in message
    run = stack.run(tiny_pipeline("torn", trigger={"id": "DataAmountTrigger", "num_samples": 40}))
    assert (run.state, run.num_samples, run.num_triggers) == ("finished", 40, 1)
    torn.write_bytes(whole)
    assert "60 samples in 3 files" in stack.modyn("data", "ingest", "torn").stderr
    assert len(stack.modyn("data", "problems", "torn").stdout.splitlines()) == 1
    torn.unlink()
    refused = stack.modyn("data", "reindex", "torn", torn.name)
    assert (refused.returncode, "no sample of it was deleted" in refused.stderr) == (1, True)
    torn.write_bytes(whole[: len(whole) // 2])
    assert "20 samples were deleted" in (again := stack.modyn("data", "reindex", "torn", torn.name).stderr)
    assert "50 samples in 3 files" in again
    assert run.run_id not in again, "it was made before the file was indexed"
    with stack.client() as client:
        assert client.reindex("torn", "day-0000.bin") == Reindexed(20, (run.run_id,))
        told = messages_of(client.watch(run.run_id))
    assert "20 samples of dataset 'torn' were deleted, since day-0000.bin was taken again" in told[-1]


def test_scores_of_a_test_set_that_was_corrected_are_told_apart(stack: RunningStack) -> None:
    folder, corrected = stack.tiny_dataset("mixed", 50, 1), stack.tiny_dataset("mixed-test")
    path = stack.pipeline_file("mixed", evaluation=tiny_evaluation("mixed-test"))
    with stack.client() as client:
        run_id = client.run(path, "production").run_id
        eventually(lambda: len(client.results(run_id).evaluations) == 2)
        write_tiny_files(corrected, num_samples=50, num_files=1, seed=1)
        assert client.reindex("mixed-test", "day-0000.bin") == Reindexed(50, (run_id,))
        assert "note: " not in stack.modyn("show", run_id).stdout
        write_tiny_files(folder, num_samples=50, num_files=1, first_day=3)
        client.ingest("mixed")
        eventually(lambda: len(client.results(run_id).evaluations) == 4)
        shutil.copy2(corrected / "day-0000.bin", corrected / "more.bin")
        client.ingest("mixed-test")
        write_tiny_files(folder, num_samples=50, num_files=1, first_day=6)
        client.ingest("mixed")
        eventually(lambda: len(client.results(run_id).evaluations) == 6)
        client.finish(run_id)
        client.wait(run_id)
        deleted, grown = client.evaluations(run_id).attrs["notes"]
    of_other = "these scores may come from other samples"
    assert deleted.startswith(f"50 samples of dataset 'mixed-test' were deleted since it was scored for trigger 0: {of_other}")
    day = "the interval 1970-01-01 00:00:00 to 1970-01-02 00:00:00 (50 samples, then 100)"
    assert grown.startswith(f"dataset 'mixed-test' got samples or labels in {day} since it was scored for trigger 1: {of_other}")
    shown = stack.modyn("show", run_id).stdout
    assert f"note: {deleted}\nnote: {grown}\n" in shown
    assert stack.modyn("evaluate", run_id, "--handler", "daily").returncode == 0
    assert "note: " not in stack.modyn("show", run_id).stdout, "all are of the samples of now"


def test_an_empty_dataset(stack: RunningStack) -> None:
    folder = stack.folder / "data" / "empty"
    folder.mkdir(parents=True)
    with stack.client() as client:
        client.register_dataset(tiny_dataset_config("empty", folder))
    message = refused(stack, tiny_pipeline("empty"))
    assert "dataset 'empty' holds no samples, so there is nothing to replay" in message
    assert "`modyn data ingest empty`" in message


def test_a_folder_that_does_not_exist(stack: RunningStack) -> None:
    options = ["-o", "record_size=8", "-o", "label_size=4", "-o", "byteorder=little"]
    done = stack.modyn("data", "register", "nowhere", stack.folder / "no such folder", "--format", "BinaryFileWrapper", *options)
    assert done.returncode == 1
    assert "no such folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_format_that_is_not_registered(stack: RunningStack) -> None:
    done = stack.modyn("data", "register", "odd", stack.folder, "--format", "BinaryFileWraper")
    assert done.returncode == 1
    assert "did you mean 'BinaryFileWrapper'?" in done.stderr


def test_a_run_that_never_triggers_says_so(stack: RunningStack) -> None:
    file = stack.pipeline_file("sound", trigger={"id": "DataAmountTrigger", "num_samples": 100_000})
    done = stack.modyn("run", file)
    assert done.returncode == 0, done.stderr
    assert "run finished: " in done.stderr
    assert "state      finished" in done.stdout
    assert "triggers   0" in done.stdout
    (message,) = [line for line in done.stdout.splitlines() if line.startswith("message")]
    assert "trigger" in message
    assert stack.modyn("report", done.stderr.split()[1], "-o", stack.folder / "none.html").returncode == 0


def test_files_that_cannot_be_written_are_named(stack: RunningStack) -> None:
    """Nothing of the run is lost: its results are printed, and the file can be written elsewhere."""
    report = Path("/proc/report.html")
    done = stack.modyn("run", stack.pipeline_file("sound"), "--report", report)
    assert done.returncode == 1
    assert f"error: cannot write {report}: No such file or directory; choose another place" in done.stderr
    assert "state      finished" in done.stdout
    with stack.client() as client:
        model = client.models().iloc[0].model_id
    done = stack.modyn("models", "export", model, "/proc/model.safetensors")
    assert done.returncode == 1
    assert done.stderr == "error: cannot write /proc/model.safetensors: No such file or directory; choose another place\n"
