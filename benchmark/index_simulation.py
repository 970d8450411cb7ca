"""Index of a billion samples: its size on disk and in memory, the time to open it, and the rate of look-ups.

    python -m benchmark.index_simulation [--entries 1000000000] [--kinds records,rows,files] [--report]

records: files of 180,000 binary records of one size. rows: CSV files, rows of any length. files: one sample a file. Segments are written by
the real writer, once for each kind; its bytes then make all others, with their own keys. Beyond a gigabyte a kind, the columns of further
segments are holes in sparse files: they take memory and time as others do, but no disk, so that reading them cold means less.

It also measures deleted keys among them: none, a few, and more, at random.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmark.data_path.page_cache import drop
from benchmark.machine import write_report
from modyn.records import Int64Array
from modyn.storage.index.segment_file import SEGMENT_ROWS, Segment, SegmentColumns, write_segment
from modyn.storage.index.segment_index import SegmentIndex
from modyn.storage.index.tombstones import Tombstones

RECORDS_A_FILE, RECORD_BYTES = 180_000, 160
REAL_BYTES = 1 << 30
"""Bytes of the segments of one kind that are written in full."""
BATCH, BATCHES, SETTLED = 65_536, 40, 10
"""Keys a lookup, lookups a measurement, and how many of the last ones count as warm."""
_PREFIX_BYTES = 20

T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000_000)
    parser.add_argument("--kinds", default="records,rows,files")
    parser.add_argument("--folder", type=Path, help="where to write segments, on a real disk; default: a temporary folder")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    rows = []
    for kind in options.kinds.split(","):
        with tempfile.TemporaryDirectory(prefix="modyn-index-", dir=options.folder) as name:
            build(Path(name), COLUMNS[kind](np.random.default_rng(0)), options.entries)
            rows.append(row(kind, Path(name)))
            print(rows[-1], flush=True)
    with tempfile.TemporaryDirectory(prefix="modyn-deleted-", dir=options.folder) as name:
        deleted = [deleted_row(Path(name) / str(count), options.entries, count) for count in DELETED if count < options.entries]
    body = f"{options.entries:,} entries, batches of {BATCH:,} keys drawn from all of them.\n\n{HEAD}\n" + "\n".join(rows)
    body += f"\n\n{DELETED_HEAD}\n" + "\n".join(deleted)
    print(body)
    if options.report:
        command = f"python -m benchmark.index_simulation --entries {options.entries} --kinds {options.kinds}"
        print(f"report: {write_report('index-simulation', command, body)}")


def records(rng: np.random.Generator) -> SegmentColumns:
    position = np.arange(SEGMENT_ROWS)
    file_ids = position // RECORDS_A_FILE
    return SegmentColumns(
        file_ids.astype(np.uint32),
        position % RECORDS_A_FILE * RECORD_BYTES + 4,
        np.full(SEGMENT_ROWS, RECORD_BYTES - 4),
        rng.integers(0, 100, SEGMENT_ROWS),
        1_700_000_000 + file_ids * 3600,
    )


def csv_rows(rng: np.random.Generator) -> SegmentColumns:
    """Columns of rows of about 150 bytes, each with its own time, in files of 150 MB."""
    lengths = rng.integers(100, 200, SEGMENT_ROWS)
    ends = np.cumsum(lengths + 1)
    return SegmentColumns(
        np.zeros(SEGMENT_ROWS, np.uint32),
        ends - lengths - 1,
        lengths,
        rng.integers(0, 100, SEGMENT_ROWS),
        1_700_000_000 + np.sort(rng.integers(0, 10**6, SEGMENT_ROWS)),
    )


def single_files(rng: np.random.Generator) -> SegmentColumns:
    """Columns of images of up to 200 KB; each file has its own time, and files are not in the order of time."""
    return SegmentColumns(
        np.arange(SEGMENT_ROWS, dtype=np.uint32),
        np.zeros(SEGMENT_ROWS, np.int64),
        rng.integers(5_000, 200_000, SEGMENT_ROWS),
        rng.integers(0, 1000, SEGMENT_ROWS),
        1_700_000_000 + rng.integers(0, 10**6, SEGMENT_ROWS),
    )


COLUMNS: dict[str, Callable[[np.random.Generator], SegmentColumns]] = {
    "records": records,
    "rows": csv_rows,
    "files": single_files,
}


def build(folder: Path, columns: SegmentColumns, entries: int) -> None:
    """Write enough segments like `columns` for `entries`."""
    template = folder / "template"
    write_segment(template, 0, columns)
    content = template.read_bytes()
    template.unlink()
    header_size = int.from_bytes(content[12:16], "little")
    header = json.loads(content[_PREFIX_BYTES : _PREFIX_BYTES + header_size])
    data = content[_PREFIX_BYTES + header_size + -(_PREFIX_BYTES + header_size) % 64 :]
    for number in range(-(-entries // SEGMENT_ROWS)):
        own = json.dumps(header | {"first_key": number * SEGMENT_ROWS}).encode()
        start = content[:12] + len(own).to_bytes(4, "little") + zlib.crc32(own).to_bytes(4, "little") + own
        with open(folder / f"{number:06d}.segment", "wb") as file:
            file.write(start + bytes(-len(start) % 64))
            size = file.tell() + len(data)
            if number * size < REAL_BYTES:
                file.write(data)
            file.truncate(size)
    os.sync()


def measure(folder: Path) -> dict[str, float]:
    """Measure in a process of its own, so that its memory is that of the index."""
    paths = sorted(folder.iterdir())
    drop(paths)
    before = memory("RssAnon")
    cold_s, index = timed(lambda: SegmentIndex([Segment.open(path) for path in paths]))
    warm_s, index = timed(lambda: SegmentIndex([Segment.open(path) for path in paths]))
    found = {"cold_open_s": cold_s, "warm_open_s": warm_s, "anonymous_mib": memory("RssAnon") - before}
    rng = np.random.default_rng(1)

    def of_random_keys(look_up: Callable[[Int64Array], object]) -> list[float]:
        batches = (rng.integers(0, index.num_samples, BATCH) for _ in range(BATCHES))
        return [timed(lambda batch=batch: look_up(batch))[0] * 1e9 / BATCH for batch in batches]  # type: ignore[misc]

    times = of_random_keys(index.entries)
    found |= {"cold_ns": times[0], "random_ns": statistics.median(times[-SETTLED:])}
    found["sequential_ns"] = min(timed(lambda: index.entries(np.arange(BATCH)))[0] for _ in range(SETTLED)) * 1e9 / BATCH
    found["mapped_mib"] = memory("RssFile")
    return found


def timed(work: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def memory(name: str) -> float:
    """Return the field `name` of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


HEAD = (
    "| kind | segments | bytes an entry | GB written | open cold, s | open warm, s | memory, MiB | first batch cold, ns a key | "
    "locations and labels of random keys, ns a key | sequential, ns a key | mapped afterwards, MiB |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(kind: str, folder: Path) -> str:
    command = [sys.executable, "-m", "benchmark.index_simulation", "--measure", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    status = [path.stat() for path in folder.iterdir()]
    size, written = sum(s.st_size for s in status), sum(s.st_blocks * 512 for s in status)
    return (
        f"| {kind} | {len(status):,} | {size / len(status) / SEGMENT_ROWS:.2f} | {written / 1e9:.2f} | {found['cold_open_s']:.2f} | "
        f"{found['warm_open_s']:.2f} | {found['anonymous_mib']:.1f} | {found['cold_ns']:,.0f} | {found['random_ns']:.0f} | "
        f"{found['sequential_ns']:.1f} | {found['mapped_mib']:,.0f} |"
    )


DELETED = (0, 10, 100_000, 10_000_000)
DELETED_HEAD = (
    "| deleted | bytes on the disk | asking for a batch of random keys, ms | deleting 1,000 more, ms |\n|---|---|---|---|"
)


def deleted_row(path: Path, entries: int, count: int) -> str:
    rng = np.random.default_rng(2)
    deletions = Tombstones.open(path)
    deletions.add(np.unique(rng.integers(0, entries, count)))
    size = path.stat().st_size if path.exists() else 0
    asked = [rng.integers(0, entries, BATCH) for _ in range(SETTLED)]
    asking = statistics.median(timed(lambda keys=keys: deletions.keys.contains(keys))[0] for keys in asked)  # type: ignore[misc]
    more = [rng.integers(0, entries, 1000) for _ in range(SETTLED)]
    deleting = statistics.median(timed(lambda keys=keys: deletions.add(keys))[0] for keys in more)  # type: ignore[misc]
    return f"| {count:,} | {size:,} | {asking * 1e3:.3f} | {deleting * 1e3:.1f} |"


if __name__ == "__main__":
    main()
