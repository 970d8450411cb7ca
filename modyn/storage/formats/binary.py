"""Fixed-size binary records. A record contains the label and then the payload. A file contains only records, without a header.

Offsets are computed. Only labels (and times, if they are in the records) are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from modyn import _core
from modyn.errors import ConfigError, DataError
from modyn.records import Int64Array, LabelArray
from modyn.storage.files.local import reading
from modyn.storage.formats.base import FileFormat, FormatResume, GrowingConfig
from modyn.storage.model.samples import IndexedSamples

_CHUNK_BYTES = 32 << 20
"""Largest number of bytes of the records of one chunk."""
_SPARSE_RECORD_BYTES = 4096
"""For records of at least this size, reading only the fields is faster than reading whole records."""

Bytes2D = npt.NDArray[np.uint8]


class BinaryConfig(GrowingConfig):
    """Options of `BinaryFileWrapper`."""

    record_size: int = Field(ge=1)
    """Bytes of one record, including the label."""
    label_size: int = Field(ge=1, le=8)
    """Bytes of the label at the start of each record."""
    byteorder: Literal["little", "big"] = "little"
    """Byte order of the label, and of the time if it is in the record."""
    label_signed: bool = True
    """Whole-number labels have a sign (two's complement)."""
    file_extension: str = ".bin"
    """Ending of the names of files with samples."""

    @model_validator(mode="after")
    def _fits(self) -> BinaryConfig:
        if self.label_size > self.record_size:
            raise ValueError(f"label_size {self.label_size} is more than record_size {self.record_size}")
        if self.label_type == "float" and self.label_size not in {4, 8}:
            raise ValueError(f"label_size of a float label is 4 or 8, not {self.label_size}")
        return self


class BinaryFormat(FileFormat):
    """Records of `record_size` bytes. The payload is record[label_size:]. An incomplete record at the end waits until it is complete. A new file that
    ends within a record waits as a whole, until the file grows."""

    Config: ClassVar[type[BinaryConfig]] = BinaryConfig
    config: BinaryConfig
    label_options = ("record_size", "byteorder")
    can_grow = True
    isolated = False
    row_times = (r"field:(\d+)(?::([1-8]))?", "a BinaryFileWrapper allows '', 'name:REGEX', 'field:OFFSET'")

    def __init__(self, config: BinaryConfig, timestamp_source: str = "") -> None:
        """Raises: ConfigError: see `FileFormat`; or the time is not within the record."""
        super().__init__(config, timestamp_source)
        self._fields = [(0, config.label_size)]
        """Offset and size of each field of a record that is read: the label, and the time if the record contains the time."""
        if self.time_place:
            self._fields.append((int(self.time_place[1]), int(self.time_place[2] or 8)))
        if (end := sum(self._fields[-1])) > config.record_size:
            raise ConfigError(
                f"timestamp_source '{timestamp_source}' ends at byte {end} of a record, but record_size is {config.record_size}"
            )

    def row_begin(self, offset: int) -> int:
        """Return the first byte of the label, which precedes the payload."""
        return offset - self.config.label_size

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """See `FileFormat.index`. An incomplete record at the end is reported after the whole records. In a new file, the incomplete record is
        reported before the whole records too, because a wrong record_size may be the reason."""
        size = self.config.record_size
        with reading(path):
            status = os.stat(path)
        num_records, more = divmod(status.st_size, size)
        part = (
            f"it ends within a record: {status.st_size} bytes are {num_records} records of {size} bytes and {more} more, from byte "
            f"{num_records * size} on; complete the last record, or check record_size"
        )
        shared_timestamp = self.file_time(path, status.st_mtime_ns)
        if more and not resume:
            yield self._part(0, part)
        rows = max(1, min(self.chunk_rows, _CHUNK_BYTES // size))
        for start in range(resume.end // size if resume else 0, num_records, rows):
            yield self._chunk(path, start, min(start + rows, num_records), shared_timestamp)
        if more:
            yield self._part(num_records * size, part)

    def _part(self, end: int, why: str) -> IndexedSamples:
        none = np.empty(0, np.int64)
        labels: LabelArray = none.astype(np.float64) if self.float_labels else none
        return IndexedSamples(none, 0, labels, none, end, unended=why)

    def _chunk(self, path: str, start: int, stop: int, shared_timestamp: int | None) -> IndexedSamples:
        """Return records [start, stop) of a file."""
        size, label_size = self.config.record_size, self.config.label_size
        begins = np.arange(start, stop, dtype=np.int64) * size
        # The gatherer opens the file only if it is in one of the roots.
        gatherer, table, first_file = _core.Gatherer(1, 1, self.roots), _core.PathTable(""), np.zeros(len(begins), np.uint32)
        table.append([path])
        # Small records are read as a whole with one request. The fields are then copied from memory.
        if size < _SPARSE_RECORD_BYTES:
            records = gatherer.gather(table, first_file[:1], begins[:1], len(begins) * size)[0].reshape(-1, size)
            columns = [records[:, offset : offset + num_bytes] for offset, num_bytes in self._fields]
        else:
            columns = [
                gatherer.gather(table, first_file, begins + offset, num_bytes)[0].reshape(-1, num_bytes)
                for offset, num_bytes in self._fields
            ]
        labels = self._labels(path, columns[0], start)
        timestamps: Int64Array | int | None = shared_timestamp
        if timestamps is None:
            numbers = _integers(columns[1], self.config.byteorder, signed=True).view(np.int64)
            timestamps, first_bad, reason = self.times.of_integers(numbers)
            if first_bad >= 0:
                record = start + first_bad
                raise DataError(
                    f"{path}, record {record} at byte {record * size}: the time {reason}; or check byteorder, and the place in timestamp_source"
                )
        return IndexedSamples(begins + label_size, size - label_size, labels, timestamps, stop * size)

    def _labels(self, path: str, raw: Bytes2D, first_record: int) -> LabelArray:
        config = self.config
        if config.label_type == "float":
            order = "<" if config.byteorder == "little" else ">"
            values = np.ascontiguousarray(raw).view(f"{order}f{config.label_size}")
            return values[:, 0].astype(np.float64)
        integers = _integers(raw, config.byteorder, config.label_signed)
        if not config.label_signed and len(too_large := np.flatnonzero(integers > np.uint64(2**63 - 1))):
            record = first_record + int(too_large[0])
            raise DataError(
                f"{path}, record {record} at byte {record * config.record_size}: the label is out of the "
                f"range of int64; check label_size, byteorder and label_signed"
            )
        return integers.view(np.int64)


def _integers(raw: Bytes2D, byteorder: Literal["little", "big"], signed: bool) -> npt.NDArray[np.uint64]:
    """Return integers of 1 to 8 bytes, uint8 (n, size), as uint64 (n,). Signed integers are in two's complement of 64 bits."""
    size = raw.shape[1]
    wide = np.zeros((len(raw), 8), np.uint8)
    # In little-endian order a number is widened by zeros at its end.
    wide[:, :size] = raw if byteorder == "little" else raw[:, ::-1]
    values: npt.NDArray[np.uint64] = wide.view("<u8")[:, 0]
    if signed and size < 8:
        unused_bits = 64 - 8 * size
        # A shift to the left and back copies the sign bit into the unused bits.
        values = ((values << np.uint64(unused_bits)).view(np.int64) >> unused_bits).view(np.uint64)
    return values
