"""Hot swaps of a served model under load: answers that fail or mix two versions, and how long a swap takes.

    python -m benchmark.online swap [--swaps 1000] [--clients 2] [--report]

A model whose weights are all the number of its version answers requests over HTTP, from clients in processes of their own. Each swap loads the
next version, warms it up beside the one that serves, and exchanges them. An answer is mixed if it names another version than its numbers come from.
Goals: no failed and no mixed answer, p99 of a swap at most 50 ms.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import time
from collections.abc import Mapping
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmark.machine import busy_cores, write_report
from modyn.config.endpoint import Endpoint
from modyn.config.security import SecurityConfig
from modyn.rpc.access import AccessTokens
from modyn.serving.http_app import HttpApp
from modyn.serving.http_server import HttpServer
from modyn.serving.model_server import ModelServer
from modyn.serving.predictor import VersionName
from modyn.serving.signature import ModelSignature, TensorSignature

WIDTH = 64
TARGET_MS = 50.0
SIGNATURE = ModelSignature((TensorSignature("input", "FP32", (-1, WIDTH)),), (TensorSignature("output", "FP32", (-1, 4)),))


class NumberedModel:
    """A linear model whose weights are all the number of its version: it answers rows of ones with WIDTH times that."""

    signature = SIGNATURE

    def __init__(self, name: VersionName) -> None:
        self._model = nn.Linear(WIDTH, 4, bias=False)
        nn.init.constant_(self._model.weight, int(name.version))

    def predict(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs of a batch."""
        with torch.inference_mode():
            return {"output": self._model(torch.from_numpy(np.ascontiguousarray(inputs["input"]))).numpy()}

    def check(self, inputs: Mapping[str, Any]) -> None:
        """The signature says all."""

    def close(self) -> None:
        """There is nothing to release."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.online swap", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--swaps", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=2, help="processes that ask all the time")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    server = ModelServer(NumberedModel)
    server.swap(VersionName("m", "1"))
    security = SecurityConfig()
    http_server = HttpServer(
        HttpApp(server, AccessTokens(security), None, 1 << 20), Endpoint(address="127.0.0.1:0", security=security)
    )
    context = get_context("spawn")
    stop, results = context.Event(), context.Queue()
    clients = [context.Process(target=_ask, args=(http_server.address, stop, results)) for _ in range(options.clients)]
    try:
        for client in clients:
            client.start()
        for _ in clients:
            results.get()  # Each has its first answer.
        swaps = []
        for version in range(2, options.swaps + 2):
            began = time.perf_counter()
            server.swap(VersionName("m", str(version)))
            swaps.append(1000 * (time.perf_counter() - began))
    finally:
        stop.set()
        found = [results.get() for client in clients if client.is_alive()]
        for client in clients:
            client.join()
        http_server.stop()
        server.close()
    latencies = np.concatenate([one["latencies"] for one in found])
    failed, mixed = (sum(one[name] for one in found) for name in ("failed", "mixed"))
    body = (
        f"{options.swaps:,} swaps, {len(latencies):,} answers to {options.clients} clients. Busy cores: {busy_cores():.1f}.\n\n"
        "| | |\n|---|---|\n"
        f"| failed answers | {failed} |\n| mixed answers | {mixed} |\n"
        f"| a swap (load, warm-up, exchange), p50 / p99, ms | {statistics.median(swaps):.2f} / {np.quantile(swaps, 0.99):.2f} |\n"
        f"| a request meanwhile, p50 / p99 / longest, ms | {np.median(latencies):.2f} / {np.quantile(latencies, 0.99):.2f} / "
        f"{latencies.max():.1f} |\n"
    )
    print(body)
    if options.report:
        command = f"python -m benchmark.online swap --swaps {options.swaps} --clients {options.clients}"
        print(f"report: {write_report('online-swap', command, body)}")


def _ask(address: str, stop: Any, results: Any) -> None:
    """Ask until it is stopped, one request after the other on one connection."""
    connection = http.client.HTTPConnection(address, timeout=60)
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, WIDTH], "data": [1.0] * WIDTH}
    body = json.dumps({"inputs": [tensor]})
    found: dict[str, Any] = {"failed": 0, "mixed": 0}
    latencies: list[float] = []
    while not stop.is_set():
        began = time.perf_counter()
        connection.request("POST", "/v2/models/m/infer", body)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        latencies.append(1000 * (time.perf_counter() - began))
        if answer.status != 200:
            found["failed"] += 1
        elif set(content["outputs"][0]["data"]) != {float(WIDTH * int(content["model_version"]))}:
            found["mixed"] += 1
        if len(latencies) == 1:
            results.put("begun")
    results.put({**found, "latencies": np.array(latencies)})
