"""Deletions are published between two publications of the index, without the locks of the dataset's writers: they never take an index back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from modyn.storage.ingest.publisher import Publisher, withdraw
from modyn.storage.model.file_table import FileRow, FileTable
from modyn.storage.read.publication import INDEX, Publication
from tests.support.disk_recorder import recorded_disk
from tests.support.running_storage import binary_dataset, row_of

FILES = FileTable([FileRow(0, "0.bin", 16, 0, 16, 1, "")])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "index").mkdir()
    return tmp_path / "index"


def publish(folder: Path, publisher: Publisher, version: int) -> None:
    publisher.publish(row_of(binary_dataset(folder.parent / "data"), version), [], FILES)


def test_a_deletion_keeps_the_index_of_a_publication_that_broke_off(folder: Path) -> None:
    """This includes one that only failed to sync the new index: readers have seen it."""
    broke_off, step, versions = True, 0, set()
    while broke_off:
        publisher = Publisher(folder)
        publish(folder, publisher, 2 * step + 1)
        with recorded_disk(folder) as disk:
            broke_off = disk.kill_at(step, partial(publish, folder, publisher, 2 * step + 2))
            before = Publication.read(folder)
            publisher.publish_counts(5)
            found = Publication.read(folder)
        assert (found.version, found.num_deleted) == (before.version, 5)
        versions.add(found.version % 2)
        publish(folder, publisher, 2 * step + 2)
        assert Publication.read(folder).version == 2 * step + 2
        step += 1
    assert versions == {0, 1}


def test_deletions_and_late_labels_are_each_made_known_once(folder: Path) -> None:
    publisher, seen = Publisher(folder), list[tuple[int, int]]()
    publish(folder, publisher, 1)
    for num_deleted, num_labels in ((0, 3), (0, 4), (5, 4), (6, 7)):
        publisher.publish_counts(num_deleted, num_labels)
        found = Publication.read(folder)
        seen.append((found.num_deleted, found.num_labels))
    assert seen == [(0, 3), (0, 3), (5, 3), (5, 3)]


def test_a_deletion_leaves_the_index_of_another_process_alone(folder: Path) -> None:
    first, second = Publisher(folder), Publisher(folder)
    publish(folder, first, 1)
    publish(folder, second, 2)
    first.publish_counts(5)
    assert Publication.read(folder).version == 2


def test_a_deletion_is_published_before_the_first_publication_of_the_process(folder: Path) -> None:
    Publisher(folder).publish_counts(5)  # nothing is published yet
    publish(folder, Publisher(folder), 1)
    Publisher(folder).publish_counts(5)
    found = Publication.read(folder)
    assert (found.version, found.num_deleted) == (1, 5)


def test_a_deletion_is_published_although_the_index_was_damaged_meanwhile(folder: Path) -> None:
    publisher = Publisher(folder)
    publish(folder, publisher, 1)
    (folder / INDEX).write_bytes(b"{")
    publisher.publish_counts(5)
    found = Publication.read(folder)
    assert (found.version, found.num_deleted) == (1, 5)


def test_a_deletion_brings_no_index_back_that_was_withdrawn(folder: Path) -> None:
    publisher = Publisher(folder)
    publish(folder, publisher, 1)
    withdraw(folder)
    publisher.publish_counts(5)
    assert not (folder / INDEX).exists()
