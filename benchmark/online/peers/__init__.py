"""Servers that `python -m benchmark.online serve` compares with, each a program in an environment of its own (`make serving-peers`).

Each reads the same request, calls the same model, and writes the same answer as ours. They import nothing of Modyn, whose libraries are not
there: the model and the words of the requests stand here.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import orjson
import torch
from torch import nn

WIDTH, HIDDEN, CLASSES = 64, 128, 10
PATH = "/v2/models/m/infer"
READY = "serving at "
"""The line that a server writes to its output once it answers, before its address."""


def served_model() -> nn.Module:
    """The model of all sides."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)).eval()


def request_body() -> bytes:
    """A request for one row."""
    row = np.random.default_rng(0).normal(size=WIDTH).astype(np.float32).tolist()
    return orjson.dumps({"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, WIDTH], "data": row}]})


def answered(model: nn.Module, body: bytes) -> bytes:
    """Answer like a handwritten handler: decode, predict, encode; nothing is checked."""
    tensor: dict[str, Any] = orjson.loads(body)["inputs"][0]
    with torch.inference_mode():
        found = model(torch.tensor(tensor["data"], dtype=torch.float32).reshape(tensor["shape"])).numpy()
    output = {"name": "output", "datatype": "FP32", "shape": found.shape, "data": found.ravel()}
    return orjson.dumps({"model_name": "m", "model_version": "1", "outputs": [output]}, option=orjson.OPT_SERIALIZE_NUMPY)


def say_ready(address: str) -> None:
    """Write that the server answers."""
    print(f"{READY}{address}", flush=True)


def wait_for_end() -> None:
    """Return once the input is closed, which is how the benchmark ends a server."""
    sys.stdin.read()
