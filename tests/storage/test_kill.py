"""`kill -9` in the middle of ingestion, at every step of it, and of the whole service: afterwards each sample is there exactly once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.records import Interval, SampleBatch
from modyn.storage.client import StorageClient
from modyn.storage.flight.client import FetchLimits, PayloadClient
from modyn.storage.read.publication import Publication
from modyn.testing.waiting import PATIENCE_S
from tests.support.processes import ServiceProcess, write_config
from tests.support.running_storage import binary_dataset, running_storage, start_storage, write_records

INGEST_AND_DIE = """
import os, signal, sys
from pathlib import Path
from modyn.config.system import load_system_config
from modyn import atomic_write as durable
from modyn.storage.ingest import limits, open_dataset
from modyn.storage.ingest import publisher
from modyn.storage.ingest import segment_writer
from modyn.storage.catalogue import catalogue
from modyn.storage.catalogue.catalogue import Catalogue
from modyn.storage.datasets import DatasetStore

point, nth = sys.argv[2], int(sys.argv[3])
passed = 0

def die_here():
    global passed
    passed += 1
    if passed == nth:
        os.kill(os.getpid(), signal.SIGKILL)

def around(owner, name, before):
    real = getattr(owner, name)
    def wrapped(*arguments, **options):
        if before:
            die_here()
        result = real(*arguments, **options)
        if not before:
            die_here()
        return result
    setattr(owner, name, wrapped)

owner, name, side = {
    "before_segment": (segment_writer, "write_segment", True),
    "after_segment": (segment_writer, "write_segment", False),
    "inside_segment": (durable.os, "replace", True),
    "before_commit": (Catalogue, "commit", True),
    "inside_commit": (catalogue, "_replace_problems", False),
    "after_commit": (Catalogue, "commit", False),
    "before_publication": (open_dataset.OpenDataset, "_publish", True),
    "inside_publication": (publisher, "write_names", False),
    "after_publication": (open_dataset.OpenDataset, "_publish", False),
    "before_merge": (segment_writer, "merge_segments", True),
    "after_merge": (segment_writer, "merge_segments", False),
}[point]
around(owner, name, side)
segment_writer.SegmentBuilder.full = lambda builder: len(builder) >= 40
config = load_system_config(Path(sys.argv[1]))
store = DatasetStore(config, Catalogue.open(config))
store.start()
# Files of more than 50 samples are large, and every file is a commit of its own.
store.dataset("numbers").limits = limits.IngestLimits(held_samples=50, flush_s=0.0, merge_run=4)
list(store.ingest("numbers"))
print("survived")
"""

POINTS = [
    ("before_segment", 1),
    ("before_segment", 3),
    ("inside_segment", 2),
    ("after_segment", 1),
    ("after_segment", 4),
    ("before_commit", 2),
    ("inside_commit", 1),
    ("inside_commit", 4),
    ("after_commit", 1),
    ("after_commit", 3),
    ("before_merge", 1),
    ("after_merge", 1),
    ("before_publication", 3),
    ("inside_publication", 1),
    ("after_publication", 2),
]


@pytest.mark.slow
def test_killed_ingestion_is_exactly_once(quick_config: SystemConfig, tmp_path: Path) -> None:
    """One dataset passes all kill points in turn. Each point has new files: small files, a large file, and a growing file."""
    folder, program = tmp_path / "d", tmp_path / "program.py"
    program.write_text(INGEST_AND_DIE)
    config_path = write_config(quick_config, tmp_path)
    with ExitStack() as stack:
        start_storage(quick_config, stack).client.register_dataset(binary_dataset(folder))
    count = 0
    for round_, (point, nth) in enumerate(POINTS):
        for name, mode, num_samples in (
            (f"{round_:02}-a", "wb", 3),
            (f"{round_:02}-b", "wb", 130),
            (f"{round_:02}-c", "wb", 1),
            ("g", "ab", 2),
        ):
            write_records(folder / f"{name}.bin", range(count, count + num_samples), 1000 + count, mode=mode)
            count += num_samples
        done = subprocess.run(
            [sys.executable, str(program), str(config_path), point, str(nth)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, f"{point} {nth}: {done.stdout}{done.stderr}"
        if round_ % 3 == 0 or round_ == len(POINTS) - 1:
            with running_storage(quick_config) as storage:
                storage.ingest()
                assert sorted(storage.data_of(range(count))) == list(range(count)), f"after {point} {nth}"
                assert storage.client.dataset("numbers").num_samples == count
                assert storage.client.problems("numbers") == []
                dataset = storage.store.dataset("numbers")
                published = Publication.read(dataset.folder)
                assert published.segments == tuple(segment.path.name for segment in dataset.snapshot().index.segments)
                known = {
                    "index.json",
                    "deletions",
                    "nonce",
                    "quarantine",
                    *published.segments,
                    *(block.file for block in published.names),
                }
                known |= {published.stamps} if published.stamps else set()
                assert {path.name for path in dataset.folder.iterdir()} <= known
                with storage.short_cut() as local:
                    payloads = local.locate("numbers", np.arange(count)).take(slice(None))
                    assert sorted(payloads.data.view("<i8").tolist()) == list(range(count))
                replayed = SampleBatch.concatenate(list(storage.client.samples_in_interval("numbers", Interval(), 1000)))
                assert sorted(replayed.keys.tolist()) == list(range(count))


@pytest.mark.slow
def test_clients_outlive_a_killed_service(quick_config: SystemConfig, tmp_path: Path) -> None:
    """A stream of new samples and payload requests continue while the service is killed at random moments."""
    random_ = random.Random(7)
    folder = tmp_path / "d"
    arrived: list[int] = []
    count = 0
    with (
        ServiceProcess("storage", quick_config, tmp_path) as process,
        StorageClient(quick_config.endpoint("storage"), retry_s=PATIENCE_S) as client,
        PayloadClient(quick_config.endpoint("flight"), limits=FetchLimits(retry_s=PATIENCE_S)) as payloads,
    ):
        client.register_dataset(binary_dataset(folder, watch=True))
        new = client.new_samples("numbers", 0, 100)
        for round_ in range(3):
            for i in range(5):
                write_records(folder / f"{round_}-{i}.bin", range(count, count + 100), 1000 + round_)
                count += 100
            time.sleep(random_.uniform(0.0, 0.3))
            process.kill()
            process.start()
            while len(arrived) < count:
                batch = next(new)
                arrived += batch.keys.tolist()
                (got,) = payloads.fetch("numbers", batch.keys)
                assert got.labels.tolist() == batch.labels.tolist()
        assert arrived == list(range(count))
        data = [
            int.from_bytes(batch.payload(i), "little")
            for batch in payloads.fetch("numbers", np.arange(count))
            for i in range(len(batch))
        ]
        assert sorted(data) == list(range(count))
        new.cancel()
        assert process.end() == 0
