"""The data path shuffled globally, by key through all services, compared with NumPy's gather from a memory map."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from benchmark.data_path.figure import Case, Figure, Setting
from benchmark.data_path.installation import installation
from benchmark.data_path.records import BATCH, BATCH_SIZE, LAYOUT, records_dataset, write_flat, write_records
from benchmark.data_path.side_process import SideProcesses
from benchmark.data_path.training_side import ShortCut, TrainingProcess

TARGETS: dict[ShortCut, float] = {"on": 0.5, "off": 0.25}
"""Target by the setting of the short cut."""


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    folder = write_records(setting.folder / "records", setting.samples)
    flat = write_flat(folder, setting.folder / "records.flat")
    cases = []
    with installation(setting.folder) as services, SideProcesses() as processes:
        services.ingest(records_dataset("records", folder), setting.samples)
        # One partition holds the whole set: shuffling inside it is a permutation of all samples, as on the other side.
        trigger_set = services.trigger_set("shuffled", "records", setting.samples)
        numpy = processes.open("benchmark.data_path.memory_map", {"file": str(flat)})
        theirs = replace(numpy.side("numpy memory map", setting.samples, shuffled=True), files=[flat])
        for short_cut, target in TARGETS.items():
            training = TrainingProcess(processes, services, short_cut)
            for parser, section in (("record_layout", {"record_layout": LAYOUT}), ("batch", {"batch_parser_function": BATCH})):
                data = {"dataset_id": "records", **section}
                ours = training.side(trigger_set, data, 1, batch_size=BATCH_SIZE, shuffle=True)
                cases.append(Case(f"short cut {short_cut}, parser={parser}", target, ours, theirs, [folder]))
        yield cases


FIGURE = Figure(
    "b",
    "shuffled globally against NumPy's fancy indexing of one memory map, one process",
    "samples/s",
    samples=5_000_000,
    smoke_samples=20_000,
    prepare=prepare,
)
