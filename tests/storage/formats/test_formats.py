"""The rules of all file formats, on one file of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from modyn._core import PathTable
from modyn.errors import ConfigError
from modyn.records import Int64Array
from modyn.storage.files.file_system import FileSystem, Roots
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats import FILE_FORMATS, REGISTRY, build_format
from modyn.storage.formats.base import FileFormat, OwnReader
from modyn.storage.ingest.fingerprints import fingerprint
from modyn.storage.model.file_table import FileTable
from modyn.storage.model.samples import IndexedSamples, UInt8Array
from modyn.storage.read.record_readers import RecordReaders
from modyn.testing.format_checks import check_file_format, read_file, resume_point
from tests.support.format_examples import EXAMPLES, SAMPLES, as_lines, csv_rows


@pytest.mark.parametrize("id_", sorted(FILE_FORMATS))
def test_every_format_keeps_the_rules(id_: str, tmp_path: Path) -> None:
    example, kind = EXAMPLES[id_], REGISTRY.get(id_)
    path = tmp_path / example.name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(example.write(example.samples))
    (tmp_path / "a.label").write_text("7")
    more = example.samples[:2]
    appended = (example.write(more), example.found(more)) if kind.can_grow else None
    check_file_format(kind, example.config, path, example.found(example.samples), appended=appended)


@pytest.mark.parametrize("id_", sorted(set(FILE_FORMATS) - {"SingleSampleFileWrapper", "image_folder"}))
def test_chunks_together_are_the_file(id_: str, tmp_path: Path) -> None:
    """A file that may grow is resumed from the end of any chunk."""
    example, samples = EXAMPLES[id_], [(b"%09d" % i, float(i)) for i in range(100)]
    path, built = tmp_path / example.name, build_format(id_, example.config)
    path.write_bytes(example.write(samples))
    built.chunk_rows = 7
    chunks = list(built.index(str(path)))
    assert max(map(len, chunks)) <= 7
    assert read_file(built, path).samples == example.found(samples)
    ends = np.cumsum([len(chunk) for chunk in chunks]).tolist()
    for chunk, count in zip(chunks, ends, strict=True) if built.can_grow else ():
        assert read_file(built, path, resume_point(path, chunk.end, count)).samples == example.found(samples)[count:]


def test_the_registry_holds_what_it_should() -> None:
    assert sorted(FILE_FORMATS) == sorted(EXAMPLES)
    for id_ in FILE_FORMATS:
        assert issubclass(REGISTRY.get(id_), FileFormat)
    with pytest.raises(ConfigError, match="did you mean 'CsvFileWrapper'"):
        build_format("CsvWrapper", {})


class Forgetful(REGISTRY.get("CsvFileWrapper")):  # type: ignore[misc]  # the base is found when the program runs
    """Indexes a file from its beginning each time."""

    def index(self, path: str, resume: object = None) -> Iterator[IndexedSamples]:
        yield from super().index(path)


def test_the_check_finds_a_format_that_does_not_continue_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(csv_rows(SAMPLES))
    found = as_lines(csv_rows)
    with pytest.raises(AssertionError, match="finds samples again"):
        check_file_format(Forgetful, {"label_index": 0}, path, found(SAMPLES), appended=(csv_rows(SAMPLES), found(SAMPLES)))


class Zeros(REGISTRY.get("CsvFileWrapper")):  # type: ignore[misc]  # the base is found when the program runs
    """Rows that are read by a reader of the format's own."""

    def payload_reader(self) -> OwnReader:
        return OwnReader(f"{__name__}:ZerosReader")


class ZerosReader:
    """A payload of one byte, 0, for each sample."""

    def __init__(self, paths: PathTable, folder: FileSystem, cache_bytes: int) -> None:
        assert (folder.base, cache_bytes) == ("/d", 5)

    def gather(self, file_ids: object, offsets: Int64Array, lengths: object) -> tuple[UInt8Array, Int64Array]:
        return np.zeros(len(offsets), np.uint8), np.arange(len(offsets) + 1)


def test_a_format_may_bring_its_own_reader_of_payloads() -> None:
    built = build_format("CsvFileWrapper", {"label_index": 0})
    readers = RecordReaders(num_threads=1, row_group_cache_bytes=5)
    own = readers.open_format(Zeros(built.config), LocalFiles("/d"), PathTable("/d"))
    data, bounds = own.gather(np.zeros(2, np.uint32), np.arange(2), 1)
    assert (data.tolist(), bounds.tolist()) == ([0, 0], [0, 1, 2])


class Visible(REGISTRY.get("CsvFileWrapper")):  # type: ignore[misc]  # the base is found when the program runs
    """Rows in files with the option's ending and with names that do not begin with a dot."""

    def holds_samples(self, path: str) -> bool:
        return super().holds_samples(path) and not os.path.basename(path).startswith(".")


def test_a_rule_for_names_counts_in_addition_to_the_option_for_their_ending(tmp_path: Path) -> None:
    for name in ("a.csv", ".b.csv", "c.txt"):
        (tmp_path / name).write_text("1\n")
    built = Visible(build_format("CsvFileWrapper", {"label_index": 0}).config)
    assert LocalFiles(str(tmp_path)).list_files(built.names(), Roots(), FileTable()).files.paths == ["a.csv"]


@pytest.mark.parametrize(
    ("size", "at", "noticed"),
    [(300_000, 0, True), (300_000, 150_001, True), (300_000, 299_999, True)]
    + [(2**24, at, True) for at in (0, 2**16, 2**16 + 4095, 2**24 - 2**16 - 1, 2**24 - 1)]
    + [(2**24, 2**16 + 4096, False)],
)
def test_a_fingerprint_sees_all_of_a_short_file_and_much_of_a_long_one(tmp_path: Path, size: int, at: int, noticed: bool) -> None:
    path = tmp_path / "a"
    content, files = bytearray(size), LocalFiles(str(tmp_path))
    path.write_bytes(content)
    before = fingerprint(files, str(path), size)
    content[at] = 1
    path.write_bytes(content + b"appended")
    assert (fingerprint(files, str(path), size) != before) == noticed
