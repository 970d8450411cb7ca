"""How long after `modyn models rollback` the version before answers.

    python -m benchmark.online rollback [--rollbacks 100] [--report]

An embedded stack, a run with two versions, and `modyn serve` in a process of its own, which is asked all the time on one connection. Measured from
the call of model storage, without the start of the command, to the first answer of the version that it goes back to. The same for the promotion of
the newer version, which is warm by then as well. Goal: each rollback within 1 s.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmark.evidence.proactive_streams import STREAMS
from benchmark.online.measured_run import input_of, installed, request_of, serving, show
from modyn.records import RunId
from modyn.supervisor.client import RunState

TARGET_S: Final = 1.0
_GIVE_UP_S: Final = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.online rollback", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollbacks", type=int, default=100)
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modyn-rollback-") as folder:
        promotions, rollbacks, failed = measure(Path(folder), options.rollbacks)
    lines = ["| | p50, s | p99, s | longest, s |", "|---|---|---|---|"]
    lines += [_row("a promotion", promotions), _row("a rollback", rollbacks)]
    last = f"rollback: {max(rollbacks):.2f} s (target {TARGET_S:g})"
    measured = f"{options.rollbacks} of each, {failed} failed answers."
    show("rollback", measured, lines, last, f"--rollbacks {options.rollbacks}" if options.report else None)


def measure(folder: Path, count: int) -> tuple[list[float], list[float], int]:
    """Seconds of promotions and of rollbacks, and the number of answers that failed."""
    stream = STREAMS["taxi"]
    found: tuple[list[float], list[float]] = ([], [])
    sections = {"trigger": {"id": "DataAmountTrigger", "num_samples": 2000}}
    with installed(stream, 4000, sections, folder) as (client, path):
        run = client.wait(client.run(path).run_id)
        if run.state is not RunState.FINISHED:
            raise SystemExit(f"{run.run_id} is {run.state}: {run.error}")
        first, second = sorted(info.version.model_id for info in client.model_storage.list(RunId(run.run_id)))
        client.model_storage.promote(first)
        with serving(client, run.run_id, input_of(stream), "promoted") as address:
            asked = _Asked(address, request_of(stream))
            asked.wait_for(first)
            for _ in range(count):
                began = time.perf_counter()
                client.model_storage.promote(second)
                found[0].append(asked.wait_for(second) - began)
                began = time.perf_counter()
                client.model_storage.rollback(RunId(run.run_id))
                found[1].append(asked.wait_for(first) - began)
            return *found, asked.failed


class _Asked:
    """A server that is asked on one connection."""

    def __init__(self, address: str, body: bytes) -> None:
        self._connection, self._body = http.client.HTTPConnection(address, timeout=60), body
        self.failed = 0

    def wait_for(self, version: int) -> float:
        """Ask until a version answers; return when it did. Raises SystemExit: it never does."""
        give_up = time.perf_counter() + _GIVE_UP_S
        while time.perf_counter() < give_up:
            self._connection.request("POST", "/v2/models/m/infer", self._body)
            answer = self._connection.getresponse()
            content = json.loads(answer.read())
            if answer.status != 200:
                self.failed += 1
            elif content["model_version"] == str(version):
                return time.perf_counter()
        raise SystemExit(f"version {version} does not answer within {_GIVE_UP_S:g} s, but {content}")


def _row(what: str, seconds: Sequence[float]) -> str:
    return f"| {what} | {np.median(seconds):.3f} | {np.quantile(seconds, 0.99):.3f} | {max(seconds):.3f} |"
