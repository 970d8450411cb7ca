"""The task of figure b, one globally shuffled epoch, compared with the libraries that people use for it.

All records for torch; for those that take half a minute and more a round with all of them, a part, on both sides, as the case says. That favours
them: our start is a larger part of so short a run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from benchmark.data_path.figure import Case, Figure, Missing, Setting, Side
from benchmark.data_path.installation import installation
from benchmark.data_path.peers import PYTHON, missing
from benchmark.data_path.records import BATCH_SIZE, LAYOUT, RECORD_BYTES, records_dataset, write_flat, write_records
from benchmark.data_path.side_process import SideProcesses
from benchmark.data_path.training_side import TrainingProcess


@dataclass(frozen=True, slots=True)
class Peer:
    """package: what it needs in addition to torch. part: both sides serve one n-th of the samples. files: its own, below the figure's folder.
    cold: whether it is measured cold."""

    name: str
    program: str
    package: str | None
    files: str
    part: int = 1
    cold: bool = True


FLAT = "records.flat"
PEERS = (
    Peer("torch DataLoader, memory map, __getitems__", "torch_map", None, FLAT),
    Peer("Hugging Face datasets", "hugging_face", "datasets", "hugging-face", part=5),
    # Not cold: less than 20 MB/s, and 10 with the next, are no work for a disk; and the first keeps its chunks mapped as long as it lives.
    Peer("LitData", "lightning", "litdata", "lightning", part=10, cold=False),
    Peer("MosaicML Streaming", "mosaic", "snappy", "mosaic", part=20, cold=False),
)


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    folder = write_records(setting.folder / "records", setting.samples)
    flat = write_flat(folder, setting.folder / FLAT)
    cases = []
    # As many threads as cores, as for torch's own.
    workers = os.cpu_count() or 1
    with installation(setting.folder) as services, SideProcesses() as processes:
        services.ingest(records_dataset("records", folder), setting.samples)
        training = TrainingProcess(processes, services)
        data = {"dataset_id": "records", "record_layout": LAYOUT}
        sets: dict[int, Side] = {}
        for peer in PEERS:
            samples = setting.samples // peer.part
            if samples not in sets:
                trigger_set = services.trigger_set(f"shuffled-{samples}", "records", samples, samples)
                sets[samples] = training.side(trigger_set, data, workers, batch_size=BATCH_SIZE, shuffle=True)
            theirs: Side | Missing | None = None if peer.package is None else missing(peer.package)
            if theirs is None:
                task = {"file": str(flat), "folder": str(setting.folder), "samples": samples}
                task |= {"batch_size": BATCH_SIZE, "record_bytes": RECORD_BYTES}
                # What needs nothing but torch runs with the one that we run with.
                python = sys.executable if peer.package is None else PYTHON
                process = processes.open(f"benchmark.data_path.peers.{peer.program}", task, python)
                theirs = replace(process.side(peer.name, samples, shuffled=True), files=[setting.folder / peer.files])
            cases.append(Case(f"{peer.name}, {samples:,} samples", 1.0, sets[samples], theirs, [folder], cold=peer.cold))
        yield cases


FIGURE = Figure(
    "c",
    "shuffled globally against other libraries, each as its documentation advises for speed",
    "samples/s",
    samples=5_000_000,
    smoke_samples=4_000,
    prepare=prepare,
)
