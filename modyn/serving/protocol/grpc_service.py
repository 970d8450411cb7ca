"""The gRPC servicer of the Open Inference Protocol: decode, call, encode."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

import grpc
import numpy as np

from modyn.errors import InvalidArgumentError, ModynError
from modyn.proto import inference_pb2, inference_pb2_grpc
from modyn.rpc.server import Registration
from modyn.serving.messages.infer import InferAnswer, InferRequest, settle
from modyn.serving.messages.json_tensors import (
    check_dimensions,
    from_bytes,
    request_id_of,
    reshaped,
    server_metadata,
    to_bytes,
    with_missing,
)
from modyn.serving.messages.parameters import refuse_unsupported, timeout_of
from modyn.serving.messages.signature import DTYPES, Tensor, TensorSignature, datatype_of
from modyn.serving.model_server import ModelServer
from modyn.serving.prometheus import count_error

FULL_NAME: Final = "inference.GRPCInferenceService"
_FIELDS: Final = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Field of InferTensorContents with the values of each datatype. FP16 has no field, because FP16 values are always sent as raw bytes."""
_SPARE_S: Final = 1.0
"""Seconds that the thread of a call waits beyond the timeout. The batcher ends the request at the timeout."""


def registration(server: ModelServer, timeout_s: float) -> Registration:
    """Return the servicer for `start_server`. Args: timeout_s: seconds after which the model server ends a request."""
    return Registration(
        inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server, InferenceServicer(server, timeout_s), FULL_NAME
    )


class InferenceServicer(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Servicer of the calls that inference.proto documents."""

    def __init__(self, server: ModelServer, timeout_s: float) -> None:
        self._server, self._timeout_s = server, timeout_s

    def ServerLive(self, request: Any, context: grpc.ServicerContext) -> inference_pb2.ServerLiveResponse:
        """Return true."""
        return inference_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: grpc.ServicerContext) -> inference_pb2.ServerReadyResponse:
        """Return whether each model has a serving version."""
        return inference_pb2.ServerReadyResponse(ready=self._server.is_ready())

    def ModelReady(
        self, request: inference_pb2.ModelReadyRequest, context: grpc.ServicerContext
    ) -> inference_pb2.ModelReadyResponse:
        """Return whether a model, or a version of the model, answers requests; false for an unknown model or version."""
        return inference_pb2.ModelReadyResponse(ready=self._server.is_ready(request.name, request.version or None))

    def ServerMetadata(self, request: Any, context: grpc.ServicerContext) -> inference_pb2.ServerMetadataResponse:
        """Return the name and version of this server."""
        found = server_metadata()
        return inference_pb2.ServerMetadataResponse(name=found["name"], version=found["version"])

    def ModelMetadata(
        self, request: inference_pb2.ModelMetadataRequest, context: grpc.ServicerContext
    ) -> inference_pb2.ModelMetadataResponse:
        """Return the inputs, outputs and loaded versions of a model. Status NOT_FOUND: the model or version is unknown."""
        signature, versions = self._server.metadata(request.name, request.version or None)
        return inference_pb2.ModelMetadataResponse(
            name=request.name,
            versions=versions,
            platform="pytorch",
            inputs=_described(signature.inputs),
            outputs=_described(signature.outputs),
        )

    def ModelInfer(
        self, request: inference_pb2.ModelInferRequest, context: grpc.ServicerContext
    ) -> inference_pb2.ModelInferResponse:
        """Answer a request for predictions. The request ends early if the client disconnects or the client's deadline passes."""
        reply: Future[InferAnswer] = Future()
        try:
            wanted = from_proto(request)
        except ModynError as error:
            count_error(self._server.table().models, request.model_name, error.reason)
            raise
        ticket = self._server.infer(wanted, functools.partial(settle, reply), at_once=True)
        if not context.add_callback(ticket.cancel):  # False: the call has ended already.
            ticket.cancel()
        # The result is set by a thread of the batcher, or by this thread in `infer`.
        return to_proto(reply.result(self._timeout_s + _SPARE_S), raw=bool(request.raw_input_contents))


def from_proto(request: inference_pb2.ModelInferRequest) -> InferRequest:
    """Convert a message to a request. Raises InvalidArgumentError: a tensor is wrong; the message names the tensor."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidArgumentError(
            f"raw_input_contents has {len(raw)} tensors for {len(request.inputs)} inputs; send all raw, or none"
        )
    inputs: dict[str, Tensor] = {}
    for number, item in enumerate(request.inputs):
        if item.name in inputs:
            raise InvalidArgumentError(f"input '{item.name}' is sent twice")
        refuse_unsupported(_parameters(item), f"input '{item.name}'")
        if item.datatype not in DTYPES:
            raise InvalidArgumentError(f"input '{item.name}': datatype is {item.datatype!r}; known are {', '.join(DTYPES)}")
        check_dimensions(item.name, item.shape)
        shape = tuple(item.shape)
        if raw and item.contents.ByteSize():  # contents without values are allowed
            raise InvalidArgumentError(
                f"input '{item.name}' has contents, and raw_input_contents are sent as well; send its values one way"
            )
        if any(size < 0 for size in shape):
            raise InvalidArgumentError(f"input '{item.name}': shape is {list(shape)}; sizes are at least 0")
        inputs[item.name] = (
            from_bytes(item.name, item.datatype, shape, raw[number])
            if raw
            else _from_contents(item.name, item.datatype, shape, item.contents)
        )
    for output in request.outputs:
        refuse_unsupported(_parameters(output), f"output '{output.name}'")
    parameters = _parameters(request)
    refuse_unsupported(parameters, "the request")
    return InferRequest(
        request.model_name,
        with_missing(inputs, parameters.get("missing")),
        request.model_version or None,
        request_id_of(request.id),
        tuple(output.name for output in request.outputs),
        timeout_of(parameters.get("timeout")),
    )


def _parameters(message: Any) -> dict[str, Any]:
    """Return the values of the field `parameters` of a request, an input or an output."""
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "string_param") for name, value in message.parameters.items()
    }


def to_proto(answer: InferAnswer, *, raw: bool) -> inference_pb2.ModelInferResponse:
    """Convert an answer to a message. Args: raw: whether values are sent as raw bytes. If one output is FP16, all outputs are sent as raw bytes."""
    reply = inference_pb2.ModelInferResponse(model_name=answer.model, model_version=answer.version, id=answer.request_id)
    raw = raw or any(values.dtype == np.float16 for values in answer.outputs.values())
    for name, values in answer.outputs.items():
        datatype = datatype_of(values.dtype)
        output = reply.outputs.add(name=name, datatype=datatype, shape=values.shape)
        if raw:
            reply.raw_output_contents.append(to_bytes(values))
        else:
            getattr(output.contents, _FIELDS[datatype]).extend(values.ravel().tolist())
    return reply


def _from_contents(name: str, datatype: str, shape: tuple[int, ...], contents: inference_pb2.InferTensorContents) -> Tensor:
    field = _FIELDS.get(datatype)
    if field is None:
        raise InvalidArgumentError(f"input '{name}': {datatype} is sent in raw_input_contents only")
    found = getattr(contents, field)
    count = math.prod(shape)
    if len(found) != count:
        raise InvalidArgumentError(f"input '{name}' has {len(found)} values in {field}; its shape {list(shape)} has {count}")
    if datatype == "BYTES":
        values = np.empty(count, np.object_)
        values[:] = list(found)
        return reshaped(name, values, shape)
    wide = np.array(found)
    wanted = DTYPES[datatype]
    if wanted.kind in "iu" and count and not np.iinfo(wanted).min <= wide.min() <= wide.max() <= np.iinfo(wanted).max:
        raise InvalidArgumentError(f"input '{name}': a value in {field} does not fit into {datatype}")
    return reshaped(name, wide.astype(wanted), shape)


def _described(tensors: Sequence[TensorSignature]) -> list[inference_pb2.ModelMetadataResponse.TensorMetadata]:
    kind = inference_pb2.ModelMetadataResponse.TensorMetadata
    return [kind(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape) for tensor in tensors]
