"""Files of a record log, which storage itself writes. A file contains batches of records. Each batch has checksums, and becomes durable as a whole.

A file begins with a head of 64 bytes: magic, version, CRC-32 of the next fields, number of the file, key of its first record. A batch consists of a
head of 32 bytes (magic, number of records, bytes of the body, key of the first record, CRC-32 of the body, CRC-32 of the head), the entries of the
records (`ENTRY`), and the payloads in the same order. All numbers are little-endian. A file may end with a truncated or unacknowledged batch. The
valid content of a file ends before the first key of the next file; in the last file, it ends after the last whole batch.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from modyn.columnar import FileKind
from modyn.errors import ConfigError, CorruptStateError, DataError
from modyn.records import NO_LABEL
from modyn.storage.files.local import reading
from modyn.storage.formats.base import FileFormat, FormatConfig, FormatResume
from modyn.storage.model.samples import IndexedSamples

RECORD_FILE: Final = ".records"
"""Ending of the names of record files."""
KIND: Final = FileKind(
    b"MODYNREC", 1, "file of records", "restore it from a backup and restart storage; its samples can still be read"
)
ENTRY: Final = np.dtype([("digest", "<u8", 2), ("content", "<u8"), ("label", "<i8"), ("timestamp", "<i8"), ("length", "<u4")])
"""One record. digest: 128-bit BLAKE2b of its idempotency key. content: 64-bit digest of the rest of the record. label: int64, or the bits of a
float64. timestamp: seconds since 1970. length: bytes of its payload."""
HEAD_BYTES: Final = 64
"""Size of the head of a file. Zeros fill the head up to this size."""
_HEAD: Final = struct.Struct("<8sIIQQ")
"""Magic, version, CRC-32 of the rest, number of the file, key of its first record."""
BATCH_HEAD: Final = struct.Struct("<4sIQQII")
"""Mark, number of records, size of the body, key of the first record, CRC-32 of the body, CRC-32 of the preceding fields of the head."""
BATCH_MARK: Final = b"RECS"
"""First bytes of each batch. A search for these bytes finds batches after a damaged batch."""
_SEARCHED_BYTES: Final = 1 << 20
"""Number of bytes that are searched at once for a later batch."""

Entries = npt.NDArray[Any]
"""An array of dtype ENTRY, (n,)."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatch:
    """A whole batch of a file. entries: (n,). start, end: the bytes [start, end) of the file. first_key: key of the first record."""

    entries: Entries
    start: int
    end: int
    first_key: int

    @property
    def end_key(self) -> int:
        """Key after the last record of the batch."""
        return self.first_key + len(self.entries)

    def samples(self, *, float_labels: bool) -> IndexedSamples:
        """Return the positions of the batch's payloads, with labels and times."""
        lengths = self.entries["length"].astype(np.int64)
        first = self.start + BATCH_HEAD.size + self.entries.nbytes
        labels = np.ascontiguousarray(self.entries["label"])
        return IndexedSamples(
            first + np.cumsum(lengths) - lengths,
            lengths,
            labels.view(np.float64) if float_labels else labels,
            np.ascontiguousarray(self.entries["timestamp"]),
            self.end,
        )


def encode_label(label: float | None, *, float_labels: bool) -> bytes:
    """Encode a label for an entry. Args: label: None: the record has no label yet."""
    if float_labels:
        return struct.pack("<d", math.nan if label is None else label)
    return struct.pack("<q", NO_LABEL if label is None else int(label))


def encode_head(number: int, first_key: int) -> bytes:
    """Return the head of file `number` of a log. Args: first_key: key of the first record of the file."""
    rest = struct.pack("<QQ", number, first_key)
    return _HEAD.pack(KIND.magic, KIND.version, zlib.crc32(rest), number, first_key).ljust(HEAD_BYTES, b"\0")


def read_head(path: str, file: BinaryIO) -> tuple[int, int]:
    """Return the number of the file and the key of its first record, from its beginning. Raises: CorruptStateError, OSError."""
    head = file.read(HEAD_BYTES)
    KIND.check(Path(path), head)
    if len(head) < HEAD_BYTES or zlib.crc32(head[16:32]) != _HEAD.unpack_from(head)[2] or any(head[_HEAD.size :]):
        raise KIND.corrupt(Path(path), "its head does not match its checksum")
    _, _, _, number, first_key = _HEAD.unpack_from(head)
    return number, first_key


def encode_batch(first_key: int, entries: Entries, payloads: Sequence[bytes]) -> bytes:
    """Return the bytes of a batch of n >= 1 records. Args: entries: dtype ENTRY, (n,), with the lengths of `payloads`."""
    body = b"".join([entries.tobytes(), *payloads])
    # The checksum of the head is its last field, and covers the fields before it.
    head = BATCH_HEAD.pack(BATCH_MARK, len(entries), len(body), first_key, zlib.crc32(body), 0)[:-4]
    return b"".join([head, struct.pack("<I", zlib.crc32(head)), body])


def read_batches(file: BinaryIO, start: int, stop: int) -> Iterator[RecordBatch]:
    """Yield the whole batches of a file from byte `start`, where a batch begins, up to byte `stop`. The first batch that is not whole ends the
    iteration.

    Args: file: open at any position. Raises: OSError.
    """
    while start < stop:
        file.seek(start)
        if (batch := _read_batch(file, start, stop)) is None:
            return
        yield batch
        start = batch.end


def _read_batch(file: BinaryIO, start: int, stop: int) -> RecordBatch | None:
    """Read the batch at byte `start`, the file's position; return None if the batch is not whole."""
    head = file.read(BATCH_HEAD.size)
    if len(head) < BATCH_HEAD.size:
        return None
    mark, count, num_bytes, first_key, checksum, head_checksum = BATCH_HEAD.unpack(head)
    end = start + BATCH_HEAD.size + num_bytes
    if (
        mark != BATCH_MARK
        or zlib.crc32(head[:-4]) != head_checksum
        or not count
        or count * ENTRY.itemsize > num_bytes
        or end > stop
    ):
        return None
    body = file.read(num_bytes)
    if len(body) < num_bytes or zlib.crc32(body) != checksum:
        return None
    # The entries are copied, so that they do not keep the payloads in memory.
    entries = np.frombuffer(body, ENTRY, count).copy()
    if count * ENTRY.itemsize + int(entries["length"].sum(dtype=np.int64)) != num_bytes:
        return None
    return RecordBatch(entries, start, end, first_key)


def check_records(path: str, num_bytes: int) -> None:
    """Read the first `num_bytes` bytes of a file, which must be whole batches, and compare the batches with their checksums.

    Raises: CorruptStateError: the bytes are damaged or missing. DataError: the bytes cannot be read.
    """
    with reading(path), open(path, "rb") as file:
        read_head(path, file)
        end = HEAD_BYTES
        for batch in read_batches(file, HEAD_BYTES, num_bytes):
            end = batch.end
        size = os.fstat(file.fileno()).st_size
    if end != num_bytes:
        what = (
            f"it has {size} bytes, and {num_bytes} are indexed"
            if size < num_bytes
            else f"the batch at byte {end} is not what was written"
        )
        raise KIND.corrupt(Path(path), what)


def refuse_later_batch(path: Path, file: BinaryIO, end: int, next_key: int) -> None:
    """Raise CorruptStateError if a batch follows after byte `end`. A batch is written only after all earlier batches are durable, so the batch at
    `end` must be damaged.

    Args: end: number of valid bytes of the file. next_key: key of the record after the valid bytes.
    """
    # The batch at `end` is damaged or unfinished. A later batch may begin at any later byte.
    position, rest = end + 1, b""
    file.seek(position)
    while chunk := file.read(_SEARCHED_BYTES):
        found = rest + chunk
        at = found.find(BATCH_MARK)
        while 0 <= at <= len(found) - BATCH_HEAD.size:
            head = found[at : at + BATCH_HEAD.size]
            *_, first_key, _, checksum = BATCH_HEAD.unpack(head)
            # The payloads may contain the mark, so the checksum of the head decides.
            if zlib.crc32(head[:-4]) == checksum and first_key > next_key:
                raise KIND.corrupt(path, f"the batch at byte {end} is not what was written, and others follow it")
            at = found.find(BATCH_MARK, at + 1)
        # The last bytes are searched again with the next chunk, because the boundary of the chunks may divide a head.
        rest = found[-BATCH_HEAD.size + 1 :]


class RecordLogConfig(FormatConfig):
    """Options of a dataset of records."""

    timestamp_format: Literal["", "s"] = ""
    """Times of records are seconds since 1970. Empty: numbers that are more likely a date, such as 20130131 or 2013, or in another unit are refused.
    s: all numbers are seconds, for a dataset that counts from 0."""


class RecordLogFormat(FileFormat):
    """The format of the files of a record log. Only storage writes such files, so folders cannot be registered with this format."""

    Config: ClassVar[type[RecordLogConfig]] = RecordLogConfig
    can_grow = True
    brings_times = True
    isolated = False

    def __init__(self, config: RecordLogConfig, timestamp_source: str = "") -> None:
        """Raises: ConfigError: `timestamp_source` is given, although each record contains its time."""
        if timestamp_source:
            raise ConfigError("a record brings its time with it: leave timestamp_source out of a dataset of records")
        super().__init__(config, timestamp_source)

    def holds_samples(self, path: str) -> bool:
        """Whether a file of this name contains records."""
        return path.endswith(RECORD_FILE)

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """See `FileFormat.index`. The samples end before the first batch that is not whole."""
        try:
            with reading(path), self.open(path) as file:
                read_head(path, file)
                size = os.fstat(file.fileno()).st_size
                for batch in read_batches(file, resume.end if resume else HEAD_BYTES, size):
                    yield batch.samples(float_labels=self.float_labels)
        except CorruptStateError as error:
            raise DataError(error.message) from error
