"""Files of a record log, which storage itself writes: records in batches, each with a checksum and durable as a whole.

A file begins with a head of 64 bytes: magic, version, CRC-32 of what follows, number of the file, key of its first record. A batch is a head of 32
bytes (magic, number of records, bytes of its body, key of its first record, CRC-32 of the body, CRC-32 of the head), the entries of its
records (`ENTRY`), and their payloads one after the other. All numbers are little-endian. A batch that a crash cut short, or that was never
acknowledged, may stand at the end of a file: what counts of a file ends where the next file's first key says, or else with its last whole batch.
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
"""Ending of the names of these files."""
KIND: Final = FileKind(
    b"MODYNREC", 1, "file of records", "restore it from a backup and restart storage; its samples can still be read"
)
ENTRY: Final = np.dtype([("digest", "<u8", 2), ("content", "<u8"), ("label", "<i8"), ("timestamp", "<i8"), ("length", "<u4")])
"""Of one record. digest: of its idempotency key, BLAKE2b of 128 bits. content: digest of the rest of it, of 64 bits. label: int64, or the bits of a
float64. timestamp: seconds since 1970. length: bytes of its payload."""
HEAD_BYTES: Final = 64
_HEAD: Final = struct.Struct("<8sIIQQ")
BATCH_HEAD: Final = struct.Struct("<4sIQQII")
BATCH_MARK: Final = b"RECS"
_SEARCHED_BYTES: Final = 1 << 20

Entries = npt.NDArray[Any]
"""Of dtype ENTRY."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordBatch:
    """A whole batch of a file. entries: (n,). start, end: its first byte, and the one behind it. first_key: of its first record."""

    entries: Entries
    start: int
    end: int
    first_key: int

    @property
    def end_key(self) -> int:
        """The key behind its last record."""
        return self.first_key + len(self.entries)

    def samples(self, *, float_labels: bool) -> IndexedSamples:
        """Where its payloads are, and their labels and times."""
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
    """A label as it stands in an entry. Args: label: None: there is none (yet)."""
    if float_labels:
        return struct.pack("<d", math.nan if label is None else label)
    return struct.pack("<q", NO_LABEL if label is None else int(label))


def encode_head(number: int, first_key: int) -> bytes:
    """The head of file `number` of a log, whose first record is the sample `first_key`."""
    rest = struct.pack("<QQ", number, first_key)
    return _HEAD.pack(KIND.magic, KIND.version, zlib.crc32(rest), number, first_key).ljust(HEAD_BYTES, b"\0")


def read_head(path: str, file: BinaryIO) -> tuple[int, int]:
    """The number of the file and the key of its first record, from its beginning. Raises: CorruptStateError, OSError."""
    head = file.read(HEAD_BYTES)
    KIND.check(Path(path), head)
    if len(head) < HEAD_BYTES or zlib.crc32(head[16:32]) != _HEAD.unpack_from(head)[2] or any(head[_HEAD.size :]):
        raise KIND.corrupt(Path(path), "its head does not match its checksum")
    _, _, _, number, first_key = _HEAD.unpack_from(head)
    return number, first_key


def encode_batch(first_key: int, entries: Entries, payloads: Sequence[bytes]) -> bytes:
    """A batch of n >= 1 records. Args: entries: of dtype ENTRY, (n,), with the lengths of `payloads`."""
    body = b"".join([entries.tobytes(), *payloads])
    head = BATCH_HEAD.pack(BATCH_MARK, len(entries), len(body), first_key, zlib.crc32(body), 0)[:-4]
    return b"".join([head, struct.pack("<I", zlib.crc32(head)), body])


def read_batches(file: BinaryIO, start: int, stop: int) -> Iterator[RecordBatch]:
    """Yield the whole batches of a file from byte `start`, where one begins, up to byte `stop`; ends at the first one that is not whole.

    Args: file: open at any place. Raises: OSError.
    """
    while start < stop:
        file.seek(start)
        if (batch := _read_batch(file, start, stop)) is None:
            return
        yield batch
        start = batch.end


def _read_batch(file: BinaryIO, start: int, stop: int) -> RecordBatch | None:
    """The batch at byte `start`, where the file stands; None: it is not whole."""
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
    entries = np.frombuffer(body, ENTRY, count).copy()
    if count * ENTRY.itemsize + int(entries["length"].sum(dtype=np.int64)) != num_bytes:
        return None
    return RecordBatch(entries, start, end, first_key)


def check_records(path: str, num_bytes: int) -> None:
    """Compare the first `num_bytes` bytes of a file, whole batches all of them, with their checksums; reads all of it.

    Raises: CorruptStateError: they are damaged, or not there. DataError: they cannot be read.
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
    """Raise CorruptStateError if a batch follows the end that was found: it was written when all before it was durable, which is damaged.

    Args: end: bytes of the file that were found whole. next_key: of the record after them.
    """
    position, rest = end + 1, b""
    file.seek(position)
    while chunk := file.read(_SEARCHED_BYTES):
        found = rest + chunk
        at = found.find(BATCH_MARK)
        while 0 <= at <= len(found) - BATCH_HEAD.size:
            head = found[at : at + BATCH_HEAD.size]
            *_, first_key, _, checksum = BATCH_HEAD.unpack(head)
            if zlib.crc32(head[:-4]) == checksum and first_key > next_key:
                raise KIND.corrupt(path, f"the batch at byte {end} is not what was written, and others follow it")
            at = found.find(BATCH_MARK, at + 1)
        rest = found[-BATCH_HEAD.size + 1 :]


class RecordLogConfig(FormatConfig):
    """Options of a dataset of records."""

    timestamp_format: Literal["", "s"] = ""
    """Times of records are seconds since 1970. Empty: numbers that are more likely a date, as 20130131 or 2013, or another unit are refused. s: they
    are taken for seconds, of a dataset that counts from 0."""


class RecordLogFormat(FileFormat):
    """The format of the files of a record log. Only storage writes them, so that none is registered with it as the format of a folder."""

    Config: ClassVar[type[RecordLogConfig]] = RecordLogConfig
    can_grow = True
    brings_times = True
    isolated = False

    def __init__(self, config: RecordLogConfig, timestamp_source: str = "") -> None:
        """Raises: ConfigError: a place of the time is given, which each record brings with it."""
        if timestamp_source:
            raise ConfigError("a record brings its time with it: leave timestamp_source out of a dataset of records")
        super().__init__(config, timestamp_source)

    def holds_samples(self, path: str) -> bool:
        """Whether a file of this name holds records."""
        return path.endswith(RECORD_FILE)

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """As `FileFormat.index`; ends before a batch that is not whole."""
        try:
            with reading(path), self.open(path) as file:
                read_head(path, file)
                size = os.fstat(file.fileno()).st_size
                for batch in read_batches(file, resume.end if resume else HEAD_BYTES, size):
                    yield batch.samples(float_labels=self.float_labels)
        except CorruptStateError as error:
            raise DataError(error.message) from error
