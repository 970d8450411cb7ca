"""The interface of file formats: positions of the samples of one file, in bounded chunks of columns, without keeping their bytes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Literal

from pydantic import ConfigDict, Field

from modyn import _core
from modyn.config.base import Section
from modyn.errors import ConfigError, DataError
from modyn.storage.files.file_system import NameEndings, Names, without_packed_ending
from modyn.storage.formats.timestamps import name_pattern, out_of_range, time_format
from modyn.storage.model.samples import IndexedFiles, IndexedSamples
from modyn.storage.model.schema import DatasetSchema

CHUNK_ROWS = 1 << 18
"""A format yields at most this many samples at once."""


@dataclass(frozen=True, slots=True)
class FormatResume:
    """How far a file is indexed: continue after byte `end`, after `num_samples` samples and `num_skipped` rows that could not be used.

    `fingerprint` is of the bytes before `end`.
    """

    end: int
    num_samples: int
    fingerprint: str
    num_skipped: int = 0


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Payloads are `columns` of rows in the row groups of Parquet files, and offsets of samples are numbers of rows.

    types: of these columns in all files, as Arrow names them; empty: each file has its own.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnReader:
    """Payloads are read by a class of the format's own: `name` is `package.module:Class`.

    It is a `RecordReader`, built with (paths: PathTable, folder: FileSystem, cache_bytes: int): the full paths of the files by id, their
    file system, and bytes that the reader may keep for the next request.
    """

    name: str


@dataclass(frozen=True, slots=True)
class RowOrder:
    """How the fields of a CSV row become those of the schema: `fields[i]` is the position of column i. separator, quote: ASCII; None: no quotes."""

    fields: tuple[int, ...]
    separator: str
    quote: str | None


class RowColumn(ABC):
    """A column of samples whose payloads are whole rows: what finds its values in them."""

    has_header: bool = False
    """The beginning of each file names its columns: rows come file by file, with these names."""

    def header(self, path: str, file: BinaryIO) -> Sequence[str]:
        """Return the names of the columns that the beginning of a file gives; asked only if `has_header`. Raises: DataError, OSError.

        Args: path: full path, for errors. file: open at its beginning.
        """
        return ()

    def names(self, row: bytes) -> Iterable[str]:
        """Return the names of all columns of a row; asked unless `has_header`. Raises: ValueError: it cannot be read; says why."""
        return ()

    @abstractmethod
    def values(self, rows: Sequence[bytes], header: Sequence[str]) -> Iterator[object]:
        """Yield the value of each row: a text, a number, true or false, a date or a time; None: it has none. Others are refused.

        Raises: ValueError: the next row cannot be read; says why.
        """


class FormatConfig(Section):
    """Options that every format has."""

    # The docstring below a field is its description for users.
    model_config = ConfigDict(use_attribute_docstrings=True)

    label_type: Literal["int", "float"] = "int"
    """Labels are whole numbers (int64) or fractions (float64)."""
    timestamp_format: str = ""
    """How times are written, in rows or names of files: the directives of strptime, e.g. `%d/%m/%Y %H:%M`; or s, ms, us or ns, the number of these
    since 1970. Empty: ISO 8601 or seconds; digits that are more likely a date, as 20130131 or 2013, or another unit are refused."""


class GrowingConfig(FormatConfig):
    """Options of formats whose files may be added to."""

    last_row_wait_s: float = Field(60, ge=0, le=10**8)
    """A last row that does not end, such as a line without a line break, may be half-written: it waits for its end, and `modyn data problems`
    names it. Once the file has not changed for this number of seconds, the row is taken as it is. A part of a
    binary record is never taken."""


class FileFormat(ABC):
    """A kind of data file. Built from its own configuration; `timestamp_source` is the place of a sample's time (see `timestamps`).

    Errors in a file are DataError and name the file, the byte offset and what to do; OSError never leaves a format.
    """

    Config: ClassVar[type[FormatConfig]]
    """The format's own section."""
    can_grow: ClassVar[bool] = False
    """Samples that are appended to an indexed file can be indexed alone, from a FormatResume."""
    packed: ClassVar[bool] = False
    """Files may be compressed: they are unpacked before they are indexed. Only for a format without companions and without a reader of its own."""
    row_times: ClassVar[tuple[str, str]] = ("(?:column|field):(.+)", "")
    """Regular expression of a timestamp_source that names a place in a row, and the error message's list of all that are allowed."""
    brings_times: ClassVar[bool] = False
    """Samples come with their times, without a timestamp_source: they are records that clients append."""
    isolated: ClassVar[bool] = True
    """Files are indexed in a process of bounded memory and time, because code that is not ours reads them: what a file makes it do, a crash say, then
    concerns that file alone. False: nothing but code of this package reads them. Not inherited: a class says it for itself."""
    chunk_rows = CHUNK_ROWS
    """Most samples of one chunk."""
    roots: Sequence[str] = ()
    """Folders that files may be opened in, without symbolic links in their paths; none: anywhere. Set by storage (storage.dataset_roots)."""
    schema: DatasetSchema | None = None
    """The columns that all files have, as options name them, or, set by storage, as the first file does. None: not known yet, or the format has
    none. `index` refuses a file that has other ones, and gives each first chunk of a file the schema with what is known by the file."""

    def __init_subclass__(cls) -> None:
        if "isolated" not in cls.__dict__:
            cls.isolated = True

    def __init__(self, config: FormatConfig, timestamp_source: str = "") -> None:
        """Parse the timestamp_source. Raises ConfigError if it is not known or belongs to other formats."""
        self.config, self.timestamp_source = config, timestamp_source
        self.times = time_format(config.timestamp_format)
        """What reads times, in rows too."""
        if config.timestamp_format and not timestamp_source and not self.brings_times:
            raise ConfigError(
                "timestamp_format is for times in rows and in names of files, and samples have the modification time of their file; set "
                "timestamp_source, or leave it out"
            )
        self.name_pattern = name_pattern(timestamp_source, config.timestamp_format)
        """What finds the time in the name of a file, if it stands there."""
        place, allowed = self.row_times
        self.time_place = re.fullmatch(place, timestamp_source)
        """The match of `row_times`, if each row has a time of its own."""
        # A time that all samples of a file share suits every format.
        if timestamp_source and self.name_pattern is None and self.time_place is None:
            raise ConfigError(f"timestamp_source '{timestamp_source}' is for other formats; {allowed}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what the format was built from."""
        return type(self), (self.config, self.timestamp_source), {"roots": self.roots, "schema": self.schema}

    @property
    def float_labels(self) -> bool:
        """Labels are float64, not int64."""
        return self.config.label_type == "float"

    @property
    def times_are_digits(self) -> bool:
        """Whether a number at the place of a time is taken for seconds without a `timestamp_format` that says so."""
        has_place = self.brings_times or self.time_place is not None or self.name_pattern is not None
        return has_place and not self.config.timestamp_format

    def file_time(self, path: str, mtime_ns: int) -> int | None:
        """The time that all samples of a file share, in seconds since 1970: of its name, else `mtime_ns`; None if each row has its own.

        Args: path: its name is looked at; nothing is read. mtime_ns: of the file, nanoseconds since 1970.
        Raises: DataError: the name holds no time, or the modification time lies beyond the years 1677 to 2262.
        """
        if self.time_place is not None:
            return None
        if self.name_pattern is None:
            if not -(2**63) < mtime_ns < 2**63 - 1:
                raise out_of_range(path)
            return mtime_ns // 10**9
        (found,) = self.name_pattern.times([path])
        if isinstance(found, DataError):
            raise found
        return found

    def open(self, path: str, buffering: int = -1) -> BinaryIO:
        """Open a data file for reading, only if it lies in `roots`, whatever links its path holds.

        Args: buffering: as for the built-in `open`: bytes of the buffer, 0 for none, -1 for the default.
        Raises: DataError, OSError.
        """
        return open(_core.open_file(path, self.roots), "rb", buffering=buffering)

    @abstractmethod
    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """Yield the samples of `path` in file order, at most `chunk_rows` at once; an empty file yields nothing.

        With `resume`, which only a format that `can_grow` gets, only the samples after it: the bytes before it are unchanged.
        Raises: DataError; chunks that were yielded before it are not to be used.
        """

    def endings(self) -> NameEndings | None:
        """The endings of the names of files with samples and of companions; the option `file_extension` alone, if the format has it.

        Not used if names follow another rule: `holds_samples` or `companions` is overridden then, and called for each file.
        """
        ending = getattr(self.config, "file_extension", None)
        return None if ending is None else NameEndings(ending, packed=self.packed)

    def holds_samples(self, path: str) -> bool:
        """Whether a file of this name holds samples (and is not, for example, a label file). Looks at the name only."""
        if (endings := self.endings()) is None:
            raise NotImplementedError(f"{type(self).__name__} has neither endings() nor holds_samples()")
        return endings(path)

    def companions(self, path: str) -> tuple[str, ...]:
        """Files that must exist beside `path` before it can be indexed, e.g. its label file."""
        endings = self.endings()
        return endings.companions_of(path) if endings else ()

    def names(self) -> Names:
        """The rule for names of files with samples, in the form that a listing takes: endings, unless the format has a rule of its own."""
        kind = type(self)
        has_own_rule = kind.holds_samples is not FileFormat.holds_samples or kind.companions is not FileFormat.companions
        return self.holds_samples if has_own_rule else self.endings() or self.holds_samples

    def is_packed(self, path: str) -> bool:
        """Whether a file of this name is unpacked before it is indexed."""
        return self.packed and without_packed_ending(path) != path

    def row_begin(self, offset: int) -> int | None:
        """The first byte of the row whose payload is at `offset`, where a file that grows meanwhile may be cut off.

        None: not known; such a file is left for the next look if it grew while it was indexed.
        """
        return None

    def column(self, name: str) -> RowColumn | RowGroups | None:
        """How the column `name` of samples is read, for policies that balance it; None: samples of this format have no columns.

        Returns: what finds it in payloads, if these are whole rows; or `RowGroups((name,))`. Whether files have such a column shows in them.
        Raises: ConfigError: none can have this name.
        """
        return None

    @property
    def decides_schema(self) -> bool:
        """Whether a file decides the schema that the others have."""
        return False

    def declared(self, schema: DatasetSchema) -> DatasetSchema:
        """Return a schema that a file would decide with what options say in place of the file."""
        return schema

    def schema_in(self, path: str, file: BinaryIO) -> DatasetSchema | None:
        """The schema that a file would decide; None: the format has none. Raises: DataError, OSError.

        Args: path: full path, for errors. file: open at its beginning; may be closed.
        """
        return None

    def row_order(self, path: str, file: BinaryIO) -> RowOrder | None:
        """How rows of a file are put in the order of `schema`, which has a `mixed_order`; None: they are read as they are. Args and errors as of
        `schema_in`."""
        return None

    def payload_reader(self) -> RowGroups | OwnReader | None:
        """Which reader the payloads need, as a declaration: `RecordReaders` opens it. None: payloads are ranges of the files' bytes."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class OpenedFile:
    """A file that is open for reading anywhere in it, and how it was when it was listed: its full path, bytes, and ns since 1970."""

    path: str
    size: int
    mtime_ns: int
    source: Any
    """A local file as the format's own `index` opens it, or an `io.RawIOBase` of an object, of which each read is a request."""


class RangedFormat(FileFormat):
    """A format that reads parts of a file to index it: an object of a bucket is not copied for it, but read by ranges."""

    @abstractmethod
    def index_opened(self, file: OpenedFile) -> Iterator[IndexedSamples]:
        """As `index` from the beginning of a file. Errors of reading pass through."""


class WholeFileFormat(FileFormat):
    """A format with one sample in each file, so that many files are indexed with one call."""

    reads_payloads: ClassVar[bool] = True
    """Looks into the files, and not only at their names, sizes, times and companions."""

    @abstractmethod
    def index_files(self, paths: Sequence[str]) -> IndexedFiles:
        """Index all `paths`; a file that cannot be used is in `problems` and does not disturb the others."""
