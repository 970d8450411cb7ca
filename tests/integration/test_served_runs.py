"""Several runs in one `modyn serve`: their models share the ports, and versions, labels and loads stay apart."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import torch

from modyn.proto import inference_pb2 as pb
from modyn.proto import inference_pb2_grpc
from modyn.records import RunId, ServingLoad
from modyn.serving.run_server import RunServer
from modyn.serving.served_model import served_model
from modyn.state_folders import shared_folder
from modyn.testing.stack import NUM_CLASSES, TINY_PARSER, RunningStack
from modyn.testing.waiting import eventually
from tests.support.serving_process import Serving, call, connect, run_to_end

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("preloaded_fakes")]

NARROW_PARSER = TINY_PARSER.rstrip() + "[:2]\n"
FREE_PORTS = ("--http-port", "0", "--grpc-port", "0")


@dataclass
class TwoRuns:
    """`wide` takes 4 features and `narrow` the first 2 of them; both have two versions, and their labels go to datasets of their own."""

    stack: RunningStack
    wide: str
    narrow: str

    def versions(self, run: str) -> list[str]:
        models = json.loads(self.stack.modyn("models", "ls", run, "--json").stdout)
        return [str(model["version"]["model_id"]) for model in models]


@pytest.fixture(scope="module")
def runs(running_stack: RunningStack) -> TwoRuns:
    running_stack.tiny_dataset("served-runs")
    for dataset in ("seen-wide", "seen-narrow"):
        assert running_stack.modyn("data", "register", dataset, "--records").returncode == 0
    narrow = running_stack.pipeline_file(
        "served-runs",
        model={"id": "LogisticRegression", "config": {"input_size": 2, "num_classes": NUM_CLASSES}},
        data={"dataset_id": "served-runs", "bytes_parser_function": NARROW_PARSER},
        serving={"name": "narrow", "observations": "seen-narrow"},
    )
    wide = running_stack.pipeline_file("served-runs", serving={"name": "wide", "observations": "seen-wide"})
    made = [running_stack.run(path) for path in (wide, narrow)]
    assert [run.state for run in made] == ["finished", "finished"], [run.error for run in made]
    return TwoRuns(running_stack, *(str(run.run_id) for run in made))


@pytest.fixture
def served(runs: TwoRuns) -> Iterator[Serving]:
    with Serving(runs.stack, runs.wide, runs.narrow, *FREE_PORTS) as made:
        yield made


def row(*values: float) -> list[dict[str, Any]]:
    return [{"name": "input", "datatype": "FP32", "shape": [1, len(values)], "data": values}]


def predict(address: str, model: str, *values: float, request_id: str = "") -> dict[str, Any]:
    with closing(connect(address)) as connection:
        status, found = call(connection, "POST", f"/v2/models/{model}/infer", {"inputs": row(*values), "id": request_id})
    assert status == 200, found
    return dict(found)


def logits_by_grpc(address: str, model: str, *values: float) -> Sequence[float]:
    tensor = pb.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[1, len(values)])
    tensor.contents.fp32_contents.extend(values)
    with grpc.insecure_channel(address) as channel:
        stub: Any = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert stub.ServerReady(pb.ServerReadyRequest()).ready
        answer = stub.ModelInfer(pb.ModelInferRequest(model_name=model, inputs=[tensor]))
    found: Sequence[float] = answer.outputs[0].contents.fp32_contents
    return found


def test_both_answer_by_both_protocols_and_one_is_promoted_while_the_other_continues(runs: TwoRuns, served: Serving) -> None:
    first, second = runs.versions(runs.wide)
    newest = runs.versions(runs.narrow)[-1]
    assert served.call("GET", "/v2/health/ready")[0] == 200
    for model, values in (("wide", (0.1, 0.2, 0.3, 0.4)), ("narrow", (0.1, 0.2))):
        assert served.call("GET", f"/v2/models/{model}")[1]["inputs"][0]["shape"] == [-1, len(values)]
        (output,) = predict(served.address, model, *values)["outputs"]
        assert output["shape"] == [1, NUM_CLASSES]
        assert logits_by_grpc(served.field("grpc"), model, *values) == pytest.approx(output["data"], rel=1e-5)
    status, refused = served.call("POST", "/v2/models/narow/infer", {"inputs": row(0.1, 0.2)})
    assert (status, refused["error"]) == (404, "there is no model 'narow', did you mean 'narrow'?; served here: narrow, wide")

    stop, failures, seen = threading.Event(), list[BaseException](), defaultdict[str, int](int)

    def load() -> None:
        while not stop.is_set():
            try:
                seen[predict(served.address, "narrow", 0.1, 0.2)["model_version"]] += 1
            except (OSError, AssertionError, http.client.HTTPException) as error:
                failures.append(error)
                return

    asking = threading.Thread(target=load)
    asking.start()
    assert predict(served.address, "wide", 1, 2, 3, 4)["model_version"] == second, "the newest, since none is promoted"
    assert runs.stack.modyn("models", "promote", runs.wide, first).returncode == 0
    eventually(lambda: predict(served.address, "wide", 1, 2, 3, 4)["model_version"] == first)
    stop.set()
    asking.join()
    assert failures == []
    assert list(seen) == [newest]
    assert served.end(signal.SIGTERM) == 0, "".join(served.lines)


def test_labels_of_each_reach_its_dataset(runs: TwoRuns, served: Serving) -> None:
    def post(*observations: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return served.call("POST", "/observations", {"observations": observations})

    for number in range(3):
        predict(served.address, "wide", 0, 0, 0, number, request_id=f"w{number}")
    predict(served.address, "narrow", 0, 0, request_id="n")
    predict(served.address, "wide", 0, 0, 0, 0, request_id="page")
    predict(served.address, "narrow", 0, 0, request_id="page")
    by_id = [{"request_id": f"w{number}", "label": number} for number in range(3)] + [{"request_id": "n", "label": 1}]
    assert post(*by_id) == (200, {"stored": 4, "waiting": 0, "repeated": 0})
    status, refused = post({"request_id": "page", "label": 1})
    assert (status, "wide and narrow have seen request 'page'; set 'model' to one of narrow, wide" in str(refused)) == (400, True)
    named = [{"request_id": "page", "label": 0, "model": "wide"}, {"request_id": "page", "label": 2, "model": "narrow"}]
    features = [{"key": "own", "label": 0, "model": "narrow", "inputs": row(1, 2)}]
    assert post(*named, *features) == (200, {"stored": 3, "waiting": 0, "repeated": 0})
    status, refused = post({"key": "wrong", "label": 0, "model": "wide", "inputs": row(1, 2)})
    assert (status, "was sent with shape [1, 2]; the model takes [-1, 4]" in str(refused)) == (400, True)
    with runs.stack.client() as client:
        eventually(lambda: [client.dataset(name).num_samples for name in ("seen-wide", "seen-narrow")] == [4, 3])
    # The run of a request id is known after a restart too, also if the models have other names then.
    assert served.end(signal.SIGKILL) == -signal.SIGKILL
    with Serving(runs.stack, f"n={runs.narrow}", f"w={runs.wide}", *FREE_PORTS) as again:
        predict(again.address, "w", 0, 0, 0, 0)
        counts = {"stored": 0, "waiting": 0, "repeated": 4}
        assert again.call("POST", "/observations", {"observations": by_id}) == (200, counts)
        assert again.end(signal.SIGTERM) == 0, "".join(again.lines)


def test_what_is_ambiguous_is_refused_before_a_port_is_opened(runs: TwoRuns) -> None:
    """The port is taken, which would be the error once one is to be opened."""
    taken = socket.create_server(("127.0.0.1", 0))
    ports = ["--http-port", str(taken.getsockname()[1]), "--grpc-port", "0"]
    clash = f"error: runs '{runs.wide}' and '{runs.narrow}' would both be model 'same', and requests address a model by its name"
    for makes_server, arguments, message in [
        (True, [f"same={runs.wide}", f"same={runs.narrow}"], clash),
        (False, [runs.wide, "other=no-such-run"], "error: there is no run 'no-such-run'"),
        (False, [runs.wide, runs.narrow, "--name", "same"], "error: --name describes one model, but several runs are served: write NAME=RUN"),
        (False, [runs.wide, runs.narrow, "--observations", "seen-wide"], "set serving.observations in their pipelines, or serve them separately"),
    ]:  # fmt: skip
        command = ("serve", *arguments, *ports)
        done = run_to_end(runs.stack, *command) if makes_server else runs.stack.modyn(*command)
        assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    taken.close()


def test_the_load_of_each_run_is_reported(runs: TwoRuns) -> None:
    reported: dict[RunId, ServingLoad] = {}
    serving = runs.stack.config.serving.model_copy(update={"http_port": 0, "grpc_port": 0, "keep_waiting": False})
    config = runs.stack.config.model_copy(update={"serving": serving})
    with runs.stack.client() as client:
        models = [
            served_model(run, client.show(run).pipeline, {"name": name})
            for run, name in ((runs.wide, "asked"), (runs.narrow, "idle"))
        ]
    num_threads = torch.get_num_threads()
    server = RunServer(config, models, lambda run_id, load, _: reported.__setitem__(run_id, load))
    try:
        address = server.addresses.http.split("/")[2]

        def is_reported() -> bool:
            predict(address, "asked", 0.1, 0.2, 0.3, 0.4)
            return len(reported) == 2 and reported[RunId(runs.wide)].rate > 0

        eventually(is_reported)
        assert reported[RunId(runs.narrow)].rate == 0
    finally:
        server.close()
        torch.set_num_threads(num_threads)


def test_nobody_else_can_read_what_services_and_servers_keep(runs: TwoRuns, served: Serving) -> None:
    cached = runs.stack.pipeline_file("served-runs", cache={"size": "1MB", "store": "memory", "split": "50-50-0"})
    assert runs.stack.run(cached).state == "finished"
    predict(served.address, "wide", 0.1, 0.2, 0.3, 0.4, request_id="kept")
    config = runs.stack.config
    roots = [config.state_dir, config.run_dir, shared_folder(config.state_dir)]
    found = {
        path: stat.S_IMODE(path.lstat().st_mode) for root in roots for path in [root, *root.rglob("*")] if not path.is_symlink()
    }
    assert {"00000001.events", "supervisor.log", "stack.log", "PG_VERSION", "redis.sock"} <= {path.name for path in found}
    # PostgreSQL does not run as root: then its user passes through two folders, and lists none.
    passed = {config.state_dir: 0o711, config.state_dir / "postgres": 0o711} if os.geteuid() == 0 else {}
    loose = {str(path): oct(mode) for path, mode in found.items() if mode & ~passed.get(path, 0o700) & 0o077}
    assert loose == {}
