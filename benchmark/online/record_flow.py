"""Samples of a stream that arrive as records at a fixed rate, as clients append observations."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Final

import numpy as np

from benchmark.evidence.proactive_streams import DRAW, STREAMS
from modyn.client import Client
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.storage.client import NewRecord

_EVERY_S: Final = 0.1
"""Seconds between two calls that append."""
_ROWS: Final = 50_000


def register(client: Client, name: str, stream: str, num_samples: int) -> None:
    """Register a dataset of records with the first samples of a stream, and wait until all of them are there."""
    floats = np.dtype(STREAMS[stream].record)["label"].kind == "f"
    options = {"file_wrapper_config": {"label_type": "float"}} if floats else {}
    client.register_dataset(DatasetConfig.model_validate({"name": name, "base_path": "records://", **options}))
    client.append_records(name, records(drawn(stream), 0, num_samples))
    client.ingest(name)


def records(rows: Any, start: int, num_samples: int) -> list[NewRecord]:
    """Return samples [start, start + num_samples) of a stream that repeats these rows; a sample's number is its key."""
    chosen = rows[np.arange(start, start + num_samples) % len(rows)]
    samples, labels = chosen["sample"], chosen["label"].tolist()
    return [NewRecord(key=f"{start + at}", payload=samples[at].tobytes(), label=labels[at]) for at in range(num_samples)]


def drawn(stream: str) -> Any:
    """Return the first rows of a stream."""
    rows = np.empty(_ROWS, STREAMS[stream].record)
    DRAW[stream](rows, 0.0, np.random.default_rng(1000), np.random.default_rng(1))
    return rows


@contextmanager
def flowing(config: SystemConfig, name: str, stream: str, start: int, rate: int) -> Iterator[None]:
    """Append `rate` records a second after the first `start`, from a process of its own, until the block ends.

    Raises SystemExit: it ended early.
    """
    context = get_context("spawn")
    stop = context.Event()
    process = context.Process(target=_append, args=(config, name, stream, start, rate, stop))
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join()
    if process.exitcode:
        raise SystemExit(f"what appends records to {name} ended with {process.exitcode}; its error stands above")


def _append(config: SystemConfig, name: str, stream: str, start: int, rate: int, stop: Any) -> None:
    rows, size, due = drawn(stream), max(1, round(rate * _EVERY_S)), time.monotonic()
    with Client(config) as client:
        while not stop.wait(max(0.0, due - time.monotonic())):
            client.append_records(name, records(rows, start, size))
            start, due = start + size, due + _EVERY_S
