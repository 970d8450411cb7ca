"""What reading costs while Redis is broken in the middle of an epoch over JPEG files of about 60 KB.

    python -m benchmark.cache faults [--samples 3000] [--rounds 3] [--workers 2] [--report]

Redis is killed, stopped (SIGSTOP), slow (each answer takes 80 ms more), full (`maxmemory`) or flushed, in the middle half of the second epoch of
four; the first one has filled it. Per fault: the longest time between two batches, less the longest without a
cache; the speed in this half of the epoch, against no cache; and the part of the samples that the last epoch finds. Batches are compared
with those without a cache. The last line gives the least of these speeds (goal: at least 0.95) and the longest stall (at most 250 ms).
"""

from __future__ import annotations

import argparse
import hashlib
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from redis import Redis

from benchmark.cache.reading import Images, command, images, ratio
from benchmark.machine import busy_cores, write_report
from modyn.cache.keys import NAMESPACE_BYTES
from modyn.cache.tier import TierPlace
from modyn.dataset.batch import Batch
from modyn.dataset.cache_source import CacheSource
from modyn.local.databases import RedisServer

NAME = "cache-faults"
EPOCHS: Final = 4
AHEAD: Final = 2
"""Batches that each process makes ahead."""
SLOW_ANSWER_S: Final = 0.08
"""In time, for an answer may take 0.1 s."""


class SlowProxy:
    """Passes on what a Unix socket says, after a pause while `pause_s` is not 0. For any number of connections."""

    def __init__(self, path: Path, target: str) -> None:
        self.url = f"unix://{path}"
        self.pause_s = 0.0
        self._target = target.removeprefix("unix://")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that are there end with their clients."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, waits: bool) -> None:
        content, last = memoryview(bytearray(1 << 20)), 0.0
        try:
            while size := source.recv_into(content):
                # Once for each answer, of which the parts follow each other at once.
                if waits and self.pause_s and time.monotonic() - last > self.pause_s / 2:
                    time.sleep(self.pause_s)
                last = time.monotonic()
                target.sendall(content[:size])
        except OSError:
            pass  # One end has gone.
        finally:
            target.close()


class BrokenRedis(RedisServer):
    """A Redis of its own, and what may happen to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "redis", folder)
        self.start()
        self.slow = SlowProxy(folder / "slow.sock", self.url)

    def ask(self, commands: str) -> None:
        """Send some commands."""
        with Redis.from_url(self.url) as client:
            for words in commands.split("; "):
                client.execute_command(*words.split())

    def signal(self, number: int) -> None:
        """Send a signal to its process."""
        assert self._process is not None
        self._process.send_signal(number)

    def start_again(self) -> None:
        """Start it, once it is dead."""
        assert self._process is not None
        self._process.wait()
        self.start()


@dataclass(frozen=True, slots=True)
class Fault:
    """What breaks, and what mends it."""

    begin: Callable[[BrokenRedis], object]
    end: Callable[[BrokenRedis], object]


FAULTS: Final = {
    "none": Fault(lambda server: None, lambda server: None),
    "killed": Fault(lambda server: server.signal(signal.SIGKILL), BrokenRedis.start_again),
    "stopped": Fault(lambda server: server.signal(signal.SIGSTOP), lambda server: server.signal(signal.SIGCONT)),
    "slow": Fault(
        lambda server: setattr(server.slow, "pause_s", SLOW_ANSWER_S), lambda server: setattr(server.slow, "pause_s", 0.0)
    ),
    # Without what it holds, so that there is something to keep.
    "full": Fault(
        lambda server: server.ask("FLUSHALL; CONFIG SET maxmemory 1"),
        lambda server: server.ask("CONFIG SET maxmemory 0"),
    ),
    "flushed": Fault(lambda server: server.ask("FLUSHALL"), lambda server: None),
}


@dataclass(frozen=True, slots=True)
class Epochs:
    """What was measured of one reading."""

    gaps_s: list[float]
    """Between two batches, in the middle half of the second epoch."""
    num_cached: list[int]
    """Samples of each epoch that came from the cache."""
    digest: str
    """Of all batches."""

    def batch_s(self, workers: int) -> float:
        """Seconds of a batch there, without those that had been made when it began."""
        return statistics.mean(self.gaps_s[AHEAD * workers + 1 :])


def read(
    found: Images, cache: CacheSource | None, workers: int, begin: Callable[[], object], end: Callable[[], object]
) -> Epochs:
    """Read all epochs. Args: begin, end: called in the second epoch, when its middle half begins and ends."""
    num_batches, last = 0, 0.0
    gaps: list[float] = []
    cached = [0] * EPOCHS
    digest = hashlib.sha256()
    batch: Batch
    with found.batches(cache, EPOCHS, workers) as (batches, a_epoch):
        for batch in batches:
            epoch, index = divmod(num_batches, a_epoch)
            now = time.perf_counter()
            if epoch == 1 and a_epoch // 4 < index <= 3 * a_epoch // 4:
                gaps.append(now - last)
            digest.update(batch.keys.numpy().tobytes())
            assert isinstance(batch.data, torch.Tensor)
            digest.update(batch.data[:, :, ::16, ::16].numpy().tobytes())
            cached[epoch] += sum(batch.cached)
            if (epoch, index) == (1, a_epoch // 4):
                begin()
            elif (epoch, index) == (1, 3 * a_epoch // 4):
                end()
            last = time.perf_counter()
            num_batches += 1
    return Epochs(gaps, cached, digest.hexdigest())


@contextmanager
def broken_redis() -> Iterator[BrokenRedis]:
    """One that is ended at the end, whatever has happened to it."""
    with tempfile.TemporaryDirectory(prefix="modyn-") as folder, ExitStack() as stack:
        server = BrokenRedis(Path(folder))
        stack.callback(server.stop)
        stack.callback(server.slow.close)
        yield server


def measure(found: Images, name: str, workers: int) -> tuple[Epochs, Epochs]:
    """Read with a cache in a Redis that breaks, and without a cache."""
    fault = FAULTS[name]
    with broken_redis() as server:
        place = TierPlace("decoded", bytes(NAMESPACE_BYTES), found.budget(1.2))
        cache = CacheSource("redis", server.slow.url if name == "slow" else server.url, {"decoded": place})
        ours = read(found, cache, workers, lambda: fault.begin(server), lambda: fault.end(server))
    return ours, read(found, None, workers, lambda: None, lambda: None)


def main() -> None:
    """Measure, and print the last line `faults: 0.98, longest stall 130 ms`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes that decode")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    busy = busy_cores()
    rows, worst, longest_s = [], float("inf"), 0.0
    with images(options.samples) as found:
        for name in FAULTS:
            rounds = [measure(found, name, options.workers) for _ in range(options.rounds)]
            if any(ours.digest != theirs.digest for ours, theirs in rounds):
                raise SystemExit(f"{name}: other batches than without a cache")
            speed = ratio(*([side.batch_s(options.workers) for side in sides] for sides in zip(*rounds, strict=True)))
            stall_s = max(0.0, *(max(ours.gaps_s) - max(theirs.gaps_s) for ours, theirs in rounds))
            again = min(ours.num_cached[-1] for ours, _ in rounds) / options.samples
            rows.append(f"| {name} | {1000 * stall_s:.0f} ms | {speed:.2f} | {again:.0%} |")
            print(rows[-1], flush=True)
            if name != "none":
                worst, longest_s = min(worst, speed), max(longest_s, stall_s)
        size = f"{options.samples:,} files of {found.mean_bytes / 1000:.0f} KB"
    body = (
        f"{size}, decoded and resized to 192 KB each, {EPOCHS} epochs, {options.workers} processes, medians of {options.rounds} rounds, of stalls "
        f"the longest. Redis is broken in the middle half of the second epoch. Cores that other programs kept busy just before: {busy:.1f}.\n\n"
        "| Redis is | longest stall beyond that without a cache | speed meanwhile, without a cache 1 | found in the last epoch |\n"
        "|---|---|---|---|\n" + "\n".join(rows)
    )
    if options.report:
        print(f"report: {write_report(NAME, command('faults', options), body)}")
    print(f"faults: {worst:.2f}, longest stall {1000 * longest_s:.0f} ms")
