"""Predictions a second over HTTP, compared with the same model in a handler that is written by hand.

    python -m benchmark.online serve [--connections 1 16 64] [--seconds 5] [--rounds 3] [--report]

Ours: the model server of `modyn serve` with its checks, batches, versions and metrics, over the Open Inference Protocol. FastAPI (an asynchronous
handler on Uvicorn) and Ray Serve (one replica) read the same requests and call the same model, an MLP 64-128-10 on one row and one thread of PyTorch;
they are in an environment of their own (`make serving-peers`) and left out without it. Each side is one process (Ray Serve is several), asked by
one client process on the same machine, one request at a time on each connection; sides take turns. Also shown is a bare ASGI application on Uvicorn,
without routing and checks: what HTTP costs at least. Goal: at least 1.0 of the best of FastAPI and Ray Serve, with each number of connections.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmark.data_path.side_process import ROOT
from benchmark.machine import busy_cores, write_report
from benchmark.online.http_load import Answers, Load, ask
from benchmark.online.peers import PATH, READY, request_body

TARGET: Final = 1.0
PYTHON: Final = ROOT / ".venv-serving-peers" / "bin" / "python"
SIDES: Final[dict[str, tuple[str, Path, str]]] = {
    "ours": ("benchmark.online.our_server", Path(sys.executable), "modyn"),
    "FastAPI": ("benchmark.online.peers.fastapi_handler", PYTHON, "fastapi"),
    "Ray Serve": ("benchmark.online.peers.ray_serve", PYTHON, "ray.serve"),
    "bare Uvicorn": ("benchmark.online.peers.bare_uvicorn", Path(sys.executable), "uvicorn"),
}
"""The program of each side, the Python that runs it, and what must be there to import."""
COMPARED: Final = ("FastAPI", "Ray Serve")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.online serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds of all sides in turn")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    missing = {name: why for name in options.sides if (why := why_missing(name))}
    sides = [name for name in options.sides if name not in missing]
    found: dict[tuple[str, int], list[Answers]] = {}
    for _ in range(options.rounds):
        for name in sides:
            with running(name) as address:
                for connections in options.connections:
                    load = Load(address, PATH, request_body(), connections, options.seconds)
                    found.setdefault((name, connections), []).append(check(name, ask(load)))
    last = summary(found, options.connections)
    body = (
        f"{options.seconds:g} s each, medians of {options.rounds} rounds in turn. Busy cores: {busy_cores():.1f}.\n\n"
        f"{table(found)}\n\n" + "".join(f"{name}: {why}\n" for name, why in missing.items()) + f"{last}\n"
    )
    print(body, end="")
    if options.report:
        command = f"python -m benchmark.online serve --seconds {options.seconds:g} --rounds {options.rounds}"
        print(f"report: {write_report('online-serve', command, body)}")


def why_missing(name: str) -> str:
    """Return why a side cannot run; empty: it can."""
    _, python, module = SIDES[name]
    if not python.exists():
        return "not installed; make serving-peers"
    done = subprocess.run([python, "-c", f"import {module}"], cwd=ROOT, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"cannot be imported ({done.stderr.strip().splitlines()[-1]}); make serving-peers"


@contextmanager
def running(name: str) -> Iterator[str]:
    """Start a side; yield its address."""
    module, python, _ = SIDES[name]
    command, pipe = [str(python), "-m", module], subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            line = next((line for line in process.stdout if line.startswith(READY)), None)
            if line is None:
                errors.seek(0)
                raise SystemExit(f"{name} did not start:\n{errors.read()[-4000:]}")
            yield line.removeprefix(READY).strip()
        finally:
            process.communicate(timeout=60)  # closes its input, which ends it


def check(name: str, answers: Answers) -> Answers:
    """Return the answers. Raises SystemExit: some failed, or the last one is not a prediction."""
    head, _, content = answers.last.partition(b"\r\n\r\n")
    if answers.failed or len(json.loads(content)["outputs"][0]["data"]) != 10:
        raise SystemExit(f"{name} failed {answers.failed} requests; its last answer: {head[:80]!r} {content[:200]!r}")
    return answers


def table(found: Mapping[tuple[str, int], Sequence[Answers]]) -> str:
    """Return a row for each side and number of connections."""
    lines = ["| server | connections | predictions/s | p50, ms | p99, ms |", "|---|---|---|---|---|"]
    for (name, connections), rounds in sorted(found.items(), key=lambda item: item[0][1]):
        rate, p50, p99 = (
            statistics.median(values)
            for values in ([a.rate for a in rounds], [a.quantile(0.5) for a in rounds], [a.quantile(0.99) for a in rounds])
        )
        lines.append(f"| {name} | {connections} | {rate:,.0f} | {p50:.2f} | {p99:.2f} |")
    return "\n".join(lines)


def summary(found: Mapping[tuple[str, int], Sequence[Answers]], connections: Sequence[int]) -> str:
    """Return the last line: the least ratio of our rate to that of the best peer, over the numbers of connections."""
    rates = {key: statistics.median(answers.rate for answers in rounds) for key, rounds in found.items()}
    ratios = [
        rates["ours", number] / max(rates[name, number] for name in COMPARED if (name, number) in rates)
        for number in connections
        if ("ours", number) in rates and any((name, number) in rates for name in COMPARED)
    ]
    return f"serve: {min(ratios):.2f} (target {TARGET})" if ratios else f"serve: nothing to compare with (target {TARGET})"
