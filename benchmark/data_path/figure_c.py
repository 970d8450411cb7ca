"""The task of figure b against the libraries that people use for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmark.data_path.figure import Case, Figure, Missing, Setting, Side
from benchmark.data_path.installation import installation
from benchmark.data_path.peers import PYTHON, missing
from benchmark.data_path.records import BATCH_SIZE, LAYOUT, RECORD_BYTES, records_dataset, write_flat, write_records
from benchmark.data_path.side_process import SideProcesses
from benchmark.data_path.training_side import TrainingProcess

PEERS = {
    "torch DataLoader, memory map, __getitems__": ("torch_map", None, 1),
    "Hugging Face datasets": ("hugging_face", "datasets", 5),
    "LitData": ("lightning", "litdata", 5),
    "MosaicML Streaming": ("mosaic", "snappy", 10),
}
"""Program, the package that it needs beside torch, and the part of the samples (one n-th) that both sides serve: some would take minutes."""


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    folder = write_records(setting.folder / "records", setting.samples)
    flat = write_flat(folder, setting.folder / "records.flat")
    cases = []
    with installation(setting.folder) as services, SideProcesses() as processes:
        services.ingest(records_dataset("records", folder), setting.samples)
        training = TrainingProcess(processes, services)
        data = {"dataset_id": "records", "record_layout": LAYOUT}
        for name, (program, package, part) in PEERS.items():
            samples = setting.samples // part
            trigger_set = services.trigger_set(f"shuffled-{samples}", "records", samples, samples)
            ours = training.side(trigger_set, data, 1, batch_size=BATCH_SIZE, shuffle=True)
            theirs: Side | Missing | None = None if package is None else missing(package)
            if theirs is None:
                task = {"file": str(flat), "folder": str(setting.folder), "samples": samples}
                task |= {"batch_size": BATCH_SIZE, "record_bytes": RECORD_BYTES}
                # What needs nothing but torch runs with the one that we run with.
                python = sys.executable if package is None else PYTHON
                theirs = processes.open(f"benchmark.data_path.peers.{program}", task, python).side(name, samples)
            cases.append(Case(f"{name}, {samples:,} samples", 1.0, ours, theirs, cold=False))
        yield cases


FIGURE = Figure(
    "c",
    "shuffled globally against other libraries, each as its documentation advises for speed",
    "samples/s",
    samples=5_000_000,
    smoke_samples=4_000,
    prepare=prepare,
)
