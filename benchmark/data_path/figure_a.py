"""The whole data path in stream order, compared with a reader that emits files from end to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmark.data_path.figure import Case, Figure, Setting
from benchmark.data_path.installation import installation
from benchmark.data_path.records import (
    BATCH,
    BATCH_SIZE,
    PER_SAMPLE,
    RECORDS_PER_FILE,
    records_dataset,
    write_records,
)
from benchmark.data_path.side_process import SideProcesses
from benchmark.data_path.training_side import TrainingProcess

_FILES_PER_SAMPLE = 12
"""Parsing sample by sample takes a hundred times as long: fewer files, as many for each of two workers, and more than two of the larger
partitions."""
_PREFETCHING: dict[str, Any] = {"num_prefetched_partitions": 2, "parallel_prefetch_requests": 2}


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    folder = write_records(setting.folder / "records", setting.samples)
    partitions = sorted({min(size, setting.samples) for size in (100_000, 1_000_000)})
    cases = []
    with installation(setting.folder) as services, SideProcesses() as processes:
        services.ingest(records_dataset("records", folder), setting.samples)
        training = TrainingProcess(processes, services)
        reader = processes.open("benchmark.data_path.sequential_reader", {})
        for parser in ("batch", "per sample"):
            num_samples = (
                min(setting.samples, _FILES_PER_SAMPLE * RECORDS_PER_FILE) if parser == "per sample" else setting.samples
            )
            files = [str(path) for path in sorted(folder.iterdir())[: -(-num_samples // RECORDS_PER_FILE)]]
            section = {"batch_parser_function": BATCH} if parser == "batch" else {"bytes_parser_function": PER_SAMPLE}
            data = {"dataset_id": "records", **section}
            sets = [
                services.trigger_set(f"{parser.replace(' ', '-')}-{size}", "records", size, num_samples) for size in partitions
            ]
            # Without a worker the training waits for its reader: reported as the most that one core and one disk give.
            alone = reader.side("sequential reader without workers", num_samples, files=files, parser=parser, workers=0)
            for workers in (1, 2):
                theirs = reader.side("sequential reader", num_samples, files=files, parser=parser, workers=workers)
                for trigger_set in sets:
                    ours = training.side(trigger_set, data, workers, batch_size=BATCH_SIZE, **_PREFETCHING)
                    name = f"workers={workers}, parser={parser}, partition={trigger_set.partition_size // 1000}k"
                    if num_samples < setting.samples:
                        name += f", {num_samples:,} samples"
                    # Not cold sample by sample: less than 100 MB/s, which any disk reads ahead of the parser.
                    cases.append(Case(name, 1.0, ours, theirs, [folder], cold=parser == "batch"))
                    if parser == "batch" and workers == 1:
                        cases.append(Case(f"{name}, against a reader without workers", None, ours, alone, [folder]))
        yield cases


FIGURE = Figure(
    "a",
    "whole path in stream order against reading files from end to end",
    "samples/s",
    samples=5_000_000,
    smoke_samples=20_000,
    prepare=prepare,
)
