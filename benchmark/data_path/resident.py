"""Memory that a process has to itself, watched while something happens. Pages of files that it maps are the page cache's, not its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_EVERY_S = 0.005
MIB = 2**20


@dataclass(slots=True)
class Watched:
    """Bytes before, and the most of them since."""

    before: int
    peak: int

    @property
    def grown_mib(self) -> float:
        return (self.peak - self.before) / MIB


def own_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


@contextmanager
def watching(pid: int) -> Iterator[Watched]:
    """Looks 200 times a second until the block ends."""
    now = own_bytes(pid)
    watched = Watched(now, now)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_EVERY_S):
            watched.peak = max(watched.peak, own_bytes(pid))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        ended.set()
        thread.join()
