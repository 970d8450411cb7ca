"""The resources of the idle stack are read from /proc and summed."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmark.idle_stack import Process, describe, look, name_of, tree


def test_a_process_and_its_children_are_found_and_known_by_what_they_run() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "http.server", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        found = {process.pid: process for pid in tree(os.getpid()) if (process := look(pid)) is not None}
        child.kill()
    assert found[child.pid].parent == os.getpid()
    assert found[os.getpid()].pss > 0
    assert name_of([sys.executable, "-m", "http.server", "0", ""]) == "http.server 0"
    assert name_of([sys.executable, "-c", "from multiprocessing.forkserver import main; main(1)"]) == "forkserver"
    assert name_of(["postgres: checkpointer ", ""]) == "postgres: checkpointer"


def test_time_of_what_has_ended_counts_and_growth_is_told() -> None:
    parent, child = Process(1, 0, "service", 10 << 20, 5.0), Process(2, 1, "worker", 20 << 20, 2.0)
    after = [
        Process(1, 0, "service", 12 << 20, 8.0),
        Process(3, 1, "postgres", 1 << 20, 0.0),
    ]  # the child's 2 s are the parent's now
    text = describe([parent, child], after, 100.0)
    assert "| service | 12.0 | +2.0 | 3.00 |" in text
    assert "| postgres (new) | 1.0 | | |" in text
    assert text.endswith("2 processes, PSS 13 MiB, 1.00 % of a core, growth -17.0 MiB in 1.7 minutes.")
