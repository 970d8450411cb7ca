"""Cost of reading while Redis is broken in the middle of an epoch over JPEG files of about 100 KB.

    python -m benchmark.cache faults [--samples 2000] [--rounds 3] [--workers 2] [--ways local flight shared] [--report]
    python -m benchmark.cache faults --samples 900 --rounds 1 --ways shared --faults killed     (in a minute)

Redis is killed, stopped (SIGSTOP), slow (each answer takes 80 ms more), full (`maxmemory`), flushed, or asks for a password, in the middle half of
the second epoch of four; the first one has filled it. Per fault: the longest time between two batches, less the longest without a cache; the speed
in this half of the epoch, against no cache, also by the CPU time of the training, which hardly depends on what else runs; and the part of the
samples that the last epoch finds.

Ways: local, a static cache and files of this machine; flight, the same with payloads over Flight; shared, files of this machine, and a cache made
for four trainings, of which one is there (`cache: {jobs: 4}`). Batches are compared with those without a cache; of shared, that each epoch serves
every sample once. The last line gives the least of these speeds (goal: at least 0.95) and the longest stall (at most 250 ms).

Batches are small: a process that has taken samples from the cache and takes none any more is silent for as long as it makes one batch by itself, and
that would hide what Redis is waited for.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
import torch
from redis import Redis

from benchmark.cache.bar_chart import bar_chart
from benchmark.cache.reading import Images, command, images, ratio
from benchmark.cache.sides import Side, open_side
from benchmark.machine import REPORTS, busy_cores, cpu_s, dated, write_report
from modyn.dataset.batch import Batch
from modyn.dataset.loader import BatchLoader
from modyn.local.databases import RedisServer
from modyn.records import Int64Array

NAME = "cache-faults"
EPOCHS: Final = 4
COMPARED_EPOCHS: Final = 2
"""With those without a cache."""
BATCH_SIZE: Final = 16
AHEAD: Final = 2
"""Number of batches that each process makes ahead."""
SLOW_ANSWER_S: Final = 0.08
"""In time, for an answer may take 0.1 s."""


class SlowProxy:
    """Forwards the output of a Unix socket, after a pause while `pause_s` is not 0. Allows any number of connections."""

    def __init__(self, path: Path, target: str) -> None:
        self.url = f"unix://{path}"
        self.pause_s = 0.0
        self._target = target.removeprefix("unix://")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections. Existing connections end with their clients."""
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
    """A separate Redis server, and the faults that can be caused in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "redis", folder)
        self.start()
        self.slow = SlowProxy(folder / "slow.sock", self.url)

    def ask(self, commands: str, password: str | None = None) -> None:
        """Send some commands."""
        with Redis.from_url(self.url, password=password) as client:
            for words in commands.split("; "):
                client.execute_command(*words.split(" "))

    def signal(self, number: int) -> None:
        """Send a signal to its process."""
        assert self._process is not None
        self._process.send_signal(number)

    def start_again(self) -> None:
        """Start the server again after its process has ended."""
        assert self._process is not None
        self._process.wait()
        self.start()


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and its repair."""

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
    "asking for a password": Fault(
        lambda server: server.ask("CONFIG SET requirepass secret; CLIENT KILL TYPE normal"),
        lambda server: server.ask("CONFIG SET requirepass ", "secret"),
    ),
}
WAYS: Final = ("local", "flight", "shared")


@dataclass(frozen=True, slots=True)
class Epochs:
    """Measurements of one reading."""

    gaps_s: list[float]
    """Seconds between two batches in the middle half of the second epoch."""
    num_cached: list[int]
    """Samples of each epoch that came from the cache."""
    digest: str
    """Digest of the batches of the first two epochs."""
    is_exact: bool
    """Each epoch had every sample once."""
    cpu_s: float
    """Processor time of the training and its processes in the middle half of the second epoch."""

    def batch_s(self, workers: int) -> float:
        """Seconds of a batch there, without those that had been made when it began. Raises ValueError: all had."""
        made_meanwhile = self.gaps_s[AHEAD * workers + 1 :]
        if not made_meanwhile:
            raise ValueError(f"of {len(self.gaps_s)} batches, all were made before Redis broke: read more samples")
        return statistics.mean(made_meanwhile)


def read(batches: BatchLoader, epochs: int, a_epoch: int, begin: Callable[[], object], end: Callable[[], object]) -> Epochs:
    """Read all epochs. Args: a_epoch: batches in an epoch. begin, end: called in the second epoch, when its middle half begins and ends."""
    last = begun_cpu_s = used_cpu_s = 0.0
    gaps: list[float] = []
    cached = [0] * epochs
    keys: list[Int64Array] = []
    digest = hashlib.sha256()
    batch: Batch
    for number, batch in enumerate(batches):
        epoch, index = divmod(number, a_epoch)
        now = time.perf_counter()
        if epoch == 1 and a_epoch // 4 < index <= 3 * a_epoch // 4:
            gaps.append(now - last)
        assert isinstance(batch.data, torch.Tensor)
        if epoch < COMPARED_EPOCHS:
            digest.update(batch.keys.numpy().tobytes())
            digest.update(batch.data[:, :, ::16, ::16].numpy().tobytes())
        keys.append(batch.keys.numpy())
        cached[epoch] += sum(batch.cached)
        if (epoch, index) == (1, a_epoch // 4):
            begun_cpu_s = cpu_s(os.getpid())
            begin()
        elif (epoch, index) == (1, 3 * a_epoch // 4):
            used_cpu_s = cpu_s(os.getpid()) - begun_cpu_s
            end()
        last = time.perf_counter()
    served = [np.sort(np.concatenate(keys[start : start + a_epoch])) for start in range(0, len(keys), a_epoch)]
    is_exact = len(served) == epochs and all(len(np.unique(part)) == len(part) == len(served[0]) for part in served)
    return Epochs(gaps, cached, digest.hexdigest(), is_exact, used_cpu_s)


@contextmanager
def broken_redis() -> Iterator[BrokenRedis]:
    """A server that is ended at the end, in any state."""
    with tempfile.TemporaryDirectory(prefix="modyn-") as folder, ExitStack() as stack:
        server = BrokenRedis(Path(folder))
        stack.callback(server.stop)
        stack.callback(server.slow.close)
        yield server


def measure(found: Images, way: str, name: str, workers: int) -> tuple[Epochs, Epochs]:
    """Read with a cache in a Redis that breaks, and without a cache. Raises RuntimeError: the cache changed the served samples."""
    fault = FAULTS[name]
    found = replace(found, over_flight=way == "flight")

    def read_side(side: Side, epochs: int, begin: Callable[[], object], end: Callable[[], object]) -> Epochs:
        with side.loader(0, epochs, BATCH_SIZE, workers) as loader:
            return read(loader, epochs, -(-found.trigger_set.num_keys // BATCH_SIZE), begin, end)

    with broken_redis() as server:
        url = server.slow.url if name == "slow" else server.url
        side = open_side("ours" if way == "shared" else "static", found, 1.2, "redis", jobs=4)
        assert side.source.cache is not None
        side = replace(side, source=replace(side.source, cache=replace(side.source.cache, address=url)))
        ours = read_side(side, EPOCHS, lambda: fault.begin(server), lambda: fault.end(server))
    theirs = read_side(open_side("plain", found, 0), COMPARED_EPOCHS, lambda: None, lambda: None)
    if not ours.is_exact or (way != "shared" and ours.digest != theirs.digest):
        raise RuntimeError(f"{way}, Redis is {name}: other batches than without a cache")
    return ours, theirs


def main() -> None:
    """Measure, and print the last line `faults: 0.98, longest stall 130 ms`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes that decode")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    busy = busy_cores()
    rows, speeds, longest_s = [], dict[str, float](), 0.0
    with images(options.samples) as found:
        for way, name in product(options.ways, options.faults):
            rounds = [measure(found, way, name, options.workers) for _ in range(options.rounds)]
            speed = ratio(*([side.batch_s(options.workers) for side in sides] for sides in zip(*rounds, strict=True)))
            stall_s = max(0.0, *(max(ours.gaps_s) - max(theirs.gaps_s) for ours, theirs in rounds))
            cpu = ratio(*([side.cpu_s for side in sides] for sides in zip(*rounds, strict=True)))
            again = min(ours.num_cached[-1] for ours, _ in rounds) / options.samples
            rows.append(f"| {way} | {name} | {1000 * stall_s:.0f} ms | {speed:.2f} | {cpu:.2f} | {again:.0%} |")
            print(rows[-1], flush=True)
            if name != "none":
                speeds[f"{way}, {name}"], longest_s = speed, max(longest_s, stall_s)
        size = f"{options.samples:,} files of {found.mean_bytes / 1000:.0f} KB"
    body = (
        f"{size}, decoded and resized to 192 KB each, {EPOCHS} epochs, {options.workers} processes, batches of {BATCH_SIZE}, "
        f"medians of {options.rounds} rounds, of stalls the longest. Redis is broken in the middle half of the second epoch. "
        f"Cores that other programs kept busy just before: {busy:.1f}.\n\n"
        "| way | Redis is | longest stall beyond none | speed meanwhile, without a cache 1 | by CPU time | found in the last epoch |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(rows)
    )
    if options.report:
        path = REPORTS / f"{dated(NAME)}.svg"
        path.write_text(bar_chart("Speed while Redis is broken, without a cache 1", speeds, 0.95))
        body += f"\n\n![Speed while Redis is broken]({path.name})"
        print(f"report: {write_report(NAME, command('faults', options), body)}")
    print(f"faults: {min(speeds.values(), default=1.0):.2f}, longest stall {1000 * longest_s:.0f} ms")
