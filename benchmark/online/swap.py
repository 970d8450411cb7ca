"""Hot swaps of a served model under load: failed answers, answers that mix two versions, and the time of a swap.

    python -m benchmark.online swap [--swaps 1000] [--connections 16] [--report]

As in production: `modyn serve` follows a run of an embedded stack, whose versions (an MLP 64-128-10 of weights in files) lie in model storage. Each
swap is the promotion of a version that was never loaded: the server sees it, fetches the file, builds the model, warms it up next to the one that
serves, and exchanges the table of routes. Clients in a process of their own ask without pause on all connections. All outputs of a version are one
number, to which all of its weights add: an answer is mixed if it names another version than its numbers come from, or if they differ.

A swap is measured in the server, as its log says it: from the begin of the load to the exchange. What the server waits before it looks is no part of
it; the time from the call of the promotion on, which includes that, has its own row. Goals: no failed and no mixed answer, p99 of a swap at most
50 ms.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmark.evidence.proactive_streams import STREAMS
from benchmark.online.asking import Seen, asking
from benchmark.online.measured_run import pipeline_file, serving, show, stack
from modyn.client import Client
from modyn.model_storage.client import ModelHeader
from modyn.models.weights import build_model, save_weights
from modyn.records import RunId
from modyn.supervisor.client import RunState
from modyn.testing.waiting import eventually

WIDTH, HIDDEN, CLASSES = 64, 128, 10
MODEL: Final[dict[str, Any]] = {"input_size": WIDTH, "hidden_sizes": [HIDDEN], "num_classes": CLASSES}
TARGET_MS: Final = 50.0
LOOK_S: Final = 0.02
"""Seconds between two checks of the server for a promoted version: short, so that swaps follow one another."""


@dataclass(frozen=True)
class Swapped:
    """Milliseconds of a swap. waited: from the call that promotes to the log line that says that the version serves."""

    load: float
    exchange: float
    waited: float


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.online swap", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--swaps", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=16, help="connections that send requests all the time")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modyn-swap-") as folder, stack(Path(folder)) as client:
        seen, swaps, expected = measure(client, Path(folder), options.swaps, options.connections)
    num_mixed = mixed(seen, expected)
    whole = [swap.load + swap.exchange for swap in swaps]
    lines = ["| | |", "|---|---|", f"| failed answers | {seen.failed} |", f"| mixed answers | {num_mixed} |"]
    lines += [
        f"| a swap (load from model storage, warm-up, exchange), p50 / p99, ms | {_quantiles(whole)} |",
        f"| of that the exchange, p50 / p99, ms | {_quantiles([swap.exchange for swap in swaps])} |",
        f"| from the call of the promotion on (looked for each {1000 * LOOK_S:g} ms), p50 / p99, ms | {_quantiles([s.waited for s in swaps])} |",
        f"| a request meanwhile, p50 / p99 / longest, ms | {_quantiles(seen.latencies_ms)} / {seen.latencies_ms.max():.1f} |",
    ]
    measured = (
        f"{len(swaps):,} swaps to versions that were never loaded, {len(seen):,} answers ({len(seen) / seen.seconds:,.0f}/s) of "
        f"{len(np.unique(seen.versions)):,} versions on {options.connections} connections."
    )
    last = f"swap: {np.quantile(whole, 0.99):.2f} ms (target {TARGET_MS:g}), {seen.failed} failed, {num_mixed} mixed"
    command = f"--swaps {options.swaps} --connections {options.connections}"
    show("swap", measured, lines, last, command if options.report else None)


def measure(client: Client, folder: Path, num_swaps: int, connections: int) -> tuple[Seen, list[Swapped], dict[int, float]]:
    """Answers that clients got, all swaps, and the value that each version answers."""
    run_id = _run(client, folder)
    answered = {store(client, run_id, number, folder): number * (HIDDEN + 1.0) for number in range(1, num_swaps + 2)}
    first, *others = answered
    client.model_storage.promote(first)
    log, swaps = list[str](), list[Swapped]()
    settings = {"poll_interval_s": LOOK_S}
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, WIDTH], "data": [1.0] * WIDTH}
    body = json.dumps({"inputs": [tensor]}).encode()
    with (
        serving(client, run_id, f"{WIDTH}:float32", "promoted", log, settings) as address,
        asking(address, body, connections) as seen,
    ):
        for model_id in others:
            read, began = len(log), time.perf_counter()
            client.model_storage.promote(model_id)
            event = eventually(lambda read=read, model_id=model_id: served(log[read:], model_id))  # type: ignore[misc]
            assert event is not None
            waited = time.perf_counter() - began
            swaps.append(Swapped(1000 * event["load_s"], 1000 * event["exchange_s"], 1000 * waited))
    return seen, swaps, answered


def served(lines: Sequence[str], model_id: int) -> dict[str, Any] | None:
    """Return the event of a log that says that a version serves; None: there is none."""
    events = (json.loads(line) for line in lines if '"version_serves"' in line)
    return next((event for event in events if event["version"] == str(model_id)), None)


def mixed(seen: Seen, expected: dict[int, float]) -> int:
    """Return the number of answers with other values than the version that they name gives."""
    versions, at = np.unique(seen.versions, return_inverse=True)
    numbers = np.array([expected.get(version, np.nan) for version in versions.tolist()])
    return int((seen.values != numbers[at]).sum())


def store(client: Client, run_id: RunId, number: int, folder: Path) -> int:
    """Put a version of a run into model storage that answers rows of ones with `number` times (HIDDEN + 1); return its id."""
    module: Any = build_model("MLP", MODEL)
    for name, values in (
        ("hidden.0.weight", 1 / WIDTH),
        ("hidden.0.bias", 0.0),
        ("output.weight", number),
        ("output.bias", number),
    ):
        module.get_parameter(name).data.fill_(values)
    path = folder / "version.safetensors"
    save_weights(module, path)
    # The run itself has taken the first triggers.
    header = ModelHeader(run_id=run_id, trigger_id=1000 + number, model_class="MLP", model_config=MODEL)
    return client.model_storage.put(header, path).model_id


def _run(client: Client, folder: Path) -> RunId:
    """Make a finished run, whose versions can be served."""
    stream = STREAMS["taxi"]
    dataset = stream.register(client, folder / "data", 0, 2000)
    path = pipeline_file(folder, stream, dataset, {"trigger": {"id": "DataAmountTrigger", "num_samples": 2000}})
    run = client.wait(client.run(path).run_id)
    if run.state is not RunState.FINISHED:
        raise SystemExit(f"{run.run_id} is {run.state}: {run.error}")
    return RunId(run.run_id)


def _quantiles(values: Any) -> str:
    return f"{np.median(values):.2f} / {np.quantile(values, 0.99):.2f}"
