"""`modyn serve` and `modyn models promote`, as a user types them, on a real stack: hot swap under load, kill -9, a clean end."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from modyn.config.system import load_system_config
from modyn.local.control import stack_status
from modyn.serving.observations.join import Appended, ObservationRecord, RequestFeatures
from modyn.serving.observations.storage_log import StorageObservationLog
from modyn.supervisor.client import CheckRecord, RunMode, RunState
from modyn.testing.stack import RunningStack, clean_environment, stack_on, tiny_evaluation, write_tiny_files
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.serving_process import Serving, call, connect, run_to_end

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("preloaded_fakes")]

FREE_PORTS = ("--http-port", "0", "--grpc-port", "0")
INFER = "/v2/models/tiny/infer"
BODY = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]}


@pytest.fixture(scope="module")
def run_id(running_stack: RunningStack) -> str:
    """A finished run with two versions."""
    running_stack.tiny_dataset("serve")
    run = running_stack.run(running_stack.pipeline_file("serve"))
    assert run.state == "finished"
    return str(run.run_id)


@pytest.fixture
def served(running_stack: RunningStack, run_id: str) -> Iterator[Serving]:
    with Serving(running_stack, run_id, "--name", "tiny", *FREE_PORTS) as made:
        yield made


def ask(connection: http.client.HTTPConnection) -> dict[str, Any]:
    status, found = call(connection, "POST", INFER, BODY)
    assert status == 200, found
    return dict(found)


def ask_until(stop: threading.Event, address: str) -> None:
    with closing(connect(address)) as connection:
        while not stop.is_set():
            ask(connection)


def test_promotions_and_rollbacks_under_load(running_stack: RunningStack, run_id: str, served: Serving) -> None:
    """Every answer comes from one version, and each change is observed."""
    models = [m["version"]["model_id"] for m in json.loads(running_stack.modyn("models", "ls", run_id, "--json").stdout)]
    first, second = map(str, models)
    stop, failures, seen = threading.Event(), list[str](), dict[str, list[list[float]]]()

    def load() -> None:
        connection = connect(served.address)
        while not stop.is_set():
            try:
                found = ask(connection)
            except (OSError, AssertionError, http.client.HTTPException) as error:
                failures.append(repr(error))
                return
            seen.setdefault(found["model_version"], []).append(found["outputs"][0]["data"])
        connection.close()

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    connection = connect(served.address)
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
    assert seen.keys() == {first, second}
    for answers in seen.values():  # The last bit depends on how many requests were answered together.
        assert all(answer == pytest.approx(answers[0], rel=1e-5) for answer in answers), "an answer was mixed"
    assert seen[first][0] != pytest.approx(seen[second][0], rel=1e-3)
    trail = json.loads(running_stack.modyn("models", "promotions", run_id, "--json").stdout)
    assert [(entry["action"], entry["model_id"], entry["reason"]) for entry in trail] == [
        ("promote", models[0], "the newest is worse"), ("promote", models[1], ""), ("rollback", models[0], "errors"),
    ]  # fmt: skip
    assert "the newest is worse" in running_stack.modyn("models", "promotions", run_id).stdout
    metrics = connect(served.field("metrics").split("/")[2])
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
    held = connect(served.address)
    ask(held)  # a connection that is open when the process is killed
    assert served.end(signal.SIGKILL) == -signal.SIGKILL
    typed = ("--name", "tiny", "--http-port", ports[0], "--grpc-port", ports[1])
    with Serving(running_stack, run_id, *typed, own_interpreter=True) as again:
        assert again.call("POST", INFER, BODY)[0] == 200
        taken = run_to_end(running_stack, "serve", run_id, "--http-port", ports[0], "--grpc-port", "0")
        assert taken.returncode == 1
        assert f"serving cannot listen on 127.0.0.1:{ports[0]}: Address already in use" in taken.stderr
        assert again.end(signal.SIGTERM) == 0, "".join(again.lines)
    held.close()


def test_an_evaluation_decides_about_a_promotion(running_stack: RunningStack) -> None:
    running_stack.tiny_dataset("gated")
    run = running_stack.run(running_stack.pipeline_file("gated", evaluation=tiny_evaluation("gated", days=2)))
    assert run.state == "finished"
    first, second = (
        m["version"]["model_id"] for m in json.loads(running_stack.modyn("models", "ls", run.run_id, "--json").stdout)
    )

    def promote(*arguments: object) -> tuple[int, str]:
        done = running_stack.modyn("models", "promote", run.run_id, *map(str, arguments))
        return done.returncode, done.stderr

    code, message = promote(first, "--if", "Accuracy on gated > 1")
    assert code == 1
    assert re.search(rf"error: model {first} is not promoted: Accuracy on gated > 1: [01]\.?\d*, not passed", message), message
    assert promote(first, "--if", "Accuracy on gated >= 0.01") == (0, f"model {first} is promoted\n")
    code, message = promote(second, "--if", "Accuracy on gated not worse than promoted by 1", "--if", "Accuracy on gated > 0")
    assert (code, message) == (0, f"model {second} is promoted\n")
    code, message = promote(first, "--if", "Acuracy on gated > 0")
    assert (code, "did you mean 'Accuracy'" in message) == (1, True), message
    code, message = promote(first, "--if", "Accuracy > 0")
    assert (code, "is not a condition of a promotion; write, for example, 'Accuracy on test >= 0.9'" in message) == (1, True)
    code, message = promote(first, "--if", "Accuracy on gate > 0")
    assert (code, "there is no dataset 'gate'" in message) == (1, True), message
    trail = json.loads(running_stack.modyn("models", "promotions", run.run_id, "--json").stdout)
    assert [(entry["action"], entry["model_id"], len(entry["verdicts"])) for entry in trail] == [
        ("refuse", first, 1), ("promote", first, 1), ("promote", second, 2),
    ]  # fmt: skip
    assert trail[2]["verdicts"][0]["promoted_value"] == trail[0]["verdicts"][0]["value"]
    assert "not passed" in running_stack.modyn("models", "promotions", run.run_id).stdout


def test_a_version_that_meets_the_conditions_serves_and_no_other_does(running_stack: RunningStack) -> None:
    running_stack.tiny_dataset("auto")
    never = {"promote_if": ["Accuracy on auto > 1"]}
    run = running_stack.run(running_stack.pipeline_file("auto", serving=never, evaluation=tiny_evaluation("auto", days=2)))
    newest = json.loads(running_stack.modyn("models", "ls", run.run_id, "--json").stdout)[-1]["version"]["model_id"]

    def trail() -> list[tuple[str, int]]:
        found = json.loads(running_stack.modyn("models", "promotions", run.run_id, "--json").stdout)
        return [(entry["action"], entry["model_id"]) for entry in found]

    with Serving(running_stack, run.run_id, *FREE_PORTS, "--name", "tiny") as refusing:
        assert any("waiting for a promoted version" in line for line in refusing.lines)
        eventually(lambda: trail() == [("refuse", newest)])
        assert refusing.call("POST", INFER, BODY)[0] in (404, 503)
    run = running_stack.run(running_stack.pipeline_file("auto", evaluation=tiny_evaluation("auto", days=2)))
    newest = json.loads(running_stack.modyn("models", "ls", run.run_id, "--json").stdout)[-1]["version"]["model_id"]
    options = (*FREE_PORTS, "--name", "tiny", "--promote-if", "Accuracy on auto >= 0")
    with Serving(running_stack, run.run_id, *options) as promoting:

        def answers() -> bool:
            status, found = promoting.call("POST", INFER, BODY)
            return status == 200 and found["model_version"] == str(newest)

        eventually(answers)
        assert trail() == [("promote", newest)]


def test_a_run_is_served_from_its_first_version_on(running_stack: RunningStack, tmp_path: Path) -> None:
    """One command and the pipeline's section `serving` are enough."""
    config_file = tmp_path / "modyn.yaml"
    sections = yaml.safe_load(running_stack.config_file.read_text())
    config_file.write_text(yaml.safe_dump({**sections, "serving": {"http_port": 0, "grpc_port": 0}}))
    stack = replace(running_stack, config_file=config_file, config=load_system_config(config_file))
    with stack.client() as client:
        stack.tiny_dataset("at-once")
        before = len(client.supervisor.runs())
        file = stack.pipeline_file("at-once", pipeline={"name": "at-once"}, serving={"name": "tiny", "follow": "newest"})
        with Serving(stack, str(file), "--serve", name="run") as served:
            assert "`modyn watch at-once-0001` follows the run" in "".join(served.lines)
            run = client.show("at-once-0001")
            assert client.wait(run.run_id).state is RunState.FINISHED
            newest = client.supervisor.triggers(run.run_id)[-1].model_id
            with closing(connect(served.address)) as connection:
                # The server may load its first version only after the run's end.
                eventually(lambda: call(connection, "POST", INFER, BODY)[1].get("model_version") == str(newest))
            assert served.end(signal.SIGINT) == 0
        for option in (["--detach"], ["--report", "page.html"]):
            refused = stack.modyn("run", file, "--serve", *option)
            assert (refused.returncode, f"leave {option[0]} out" in refused.stderr) == (1, True)
        assert len(client.supervisor.runs()) == before + 1


@pytest.mark.parametrize("field", ["http_port", "grpc_port", "metrics_port"])
def test_a_taken_port_is_found_before_a_run_is_submitted(tmp_path: Path, field: str) -> None:
    """Nothing is started, and the message equals the message of `modyn serve`."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        free = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
        with stack_on(tmp_path, start=False, serving={**free, field: port}) as stack:
            done = stack.modyn("run", stack.pipeline_file("none"), "--serve")
            assert done.returncode == 1
            assert f"serving cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
            assert f"stop what uses it or set serving.{field}" in done.stderr
            assert stack_status(stack.config).pid is None, "no services were started"


def test_what_is_served_is_watched_and_reported(running_stack: RunningStack) -> None:
    """While a server runs, `modyn watch` and `modyn show` name its version; the report and `Client.served` have each request, also later."""
    running_stack.tiny_dataset("watched")
    path = running_stack.pipeline_file("watched", serving={"name": "tiny"})
    with running_stack.client() as client:
        run_id = client.run(path, RunMode.PRODUCTION).run_id
        eventually(lambda: len(client.models(run_id)) == 2)
        first, second = client.models(run_id)["model_id"]
        made = Serving(running_stack, run_id, *FREE_PORTS, "--shadow")
        command = running_stack.command("watch", run_id)
        watching = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=clean_environment(None)
        )
        try:
            connection = connect(made.address)
            for _ in range(40):
                ask(connection)
            connection.close()  # the server closes one that is idle; the next request opens another one
            line = next(line for line in watching.stderr or () if "serving: " in line)
            assert re.search(rf"serving: version {second} since 20\S+ \S+; (\S+ requests/s, p99 \S+ ms|no requests)\n", line), (
                line
            )
            client.promote(run_id, first)
            eventually(lambda: ask(connection)["model_version"] == str(first))
            assert call(connection, "POST", f"/v2/models/tiny/versions/{second}/infer", BODY)[0] == 200
            eventually(lambda: f"serving    version {first} since 20" in running_stack.modyn("show", run_id).stdout)
            status = json.loads(running_stack.modyn("show", run_id, "--json").stdout)["serving"]
            assert [(version["model_id"], version["role"]) for version in status["versions"]] == [
                (first, "serving"),
                (second, "shadow"),
            ]
            connection.close()
            client.finish(run_id)
            assert watching.communicate(timeout=PATIENCE_S)[1] is not None
        finally:
            made.end(signal.SIGTERM)
            watching.kill()
            watching.communicate()
        assert (made.returncode, watching.returncode) == (0, 0), "".join(made.lines)
        requests = client.served(run_id).groupby(["model_id", "role"])["num_requests"].sum()
        assert requests[second, "pinned"] == 1
        assert requests[second, "serving"] >= 40
        assert (requests[first, "serving"] > 0, requests[second, "shadow"]) == (True, 0)
        report = client.report(run_id, running_stack.folder / "served.html").read_text()
        eventually(lambda: "serving" not in running_stack.modyn("show", run_id).stdout)
    assert "<h2>Served predictions</h2>" in report
    table = report.partition("<h2>Versions served</h2>")[2].partition("</table>")[0]
    assert [f"<td>{model}</td><td>{trigger}</td><td>{role}</td>" in table for model, trigger, role in (
        (second, 1, "serving"), (first, 0, "serving"), (second, 1, "shadow"), (second, 1, "pinned"),
    )] == [True] * 4  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "no-such-run"], "error: there is no run 'no-such-run'"),
        (["serve", "RUN", "--follow", "latest"], "error: serving.follow"),
        (["serve", "RUN", "--canary", "2"], "error: serving.canary_share"),
        (["serve", "RUN", "--promote-if", "Accuracy > 1"], "error: serving.promote_if"),
        (["models", "promote", "RUN", "123456"], "error: model 123456 is not of run '"),
        (["models", "promote", "no-such-run"], "error: run 'no-such-run' has no models"),
        (["models", "rollback", "no-such-run"], "error: run 'no-such-run' has no models"),
    ],
)
def test_bad_input(running_stack: RunningStack, run_id: str, arguments: list[str], message: str) -> None:
    done = running_stack.modyn(*(run_id if argument == "RUN" else argument for argument in arguments))
    assert done.returncode == 1, done.stderr
    assert message in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--input", "4x4"], "error: '4x4' is not an input of a model", marks=pytest.mark.slow),
        (["--input", "3", "--http-port", "0", "--grpc-port", "0"], "does not take the inputs input FP32 [-1, 3]"),
        pytest.param(["--promote-if", "Acuracy on serve > 1"], "did you mean 'Accuracy'", marks=pytest.mark.slow),
        pytest.param(["--host", "0.0.0.0"], "without tls_cert and tls_key and token", marks=pytest.mark.slow),
    ],
)
def test_what_a_server_cannot_do_is_said_when_it_starts(
    running_stack: RunningStack, run_id: str, arguments: list[str], message: str
) -> None:
    done = run_to_end(running_stack, "serve", run_id, *arguments)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr


def observed(key: str, label: int, number: float) -> ObservationRecord:
    """Return an observation as another run would append it."""
    return ObservationRecord(key, RequestFeatures({"input": np.array([[0.1, 0.2, 0.3, number]], np.float32)}), label, time.time())


def test_labels_come_back_and_are_trained_on(running_stack: RunningStack) -> None:
    """Clients request predictions and return labels once or twice. The labels become samples that a run in production mode trains on."""
    assert running_stack.modyn("data", "register", "observed", "--records").returncode == 0
    running_stack.tiny_dataset("before-observed")
    path = running_stack.pipeline_file("before-observed", serving={"name": "tiny", "observations": "observed"})
    run = running_stack.run(path, max_triggers=1)
    made = Serving(running_stack, run.run_id, *FREE_PORTS)
    try:
        connection = connect(made.address)
        labels = []
        for number in range(60):
            row = [0.1, 0.2, 0.3, float(number)]
            body = {"id": f"r{number}", "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 4], "data": row}]}
            assert call(connection, "POST", INFER, body)[0] == 200
            labels.append({"request_id": f"r{number}", "label": number % 3})

        def post(observations: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
            return call(connection, "POST", "/observations", {"observations": observations})

        assert post(labels[:30])[1] == {"stored": 30, "waiting": 0, "repeated": 0}
        connection.close()
        assert made.end(signal.SIGKILL) == -signal.SIGKILL  # the other predictions wait for their labels
        made = Serving(running_stack, run.run_id, *FREE_PORTS)
        connection = connect(made.address)
        assert post(labels)[1] == {"stored": 30, "waiting": 0, "repeated": 30}
        status, refused = post([{**labels[0], "label": 2}])
        assert (status, "came before with the label 0, now with 2" in str(refused)) == (409, True)
        taken = run_to_end(running_stack, "serve", run.run_id, *FREE_PORTS)
        assert (taken.returncode, "another server keeps what waits for its label" in taken.stderr) == (1, True)
        connection.close()  # or the server has, which ends connections that are idle for so long
        wrong = {"name": "inputs", "datatype": "FP32", "shape": [1, 4], "data": [0.0] * 4}
        status, refused = post([{"key": "k", "inputs": [wrong], "label": 1}])
        assert (status, "the model has no input 'inputs', did you mean 'input'" in str(refused)) == (400, True)
        assert post(labels[:5])[1] == {"stored": 0, "waiting": 0, "repeated": 5}
        status, refused = post([{"request_id": "r1", "label": "cat"}])
        assert (status, "label is 'cat'; write a number" in str(refused)) == (400, True)
        status, refused = post([{"request_id": "r1", "label": 99}])
        assert (status, "the label is 99, and the model has 3 classes (0 to 2)" in str(refused)) == (400, True)
        with running_stack.client() as client:
            eventually(lambda: client.dataset("observed").num_samples == 60)
            another_run = StorageObservationLog(client.storage, "observed")
            assert another_run.append([observed("r1", 1, 1.0), observed("r2", 0, 2.0), observed("r3", 0, 9.0)]) == Appended(
                {"r1": 1, "r2": 2}, reused=frozenset({"r3"})
            )
            data = {"dataset_id": "observed", "record_layout": {"dtype": "float32", "shape": [4]}}
            path = running_stack.pipeline_file("observed", data=data)
            done = client.wait(client.run(path, max_triggers=1, mode="production").run_id)
            assert (done.state, done.num_triggers, done.error) == ("finished", 1, "")
        connection.close()
    finally:
        made.end(signal.SIGTERM)
    assert made.returncode == 0


def test_steps_pause_while_predictions_are_slow_and_catch_up(running_stack: RunningStack) -> None:
    """The server reports its load to the supervisor, and a run in production mode follows the load."""
    folder = running_stack.tiny_dataset("scheduled", 50, 1)
    schedule = {"id": "DynamicScheduleTrigger", "evaluation_interval_data_points": 10, "latency_limit_ms": 0.0001}
    path = running_stack.pipeline_file(
        "scheduled",
        trigger={"id": "InitialTrigger", "num_samples": 50},
        online={"trigger": schedule, "step_samples": 5, "history_samples": 5},
        serving={"name": "tiny"},
    )
    with running_stack.client() as client:
        run_id = client.run(path, RunMode.PRODUCTION).run_id
        eventually(lambda: client.show(run_id).num_triggers == 1)
        eventually(lambda: any(t.model_id for t in client.supervisor.triggers(run_id)))
        num_samples = 50

        def ten_more() -> CheckRecord:
            """Return the check after ten more samples."""
            nonlocal num_samples
            write_tiny_files(folder, 10, 1, first_day=num_samples)
            client.ingest("scheduled")
            num_samples += 10
            eventually(lambda: [c.position for c in client.supervisor.checks(run_id)][-1:] == [num_samples])
            return client.supervisor.checks(run_id)[-1]

        assert ten_more().fires, "nothing is served yet"
        stop, made = threading.Event(), Serving(running_stack, run_id, *FREE_PORTS)
        asking = threading.Thread(target=ask_until, args=(stop, made.address))
        asking.start()
        try:
            while not (check := ten_more()).numbers.get("paused"):  # until the first report, and the wait is over
                assert num_samples < 900, "the server was to report its load"
                time.sleep(0.2)
            assert check.numbers["prediction_rate"] > 0
            assert check.numbers["p99_latency_s"] >= check.numbers["prediction_latency_s"] > 0
            assert not check.fires
            eventually(lambda: "steps of proactive training pause" in client.show(run_id).message)
            assert not ten_more().fires
        finally:
            stop.set()
            asking.join()
            assert made.end(signal.SIGTERM) == 0, "".join(made.lines)
        waiting_since = max(t.position for t in client.supervisor.triggers(run_id))
        while not ten_more().fires:  # until its reports are too old
            assert num_samples < 5000, "the steps were to continue"
            time.sleep(0.2)
        at_end = lambda: [t for t in client.supervisor.triggers(run_id) if t.position == num_samples and t.model_id is not None]  # noqa: E731
        (newest,) = eventually(at_end)
        assert newest.online
        tests = newest.training_result.prequential
        assert tests is not None
        assert sum(tests.num) == num_samples - waiting_since, "what waited is learned from"
        eventually(lambda: "steps of proactive training pause" not in client.show(run_id).message)
        client.finish(run_id)
        run = client.wait(run_id)
        assert run.state is RunState.FINISHED, run.error
