"""Time from `modyn models rollback` to the last answer of the version that it removes.

    python -m benchmark.online rollback [--rollbacks 100] [--commands 5] [--report]

An embedded stack, a run with two versions, and `modyn serve` with its defaults in a process of its own, which clients ask without pause on four
connections. A rollback counts from the call of model storage to the last answer of the version that is taken back, or to the first one of the version
before, whichever is later. The same for the promotion of the newer version, which is warm by then as well, and for the command `modyn models
rollback` with its start. Goal: each rollback within 1 s (the command's start, most of which is Python's, is shown, and is no part of it).
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmark.evidence.proactive_streams import STREAMS
from benchmark.online.asking import Seen, asking
from benchmark.online.measured_run import input_of, installed, request_of, serving, show
from modyn.records import RunId
from modyn.supervisor.client import RunState

TARGET_S: Final = 1.0
CONNECTIONS: Final = 4
WHAT: Final = ("promotion", "rollback", "rollback by the command")
_GIVE_UP_S: Final = 60.0
_SETTLE_S: Final = 0.1
_LOOK_S: Final = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.online rollback", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollbacks", type=int, default=100)
    parser.add_argument("--commands", type=int, default=5, help="number of rollbacks by the command")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modyn-rollback-") as folder:
        seen, changes = measure(Path(folder), options.rollbacks, options.commands)
    seconds = {what: [taken(seen, change) for change in changes if change.what == what] for what in WHAT}
    lines = ["| | p50, s | p99, s | longest, s |", "|---|---|---|---|"]
    lines += [_row(f"a {what}", found) for what, found in seconds.items() if found]
    last = f"rollback: {max(seconds['rollback']):.2f} s (target {TARGET_S:g})"
    measured = (
        f"{options.rollbacks} promotions and rollbacks, {options.commands} by the command; {len(seen):,} answers on {CONNECTIONS} connections, "
        f"{seen.failed} failed answers."
    )
    command = f"--rollbacks {options.rollbacks} --commands {options.commands}"
    show("rollback", measured, lines, last, command if options.report else None)


@dataclass(frozen=True)
class Change:
    """Change of the serving version, between two times of `time.perf_counter`: its begin, and that of the next change."""

    what: str
    before: int
    after: int
    begin: float
    end: float


def taken(seen: Seen, change: Change) -> float:
    """Return the seconds until the new version has answered and the old version no longer answers."""
    within = (seen.at >= change.begin) & (seen.at < change.end)
    of_after, of_before = (seen.at[within & (seen.versions == version)] for version in (change.after, change.before))
    return float(max(of_after.min(), of_before.max(initial=change.begin)) - change.begin)


def measure(folder: Path, num_rollbacks: int, num_commands: int) -> tuple[Seen, list[Change]]:
    """Answers that clients got, and the changes meanwhile."""
    stream = STREAMS["taxi"]
    sections = {"trigger": {"id": "DataAmountTrigger", "num_samples": 2000}}
    with installed(stream, 4000, sections, folder) as (client, path):
        run = client.wait(client.run(path).run_id)
        if run.state is not RunState.FINISHED:
            raise SystemExit(f"{run.run_id} is {run.state}: {run.error}")
        run_id, models = RunId(run.run_id), client.model_storage
        first, second = sorted(info.version.model_id for info in models.list(run_id))
        models.promote(first)
        command = [
            sys.executable,
            "-m",
            "modyn.cli.main",
            "--state-dir",
            str(client.config.state_dir),
            "models",
            "rollback",
            run_id,
        ]
        with (
            serving(client, run_id, input_of(stream), "promoted") as address,
            asking(address, request_of(stream), CONNECTIONS) as seen,
        ):
            asked = _Asked(address, request_of(stream))
            asked.wait_for(first)
            begun = list[tuple[str, int, int, float]]()

            def change(what: str, before: int, after: int, call: Callable[[], object]) -> None:
                begun.append((what, before, after, time.perf_counter()))
                call()
                asked.wait_for(after)
                time.sleep(_SETTLE_S)  # in which answers of the version before would be seen

            for _ in range(num_rollbacks):
                change("promotion", first, second, lambda: models.promote(second))
                change("rollback", second, first, lambda: models.rollback(run_id))
            for _ in range(num_commands):
                change("promotion", first, second, lambda: models.promote(second))
                change("rollback by the command", second, first, lambda: subprocess.run(command, check=True, capture_output=True))
    ends = [*(begin for *_, begin in begun[1:]), math.inf]
    return seen, [Change(*one, end) for one, end in zip(begun, ends, strict=True)]


class _Asked:
    """Server that gets requests on one connection."""

    def __init__(self, address: str, body: bytes) -> None:
        self._connection, self._body = http.client.HTTPConnection(address, timeout=60), body

    def wait_for(self, version: int) -> None:
        """Send requests until a version answers. Raises SystemExit: it never does."""
        give_up = time.perf_counter() + _GIVE_UP_S
        while time.perf_counter() < give_up:
            self._connection.request("POST", "/v2/models/m/infer", self._body)
            answer = self._connection.getresponse()
            content = json.loads(answer.read())
            if answer.status == 200 and content["model_version"] == str(version):
                return
            time.sleep(_LOOK_S)
        raise SystemExit(f"version {version} does not answer within {_GIVE_UP_S:g} s, but {content}")


def _row(what: str, seconds: Sequence[float]) -> str:
    return f"| {what} | {np.median(seconds):.3f} | {np.quantile(seconds, 0.99):.3f} | {max(seconds):.3f} |"
