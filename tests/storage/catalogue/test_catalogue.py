"""The catalogue: a change is made at the version that it was made from, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.errors import ConflictError
from modyn.storage.catalogue.catalogue import Catalogue, Change, ProblemRow, SegmentRow
from modyn.storage.index.segment_file import SegmentInfo
from modyn.storage.model.file_table import CheckedFile, Checksum, FileRow

CONFIG = DatasetConfig(
    name="numbers",
    base_path=Path("/data/it's ünï"),
    file_wrapper="BinaryFileWrapper",
    file_wrapper_config={"record_size": 3, "x": None},
)
ODD = os.fsdecode(b"tab\t new\n back\\slash \xff '\" \\x41")
FILES = [
    FileRow(0, "a.bin", 10, 2**40, 9, 3, "f" * 64),
    FileRow(1, ODD, 0, -5, 0, 0, ""),
    FileRow(2, "x" * 3000, 1, 1, 1, 1, "", altered=True),
]
SEGMENTS = [SegmentRow(SegmentInfo(0, 3, -(2**62), 2**62, 100, "c1"), "s0"), SegmentRow(SegmentInfo(3, 1, 1, 1, 50, "c2"), "s3")]


@pytest.fixture
def catalogue(system_config: SystemConfig) -> Iterator[Catalogue]:
    opened = Catalogue.open(system_config)
    yield opened
    opened.close()


def test_what_is_committed_is_read_again(catalogue: Catalogue) -> None:
    row = catalogue.add(CONFIG, float_labels=True)
    problems = [ProblemRow(ODD, "1:2", "bad \udcff \0 reason"), ProblemRow("", "s", "folder")]
    assert catalogue.commit(row.id, row.version, Change(4, FILES, segments=SEGMENTS, problems=problems)) == (1, 0)
    contents = catalogue.contents("numbers")
    assert contents is not None
    assert (contents.row.config, contents.row.float_labels, contents.row.next_key, contents.row.version) == (CONFIG, True, 4, 1)
    assert catalogue.files(row.id) == FILES
    assert [contents.files.path(i) for i in range(3)] == [file.path for file in FILES]
    assert list(contents.segments) == SEGMENTS
    assert contents.problems == {ODD: "1:2", "": "s"}
    assert catalogue.file(row.id, 1) == FILES[1]
    listed = {problem.path: problem.reason for problem in catalogue.problems(row.id, lambda path: f"/base/{path}".rstrip("/"))}
    assert listed == {"/base": "folder", f"/base/{ODD}": "bad \\udcff \\x00 reason"}


def test_numbers_of_files_go_beyond_31_bits(catalogue: Catalogue) -> None:
    row = catalogue.add(CONFIG, float_labels=False)
    file = FileRow(2**32 - 1, "last", 8, 9, 7, 6, "f")
    catalogue.commit(row.id, 0, Change(0, [file]))
    assert catalogue.file(row.id, 2**32 - 1) == file


def test_changes_replace_what_they_name(catalogue: Catalogue) -> None:
    row = catalogue.add(CONFIG, float_labels=False)
    catalogue.commit(
        row.id, 0, Change(4, FILES, segments=SEGMENTS, problems=[ProblemRow("p", "1", "first"), ProblemRow("q", "1", "other")])
    )
    changed = FileRow(1, ODD, 8, 9, 7, 6, "new", altered=True)
    merged = SegmentRow(SegmentInfo(0, 4, 0, 1, 120, "c3"), "s4")
    change = Change(
        4,
        changed_files=[changed],
        segments=[merged],
        replaced_segments=[0, 3],
        problems=[ProblemRow("p", "2", "second")],
        solved=["q", "r"],
    )
    catalogue.commit(row.id, 1, change)
    contents = catalogue.contents("numbers")
    assert contents is not None
    assert catalogue.files(row.id) == [FILES[0], changed, FILES[2]]
    assert contents.files.altered == {1, 2}
    assert list(contents.segments) == [merged]
    assert contents.problems == {"p": "2"}


def test_a_change_to_another_version_changes_nothing(catalogue: Catalogue) -> None:
    row = catalogue.add(CONFIG, float_labels=False)
    catalogue.commit(row.id, 0, Change(3, FILES[:1]))
    with pytest.raises(ConflictError):
        catalogue.commit(row.id, 0, Change(9, FILES[1:2]))
    contents = catalogue.contents("numbers")
    assert contents is not None
    assert (contents.row.next_key, len(contents.files)) == (3, 1)


def test_one_of_many_that_commit_at_once_wins(catalogue: Catalogue) -> None:
    row = catalogue.add(CONFIG, float_labels=False)

    def commit(_: int) -> str:
        try:
            catalogue.commit(row.id, 0, Change(1, FILES[:1]))
            return "won"
        except ConflictError:
            return "lost"

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(commit, range(6))) == ["lost"] * 5 + ["won"]


def test_deleting_has_two_steps(catalogue: Catalogue) -> None:
    row = catalogue.add(CONFIG, float_labels=False)
    assert catalogue.add(CONFIG, float_labels=False) == row
    catalogue.commit(row.id, 0, Change(3, FILES, segments=SEGMENTS, problems=[ProblemRow("p", "1", "r")]))
    catalogue.begin_delete(row.id)
    assert (catalogue.datasets(), catalogue.contents("numbers"), catalogue.version(row.id)) == ([], None, None)
    assert [found.id for found in catalogue.datasets(deleting=True)] == [row.id]
    with pytest.raises(ConflictError, match="being deleted"):
        catalogue.add(CONFIG, float_labels=False)
    with pytest.raises(ConflictError):
        catalogue.commit(row.id, 2, Change(4))
    catalogue.end_delete(row.id)
    assert catalogue.add(CONFIG, float_labels=False).id != row.id


def test_checksums_are_kept_of_files_that_are_as_they_were_read(catalogue: Catalogue) -> None:
    row = catalogue.add(CONFIG, float_labels=False)
    files = [FileRow(i, f"{i}.bin", 10, 1, 10, 1, "") for i in range(5)]
    catalogue.commit(row.id, 0, Change(0, [*files, FileRow(5, "nothing", 10, 1, 0, 0, "")]))
    found = catalogue.files_to_check(row.id, 0, 9)
    assert found == [CheckedFile(file) for file in files]
    assert catalogue.files_to_check(row.id, 1, 2) == found[1:3]
    catalogue.keep_checksums(row.id, [file._replace(checksum=Checksum(10, 2**32 - 1)) for file in found[:2]])
    grown, altered, forgotten = (
        files[0]._replace(indexed_end=20),
        files[2]._replace(altered=True),
        [files[1], files[3]._replace(num_samples=0, indexed_end=0)],
    )
    catalogue.commit(row.id, 1, Change(0, changed_files=[grown, altered], forgotten=forgotten))
    catalogue.keep_checksums(row.id, [file._replace(checksum=Checksum(9, 7)) for file in found])
    kept = [catalogue.checked_file(row.id, i) for i in range(5)]
    assert [file.checksum for file in kept] == [Checksum(10, 2**32 - 1), Checksum(), Checksum(), Checksum(), Checksum(9, 7)]
    assert [file.times_forgotten for file in kept] == [0, 1, 0, 1, 0]
    assert [file.row.file_id for file in catalogue.files_to_check(row.id, 0, 9)] == [0, 1, 2, 4]


def test_checksums_do_not_wait_for_a_commit(catalogue: Catalogue) -> None:
    """The commit may wait for the row of another file, which the checksums are about to change."""
    row = catalogue.add(CONFIG, float_labels=False)
    catalogue.commit(row.id, 0, Change(0, [FileRow(i, f"{i}.bin", 10, 1, 10, 1, "") for i in range(3)]))
    files = [file._replace(checksum=Checksum(10, 7)) for file in catalogue.files_to_check(row.id, 0, 9)]
    with catalogue.database.raw() as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE storage.files SET mtime_ns = 2 WHERE dataset_id = %s AND file_id = 1", (row.id,))
        catalogue.keep_checksums(row.id, files)
    assert [catalogue.checked_file(row.id, i).checksum.crc32 for i in range(3)] == [7, 0, 7]
    assert catalogue.file(row.id, 1).mtime_ns == 2
