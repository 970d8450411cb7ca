"""Swaps under load, pinned versions, canary, shadow, and the end of versions."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import structlog
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from modyn.errors import (
    ConflictError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
    UnavailableError,
)
from modyn.serving.batch_queue import BatchLimits
from modyn.serving.messages.infer import InferAnswer, InferRequest, settle
from modyn.serving.model_server import InferTicket, ModelServer, ModelServerLimits
from modyn.serving.versions.loaded_version import TRANSITIONS, VersionState, check_transition
from modyn.serving.versions.predictor import VersionName
from modyn.serving.versions.routing import Canary, share_of
from modyn.serving.versions.shadow import compare
from modyn.testing.fake_predictor import FakeVersions, PredictorGate
from modyn.testing.waiting import PATIENCE_S, eventually


def begin(server: ModelServer, *rows: float, **fields: object) -> tuple[InferTicket, Future[InferAnswer]]:
    future: Future[InferAnswer] = Future()
    inputs = {"input": np.array([[row, 0, 0] for row in rows], np.float32)}
    return server.infer(InferRequest("m", inputs, **fields), functools.partial(settle, future)), future  # type: ignore[arg-type]


def ask(server: ModelServer, *rows: float, **fields: object) -> InferAnswer:
    return begin(server, *rows, **fields)[1].result(PATIENCE_S)


Make = Callable[..., ModelServer]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes servers, which are closed at the end of the test. Args: serve: whether version 1 of model `m` serves."""
    servers: list[ModelServer] = []

    def make_server(versions: FakeVersions | None = None, *args: Any, serve: bool = True, **options: Any) -> ModelServer:
        servers.append(ModelServer(versions or FakeVersions(), *args, **options))
        if serve:
            servers[-1].swap(VersionName("m", "1"))
        return servers[-1]

    yield make_server
    for server in servers:
        server.close()


def test_versions_that_are_loaded_are_listed_by_number(make: Make) -> None:
    server = make()
    for number in ("10", "9"):
        server.load(VersionName("m", number))
    assert server.metadata("m")[1] == ["1", "9", "10"]


def test_a_model_that_is_known_is_waited_for_and_holds_back_that_all_are_ready(make: Make) -> None:
    server = make(serve=False, models=["m", "n"])
    with pytest.raises(UnavailableError, match="no version of model 'm' serves yet"):
        ask(server, 1.0)
    server.swap(VersionName("m", "1"))
    assert ask(server, 1.0).version == "1"
    assert (server.is_ready("m"), server.is_ready("n"), server.is_ready()) == (True, False, False)
    server.swap(VersionName("n", "1"))
    assert server.is_ready()


def test_seconds_of_requests_are_reported_with_their_model(make: Make) -> None:
    took: list[str] = []
    server = make(serve=False, on_end=lambda version, _, __: took.append(version.model))
    for name in ("n", "m"):
        server.swap(VersionName(name, "1"))
    ask(server, 1.0)
    assert took == ["m"]


def test_every_pair_of_states() -> None:
    allowed = {
        ("loading", "warm"), ("loading", "failed"), ("warm", "serving"), ("warm", "retiring"), ("serving", "warm"),
        ("serving", "retiring"), ("retiring", "unloaded"),
    }  # fmt: skip
    assert set(TRANSITIONS) == set(VersionState)
    for before, after in itertools.product(VersionState, VersionState):
        if (before.value, after.value) in allowed:
            check_transition(VersionName("m", "1"), before, after)
        else:
            with pytest.raises(ConflictError, match=f"is {before} and cannot become {after}"):
                check_transition(VersionName("m", "1"), before, after)


def test_a_swap_is_logged_with_its_seconds(make: Make, all_logs: None) -> None:
    server = make()
    with capture_logs() as logs:
        swap = server.swap(VersionName("m", "2"))
    (event,) = (line for line in logs if line["event"] == "version_serves")
    assert (event["version"], event["before"]) == ("2", "1")
    assert (event["load_s"], event["exchange_s"]) == (round(swap.load_s, 4), round(swap.exchange_s, 6))


def test_swaps_under_load_fail_no_request_and_mix_no_answer(make: Make) -> None:
    """Each client sees whole answers of one version, the one that the answer names, and no older one after a newer one."""
    versions = FakeVersions()
    server = make(versions)
    stop, problems, counts = threading.Event(), list[str](), [0] * 4

    def client(number: int) -> None:
        newest = 0
        while not stop.is_set():
            rows = [float(number * 1000 + counts[number] % 100 + row) for row in range(1 + counts[number] % 3)]
            try:
                answer = ask(server, *rows)
            except ModynError as error:
                problems.append(str(error))
                return
            seen = np.unique(answer.outputs["version"])
            if seen.tolist() != [int(answer.version)] or answer.outputs["sum"].tolist() != rows or int(answer.version) < newest:
                problems.append(f"version {answer.version} answered {answer.outputs} for {rows}")
            newest = int(answer.version)
            counts[number] += 1

    clients = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in clients:
        thread.start()
    for number in range(2, 201):
        swap = server.swap(VersionName("m", str(number)))
        assert swap.before == str(number - 1)
    stop.set()
    for thread in clients:
        thread.join()
    assert problems == []
    assert min(counts) > 0
    assert sorted(server.states("m").values()) == [VersionState.SERVING, VersionState.WARM]
    for version, predictor in versions.made.items():
        if int(version) < 199:
            eventually(predictor.closed.is_set, f"version {version} is still in memory")
    assert server.close()
    assert all(predictor.closed.is_set() for predictor in versions.made.values())


def test_a_request_in_flight_ends_on_the_version_it_began_with(make: Make) -> None:
    gate = PredictorGate()
    versions = FakeVersions(before=lambda inputs: gate(inputs) if (inputs["input"] == 7).any() else None)
    server = make(versions, ModelServerLimits(standby=0))
    _, held = begin(server, 7.0)
    assert gate.reached.wait(PATIENCE_S)
    server.swap(VersionName("m", "2"))
    assert ask(server, 1.0).version == "2"
    assert not versions.made["1"].closed.is_set()
    with pytest.raises(NotFoundError, match="has no version 1 that is loaded"):
        ask(server, 1.0, version="1")
    gate.open.set()
    assert held.result(PATIENCE_S).version == "1"
    eventually(versions.made["1"].closed.is_set)


def test_a_rollback_to_the_standby_loads_nothing_also_while_another_version_loads(make: Make) -> None:
    versions = FakeVersions()
    server = make(versions)
    server.swap(VersionName("m", "2"))
    loading, go = threading.Event(), threading.Event()

    def slow(name: VersionName) -> object:
        loading.set()
        assert go.wait(PATIENCE_S)
        return versions(name)

    server._load = slow  # type: ignore[assignment]
    thread = threading.Thread(target=server.load, args=(VersionName("m", "3"),))
    thread.start()
    assert loading.wait(PATIENCE_S)
    assert server.states("m")["3"] is VersionState.LOADING
    back = server.swap(VersionName("m", "1"))
    assert (back.before, back.load_s) == ("2", 0.0)
    assert ask(server, 1.0).version == "1"
    go.set()
    thread.join()
    assert ask(server, 1.0, version="3").version == "3"


def test_a_version_that_cannot_be_loaded_leaves_all_as_it_was(make: Make) -> None:
    server = make(FakeVersions(newest=1))
    with pytest.raises(NotFoundError, match="there is no version 2 of model 'm'"):
        server.swap(VersionName("m", "2"))
    assert ask(server, 1.0).version == "1"
    assert server.states("m") == {"1": VersionState.SERVING}


def test_readiness(make: Make) -> None:
    server = make(serve=False)
    assert not server.is_ready()
    server.load(VersionName("m", "1"))
    assert (server.is_ready(), server.is_ready("m"), server.is_ready("m", "1")) == (False, False, True)
    server.swap(VersionName("m", "1"))
    assert (server.is_ready(), server.is_ready("m"), server.is_ready("x"), server.is_ready("m", "2")) == (
        True,
        True,
        False,
        False,
    )
    assert server.table().serving("m").name.version == "1"
    server.close()
    assert not server.is_ready()


def test_a_canary_answers_its_share_by_request_id(make: Make) -> None:
    server = make()
    server.set_canary("m", Canary("2", 0.5))
    for number in range(40):
        id_ = f"id-{number}"
        answer = ask(server, 1.0, request_id=id_)
        assert (answer.version, answer.request_id) == ("2" if share_of(id_) < 0.5 else "1", id_)
    server.set_canary("m", None)
    assert {ask(server, 1.0, request_id=f"id-{number}").version for number in range(40)} == {"1"}
    assert "2" in server.states("m"), "as standby"


def shadowed(result: str) -> float:
    labels = {"model": "m", "version": "2", "result": result}
    return REGISTRY.get_sample_value("modyn_serving_shadow_answers_total", labels) or 0.0


def test_a_shadow_gets_copies_and_neither_answers_nor_delays(make: Make) -> None:
    gate, versions = PredictorGate(), FakeVersions()
    server = make(versions)
    server.set_shadow("m", "2")
    versions.made["2"].before = gate
    before = shadowed("different")
    answers = [ask(server, float(number)) for number in range(5)]  # while the shadow is blocked
    assert {answer.version for answer in answers} == {"1"}
    assert shadowed("different") == before
    gate.open.set()
    eventually(lambda: shadowed("different") == before + 5)  # the output `version` differs


@pytest.fixture
def all_logs() -> Iterator[None]:
    """Everything is logged, as in a server."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(0))
    yield
    structlog.configure(**before)


def test_answers_of_a_shadow_that_differ_are_logged_by_request_at_a_bounded_rate(make: Make, all_logs: None) -> None:
    with capture_logs() as lines:
        server = make()
        server.set_shadow("m", "2")
        before = shadowed("different")
        for number in range(20):
            ask(server, float(number), request_id=f"r{number}")
        eventually(lambda: shadowed("different") == before + 20)
        server.close()
    found = [line for line in lines if line["event"] == "shadow_differs"]
    assert (found[0]["request_id"], found[0]["shadow"], found[0]["not_logged"]) == ("r0", "2", 0)
    assert len(found) < 20


def test_what_is_counted_of_versions_goes_with_them(make: Make) -> None:
    server = make(None, ModelServerLimits(standby=0), serve=False)
    name = f"forgotten-{time.monotonic_ns()}"

    def series() -> set[str]:
        labels = [sample.labels for metric in REGISTRY.collect() for sample in metric.samples]
        return {found["version"] for found in labels if found.get("model") == name and "version" in found}

    for version in range(1, 6):
        server.swap(VersionName(name, str(version)))
        server.set_shadow(name, str(version + 1))
        future: Future[InferAnswer | ModynError] = Future()
        server.infer(InferRequest(name, {"input": np.ones((1, 3), np.float32)}), future.set_result)
        assert isinstance(future.result(PATIENCE_S), InferAnswer)
    eventually(lambda: series() == {"5", "6"})


def test_a_shadow_that_is_overloaded_is_left_out(make: Make) -> None:
    go, before = threading.Event(), shadowed("dropped")
    versions = FakeVersions()
    server = make(versions, ModelServerLimits(BatchLimits(max_queue=1)))
    server.set_shadow("m", "2")
    versions.made["2"].before = lambda _: go.wait(PATIENCE_S)
    for number in range(6):
        assert ask(server, float(number)).outputs["sum"].tolist() == [number]
    assert shadowed("dropped") >= before + 4
    go.set()


def test_answers_are_compared_by_number() -> None:
    one, other = {"x": np.array([1.0, np.nan])}, {"x": np.array([1.5, np.nan])}
    assert (compare(one, one).equal, compare(one, one).largest) == (True, 0.0)
    assert (compare(one, other).equal, compare(one, other).largest) == (False, 0.5)
    assert compare({"x": np.array([b"a"], object)}, {"x": np.array([b"b"], object)}).largest is None
    assert not compare(one, {"y": one["x"]}).equal


def test_outputs_are_chosen_by_name(make: Make) -> None:
    server = make()
    with pytest.raises(InvalidArgumentError, match="the model has no output 'sums', did you mean 'sum'"):
        ask(server, 1.0, outputs=("sums",))
    assert list(ask(server, 1.0, outputs=("version",)).outputs) == ["version"]
