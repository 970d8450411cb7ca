"""The evaluator as it is deployed: gRPC, warm workers, real storage and model storage, PostgreSQL."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modyn.config.system import SystemConfig
from modyn.config.trigger_parts import ComparedData
from modyn.errors import CancelledError, ConfigError, InvalidArgumentError, NotFoundError
from modyn.evaluator import service
from modyn.evaluator.client import EvaluationRequest, EvaluatorClient
from modyn.evaluator.drift import DRIFT_METRICS
from modyn.evaluator.outputs import DriftJob, EvaluationJob, OutputCache
from modyn.evaluator.records import (
    AtPositions,
    DriftQuestion,
    DriftRequest,
    InIntervals,
    Measured,
    MeasureRequest,
    OfKeys,
    OutputKind,
    SampleSource,
)
from modyn.evaluator.versions import DataVersion
from modyn.model_storage import service as model_storage_service
from modyn.model_storage.client import ModelHeader, ModelStorageClient
from modyn.models.weights import build_model, save_weights
from modyn.records import EvalInterval, Interval, JobState, RunId, RunRegistration, StreamWindow
from modyn.rpc.logs import get_logger
from modyn.rpc.retry import CancellationToken
from modyn.rpc.server import ServiceContext, start_server
from modyn.selector import service as selector_service
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.testing.waiting import eventually
from modyn.workers import JobSpec, WorkerPool
from tests.support.processes import ServiceProcess
from tests.support.running_storage import RunningStorage, binary_dataset, start_storage, write_records
from tests.support.worker_imports import Imports, new_fork_server

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

RUN = RunId("numbers-0001")
DATASET: dict[str, Any] = {
    "dataset_id": "numbers",
    "batch_parser_function": (
        "def batch_parser_function(data, offsets):\n    return torch.from_numpy(data.copy()).view(torch.int64).reshape(-1, 1).float()\n"
    ),
    "batch_size": 16,
    "metrics": [{"name": "Accuracy"}, {"name": "RocAuc"}],
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def storage(system_config: SystemConfig, stack: ExitStack, tmp_path: Path) -> RunningStorage:
    """60 samples at time 100, 40 at time 200. Sample n holds the number n; its label says whether n is at least 50."""
    running = start_storage(system_config, stack)
    write_records(tmp_path / "data" / "a.bin", range(60), 100, [int(n >= 50) for n in range(60)])
    write_records(tmp_path / "data" / "b.bin", range(60, 100), 200, [1] * 40)
    running.client.register_dataset(binary_dataset(tmp_path / "data"))
    assert running.ingest().samples_indexed == 100
    return running


@pytest.fixture
def model_id(system_config: SystemConfig, stack: ExitStack, tmp_path: Path) -> int:
    """A model that predicts class 1 for numbers above 39.5."""
    context = ServiceContext("model_storage", system_config, get_logger("test"))
    stack.callback(context.shut_down)
    endpoint = system_config.endpoint("model_storage")
    system_config.run_dir.mkdir(parents=True, exist_ok=True)
    stack.callback(start_server("model_storage", endpoint, model_storage_service.build(context)).stop)
    header = ModelHeader(RUN, 0, "LogisticRegression", {"input_size": 1, "num_classes": 2})
    model = build_model(header.model_class, header.model_config)
    weight, bias = model.parameters()
    with torch.no_grad():
        weight.copy_(torch.tensor([[0.0], [1.0]]))
        bias.copy_(torch.tensor([0.0, -39.5]))
    save_weights(model, tmp_path / "weights.safetensors")
    with ModelStorageClient(endpoint) as models:
        return models.put(header, tmp_path / "weights.safetensors").model_id


@pytest.fixture
def evaluator(system_config: SystemConfig, stack: ExitStack, storage: RunningStorage, model_id: int) -> EvaluatorClient:
    return start_evaluator(system_config, stack)


def start_evaluator(system_config: SystemConfig, stack: ExitStack) -> EvaluatorClient:
    context = ServiceContext("evaluator", system_config, get_logger("test"))
    stack.callback(context.shut_down)
    endpoint = system_config.endpoint("evaluator")
    stack.callback(start_server("evaluator", endpoint, service.build(context)).stop)
    return stack.enter_context(EvaluatorClient(endpoint))


@pytest.fixture
def stream(system_config: SystemConfig, stack: ExitStack, storage: RunningStorage) -> None:
    """The stream of the run: key 99 at position 0, key 0 at position 99."""
    context = ServiceContext("selector", system_config, get_logger("test"))
    stack.callback(context.shut_down)
    stack.callback(start_server("selector", system_config.endpoint("selector"), selector_service.build(context)).stop)
    inform(system_config, stack, storage.client)


def inform(system_config: SystemConfig, stack: ExitStack, storage: StorageClient) -> None:
    selector = stack.enter_context(SelectorClient(system_config.endpoint("selector")))
    strategy = {"name": "NewDataStrategy", "maximum_keys_in_memory": 100, "tail_triggers": 0}
    selector.register_run(RunRegistration(RUN, "numbers", strategy, 1, dataset_identity=storage.dataset("numbers").identity))
    selector.inform(RUN, 0, storage.samples_by_key("numbers", np.arange(99, -1, -1)))


def request(model_id: int, **fields: Any) -> EvaluationRequest:
    intervals = [
        EvalInterval(100, 200, 100),
        EvalInterval(100, 300, 150),
        EvalInterval(150, 250, 200),
        EvalInterval(300, 400, 300),
    ]
    return EvaluationRequest(RUN, 0, model_id, **{"handler": "matrix", "dataset": DATASET, "intervals": intervals} | fields)


def test_a_model_is_evaluated_in_a_worker(evaluator: EvaluatorClient, model_id: int, system_config: SystemConfig) -> None:
    started = evaluator.start(request(model_id))
    states = list(evaluator.watch(started.evaluation_id))
    assert states[-1].state is JobState.FINISHED, states[-1].error
    assert (states[-1].samples_seen, states[-1].samples_total) == (100, 100)
    found = {(r.metric, r.interval.anchor): (r.value, r.num_samples) for r in evaluator.results(RUN)}
    assert found["Accuracy", 100] == (50 / 60, 60)
    assert found["Accuracy", 150] == (0.9, 100)
    assert found["Accuracy", 200] == (1.0, 40)
    assert found["Accuracy", 300] == (None, 0)
    assert found["RocAuc", 150] == (1.0, 100)
    assert found["RocAuc", 200] == (None, 40)
    notes = {(r.metric, r.interval.anchor): r.note for r in evaluator.results(RUN)}
    assert "all 40 samples are of class 1" in notes["RocAuc", 200]
    assert not list((system_config.service_dir("evaluator") / "scratch").iterdir())
    assert evaluator.start(request(model_id)) == states[-1]
    assert list(evaluator.watch(started.evaluation_id)) == [states[-1]]
    outputs = system_config.service_dir("evaluator") / "outputs"
    assert list(outputs.glob(f"{model_id}-*.outputs"))
    for _ in range(2):
        evaluator.delete_run(RUN, [model_id])
        assert evaluator.results(RUN) == []
        assert not list(outputs.glob("*.outputs"))


@pytest.mark.parametrize(("outputs_bytes", "passes"), [(2**20, 100), (0, 300)])
def test_one_forward_pass_a_sample_over_handlers_and_restarts(
    system_config: SystemConfig, storage: RunningStorage, model_id: int, tmp_path: Path, outputs_bytes: int, passes: int
) -> None:
    counter = tmp_path / "parsed"
    parser = DATASET["batch_parser_function"].replace(
        "    return", f"    with open({str(counter)!r}, 'a') as file:\n        file.write('x' * (len(offsets) - 1))\n    return"
    )
    settings = system_config.evaluator.model_copy(update={"outputs_bytes": outputs_bytes})
    config = system_config.model_copy(update={"evaluator": settings})
    plain = DATASET | {"batch_parser_function": parser}
    after_training = request(model_id, dataset=plain, handler="after_training", intervals=[EvalInterval(0, 1000, 0)])
    after_pipeline = [
        request(model_id, dataset=plain, handler="after_pipeline"),
        request(model_id, dataset=plain | {"batch_size": 7, "metrics": [{"name": "Accuracy", "topn": 2}]}, handler="other"),
    ]
    values: dict[tuple[str, str, int], float | None] = {}
    for requests in ([after_training], after_pipeline[:1], after_pipeline[1:]):
        with ExitStack() as stack:
            evaluator = start_evaluator(config, stack)
            for asked in requests:
                end = list(evaluator.watch(evaluator.start(asked).evaluation_id))[-1]
                assert end.state is JobState.FINISHED, end.error
                assert (end.samples_seen, end.samples_total) == (100, 100)
            values = {(r.handler, r.metric, r.interval.anchor): r.value for r in evaluator.results(RUN)}
    assert counter.stat().st_size == passes
    assert values["after_training", "Accuracy", 0] == 0.9
    assert [values["after_pipeline", "Accuracy", anchor] for anchor in (100, 150, 200, 300)] == [50 / 60, 0.9, 1.0, None]
    assert [values["other", "Top-2-Accuracy", anchor] for anchor in (100, 150, 200, 300)] == [1.0, 1.0, 1.0, None]
    assert bool(list((config.service_dir("evaluator") / "outputs").glob("*.outputs"))) == bool(outputs_bytes)


def test_a_dataset_registered_again_with_corrected_labels_gives_the_new_score(
    evaluator: EvaluatorClient, storage: RunningStorage, model_id: int, tmp_path: Path
) -> None:
    def accuracy(asked: EvaluationRequest) -> float | None:
        end = list(evaluator.watch(evaluator.start(asked).evaluation_id))[-1]
        assert end.state is JobState.FINISHED, end.error
        return {(r.handler, r.metric): r.value for r in evaluator.results(RUN)}[asked.handler, "Accuracy"]

    everything = request(model_id, intervals=[EvalInterval(0, 1000, 0)])
    assert accuracy(everything) == 0.9
    pass_over_all = MeasureRequest(
        RUN, model_id, DATASET, InIntervals([Interval()]), dataset_identity=storage.client.dataset("numbers").identity
    )
    assert evaluator.measure(pass_over_all).scores[0].value == 0.9
    storage.client.delete_dataset("numbers")
    write_records(tmp_path / "data" / "a.bin", range(60), 100, [int(n >= 40) for n in range(60)])
    storage.client.register_dataset(binary_dataset(tmp_path / "data"))
    storage.ingest()
    assert accuracy(everything) == 1.0
    assert accuracy(request(model_id, intervals=[EvalInterval(0, 1000, 0)], handler="other")) == 1.0
    with pytest.raises(NotFoundError, match="dataset 'numbers' was deleted and registered again since.*; ask again"):
        evaluator.measure(pass_over_all)
    again = replace(pass_over_all, dataset_identity=storage.client.dataset("numbers").identity)
    assert evaluator.measure(again).scores[0].value == 1.0


def test_a_repeated_request_counts_samples_again(
    evaluator: EvaluatorClient, storage: RunningStorage, model_id: int, tmp_path: Path
) -> None:
    for num_samples in (100, 120):
        end = list(evaluator.watch(evaluator.start(request(model_id)).evaluation_id))[-1]
        assert end.state is JobState.FINISHED, end.error
        assert {r.interval.anchor: r.num_samples for r in evaluator.results(RUN)}[150] == num_samples
        write_records(tmp_path / "data" / "c.bin", range(100, 120), 200, [1] * 20)
        storage.ingest()


def test_scores_logits_and_embeddings_of_any_samples(
    evaluator: EvaluatorClient, storage: RunningStorage, stream: None, model_id: int, system_config: SystemConfig
) -> None:
    storage.client.delete_samples("numbers", np.array([98]))

    def measured(source: SampleSource, kind: OutputKind) -> Measured:
        return evaluator.measure(MeasureRequest(RUN, model_id, DATASET, source, kind))

    for source, expected in (
        (OfKeys(np.array([41, 3, 98, 3])), [3, 41]),
        (AtPositions(RUN, [StreamWindow(0, 3), StreamWindow(2, 4)]), [96, 97, 99]),
        (InIntervals([Interval(100, 150)]), list(range(60))),
    ):
        embeddings, logits = measured(source, OutputKind.EMBEDDINGS).rows, measured(source, OutputKind.LOGITS).rows
        assert embeddings is not None
        assert logits is not None
        assert embeddings.keys.tolist() == logits.keys.tolist() == expected
        assert embeddings.outputs.tolist() == [[k] for k in expected]
        assert logits.outputs.tolist() == [[0.0, k - 39.5] for k in expected]
        outcomes = measured(source, OutputKind.OUTCOMES).rows
        assert outcomes is not None
        assert outcomes.keys.tolist() == expected
        assert outcomes.outputs[:, 0].tolist() == [(k > 39.5) != (k >= 50) for k in expected]
        assert np.allclose(outcomes.outputs[:, 2], [1 / (1 + np.exp(-abs(k - 39.5))) for k in expected])
        scores = {score.metric: score for score in measured(source, OutputKind.SCORES).scores}
        assert scores["Accuracy"].value == sum((k > 39.5) == (k >= 50) for k in expected) / len(expected)
        assert scores["Accuracy"].num_samples == len(expected)
    assert measured(OfKeys(np.empty(0, np.int64)), OutputKind.LOGITS) == Measured()
    assert evaluator.results(RUN) == []
    assert not list((system_config.service_dir("evaluator") / "scratch").iterdir())
    with pytest.raises(NotFoundError):
        measured(OfKeys(np.array([1000])), OutputKind.LOGITS)
    with pytest.raises(InvalidArgumentError, match="not a range of positions"):
        measured(AtPositions(RUN, [StreamWindow(-1, 3)]), OutputKind.LOGITS)
    token = CancellationToken()
    token.cancel(CancelledError("the run was stopped"))
    with pytest.raises(CancelledError, match="the run was stopped"):
        evaluator.measure(MeasureRequest(RUN, model_id, DATASET, OfKeys(np.array([1]))), token)


def test_passes_over_positions_leave_nothing_for_later_ones(
    evaluator: EvaluatorClient, stream: None, model_id: int, system_config: SystemConfig
) -> None:
    outputs = system_config.service_dir("evaluator") / "outputs"
    for position in range(0, 100, 20):  # as the checks of a trigger policy: each has samples that none before it had
        source = AtPositions(RUN, [StreamWindow(position, position + 20)])
        for kind in (OutputKind.SCORES, OutputKind.OUTCOMES):
            assert evaluator.measure(MeasureRequest(RUN, model_id, DATASET, source, kind)) != Measured()
        assert not list(outputs.glob("*.outputs")), "each later check reads them all"
    evaluator.measure(MeasureRequest(RUN, model_id, DATASET, InIntervals([Interval(0, 1000)])))
    assert len(list(outputs.glob("*.outputs"))) == 1


def drift(model_id: int | None, reference: StreamWindow, current: StreamWindow, **changes: Any) -> DriftRequest:
    data = {name: value for name, value in DATASET.items() if name != "metrics"} | changes.pop("dataset", {})
    metrics = {"mean": {"id": "MeanDistanceDriftMetric"}, "mmd": {"id": "MMDDriftMetric", "num_permutations": 20}}
    asked = DriftQuestion(reference, current, **{"metrics": metrics, "model_id": model_id} | changes)
    return DriftRequest(RUN, data, asked)


def test_drift_is_measured_and_each_sample_is_passed_once_while_the_worker_lives(
    evaluator: EvaluatorClient, storage: RunningStorage, stream: None, model_id: int, system_config: SystemConfig
) -> None:
    reference, current = StreamWindow(50, 100), StreamWindow(0, 30, Interval(200, 300))
    found = evaluator.measure_drift(drift(model_id, reference, current))
    assert (found.num_reference, found.num_current, found.num_embedded) == (50, 30, 80)
    assert found.distances["mean"].distance == 84.5 - 24.5
    assert found.distances["mean"].p_value is None
    assert found.distances["mmd"].p_value == pytest.approx(1 / 21)
    again = evaluator.measure_drift(drift(model_id, reference, current))
    assert (again.num_embedded, again.distances["mmd"].distance) == (0, found.distances["mmd"].distance)
    storage.client.delete_samples("numbers", np.array([99, 0]))
    slid = evaluator.measure_drift(drift(model_id, reference, StreamWindow(0, 40)))
    assert (slid.num_reference, slid.num_current, slid.num_embedded) == (49, 39, 10)
    assert slid.distances["mean"].distance == pytest.approx((60 + 98) / 2 - 25)

    workers = [pid for pid in _children_of(os.getpid()) if _is_worker(pid)]  # one of storage may be among them
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    eventually(lambda: all(_state(worker) == "Z" for worker in workers), "a worker lives")
    repeated = evaluator.measure_drift(drift(model_id, reference, StreamWindow(0, 40)))
    assert repeated.num_embedded == 49 + 39
    assert repeated.distances["mean"] == replace(slid.distances["mean"], seconds=repeated.distances["mean"].seconds)

    without = evaluator.measure_drift(drift(None, reference, StreamWindow(0, 40), data=ComparedData.LABELS, sample_size=20))
    assert (without.num_reference, without.num_current, without.num_embedded) == (20, 20, 0)
    assert without.distances["mean"].distance == 1.0
    few = evaluator.measure_drift(drift(model_id, reference, StreamWindow(1, 2)))
    assert (few.num_reference, few.num_current, set(few.distances)) == (49, 1, {"mean"}), "the others need two samples"
    assert not list((system_config.service_dir("evaluator") / "scratch").iterdir())
    with pytest.raises(ConfigError, match="did you mean 'MMDDriftMetric'"):
        evaluator.measure_drift(drift(model_id, reference, current, metrics={"mmd": {"id": "MMDriftMetric"}}))
    with pytest.raises(NotFoundError):
        evaluator.measure_drift(drift(999, reference, current))
    with pytest.raises(InvalidArgumentError, match=rf"drift of embeddings of run {RUN}, model {model_id}, reference \[0, 500\)"):
        evaluator.measure_drift(drift(model_id, StreamWindow(0, 500), current))


@pytest.mark.parametrize("short_cut", ["on", pytest.param("off", marks=pytest.mark.exhaustive)])
def test_a_session_finds_the_services_again_that_were_killed_between_two_questions(
    system_config: SystemConfig, stack: ExitStack, tmp_path: Path, model_id: int, short_cut: str
) -> None:
    config = system_config.model_copy(update={"storage": system_config.storage.model_copy(update={"short_cut": short_cut})})
    services = [stack.enter_context(ServiceProcess(name, config, tmp_path)) for name in ("storage", "selector")]
    storage = stack.enter_context(StorageClient(config.endpoint("storage")))
    write_records(tmp_path / "data" / "a.bin", range(100), 100, [int(n >= 50) for n in range(100)])
    storage.register_dataset(binary_dataset(tmp_path / "data"))
    assert list(storage.ingest("numbers"))[-1].samples_indexed == 100
    inform(config, stack, storage)
    evaluator = start_evaluator(config, stack)

    assert evaluator.measure_drift(drift(model_id, StreamWindow(50, 100), StreamWindow(0, 30))).num_embedded == 80
    for end, killed in ((35, services[:1]), (40, services[1:]), (45, services)):
        for service_ in killed:
            service_.kill()
            service_.start()
        found = evaluator.measure_drift(drift(model_id, StreamWindow(50, 100), StreamWindow(0, end)))
        assert (found.num_current, found.num_embedded) == (end, 5), "the session is another one"
        assert found.distances["mean"].distance == 99 - (end - 1) / 2 - 24.5
    storage.delete_samples("numbers", np.array([99]))
    assert evaluator.measure_drift(drift(model_id, StreamWindow(50, 100), StreamWindow(0, 45))).num_current == 44


def test_a_question_about_drift_ends_when_its_caller_cancels_it(
    evaluator: EvaluatorClient, storage: RunningStorage, stream: None, model_id: int, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    waits = f"lambda x: (__import__('pathlib').Path({str(begun)!r}).touch(), __import__('time').sleep(0.5), x)[2]"
    slow = drift(model_id, StreamWindow(0, 50), StreamWindow(50, 100), dataset={"batch_size": 1, "transformations": [waits]})
    token = CancellationToken()

    def cancel() -> None:
        eventually(begun.exists, "no sample is decoded")
        token.cancel(CancelledError("the run was stopped"))

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(CancelledError, match="the run was stopped"):
            evaluator.measure_drift(slow, token)
    finally:
        thread.join()
    assert evaluator.measure_drift(drift(model_id, StreamWindow(0, 50), StreamWindow(50, 100))).num_embedded == 100


def test_failures_name_run_trigger_model_and_dataset(evaluator: EvaluatorClient, model_id: int) -> None:
    broken = DATASET | {"batch_parser_function": "def batch_parser_function(data, offsets):\n    return data['x']\n"}
    end = list(evaluator.watch(evaluator.start(request(model_id, dataset=broken)).evaluation_id))[-1]
    assert (end.state, end.error_reason) == (JobState.FAILED, "USER_CODE")
    assert end.error.startswith(f"evaluation of run {RUN}, trigger 0, model {model_id} on dataset 'numbers', worker ")
    assert "at line 2: `return data['x']`" in end.error
    assert "evaluation-0.log" in end.error
    for wrong, reason in (
        (request(999), "NOT_FOUND"),
        (request(model_id, dataset=DATASET | {"dataset_id": "none"}), "NOT_FOUND"),
    ):
        end = list(evaluator.watch(evaluator.start(wrong).evaluation_id))[-1]
        assert (end.state, end.error_reason) == (JobState.FAILED, reason)
    assert evaluator.results(RUN) == []


@pytest.mark.slow
def test_samples_are_decoded_by_as_many_processes_as_are_asked_for(
    evaluator: EvaluatorClient, model_id: int, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    parser = (
        "def bytes_parser_function(data):\n    import os, pathlib, struct\n"
        f"    pathlib.Path({str(pids)!r}, str(os.getpid())).touch()\n"
        "    return torch.tensor(struct.unpack('<q', bytes(data))).float()\n"
    )
    section = {**DATASET, "bytes_parser_function": parser, "dataloader_workers": 2}
    del section["batch_parser_function"]
    end = list(evaluator.watch(evaluator.start(request(model_id, dataset=section)).evaluation_id))[-1]
    assert end.state is JobState.FINISHED, end.error
    found = {(r.metric, r.interval.anchor): (r.value, r.num_samples) for r in evaluator.results(RUN)}
    assert found["Accuracy", 150] == (0.9, 100)
    assert len(list(pids.iterdir())) == 2


def test_stopping_ends_the_worker(evaluator: EvaluatorClient, model_id: int) -> None:
    slow = DATASET | {"batch_size": 1, "transformations": ["lambda x: (__import__('time').sleep(0.5), x)[1]"]}
    started = evaluator.start(request(model_id, dataset=slow))
    watching = evaluator.watch(started.evaluation_id)
    while next(watching).samples_seen == 0:
        continue
    evaluator.stop(started.evaluation_id)
    assert list(watching)[-1].state is JobState.STOPPED


def test_edges_of_the_protocol(evaluator: EvaluatorClient) -> None:
    plugins = [plugin.id for plugin in evaluator.plugins()]
    assert plugins == ["Accuracy", "F1Score", "RocAuc", *DRIFT_METRICS.ids(), "PCAProjection", "RandomProjection"]
    assert evaluator.validate({"evaluation": {"datasets": [DATASET]}}) == []
    (problem,) = evaluator.validate({"evaluation": {"datasets": [DATASET | {"batch_size": 0}]}})
    assert problem.path == "evaluation.datasets.0.batch_size"
    (problem,) = evaluator.validate({"trigger": {"id": "DataDriftTrigger", "metrics": {"mmd": {"id": "MMD"}}}})
    assert problem.path == "trigger.metrics.mmd.id"
    assert evaluator.results(RunId("unknown")) == []
    with pytest.raises(NotFoundError):
        list(evaluator.watch("unknown"))
    with pytest.raises(NotFoundError):
        evaluator.stop("unknown")
    with pytest.raises(ConfigError, match="metrics"):
        evaluator.start(request(1, dataset={"dataset_id": "x"}))


@pytest.mark.slow
def test_killed_and_started_again(
    system_config: SystemConfig, stack: ExitStack, storage: RunningStorage, model_id: int, tmp_path: Path
) -> None:
    go_on = tmp_path / "go-on"
    wait = f"[__import__('time').sleep(0.02) for _ in iter(lambda: __import__('os').path.exists({str(go_on)!r}), True)]"
    waiting = DATASET | {"batch_size": 1, "transformations": [f"lambda x: (x.item() >= 50 and {wait}, x)[1]"]}

    process = stack.enter_context(ServiceProcess("evaluator", system_config, tmp_path))
    evaluator = stack.enter_context(EvaluatorClient(system_config.endpoint("evaluator")))
    started = evaluator.start(request(model_id, dataset=waiting))
    watching = evaluator.watch(started.evaluation_id)
    while next(watching).samples_seen == 0:
        continue
    workers = _children_of(process.pid)
    assert workers
    process.kill()
    eventually(lambda: all(_state(pid) == "Z" for pid in workers), "workers outlive their service")

    go_on.touch()
    process.start()
    evaluator = stack.enter_context(EvaluatorClient(system_config.endpoint("evaluator")))
    left = list(evaluator.watch(started.evaluation_id))
    assert [status.state for status in left] == [JobState.STOPPED]
    assert not list((system_config.service_dir("evaluator") / "scratch").iterdir())
    evaluator.start(request(model_id, dataset=waiting))
    assert list(evaluator.watch(started.evaluation_id))[-1].state is JobState.FINISHED
    assert len(evaluator.results(RUN)) == 8
    assert process.end() == 0, process.said()


def _children_of(pid: int) -> list[int]:
    """Return the fork server and the workers."""
    direct: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # It has ended meanwhile.
            direct += map(int, path.read_text().split())
    return [found for child in direct for found in (child, *_children_of(child))]


def _state(pid: int) -> str:
    """Return the state of a process; Z also if the process no longer exists."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def _is_worker(pid: int) -> bool:
    """Return whether the process is a fork of the fork server, and not the fork server itself."""
    with suppress(OSError):
        return not _children_of(pid) and b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_a_session_builds_a_model_once(
    system_config: SystemConfig, storage: RunningStorage, stream: None, model_id: int, tmp_path: Path
) -> None:
    commands, source = list[tuple[str, object]](), AtPositions(RUN, [StreamWindow(0, 50)])
    outputs, data = OutputCache(tmp_path, 2**20), DataVersion("", "")
    for kind in (OutputKind.SCORES, OutputKind.OUTCOMES, OutputKind.SCORES):
        asked = MeasureRequest(RUN, model_id, DATASET, source, kind)
        job = EvaluationJob(asked, source, system_config, tmp_path, outputs, data, kind)
        commands.append(("modyn.evaluator.evaluate:run", job))
    question = DriftJob(drift(model_id, StreamWindow(0, 50), StreamWindow(50, 100)), system_config, tmp_path, data)
    commands += 2 * [("modyn.evaluator.measure_drift:run", question)]
    pool = WorkerPool(1, preload=service.PRELOAD)
    try:
        task = "tests.support.counted_networks:count_built"
        assert pool.submit(JobSpec(task, commands, name="counted", log_path=tmp_path / "log")).result(120) == 1
    finally:
        pool.close()


@pytest.fixture(scope="module")
def imports() -> Iterator[Imports]:
    with new_fork_server(service.PRELOAD) as found:
        yield found


def test_an_evaluation_worker_imports_nothing_after_the_fork(
    system_config: SystemConfig, storage: RunningStorage, model_id: int, tmp_path: Path, imports: Imports
) -> None:
    asked = request(model_id, dataset=DATASET | {"metrics": [*DATASET["metrics"], {"name": "F1Score", "num_classes": 2}]})
    outputs = OutputCache(tmp_path, 2**20)
    job = EvaluationJob(
        asked, InIntervals([Interval(0, 1000)]), system_config, scratch=tmp_path, outputs=outputs, data=DataVersion("", "")
    )
    assert imports("modyn.evaluator.evaluate:run", job, tmp_path / "log") == []


def test_a_worker_that_measures_drift_imports_nothing_after_the_fork(
    system_config: SystemConfig, storage: RunningStorage, stream: None, model_id: int, tmp_path: Path, imports: Imports
) -> None:
    asked = drift(model_id, StreamWindow(0, 50), StreamWindow(50, 100))
    job = DriftJob(asked, system_config, scratch=tmp_path, data=DataVersion("", ""))
    assert imports("modyn.evaluator.measure_drift:run", job, tmp_path / "log") == []
