"""Memory against configured bounds: storage and selector in a hundred million samples, and a training process in figure a.

What grows beyond the memory of the idle process is measured, and compared with what the configuration allows. Pages of mapped files are not
counted: the kernel takes them back when it needs them.

Bounds are made of what is configured, here by its defaults, and of constants of the code, which are named as there:

- selector: 64 bytes for each of `maximum_keys_in_memory` samples of a trigger, and two messages of `selector.max_message_bytes`.
- storage: two segments in the making, of SEGMENT_ROWS entries of 100 bytes; a chunk of 32 MiB for each of `storage.num_threads`; two messages of
  `storage.max_message_bytes`.
- training process: 50 bytes for each key of the partition in use and of `num_prefetched_partitions`; ten batches of tensors; and the buffers
  that the C++ core keeps for the next ones. Over Flight also the windows (64 MiB) in which payloads are asked for: those prefetched, the
  one in use, and the one before it, of which a batch is being made; and what the two fetches at once hold for a consumer that is slower
  (`FetchLimits.buffer_bytes`). All payloads together are several times as much. With worker processes, as much for each. The process
  has the environment of the trainer's workers.

Selector and storage are restarted for each run, so that none begins with the memory of the run before. Growth of a training process counts from
its first run. Processes below the one that is watched are counted with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmark.data_path.figure import Case, Figure, Measured, Setting, Side
from benchmark.data_path.installation import Installation, installation
from benchmark.data_path.records import BATCH, BATCH_SIZE, PER_SAMPLE, RECORD_BYTES, records_dataset, write_records
from benchmark.data_path.resident import MIB, Watched, watching
from benchmark.data_path.selector_side import PARTITION, STEP
from benchmark.data_path.side_process import SideProcesses
from benchmark.data_path.training_side import ShortCut, TrainingProcess
from modyn.config.dataset import DatasetConfig
from modyn.dataset.chunks import ReadLimits
from modyn.records import Interval, RunId, RunRegistration, SampleBatch, TriggerSetInfo
from modyn.selector.client import SelectorClient
from modyn.storage.flight.client import FetchLimits
from modyn.storage.index.segment_file import SEGMENT_ROWS

_RUN = RunId("memory")
_RECORDS, _RECORDS_PER_SAMPLE = 20_000_000, 5_000_000
"""Records that training processes read: 3.2 GB in batches, and 0.8 GB sample by sample, which takes longer."""
_PREFETCHED = 2
_UNUSED_BUFFERS = 128 * MIB
"""Most bytes that `_core` keeps (cpp/src/buffers.cpp)."""


def selector_side(services: Installation, num_samples: int) -> Side:
    def run(ready: Callable[[], None]) -> Measured:
        services.restart("selector")
        strategy = {"name": "NewDataStrategy", "maximum_keys_in_memory": PARTITION}
        with SelectorClient(services.config.endpoint("selector")) as selector, watching(services.pid("selector")) as memory:
            ready()
            selector.register_run(RunRegistration(_RUN, services.empty_dataset(), strategy, seed=0))
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
        return _grown(memory)

    return Side("selector", run)


def storage_side(services: Installation, dataset: DatasetConfig, num_samples: int) -> Side:
    def run(ready: Callable[[], None]) -> Measured:
        services.restart("storage")
        with watching(services.pid("storage")) as memory:
            ready()
            services.ingest(dataset, num_samples)
            batches = services.client.storage.samples_in_interval(dataset.name, Interval(), STEP)
            found = sum(len(batch) for batch in batches)
        services.client.storage.delete_dataset(dataset.name)
        if found != num_samples:
            raise RuntimeError(f"{found} of {num_samples} samples were streamed")
        return _grown(memory)

    return Side("storage", run)


def _grown(memory: Watched) -> Measured:
    return Measured(memory.grown / MIB, {"idle, MiB": sum(memory.before.values()) / MIB})


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


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    numbers = small_records(setting.folder / "numbers", setting.samples)
    num_records = min(_RECORDS, setting.samples)
    records = write_records(setting.folder / "records", num_records)
    partition = min(PARTITION, num_records)
    with installation(setting.folder) as services, SideProcesses() as processes:
        config = services.config
        keys_bound = 64 * PARTITION + 2 * config.selector.max_message_bytes
        index_bound = 2 * 100 * SEGMENT_ROWS + config.storage.num_threads * 32 * MIB + 2 * config.storage.max_message_bytes
        # None of these cold: memory does not depend on where files are.
        cases = [
            Case("selector", 1.0, selector_side(services, setting.samples), keys_bound / MIB, cold=False),
            Case("storage", 1.0, storage_side(services, numbers, setting.samples), index_bound / MIB, cold=False),
        ]
        services.ingest(records_dataset("records", records), num_records)
        trigger_set = services.trigger_set("records", "records", partition)
        few = services.trigger_set("few", "records", partition, min(_RECORDS_PER_SAMPLE, num_records))
        worker_bound = 50 * (_PREFETCHED + 1) * partition + 10 * RECORD_BYTES * BATCH_SIZE + _UNUSED_BUFFERS
        windows = (_PREFETCHED + 2) * ReadLimits().fetch_bytes + 2 * FetchLimits().buffer_bytes
        batch, per_sample = {"batch_parser_function": BATCH}, {"bytes_parser_function": PER_SAMPLE}
        runs: list[tuple[ShortCut, TriggerSetInfo, dict[str, str], int, int]] = [
            ("on", trigger_set, batch, 1, worker_bound),
            ("off", trigger_set, batch, 1, worker_bound + windows),
            ("on", few, per_sample, 2, 2 * worker_bound),
        ]
        for short_cut, keys, parser, workers, bound in runs:
            training = TrainingProcess(processes, services, short_cut)
            options = {"num_prefetched_partitions": _PREFETCHED, "parallel_prefetch_requests": 2, "shuffle": True}
            data = {"dataset_id": "records", **parser}
            epoch = training.side(keys, data, workers, check=False, batch_size=BATCH_SIZE, **options)
            served = "in batches" if workers == 1 else f"{workers} worker processes, per sample"
            name = f"training process, short cut {short_cut}, {served}, {keys.num_keys:,} samples"
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
