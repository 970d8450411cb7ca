"""Use of the selector by figures h, i and j: through its client, from a stream of samples to the partitions of a trigger set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Literal

import numpy as np

from benchmark.data_path.figure import Measured, Side
from benchmark.data_path.installation import Installation
from modyn.records import RunId, RunRegistration, SampleBatch
from modyn.selector.client import SelectorClient

STEP = 100_000
"""Samples of one call of `inform`."""
PARTITION = 1_000_000

Order = Literal["ascending", "random"]

_numbers = itertools.count()


def stream(num_samples: int, order: Order) -> SampleBatch:
    """Replay whose timestamps rise, with labels of ten classes. Keys rise too, or come in random order, which packs less well."""
    rng = np.random.default_rng(17)
    positions = np.arange(num_samples)
    keys = rng.permutation(num_samples) if order == "random" else positions
    return SampleBatch(keys, 1_600_000_000 + np.cumsum(rng.integers(0, 3, num_samples)), rng.integers(0, 10, num_samples))


def parts(samples: SampleBatch) -> Iterator[tuple[int, SampleBatch]]:
    """Yield the samples in steps, each with its position."""
    for first in range(0, len(samples), STEP):
        yield first, samples.slice(first, first + STEP)


def selector_side(services: Installation, samples: SampleBatch, backend: Literal["local", "database"]) -> Side:
    """Inform, trigger, and read every partition. The value is keys a second of all three together."""

    config, dataset = services.config, services.empty_dataset()

    def run(ready: Callable[[], None]) -> Measured:
        run_id = RunId(f"run-{next(_numbers)}")
        strategy = {"name": "NewDataStrategy", "maximum_keys_in_memory": PARTITION, "storage_backend": backend}
        with SelectorClient(config.endpoint("selector")) as selector:
            selector.register_run(RunRegistration(run_id, dataset, strategy, seed=0))
            ready()
            began = perf_counter()
            for position, part in parts(samples):
                selector.inform(run_id, position, part)
            informed = perf_counter()
            info = selector.trigger(run_id, 0, len(samples))
            triggered = perf_counter()
            partitions = [selector.keys(run_id, 0, number).keys for number in range(info.num_partitions)]
            ended = perf_counter()
            if not np.array_equal(np.concatenate(partitions), samples.keys):
                raise RuntimeError("the trigger set does not hold the keys that were informed")
            selector.delete_run(run_id)
        details = {"inform, s": informed - began, "trigger, s": triggered - informed, "read, s": ended - triggered}
        return Measured(len(samples) / (ended - began), details)

    return Side(f"selector, {backend}", run)
