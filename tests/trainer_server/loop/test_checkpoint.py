"""Checkpoints: complete or not there, read without running anything, and a killed training ends as an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modyn.errors import CancelledError, ConfigError, ConflictError, CorruptStateError, TrainingError, WorkerDiedError
from modyn.model_storage.client import ModelHeader
from modyn.records import ModelVersion
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.waiting import eventually
from modyn.trainer_server.disk.state_file import read_state_file, write_state_file
from modyn.trainer_server.loop import inputs
from modyn.trainer_server.loop.checkpoint import load_checkpoint
from modyn.trainer_server.loop.seeding import random_state, set_random_state
from modyn.trainer_server.request.config import SCHEDULERS
from modyn.workers import JobSpec, KeptModels, WorkerPool
from tests.support.preloaded import PRELOADED
from tests.support.training import MemoryData, Outcome, RecordedReport, TrainingRoom, small_pipeline

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

HERE = Path(__file__).parent.parent


def demanding_pipeline(interval: int = 1, **options: Any) -> dict[str, Any]:
    """Everything that keeps state: dropout, momenta, schedules, accumulation, early stopping, a loss log, shuffling."""
    pipeline = small_pipeline(
        {
            "epochs_per_trigger": 4,
            "shuffle": True,
            "drop_last_batch": False,
            "checkpointing": {"activated": True, "interval": interval},
            "optimizers": [
                {"name": "body", "algorithm": "AdamW", "param_groups": [{"module": "model.hidden", "config": {"lr": 0.01}}]},
                {
                    "name": "head",
                    "algorithm": "SGD",
                    "param_groups": [{"module": "model.output", "config": {"lr": 0.1, "momentum": 0.9}}],
                },
            ],
            "lr_scheduler": {
                "name": "OneCycleLR",
                "step_every": "batch",
                "config": {"max_lr": 0.2, "total_steps": "MODYN_NUM_BATCHES"},
            },
            "gradient_accumulation_steps": 2,
            "record_loss_every": 2,
            "early_stopping": {"patience": 3},
            **options,
        }
    )
    pipeline["model"]["config"]["dropout"] = 0.4
    return pipeline


def interrupted(room: TrainingRoom, pipeline: dict[str, Any], after: int) -> Path:
    """A training that is stopped after this number of batches, and its checkpoint."""
    with pytest.raises(CancelledError):
        room.train(pipeline, report=RecordedReport(stop_after=after - 1))
    return room.folder / "checkpoints" / "memory-0001.0.checkpoint"


def comparable(outcome: Outcome) -> dict[str, Any]:
    return {name: value for name, value in outcome.result.items() if name != "seconds"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    torch.set_num_threads(1)
    found = TrainingRoom(tmp_path_factory.mktemp("undisturbed")).train(demanding_pipeline())
    torch.use_deterministic_algorithms(False)
    return found


IN_GATE = (3, 8, 14, 19)
"""In every epoch, after a step of the optimizer and within one of two batches."""


@pytest.mark.parametrize("after", [pytest.param(k, marks=[] if k in IN_GATE else pytest.mark.slow) for k in range(3, 20)])
def test_a_resumed_training_ends_as_an_undisturbed_one(tmp_path: Path, after: int, undisturbed: Outcome) -> None:
    pipeline = demanding_pipeline()
    room = TrainingRoom(tmp_path / "disturbed")
    path = interrupted(room, pipeline, after)
    assert read_state_file(path)["progress"]["batches"] in (after, after + 1)

    np.random.default_rng().random()
    torch.rand(3)
    report = RecordedReport()
    resumed = room.train(pipeline, report=report)
    assert report.looks == 20 - read_progress(report)
    assert resumed.trained.weights_sha256 == undisturbed.trained.weights_sha256
    assert comparable(resumed) == comparable(undisturbed)
    assert not path.exists()


def test_skipped_samples_are_counted_over_all_attempts(tmp_path: Path) -> None:
    pipeline, data = demanding_pipeline(), MemoryData(deleted=frozenset({3, 17}))
    assert TrainingRoom(tmp_path / "undisturbed").train(pipeline, data).result["num_skipped"] == 8
    room = TrainingRoom(tmp_path / "disturbed")
    with pytest.raises(CancelledError):
        room.train(pipeline, data, RecordedReport(stop_after=13))
    assert room.train(pipeline, data).result["num_skipped"] == 8


def test_a_checkpoint_of_another_mixed_precision_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without amp_dtype it is the machine's choice: an attempt on another GPU begins again."""
    pipeline, room = demanding_pipeline(amp=True), TrainingRoom(tmp_path)
    interrupted(room, pipeline, 9)
    monkeypatch.setattr(inputs, "mixed_precision", lambda _: torch.float16)
    room.train(pipeline)
    assert "checkpoint_ignored" in capsys.readouterr().err


def test_a_stop_writes_a_checkpoint_at_any_interval(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    path = interrupted(room, demanding_pipeline(interval=1000), 9)
    assert read_state_file(path)["progress"]["batches"] == 9  # in epoch 1, whose second step is made of batches 3 and 4
    assert read_state_file(interrupted(room, demanding_pipeline(interval=1000), 2))["progress"]["batches"] == 12


def test_a_stop_whose_checkpoint_cannot_be_written_is_a_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    room = TrainingRoom(tmp_path)
    path = interrupted(room, demanding_pipeline(interval=1000), 3)
    before = path.read_bytes()

    path.with_name(f".{path.name}.partial").mkdir()  # in the place of the file that is written first
    with pytest.raises(CancelledError):
        room.train(demanding_pipeline(interval=1000), report=RecordedReport(stop_after=3))
    assert "checkpoint_not_written" in capsys.readouterr().err
    assert path.read_bytes() == before


def read_progress(report: RecordedReport) -> int:
    """Batches that had been done when the training began."""
    done: int = report.batches[0].batches_seen
    assert done > 0
    return done


def test_a_training_with_an_epoch_schedule_resumes_at_the_border_of_an_epoch(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "lr_scheduler": {"name": "StepLR", "config": {"step_size": 1, "gamma": 0.5}},
        "gradient_accumulation_steps": 1,
    }
    pipeline = demanding_pipeline(interval=5, **options)
    undisturbed = TrainingRoom(tmp_path / "undisturbed").train(pipeline)
    room = TrainingRoom(tmp_path / "disturbed")
    path = interrupted(room, pipeline, 5)
    progress = read_state_file(path)["progress"]
    assert (progress["epoch"], progress["batches_in_epoch"], progress["batches"]) == (1, 0, 5)
    assert room.train(pipeline).trained.weights_sha256 == undisturbed.trained.weights_sha256


class FullModels(FakeModelStorage):
    """Takes no model the first time."""

    full = True

    def put(
        self, header: ModelHeader, safetensors_path: Path, kept: KeptModels | None = None, optimizers: Path | None = None
    ) -> ModelVersion:
        if self.full:
            self.full = False
            raise ConflictError("model storage is full")
        return super().put(header, safetensors_path, kept, optimizers)


def test_a_training_that_had_ended_early_is_not_gone_on_with(tmp_path: Path) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 1, "early_stopping": {"patience": 1, "min_delta": 1e9}}
    pipeline = demanding_pipeline(**options)
    undisturbed = TrainingRoom(tmp_path / "undisturbed").train(pipeline)
    assert undisturbed.result["num_epochs"] == 2
    room = TrainingRoom(tmp_path / "disturbed", FullModels())
    with pytest.raises(ConflictError, match="is full"):
        room.train(pipeline)
    report = RecordedReport()
    again = room.train(pipeline, report=report)
    assert report.looks == 0
    assert again.trained.weights_sha256 == undisturbed.trained.weights_sha256
    assert comparable(again) == comparable(undisturbed)


def test_without_a_seed_the_order_of_samples_survives_too(tmp_path: Path) -> None:
    pipeline = demanding_pipeline(seed=None)
    room = TrainingRoom(tmp_path)
    path = interrupted(room, pipeline, 9)
    seed = read_state_file(path)["seed"]
    resumed = room.train(pipeline)
    undisturbed = TrainingRoom(tmp_path / "other").train(pipeline, seed=seed)
    assert resumed.trained.weights_sha256 == undisturbed.trained.weights_sha256


def test_a_bound_on_samples_holds_across_an_interruption(tmp_path: Path) -> None:
    pipeline = demanding_pipeline(num_samples_to_pass=[101])
    undisturbed = TrainingRoom(tmp_path / "undisturbed").train(pipeline)
    room = TrainingRoom(tmp_path / "disturbed")
    interrupted(room, pipeline, 8)
    resumed = room.train(pipeline)
    assert resumed.result["num_samples"] == 101
    assert resumed.trained.weights_sha256 == undisturbed.trained.weights_sha256


@pytest.mark.parametrize("attempt", [0, *(pytest.param(attempt, marks=pytest.mark.slow) for attempt in (1, 2))])
def test_a_killed_worker_is_replaced_by_one_that_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attempt: int) -> None:
    monkeypatch.syspath_prepend(HERE)
    chosen = random.Random(attempt)
    pipeline, data = demanding_pipeline(interval=2, epochs_per_trigger=6), MemoryData(96, partition_size=16)
    undisturbed = TrainingRoom(tmp_path / "undisturbed").train(pipeline, data)
    pool = WorkerPool(1, preload=PRELOADED)
    folder = tmp_path / "disturbed"

    def submit(delay: float) -> Any:
        request = (pipeline, data, str(folder), delay)
        return pool.submit(JobSpec("trainer_tasks:train", request, name="training", log_path=tmp_path / "log"))

    job = submit(0.02)
    path = folder / "checkpoints" / "memory-0001.0.checkpoint"
    eventually(lambda: path.exists() or job.wait(0))
    time.sleep(chosen.uniform(0, 0.3))
    assert job.worker_pid is not None
    assert not job.wait(0), job.error
    os.kill(job.worker_pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="ended by SIGKILL"):
        job.result(60)

    trained = submit(0.0).result(60)
    pool.close()
    assert '"resumed"' in (tmp_path / "log").read_text()
    assert trained.version.weights_sha256 == undisturbed.trained.weights_sha256
    assert not path.exists()


def test_workers_that_load_data_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)
    one, two = demanding_pipeline(), demanding_pipeline(dataloader_workers=2)
    here = TrainingRoom(tmp_path / "here").train(one)
    pool = WorkerPool(1, preload=PRELOADED)
    request = (two, MemoryData(), str(tmp_path / "there"), 0.0)
    there = pool.submit(JobSpec("trainer_tasks:train", request, name="training", log_path=tmp_path / "log")).result(60)
    pool.close()
    assert there.version.weights_sha256 == here.trained.weights_sha256


def test_checkpoints_can_be_elsewhere_and_come_every_n_batches(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    options: dict[str, Any] = {
        "checkpointing": {"activated": True, "interval": 6, "path": str(elsewhere)},
        "gradient_accumulation_steps": 1,
    }
    room = TrainingRoom(tmp_path / "room")

    class Breaks(RecordedReport):
        @property
        def stopping(self) -> bool:
            self.looks += 1
            if self.looks == 17:
                raise TrainingError("broken")
            return False

    with pytest.raises(TrainingError, match="broken"):
        room.train(demanding_pipeline(**options), report=Breaks())
    assert [path.name for path in elsewhere.iterdir()] == ["memory-0001.0.checkpoint"]
    assert read_state_file(elsewhere / "memory-0001.0.checkpoint")["progress"]["batches"] == 12


def test_a_folder_that_cannot_be_written_is_told_before_the_first_batch(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpointing": {"activated": True, "interval": 6, "path": "/proc/nope"}}
    report = RecordedReport()
    with pytest.raises(ConfigError, match=r"training\.checkpointing\.path: .* folder /proc/nope: .*; name a folder that"):
        TrainingRoom(tmp_path).train(demanding_pipeline(**options), report=report)
    assert (report.looks, report.messages) == (0, [])
    with pytest.raises(TrainingError, match=r"training\.checkpointing\.path: cannot write /proc/nope/x: "):
        write_state_file(Path("/proc/nope/x"), {})


def test_no_checkpoint_is_written_unless_activated(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    with pytest.raises(CancelledError):
        room.train(demanding_pipeline(checkpointing={"activated": False, "interval": 1}), report=RecordedReport(stop_after=9))
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    "damage", ["truncated", "one flipped bit", "of another pipeline", "of another version", "no checkpoint at all"]
)
def test_a_checkpoint_that_cannot_be_used_costs_time_only(
    tmp_path: Path, damage: str, undisturbed: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = demanding_pipeline()
    room = TrainingRoom(tmp_path / "disturbed")
    other = {**pipeline, "model": {**pipeline["model"], "config": {**pipeline["model"]["config"], "dropout": 0.1}}}
    path = interrupted(room, other if damage == "of another pipeline" else pipeline, 9)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    if damage == "one flipped bit":
        flip_a_bit_of_a_tensor(path)
    if damage == "of another version":
        write_state_file(path, {**read_state_file(path), "version": 0})
    if damage == "no checkpoint at all":
        path.write_bytes(b"something else")
    found = room.train(pipeline)
    assert found.report.batches[0].batches_seen == 0
    assert found.trained.weights_sha256 == undisturbed.trained.weights_sha256
    assert "checkpoint_ignored" in capsys.readouterr().err


def flip_a_bit_of_a_tensor(path: Path) -> None:
    """Flip one bit in the values of the first weight that a checkpoint or optimizer state holds, not in what describes them."""
    content, state = path.read_bytes(), read_state_file(path)
    tensors = [*state.get("model", {}).values(), *(t for s in state["optimizers"].values() for t in s["state"][0].values())]
    stored = next(tensor for tensor in tensors if tensor.numel() > 4).numpy().tobytes()
    at = content.index(stored) + 2
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def test_a_flipped_bit_of_an_optimizer_state_is_named(tmp_path: Path) -> None:
    adam = [{"name": "default", "algorithm": "Adam", "param_groups": [{"config": {"lr": 0.01}}]}]
    pipeline = small_pipeline({"keep_optimizer_state": True, "optimizers": adam})
    room = TrainingRoom(tmp_path)
    first = room.train(pipeline)
    kept = tmp_path / "kept"
    room.models.get_optimizers(first.trained.model_id, kept)
    flip_a_bit_of_a_tensor(kept)
    room.models.change_optimizers(first.trained.model_id, kept.read_bytes())
    with pytest.raises(CorruptStateError, match=r"the optimizers of trigger 0 .*optimizers does not match its checksum"):
        room.train(pipeline, MemoryData(trigger_id=1), trigger_id=1, parent_model_id=first.trained.model_id)


class Evil:
    def __reduce__(self) -> Any:
        return (os.system, ("exit 1",))


def test_loading_a_checkpoint_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "evil.checkpoint"
    write_state_file(path, {"version": 1, "identity": {}, "payload": Evil()})
    with pytest.raises(CorruptStateError, match="evil.checkpoint cannot be read"):
        read_state_file(path)
    assert load_checkpoint(path, {}) is None


def test_state_that_could_not_be_read_again_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hoarding(torch.optim.lr_scheduler.StepLR):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "loot": random.Random(1)}

    monkeypatch.setattr(torch.optim.lr_scheduler, "Hoarding", Hoarding, raising=False)
    scheduler = {"name": "Hoarding", "config": {"step_size": 1}}
    with pytest.raises(ConfigError, match=r"training\.checkpointing: an optimizer or scheduler keeps state"):
        TrainingRoom(tmp_path).train(demanding_pipeline(lr_scheduler=scheduler))
    assert SCHEDULERS.ids() == []


def test_a_file_is_the_old_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    write_state_file(path, {"number": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingError, match="No space left on device"):
        write_state_file(path, {"number": 2})
    assert read_state_file(path) == {"number": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_the_generator_of_a_gpu_that_is_not_there_is_left_out() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    state = random_state()
    drawn = torch.rand(1).item(), random.random(), np.random.random()
    set_random_state({**state, "cuda": torch.zeros(16, dtype=torch.uint8)})
    assert (torch.rand(1).item(), random.random(), np.random.random()) == drawn, "the others are set"
    assert random_state()["cuda"] is None


def test_random_generators_resume_where_they_were() -> None:
    np.random.standard_normal()
    state = random_state()
    drawn = (torch.rand(1).item(), random.random(), np.random.standard_normal(), np.random.random())
    set_random_state(state)
    assert (torch.rand(1).item(), random.random(), np.random.standard_normal(), np.random.random()) == drawn
