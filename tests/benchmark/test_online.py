"""The programs that measure online learning, on few samples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np
import pytest

from benchmark.online import record_flow
from benchmark.online.asking import Seen, version_and_value
from benchmark.online.clicks import CATEGORIES, NUMBERS, ClickStream
from benchmark.online.http_load import Answers, Load, ask
from benchmark.online.rollback import Change, taken
from benchmark.online.serve import summary
from benchmark.online.swap import mixed
from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.system_sections.security import SecurityConfig
from modyn.preprocessing import Preprocessing
from modyn.rpc.http_guard import HttpGuard
from modyn.serving.model_server import ModelServer
from modyn.serving.protocol.http_app import HttpApp
from modyn.serving.protocol.http_limits import HttpLimits
from modyn.serving.protocol.http_server import HttpServer
from modyn.serving.versions.predictor import VersionName
from modyn.supervisor.journal.records import TriggerRecord
from modyn.supervisor.journal.states import TriggerState
from modyn.testing.fake_predictor import FakeVersions
from modyn.trainer_server.client import TrainingResult
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
    """The figure includes peers if they are installed."""
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


@pytest.mark.exhaustive
def test_the_latency_of_predictions_is_measured_with_and_without_training() -> None:
    small = ["--stream", "taxi", "--samples", "1500000", "--initial", "5000", "--seconds", "2", "--rounds", "1"]
    lines = measured("benchmark.online", "latency", *small).splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith(("| always", "| dynamic"))]
    assert [row[:2] for row in rows] == [["always", "1"], ["dynamic", "1"]]
    assert all(int(row[-1].replace(",", "")) > 0 for row in rows), "steps were taken"
    assert re.fullmatch(r"latency, always: \d+\.\d\d \(target 1\.2\)", lines[-2])
    assert re.fullmatch(r"latency, dynamic: \d+\.\d\d \(target 1\.2\)", lines[-1])


@pytest.mark.exhaustive
def test_rollbacks_are_measured() -> None:
    lines = measured("benchmark.online", "rollback", "--rollbacks", "2", "--commands", "1").splitlines()
    names = [line.split(" | ")[0] for line in lines if line.startswith("| a ")]
    assert names == ["| a promotion", "| a rollback", "| a rollback by the command"]
    assert " 0 failed answers." in lines[0]
    assert re.fullmatch(r"rollback: \d+\.\d\d s \(target 1\)", lines[-1])


@pytest.mark.slow
def test_swaps_are_measured_under_load() -> None:
    lines = measured("benchmark.online", "swap", "--swaps", "5").splitlines()
    assert lines[0].startswith("5 swaps to versions that were never loaded, ")
    assert "| failed answers | 0 |" in lines
    assert re.fullmatch(r"swap: \d+\.\d\d ms \(target 50\), 0 failed, 0 mixed", lines[-1])


@pytest.mark.parametrize(
    "stream", [pytest.param("taxi", marks=pytest.mark.slow), pytest.param("columns", marks=pytest.mark.exhaustive)]
)
def test_the_parts_of_a_step_are_measured(stream: str) -> None:
    few = ["--stream", stream, "--samples", "60000", "--rounds", "1"]
    lines = measured("benchmark.online", "step", *few).splitlines()
    (row,) = (line.strip("| ").split(" | ") for line in lines if line.startswith(f"| {stream} |"))
    ours, bare, ratio, without, *parts = map(float, row[1:])
    assert ours == pytest.approx(sum(parts), abs=0.05)
    assert ratio == pytest.approx(ours / bare, rel=0.05, abs=0.05)
    assert without < ratio
    assert (parts[2] > 0) is (stream == "columns"), "transform"
    assert lines[-1] == f"step: {row[3]} (target 1.3)"


def test_a_step_is_all_that_selection_and_trainer_spend_on_a_version() -> None:
    def version(select: float, train: float, hooks: float) -> TriggerRecord:
        stages = {"load": 1.0, "forward": 2.0, "backward": 3.0, "step": 1.0, "hooks": hooks, "transform": 4.0, "store": 0.5}
        result = {"num_steps": 10, "seconds": stages}
        seconds = {"select": select, "train": train, "store": 0.5, "total": select + train}
        return TriggerRecord(
            1, 10, 0, 9, 9, TriggerState.TRAINED, 0.0, training_result=TrainingResult.from_mapping(result), seconds=seconds
        )

    step = pytest.importorskip("benchmark.online.step")
    parts = step.parts_of([version(2.0, 15.0, 1.0), version(4.0, 19.0, 1.0), version(3.0, 17.0, 1.0)])
    assert parts == {"history": 0.3, "payloads": 0.1, "transform": 0.4, "passes": 0.6, "tests": 0.1, "version": 0.5}
    row, ratio = step.summary("clicks", [parts], [0.5])
    assert ratio == pytest.approx(4.0), "all of it"
    assert row == "| clicks | 2000.00 | 500.00 | 4.00 | 3.00 | 300.00 | 100.00 | 400.00 | 600.00 | 100.00 | 500.00 |"


def test_both_sides_of_a_step_have_the_same_features_of_columns() -> None:
    clicks = pytest.importorskip("benchmark.online.click_columns")
    ours = Preprocessing(clicks.SECTION)
    labels = np.zeros(50, np.int64)
    for batch, (theirs, _) in zip(ClickStream(100).batches(50), clicks.CLICK_COLUMNS.transformed(2, 50), strict=True):
        payloads = clicks.csv_of(batch, labels).splitlines()
        features = ours.update_and_transform(ours.parser.parse(payloads)).to_torch()
        assert isinstance(features, dict)
        assert features.keys() == theirs.keys()
        for name in features:
            np.testing.assert_array_equal(features[name], theirs[name])
    model = clicks.CLICK_COLUMNS.model["config"]
    assert (ours.num_sparse, ours.num_dense) == (model["num_features"], model["num_dense"])


def test_records_have_the_key_of_their_number() -> None:
    rows = record_flow.drawn("taxi")
    first, again = record_flow.records(rows, 0, 3), record_flow.records(rows, len(rows) - 1, 2)
    assert [record.key for record in [*first, *again]] == ["0", "1", "2", f"{len(rows) - 1}", f"{len(rows)}"]
    assert again[1].payload == first[0].payload, "rows come over and over"
    np.testing.assert_array_equal(np.frombuffer(first[2].payload, np.float32), rows["sample"][2])


def test_an_answer_is_mixed_if_its_numbers_are_not_those_of_its_version() -> None:
    def content(version: int, values: list[float]) -> bytes:
        return json.dumps({"model_version": str(version), "outputs": [{"data": values}]}).encode()

    found = [content(1, [5.0, 5.0]), content(2, [7.0, 7.0]), content(2, [5.0, 5.0]), content(2, [7.0, 5.0]), content(9, [1.0])]
    versions, values = zip(*map(version_and_value, found), strict=True)
    assert versions == (1, 2, 2, 2, 9)
    assert mixed(Seen(versions=np.array(versions), values=np.array(values)), {1: 5.0, 2: 7.0}) == 3


def test_a_rollback_ends_with_the_last_answer_of_the_version_before() -> None:
    at, versions = np.array([0.5, 1.5, 2.0, 2.5, 3.0, 9.0]), np.array([2, 2, 1, 2, 1, 2])
    seen, change = Seen(at=at, versions=versions), Change("rollback", before=2, after=1, begin=1.0, end=8.0)
    assert taken(seen, change) == 1.5, "until 2.5, when the version before has answered for the last time"
    versions[3] = 1
    assert taken(seen, change) == 1.0, "until the first answer of the version after"


@pytest.fixture
def answering() -> Iterator[HttpServer]:
    server = ModelServer(FakeVersions())
    server.swap(VersionName("m", "1"))
    security = SecurityConfig()
    app = HttpApp(server, HttpGuard("127.0.0.1", False), None, None, HttpLimits())
    http = HttpServer(app, Endpoint(address="127.0.0.1:0", security=security))
    yield http
    http.stop()
    server.close()


def test_the_load_of_a_server_counts_each_answer_once(answering: HttpServer) -> None:
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}
    body, path = json.dumps({"inputs": [tensor]}).encode(), "/v2/models/m/infer"
    found = ask(Load(answering.address, path, body, connections=3, seconds=0.3, warm_up_s=0.05))
    assert (found.failed, len(found.latencies_ms) > 3, b'"data":[6.0]' in found.last) == (0, True, True)
    contents = list[bytes]()
    noted = ask(Load(answering.address, path, body, connections=2, seconds=0.2, warm_up_s=0.0), contents.append)
    assert len(contents) == len(noted.latencies_ms)
    assert all(json.loads(content)["outputs"][0]["data"] == [6.0] for content in contents)
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
