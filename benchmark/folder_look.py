"""Time that storage needs to check an unchanged folder, and the longest time in which no other thread of storage runs.

    python -m benchmark.folder_look [--files 1000000] [--looks 5] [--folder /tmp] [--report]

Writes that many files of one sample, each with a label file, a thousand to a folder, and removes them at the end: two inodes each. What is
timed is a listing as a look of a watcher makes it, compared with the files that are indexed: by what the kernel reports (`watched`), and of all
files, as after a start, on request, or where the kernel does not report (`complete`). A look asks the database two short questions besides, which
do not depend on the number of files. The last line is the median of a watched look in seconds (goal: at most 1 for 10^6 files).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from benchmark.machine import busy_cores, spread, write_report
from modyn.storage.files.file_system import Roots
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats import build_format
from modyn.storage.model.file_table import FileRow, FileTable

_PER_FOLDER = 1000


class Gaps:
    """Measures the longest time, in seconds, in which another thread did not run: it waited for the interpreter's lock or for a core."""

    def __enter__(self) -> Self:
        self.longest = 0.0
        self._stop = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop = True
        self._thread.join()

    def _run(self) -> None:
        last = time.perf_counter()
        while not self._stop:
            time.sleep(0.0005)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--looks", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the files are written; the temporary folder by default")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modyn-look-", dir=options.folder) as folder:
        write_files(folder, options.files)
        print(f"written: {options.files:,} files", file=sys.stderr)
        table = FileTable()
        rows = {kind: looks(folder, table, options.looks, complete=kind == "complete") for kind in ("complete", "watched")}
    lines = ["| look | seconds | longest gap, ms |", "|---|---|---|"]
    lines += [f"| {kind} | {spread(seconds)} | {1000 * max(gaps):.0f} |" for kind, (seconds, gaps) in rows.items()]
    lines += ["", f"Cores that other programs kept busy just after: {busy_cores():.1f}."]
    print("\n".join(lines))
    if options.report:
        command = f"python -m benchmark.folder_look --files {options.files} --looks {options.looks}"
        print(f"report: {write_report('folder-look', command, chr(10).join(lines))}")
    print(f"seconds: {statistics.median(rows['watched'][0]):.4f}")


def write_files(base: str, num_files: int) -> None:
    for first in range(0, num_files, _PER_FOLDER):
        folder = os.path.join(base, f"{first:09d}")
        os.mkdir(folder)
        descriptor = os.open(folder, os.O_RDONLY)
        for i in range(first, min(num_files, first + _PER_FOLDER)):
            for ending in ("label", "png"):
                os.close(os.open(f"{i}.{ending}", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=descriptor))
        os.close(descriptor)


def looks(folder: str, table: FileTable, count: int, *, complete: bool) -> tuple[list[float], list[float]]:
    """Return the seconds and the longest gaps of `count` checks, after one that fills `table`."""
    images = build_format("SingleSampleFileWrapper", {"file_extension": ".png", "label_file_extension": ".label"})
    files = LocalFiles(folder)
    found = files.list_files(images.names(), Roots(), table, complete=complete).files
    table.add(FileRow(i, file.path, file.size, file.mtime_ns, 0, 1, "") for i, file in enumerate(found, len(table)))
    files.list_files(images.names(), Roots(), table, complete=complete)  # The first one checks each new file a second time.
    seconds, gaps = [], []
    for _ in range(count):
        with Gaps() as gap:
            began = time.perf_counter()
            listing = files.list_files(images.names(), Roots(), table, complete=complete)
            seconds.append(time.perf_counter() - began)
        gaps.append(gap.longest)
        if len(listing.files) or len(listing.absent):
            raise RuntimeError(f"{len(listing.files):,} files differ and {len(listing.absent):,} are absent; nothing was changed")
    return seconds, gaps


if __name__ == "__main__":
    main()
