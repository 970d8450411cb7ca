from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from modyn.rpc import memory

ROUNDS, BLOCK = 20, 8 * 2**20
PAGES = 3 * BLOCK // os.sysconf("SC_PAGE_SIZE")
"""Of one round."""
PROGRAM = f"""
import resource, sys
from modyn.rpc.memory import keep_freed_memory
exec(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    blocks = [bytearray({BLOCK}) for _ in range(3)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators decide for themselves")


def page_faults(call: str, **environment: str) -> int:
    """Pages that the system had to clear while messages came and went."""
    clean = {name: value for name, value in os.environ.items() if name not in memory.ENVIRONMENT}
    run = subprocess.run([sys.executable, "-c", PROGRAM, call], env=clean | environment, capture_output=True, text=True, check=True)
    return int(run.stdout)


def test_memory_that_was_freed_is_used_again() -> None:
    assert page_faults("keep_freed_memory()") < 2 * PAGES
    assert page_faults("", **memory.ENVIRONMENT) < 2 * PAGES
    assert page_faults("") > ROUNDS * PAGES / 2


def test_the_environment_has_the_last_word() -> None:
    assert page_faults("keep_freed_memory()", MALLOC_TRIM_THRESHOLD_="131072") > ROUNDS * PAGES / 2
