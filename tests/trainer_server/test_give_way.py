"""Trainings beside predictions give way, and never take back what they gave."""

from __future__ import annotations

import subprocess
import sys


def test_a_process_is_at_least_as_nice_as_it_should_be() -> None:
    program = (
        "import os\n"
        "from modyn.trainer_server.train import give_way\n"
        "before = os.nice(0)\n"
        "for wanted in (before, before + 3, before):\n"
        "    give_way(wanted)\n"
        "    print(os.nice(0) - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "3", "3"]
