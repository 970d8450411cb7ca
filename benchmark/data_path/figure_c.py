"""The task of figure b against the libraries that people use for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmark.data_path.figure import Case, Figure, Missing, Setting, Side
from benchmark.data_path.installation import installation
from benchmark.data_path.peers import PYTHON, missing
from benchmark.data_path.records import BATCH_SIZE, LAYOUT, RECORD_BYTES, records_dataset, write_flat, write_records
from benchmark.data_path.side_process import SideProcesses
from benchmark.data_path.training_side import TrainingProcess

PEERS = {
    "torch DataLoader, memory map, __getitems__": ("torch_map", None),
    "Hugging Face datasets": ("hugging_face", "datasets"),
    "LitData": ("lightning", "litdata"),
    "MosaicML Streaming": ("mosaic", "snappy"),
}
"""Program, and the package that it needs beside torch."""


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    folder = write_records(setting.folder / "records", setting.samples)
    flat = write_flat(folder, setting.folder / "records.flat")
    task = {"file": str(flat), "folder": str(setting.folder), "samples": setting.samples}
    task |= {"batch_size": BATCH_SIZE, "record_bytes": RECORD_BYTES}
    cases = []
    with installation(setting.folder) as services, SideProcesses() as processes:
        services.ingest(records_dataset("records", folder), setting.samples)
        trigger_set = services.trigger_set("shuffled", "records", setting.samples)
        training = TrainingProcess(processes, services)
        data = {"dataset_id": "records", "record_layout": LAYOUT}
        for name, (program, package) in PEERS.items():
            theirs: Side | Missing | None = None if package is None else missing(package)
            if theirs is None:
                module = f"benchmark.data_path.peers.{program}"
                # What needs nothing but torch runs with the one that we run with.
                process = processes.open(module, task) if package is None else processes.open(module, task, PYTHON)
                theirs = process.side(name, setting.samples)
            # One side for each peer: ours runs right beside each of them, some of which take half a minute.
            ours = training.side(trigger_set, data, 1, batch_size=BATCH_SIZE, shuffle=True)
            cases.append(Case(name, 1.0, ours, theirs, cold=False))
        yield cases


FIGURE = Figure(
    "c",
    "shuffled globally against other libraries, each as its documentation advises for speed",
    "samples/s",
    samples=1_000_000,
    smoke_samples=4_000,
    prepare=prepare,
)
