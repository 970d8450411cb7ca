"""The interface of file formats. A format yields the positions of the samples of one file in bounded chunks of columns, and keeps no bytes of
samples.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field, field_validator

from modyn import _core
from modyn.config.base import Section
from modyn.errors import ConfigError, DataError
from modyn.json_codec import sanitize
from modyn.records import Int64Array
from modyn.storage.files.file_system import NameEndings, Names, without_packed_ending
from modyn.storage.formats.timestamps import name_pattern, out_of_range, time_format
from modyn.storage.model.samples import IndexedFiles, IndexedSamples
from modyn.storage.model.schema import DatasetSchema

CHUNK_ROWS = 1 << 18
"""Largest number of samples that a format yields at once."""


@dataclass(frozen=True, slots=True)
class FormatResume:
    """The indexed bytes of a file. Indexing continues at byte `end`, after `num_samples` samples and `num_skipped` unusable rows. `fingerprint`:
    checksum of the bytes before `end`.
    """

    end: int
    num_samples: int
    fingerprint: str
    num_skipped: int = 0


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Declares that payloads are the `columns` of rows in the row groups of Parquet files, and that offsets of samples are numbers of rows.

    types: names of the columns' Arrow types; empty: each file has its own types.
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
    """The order of the fields in a CSV row: `fields[i]` is the position in the row of column i of the schema. separator, quote: ASCII characters;
    None: no quotes."""

    fields: tuple[int, ...]
    separator: str
    quote: str | None


class RowColumn(ABC):
    """The reader of a column of samples whose payloads are whole rows."""

    has_header: bool = False
    """Whether each file begins with the names of its columns. If true, `values` gets rows of one file only, with these names."""

    def header(self, path: str, file: BinaryIO) -> Sequence[str]:
        """Return the names of the columns at the beginning of a file. Called only if `has_header` is true. Raises: DataError, OSError.

        Args: path: full path, for errors. file: open at its beginning.
        """
        return ()

    def names(self, row: bytes) -> Iterable[str]:
        """Return the names of all columns of a row. Called only if `has_header` is false. Raises: ValueError: the row cannot be read; the message is
        the reason."""
        return ()

    @abstractmethod
    def values(self, rows: Sequence[bytes], header: Sequence[str]) -> Iterator[object]:
        """Yield the value of each row. A value is a text, a number, true or false, a date or a time; None: the row has no value. Values of other
        types are refused.

        Raises: ValueError: the next row cannot be read; the message is the reason.
        """


class FormatConfig(Section):
    """Options of every format."""

    # The docstring below a field is its description for users.
    model_config = ConfigDict(use_attribute_docstrings=True)

    label_type: Literal["int", "float", "class"] = "int"
    """Labels are whole numbers (int64), fractions (float64), or names of classes (texts or whole numbers)."""
    label_classes: list[str] | None = Field(None, min_length=1)
    """Names of the first classes, in the order of their numbers, so that several datasets number alike."""
    timestamp_format: str = ""
    """Format of times in rows or file names: directives of strptime, e.g. `%d/%m/%Y %H:%M`; or s, ms, us or ns since 1970. Empty: ISO 8601 or
    seconds. Numbers that are more likely a date, such as 20130131 or 2013, or in another unit are refused."""

    @field_validator("label_classes")
    @classmethod
    def _different_names(cls, names: list[str] | None) -> list[str] | None:
        if names is not None and ("" in names or len(set(names)) < len(names)):
            raise ValueError(f"{names} holds an empty name, or one twice; write each class once")
        return names


class GrowingConfig(FormatConfig):
    """Options of formats whose files may grow."""

    last_row_wait_s: float = Field(60, ge=0, le=10**8)
    """A last row without an end, such as a line without a line break, may be half-written: it waits for its end, and `modyn data problems` names it.
    After this number of seconds without a change of the file, the row is used as it is. A part of a binary record is never used."""


class FileFormat(ABC):
    """A format of data files, built from its own configuration. `timestamp_source` tells where the time of a sample is (see `timestamps`).

    An error in a file is a DataError that names the file, the byte offset and what to do. A format never raises an OSError.
    """

    Config: ClassVar[type[FormatConfig]]
    """The format's own section."""
    label_options: ClassVar[tuple[str, ...]] = ()
    """Options, besides those named label_…, that decide where the label of a sample is. After samples are indexed, these options cannot change."""
    can_grow: ClassVar[bool] = False
    """Whether samples that are appended to an indexed file can be indexed separately, from a FormatResume."""
    packed: ClassVar[bool] = False
    """Whether files may be compressed. Storage unpacks compressed files before they are indexed. A format with companions or with its own reader of
    payloads must not set this."""
    row_times: ClassVar[tuple[str, str]] = ("(?:column|field):(.+)", "")
    """Regular expression for a timestamp_source that names a field or column of a row, and the list of all allowed sources for the error message."""
    brings_times: bool = False
    """Whether samples contain their times without a timestamp_source, as appended records do."""
    has_classes: ClassVar[bool] = False
    """Whether labels may be names of classes (`label_type: class`). Then chunks have `classes`."""
    isolated: ClassVar[bool] = True
    """Whether files are indexed in a process with limited memory and time, because third-party code reads the files. A crash then affects only one
    file. False: only code of this package reads the files. Subclasses do not inherit the value."""
    offsets_name: ClassVar[Literal["line", "byte", "row"]] = "byte"
    """How messages describe the offset of a sample. byte: by the byte. line: by the byte and the number of the line that begins there. row: by the
    number of the row."""
    chunk_rows = CHUNK_ROWS
    """Largest number of samples of one chunk."""
    roots: Sequence[str] = ()
    """Folders in which files may be opened, as paths without symbolic links; empty: all folders. Storage sets the value (storage.dataset_roots)."""
    schema: DatasetSchema | None = None
    """The columns of all files. Options define the schema, or storage sets it after the first file. None: the columns are not known yet, or the
    format has no columns. `index` refuses a file with other columns. The first chunk of each file contains the schema, updated by this file."""

    def __init_subclass__(cls) -> None:
        # A subclass of a built-in format may run third-party code. So `isolated = False` is not inherited.
        if "isolated" not in cls.__dict__:
            cls.isolated = True

    def __init__(self, config: FormatConfig, timestamp_source: str = "") -> None:
        """Parse the timestamp_source. Raises ConfigError if the source is not known or belongs to other formats."""
        self.config, self.timestamp_source = config, timestamp_source
        if config.label_type == "class" and not self.has_classes:
            raise ConfigError("label_type class is for CSV, JSON Lines and Parquet; write numbers of classes, and choose int")
        if config.label_classes and not self.names_classes:
            raise ConfigError("label_classes is for image_folder and for label_type class; leave it out")
        self.times = time_format(config.timestamp_format)
        """The reader of times in names and rows."""
        if config.timestamp_format and not timestamp_source and not self.brings_times:
            raise ConfigError(
                "timestamp_format is for times in rows and in names of files, and samples have the modification time of their file; set "
                "timestamp_source, or leave it out"
            )
        self.name_pattern = name_pattern(timestamp_source, config.timestamp_format)
        """The pattern of the time in a file's name; None: names contain no times."""
        place, allowed = self.row_times
        self.time_place = re.fullmatch(place, timestamp_source)
        """The match of `row_times`, if each row has its own time; otherwise None."""
        # Every format supports one time for all samples of a file.
        if timestamp_source and self.name_pattern is None and self.time_place is None:
            raise ConfigError(f"timestamp_source '{timestamp_source}' is for other formats; {allowed}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle only the arguments with which the format was built, `roots` and `schema`."""
        return type(self), (self.config, self.timestamp_source), {"roots": self.roots, "schema": self.schema}

    @property
    def float_labels(self) -> bool:
        """Whether labels are float64; otherwise int64."""
        return self.config.label_type == "float"

    @property
    def names_classes(self) -> bool:
        """Whether labels are the numbers of named classes."""
        return self.config.label_type == "class"

    @property
    def labels_by(self) -> dict[str, Any]:
        """The options that decide where the label of a sample is, by name."""
        names = [name for name in type(self.config).model_fields if name.startswith("label_") or name in self.label_options]
        return {name: getattr(self.config, name) for name in names}

    @property
    def times_are_digits(self) -> bool:
        """Whether times may be ambiguous digits: numbers are read as seconds, because no `timestamp_format` is given."""
        has_place = self.brings_times or self.time_place is not None or self.name_pattern is not None
        return has_place and not self.config.timestamp_format

    def file_time(self, path: str, mtime_ns: int) -> int | None:
        """Return the time of all samples of a file, in seconds since 1970, from its name or else from `mtime_ns`; None if each row has its own time.

        Args: path: only the name is used; the file is not read. mtime_ns: modification time of the file, nanoseconds since 1970.
        Raises: DataError: the name contains no time, or the modification time is beyond the years 1677 to 2262.
        """
        if self.time_place is not None:
            return None
        if self.name_pattern is None:
            # The smallest and the largest int64 represent all times beyond the range, see `mtime_ns` in files/file_system.py.
            if not -(2**63) < mtime_ns < 2**63 - 1:
                raise out_of_range(path)
            return mtime_ns // 10**9
        (found,) = self.name_pattern.times([path])
        if isinstance(found, DataError):
            raise found
        return found

    def open(self, path: str, buffering: int = -1) -> BinaryIO:
        """Open a data file for reading. After links are resolved, the file must be in `roots`.

        Args: buffering: bytes of the buffer; 0: no buffer; -1: the default of the built-in `open`.
        Raises: DataError, OSError.
        """
        return open(_core.open_file(path, self.roots), "rb", buffering=buffering)

    @abstractmethod
    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """Yield the samples of `path` in file order, at most `chunk_rows` at once. An empty file yields nothing.

        With `resume`, yield only the samples after the indexed bytes, which are unchanged. `resume` is given only to formats with `can_grow`. Raises:
        DataError; the caller then discards the chunks that were yielded before.
        """

    def endings(self) -> NameEndings | None:
        """Return the endings of the names of files with samples and of companions.

        By default, the ending is the option `file_extension`, if the format has this option. If names follow another rule, override `holds_samples`
        or `companions`; then storage calls the overridden method for each file.
        """
        ending = getattr(self.config, "file_extension", None)
        return None if ending is None else NameEndings(ending, packed=self.packed)

    def holds_samples(self, path: str) -> bool:
        """Whether a file of this name contains samples (and is not, for example, a label file). The file is not read."""
        if (endings := self.endings()) is None:
            raise NotImplementedError(f"{type(self).__name__} has neither endings() nor holds_samples()")
        return endings(path)

    def companions(self, path: str) -> tuple[str, ...]:
        """Return the files that must exist next to `path` before it can be indexed, e.g. its label file."""
        endings = self.endings()
        return endings.companions_of(path) if endings else ()

    def names(self) -> Names:
        """Return the rule for names of files with samples, for `FileSystem.list_files`: the endings, unless the format overrides the methods."""
        kind = type(self)
        # A format that overrides a method has its own rule, which its endings do not express.
        has_own_rule = kind.holds_samples is not FileFormat.holds_samples or kind.companions is not FileFormat.companions
        return self.holds_samples if has_own_rule else self.endings() or self.holds_samples

    def is_packed(self, path: str) -> bool:
        """Whether a file of this name is unpacked before it is indexed."""
        return self.packed and without_packed_ending(path) != path

    def row_begin(self, offset: int) -> int | None:
        """Return the first byte of the row with the payload at `offset`. If a file grows while it is indexed, the file is read up to such a byte.
        None: the byte is not known, so a file that grows while it is indexed is indexed at the next scan.
        """
        return None

    def column(self, name: str) -> RowColumn | RowGroups | None:
        """Return the reader of the column `name`, for policies that balance the values of a column; None: samples of this format have no columns.

        Returns: a `RowColumn` if payloads are whole rows, else `RowGroups((name,))`. The method does not check whether files have the column. Raises:
        ConfigError: no column can have this name.
        """
        return None

    @property
    def decides_schema(self) -> bool:
        """Whether the first file decides the schema of all files."""
        return False

    def declared(self, schema: DatasetSchema) -> DatasetSchema:
        """Return `schema`, the schema of a file, with the columns and types that options declare instead of those in the file."""
        return schema

    def schema_in(self, path: str, file: BinaryIO) -> DatasetSchema | None:
        """Return the schema that a file would decide; None: the format has no schema, or the file does not decide it.

        Raises: DataError, OSError.
        Args: path: full path, for errors. file: open at its beginning; may be closed.
        """
        return None

    def row_order(self, path: str, file: BinaryIO) -> RowOrder | None:
        """Return the order of a file's fields if it differs from the order of `schema`; None: both orders are equal. Called only if `schema` has
        `mixed_order`. Args and errors: see `schema_in`."""
        return None

    def payload_reader(self) -> RowGroups | OwnReader | None:
        """Declare the reader of payloads, which `RecordReaders` opens. None: payloads are byte ranges of the files and need no special reader."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class OpenedFile:
    """A file that is open for reads at any position. path: full path. size, mtime_ns: bytes, and ns since 1970, when the file was listed."""

    path: str
    size: int
    mtime_ns: int
    source: Any
    """A local file, opened as in the format's own `index`; or an object of a bucket, as an `io.RawIOBase` in which each read is a request."""


class RangedFormat(FileFormat):
    """A format that reads only some ranges of a file for indexing. So objects of buckets are not copied for indexing: only these ranges are read."""

    @abstractmethod
    def index_opened(self, file: OpenedFile) -> Iterator[IndexedSamples]:
        """See `index`; always from the beginning of the file. Errors of reads are not converted."""


class WholeFileFormat(FileFormat):
    """A format with one sample in each file. Many files are indexed with one call."""

    reads_payloads: ClassVar[bool] = True
    """Whether the format reads the files. False: it uses only their names, sizes, times and companions."""

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """Yield the sample of the file. Raises DataError: the file cannot be used."""
        found = self.index_files([path])
        if found.problems:
            raise found.problems[0]
        length = int(found.lengths[0])
        yield IndexedSamples(np.zeros(1, np.int64), length, found.labels, int(found.timestamps[0]), length)

    @abstractmethod
    def index_files(self, paths: Sequence[str]) -> IndexedFiles:
        """Index all `paths`. An unusable file is listed in `problems` and does not affect other files."""


def class_codes(names: Sequence[str]) -> tuple[tuple[str, ...], Int64Array]:
    """Return the different names in order, and the position of each of `names` in them, int64 (n,).

    >>> class_codes(["b", "a", "b"])
    (('a', 'b'), array([1, 0, 1]))
    """
    clean = {name: sanitize(name) for name in set(names)}
    positions = {name: position for position, name in enumerate(sorted(set(clean.values())))}
    codes = {name: positions[shown] for name, shown in clean.items()}
    return tuple(positions), np.fromiter(map(codes.__getitem__, names), np.int64, len(names))
