"""The protocol over gRPC, by our own generated client; and both protocols by a public client."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import CancelledError, InvalidArgumentError
from modyn.proto import inference_pb2 as pb
from modyn.proto import inference_pb2_grpc
from modyn.serving.messages.infer import InferAnswer
from modyn.serving.messages.signature import Tensor, datatype_of
from modyn.serving.protocol.grpc_service import InferenceServicer, from_proto, to_proto
from modyn.serving.versions.predictor import VersionName
from modyn.testing.fake_predictor import PredictorGate
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.serving.conftest import Served
from tests.serving.messages.test_json_tensors import tensors


@pytest.fixture
def stub(served: Served) -> Iterator[Any]:
    with grpc.insecure_channel(served.grpc.address) as channel:
        yield inference_pb2_grpc.GRPCInferenceServiceStub(channel)


def rows(*values: float, **fields: Any) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=[len(values), 3])
    tensor.contents.fp32_contents.extend(part for value in values for part in (value, 0, 0))
    return pb.ModelInferRequest(**{"model_name": "m", "inputs": [tensor], **fields})


def test_a_long_request_id_is_refused(stub: Any) -> None:
    assert stub.ModelInfer(rows(1.0, id="x" * 128)).id == "x" * 128
    with pytest.raises(grpc.RpcError, match="id is 'xxx.*write a text of at most 128 characters"):
        stub.ModelInfer(rows(1.0, id="x" * 129))


def test_values_that_are_sent_both_ways_are_refused_and_counted(stub: Any) -> None:
    def counted() -> float:
        return REGISTRY.get_sample_value("modyn_serving_errors_total", {"model": "m", "reason": "INVALID_ARGUMENT"}) or 0.0

    before = counted()
    with pytest.raises(
        grpc.RpcError, match="input 'input' has contents, and raw_input_contents are sent as well; send its values one way"
    ):
        stub.ModelInfer(rows(1.0, raw_input_contents=[bytes(12)]))
    assert counted() == before + 1


def test_health_metadata_and_predictions(served: Served, stub: Any) -> None:
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    assert stub.ModelReady(pb.ModelReadyRequest(name="m")).ready
    assert not stub.ModelReady(pb.ModelReadyRequest(name="m", version="2")).ready
    assert not stub.ModelReady(pb.ModelReadyRequest(name="n")).ready
    assert stub.ServerMetadata(pb.ServerMetadataRequest()).name == "modyn"
    described = stub.ModelMetadata(pb.ModelMetadataRequest(name="m"))
    assert (list(described.versions), list(described.inputs[0].shape)) == (["1"], [-1, 3])
    served.server.load(VersionName("m", "2"))
    answer = stub.ModelInfer(rows(1.0, 2.5, id="seven", model_version="2"))
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "2", "seven")
    assert list(answer.outputs[0].contents.fp32_contents) == [1.0, 2.5]
    assert list(answer.outputs[1].contents.int64_contents) == [2] * 8
    raw = rows(raw_input_contents=[np.ones((2, 3), np.float32).tobytes()])
    raw.inputs[0].shape[:] = [2, 3]
    assert np.frombuffer(stub.ModelInfer(raw).raw_output_contents[0], np.float32).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        (rows(1.0, model_name="n"), grpc.StatusCode.NOT_FOUND, "there is no model 'n'; served here: m"),
        (rows(1.0, model_version="7"), grpc.StatusCode.NOT_FOUND, "model 'm' has no version 7 that is loaded; loaded are 1; "
     "pin it with `modyn serve --pin 7`, or promote it"),
        (rows(1.0, inputs=[]), grpc.StatusCode.INVALID_ARGUMENT, "input 'input' is missing; the model takes 'input'"),
        (rows(float("nan")), grpc.StatusCode.INVALID_ARGUMENT, "input 'input' holds NaN at [0, 0], 1 of 3 values"),
        (rows(float("inf")), grpc.StatusCode.INVALID_ARGUMENT, "input 'input' holds inf at [0, 0], 1 of 3 values"),
        (rows(1.0, raw_input_contents=[b"", b""]), grpc.StatusCode.INVALID_ARGUMENT,
         "raw_input_contents has 2 tensors for 1 inputs; send all raw, or none"),
        (rows(raw_input_contents=[b"1234"]), grpc.StatusCode.INVALID_ARGUMENT,
         "input 'input' has 4 bytes; FP32 of shape [0, 3] has 0"),
        (rows(1.0, parameters={"timeout": pb.InferParameter(string_param="x")}), grpc.StatusCode.INVALID_ARGUMENT,
         "the parameter timeout is 'x'; write a number of microseconds above 0"),
        (rows(1.0, parameters={"sequence_id": pb.InferParameter(int64_param=7)}), grpc.StatusCode.INVALID_ARGUMENT,
         "the request has the parameter sequence_id, which is not supported: each request is predicted by itself; models here keep no state "
         "between requests; leave it out"),
        (rows(1.0, outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(
            name="output", parameters={"classification": pb.InferParameter(int64_param=2)})]), grpc.StatusCode.INVALID_ARGUMENT,
         "output 'output' has the parameter classification, which is not supported: outputs are sent whole; take the greatest scores in the "
         "client; leave it out"),
    ],
)  # fmt: skip
def test_bad_requests(stub: Any, request_: pb.ModelInferRequest, code: grpc.StatusCode, message: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request_)
    assert (caught.value.code(), (caught.value.details() or "").split("; send finite numbers")[0]) == (code, message)


def test_overload_deadlines_and_a_model_that_fails(served: Served, stub: Any) -> None:
    gate = PredictorGate()
    served.server.load(VersionName("m", "2"))
    predictor = served.versions.made["2"]
    predictor.before = gate
    first = stub.ModelInfer.future(rows(1.0, model_version="2"))
    assert gate.reached.wait(PATIENCE_S)
    second = stub.ModelInfer.future(rows(2.0, model_version="2"))
    loaded = served.server.table().routes("m").versions["2"]
    eventually(lambda: loaded.batcher.num_waiting == 1)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(rows(3.0, model_version="2"))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == "1 requests wait already, as many as serving.max_queue allows; send it again later"
    second.cancel()
    eventually(lambda: loaded.batcher.num_waiting == 0)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(rows(3.0, model_version="2", parameters={"timeout": pb.InferParameter(int64_param=1000)}))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    gate.open.set()
    assert list(first.result(PATIENCE_S).outputs[0].contents.fp32_contents) == [1.0]

    def fail(_: object) -> None:
        raise ValueError("broken")

    predictor.before = fail
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(rows(1.0, model_version="2"))
    assert caught.value.code() == grpc.StatusCode.ABORTED
    assert caught.value.details() == "version 2 of model 'm' failed: ValueError: broken; the log of the server has the details"


class EndedCall:
    """Context of an ended call, which calls no callbacks."""

    def add_callback(self, callback: object) -> bool:
        return False


def test_a_request_whose_call_has_ended_leaves_the_queue(served: Served, stub: Any) -> None:
    reached, go = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        reached.set()
        assert go.wait(PATIENCE_S)

    served.versions.made["1"].before = hold
    first = stub.ModelInfer.future(rows(1.0))
    assert reached.wait(PATIENCE_S)
    context: Any = EndedCall()
    with pytest.raises(CancelledError):
        InferenceServicer(served.server, PATIENCE_S).ModelInfer(rows(2.0), context)
    assert served.server.table().routes("m").versions["1"].batcher.num_waiting == 0
    go.set()
    assert list(first.result(PATIENCE_S).outputs[0].contents.fp32_contents) == [1.0]


def test_a_token_is_asked_for() -> None:
    served = Served(SecurityConfig(token="a secret of the tests"))
    try:
        with grpc.insecure_channel(served.grpc.address) as channel:
            stub: Any = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(rows(1.0))
            assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
            assert stub.ModelInfer(rows(1.0), metadata=(("authorization", "Bearer a secret of the tests"),)).model_version == "1"
    finally:
        served.close()


@given(tensors(), st.booleans())
def test_a_tensor_comes_back_as_it_was_sent(values: Tensor, raw: bool) -> None:
    reply = to_proto(InferAnswer("m", "1", "id", {"x": values}), raw=raw)
    output = reply.outputs[0]
    tensor = pb.ModelInferRequest.InferInputTensor(
        name="x", datatype=output.datatype, shape=output.shape, contents=output.contents
    )
    again = from_proto(pb.ModelInferRequest(inputs=[tensor], raw_input_contents=reply.raw_output_contents)).inputs["x"]
    assert (again.dtype, again.shape, again.tolist()) == (values.dtype, values.shape, values.tolist())
    assert output.datatype == datatype_of(values.dtype)


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
@pytest.mark.parametrize("raw", [{}, {"raw_input_contents": [b""]}])
def test_a_shape_that_no_array_can_have_is_refused(stub: Any, datatype: str, raw: dict[str, Any]) -> None:
    for shape in ([0, 2**62], [0, *[1] * 64], [0, *[2**62] * 1000]):
        tensor = pb.ModelInferRequest.InferInputTensor(name="input", datatype=datatype, shape=shape)
        with pytest.raises(grpc.RpcError, match=r"input 'input': no tensor has the shape \[0, ") as caught:
            stub.ModelInfer(rows(inputs=[tensor], **raw))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_value_that_does_not_fit_its_datatype_is_refused() -> None:
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT8", shape=[1])
    tensor.contents.int_contents.append(200)
    with pytest.raises(InvalidArgumentError, match="input 'x': a value in int_contents does not fit into INT8"):
        from_proto(pb.ModelInferRequest(inputs=[tensor]))


@pytest.mark.skipif(importlib.util.find_spec("tritonclient") is None, reason="tritonclient is not installed")
@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_public_client_of_the_protocol(served: Served, kind: str) -> None:
    served.server.load(VersionName("m", "2"))
    address = served.http.address if kind == "http" else served.grpc.address
    program = [sys.executable, str(Path(__file__).with_name("triton_client.py")), kind, address]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "all answers are right"
