"""Memory against configured bounds: storage and selector in a hundred million samples, and a training process in figure a.

What grows beyond the memory of the idle process is measured, and compared with what the configuration allows. Pages of mapped files are not
counted: the kernel takes them back when it needs them.

- selector: `maximum_keys_in_memory` samples of 64 bytes, and two messages of `max_message_bytes`.
- storage: two segments in the making, 100 bytes an entry, a chunk of 32 MiB for each reading thread, and two messages.
- training process: payloads of the partition in use and of those prefetched, once as they came and once as they are put in order, and ten
  batches of tensors.
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
from modyn.records import Interval, RunId, SampleBatch
from modyn.selector.client import SelectorClient

_RUN = RunId("memory")
_SEGMENT_ENTRIES = 1 << 20
_RECORDS_OF_FIGURE_A = 5_000_000
_PREFETCHED = 2


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


def sparse_dataset(folder: Path, num_samples: int) -> DatasetConfig:
    """Records of two bytes, all zero, in files that take no space on the disk."""
    folder.mkdir()
    per_file = 10_000_000
    for number, first in enumerate(range(0, num_samples, per_file)):
        with open(folder / f"{number:04}.bin", "wb") as file:
            file.truncate(2 * min(per_file, num_samples - first))
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
    numbers = sparse_dataset(setting.folder / "numbers", setting.samples)
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
        worker_bound = RECORD_BYTES * (2 * (_PREFETCHED + 1) * partition + 10 * BATCH_SIZE)
        ways: tuple[ShortCut, ...] = ("on", "off")
        for short_cut in ways:
            training = TrainingProcess(processes, services, short_cut)
            options = {"num_prefetched_partitions": _PREFETCHED, "parallel_prefetch_requests": 2, "shuffle": True}
            data = {"dataset_id": "records", "batch_parser_function": BATCH}
            epoch = training.side(trigger_set, data, 1, batch_size=BATCH_SIZE, **options)
            name = f"training process, short cut {short_cut}"
            cases.append(Case(name, 1.0, training.memory_of(epoch), worker_bound / MIB, cold=False))
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
