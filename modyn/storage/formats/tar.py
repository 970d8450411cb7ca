"""Tar shards in the form of WebDataset: neighbouring members that have the same name up to the first dot are one sample.

One member of a sample is the payload, a range of the archive's bytes. Another member contains the label. Headers are parsed here, because `tarfile`
treats a damaged header as the end of the archive and ignores damaged pax records, so samples would be missing without an error.
"""

from __future__ import annotations

import io
import math
import os
import re
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, ClassVar, NamedTuple

import numpy as np
from pydantic import Field, field_validator, model_validator

from modyn._core import quoted
from modyn.errors import ConfigError, DataError
from modyn.json_codec import sanitize
from modyn.storage.files.local import reading
from modyn.storage.formats.base import FormatConfig, FormatResume, OpenedFile, RangedFormat
from modyn.storage.formats.json_fields import FIELD_TIMES, ROUNDED, field_path, label_in, parse_object, seconds_in
from modyn.storage.formats.text_start import UTF8_MARK
from modyn.storage.model.samples import IndexedSamples

_BLOCK = 512
"""Size of a header in bytes. The content of a member is padded to a multiple of this size."""
_READ_AHEAD = 1 << 14
"""Size in bytes of the buffer for reads of a local file."""
_OBJECT_READ_AHEAD = 1 << 21
"""Size in bytes of the buffer for reads of an object in a bucket. The transfer of one buffer takes about as long as the latency of a request."""
_MAX_LABEL_BYTES = 1 << 20
"""A longer label counts as damage."""
_MAX_EXTENSION_BYTES = 1 << 20
"""A longer extended header, such as a name of more than a mebibyte, counts as damage."""

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_REGULAR = frozenset(b"\x000" + b"7")
"""Type flags of members that are regular files."""
_WHOLE = re.compile(rb"[+-]?[0-9]{1,4000}")
_DECIMAL = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SAMPLE_NAME = re.compile(rb"((?:.*/|)[^./]+)\.([^/]*)", re.DOTALL)


class TarConfig(FormatConfig):
    """Options of `TarFileWrapper`."""

    payload_extension: str = Field(min_length=1)
    """Ending of the payload's member, after the first dot of its name, e.g. `jpg`, in upper or lower case."""
    label_extension: str = Field(default="cls", min_length=1)
    """Ending of the label's member, which holds one number as text, or a JSON object if label_field is given."""
    label_field: str = ""
    """Field of the label in the JSON object; a field of an inner object is written with dots."""
    file_extension: str = ".tar"
    """Ending of the names of the archives."""

    @field_validator("payload_extension", "label_extension")
    @classmethod
    def _without_dot(cls, text: str) -> str:
        return text.removeprefix(".").lower()

    @model_validator(mode="after")
    def _fits(self) -> TarConfig:
        if self.payload_extension == self.label_extension:
            raise ValueError(f"payload_extension and label_extension are both '{self.payload_extension}'")
        if self.label_field:
            field_path(self.label_field)
        return self


class TarFormat(RangedFormat):
    """Uncompressed archives (ustar, pax and GNU). A sample without payload or label is an error, and so is a truncated archive."""

    Config: ClassVar[type[TarConfig]] = TarConfig
    config: TarConfig
    isolated = False
    row_times = (FIELD_TIMES, "a TarFileWrapper allows '', 'name:REGEX' and, with label_field, 'field:NAME'")

    def __init__(self, config: TarConfig, timestamp_source: str = "") -> None:
        """Raises: ConfigError: see `FileFormat`; or the time is read from JSON objects, but the label is not."""
        super().__init__(config, timestamp_source)
        if self.time_place and not config.label_field:
            raise ConfigError(f"timestamp_source '{timestamp_source}' needs labels in JSON objects: give label_field too")

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """See `FileFormat.index`; reads headers and labels, not payloads."""
        with reading(path), self.open(path, _READ_AHEAD) as file:
            status = os.fstat(file.fileno())
            yield from self.index_opened(OpenedFile(path, status.st_size, status.st_mtime_ns, file))

    def index_opened(self, file: OpenedFile) -> Iterator[IndexedSamples]:
        """See `RangedFormat.index_opened`; payloads of some mebibytes are skipped without reading."""
        shared = self.file_time(file.path, file.mtime_ns)
        is_object = isinstance(file.source, io.RawIOBase)
        archive = _Archive(file.path, io.BufferedReader(file.source, _OBJECT_READ_AHEAD) if is_object else file.source, file.size)
        samples = (self._read(archive, sample) for sample in _samples(archive.members()))
        while rows := list(islice(samples, self.chunk_rows)):
            offsets, lengths, labels, times = (list(column) for column in zip(*rows, strict=True))
            yield IndexedSamples(
                np.array(offsets, np.int64),
                np.array(lengths, np.int64),
                np.array(labels, np.float64) if self.float_labels else np.array(labels, np.int64),
                np.array(times, np.int64) if shared is None else shared,
                file.size,  # An archive is indexed as a whole, so every chunk has the end of the archive.
            )

    def _read(self, archive: _Archive, sample: _Sample) -> tuple[int, int, int | float, int]:
        """Return offset and length of the payload, the label, and the time (0 if the label's member does not contain the time)."""
        config, shown = self.config, sample.name.decode(errors="backslashreplace")
        for extension in (config.payload_extension, config.label_extension):
            if extension not in sample.members:
                found = ", ".join(f"'.{extension}'" for extension in sample.members)
                raise archive.error(sample.offset, f"the sample '{shown}' has no member '.{extension}', only {found}; add it")
        payload, label_member = sample.members[config.payload_extension], sample.members[config.label_extension]
        if not payload.size:
            raise archive.error(
                payload.offset, f"the member '.{config.payload_extension}' of the sample '{shown}' is empty; write it again"
            )
        text = archive.read(label_member.offset, label_member.size, _MAX_LABEL_BYTES).removeprefix(UTF8_MARK)
        try:
            if not config.label_field:
                return payload.offset, payload.size, _number(text, floats=self.float_labels), 0
            fields = parse_object(text)
            label = label_in(fields, field_path(config.label_field), floats=self.float_labels)
            time = seconds_in(fields, field_path(self.time_place[1]), self.times) if self.time_place else 0
        except ValueError as error:
            problem = f"the label of the sample '{shown}' cannot be read: {error}; correct it"
            raise archive.error(label_member.offset, problem) from error
        return payload.offset, payload.size, label, time


class _Member(NamedTuple):
    """A regular file in an archive. offset: offset of its first byte. header: offset of its header."""

    name: bytes
    offset: int
    size: int
    header: int


class _Sample(NamedTuple):
    """One sample. members: the members by extension. offset: offset of the first member's header."""

    name: bytes
    offset: int
    members: dict[str, _Member]


class _Archive:
    """The members of one open archive of `size` bytes."""

    def __init__(self, path: str, file: BinaryIO, size: int) -> None:
        self._path, self._file, self._size = path, file, size

    def error(self, offset: int, problem: str) -> DataError:
        return DataError(f"{self._path}, byte {offset}: {problem}")

    def read(self, offset: int, size: int, limit: int) -> bytes:
        """Read the bytes that a header announces. Raises: DataError: the header announces more bytes than `limit`, or the archive ends before these
        bytes.
        """
        if size > limit:
            raise self.error(
                offset,
                f"{size} bytes are announced here, and at most {limit} are allowed; the archive is damaged or of another kind",
            )
        self._file.seek(offset)
        found = self._file.read(size)
        if len(found) < size:
            raise self._cut(offset, size)
        return found

    def members(self) -> Iterator[_Member]:
        """Yield the regular files in order, with their long names. Raises: DataError: the archive is truncated or damaged."""
        offset = 0
        # Records of pax headers: a global header is for all later members, any other header for the next member.
        for_all: dict[bytes, bytes] = {}
        for_next: dict[bytes, bytes] = {}
        while (header := self._header(offset)) is not None:
            kind = header[156]
            records = for_all | for_next
            size = self._number(offset, header[124:136])
            data = offset + _BLOCK
            if kind in b"xgLKX":
                text = self.read(data, size, _MAX_EXTENSION_BYTES)
                if kind in b"xgX":
                    (for_all if kind == b"g"[0] else for_next).update(self._pax_records(data, text))
                elif kind == b"L"[0]:
                    for_next[b"path"] = text.rstrip(b"\0")
            else:
                if b"size" in records:
                    if not re.fullmatch(rb"[0-9]{1,20}", text := records[b"size"]):
                        raise self.error(offset, "the size in its pax header is not a number")
                    size = int(text)
                name = records.get(b"path") or _short_name(header)
                self._refuse_kind(offset, kind, name, records)
                # Only a regular file has content. In other headers, the size may have another meaning.
                if kind not in _REGULAR:
                    size = 0
                elif data + size > self._size:
                    raise self._cut(data, size)
                else:
                    yield _Member(name, data, size, offset)
                for_next = {}
            # Members are padded to whole blocks.
            offset = data + -(-size // _BLOCK) * _BLOCK
            if offset > self._size:
                raise self._cut(self._size, offset - self._size)
        self._refuse_more(offset + _BLOCK)

    def _refuse_kind(self, offset: int, kind: int, name: bytes, records: dict[bytes, bytes]) -> None:
        """Raise DataError for a member whose bytes are not one range of this archive, if the member may belong to a sample."""
        if kind == b"S"[0] or any(record.startswith(b"GNU.sparse") for record in records):
            how = "a sparse file; pack the archive without --sparse"
        elif kind == b"1"[0] and _SAMPLE_NAME.fullmatch(name):
            how = "a link to another member; pack the archive with --hard-dereference"
        else:
            return
        raise self.error(offset, f"'{name.decode(errors='backslashreplace')}' is stored as {how}")

    def _refuse_more(self, offset: int) -> None:
        """Raise DataError unless only zeros follow the end mark. Other data follows, for example, if two archives were written into one file."""
        self._file.seek(offset)
        while part := self._file.read(_MAX_EXTENSION_BYTES):
            if rest := part.lstrip(b"\0"):
                raise self.error(
                    offset + len(part) - len(rest),
                    "there is data after the end of the archive; join archives with `tar --concatenate`, or give each as a file",
                )
            offset += len(part)

    def _header(self, offset: int) -> bytes | None:
        """Return the header at `offset`; None if this block marks the end."""
        self._file.seek(offset)
        header = self._file.read(_BLOCK)
        for magic, kind in _COMPRESSED.items() if offset == 0 else ():
            if header.startswith(magic):
                raise self.error(0, f"the archive is compressed with {kind}; unpack it: payloads are read as ranges of its bytes")
        if not header:
            raise self.error(offset, "the archive has no end mark: it is cut, or still being written; write it as a whole")
        if len(header) < _BLOCK:
            raise self._cut(offset, _BLOCK)
        if not header.strip(b"\0"):
            return None
        # The checksum is the sum of the bytes. The low half of Adler-32 is this sum plus 1, modulo 65521, and is the fastest way to compute it.
        blank = header[:148] + b" " * 8 + header[156:]
        if zlib.adler32(blank) & 0xFFFF != (1 + self._number(offset, header[148:156])) % 65521:
            raise self.error(
                offset,
                "this is not a header of a tar archive: its checksum is wrong. The archive is damaged, or is not a tar archive",
            )
        return header

    def _number(self, offset: int, text: bytes) -> int:
        if text[0] & 0x80:  # GNU tar writes a number of 8 GiB or more in base 256.
            return int.from_bytes(bytes([text[0] & 0x7F]) + text[1:], "big")
        digits = text.split(b"\0")[0].strip() or b"0"
        if not re.fullmatch(rb"[0-7]+", digits):
            raise self.error(offset, "this is not a header of a tar archive: a field of it is not a number")
        return int(digits, 8)

    def _pax_records(self, offset: int, text: bytes) -> dict[bytes, bytes]:
        """Parse records of the form `LENGTH KEYWORD=VALUE\\n`."""
        found = {}
        at = 0
        while at < len(text) and text[at]:
            match = re.compile(rb"([0-9]{1,20}) ([^=]+)=").match(text, at)
            end = at + int(match[1]) if match else 0
            if match is None or not match.end() < end <= len(text) or text[end - 1 : end] != b"\n":
                raise self.error(offset + at, "this pax header is damaged")
            found[match[2]] = text[match.end() : end - 1]
            at = end
        return found

    def _cut(self, offset: int, wanted: int) -> DataError:
        there = max(0, self._size - offset)
        return self.error(offset, f"the archive is cut: {wanted} bytes should follow, {there} do; write it again as a whole")


def _samples(members: Iterator[_Member]) -> Iterator[_Sample]:
    """Group neighbours with the same name up to the first dot. A member whose name has no dot, or begins with a dot, belongs to no sample."""
    current: _Sample | None = None
    for member in members:
        match = _SAMPLE_NAME.fullmatch(member.name)
        if match is None:
            continue
        name, extension = match[1], match[2].decode(errors="backslashreplace").lower()
        # A second member with the same name and extension begins another sample.
        if current is None or current.name != name or extension in current.members:
            if current is not None:
                yield current
            current = _Sample(name, member.header, {})
        current.members[extension] = member
    if current is not None:
        yield current


def _short_name(header: bytes) -> bytes:
    name, prefix = header[:100].split(b"\0")[0], header[345:500].split(b"\0")[0]
    # GNU archives have spaces after `ustar`, and other fields at the position of the POSIX prefix.
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _number(text: bytes, *, floats: bool) -> int | float:
    """Parse the number in a label member. Raises: ValueError."""
    it = quoted(sanitize(text.strip().decode("utf-8", "replace"))) or "it"
    if not (_DECIMAL if floats else _WHOLE).fullmatch(text.strip()):
        raise ValueError(f"{it} is not {'a float64' if floats else 'an int64'} label")
    number = float(text) if floats else int(text)
    if floats and _WHOLE.fullmatch(text.strip()) and math.isfinite(number) and int(number) != int(text):
        raise ValueError(f"{it} {ROUNDED}")
    if not (math.isfinite(number) if floats else -(2**63) <= number < 2**63):
        raise ValueError(f"{it} is out of the range of {'float64' if floats else 'int64'}")
    return number
