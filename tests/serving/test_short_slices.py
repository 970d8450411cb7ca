"""A serving process asks for short time slices, and no other process gets them."""

import subprocess
import sys
from pathlib import Path

import pytest

SLICE_OF_THREADS = """
import os, threading
from modyn.serving.short_slices import take_short_slices
assert take_short_slices()
def show():
    print(open(f"/proc/self/task/{threading.get_native_id()}/sched").read())
show()
thread = threading.Thread(target=show)
thread.start()
thread.join()
"""


def slices(text: str) -> list[int]:
    return [int(line.split(":")[1]) for line in text.splitlines() if line.startswith("se.slice")]


def test_threads_of_a_serving_process_have_short_slices() -> None:
    own = slices(Path("/proc/self/sched").read_text()) if Path("/proc/self/sched").is_file() else []
    if not own:
        pytest.skip("this kernel does not say how long the slices of a process are")
    found = subprocess.run([sys.executable, "-c", SLICE_OF_THREADS], capture_output=True, text=True, timeout=60, check=True)
    assert slices(found.stdout) == [300_000, 300_000]
    assert own[0] > 300_000
