"""The interface of file formats. A format yields the positions of the samples of one file in bounded chunks of columns, and keeps no bytes of
samples.
"""

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
    """The indexed part of a file: indexing continues at byte `end`, after `num_samples` samples and `num_skipped` unusable rows. `fingerprint` covers
    the bytes before `end`.
    """

    end: int
    num_samples: int
    fingerprint: str
    num_skipped: int = 0


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Declares that payloads are the `columns` of rows in the row groups of Parquet files, and that offsets of samples are numbers of rows.

    types: Arrow's names of the columns' types in all files; empty: each file has its own types.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnReader:
    """Declares that a class of the format reads the payloads. `name` is `package.module:Class`.

    The class is a `RecordReader`, built with (paths: PathTable, folder: FileSystem, cache_bytes: int): the full paths of the files by id, their file
    system, and the number of bytes that the reader may keep for the next request.
    """

    name: str


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The mapping of the fields of a CSV row to the columns of the schema: `fields[i]` is the position in the row of the schema's column i.
    separator, quote: ASCII; None: no quotes."""

    fields: tuple[int, ...]
    separator: str
    quote: str | None


class RowColumn(ABC):
    """The reader of a column of samples whose payloads are whole rows."""

    has_header: bool = False
    """Whether the beginning of each file names its columns. If true, rows are given file by file, with these names."""

    def header(self, path: str, file: BinaryIO) -> Sequence[str]:
        """Return the names of the columns that the beginning of a file gives; called only if `has_header` is true. Raises: DataError, OSError.

        Args: path: full path, for errors. file: open at its beginning.
        """
        return ()

    def names(self, row: bytes) -> Iterable[str]:
        """Return the names of all columns of a row; called only if `has_header` is false. Raises: ValueError: the row cannot be read; the message has
        the reason."""
        return ()

    @abstractmethod
    def values(self, rows: Sequence[bytes], header: Sequence[str]) -> Iterator[object]:
        """Yield the value of each row. A value is a text, a number, true or false, a date or a time; None: the row has no value. Values of other
        types are refused.

        Raises: ValueError: the next row cannot be read; the message has the reason.
        """


class FormatConfig(Section):
    """Options of every format."""

    # The docstring below a field is its description for users.
    model_config = ConfigDict(use_attribute_docstrings=True)

    label_type: Literal["int", "float"] = "int"
    """Labels are whole numbers (int64) or fractions (float64)."""
    timestamp_format: str = ""
    """Format of times in rows or file names: directives of strptime, e.g. `%d/%m/%Y %H:%M`; or s, ms, us or ns since 1970. Empty: ISO 8601 or
    seconds. Numbers that are more likely a date, such as 20130131 or 2013, or in another unit are refused."""


class GrowingConfig(FormatConfig):
    """Options of formats whose files may grow."""

    last_row_wait_s: float = Field(60, ge=0, le=10**8)
    """A last row without an end, such as a line without a line break, may be half-written: it waits for its end, and `modyn data problems` names it.
    After this number of seconds without a change of the file, the row is used as it is. A part of a binary record is never used."""


class FileFormat(ABC):
    """A kind of data file. A format is built from its own configuration. `timestamp_source` is the place of a sample's time (see `timestamps`).

    An error in a file is a DataError that names the file, the byte offset and what to do. A format never raises an OSError.
    """

    Config: ClassVar[type[FormatConfig]]
    """The format's own section."""
    label_options: ClassVar[tuple[str, ...]] = ()
    """Options, besides those named label_…, that decide which part of a sample is its label. With indexed samples, they do not change."""
    can_grow: ClassVar[bool] = False
    """Whether samples that are appended to an indexed file can be indexed separately, from a FormatResume."""
    packed: ClassVar[bool] = False
    """Whether files may be compressed; storage unpacks them before they are indexed. Only a format without companions and without a reader of its own
    may set this."""
    row_times: ClassVar[tuple[str, str]] = ("(?:column|field):(.+)", "")
    """Regular expression of a timestamp_source that names a place in a row, and the list of all allowed sources for the error message."""
    brings_times: ClassVar[bool] = False
    """Whether samples contain their times without a timestamp_source, as appended records do."""
    isolated: ClassVar[bool] = True
    """Whether files are indexed in a process of bounded memory and time, because third-party code reads them. A crash then affects only one file.
    False: only code of this package reads them. The value is not inherited: each class sets its own."""
    offsets_name: ClassVar[Literal["line", "byte", "row"]] = "byte"
    """What messages name to find a sample by its offset: its byte, also the line that begins there, or a row number."""
    chunk_rows = CHUNK_ROWS
    """Largest number of samples of one chunk."""
    roots: Sequence[str] = ()
    """Folders in which files may be opened, as paths without symbolic links; none: anywhere. Set by storage (storage.dataset_roots)."""
    schema: DatasetSchema | None = None
    """The columns of all files, given by options, or set by storage after the first file. None: the columns are not known yet, or the format has
    none. `index` refuses a file with other columns. The first chunk of each file contains the schema, updated by this file."""

    def __init_subclass__(cls) -> None:
        # A subclass of a built-in format may run any code. So `isolated = False` is not inherited.
        if "isolated" not in cls.__dict__:
            cls.isolated = True

    def __init__(self, config: FormatConfig, timestamp_source: str = "") -> None:
        """Parse the timestamp_source. Raises ConfigError if the source is not known or belongs to other formats."""
        self.config, self.timestamp_source = config, timestamp_source
        self.times = time_format(config.timestamp_format)
        """The reader of times, also of those in rows."""
        if config.timestamp_format and not timestamp_source and not self.brings_times:
            raise ConfigError(
                "timestamp_format is for times in rows and in names of files, and samples have the modification time of their file; set "
                "timestamp_source, or leave it out"
            )
        self.name_pattern = name_pattern(timestamp_source, config.timestamp_format)
        """The pattern of the time in a file's name; None: names contain no times."""
        place, allowed = self.row_times
        self.time_place = re.fullmatch(place, timestamp_source)
        """The match of `row_times`, if each row has a time of its own."""
        # Every format supports one time for all samples of a file.
        if timestamp_source and self.name_pattern is None and self.time_place is None:
            raise ConfigError(f"timestamp_source '{timestamp_source}' is for other formats; {allowed}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what the format was built from."""
        return type(self), (self.config, self.timestamp_source), {"roots": self.roots, "schema": self.schema}

    @property
    def float_labels(self) -> bool:
        """Whether labels are float64; otherwise int64."""
        return self.config.label_type == "float"

    @property
    def labels_by(self) -> dict[str, Any]:
        """The options that decide which part of a sample is its label, by name."""
        names = [name for name in type(self.config).model_fields if name.startswith("label_") or name in self.label_options]
        return {name: getattr(self.config, name) for name in names}

    @property
    def times_are_digits(self) -> bool:
        """Whether numbers count as seconds because no `timestamp_format` is given, and may therefore be ambiguous digits."""
        has_place = self.brings_times or self.time_place is not None or self.name_pattern is not None
        return has_place and not self.config.timestamp_format

    def file_time(self, path: str, mtime_ns: int) -> int | None:
        """Return the common time of all samples of a file, in seconds since 1970: from its name, else `mtime_ns`; None if each row has its own time.

        Args: path: only the name is used; nothing is read. mtime_ns: modification time of the file, nanoseconds since 1970.
        Raises: DataError: the name holds no time, or the modification time is beyond the years 1677 to 2262.
        """
        if self.time_place is not None:
            return None
        if self.name_pattern is None:
            # These two values stand for all times beyond the range, see `mtime_ns`.
            if not -(2**63) < mtime_ns < 2**63 - 1:
                raise out_of_range(path)
            return mtime_ns // 10**9
        (found,) = self.name_pattern.times([path])
        if isinstance(found, DataError):
            raise found
        return found

    def open(self, path: str, buffering: int = -1) -> BinaryIO:
        """Open a data file for reading, only if it is in `roots` after links are resolved.

        Args: buffering: as for the built-in `open`: bytes of the buffer, 0 for none, -1 for the default.
        Raises: DataError, OSError.
        """
        return open(_core.open_file(path, self.roots), "rb", buffering=buffering)

    @abstractmethod
    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """Yield the samples of `path` in file order, at most `chunk_rows` at once. An empty file yields nothing.

        With `resume`, yield only the samples after the indexed part; the bytes of this part are unchanged. Only a format that `can_grow` gets
        `resume`. Raises: DataError; the caller discards the chunks yielded before.
        """

    def endings(self) -> NameEndings | None:
        """Return the endings of the names of files with samples and of companions.

        By default, the ending is the option `file_extension`, if the format has this option. If names follow another rule, override `holds_samples`
        or `companions`; then storage calls the overridden method for each file.
        """
        ending = getattr(self.config, "file_extension", None)
        return None if ending is None else NameEndings(ending, packed=self.packed)

    def holds_samples(self, path: str) -> bool:
        """Whether a file of this name holds samples (and is not, for example, a label file). The method looks at the name only."""
        if (endings := self.endings()) is None:
            raise NotImplementedError(f"{type(self).__name__} has neither endings() nor holds_samples()")
        return endings(path)

    def companions(self, path: str) -> tuple[str, ...]:
        """Return the files that must exist next to `path` before it can be indexed, e.g. its label file."""
        endings = self.endings()
        return endings.companions_of(path) if endings else ()

    def names(self) -> Names:
        """Return the rule for names of files with samples, in the form that a listing takes. The rule is the endings, unless the format has a rule of
        its own.
        """
        kind = type(self)
        # A format that overrides a method has its own rule. Its endings alone would not follow it.
        has_own_rule = kind.holds_samples is not FileFormat.holds_samples or kind.companions is not FileFormat.companions
        return self.holds_samples if has_own_rule else self.endings() or self.holds_samples

    def is_packed(self, path: str) -> bool:
        """Whether a file of this name is unpacked before it is indexed."""
        return self.packed and without_packed_ending(path) != path

    def row_begin(self, offset: int) -> int | None:
        """Return the first byte of the row whose payload is at `offset`. A file that grows while it is indexed is read up to such a byte. None: the
        byte is not known; then a file that grew meanwhile is indexed at the next scan.
        """
        return None

    def column(self, name: str) -> RowColumn | RowGroups | None:
        """Return the reader of the column `name`, for policies that balance it; None: samples of this format have no columns.

        Returns: a reader of payloads if these are whole rows, or `RowGroups((name,))`. Only reads of the files show whether the files have the
        column. Raises: ConfigError: no column can have this name.
        """
        return None

    @property
    def decides_schema(self) -> bool:
        """Whether the first file decides the schema of all files."""
        return False

    def declared(self, schema: DatasetSchema) -> DatasetSchema:
        """Return `schema`, the schema of a file, with what options declare in place of the columns of the file."""
        return schema

    def schema_in(self, path: str, file: BinaryIO) -> DatasetSchema | None:
        """Return the schema that a file would decide; None: the format has none.

        Raises: DataError, OSError.
        Args: path: full path, for errors. file: open at its beginning; may be closed.
        """
        return None

    def row_order(self, path: str, file: BinaryIO) -> RowOrder | None:
        """Return the order of a file's fields in relation to `schema`, which has a `mixed_order`; None: the file has the order of the schema.
        Args and errors: see `schema_in`."""
        return None

    def payload_reader(self) -> RowGroups | OwnReader | None:
        """Return the declaration of the reader that the payloads need; `RecordReaders` opens this reader. None: payloads are ranges of the files'
        bytes.
        """
        return None


@dataclass(frozen=True, slots=True, eq=False)
class OpenedFile:
    """A file that is open for reads at any position, and its state when it was listed: full path, bytes, and ns since 1970."""

    path: str
    size: int
    mtime_ns: int
    source: Any
    """A local file, opened as in the format's own `index`, or an `io.RawIOBase` of an object, in which each read is a request."""


class RangedFormat(FileFormat):
    """A format that reads only parts of a file for indexing. Objects of buckets are read by ranges instead of copied."""

    @abstractmethod
    def index_opened(self, file: OpenedFile) -> Iterator[IndexedSamples]:
        """See `index`, from the beginning of a file. Errors of reading pass through."""


class WholeFileFormat(FileFormat):
    """A format with one sample in each file. Many files are indexed with one call."""

    reads_payloads: ClassVar[bool] = True
    """Whether the format reads the files, in addition to names, sizes, times and companions."""

    @abstractmethod
    def index_files(self, paths: Sequence[str]) -> IndexedFiles:
        """Index all `paths`. An unusable file is listed in `problems` and does not affect the others."""
