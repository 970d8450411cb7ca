"""Memory that a process and those below it have to themselves, watched while something happens. Pages of files that they map are the page
cache's, not their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmark.machine import family

_EVERY_S = 0.005
MIB = 2**20


@dataclass(slots=True)
class Watched:
    """before: bytes that each process had when it was first seen, by its id; a worker is born with pages of the process it was forked from.
    grown: the most that all together had beyond that."""

    before: dict[int, int] = field(default_factory=dict)
    grown: int = 0

    def look(self, pid: int) -> None:
        now = {member: own_bytes(member) for member in family(pid)}
        for member, size in now.items():
            self.before.setdefault(member, size)
        self.grown = max(self.grown, sum(size - self.before[member] for member, size in now.items()))


def own_bytes(pid: int) -> int:
    """Return the anonymous and shared memory of a process; none if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


@contextmanager
def watching(pid: int, before: Mapping[int, int] | None = None) -> Iterator[Watched]:
    """Measure 200 times a second until the block ends. Args: before: of processes that an earlier run has seen."""
    watched = Watched(dict(before or {}))
    watched.look(pid)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_EVERY_S):
            watched.look(pid)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        ended.set()
        thread.join()
