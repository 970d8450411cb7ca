"""A program that calls a server by tritonclient, the public client of the protocol: `triton_client.py http|grpc ADDRESS`.

Not in the process of the tests: its generated code has the same names of messages as ours, of which a process can hold one.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np


def check(kind: str, address: str) -> None:
    """Call all that the client has of the protocol. Raises AssertionError: an answer is wrong."""
    triton: Any = importlib.import_module(f"tritonclient.{kind}")
    failure: Any = importlib.import_module("tritonclient.utils").InferenceServerException
    client = triton.InferenceServerClient(address)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m")
    assert client.is_model_ready("m", "1")
    as_json = {} if kind == "http" else {"as_json": True}
    assert client.get_server_metadata(**as_json)["name"] == "modyn"
    described = client.get_model_metadata("m", **as_json)
    assert [tensor["name"] for tensor in described["inputs"]] == ["input"], described
    assert [tensor["datatype"] for tensor in described["outputs"]] == ["FP32", "INT64"], described

    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    for binary in (True, False) if kind == "http" else (True,):
        tensor = triton.InferInput("input", [4, 3], "FP32")
        tensor.set_data_from_numpy(values, **({"binary_data": binary} if kind == "http" else {}))
        wanted = [triton.InferRequestedOutput("sum", **({"binary_data": binary} if kind == "http" else {}))]
        for outputs in (None, wanted):
            answer = client.infer("m", [tensor], request_id="seven", outputs=outputs)
            assert answer.as_numpy("sum").tolist() == [3, 12, 21, 30]
            assert (answer.as_numpy("version") is None) == (outputs is not None)
        pinned = client.infer("m", [tensor], model_version="2")
        assert pinned.as_numpy("version").tolist() == [[2] * 4] * 4
        reply = pinned.get_response()
        assert (reply["model_version"] if kind == "http" else reply.model_version) == "2"
        with_timeout = client.infer("m", [tensor], timeout=10_000_000)
        assert with_timeout.as_numpy("sum").tolist() == [3, 12, 21, 30]

    missing = {"missing": '{"input": [4]}'}
    for model, tensors, parameters, message in (
        ("other", [tensor], None, "there is no model 'other'; served here: m"),
        ("m", [], None, "input 'input' is missing"),
        ("m", [tensor], missing, "input 'input' holds NaN at [1, 1]"),
    ):
        refused = ""
        try:
            client.infer(model, tensors, parameters=parameters)
        except failure as error:
            refused = str(error)
        assert message in refused
    client.close()


if __name__ == "__main__":
    check(sys.argv[1], sys.argv[2])
    print("all answers are right")
