"""How a training ends: with a model, with a reason for none, or with an error; a finished one is never made again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modyn.errors import ConflictError, TrainingError
from modyn.model_storage.client import ModelHeader
from modyn.records import ModelVersion, RunId
from modyn.testing.fakes import FakeModelStorage
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.disk.files import clean_up, finished_path
from modyn.trainer_server.loop.hooks import DivergedError, check_weights
from modyn.workers import KeptModels
from tests.support.training import MemoryData, NoModel, RecordedReport, TrainingRoom, small_pipeline

DIVERGING: dict[str, Any] = {
    "optimizers": [{"name": "default", "algorithm": "SGD", "param_groups": [{"config": {"lr": 1e30}}]}],
    "epochs_per_trigger": 2,
    "checkpointing": {"activated": True, "interval": 1},
}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_trigger_set_of_no_whole_batch_trains_nothing(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    with pytest.raises(
        NoModel, match=r"has 40 samples to train on, which do not fill a batch of training\.batch_size 64"
    ) as found:
        room.train(small_pipeline({"batch_size": 64}), MemoryData(40))
    assert room.models.list() == []
    assert found.value.result["num_batches"] == 0
    assert room.train(small_pipeline({"batch_size": 64, "drop_last_batch": False}), MemoryData(40)).result["num_batches"] == 1


def test_a_trigger_set_that_was_deleted_trains_nothing(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    with pytest.raises(NoModel, match="all samples of the trigger set were deleted"):
        room.train(small_pipeline(), MemoryData(deleted=frozenset(range(40))))
    assert room.models.list() == []


def test_a_diverged_training_fails_and_stores_nothing(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    with pytest.raises(
        TrainingError,
        match=r"the training diverged: the mean loss of epoch 0 is (nan|inf); all inputs.* are finite.*: lower the learning rate \(1e\+30 of",
    ):
        room.train(small_pipeline(DIVERGING))
    assert room.models.list() == []
    assert files(tmp_path) == set()  # a checkpoint would lead the next attempt there again


def test_a_diverged_training_keeps_the_model_before_if_asked(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    keeps = {"keep_optimizer_state": True, "checkpointing": {"activated": True, "interval": 1}}
    first = room.train(small_pipeline(keeps))
    with pytest.raises(NoModel, match="the training diverged: the mean loss of epoch 0") as found:
        room.train(
            small_pipeline({**keeps, **DIVERGING, "on_divergence": "keep_previous"}),
            MemoryData(trigger_id=1),
            trigger_id=1,
            parent_model_id=first.trained.model_id,
        )
    assert [model.version.model_id for model in room.models.list()] == [first.trained.model_id]
    assert found.value.result["num_samples"] == 0
    # The next training starts from the parent, whose optimizers model storage still has.
    clean_up(tmp_path, TrainingRequest(RunId("memory-0001"), 1, small_pipeline(keeps)), stored=False)
    assert files(tmp_path) == {"finished/memory-0001.1.json"}
    room.train(small_pipeline(keeps), MemoryData(trigger_id=2), trigger_id=2, parent_model_id=first.trained.model_id)


@pytest.mark.parametrize("why", ["diverged", "deleted"])
def test_a_training_that_made_no_model_is_not_made_again_before_its_end_was_seen(tmp_path: Path, why: str) -> None:
    room, options = TrainingRoom(tmp_path), {**DIVERGING, "on_divergence": "keep_previous"}
    data = MemoryData(deleted=frozenset(range(40)) if why == "deleted" else frozenset())
    with pytest.raises(NoModel, match=why) as first:
        room.train(small_pipeline(options), data)
    report = RecordedReport()
    with pytest.raises(NoModel, match=why) as again:
        room.train(small_pipeline(options), data, report)
    assert report.messages == []  # a training reports its progress before its first batch
    assert again.value.result == first.value.result
    # Another training under the same name is made, and a later one leaves nothing of it.
    assert room.train(small_pipeline({"epochs_per_trigger": 2}), MemoryData(41)).result["num_epochs"] == 2
    with pytest.raises(NoModel, match=why):
        room.train(small_pipeline(options), replace(data, trigger_id=1), trigger_id=1)
    assert files(tmp_path) == {"finished/memory-0001.1.json"}
    room.train(small_pipeline(), MemoryData(trigger_id=2), trigger_id=2)
    assert files(tmp_path) == set()


def test_an_end_without_model_that_cannot_be_kept_is_an_end_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "finished").write_bytes(b"")  # where a folder should be: nothing can be written below it
    room = TrainingRoom(tmp_path)
    with pytest.raises(NoModel, match="diverged"):
        room.train(small_pipeline({**DIVERGING, "on_divergence": "keep_previous"}))
    assert room.models.list() == []


def test_weights_that_are_not_finite_are_found_with_any_loss(tmp_path: Path) -> None:
    # The last step, after the last loss was computed, is the one that diverges.
    criterion = {"name": "CrossEntropyLoss", "config": {"reduction": "sum"}}
    options = {**DIVERGING, "epochs_per_trigger": 1, "batch_size": 40, "optimization_criterion": criterion}
    options["optimizers"] = [{"name": "default", "algorithm": "SGD", "param_groups": [{"config": {"lr": 3e38}}]}]
    with pytest.raises(TrainingError, match=r"the training diverged: '\w+[\w.]*' holds values that are not finite"):
        TrainingRoom(tmp_path).train(small_pipeline(options))


def test_what_counts_as_finite_weights() -> None:
    model = nn.BatchNorm1d(3)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    check_weights(model)
    model.running_var = torch.full((3,), torch.nan)
    with pytest.raises(DivergedError, match="'running_var' holds values"):
        check_weights(model)
    check_weights(nn.ReLU())


class RefusingModels(FakeModelStorage):
    """Refuses as many models as it is told to, for good."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    def put(
        self, header: ModelHeader, safetensors_path: Path, kept: KeptModels | None = None, optimizers: Path | None = None
    ) -> ModelVersion:
        if self.refusals:
            self.refusals -= 1
            raise ConflictError("model storage is full")
        return super().put(header, safetensors_path, kept, optimizers)


def test_a_finished_training_is_only_put_again_by_the_next_attempt(tmp_path: Path) -> None:
    pipeline = small_pipeline({"seed": None})  # trained again, it would have other weights
    room = TrainingRoom(tmp_path, RefusingModels(2))
    for _ in range(2):
        with pytest.raises(ConflictError, match="is full"):
            room.train(pipeline)
        clean_up(tmp_path, TrainingRequest(RunId("memory-0001"), 0, pipeline), stored=False)
        assert files(tmp_path) == {"finished/memory-0001.0.safetensors", "finished/memory-0001.0.json"}
    report = RecordedReport()
    found = room.train(pipeline, report=report)
    assert (report.looks, found.result["num_batches"]) == (0, 5)
    assert found.result == room.models.describe(found.trained.model_id).training_result
    assert files(tmp_path) == set()


def test_an_attempt_that_was_killed_while_it_wrote_its_result_leaves_no_file(tmp_path: Path) -> None:
    program = (
        "import pathlib, resource, signal, sys\n"
        "from safetensors.torch import save\n"
        "from modyn.trainer_server.disk.files import keep_finished\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "keep_finished(pathlib.Path(sys.argv[1]), lambda path: path.write_bytes(save({})), {'notes': 'n' * 100_000}, {})"
    )
    weights = finished_path(tmp_path, TrainingRequest(RunId("memory-0001"), 0, {}))
    assert subprocess.run([sys.executable, "-c", program, str(weights)], check=False).returncode == -signal.SIGXFSZ
    clean_up(tmp_path, TrainingRequest(RunId("memory-0001"), 0, small_pipeline({})), stored=True)
    assert files(tmp_path) == set()


@pytest.mark.parametrize("damage", ["a bit of the weights", "the record", "another seed"])
def test_a_finished_training_that_cannot_be_used_is_made_again(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    room = TrainingRoom(tmp_path, RefusingModels(1))
    with pytest.raises(ConflictError, match="is full"):
        room.train(small_pipeline({"seed": 8} if damage == "another seed" else {}))
    path = tmp_path / "finished" / ("memory-0001.0.json" if damage == "the record" else "memory-0001.0.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1 if damage != "another seed" else 0
    path.write_bytes(content)
    found, expected = room.train(small_pipeline()), TrainingRoom(tmp_path / "undisturbed").train(small_pipeline())
    assert found.report.looks == 5
    assert found.trained.weights_sha256 == expected.trained.weights_sha256
    assert "finished_training_ignored" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_an_optimizer_state_that_cannot_be_kept_costs_no_model(tmp_path: Path) -> None:
    (tmp_path / "optimizers").mkdir(mode=0o500)
    found = TrainingRoom(tmp_path).train(small_pipeline({"keep_optimizer_state": True}))
    assert "Permission denied" in found.result["optimizer_state_not_kept"]


def test_a_training_after_one_whose_optimizer_state_was_not_kept_starts_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline, room = small_pipeline({"keep_optimizer_state": True}), TrainingRoom(tmp_path)
    (tmp_path / "optimizers").write_text("no folder")
    first = room.train(pipeline)
    reason = first.result["optimizer_state_not_kept"]
    assert reason.startswith("training.keep_optimizer_state: cannot write ")
    assert "File exists" in reason
    (tmp_path / "optimizers").unlink()
    room.train(pipeline, MemoryData(trigger_id=1), trigger_id=1, parent_model_id=first.trained.model_id)
    written = capsys.readouterr().err
    assert "optimizer_state_not_kept" in written
    assert "optimizers_start_anew" in written
    assert files(tmp_path) == set()
    room.models.get_optimizers(2, tmp_path / "of trigger 1")


def test_weights_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "finished").write_text("no folder")
    with pytest.raises(
        TrainingError, match=r"the trained model cannot be written to .*memory-0001\.0\.safetensors: File exists; free"
    ):
        TrainingRoom(tmp_path).train(small_pipeline())
