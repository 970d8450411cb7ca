"""Checks that every file format must pass, whether it is built in or from your own package. Call a check from a test with a file of the format.

    def test_my_format(tmp_path: Path) -> None:
        path = tmp_path / "a.my"
        path.write_bytes(...)
        check_file_format(MyFormat, {"option": 1}, path, [(b"payload", 7), ...])

Each check raises AssertionError with the broken rule and the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modyn._core import PathTable
from modyn.config.base import load_section
from modyn.errors import DataError
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats.base import FileFormat, FormatResume
from modyn.storage.ingest.fingerprints import check_unchanged, fingerprint
from modyn.storage.model.samples import IndexedSamples
from modyn.storage.read.record_readers import RecordReaders
from modyn.testing.checks import require

Sample = tuple[bytes, float]
"""Payload and label."""

_CUTS = 40


@dataclass(frozen=True)
class ReadFile:
    """The content that a format finds in one file: samples, their times in seconds, and the number of indexed bytes."""

    samples: list[Sample]
    timestamps: list[int]
    end: int


def read_file(built: FileFormat, path: Path, resume: FormatResume | None = None) -> ReadFile:
    """Read all samples of one file with their payloads, as storage does. Args: resume: read only samples after this resume point."""
    samples: list[Sample] = []
    timestamps: list[int] = []
    end = resume.end if resume else 0
    if resume is not None:
        check_unchanged(LocalFiles(str(path.parent)), str(path), resume)
    for chunk in built.index(str(path), resume):
        end = chunk.end
        samples += zip(payloads(built, path, chunk), chunk.labels.tolist(), strict=True)
        timestamps += np.broadcast_to(np.asarray(chunk.timestamps), len(chunk)).tolist()
    return ReadFile(samples, timestamps, end)


def resume_point(path: Path, end: int, num_samples: int) -> FormatResume:
    """Return the resume point of a file after its first `end` bytes, which have `num_samples` samples, are indexed."""
    return FormatResume(end, num_samples, fingerprint(LocalFiles(str(path.parent)), str(path), end))


def payloads(built: FileFormat, path: Path, chunk: IndexedSamples) -> list[bytes]:
    """Read the payloads of a chunk with the reader that the format declares."""
    name = np.frombuffer(path.name.encode(), np.uint8)
    paths = PathTable(str(path.parent))
    paths.append_packed(name, np.array([len(name)], np.int64))
    with closing(RecordReaders(num_threads=1)) as readers:
        reader = readers.open_format(built, LocalFiles(str(path.parent)), paths)
        data, bounds = reader.gather(np.zeros(len(chunk), np.uint32), chunk.offsets, chunk.lengths)
    return [data[start:stop].tobytes() for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]


def check_file_format(
    kind: type[FileFormat],
    config: Mapping[str, Any],
    path: Path,
    expected: Sequence[Sample],
    *,
    timestamp_source: str = "",
    appended: tuple[bytes, Sequence[Sample]] | None = None,
) -> None:
    """Check that a format finds the expected samples of a file in order and repeatably, with the declared columns. A file that is truncated, changed
    or missing must give an error with its name, not wrong samples. If files of the format may grow, the format must resume, and find only the
    samples of the appended bytes. The check changes the file and restores it.

    Args: config: options of the format, which are checked too. path: a file in a writable folder. expected: payload and label of each sample, in the
    order of the file. appended: bytes to append, and their samples.
    """
    name = kind.__name__
    require(bool(kind.__doc__), f"{name} has no docstring; its first line says what its files hold")
    built = kind(load_section(kind.Config, config), timestamp_source)
    require(built.holds_samples(str(path)), f"{name}: does not take a file named {path.name}")
    _check_columns(built, path)
    found = read_file(built, path)
    require(found.samples == list(expected), f"{name}: finds {found.samples}, not {list(expected)}")
    require(read_file(built, path) == found, f"{name}: finds something else when asked again")
    resume = resume_point(path, found.end, len(found.samples))
    if built.can_grow:
        require(not read_file(built, path, resume).samples, f"{name}: finds samples again that are before the given resume point")
    content = path.read_bytes()
    try:
        _check_broken_files(built, path, content, found, resume)
        if built.can_grow:
            require(appended is not None, f"{name}: says that its files may grow; give `appended` to check that")
        if built.can_grow and appended is not None:
            more, their_samples = appended
            path.write_bytes(content + more)
            rest = read_file(built, path, resume)
            require(
                rest.samples == list(their_samples), f"{name}: finds {rest.samples} after what is indexed, not {their_samples}"
            )
    finally:
        path.write_bytes(content)


def _check_columns(built: FileFormat, path: Path) -> None:
    name = type(built).__name__
    label_type = np.float64 if built.float_labels else np.int64
    end = 0
    for chunk in built.index(str(path)):
        require(
            0 < len(chunk) <= built.chunk_rows, f"{name}: a chunk has {len(chunk)} samples; allowed are 1 to {built.chunk_rows}"
        )
        columns = {"offsets": (chunk.offsets, np.int64), "labels": (chunk.labels, label_type)}
        columns |= {"lengths": (chunk.lengths, np.int64)} if isinstance(chunk.lengths, np.ndarray) else {}
        columns |= {"timestamps": (chunk.timestamps, np.int64)} if isinstance(chunk.timestamps, np.ndarray) else {}
        for column, (values, dtype) in columns.items():
            shape_and_type = (values.shape, values.dtype)
            require(
                shape_and_type == ((len(chunk),), np.dtype(dtype)),
                f"{name}: {column} of {len(chunk)} samples are {shape_and_type}",
            )
        require(
            bool(np.all(chunk.offsets >= 0) and np.all(np.asarray(chunk.lengths) >= 0)), f"{name}: negative offsets or lengths"
        )
        require(end <= chunk.end <= path.stat().st_size, f"{name}: a chunk ends at {chunk.end}, the one before at {end}")
        end = chunk.end


def _check_broken_files(built: FileFormat, path: Path, content: bytes, found: ReadFile, resume: FormatResume) -> None:
    name = type(built).__name__
    for size in sorted({len(content) * i // _CUTS for i in range(_CUTS)}):
        path.write_bytes(content[:size])
        some = _or_error(built, path, None, f"{name}: a file cut to {size} of {len(content)} bytes")
        if some is not None:
            whole = found.samples[: len(some)]
            # If a text is truncated within its last row, the rest may still be a valid row.
            require(
                some[:-1] == whole[:-1],
                f"{name}: a file cut to {size} of {len(content)} bytes gives {some}, not a part of the whole",
            )
        if size < resume.end:
            again = _or_error(built, path, resume, f"{name}: an indexed file cut to {size} bytes")
            require(again is None, f"{name}: continues with an indexed file that was cut to {size} of {resume.end} bytes")
    if content:
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        again = _or_error(built, path, resume, f"{name}: an indexed file with another first byte")
        require(again is None, f"{name}: continues with an indexed file whose first byte is another")
    path.unlink()
    require(_or_error(built, path, None, f"{name}: a file that is gone") is None, f"{name}: finds samples in a file that is gone")


def _or_error(built: FileFormat, path: Path, resume: FormatResume | None, what: str) -> list[Sample] | None:
    """Return the samples of a file; None if the format raised the expected error."""
    try:
        return read_file(built, path, resume).samples
    except DataError as error:
        require(str(path) in error.message, f"{what}: the error does not name the file: {error.message}")
        return None
