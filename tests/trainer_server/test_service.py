"""Trainings as the supervisor sees them: started once, watched, stopped, tried again; over gRPC and with real worker processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from modyn.config.base import Problem
from modyn.errors import (
    ConfigError,
    ConflictError,
    DataError,
    InvalidArgumentError,
    NotFoundError,
    TrainingError,
    UnavailableError,
    WorkerDiedError,
)
from modyn.proto import trainer_server_pb2
from modyn.records import JobState, RunId
from modyn.rpc.wire import from_message, to_message
from modyn.testing.fakes import FakeTrainerServer
from modyn.testing.waiting import eventually
from modyn.trainer_server.client import TrainingRequest, TrainingResult, TrainingStatus
from modyn.workers import Job
from tests.support.training import small_pipeline
from tests.support.training_service import RUN, Room, training_service

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

HERE = Path(__file__).parent


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    monkeypatch.syspath_prepend(HERE)
    with training_service(tmp_path) as room:
        yield room


def test_the_stage_of_a_training_is_in_its_status_until_it_is_over(room: Room) -> None:
    room.client.start(room.request(3, act="wait", until=str(room.folder / "go"), stage="irreducible-loss model 1 of 2"))
    stages = []
    for status in room.client.watch(RUN, 3):
        stages.append(status.stage)
        if status.stage:
            (room.folder / "go").touch()
    assert set(stages) == {"", "irreducible-loss model 1 of 2"}
    assert stages[-1] == ""


def test_a_training_that_makes_no_model_is_finished_and_says_why(room: Room) -> None:
    kept = room.folder / "trainer_server" / "optimizers" / f"{RUN}.0.pt"
    kept.parent.mkdir(parents=True)
    kept.touch()
    room.client.start(room.request(1, act="train nothing"))
    last = room.final(1)
    assert (last.state, last.model_id, last.result.nothing_trained) == (JobState.FINISHED, None, "no whole batch")
    assert kept.exists()  # the next training starts from the same parent


def test_a_training_whose_model_is_stored_is_finished_at_once(room: Room) -> None:
    room.stored.add(trigger_id=0, model_id=42)
    status = room.client.start(room.request())
    assert (status.state, status.model_id, status.loss) == (JobState.FINISHED, 42, 0.25)
    assert list(room.client.watch(RUN, 0)) == [status]
    assert room.marks() == []


def test_a_failed_training_names_run_trigger_worker_and_log_and_can_be_tried_again(room: Room) -> None:
    room.client.start(room.request(act="fail"))
    failed = room.final()
    assert (failed.state, failed.error_reason) == (JobState.FAILED, "DATA")
    assert failed.error.startswith("training of run digits-0001, trigger 0, worker ")
    assert "record 3 is short" in failed.error
    log = room.trainings.log_path(RUN, 0)
    assert str(log) in failed.error
    assert "DataError: record 3 is short" in log.read_text()
    assert type(failed.to_error()) is DataError

    assert room.client.start(room.request()).state is JobState.QUEUED
    assert room.final().state is JobState.FINISHED
    assert room.marks() == [0, 0]


def test_a_worker_that_dies_is_a_failed_training(room: Room) -> None:
    room.client.start(room.request(act="die"))
    failed = room.final()
    assert failed.state is JobState.FAILED
    assert "SIGKILL" in failed.error
    assert type(failed.to_error()) is WorkerDiedError


@pytest.mark.parametrize(("act", "state"), [("succeed", JobState.FINISHED), ("fail", JobState.FAILED)])
def test_a_training_ends_for_who_watches_also_if_nothing_can_be_cleaned_up(
    room: Room, monkeypatch: pytest.MonkeyPatch, act: str, state: JobState
) -> None:
    def fails(folder: Path, request: TrainingRequest, *, stored: bool) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("modyn.trainer_server.trainings.clean_up", fails)
    room.client.start(room.request(act=act))
    eventually(lambda: room.trainings.table.status((RUN, 0)).state.is_final)
    assert room.final().state is state


def test_trainings_wait_in_line_and_stop(room: Room) -> None:
    room.client.start(room.request(0, act="wait"))
    room.client.start(room.request(1, act="wait"))
    eventually(room.marks)
    room.client.stop(RUN, 1)
    assert (room.final(1).state, room.final(1).error_reason) == (JobState.STOPPED, "CANCELLED")
    room.client.stop(RUN, 0)
    assert room.final(0).state is JobState.STOPPED
    assert room.marks() == [0]
    room.client.stop(RUN, 0)
    assert room.final(0).state is JobState.STOPPED


def test_a_run_that_is_deleted_ends_and_leaves_no_file(room: Room, tmp_path: Path) -> None:
    folder = tmp_path / "trainer_server"
    gone = [
        f"checkpoints/{RUN}.0.checkpoint",
        f"finished/{RUN}.1.safetensors",
        f"finished/.{RUN}.1.json.partial",
        f"optimizers/{RUN}.2.pt",
    ]
    other = [f"finished/{RUN}.other.1.safetensors", f"finished/{RUN}5.1.safetensors"]
    for name in (*gone, *other):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    room.client.start(room.request(0, act="wait"))
    eventually(room.marks)
    room.client.delete_run(RUN)
    room.client.delete_run(RUN)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(other)
    assert not room.trainings.log_path(RUN, 0).parent.exists()
    with pytest.raises(NotFoundError, match="start it first"):
        room.client.stop(RUN, 0)


def test_what_was_not_started_cannot_be_watched_or_stopped(room: Room) -> None:
    with pytest.raises(NotFoundError, match="no training of run digits-0001, trigger 5"):
        room.final(5)
    with pytest.raises(NotFoundError, match="start it first"):
        room.client.stop(RUN, 5)


@pytest.mark.parametrize(("run_id", "trigger_id"), [("", 0), ("../x", 0), (".x", 0), ("ok", -1)])
def test_a_request_that_names_no_training_is_refused(room: Room, run_id: str, trigger_id: int) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot name a run|names no training"):
        room.client.start(TrainingRequest(RunId(run_id), trigger_id, room.request().pipeline))


def test_a_pipeline_without_sections_is_refused(room: Room) -> None:
    with pytest.raises(ConfigError, match="no section model and no section data"):
        room.client.start(TrainingRequest(RUN, 0, {"training": {}}))


def test_without_model_storage_nothing_starts_and_nothing_hangs(room: Room) -> None:
    room.stored.reachable = False
    with pytest.raises(UnavailableError, match="model storage"):
        room.trainings.start(room.request())
    room.stored.reachable = True
    room.client.start(room.request())
    assert room.final().state is JobState.FINISHED


def test_model_storage_is_not_asked_for_the_trigger_after_one_that_was_stored_here(room: Room) -> None:
    """The model cannot be there. Model storage is asked for a trigger that was tried before, and for those of other runs."""
    room.client.start(room.request(0))
    assert room.final(0).state is JobState.FINISHED
    room.stored.reachable = False
    room.client.start(room.request(1, act="die"))
    assert room.final(1).state is JobState.FAILED
    for trigger_id in (1, 2):
        with pytest.raises(UnavailableError, match="model storage"):
            room.trainings.start(room.request(trigger_id))
    room.stored.reachable = True
    room.stored.add(trigger_id=1, model_id=42)
    assert room.client.start(room.request(1)).model_id == 42


def test_a_server_that_shuts_down_starts_nothing(room: Room) -> None:
    room.pool.close()
    with pytest.raises(ConflictError, match="shutting down"):
        room.client.start(room.request())
    assert room.final().state is JobState.FAILED


def test_a_training_that_cannot_be_queued_is_a_failed_one(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any reason: the training does not stay queued, watchers see that it failed, and it can be started again."""

    def fails(*_: object, **__: object) -> Job:
        raise OSError(24, "Too many open files")

    running = REGISTRY.get_sample_value("modyn_trainings_running")
    told = r"training of run digits-0001, trigger 0 cannot start: OSError: \[Errno 24\] Too many open files"
    with monkeypatch.context() as full:
        full.setattr(room.pool, "submit", fails)
        for _ in range(2):
            with pytest.raises(TrainingError, match=told):
                room.client.start(room.request())
    failed = room.final()
    assert (failed.state, failed.error_reason) == (JobState.FAILED, "TRAINING")
    with pytest.raises(TrainingError, match=told):
        raise failed.to_error()
    assert REGISTRY.get_sample_value("modyn_trainings_running") == running
    room.client.start(room.request())
    assert room.final().state is JobState.FINISHED


def test_an_error_that_is_not_text_is_reported_as_text(room: Room) -> None:
    """Names of files need not be UTF-8, and messages of users' code can hold anything."""
    room.client.start(room.request(act="fail in no language"))
    failed = room.final()
    assert failed.state is JobState.FAILED
    assert r"ValueError: cannot read '\udcff\x00'" in failed.error
    room.trainings.check_task = "trainer_tasks:find_what_is_no_text"
    assert room.client.validate({}) == [Problem(r"training.\udcff", r"cannot read '\udcff'")]


def test_a_watcher_that_goes_leaves_no_thread(room: Room) -> None:
    room.client.start(room.request(act="wait"))
    for _ in range(12):  # more than the server has threads
        watcher: Any = room.client.watch(RUN, 0)
        next(watcher)
        watcher.close()
    room.client.stop(RUN, 0)
    assert room.final().state is JobState.STOPPED


def test_many_starts_at_once_begin_one_training(room: Room) -> None:
    request = room.request(act="wait", until=str(room.folder / "go"))
    threads = [threading.Thread(target=room.trainings.start, args=(request,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (room.folder / "go").touch()
    assert room.final().state is JobState.FINISHED
    assert room.marks() == [0]


def test_a_pipeline_is_checked_by_a_worker_also_while_a_training_runs(room: Room) -> None:
    room.client.start(room.request(act="wait"))
    assert room.client.validate(small_pipeline()) == []
    (problem,) = room.client.validate(small_pipeline({"batch_sice": 1}))
    assert (problem.path, problem.message.split(" Allowed")[0]) == (
        "training.batch_sice",
        "there is no such key, did you mean 'batch_size'?",
    )
    (problem,) = room.client.validate(small_pipeline({"optimization_criterion": {"name": "Loss"}}))
    assert problem.path == "training.optimization_criterion.name"
    (problem,) = room.client.validate(small_pipeline(), ["loss", "length"])
    assert (problem.path, "asks trainings for the score 'length'" in problem.message) == ("selection_strategy", True)


def test_plugins_are_listed_with_where_they_come_from(room: Room) -> None:
    found = {(plugin.group, plugin.id): plugin.distribution for plugin in room.client.plugins()}
    assert found["modyn.downsampling", "No"] == "modyn"
    assert found["modyn.models", "ResNet18"] == "modyn"


def test_records_survive_the_wire() -> None:
    request = TrainingRequest(RUN, 7, {"training": {"seed": 2**60 + 1}}, 3, 100, 0)
    assert from_message(to_message(request, trainer_server_pb2.TrainingRequest), TrainingRequest) == request
    bare = TrainingRequest(RUN, 0, {})
    assert from_message(to_message(bare, trainer_server_pb2.TrainingRequest), TrainingRequest) == bare
    for state in JobState:
        result = TrainingResult(seconds={"load": 0.5})
        status = TrainingStatus(RUN, 7, state, 5, 10, 2, 0.0, 99.5, 4, "broken", "DATA", result, "ab12")
        assert from_message(to_message(status, trainer_server_pb2.TrainingStatus), TrainingStatus) == status
    fresh = TrainingStatus(RUN, 0, JobState.QUEUED)
    assert from_message(to_message(fresh, trainer_server_pb2.TrainingStatus), TrainingStatus) == fresh


def test_a_training_that_the_fake_holds_ends_once_it_is_watched() -> None:
    fake = FakeTrainerServer()
    fake.held.add((RUN, 1))
    held = TrainingRequest(RUN, 1, {"model": {}, "training": {}, "data": {}})
    assert fake.start(held).state is JobState.RUNNING
    assert [status.state for status in fake.watch(RUN, 1)] == [JobState.RUNNING, JobState.FINISHED]
