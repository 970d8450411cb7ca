"""Clients that send requests without pause, from a process of their own, and record the version of each answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from benchmark.online.http_load import Load, ask

PATH: Final = "/v2/models/m/infer"
_TURN_S: Final = 5.0
"""Seconds after which connections are replaced, and the end of the block is checked."""


@dataclass
class Seen:
    """Answers in order, filled at the end of the block. at: times by `time.perf_counter`; values: the value of all outputs of an answer,
    NaN if they differ."""

    at: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    versions: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    values: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    latencies_ms: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    failed: int = 0
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.at)


@contextmanager
def asking(address: str, body: bytes, connections: int, turn_s: float = _TURN_S) -> Iterator[Seen]:
    """Send requests on a number of connections from the first answer until the block ends. Yields a record that is filled then.

    Raises SystemExit: the process of the clients ended early.
    """
    context = get_context("spawn")
    stop, receiver, sender = context.Event(), *context.Pipe(duplex=False)
    process = context.Process(target=_ask, args=(address, body, connections, turn_s, stop, sender))
    process.start()
    sender.close()
    seen = Seen()
    try:
        _received(receiver)  # the first answer has come
        yield seen
        stop.set()
        seen.__dict__.update(_received(receiver).__dict__)
    finally:
        stop.set()
        receiver.close()
        process.join()


def version_and_value(content: bytes) -> tuple[int, float]:
    """Return the version that an answer names, and the value of all its outputs, NaN if they differ."""
    answer = orjson.loads(content)
    first, *others = answer["outputs"][0]["data"]
    return int(answer["model_version"]), first if all(value == first for value in others) else np.nan


def _received(receiver: Any) -> Any:
    try:
        return receiver.recv()
    except EOFError:
        raise SystemExit("the process of the clients ended early; its error stands above") from None


def _ask(address: str, body: bytes, connections: int, turn_s: float, stop: Any, sender: Any) -> None:
    at, versions, values, seen = list[float](), list[int](), list[float](), Seen()

    def note(content: bytes) -> None:
        version, value = version_and_value(content)
        at.append(time.perf_counter())
        versions.append(version)
        values.append(value)
        if len(at) == 1:
            sender.send(None)

    latencies = list[float]()
    began = time.perf_counter()
    while not stop.is_set():
        answers = ask(Load(address, PATH, body, connections, turn_s, warm_up_s=0.0), note)
        latencies += answers.latencies_ms
        seen.failed += answers.failed
    seen.seconds = time.perf_counter() - began
    seen.at, seen.versions, seen.values, seen.latencies_ms = map(np.array, (at, versions, values, latencies))
    sender.send(seen)
