"""A publication after a power loss at any moment: readers find one that is whole, and the newest that was acknowledged or the one after it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from modyn.errors import NotFoundError
from modyn.storage.index.segment_file import SegmentColumns, write_segment
from modyn.storage.ingest.publisher import Publisher
from modyn.storage.model.file_table import FileRow, FileTable
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.snapshot import PublishedDataset
from tests.support.disk_recorder import recorded_disk
from tests.support.running_storage import binary_dataset, row_of


def test_readers_find_a_whole_publication(tmp_path: Path) -> None:
    """Names that are added, then enough that their block takes in the one before, a file that gets another stamp, and a segment."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    config, files, readers = binary_dataset(tmp_path / "data"), FileTable(), RecordReaders(1)
    states: list[list[tuple[int, int]]] = [[]]
    with recorded_disk(folder) as disk:
        publisher = Publisher(folder)
        for version, num_new in enumerate((3, 1, 9, 0), start=1):
            files.add(FileRow(i, f"{i}.bin", 16, i, 16, 1, "") for i in range(len(files), len(files) + num_new))
            changed = [2] if version == 4 else []
            files.change(FileRow(i, f"{i}.bin", 16, 100 + version, 16, 1, "") for i in changed)
            if version == 3:
                publisher = Publisher(folder)  # as after a restart
            segments = [f"{i}.segment" for i in range(version)]
            ones = np.ones(5, np.int64)
            write_segment(
                folder / segments[-1], 5 * (version - 1), SegmentColumns(ones.astype(np.uint32), ones, ones, ones, ones)
            )
            publisher.publish(row_of(config, version), segments, files, changed)
            sizes, times = files.stamps(np.arange(len(files)))
            states.append(list(zip(sizes.tolist(), times.tolist(), strict=True)))
            disk.note(version)
    for loss in disk.losses():
        with loss.restored():
            try:
                found = PublishedDataset(folder, readers).snapshot()
            except NotFoundError:
                assert not loss.notes
                continue
            assert found.version in (len(loss.notes), len(loss.notes) + 1)
            assert [found.paths.stamp(i) for i in range(len(found.paths))] == states[found.version]
            assert found.index.next_key == 5 * found.version
            if loss.num_operations % 8:
                continue
            # What was left is no hindrance.
            Publisher(folder).publish(row_of(config, 9), [], files, range(len(files)))
            after = PublishedDataset(folder, readers).snapshot()
            assert [after.paths.stamp(i) for i in range(len(after.paths))] == states[-1]


def test_what_a_killed_process_published_is_durable_once_the_next_has_published(tmp_path: Path) -> None:
    readers, config, killed, step = RecordReaders(1), binary_dataset(tmp_path / "data"), True, 0
    while killed:
        folder = tmp_path / str(step)
        folder.mkdir()
        files = FileTable([FileRow(0, "0.bin", 16, 0, 16, 1, "")])
        Publisher(folder).publish(row_of(config, 1), [], files)
        files.add([FileRow(1, "1.bin", 16, 0, 16, 1, "")])
        with recorded_disk(folder) as disk:
            killed = disk.kill_at(step, partial(Publisher(folder).publish, row_of(config, 2), [], files))
            Publisher(folder).publish(row_of(config, 2), [], files)
            disk.note("published")
        for loss in disk.losses():
            if loss.notes:
                with loss.restored():
                    assert len(PublishedDataset(folder, readers).snapshot().paths) == 2
        step += 1
    assert step > 4
