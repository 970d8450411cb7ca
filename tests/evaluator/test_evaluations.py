"""Evaluations from request to result: idempotent, shared, bounded, restartable; on a real PostgreSQL, with jobs that the test ends."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import psycopg2
import pytest

from modyn.config.system import SystemConfig
from modyn.db.engine import Database, open_database
from modyn.errors import (
    CancelledError,
    ConfigError,
    DataError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
    UserCodeError,
)
from modyn.evaluator.client import EvaluationRequest, EvaluationResult, EvaluationStatus
from modyn.evaluator.evaluations import Evaluations, session_key
from modyn.evaluator.outputs import EvaluationJob, OutputCache
from modyn.evaluator.records import AtPositions, DriftQuestion, DriftRequest, InIntervals, MeasureRequest, SampleSource, Score
from modyn.evaluator.store import EvaluationStore
from modyn.evaluator.versions import DataVersion
from modyn.json_codec import sanitize
from modyn.records import EvalInterval, Interval, JobState, RunId, StreamWindow
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.waiting import PATIENCE_S, eventually
from modyn.workers import JobSpec, WorkerPool

DATASET: dict[str, Any] = {
    "dataset_id": "test",
    "record_layout": {"dtype": "int64"},
    "batch_size": 4,
    "metrics": [{"name": "Accuracy"}, {"name": "F1Score", "num_classes": 2}],
}
RUN = RunId("digits-0001")


def request(
    handler: str = "matrix", model_id: int = 5, times: Sequence[tuple[int, int]] = ((0, 10), (10, 20)), **fields: Any
) -> EvaluationRequest:
    intervals = [EvalInterval(start, end, anchor=start) for start, end in times]
    return EvaluationRequest(RUN, 3, model_id, handler, **{"dataset": DATASET, "intervals": intervals} | fields)


class FakeJob:
    """A job that the test ends."""

    def __init__(
        self, work: EvaluationJob, name: str, on_message: Callable[[object], None], on_done: Callable[[FakeJob], None]
    ) -> None:
        assert isinstance(work.source, InIntervals)
        self.request, self.intervals, self.name = work.request, list(work.source.intervals), name
        self.state, self.stopped = JobState.RUNNING, False
        self.error: ModynError | None = None
        self._on_message, self._on_done, self._scores = on_message, on_done, list[Score]()

    def progress(self, seen: int, total: int) -> None:
        self._on_message((seen, total))

    def result(self) -> list[Score]:
        return self._scores

    def finish(self, value: float = 0.5) -> None:
        labels = ("Accuracy", "F1Score")
        self.give([Score(i, label, value, "", i.end - i.start, i.end - i.start) for i in self.intervals for label in labels])

    def give(self, scores: list[Score]) -> None:
        self.state, self._scores = JobState.FINISHED, scores
        self._on_done(self)

    def fail(self, error: ModynError) -> None:
        self.state, self.error = JobState.FAILED, error
        self._on_done(self)

    def stop(self) -> None:
        self.stopped = True
        self.fail(CancelledError(f"{self.name}: stopped on request"))


class FakePool:
    def __init__(self) -> None:
        self.jobs: list[FakeJob] = []
        self._changed = threading.Condition()

    def submit(self, spec: JobSpec, **callbacks: Any) -> FakeJob:
        with self._changed:
            self.jobs.append(FakeJob(cast("EvaluationJob", spec.request), spec.name, **callbacks))
            self._changed.notify_all()
            return self.jobs[-1]

    def job(self, number: int) -> FakeJob:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.jobs) > number, PATIENCE_S)
            return self.jobs[number]


class House:
    """The service's parts, without gRPC and workers."""

    def __init__(self, config: SystemConfig, database: Database, storage: FakeStorage, max_jobs: int = 2) -> None:
        self.is_full = False
        """Whether the disk has no space for the folder of a job."""

        def make_job(asked: EvaluationRequest | MeasureRequest, source: SampleSource, data: DataVersion) -> EvaluationJob:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return EvaluationJob(asked, source, config, config.state_dir / "scratch", OutputCache(config.state_dir, 0), data)

        self.store = EvaluationStore(database)
        self.run = FakePool()
        self.storage = storage
        if not storage.datasets:
            self.register()
        pool = cast("WorkerPool", self.run)
        self.evaluations = Evaluations(self.store, pool, make_job, self.storage.client(), max_jobs, coalesce_s=0.0)

    def register(self) -> None:
        """Register the dataset, possibly again, with one sample a second."""
        self.storage.add_dataset("test")
        self.storage.add_samples("test", range(40))

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Delay evaluations started in this block until its end, as if all had arrived at the same moment."""
        self.evaluations._coalesce_s = 3600.0
        yield
        self.evaluations._coalesce_s = 0.0
        self.evaluations.table.wake()

    def start_together(self, *requests: EvaluationRequest) -> list[EvaluationStatus]:
        with self.holding():
            return [self.evaluations.start(asked) for asked in requests]

    def num_held_back(self) -> int:
        """Return the number of queued jobs. None of them can start, so the number is constant until a running job ends."""
        with self.evaluations._changed:
            assert self.evaluations._ready()[0] is None
            return len(self.evaluations._waiting)

    def is_idle(self) -> bool:
        with self.evaluations._changed:
            return not self.evaluations._waiting and not self.evaluations._running

    def end(self, status: EvaluationStatus) -> EvaluationStatus:
        """Wait for the final status and return it."""
        return list(self.evaluations.table.watch(status.evaluation_id))[-1]

    def results(self) -> list[EvaluationResult]:
        return list(self.store.results(RUN))


@pytest.fixture
def make_house(system_config: SystemConfig) -> Iterator[Callable[..., House]]:
    database = open_database(system_config, "evaluator", "modyn.evaluator.migrations")
    houses: list[House] = []
    storage = FakeStorage()

    def make(**options: Any) -> House:
        houses.append(House(system_config, database, storage, **options))
        return houses[-1]

    yield make
    for house in houses:
        house.evaluations.close()
    database.close()


@pytest.fixture
def house(make_house: Callable[..., House]) -> House:
    return make_house()


def test_from_start_to_results(house: House) -> None:
    status = house.evaluations.start(request())
    assert status.state is JobState.QUEUED
    seen: list[EvaluationStatus] = []
    watcher = threading.Thread(target=lambda: seen.extend(house.evaluations.table.watch(status.evaluation_id)))
    watcher.start()
    job = house.run.job(0)
    assert job.name == "evaluation of run digits-0001, trigger 3, model 5 on dataset 'test'"
    job.progress(7, 20)
    eventually(lambda: any(s.samples_seen == 7 for s in seen))
    job.progress(20, 20)
    job.finish()
    watcher.join(PATIENCE_S)
    assert [s.state for s in seen][-1] is JobState.FINISHED
    assert (7, 20) in [(s.samples_seen, s.samples_total) for s in seen]
    assert (seen[-1].samples_seen, seen[-1].samples_total) == (20, 20)
    assert [(r.metric, r.interval, r.value, r.num_samples, r.dataset, r.handler) for r in house.results()] == [
        (metric, EvalInterval(start, start + 10, start), 0.5, 10, "test", "matrix")
        for metric in ("Accuracy", "F1Score")
        for start in (0, 10)
    ]
    assert house.end(status) == seen[-1]


def test_what_is_evaluated_is_not_evaluated_again(house: House) -> None:
    first = house.evaluations.start(request())
    assert house.evaluations.start(request()).evaluation_id == first.evaluation_id
    house.run.job(0).finish()
    house.end(first)
    assert house.evaluations.start(request()).state is JobState.FINISHED
    assert len(house.run.jobs) == 1


def test_handlers_share_one_job_over_their_distinct_intervals(house: House) -> None:
    one, two = house.start_together(request("a", times=[(0, 10), (5, 15)]), request("b", times=[(5, 15), (8, 30)]))
    house.run.job(0).finish()
    assert house.end(one).state is house.end(two).state is JobState.FINISHED
    assert house.run.jobs[0].intervals == [Interval(0, 10), Interval(5, 15), Interval(8, 30)]
    assert len(house.run.jobs) == 1
    assert len(house.results()) == 8


def test_known_scores_are_used_again_while_the_data_is_the_same(house: House) -> None:
    house.end(_finished(house, request("a"), 0))
    again = house.evaluations.start(request("b", times=[(10, 20), (20, 30)]))
    house.run.job(1).finish(0.75)
    house.end(again)
    assert house.run.jobs[1].intervals == [Interval(20, 30)]
    same = house.evaluations.start(request("c", dataset=DATASET | {"batch_size": 9}))
    assert house.end(same).state is JobState.FINISHED
    assert len(house.run.jobs) == 2
    assert {(r.interval.start, r.value) for r in house.results() if r.handler == "b"} == {(10, 0.5), (20, 0.75)}
    house.storage.add_samples("test", [5, 15])
    house.evaluations.start(request("d"))
    assert len(house.run.job(2).intervals) == 2


def test_what_is_evaluated_is_evaluated_again_when_its_data_has_changed(house: House) -> None:
    first = _finished(house, request(), 0)
    house.end(first)
    assert house.evaluations.start(request()).state is JobState.FINISHED
    house.storage.add_samples("test", [15])
    assert house.evaluations.start(request()).state is JobState.QUEUED
    assert house.run.job(1).intervals == [Interval(10, 20)]
    house.run.job(1).give([Score(Interval(10, 20), label, 0.75, "", 11, 11) for label in ("Accuracy", "F1Score")])
    assert house.end(first).state is JobState.FINISHED
    assert {(r.interval.start, r.value, r.num_samples) for r in house.results()} == {(0, 0.5, 10), (10, 0.75, 11)}


def test_a_dataset_that_is_registered_again_is_another_one(house: House) -> None:
    first = _finished(house, request(), 0)
    house.end(first)
    house.register()
    for number, handler in enumerate(("matrix", "other"), start=1):
        assert house.evaluations.start(request(handler)).state is JobState.QUEUED
        assert len(house.run.job(number).intervals) == 2
        house.run.job(number).fail(DataError("no"))


def test_scores_of_another_registration_are_refused_and_those_of_before_stay(house: House) -> None:
    def identity() -> str:
        return house.storage.client().dataset("test").identity

    before = replace(request(), dataset_identity=identity())
    house.end(_finished(house, before, 0))
    house.register()
    told = r"dataset 'test' is not the one that run digits-0001 is evaluated on.*`modyn evaluate digits-0001 --dataset NAME`"
    with pytest.raises(NotFoundError, match=told):
        house.evaluations.start(before)
    after = replace(request(), dataset_identity=identity())
    house.end(_finished(house, after, 1))
    found = [result.dataset_identity for result in house.results()]
    assert [found.count(asked.dataset_identity) for asked in (before, after)] == [4, 4]
    assert len(found) == 8


def test_scores_of_deleted_samples_are_not_used_again(house: House) -> None:
    """The number of samples can be the same although the samples differ, if some were deleted and others were added."""
    asked = request()
    house.end(_finished(house, asked, 0))
    house.end(house.evaluations.start(request("other")))
    house.storage.client().delete_samples("test", np.array([3]))
    house.storage.add_samples("test", [3])
    assert house.evaluations.start(asked).state is JobState.QUEUED
    house.run.job(1).finish(0.75)
    eventually(house.is_idle)
    assert {(r.handler, r.value, r.num_deleted) for r in house.results()} == {("matrix", 0.75, 1), ("other", 0.5, 0)}


def test_changed_code_of_the_user_is_evaluated_again(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packages" / "noise_of_user"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "levels.py").write_text("LEVEL = 1\n")
    monkeypatch.syspath_prepend(package.parent)
    dataset = DATASET | {"transformations": ["noise_of_user:Noise(0.1)"]}
    asked = request(dataset=dataset)
    house.end(_finished(house, asked, 0))
    assert house.evaluations.start(asked).state is JobState.FINISHED
    session = session_key(asked)
    (package / "levels.py").write_text("LEVEL = 2\n")
    assert house.evaluations.start(asked).state is JobState.QUEUED
    house.run.job(1).finish()
    assert session_key(asked) != session


def test_drift_and_performance_of_a_run_share_a_worker() -> None:
    window = StreamWindow(0, 10)
    question = DriftQuestion(window, window, {"mmd": {"id": "MMDDriftMetric"}}, model_id=5)
    section = {name: value for name, value in DATASET.items() if name != "metrics"}
    drift = session_key(DriftRequest(RunId("a"), {**section, "batch_size": 7}, question))
    scored = MeasureRequest(RunId("a"), 5, DATASET, AtPositions(RunId("a"), [window]))
    assert session_key(scored) == drift
    code = {"name": "Accuracy", "evaluation_transformer_function": "def evaluation_transformer_function(output): return output"}
    assert session_key(replace(scored, dataset=DATASET | {"metrics": [code]})) != drift, (
        "code of the user that the other does not run"
    )
    assert session_key(replace(scored, run_id=RunId("b"))) != drift


def test_a_finished_evaluation_stays_so_while_storage_cannot_be_asked(house: House) -> None:
    status = house.end(_finished(house, request(), 0))
    del house.storage.datasets["test"]
    with pytest.raises(NotFoundError, match="no dataset 'test'"):
        house.evaluations.start(request())
    assert len(house.results()) == 4
    assert house.end(status) == status


@pytest.mark.parametrize(
    "other",
    [
        request("b", model_id=6),
        request("b", dataset=DATASET | {"transformations": ["lambda x: x"]}),
        request(
            "b",
            dataset=DATASET
            | {"metrics": [{"name": "Accuracy", "topn": 2, "label": "Accuracy"}, {"name": "F1Score", "num_classes": 3}]},
        ),
    ],
)
def test_other_models_data_or_metrics_are_evaluated(house: House, other: EvaluationRequest) -> None:
    house.end(_finished(house, request("a"), 0))
    house.evaluations.start(other)
    assert house.run.job(1).intervals == [Interval(0, 10), Interval(10, 20)]


def _finished(house: House, asked: EvaluationRequest, number: int) -> EvaluationStatus:
    status = house.evaluations.start(asked)
    house.run.job(number).finish()
    return status


def test_no_intervals_is_nothing_to_do(house: House) -> None:
    assert house.end(house.evaluations.start(request(times=[]))).state is JobState.FINISHED
    assert not house.run.jobs


def test_jobs_are_bounded_and_equal_ones_wait_for_each_other(make_house: Callable[..., House]) -> None:
    house = make_house(max_jobs=2)
    house.evaluations.start(request("a"))
    house.run.job(0)
    later = house.evaluations.start(request("b", times=[(10, 20)]))
    house.evaluations.start(request(model_id=6))
    house.run.job(1)
    house.evaluations.start(request(model_id=7))
    assert house.num_held_back() == 2
    assert [job.request.model_id for job in house.run.jobs] == [5, 6]
    house.run.jobs[0].finish()
    assert house.end(later).state is JobState.FINISHED
    assert house.run.job(2).request.model_id == 7


def test_jobs_over_the_same_samples_follow_each_other(make_house: Callable[..., House]) -> None:
    """The jobs run one after the other, so that the second job finds the stored outputs of the first job."""
    house = make_house(max_jobs=4)
    house.evaluations.start(request())
    house.run.job(0)
    house.evaluations.start(request(dataset=DATASET | {"batch_size": 8, "metrics": DATASET["metrics"][:1]}))
    house.evaluations.start(request(dataset=DATASET | {"record_layout": {"dtype": "int32"}}))
    house.run.job(1)
    assert house.num_held_back() == 1
    assert [job.request.dataset["record_layout"]["dtype"] for job in house.run.jobs] == ["int64", "int32"]
    house.run.jobs[0].fail(DataError("no"))
    assert house.run.job(2).request.dataset["batch_size"] == 8


def test_a_failure_is_a_status_and_can_be_started_again(house: House) -> None:
    status = house.evaluations.start(request())
    house.run.job(0).fail(DataError("evaluation of run digits-0001, trigger 3, model 5 on dataset 'test', worker 7: bad record"))
    end = house.end(status)
    assert (end.state, end.error_reason) == (JobState.FAILED, "DATA")
    assert "trigger 3, model 5 on dataset 'test'" in end.error
    assert house.results() == []
    assert house.evaluations.start(request()).state is JobState.QUEUED
    house.run.job(1).finish()
    assert house.end(status) == replace(end, state=JobState.FINISHED, error="", error_reason="")


@pytest.mark.parametrize("text", ["bad value \0 in a column", "cannot read /data/\udcff.png"])
def test_a_failure_that_is_not_text_ends_all_that_share_the_job(house: House, text: str) -> None:
    one, two = house.start_together(request("a"), request("b"))
    house.run.job(0).fail(UserCodeError(text))
    assert len(house.evaluations.table) == 0
    for status in (one, two):
        end = house.end(status)
        assert (end.state, end.error_reason) == (JobState.FAILED, "USER_CODE")
        assert end.error == sanitize(text)


def test_a_failure_that_cannot_be_stored_is_told_and_the_next_begins(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> Any:
        raise ValueError("no")

    put = house.store.put

    def refuse_ends(asked: EvaluationRequest, status: EvaluationStatus) -> None:
        put(asked, status) if status.state is JobState.QUEUED else broken()

    with monkeypatch.context() as patched:
        patched.setattr(house.store, "put", refuse_ends)
        patched.setattr(house.store, "known", broken)
        one, two = house.start_together(request("a"), request("b"))
        for status in (one, two):
            end = house.end(status)
            assert (end.state, end.error_reason) == (JobState.STOPPED, "UNAVAILABLE")
            assert "could not be stored; start it again" in end.error
    assert house.end(_finished(house, request("a"), 0)).state is JobState.FINISHED


def test_a_note_that_is_not_text_is_kept(house: House) -> None:
    status = house.evaluations.start(request(times=[(0, 10)], dataset=DATASET | {"metrics": [{"name": "Accuracy"}]}))
    house.run.job(0).give([Score(Interval(0, 10), "Accuracy", None, "no label \0 in \udcff", 10, 10)])
    assert house.end(status).state is JobState.FINISHED
    assert [result.note for result in house.results()] == ["no label \\x00 in \\udcff"]


def test_what_cannot_begin_fails_with_its_reason(house: House) -> None:
    house.end(_finished(house, request("a"), 0))
    dataset = house.storage.datasets.pop("test")
    end = house.end(house.evaluations.start(request("b")))
    assert (end.state, end.error_reason) == (JobState.FAILED, "NOT_FOUND")
    about = "evaluation of run digits-0001, trigger 3, model 5 on dataset 'test'"
    assert end.error.startswith(f"{about} cannot start: there is no dataset 'test'")
    house.storage.datasets["test"] = dataset
    assert house.end(house.evaluations.start(request("b"))).state is JobState.FINISHED


def test_what_cannot_begin_on_a_full_disk_may_succeed_later(house: House) -> None:
    house.is_full = True
    end = house.end(house.evaluations.start(request()))
    assert (end.state, end.error_reason) == (JobState.FAILED, "UNAVAILABLE")
    assert "cannot start: the disk is full: [Errno 28] No space left on device; free space there" in end.error
    house.is_full = False
    assert house.end(_finished(house, request(), 0)).state is JobState.FINISHED


def test_stopping_one_of_two_that_share_a_job(house: House) -> None:
    one, two = house.start_together(request("a"), request("b"))
    job = house.run.job(0)
    house.evaluations.stop(one.evaluation_id)
    end = house.end(one)
    assert (end.state, end.error_reason) == (JobState.STOPPED, "CANCELLED")
    assert not job.stopped
    house.evaluations.stop(two.evaluation_id)
    assert house.end(two).state is JobState.STOPPED
    eventually(lambda: job.stopped)  # By the thread that starts the job, if it has not seen the stop yet.
    house.evaluations.stop(two.evaluation_id)
    with pytest.raises(NotFoundError):
        house.evaluations.stop("nothing")


def test_stopping_before_it_begins(house: House) -> None:
    with house.holding():
        status = house.evaluations.start(request())
        house.evaluations.stop(status.evaluation_id)
        assert house.end(status).state is JobState.STOPPED
    eventually(house.is_idle)
    assert not house.run.jobs


def test_stopping_while_it_begins(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop occurs while the dispatcher checks which evaluations share the job."""
    one, two = request("a"), request("b")
    stopper = threading.Thread(target=lambda: house.evaluations.stop(one.evaluation_id))
    named = EvaluationRequest.__str__

    def slow(asked: EvaluationRequest) -> str:
        if threading.current_thread().name == "evaluations" and stopper.ident is None:
            stopper.start()
            stopper.join(0.3)
        return named(asked)

    monkeypatch.setattr(EvaluationRequest, "__str__", slow)
    stopped, left = house.start_together(one, two)
    house.run.job(0).finish()
    stopper.join(PATIENCE_S)
    assert house.end(left).state is JobState.FINISHED
    assert house.end(stopped).state is JobState.STOPPED


def test_after_a_restart_nothing_is_left_running(make_house: Callable[..., House]) -> None:
    killed = make_house()
    running = killed.evaluations.start(request("a"))
    killed.run.job(0)
    finished = killed.evaluations.start(request("b", model_id=6))
    killed.run.job(1).finish()
    killed.end(finished)

    restarted = make_house()
    end = restarted.end(running)
    assert (end.state, end.error_reason) == (JobState.STOPPED, "UNAVAILABLE")
    assert "start it again" in end.error
    assert restarted.evaluations.start(request("b", model_id=6)).state is JobState.FINISHED
    assert restarted.evaluations.start(request("a")).state is JobState.QUEUED
    restarted.run.job(0).finish()
    assert restarted.end(running).state is JobState.FINISHED
    assert {r.handler for r in restarted.results()} == {"a", "b"}


def test_postgres_gone_when_results_are_to_be_kept(house: House, postgres_url: str) -> None:
    status = house.evaluations.start(request())
    job = house.run.job(0)
    with psycopg2.connect(postgres_url) as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE evaluator.results RENAME TO hidden")
    job.finish()
    end = house.end(status)
    assert end.state is JobState.FAILED
    assert end.error.startswith(
        "the results of evaluation of run digits-0001, trigger 3, model 5 on dataset 'test' cannot be stored"
    )
    connection = psycopg2.connect(postgres_url)
    with connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE evaluator.hidden RENAME TO results")
    connection.close()
    house.evaluations.start(request())
    house.run.job(1).finish()
    assert house.end(status).state is JobState.FINISHED


def test_a_newer_evaluation_of_an_interval_replaces_the_older(house: House) -> None:
    house.end(_finished(house, request(), 0))
    house.storage.add_samples("test", [15])
    newer = house.evaluations.start(request(times=[(10, 20), (20, 30)]))
    house.run.job(1).finish(0.9)
    house.end(newer)
    values = {(r.interval.start, r.value) for r in house.results() if r.metric == "Accuracy"}
    assert values == {(0, 0.5), (10, 0.9), (20, 0.9)}


def test_watchers_that_are_gone_are_let_go(house: House) -> None:
    status = house.evaluations.start(request())
    house.run.job(0)
    alive, seen = threading.Event(), list[EvaluationStatus]()
    alive.set()
    watcher = threading.Thread(target=lambda: seen.extend(house.evaluations.table.watch(status.evaluation_id, alive.is_set)))
    watcher.start()
    eventually(lambda: seen)
    alive.clear()
    house.evaluations.table.wake()
    watcher.join(PATIENCE_S)
    assert not watcher.is_alive()
    with pytest.raises(NotFoundError, match="no evaluation 'nothing'"):
        next(house.evaluations.table.watch("nothing"))


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (request(dataset=DATASET | {"metrics": []}), ConfigError, "metrics"),
        (request(times=[(5, 4)]), InvalidArgumentError, "ends before it starts"),
        (replace(request(), run_id=RunId("../../etc")), InvalidArgumentError, "cannot name a run"),
    ],
)
def test_requests_that_cannot_be_served(house: House, asked: EvaluationRequest, error: type[ModynError], message: str) -> None:
    with pytest.raises(error, match=message):
        house.evaluations.start(asked)


def test_ids_depend_on_what_is_asked_for_and_survive_the_wire() -> None:
    from modyn.proto import evaluator_pb2
    from modyn.rpc.wire import from_message, to_message

    asked = request(dataset=DATASET | {"dataloader_workers": 2.0})
    sent = to_message(asked, evaluator_pb2.EvaluationRequest)
    assert from_message(sent, EvaluationRequest).evaluation_id == asked.evaluation_id
    others = [
        request("other"),
        request(model_id=6),
        request(times=[(0, 10)]),
        request(device="cuda"),
        replace(asked, trigger_id=4),
        asked,
    ]
    assert len({r.evaluation_id for r in others}) == 6
    assert request(times=[(10, 20), (0, 10), (0, 10)]).evaluation_id == request().evaluation_id
