"""Memory against configured bounds: storage and selector in a hundred million samples, and a training process in figure a.

What grows beyond the memory of the idle process is measured, and compared with what the configuration allows. Pages of mapped files are not
counted: the kernel takes them back when it needs them.

- selector: `maximum_keys_in_memory` samples of 64 bytes, and two messages of `max_message_bytes`.
- storage: two segments in the making, 100 bytes an entry, a chunk of 32 MiB for each reading thread, and two messages.
- training process: 50 bytes for each key of the partition in use and of those prefetched, ten batches of tensors, and the buffers that the C++
  core keeps for the next ones. Over Flight also the windows in which payloads are asked for, waiting and running, once as they come and once
  in one piece, and what a client buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmark.data_path.figure import Case, Figure, Measured, Setting, Side
from benchmark.data_path.installation import Installation, installation
from benchmark.data_path.records import BATCH, BATCH_SIZE, RECORD_BYTES, records_dataset, write_records
from benchmark.data_path.resident import MIB, watching
from benchmark.data_path.selector_side import PARTITION, STEP
from benchmark.data_path.side_process import SideProcesses
from benchmark.data_path.training_side import ShortCut, TrainingProcess
from modyn.config.system import DatasetConfig
from modyn.dataset.arrivals import WINDOW_BYTES
from modyn.records import Interval, RunId, SampleBatch
from modyn.selector.client import SelectorClient
from modyn.storage.flight import BUFFER_BYTES

_RUN = RunId("memory")
_SEGMENT_ENTRIES = 1 << 20
_RECORDS_OF_FIGURE_A = 5_000_000
_PREFETCHED = 2
_UNUSED_BUFFERS = 128 * MIB
"""That `_core` keeps at most (cpp/src/buffers.cpp)."""


def selector_side(services: Installation, num_samples: int) -> Side:
    def run(ready: Callable[[], None]) -> Measured:
        strategy = {"name": "NewDataStrategy", "maximum_keys_in_memory": PARTITION}
        with SelectorClient(services.config.endpoint("selector")) as selector, watching(_pid(services, "selector")) as memory:
            ready()
            selector.register_run(_RUN, "numbers", strategy, seed=0)
            for first in range(0, num_samples, STEP):
                positions = np.arange(first, min(first + STEP, num_samples))
                selector.inform(_RUN, first, SampleBatch(positions * 7919 % num_samples, positions, positions % 10))
            info = selector.trigger(_RUN, 0, num_samples)
            found = sum(len(selector.keys(_RUN, 0, number)) for number in range(info.num_partitions))
        selector_is_whole = found == num_samples
        with SelectorClient(services.config.endpoint("selector")) as selector:
            selector.delete_run(_RUN)
        if not selector_is_whole:
            raise RuntimeError(f"{found} of {num_samples} keys were read")
        return Measured(memory.grown_mib, {"idle, MiB": memory.before / MIB})

    return Side("selector", run)


def storage_side(services: Installation, dataset: DatasetConfig, num_samples: int) -> Side:
    def run(ready: Callable[[], None]) -> Measured:
        with watching(_pid(services, "storage")) as memory:
            ready()
            services.ingest(dataset, num_samples)
            batches = services.client.storage.samples_in_interval(dataset.name, Interval(), STEP)
            found = sum(len(batch) for batch in batches)
        services.client.storage.delete_dataset(dataset.name)
        if found != num_samples:
            raise RuntimeError(f"{found} of {num_samples} samples were streamed")
        return Measured(memory.grown_mib, {"idle, MiB": memory.before / MIB})

    return Side("storage", run)


def small_records(folder: Path, num_samples: int) -> DatasetConfig:
    """Records of two random bytes, one of which is the label."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    per_file = 10_000_000
    for number, first in enumerate(range(0, num_samples, per_file)):
        (folder / f"{number:04}.bin").write_bytes(rng.bytes(2 * min(per_file, num_samples - first)))
    config = {"record_size": 2, "label_size": 1}
    return DatasetConfig(
        name="numbers", base_path=folder, file_wrapper="BinaryFileWrapper", file_wrapper_config=config, watch=False
    )


def _pid(services: Installation, service: str) -> int:
    pid = next(part.pid for part in services.client.status().parts if part.name == service)
    if pid is None:
        raise RuntimeError(f"{service} does not run")
    return pid


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    numbers = small_records(setting.folder / "numbers", setting.samples)
    num_records = min(_RECORDS_OF_FIGURE_A, setting.samples)
    records = write_records(setting.folder / "records", num_records)
    partition = min(PARTITION, num_records)
    with installation(setting.folder) as services, SideProcesses() as processes:
        config = services.config
        keys_bound = 64 * PARTITION + 2 * config.selector.max_message_bytes
        index_bound = 2 * 100 * _SEGMENT_ENTRIES + config.storage.num_threads * 32 * MIB + 2 * config.storage.max_message_bytes
        cases = [
            Case("selector", 1.0, selector_side(services, setting.samples), keys_bound / MIB, cold=False),
            Case("storage", 1.0, storage_side(services, numbers, setting.samples), index_bound / MIB, cold=False),
        ]
        services.ingest(records_dataset("records", records), num_records)
        trigger_set = services.trigger_set("records", "records", partition)
        worker_bound = 50 * (_PREFETCHED + 1) * partition + 10 * RECORD_BYTES * BATCH_SIZE + _UNUSED_BUFFERS
        windows = 2 * (_PREFETCHED + 2) * WINDOW_BYTES + BUFFER_BYTES
        ways: tuple[ShortCut, ...] = ("on", "off")
        for short_cut in ways:
            training = TrainingProcess(processes, services, short_cut)
            options = {"num_prefetched_partitions": _PREFETCHED, "parallel_prefetch_requests": 2, "shuffle": True}
            data = {"dataset_id": "records", "batch_parser_function": BATCH}
            epoch = training.side(trigger_set, data, 1, batch_size=BATCH_SIZE, **options)
            name = f"training process, short cut {short_cut}"
            bound = worker_bound + (windows if short_cut == "off" else 0)
            cases.append(Case(name, 1.0, training.memory_of(epoch), bound / MIB, cold=False))
        yield cases


FIGURE = Figure(
    "j",
    "memory beyond that of the idle process against what is configured",
    "MiB",
    samples=100_000_000,
    smoke_samples=300_000,
    prepare=prepare,
    more_is_better=False,
)
