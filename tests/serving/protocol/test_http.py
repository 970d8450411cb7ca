"""The protocol over HTTP, by the standard library's client: exact statuses and messages."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from prometheus_client import REGISTRY

from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import ConfigError, SecurityError, UnavailableError
from modyn.rpc.access import Role, derived_token
from modyn.rpc.http_guard import HttpGuard
from modyn.serving.batch_queue import BatchLimits
from modyn.serving.messages.json_parts import PART_BYTES
from modyn.serving.messages.json_tensors import JsonRequest, parse_request
from modyn.serving.model_server import ModelServerLimits
from modyn.serving.protocol.http_app import HttpApp
from modyn.serving.protocol.http_limits import HttpLimits
from modyn.serving.protocol.http_server import HttpServer
from modyn.serving.versions.predictor import VersionName
from modyn.testing.fake_predictor import PredictorGate
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.serving.conftest import Served

TOKEN = "a secret of the tests"


def call(
    served: Served,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, Any, dict[str, str]]:
    host, port = served.http.address.rsplit(":", 1)
    connection = (
        http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        if context is None
        else http.client.HTTPSConnection(host, int(port), timeout=PATIENCE_S, context=context)
    )
    try:
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, content, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def infer(
    served: Served, body: Any, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None
) -> tuple[int, Any, dict[str, str]]:
    return call(served, "POST", "/v2/models/m/infer", body, headers, context)


def observe(served: Served, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any, dict[str, str]]:
    return call(served, "POST", "/observations", body, headers)


def rows(*values: float, **changes: Any) -> dict[str, Any]:
    tensor = {"name": "input", "datatype": "FP32", "shape": [len(values), 3], "data": [[value, 0, 0] for value in values]}
    return {"inputs": [{**tensor, **changes}]}


def test_health_and_metadata(served: Served) -> None:
    assert call(served, "GET", "/v2/health/live")[:2] == (200, {"live": True})
    assert call(served, "GET", "/v2/health/ready")[:2] == (200, {"ready": True})
    assert call(served, "GET", "/v2/models/m/ready")[:2] == (200, {"name": "m", "ready": True})
    assert call(served, "GET", "/v2/models/m/versions/1/ready")[1] == {"name": "m", "ready": True}
    assert call(served, "GET", "/v2/models/m/versions/2/ready")[:2] == (503, {"error": "version 2 is not loaded"})
    server = call(served, "GET", "/v2")[1]
    assert (server["name"], server["extensions"]) == ("modyn", ["binary_tensor_data"])
    expected = {
        "name": "m", "versions": ["1"], "platform": "pytorch",
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "sum", "datatype": "FP32", "shape": [-1]}, {"name": "version", "datatype": "INT64", "shape": [-1, 4]}],
    }  # fmt: skip
    assert call(served, "GET", "/v2/models/m")[:2] == (200, expected)
    assert call(served, "GET", "/v2/models/m/versions/1")[:2] == (200, expected)


@pytest.mark.parametrize("binary", [False, True])
def test_a_small_prediction_is_answered_while_a_large_one_is_parsed(monkeypatch: pytest.MonkeyPatch, binary: bool) -> None:
    served = Served(limits=ModelServerLimits(BatchLimits(max_batch_size=10_000)))
    reached, resume = threading.Event(), threading.Event()

    def parse(model: str, version: str | None, body: bytes, length: int | None = None) -> JsonRequest:
        if len(body) > PART_BYTES:
            reached.set()
            assert resume.wait(PATIENCE_S), "no small prediction was answered meanwhile"
        return parse_request(model, version, body, length)

    monkeypatch.setattr("modyn.serving.protocol.http_app.parse_request", parse)
    expected = np.arange(6_000)
    content, headers = json.dumps(rows(*expected.tolist())).encode(), {}
    if binary:
        values = np.zeros((len(expected), 3), np.float32)
        values[:, 0] = expected
        fields = rows(shape=list(values.shape), data=None, parameters={"binary_data_size": values.nbytes})
        head = json.dumps(fields).encode()
        content, headers = head + values.tobytes(), {"Inference-Header-Content-Length": str(len(head))}
    with closing(served), ThreadPoolExecutor(1) as client:
        answered = client.submit(call, served, "POST", "/v2/models/m/infer", content, headers)
        assert reached.wait(PATIENCE_S)
        assert infer(served, rows(4))[1]["outputs"][0]["data"] == [4]
        assert not answered.done()
        resume.set()
        status, answer, _ = answered.result(PATIENCE_S)
        assert (status, answer["outputs"][0]["data"]) == (200, expected.tolist())
        assert served.http._app.bodies.unfinished_bytes == 0


def test_what_is_wrong_in_a_large_request_is_said_and_counted(served: Served) -> None:
    def count() -> float:
        return REGISTRY.get_sample_value("modyn_serving_errors_total", {"model": "m", "reason": "INVALID_ARGUMENT"}) or 0.0

    before = count()
    for changes, message in (
        ({"name": "x"}, "no input 'x'"),
        ({"shape": [1, 3]}, "data has 18000 values; its shape [1, 3] has 3"),
    ):
        status, answer, _ = infer(served, rows(*range(6_000), **changes))
        assert (status, message in answer["error"]) == (400, True), answer
    status, answer, _ = infer(served, json.dumps(rows(*range(6_000))).encode()[:-1])
    assert (status, "the request is not JSON" in answer["error"]) == (400, True), answer
    assert count() - before == 3


def test_predictions_of_the_serving_and_of_a_pinned_version(served: Served) -> None:
    served.server.load(VersionName("m", "2"))
    status, answer, headers = infer(served, {**rows(1.5, 2.0), "id": "seven"})
    assert (status, headers["content-type"]) == (200, "application/json")
    assert answer == {
        "model_name": "m", "model_version": "1", "id": "seven",
        "outputs": [
            {"name": "sum", "datatype": "FP32", "shape": [2], "data": [1.5, 2.0]},
            {"name": "version", "datatype": "INT64", "shape": [2, 4], "data": [1] * 8},
        ],
    }  # fmt: skip
    pinned = call(served, "POST", "/v2/models/m/versions/2/infer", {**rows(1.0), "outputs": [{"name": "version"}]})[1]
    assert (pinned["model_version"], [output["data"] for output in pinned["outputs"]]) == ("2", [[2] * 4])
    assert pinned["id"], "one is made, for observations"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/v2/models/m/infer", b"{", 400, "the request is not JSON (NaN is not JSON either): unexpected end of data"),
        ("POST", "/v2/models/m/infer", rows(1.0, shape=[1, 2]), 400, "input 'input': data has nested as [1, 3]; its shape [1, 2] has 2"),
        ("POST", "/v2/models/m/infer", rows(1.0, shape=[3, 1], data=[1, 2, 3]), 400,
         "input 'input' was sent with shape [3, 1]; the model takes [-1, 3], where -1 is any size"),
        ("POST", "/v2/models/m/infer", rows(1.0, datatype="FP64"), 400, "input 'input' was sent as FP64; the model takes FP32"),
        ("POST", "/v2/models/m/infer", rows(1.0, name="inputs"), 400,
         "the model has no input 'inputs', did you mean 'input'?; it takes 'input'"),
        ("POST", "/v2/models/m/infer", {"inputs": []}, 400, "input 'input' is missing; the model takes 'input'"),
        ("POST", "/v2/models/m/infer", rows(), 400, "input 'input' was sent with shape [0]; the model takes [-1, 3], where -1 is any size"),
        ("POST", "/v2/models/m/infer", rows(*range(9)), 400,
         "the request has 9 rows; version 1 of model 'm' takes at most 8 (serving.max_batch_size): send several requests"),
        ("POST", "/v2/models/m/infer", rows(1.0, shape=[0, 2**62], data=[]), 400,
         f"input 'input': no tensor has the shape [0, {2**62}]; send at most 64 dimensions, and sizes that fit into memory"),
        ("POST", "/v2/models/n/infer", rows(1.0), 404, "there is no model 'n'; served here: m"),
        ("POST", "/v2/models/m/versions/9/infer", rows(1.0), 404, "model 'm' has no version 9 that is loaded; loaded are 1; "
     "pin it with `modyn serve --pin 9`, or promote it"),
        ("GET", "/v2/models/n", None, 404, "there is no model 'n'; served here: m"),
        ("GET", "/v2/models/n/ready", None, 404, "there is no model 'n'; served here: m"),
        ("GET", "/v2/models/m/infer", None, 405, "GET /v2/models/m/infer is not possible; use POST"),
        ("POST", "/v2/models/m", rows(1.0), 405, "POST /v2/models/m is not possible; use GET"),
        ("GET", "/v1/models/m", None, 404, "there is no /v1/models/m; see /v2/models/NAME, /v2/models/NAME/infer, /v2/health/ready"),
        ("POST", "/v2/models/m/infer", b" " * 100_001, 413,
         "the request has more than 100000 bytes (serving.max_message_bytes); send less at a time"),
        ("POST", "/observations", {}, 400, "'observations' is missing; write a list of objects with request_id and label"),
    ],
)  # fmt: skip
def test_bad_requests(served: Served, method: str, path: str, body: Any, status: int, message: str) -> None:
    if path.endswith("infer") and isinstance(body, dict) and body["inputs"] and body["inputs"][0]["shape"] == [0, 3]:
        body["inputs"][0]["shape"] = [0]
    found_status, found, _ = call(served, method, path, body)
    assert (found_status, found["error"].split(": line")[0]) == (status, message)
    assert infer(served, rows(1.0))[0] == 200, "the server continues"


def test_parameters_that_would_change_the_answer_elsewhere_are_refused(served: Served) -> None:
    for name in ("sequence_id", "sequence_start", "sequence_end", "class_count"):
        status, found, _ = infer(served, {**rows(1.0), "parameters": {name: 1}})
        assert (status, found["error"].split(",")[0]) == (400, f"the request has the parameter {name}")
    for name in ("classification", "shared_memory_region"):
        outputs = [{"name": "output", "parameters": {name: 2}}]
        status, found, _ = infer(served, {**rows(1.0), "outputs": outputs})
        assert (status, found["error"].split(",")[0]) == (400, f"output 'output' has the parameter {name}")
    asks_nothing = {**rows(1.0), "parameters": {"sequence_id": 0, "sequence_start": False, "priority": 1}}
    assert infer(served, asks_nothing)[0] == 200


def test_nan_by_bytes_and_encodings_are_refused(served: Served) -> None:
    head = json.dumps(
        {"inputs": [{**rows()["inputs"][0], "shape": [1, 3], "data": None, "parameters": {"binary_data_size": 12}}]}
    ).encode()
    body = head + b"\0\0\xc0\x7f" * 3
    length = {"Inference-Header-Content-Length": str(len(head))}
    status, found, _ = infer(served, body, length)
    assert (status, found["error"].split(";")[0]) == (400, "input 'input' holds NaN at [0, 0], 3 of 3 values")
    status, found, _ = infer(served, body, {"Inference-Header-Content-Length": "x"})
    assert (status, found["error"]) == (400, "Inference-Header-Content-Length is 'x'; write a number of bytes")
    status, found, _ = infer(served, body, {"Inference-Header-Content-Length": "1" * 5000})
    assert (status, found["error"][:40]) == (400, "Inference-Header-Content-Length is '1111")
    status, found, _ = infer(served, body, {"Content-Encoding": "gzip"})
    assert (status, found["error"]) == (415, "the body is encoded as gzip; send it as it is")


def test_each_request_that_is_refused_is_counted(served: Served) -> None:
    def counted(model: str = "m", reason: str = "INVALID_ARGUMENT") -> float:
        return REGISTRY.get_sample_value("modyn_serving_errors_total", {"model": model, "reason": reason}) or 0.0

    before, of_others = counted(), counted("unknown", "NOT_FOUND")
    bodies = b"{", {"inputs": 3}, rows(1.0, shape=[2, 3]), rows(1.0, name="inputs"), b" " * 100_001
    for body in bodies:
        assert infer(served, body)[0] in (400, 413)
    call(served, "POST", "/v2/models/made-up/infer", b"{")
    assert (counted() - before, counted("unknown", "NOT_FOUND") - of_others) == (len(bodies), 1)


def test_overload_timeout_and_a_model_that_fails(served: Served) -> None:
    gate = PredictorGate()

    def fail(_: object) -> None:
        raise ValueError("broken")

    predictor = served.versions.made["1"]
    predictor.before = fail
    status, found, _ = infer(served, rows(1.0))
    assert (status, found["error"]) == (
        500,
        "version 1 of model 'm' failed: ValueError: broken; the log of the server has the details",
    )
    served.server.load(VersionName("m", "2"))  # not measured yet: predicted by a thread, so that the loop continues
    served.versions.made["2"].before = gate
    waiting = [threading.Thread(target=call, args=(served, "POST", "/v2/models/m/versions/2/infer", rows(1.0))) for _ in range(2)]
    waiting[0].start()
    assert gate.reached.wait(PATIENCE_S)
    waiting[1].start()
    loaded = served.server.table().routes("m").versions["2"]
    eventually(lambda: loaded.batcher.num_waiting == 1)
    status, found, headers = call(served, "POST", "/v2/models/m/versions/2/infer", rows(1.0))
    assert (status, headers["retry-after"]) == (503, "1")
    assert found["error"] == "1 requests wait already, as many as serving.max_queue allows; send it again later"
    gate.open.set()
    for thread in waiting:
        thread.join()
    gate.open.clear()
    threading.Timer(0.5, gate.open.set).start()
    if loaded.batcher.is_quick:
        served.server.load(VersionName("m", "3"))
        served.versions.made["3"].before = gate
    version = "3" if "3" in served.versions.made else "2"
    late = {**rows(1.0), "parameters": {"timeout": 1000}}
    status, found, _ = call(served, "POST", f"/v2/models/m/versions/{version}/infer", late)
    assert (status, found["error"].split(" within")[0]) == (504, f"version {version} of model 'm' did not answer")


def test_a_client_that_goes_ends_its_request(served: Served) -> None:
    gate = PredictorGate()
    served.server.load(VersionName("m", "2"))
    served.versions.made["2"].before = gate
    host, port = served.http.address.rsplit(":", 1)
    body = json.dumps(rows(1.0)).encode()
    head = f"POST /v2/models/m/versions/2/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((host, int(port))) as first, socket.create_connection((host, int(port))) as second:
        first.sendall(head + body)
        assert gate.reached.wait(PATIENCE_S)
        second.sendall(head + body)
        loaded = served.server.table().routes("m").versions["2"]
        eventually(lambda: loaded.batcher.num_waiting == 1)
        second.close()
        eventually(lambda: loaded.batcher.num_waiting == 0)
        gate.open.set()
        assert first.recv(100).startswith(b"HTTP/1.1 200")
    assert served.versions.made["2"].batches[4:] == [1], "besides the warm-up"


def test_a_request_that_runs_when_the_server_stops_is_answered(served: Served) -> None:
    gate, answers = PredictorGate(), list[Any]()
    served.server.load(VersionName("m", "2"))
    served.versions.made["2"].before = gate
    path = "/v2/models/m/versions/2/infer"
    client = threading.Thread(target=lambda: answers.append(call(served, "POST", path, rows(1.0))))
    client.start()
    assert gate.reached.wait(PATIENCE_S)
    stopping = threading.Thread(target=served.http.stop)
    stopping.start()
    eventually(lambda: _refuses(served))
    gate.open.set()
    client.join()
    stopping.join()
    assert answers[0][0] == 200


def test_a_request_that_does_not_end_in_time_is_told_that_the_server_ends(served: Served) -> None:
    with served.connect() as client:
        client.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        eventually(lambda: len(served.http._server.config.app.open_requests) == 1)  # type: ignore[union-attr]
        served.http.stop()
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert (answer.status, json.loads(answer.read())) == (503, {"error": "the server ends; send the request again"})


def _refuses(served: Served) -> bool:
    try:
        call(served, "GET", "/v2/health/live")
    except OSError:
        return True
    return False


def test_a_lone_request_is_answered_at_once_and_those_that_come_together_are_one_batch() -> None:
    served = Served(limits=ModelServerLimits())
    app, sent = HttpApp(served.server, HttpGuard("127.0.0.1", False), None, None, HttpLimits()), list[Any]()
    infer(served, rows(1.0))  # measures the model
    eventually(lambda: served.server.table().serving("m").batcher.is_quick)
    scope = {"type": "http", "method": "POST", "path": "/v2/models/m/infer", "headers": [(b"host", b"localhost")]}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(rows(1.0)).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        app.open_requests = [1]
        with pytest.raises(StopIteration):  # has ended without a turn of the loop
            app(scope, receive, send).send(None)
        app.open_requests = [1, 2]
        await asyncio.gather(app(scope, receive, send), app(scope, receive, send))

    asyncio.run(ask())
    assert [message["status"] for message in sent[::2]] == [200] * 3
    assert served.versions.made["1"].batches[-2:] == [1, 2]
    served.close()


def test_the_application_knows_how_many_requests_are_open(served: Served) -> None:
    seen = list[int]()
    served.versions.made["1"].before = lambda _: seen.append(len(served.http._server.config.app.open_requests))  # type: ignore[union-attr]
    infer(served, rows(1.0))
    assert seen == [1]


def test_tokens_and_roles() -> None:
    with closing(Served(SecurityConfig(token=TOKEN))) as served:
        assert call(served, "GET", "/v2/health/live")[0] == 200
        status, found, headers = infer(served, rows(1.0))
        assert (status, found["error"], headers["www-authenticate"]) == (
            401,
            "send a token as Authorization: Bearer TOKEN",
            "Bearer",
        )
        reader = {"Authorization": f"Bearer {derived_token(TOKEN, Role.READER)}"}
        assert infer(served, rows(1.0), reader)[0] == 200
        status, found, _ = observe(served, {}, reader)
        assert (status, found["error"]) == (
            403, "/observations needs the role writer, and the token that came with the call is one of a reader",
        )  # fmt: skip
        writer = {"Authorization": f"Bearer {derived_token(TOKEN, Role.WRITER)}"}
        assert observe(served, {}, writer)[0] == 400


def test_a_page_of_a_stranger_neither_stores_labels_nor_reads_models(served: Served) -> None:
    labels = {"observations": [{"key": "made-up", "inputs": rows(5.0)["inputs"], "label": 4}]}
    for headers in (
        {"Content-Type": "text/plain"},  # `fetch` of mode no-cors, and forms, send this without asking first
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},  # whose name leads to 127.0.0.1
    ):
        assert observe(served, labels, headers)[0] in (403, 415), headers
        assert infer(served, rows(1.0), headers)[0] in (403, 415), headers
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        for path in ("/v2", "/v2/models/m", "/v2/health/ready"):
            assert call(served, "GET", path, None, headers)[0] == 403, headers
    asks_first = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    status, _, headers = call(served, "OPTIONS", "/observations", None, asks_first)
    assert (status, [name for name in headers if name.startswith("access-control")]) == (403, [])
    assert served.log.records == {}
    status, found, _ = observe(served, labels, {"Content-Type": "text/plain"})
    assert (status, found["error"]) == (415, "Content-Type is 'text/plain'; send application/json (curl: --json in place of -d)")
    assert observe(served, labels, {"Content-Type": "application/json; charset=utf-8"})[0] == 200


def test_what_a_server_was_told_to_be_called_and_tokens_are_enough() -> None:
    token = {"Authorization": f"Bearer {TOKEN}"}
    with closing(Served(SecurityConfig(token=TOKEN), allowed_hosts=("models.example.org",))) as served:
        assert infer(served, rows(1.0), {**token, "Host": "models.example.org"})[0] == 200
        assert infer(served, rows(1.0), {**token, "Host": "evil.example"})[0] == 403
        form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://localhost:3000"}
        assert infer(served, rows(1.0), {**token, **form})[0] == 200, "no stranger has the token"


def test_who_may_not_write_is_refused_before_the_body_is_read() -> None:
    served = Served(SecurityConfig(token=TOKEN))
    reader = f"Authorization: Bearer {derived_token(TOKEN, Role.READER)}\r\n"
    try:
        for path, headers, status in (
            ("/observations", "", 401),
            ("/observations", reader, 403),
            ("/v2/models/m/infer", "", 401),
            ("/v2/models/other/infer", reader, 404),
            ("/v2/models/m/infer", f"{reader}Content-Encoding: gzip\r\n", 415),
        ):
            with served.connect() as client:
                head = (
                    f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: 90000\r\nExpect: 100-continue\r\n\r\n"
                )
                client.sendall(head.encode())
                assert client.recv(12) == f"HTTP/1.1 {status}".encode()
    finally:
        served.close()


def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with closing(Served(SecurityConfig(tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem", token=TOKEN))) as served:
        assert served.http.url.startswith("https://127.0.0.1:")
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert infer(served, rows(2.0), headers, context)[0] == 200
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            call(served, "GET", "/v2/health/live")


def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    security = SecurityConfig(tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem", client_ca=tmp_path / "ca.pem")

    def renew(authority: trustme.CA) -> ssl.SSLContext:
        """Put files of an authority in the place of others; returns the context of a client of it."""
        certificate, context = authority.issue_cert("127.0.0.1"), ssl.create_default_context()
        authority.configure_trust(context)
        authority.issue_cert("client").configure_cert(context)
        certificate.private_key_pem.write_to_path(tmp_path / "new")
        (tmp_path / "new").replace(tmp_path / "key.pem")
        if (tmp_path / "cert.pem").exists():  # a key that is not that of the certificate
            assert call(served, "GET", "/v2/health/live", context=before)[0] == 200
        certificate.cert_chain_pems[0].write_to_path(tmp_path / "new")
        (tmp_path / "new").replace(tmp_path / "cert.pem")
        authority.cert_pem.write_to_path(tmp_path / "new")
        (tmp_path / "new").replace(tmp_path / "ca.pem")
        return context

    before = renew(trustme.CA())
    with closing(Served(security)) as served:
        assert call(served, "GET", "/v2/health/live", context=before)[0] == 200
        after = renew(trustme.CA())
        assert call(served, "GET", "/v2/health/live", context=after)[0] == 200
        with pytest.raises(ssl.SSLError):
            call(served, "GET", "/v2/health/live", context=before)


def test_addresses_that_are_refused(served: Served, tmp_path: Path) -> None:
    app = served.http._server.config.app
    with pytest.raises(
        UnavailableError, match=r"serving cannot listen on 127.0.0.1:\d+: Address already in use; .* serving.http_port"
    ):
        HttpServer(app, Endpoint(address=served.http.address))  # type: ignore[arg-type]
    with pytest.raises(SecurityError, match=r"serving will not listen on 0.0.0.0:0, .* without tls_cert and tls_key and token"):
        HttpServer(app, Endpoint(address="0.0.0.0:0"))  # type: ignore[arg-type]
    missing = SecurityConfig(tls_cert=tmp_path / "no.pem", tls_key=tmp_path / "no.key", token=TOKEN)
    with pytest.raises(ConfigError, match="cannot read"):
        HttpServer(app, Endpoint(address="127.0.0.1:0", security=missing))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "inputs"}, "the model has no input 'inputs', did you mean 'input'"),
        ({"shape": [1, 2], "data": [1, 2]}, "input 'input' was sent with shape [1, 2]; the model takes [-1, 3]"),
        ({"datatype": "FP64"}, "input 'input' was sent as FP64; the model takes FP32"),
        ({"data": [1, 2, None]}, "input 'input' holds NaN at [0, 2], 1 of 3 values"),
        ({"data": [1, 2, "a"]}, "input 'input': data holds something else than numbers"),
    ],
)
def test_inputs_that_do_not_fit_the_model_are_not_an_observation(served: Served, changes: dict[str, Any], message: str) -> None:
    good = {"key": "good", "inputs": rows(5.0)["inputs"], "label": 4}
    bad = {"key": "bad", "inputs": rows(5.0, **changes)["inputs"], "label": 4}
    status, found, _ = observe(served, {"observations": [good, bad]})
    assert (status, found["error"].startswith(f"observations[1]: {message}")) == (400, True), found
    named = [{**good, "model": "n"}]
    assert observe(served, {"observations": named})[0] == 404
    assert served.log.records == {}
    assert observe(served, {"observations": [{**good, "model": "m"}]})[0] == 200


def test_observations(served: Served) -> None:
    infer(served, {**rows(1.0), "id": "a"})
    post = {"observations": [{"request_id": "a", "label": 3}, {"request_id": "early", "label": 4}]}
    assert observe(served, post)[:2] == (200, {"stored": 1, "waiting": 1, "repeated": 0})
    assert observe(served, post)[:2] == (200, {"stored": 0, "waiting": 1, "repeated": 1})
    record = served.log.records["a"]
    assert (record.label, record.features.version, record.features.inputs["input"].tolist()) == (3, "1", [[1, 0, 0]])
    infer(served, {**rows(2.0), "id": "early"})
    own = {"observations": [{"key": "k", "inputs": rows(5.0)["inputs"], "label": 4}]}
    assert observe(served, own)[:2] == (200, {"stored": 1, "waiting": 0, "repeated": 0})
    assert sorted(served.log.records) == ["a", "early", "k"]
    other = {"observations": [{"request_id": "a", "label": 4}]}
    status, found, _ = observe(served, other)
    assert (status, found["error"]) == (409, "observation 'a' came before with the label 3, now with 4; the first one counts")
    served.log.is_away = True
    again = {"observations": [{"key": "l", "inputs": rows(6.0)["inputs"], "label": 1}]}
    status, found, headers = observe(served, again)
    assert (status, found["error"], headers["retry-after"]) == (
        503,
        "the log of observations cannot be reached; try again later",
        "1",
    )
    served.log.is_away = False
    assert observe(served, again)[1] == {"stored": 1, "waiting": 0, "repeated": 0}
    assert "l" in served.log.records


def test_labels_get_an_answer_in_time_and_count_once_when_they_are_sent_again() -> None:
    served = Served(timeout_s=0.3)
    post = {"observations": [{"key": "a", "inputs": rows(5.0)["inputs"], "label": 4}]}
    try:
        served.log.answers.clear()
        for _ in range(2):
            status, found, _ = observe(served, post)
            assert (status, found["error"]) == (
                504,
                "the dataset of observations did not answer within 0.3 s; the labels may have been taken: send them again, each counts once",
            )
        assert infer(served, rows(1.0))[0] == 200, "predictions continue"
        served.log.answers.set()
        eventually(lambda: served.observations.join.is_done("a"))
        assert observe(served, post)[1] == {"stored": 0, "waiting": 0, "repeated": 1}
    finally:
        served.log.answers.set()
        served.close()
