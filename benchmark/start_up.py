"""Time from `modyn up` until the embedded stack is healthy, once its state folder is initialised.

    python -m benchmark.start_up [--runs 5] [--report]

Nothing is compared: the last line is the median in seconds (goal: at most 5 on 2 cores).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmark.machine import spread, write_report
from modyn.client import Client
from modyn.config.system import SystemConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="measured starts, after the one that initialises the folder")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modyn-start-") as folder:
        client = Client(SystemConfig(state_dir=Path(folder)))
        first, *seconds = (timed_start(client) for _ in range(options.runs + 1))
    print(f"first start, with initialisation: {first:.2f} s")
    print(f"starts after it: {spread(seconds)}")
    if options.report:
        body = f"First start, with initialisation: {first:.2f} s. Starts after it, median (range) of {len(seconds)}: {spread(seconds)}."
        print(f"report: {write_report('start-up', f'python -m benchmark.start_up --runs {options.runs}', body)}")
    print(f"seconds: {statistics.median(seconds):.2f}")


def timed_start(client: Client) -> float:
    """Start the stack, return the seconds until every service is healthy, and stop it."""
    started = time.perf_counter()
    client.up()
    seconds = time.perf_counter() - started
    client.down()
    return seconds


if __name__ == "__main__":
    main()
