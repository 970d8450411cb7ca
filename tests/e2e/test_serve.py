"""`modyn serve` and `modyn models promote`, as a user types them, on a real stack: hot swap under load, kill -9, a clean end."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from modyn.testing.stack import RunningStack
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.serving_process import Serving

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def run_id(running_stack: RunningStack) -> str:
    """A finished run with two versions."""
    running_stack.tiny_dataset("serve")
    run = running_stack.run(running_stack.pipeline_file("serve"))
    assert run.state == "finished"
    return str(run.run_id)


@pytest.fixture
def served(running_stack: RunningStack, run_id: str) -> Iterator[Serving]:
    made = Serving(running_stack, run_id, "--name", "tiny", "--http-port", "0", "--grpc-port", "0")
    yield made
    if made.process.poll() is None:
        made.end(signal.SIGKILL)


BODY = json.dumps({"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]})


def ask(connection: http.client.HTTPConnection) -> dict[str, Any]:
    connection.request("POST", "/v2/models/tiny/infer", BODY)
    answer = connection.getresponse()
    found: dict[str, Any] = json.loads(answer.read())
    assert answer.status == 200, found
    return found


def test_promotions_and_rollbacks_under_load(running_stack: RunningStack, run_id: str, served: Serving) -> None:
    """Every answer is that of one version, and each change is seen."""
    models = [m["version"]["model_id"] for m in json.loads(running_stack.modyn("models", "ls", run_id, "--json").stdout)]
    first, second = map(str, models)
    stop, failures, seen = threading.Event(), list[str](), dict[str, set[str]]()

    def load() -> None:
        connection = http.client.HTTPConnection(served.address, timeout=PATIENCE_S)
        while not stop.is_set():
            try:
                found = ask(connection)
            except (OSError, AssertionError, http.client.HTTPException) as error:
                failures.append(repr(error))
                return
            seen.setdefault(found["model_version"], set()).add(str(found["outputs"][0]["data"]))
        connection.close()

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    connection = http.client.HTTPConnection(served.address, timeout=PATIENCE_S)
    assert ask(connection)["model_version"] == second, "the newest, since none is promoted"
    done = running_stack.modyn("models", "promote", run_id, first, "--reason", "the newest is worse")
    assert (done.returncode, done.stderr) == (0, f"model {first} is promoted\n")
    eventually(lambda: ask(connection)["model_version"] == first)
    assert running_stack.modyn("models", "promote", run_id).stderr == f"model {second} is promoted\n"
    eventually(lambda: ask(connection)["model_version"] == second)
    done = running_stack.modyn("models", "rollback", run_id, "--reason", "errors")
    assert (done.returncode, done.stderr) == (0, f"model {first} is promoted again\n")
    eventually(lambda: ask(connection)["model_version"] == first)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert {version: len(answers) for version, answers in seen.items()} == {first: 1, second: 1}, "an answer was mixed"
    trail = json.loads(running_stack.modyn("models", "promotions", run_id, "--json").stdout)
    assert [(entry["action"], entry["model_id"], entry["reason"]) for entry in trail] == [
        ("promote", models[0], "the newest is worse"), ("promote", models[1], ""), ("rollback", models[0], "errors"),
    ]  # fmt: skip
    assert "the newest is worse" in running_stack.modyn("models", "promotions", run_id).stdout
    metrics = http.client.HTTPConnection(served.field("metrics").split("/")[2], timeout=PATIENCE_S)
    metrics.request("GET", "/metrics")
    text = metrics.getresponse().read().decode()
    assert f'modyn_serving_version_info{{model="tiny",version="{first}"}} 1.0' in text
    assert "modyn_serving_request_seconds_bucket" in text
    metrics.close()
    connection.close()


def test_it_starts_again_at_its_ports_after_a_kill_and_ends_cleanly(
    running_stack: RunningStack, run_id: str, served: Serving
) -> None:
    ports = [served.address.rsplit(":", 1)[1], served.field("grpc").rsplit(":", 1)[1]]
    held = http.client.HTTPConnection(served.address, timeout=PATIENCE_S)
    ask(held)  # a connection that is open when the process is killed
    assert served.end(signal.SIGKILL) == -signal.SIGKILL
    again = Serving(running_stack, run_id, "--name", "tiny", "--http-port", ports[0], "--grpc-port", ports[1])
    try:
        connection = http.client.HTTPConnection(again.address, timeout=PATIENCE_S)
        ask(connection)
        taken = running_stack.modyn("serve", run_id, "--http-port", ports[0], "--grpc-port", "0")
        assert taken.returncode == 1
        assert f"serving cannot listen on 127.0.0.1:{ports[0]}: Address already in use" in taken.stderr
        assert again.end(signal.SIGTERM) == 0, "".join(again.lines)
    finally:
        if again.process.poll() is None:
            again.end(signal.SIGKILL)
    held.close()
    connection.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "no-such-run"], "error: there is no run 'no-such-run'"),
        (["serve", "RUN", "--input", "4x4"], "error: '4x4' is no input of a model"),
        (["serve", "RUN", "--input", "3", "--http-port", "0", "--grpc-port", "0"], "does not take the inputs input FP32 [-1, 3]"),
        (["serve", "RUN", "--follow", "latest"], "error: serving.follow"),
        (["serve", "RUN", "--canary", "2"], "error: serving.canary_share"),
        (["serve", "RUN", "--host", "0.0.0.0"], "without tls_cert and tls_key and token"),
        (["models", "promote", "RUN", "123456"], "error: model 123456 is none of run '"),
        (["models", "promote", "no-such-run"], "error: run 'no-such-run' has no models"),
        (["models", "rollback", "no-such-run"], "error: run 'no-such-run' has no models"),
    ],
)
def test_bad_input(running_stack: RunningStack, run_id: str, arguments: list[str], message: str) -> None:
    started = time.monotonic()
    done = running_stack.modyn(*(run_id if argument == "RUN" else argument for argument in arguments))
    assert done.returncode == 1, done.stderr
    assert message in done.stderr, time.monotonic() - started


def test_labels_come_back_and_are_trained_on(running_stack: RunningStack) -> None:
    """Predictions are asked for, labels come back, once or twice, and become samples that a run in production mode trains on."""
    assert running_stack.modyn("data", "register", "seen", "--records").returncode == 0
    path = running_stack.pipeline_file("serve", serving={"name": "tiny", "observations": "seen"})
    run = running_stack.run(path, max_triggers=1)
    made = Serving(running_stack, run.run_id, "--http-port", "0", "--grpc-port", "0")
    try:
        connection = http.client.HTTPConnection(made.address, timeout=PATIENCE_S)
        labels = []
        for number in range(60):
            row = [0.1, 0.2, 0.3, float(number)]
            body = {"id": f"r{number}", "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 4], "data": row}]}
            connection.request("POST", "/v2/models/tiny/infer", json.dumps(body))
            assert connection.getresponse().read()
            labels.append({"request_id": f"r{number}", "label": number % 3})

        def post(observations: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
            connection.request("POST", "/observations", json.dumps({"observations": observations}))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

        assert post(labels)[1] == {"accepted": 60, "repeated": 0}
        assert post(labels[:5])[1] == {"accepted": 0, "repeated": 5}
        status, refused = post([{"request_id": "r1", "label": "cat"}])
        assert (status, "label is 'cat'; write a number" in str(refused)) == (400, True)
        with running_stack.client() as client:
            eventually(lambda: client.dataset("seen").num_samples == 60)
            data = {"dataset_id": "seen", "record_layout": {"dtype": "float32", "shape": [4]}}
            path = running_stack.pipeline_file("seen", data=data)
            done = client.wait(client.run(path, max_triggers=1, mode="production").run_id)
            assert (done.state, done.num_triggers, done.error) == ("finished", 1, "")
        connection.close()
    finally:
        made.end(signal.SIGTERM)
    assert made.process.returncode == 0
