"""The programs that measure online learning, on few samples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np
import pytest

from benchmark.online.clicks import CATEGORIES, NUMBERS, ClickStream
from benchmark.online.http_load import Answers, Load, ask
from benchmark.online.serve import summary
from modyn.config.endpoint import Endpoint
from modyn.config.security import SecurityConfig
from modyn.preprocessing import Preprocessing
from modyn.rpc.access import AccessTokens
from modyn.serving.http_app import HttpApp
from modyn.serving.http_server import HttpServer
from modyn.serving.model_server import ModelServer
from modyn.serving.predictor import VersionName
from modyn.testing.fake_predictor import FakeVersions
from tests.support.measuring import measured


@pytest.mark.slow
def test_statistics_are_measured() -> None:
    small = ["--rows", "600", "--batch-sizes", "100", "300", "--rounds", "1"]
    lines = measured("benchmark.online", "statistics", *small).splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("|")][2:] == ["| 100", "| 300"]
    assert re.fullmatch(r"statistics: \d+\.\d\d \(target 1\.5\)", lines[-1])


def test_both_sides_scale_numbers_alike() -> None:
    statistics = pytest.importorskip("benchmark.online.statistics")
    ours, theirs = Preprocessing(statistics.SECTION), statistics.SklearnNumbers()
    for batch in ClickStream(700, seed=1).batches(300):
        features = ours.update_and_transform(batch)
        np.testing.assert_allclose(features.dense, theirs(statistics.number_matrix(batch)), rtol=1e-4, atol=1e-5)
        assert features.dense.shape[1] == len(NUMBERS)
        assert len(features.indices) == len(features) * len(CATEGORIES)


def test_a_stream_of_clicks_is_its_seed_and_grows_vocabularies() -> None:
    one, other = list(ClickStream(500).batches(200)), list(ClickStream(500).batches(200))
    assert one == other
    assert [len(batch["c1"]) for batch in one] == [200, 200, 100]
    assert one[0]["i4"].null_count > 0
    assert len(one[0]["c26"].unique()) > 50


@pytest.mark.slow
def test_predictions_a_second_are_measured() -> None:
    """Peers are compared with where they are installed."""
    small = ["--connections", "1", "3", "--seconds", "0.3", "--rounds", "1"]
    lines = measured("benchmark.online", "serve", *small).splitlines()
    rows = [line.strip("| ").split(" | ")[:2] for line in lines if line.startswith("| ")][1:]
    assert [row for row in rows if row[0] in ("ours", "bare Uvicorn")] == [
        [side, connections] for connections in ("1", "3") for side in ("ours", "bare Uvicorn")
    ]
    has_peers = any(row[0] == "FastAPI" for row in rows)
    assert has_peers or "FastAPI: not installed; make serving-peers" in lines
    ratio = r"\d+\.\d\d" if has_peers else "nothing to compare with"
    assert re.fullmatch(rf"serve: {ratio} \(target 1\.0\)", lines[-1])


@pytest.mark.slow
def test_the_latency_of_predictions_is_measured_with_and_without_training() -> None:
    small = ["--stream", "taxi", "--samples", "1500000", "--initial", "5000", "--seconds", "2", "--rounds", "1"]
    lines = measured("benchmark.online", "latency", *small).splitlines()
    (row,) = (line for line in lines if line.startswith("| 1 |"))
    assert int(row.strip("| ").split(" | ")[-1].replace(",", "")) > 0, "steps were taken"
    assert re.fullmatch(r"latency: \d+\.\d\d \(target 1\.2\)", lines[-1])


@pytest.mark.slow
def test_rollbacks_are_measured() -> None:
    lines = measured("benchmark.online", "rollback", "--rollbacks", "2").splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("| a ")] == ["| a promotion", "| a rollback"]
    assert "2 of each, 0 failed answers." in lines[0]
    assert re.fullmatch(r"rollback: \d+\.\d\d s \(target 1\)", lines[-1])


@pytest.fixture
def answering() -> Iterator[HttpServer]:
    server = ModelServer(FakeVersions())
    server.swap(VersionName("m", "1"))
    security = SecurityConfig()
    app = HttpApp(server, AccessTokens(security), None, 1 << 20)
    http = HttpServer(app, Endpoint(address="127.0.0.1:0", security=security))
    yield http
    http.stop()
    server.close()


def test_the_load_of_a_server_counts_each_answer_once(answering: HttpServer) -> None:
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}
    body, path = json.dumps({"inputs": [tensor]}).encode(), "/v2/models/m/infer"
    found = ask(Load(answering.address, path, body, connections=3, seconds=0.3, warm_up_s=0.05))
    assert (found.failed, len(found.latencies_ms) > 3, b'"data":[6.0]' in found.last) == (0, True, True)
    slow = ask(Load(answering.address, path, body, connections=2, seconds=0.5, warm_up_s=0.05, rate=40))
    assert (slow.failed, 0 < len(slow.latencies_ms) <= 22) == (0, True), "at most as many as were due"
    with pytest.raises(SystemExit, match="answered none of the requests, the last with b'HTTP/1.1 404"):
        ask(Load(answering.address, "/v2/models/other/infer", body, connections=1, seconds=0.1))


def test_ours_are_compared_with_the_best_peer_at_each_number_of_connections() -> None:
    def answers(rate: int) -> list[Answers]:
        return [Answers(1.0, [1.0] * rate)]

    found = {
        ("ours", 1): answers(100),
        ("FastAPI", 1): answers(50),
        ("Ray Serve", 1): answers(80),
        ("bare Uvicorn", 1): answers(900),
    }
    found |= {("ours", 16): answers(90), ("FastAPI", 16): answers(100)}
    assert summary(found, [1, 16]) == "serve: 0.90 (target 1.0)"
    assert summary(found, [1]) == "serve: 1.25 (target 1.0)"
    assert summary({("ours", 1): answers(100)}, [1]) == "serve: nothing to compare with (target 1.0)"
