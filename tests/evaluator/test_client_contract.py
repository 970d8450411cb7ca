"""Contract of every client of the evaluator: the real client with its service, and the fake that tests of its callers use.

The service has a database and its own threads. Instead of workers, it has a pool that answers immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, cast

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.config.trigger_parts import ComparedData
from modyn.db.engine import open_database
from modyn.errors import CancelledError, InvalidArgumentError, ModynError, NotFoundError, UserCodeError
from modyn.evaluator.client import EvaluationRequest, EvaluationStatus, EvaluatorClient
from modyn.evaluator.evaluations import Evaluations
from modyn.evaluator.measurements import Measurements
from modyn.evaluator.outputs import DriftJob, EvaluationJob, OutputCache
from modyn.evaluator.records import (
    AtPositions,
    DriftDistance,
    DriftQuestion,
    DriftRequest,
    InIntervals,
    MeasuredDrift,
    MeasureRequest,
    OfKeys,
    SampleSource,
    Score,
    WindowPair,
)
from modyn.evaluator.service import FULL_NAME, EvaluatorServicer
from modyn.evaluator.store import EvaluationStore
from modyn.evaluator.versions import DataVersion
from modyn.proto.evaluator_pb2_grpc import add_EvaluatorServicer_to_server
from modyn.records import EvalInterval, Interval, JobState, RunId, StreamWindow
from modyn.rpc.retry import CancellationToken
from modyn.rpc.server import Registration, start_server
from modyn.state_folders import prepare_run_dir
from modyn.testing.fake_evaluator import FakeEvaluator
from modyn.testing.fake_storage import FakeStorage
from modyn.workers import JobSpec, WorkerPool

RUN = RunId("digits-0001")
DATASET: dict[str, Any] = {
    "dataset_id": "test",
    "record_layout": {"dtype": "int64"},
    "batch_size": 4,
    "metrics": [{"name": "Accuracy"}, {"name": "Accuracy", "topn": 1, "label": "Another"}],
}


def request(handler: str = "matrix", **fields: Any) -> EvaluationRequest:
    intervals = [EvalInterval(10, 20, 15), EvalInterval(0, 10, 5), EvalInterval(0, 10, 5)]
    return replace(EvaluationRequest(RUN, 2, 5, handler, DATASET, intervals), **fields)


def value(model_id: int, start: int) -> float:
    return model_id + start / 100


def drift(asked: DriftRequest) -> MeasuredDrift:
    """A distance with all its fields, and one without p-value."""
    (pair,) = asked.asked_pairs
    start = pair.current.start
    found = {name: DriftDistance(start / 7, None if name == "b" else 0.25, 1.5) for name in asked.question.metrics}
    return MeasuredDrift(found, 10, start, 3)


@dataclass
class Place:
    """A client, and a model whose evaluations fail with a given message."""

    client: EvaluatorClient
    failing: dict[int, str] = field(default_factory=dict)
    num_made: Callable[[], int] = lambda: 0

    def end(self, asked: EvaluationRequest) -> EvaluationStatus:
        return list(self.client.watch(self.client.start(asked).evaluation_id))[-1]


class _Job:
    """A job that has ended."""

    name = "job"

    def __init__(self, work: EvaluationJob | DriftJob, error: ModynError | None) -> None:
        self.error = error
        self.state = JobState.FINISHED if error is None else JobState.FAILED
        self._answer: Any = self._drifts(work.request) if isinstance(work, DriftJob) else self._scores(work)

    def _drifts(self, request: DriftRequest) -> list[MeasuredDrift]:
        return [drift(replace(request, pairs=(pair,))) for pair in request.asked_pairs]

    def _scores(self, work: EvaluationJob) -> list[Score]:
        intervals = work.source.intervals if isinstance(work.source, InIntervals) else [Interval()]
        labels = [str(metric.get("label", metric["name"])) for metric in work.request.dataset["metrics"]]
        return [
            Score(i, label, value(work.request.model_id, i.start), "", i.end - i.start, i.end - i.start)
            for i in intervals
            for label in labels
        ]

    def result(self) -> Any:
        return self._answer

    def stop(self) -> None:
        """Do nothing, because no job is running."""


class _Pool:
    """A pool that executes every job immediately."""

    def __init__(self, failing: dict[int, str]) -> None:
        self._failing = failing
        self.num_made = 0

    def submit(
        self,
        spec: JobSpec,
        *,
        on_done: Callable[[_Job], None] = lambda _: None,
        on_message: Callable[[tuple[int, int]], None] = lambda _: None,
    ) -> _Job:
        work = cast("EvaluationJob | DriftJob", spec.request)
        self.num_made += 1
        model_id = work.request.question.model_id if isinstance(work, DriftJob) else work.request.model_id
        message = self._failing.get(model_id or 0)
        job = _Job(work, None if message is None else UserCodeError(message))
        on_message((10, 10))
        on_done(job)
        return job


@contextmanager
def serving(config: SystemConfig) -> Iterator[Place]:
    storage = FakeStorage()
    storage.add_dataset("test")
    storage.add_samples("test", range(40))
    database = open_database(config, "evaluator", "modyn.evaluator.migrations")
    store, failing = EvaluationStore(database), dict[int, str]()
    pool = _Pool(failing)
    outputs = OutputCache(config.state_dir / "outputs", 0)
    outputs.folder.mkdir(parents=True)

    def make_job(asked: EvaluationRequest | MeasureRequest, source: SampleSource, data: DataVersion) -> EvaluationJob:
        return EvaluationJob(asked, source, config, config.state_dir / "scratch", outputs, data)

    def make_drift_job(asked: DriftRequest, data: DataVersion) -> DriftJob:
        return DriftJob(asked, config, config.state_dir / "scratch", data)

    workers = cast("WorkerPool", pool)
    evaluations = Evaluations(store, workers, make_job, storage.client(), max_jobs=2, coalesce_s=0.0)
    measurements = Measurements(workers, make_job, make_drift_job, storage.client())
    prepare_run_dir(config.run_dir)
    endpoint = config.endpoint("evaluator")
    servicer = EvaluatorServicer(
        evaluations,
        store,
        outputs,
        measurements,
        storage.client(),
        endpoint.model_copy(update={"max_message_bytes": 2**16}),
    )
    server = start_server("evaluator", endpoint, [Registration(add_EvaluatorServicer_to_server, servicer, FULL_NAME)])
    try:
        with EvaluatorClient(endpoint) as client:
            yield Place(client, failing, lambda: pool.num_made)
    finally:
        server.stop(0.1)
        evaluations.close()
        database.close()


@contextmanager
def in_memory(config: SystemConfig) -> Iterator[Place]:
    failing = dict[int, str]()

    def score(asked: EvaluationRequest, interval: EvalInterval, metric: str) -> tuple[float | None, int]:
        return value(asked.model_id, interval.start), interval.end - interval.start

    fake = FakeEvaluator(score, lambda asked: failing.get(asked.model_id))
    fake.drift = drift
    yield Place(cast("EvaluatorClient", fake), failing, lambda: len(fake.started))


@pytest.fixture(params=[serving, in_memory], ids=["service", "fake"])
def place(request: pytest.FixtureRequest, system_config: SystemConfig) -> Iterator[Place]:
    with request.param(system_config) as made:
        yield made


def test_the_fake_lacks_no_call() -> None:
    for name in [name for name in dir(EvaluatorClient) if not name.startswith("_")]:
        fake, real = (signature(getattr(kind, name)).parameters for kind in (FakeEvaluator, EvaluatorClient))
        assert list(fake) == list(real)


def test_an_evaluation_is_made_once_and_gives_each_cell_once(place: Place) -> None:
    client = place.client
    end = place.end(request())
    assert (end.evaluation_id, end.state) == (request().evaluation_id, JobState.FINISHED)
    assert client.start(request()) == end
    assert list(client.watch(end.evaluation_id)) == [end]
    assert place.num_made() == 1
    found = [(r.metric, r.interval, r.value, r.num_samples, r.note) for r in client.results(RUN)]
    assert found == [
        (metric, EvalInterval(start, start + 10, start + 5), value(5, start), 10, "")
        for metric in ("Accuracy", "Another")
        for start in (0, 10)
    ]
    assert {(r.run_id, r.trigger_id, r.model_id, r.handler, r.dataset) for r in client.results(RUN)} == {
        (RUN, 2, 5, "matrix", "test")
    }
    assert client.results(RunId("other-0001")) == []
    assert client.results(RUN, [request().evaluation_id]) == client.results(RUN)
    assert client.results(RUN, [request("other").evaluation_id]) == []


def test_results_are_ordered_and_a_newer_one_replaces_the_older(place: Place) -> None:
    later = [EvalInterval(10, 20, 15), EvalInterval(20, 30, 25)]
    for asked in (
        request("b", trigger_id=3, model_id=6),
        request("b"),
        request("a"),
        request("a", intervals=later),
        request("a", run_id=RunId("other-0001")),
    ):
        assert place.end(asked).state is JobState.FINISHED
    cells = [(r.trigger_id, r.handler, r.metric, r.interval.start) for r in place.client.results(RUN)]
    assert cells == sorted(set(cells))
    assert [start for trigger, handler, metric, start in cells if (trigger, handler, metric) == (2, "a", "Accuracy")] == [
        0,
        10,
        20,
    ]


def test_a_failure_is_a_status_and_can_be_started_again(place: Place) -> None:
    place.failing[5] = "metric Accuracy raised ZeroDivisionError"
    end = place.end(request())
    assert (end.state, end.error) == (JobState.FAILED, place.failing[5])
    assert isinstance(end.to_error(), ModynError)
    assert place.client.results(RUN) == []
    assert place.end(request("other", model_id=6)).state is JobState.FINISHED
    del place.failing[5]
    end = place.end(request())
    assert (end.state, end.error, end.error_reason) == (JobState.FINISHED, "", "")


def test_what_is_unknown_is_said_so(place: Place) -> None:
    with pytest.raises(NotFoundError, match="no evaluation 'nothing'"):
        list(place.client.watch("nothing"))
    with pytest.raises(NotFoundError, match="no evaluation 'nothing'"):
        place.client.stop("nothing")


def test_an_end_cannot_be_stopped(place: Place) -> None:
    end = place.end(request())
    place.client.stop(end.evaluation_id)
    assert place.client.start(request()) == end


def test_a_deleted_run_is_forgotten(place: Place) -> None:
    other = request(run_id=RunId("digits-0001-2"))
    first, second = place.end(request()), place.end(other)
    for _ in range(2):
        place.client.delete_run(RUN, [5])
        assert place.client.results(RUN) == []
        with pytest.raises(NotFoundError):
            list(place.client.watch(first.evaluation_id))
    assert list(place.client.watch(second.evaluation_id)) == [second]
    assert len(place.client.results(other.run_id)) == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (request(run_id=RunId("../../etc")), "cannot name a run"),
        (request(intervals=[EvalInterval(5, 4, 4)]), "ends before it starts"),
    ],
)
def test_wrong_requests_are_refused(place: Place, wrong: EvaluationRequest, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        place.client.start(wrong)
    assert place.num_made() == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (AtPositions(RUN, [StreamWindow(3, 2)]), "not a range of positions"),
        (AtPositions(RUN, [StreamWindow(-1, 2)]), "not a range of positions"),
        (AtPositions(RUN, [StreamWindow(1, 2, Interval(5, 4))]), "ends before it starts"),
        (InIntervals([Interval(5, 4)]), "ends before it starts"),
    ],
)
def test_wrong_sources_are_refused(place: Place, source: SampleSource, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        place.client.measure(MeasureRequest(RUN, 5, DATASET, source))
    with pytest.raises(InvalidArgumentError, match="cannot name a run"):
        place.client.measure(MeasureRequest(RunId("a/b"), 5, DATASET, OfKeys(np.array([1]))))


def test_a_pass_gives_scores_and_keeps_no_result(place: Place) -> None:
    asked = MeasureRequest(RUN, 5, DATASET, InIntervals([Interval(0, 10), Interval(10, 20), Interval(0, 10)]))
    scores = [(s.interval, s.metric, s.value, s.num_samples) for s in place.client.measure(asked).scores]
    assert scores == [(Interval(s, s + 10), metric, value(5, s), 10) for s in (0, 10) for metric in ("Accuracy", "Another")]
    assert place.client.results(RUN) == []
    token = CancellationToken()
    token.cancel(CancelledError("the run was stopped"))
    with pytest.raises(CancelledError, match="the run was stopped"):
        place.client.measure(asked, token)


def question(**changes: Any) -> DriftRequest:
    data = {name: value for name, value in DATASET.items() if name != "metrics"}
    metrics = {"mmd": {"id": "MMDDriftMetric", "bandwidth": 0.5}}
    asked = DriftQuestion(StreamWindow(0, 10), StreamWindow(10, 20, Interval(-5, 2**40)), metrics, model_id=5)
    return DriftRequest(RUN, data, replace(asked, **changes))


def test_a_question_about_drift_is_answered(place: Place) -> None:
    metrics = {"a": {"id": "KSDriftMetric"}, "b": {"id": "MMDDriftMetric", "num_permutations": 9}}
    asked = question(metrics=metrics, sample_size=7, seed=-3, projection={"id": "PCAProjection", "num_components": 2})
    for request in (asked, question(data=ComparedData.LABELS, model_id=None, current=StreamWindow(0, 4))):
        assert place.client.measure_drift(request) == drift(request)
    token = CancellationToken()
    token.cancel(CancelledError("the run was stopped"))
    with pytest.raises(CancelledError, match="the run was stopped"):
        place.client.measure_drift(asked, token)


def test_a_question_about_several_pairs_of_windows_has_an_answer_for_each(place: Place) -> None:
    pairs = tuple(WindowPair(StreamWindow(at, at + 5), StreamWindow(at + 5, at + 9, Interval(0, at))) for at in (7, 3, 50))
    made = place.num_made()
    answers = place.client.measure_drifts(replace(question(), pairs=pairs))
    assert answers == [drift(replace(question(), pairs=(pair,))) for pair in pairs]
    assert place.client.measure_drifts(question()) == [drift(question())]
    assert place.num_made() - made in (0, 2), "one job for all pairs"
    wrong = (*pairs, WindowPair(StreamWindow(3, 2), StreamWindow(5, 6)))
    with pytest.raises(InvalidArgumentError, match="not a range of positions"):
        place.client.measure_drifts(replace(question(), pairs=wrong))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": StreamWindow(3, 2)}, "not a range of positions"),
        ({"current": StreamWindow(1, 2, Interval(5, 4))}, "ends before it starts"),
        ({"metrics": {}}, "at least one metric"),
        ({"sample_size": 0}, "sample_size is 0"),
        ({"model_id": None}, "embeddings need a model, and the question names none"),
    ],
)
def test_a_wrong_question_about_drift_is_refused(place: Place, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        place.client.measure_drift(question(**changes))
    with pytest.raises(InvalidArgumentError, match="cannot name a run"):
        place.client.measure_drift(replace(question(), run_id=RunId("a/b")))
    assert place.num_made() == 0


def test_ids_tell_requests_apart() -> None:
    others = [request("b"), request(model_id=6), request(device="cuda"), replace(request(), trigger_id=3), request()]
    assert len({asked.evaluation_id for asked in others}) == 5
