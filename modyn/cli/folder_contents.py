"""What a folder holds: the format, options and source of times with which `modyn data register NAME FOLDER` registers it. Only the beginnings of
files are read.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import shlex
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, Any, Final

from modyn.errors import ConfigError, InvalidArgumentError, ModynError
from modyn.storage.files.file_system import without_packed_ending
from modyn.storage.formats.image_folder import IMAGE_ENDINGS

_ROWS: Final = 1000
"""Number of rows that are read of the first file."""
_HEAD_BYTES: Final = 1 << 24
"""Number of bytes of a file that are read, unpacked."""
_MOST_FILES: Final = 200_000
"""Largest number of files that are listed."""
_MEMBERS: Final = 100
"""Number of members of an archive that are read."""
_NAMED: Final = 10
"""Largest number of names in a message."""
_LABELS: Final = frozenset({"label", "labels", "class", "target", "y", "category"})
_TIMES: Final = frozenset(
    {"time", "timestamp", "datetime", "date", "ts", "event_time", "time_hour", "created_at", "published_at"}
)
"""Usual names of columns, in lower case."""
_FORMATS: Final = ("", "%Y%m%d", "ms", "us", "ns", "%Y/%m/%d", "%d.%m.%Y", "%Y%m", "%Y")
"""Values of `timestamp_format` that are tried in this order. Days and months in either order, as in 01/02/2013, are not guessed."""
_MOST_CLASSES: Final = 100
_NUMBER: Final = re.compile(r"[-+.]?\d")
"""Beginning of a number or a date."""
_DATE: Final = re.compile(r"(?P<date>(?:19|20)\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01]))")
"""A date in the path of an image."""
_PARTS: Final = frozenset({"train", "training", "val", "valid", "validation", "test", "testing", "eval"})
"""Folders that are probably parts of a dataset, and not classes."""
_KINDS: Final = {
    ".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".tar": "tar",
    **dict.fromkeys(IMAGE_ENDINGS, "images"),
}  # fmt: skip
_WRAPPERS: Final = {
    "images": "image_folder", "csv": "CsvFileWrapper", "json": "JsonLinesFileWrapper", "parquet": "ParquetFileWrapper", "tar": "TarFileWrapper",
}  # fmt: skip


@dataclass(frozen=True)
class Recognised:
    """The registration of a folder. said: sentences about what was found and chosen."""

    wrapper: str
    options: Mapping[str, Any] = field(default_factory=dict)
    timestamp_source: str = ""
    said: tuple[str, ...] = ()

    def command(self, name: str, folder: str) -> str:
        """Return the command that registers the folder in the same way."""
        options = [part for key, value in self.options.items() for part in ("-o", f"{key}={_as_yaml(value)}")]
        source = ["--timestamp-source", self.timestamp_source] if self.timestamp_source else []
        return shlex.join(["modyn", "data", "register", name, folder, "--format", self.wrapper, *options, *source])


@dataclass(frozen=True)
class Given:
    """What the user has chosen: the name of the dataset, its folder, options of the format, and the source of times; empty: not chosen."""

    name: str
    folder: str
    options: Mapping[str, Any] = field(default_factory=dict)
    timestamp_source: str = ""

    @property
    def has_label(self) -> bool:
        """Whether an option says where the label is."""
        return any(name in self.options for name in ("label_index", "label_column", "label_field"))


def recognise(given: Given) -> Recognised:
    """Return how to register a folder of this machine. Options that are given replace recognised ones.

    Raises: ConfigError: no format, or more than one, fits; the message lists candidates with their commands.
    """
    files = _files(given.folder)
    kinds: dict[str, list[str]] = {}
    for path in files:
        kinds.setdefault(_KINDS.get(_ending(path), ""), []).append(path)
    others = kinds.pop("", [])
    if "images" in kinds and (times := _file_of_times(given, kinds.get("csv", []))):
        others.append(times)
        kinds["csv"].remove(times)
        kinds = {kind: paths for kind, paths in kinds.items() if paths}
    if not kinds:
        endings = ", ".join(
            f"{number:,} × {ending or 'without an ending'}" for ending, number in Counter(map(_ending, others)).most_common(5)
        )
        raise ConfigError(
            f"{given.folder} holds {f'no files of a known kind ({endings})' if others else 'no files'}; known are images, CSV, JSON Lines, Parquet "
            "and tar. For other files, choose --format"
        )
    if len(kinds) > 1:
        commands = {kind: _command_of(given, kind, paths, others) for kind, paths in kinds.items()}
        lines = [f"  {len(kinds[kind]):,} files ({_shown(kinds[kind])}): {command}" for kind, command in commands.items()]
        raise ConfigError(f"{given.folder} holds files of several kinds; choose one with its command:\n" + "\n".join(lines))
    ((kind, paths),) = kinds.items()
    found = _of_kind(given, kind, paths, others)
    used = str(found.options.get("label_file_extension", found.options.get("times", "/")))
    unused = [path for path in others if not path.endswith(used)]
    more = [
        *([f"not used: {len(unused):,} other files ({_shown(unused)})"] if unused else []),
        *([f"only the first {_MOST_FILES:,} files were looked at"] if len(files) == _MOST_FILES else []),
    ]
    return _with_given(replace(found, said=(*found.said, *more)), given)


def _with_given(found: Recognised, given: Given) -> Recognised:
    return replace(
        found, options={**found.options, **given.options}, timestamp_source=given.timestamp_source or found.timestamp_source
    )


def _of_kind(given: Given, kind: str, paths: Sequence[str], others: Sequence[str]) -> Recognised:
    """Recognise a folder whose files of one kind are the dataset. Args: others: files of no known kind."""
    reader: dict[str, Callable[[Given, Sequence[str]], Recognised]] = {
        "csv": _csv,
        "json": _json,
        "parquet": _parquet,
        "tar": _tar,
    }
    return _images(given, paths, others) if kind == "images" else reader[kind](given, paths)


def _command_of(given: Given, kind: str, paths: Sequence[str], others: Sequence[str]) -> str:
    """Return the command for the files of one kind; if its options cannot be recognised, without options."""
    try:
        found = _of_kind(given, kind, paths, others)
    except ModynError:
        found = Recognised(_WRAPPERS[kind])
    return _with_given(found, given).command(given.name, given.folder)


# Images


def _images(given: Given, paths: Sequence[str], others: Sequence[str]) -> Recognised:
    loose = [path for path in paths if "/" not in path]
    classes = sorted({path.partition("/")[0] for path in paths if "/" in path})
    if labels := _label_files(paths, others):
        (ending,) = {os.path.splitext(path)[1] for path in paths}
        said = f"{len(paths):,} images, each with a label file ({labels})"
        return Recognised("SingleSampleFileWrapper", {"file_extension": ending, "label_file_extension": labels}, "", (said,))
    if loose:
        raise ConfigError(
            f"{given.folder} holds {len(loose):,} images outside of class folders ({_shown(loose)}), and no label files next to them: move each "
            "image to the folder of its class, or choose --format"
        )
    said, label = f"{len(paths):,} images in {len(classes):,} class folders: {_listed(classes)}", "label: number of the class"
    if set(classes) <= _PARTS:
        raise ConfigError(
            f"{given.folder} holds the folders {_listed(classes)}, which are probably parts of a dataset and not classes: register each of them, or "
            "choose --format image_folder"
        )
    if given.timestamp_source:
        return Recognised("image_folder", said=(said, label, "time: as given"))
    if times := _file_of_times(given, others):
        return Recognised("image_folder", {"times": times}, said=(said, label, f"time: in {times}"))
    if all(_DATE.search(path.partition("/")[2]) for path in paths):
        return Recognised("image_folder", {}, f"name:{_DATE.pattern}", (said, label, "time: the date in each path"))
    return Recognised("image_folder", said=(said, label, "time: modification time of each file"))


def _label_files(paths: Sequence[str], others: Sequence[str]) -> str:
    """Return the ending of the label files; empty: not every image has one, or the images have several endings."""
    stems = {os.path.splitext(path)[0] for path in paths}
    if len({os.path.splitext(path)[1] for path in paths}) != 1:
        return ""
    endings = Counter(ending for stem, ending in map(os.path.splitext, others) if ending and stem in stems)
    return next((ending for ending, number in endings.most_common(1) if number == len(stems)), "")


def _file_of_times(given: Given, paths: Sequence[str]) -> str:
    """Return the only CSV file next to the class folders if it has the columns path and time; otherwise an empty text."""
    found = [path for path in paths if "/" not in path and path.lower().endswith(".csv")]
    if len(found) != 1:
        return ""
    first, path = list[str](), os.path.join(given.folder, found[0])
    with suppress(csv.Error), _open(path) as file, io.TextIOWrapper(file, "utf-8-sig", "replace", newline="") as text:
        first = next(csv.reader(text), [])
    return found[0] if {"path", "time"} <= set(first) else ""


# Tables


@dataclass(frozen=True)
class _Column:
    """The first values of a column, without missing ones. name: as options name it."""

    name: str
    values: Sequence[Any]

    @property
    def label_type(self) -> str | None:
        """The `label_type` of these values: int, float or class; None: they are neither numbers nor texts."""
        if self.values and all(isinstance(value, str) for value in self.values) and None in map(_number, self.values):
            return "class"
        values = [_number(value) for value in self.values]
        if not values or None in values:
            return None
        return "int" if all(isinstance(value, int) for value in values) else "float"

    @property
    def timestamp_format(self) -> str | None:
        """The first format in which all values are plausible times; None: there is none."""
        return next((text for text in _FORMATS if self.values and self._are_times(text)), None)

    @property
    def are_time_texts(self) -> bool:
        """Whether the values are texts of times, and no numbers."""
        return self.label_type in (None, "class") and self.timestamp_format == ""

    @property
    def may_be_classes(self) -> bool:
        """Whether the values are few whole numbers or texts that repeat."""
        different = len(set(map(str, self.values)))
        return self.label_type in ("int", "class") and different <= min(_MOST_CLASSES, len(self.values) // 2)

    def _are_times(self, text: str) -> bool:
        import datetime

        import numpy as np

        from modyn._core import TimeFormat
        from modyn.storage.formats.json_fields import time_of
        from modyn.storage.formats.timestamps import TimeRange

        if all(isinstance(value, datetime.date) for value in self.values):
            return text == ""
        times = TimeFormat(text)
        try:
            # In JSON and Parquet, numbers have a type; in CSV all values are texts.
            seconds = [times.of_text(value) if isinstance(value, str) else time_of(value, times) for value in self.values]
            return text != "" or not TimeRange.of(np.array(seconds, np.int64)).why_no_seconds(None)
        except (ValueError, InvalidArgumentError, OverflowError):
            return False


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return int(value) if isinstance(value, str) else value
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return None


def _label_of(given: Given, columns: Sequence[_Column], option: str, wrapper: str, *, time: str) -> tuple[dict[str, Any], str]:
    """Choose the column of the label. Returns: options, and a sentence. Args: time: column of the time. Raises: ConfigError."""
    if given.has_label:
        return {}, "label: as given"
    named = [column for column in columns if column.name.casefold() in _LABELS]
    fitting = named or [column for column in columns if column.may_be_classes and column.name != time]
    if len(fitting) == 1:
        (column,) = fitting
        if column.label_type is None:
            raise ConfigError(
                f"the column '{column.name}' of {given.folder} is most likely the label, and holds '{str(next(iter(column.values), ''))[:50]}', "
                "which is neither a number nor a text; write class names, or choose another column with --format"
            )
        why = "by its name" if named else "the only column with few values"
        return _label_options(option, column), f"label: {column.name}, {why}"
    numbers = [column for column in columns if column.label_type in ("int", "float") and column.name != time]
    asked = fitting or numbers or columns
    lines = [
        f"  {_with_given(Recognised(wrapper, _label_options(option, column)), given).command(given.name, given.folder)}"
        for column in asked[:_NAMED]
    ]
    why = "several columns may be the label" if fitting else "no column has a usual name of a label"
    raise ConfigError(f"{given.folder}: {why}; choose one with its command:\n" + "\n".join(lines))


def _label_options(option: str, column: _Column) -> dict[str, Any]:
    """Return the options for the label in a column."""
    options: dict[str, Any] = {option: int(column.name) if option == "label_index" else column.name}
    return options | ({"label_type": column.label_type} if column.label_type in ("float", "class") else {})


def _time_of(given: Given, columns: Sequence[_Column], prefix: str, wrapper: str) -> tuple[str, dict[str, Any], str, str]:
    """Choose the column of the time. Returns: its name, options, timestamp_source and a sentence; without a column, empty texts.

    Raises: ConfigError.
    """
    if given.timestamp_source:
        return given.timestamp_source.removeprefix(prefix), {}, "", "time: as given"
    named = [column for column in columns if column.name.casefold() in _TIMES]
    fitting = named or [column for column in columns if column.are_time_texts]
    if len(fitting) > 1:
        lines = [
            f"  {_with_given(Recognised(wrapper, timestamp_source=prefix + column.name), given).command(given.name, given.folder)}"
            for column in fitting[:_NAMED]
        ]
        raise ConfigError(f"{given.folder}: several columns may be the time; choose one with its command:\n" + "\n".join(lines))
    if not fitting:
        return "", {}, "", "time: modification time of each file, because no column has a usual name or texts of times"
    (column,) = fitting
    spelling = given.options.get("timestamp_format", column.timestamp_format)
    if spelling is None:
        raise ConfigError(
            f"the column '{column.name}' of {given.folder} is most likely the time, and its values, such as "
            f"'{str(next(iter(column.values), ''))[:50]}', can be read in several ways or in none: add -o timestamp_format=..., see "
            "docs/how-to/datasets.md"
        )
    how = f" in the format {spelling}" if spelling else ""
    return column.name, {"timestamp_format": spelling} if spelling else {}, prefix + column.name, f"time: {column.name}{how}"


def _table(
    given: Given, columns: Sequence[_Column], option: str, prefix: str, wrapper: str, said: str, more: Mapping[str, Any]
) -> Recognised:
    """Recognise a table of `columns`. Args: option: option of the label's column. prefix: of the timestamp_source. more: further options."""
    time, time_options, source, about_time = _time_of(given, columns, prefix, wrapper)
    label, about_label = _label_of(given, columns, option, wrapper, time=time)
    return Recognised(wrapper, {**more, **label, **time_options}, source, (said, about_label, about_time))


def _csv(given: Given, paths: Sequence[str]) -> Recognised:
    ending, path = _one_ending(given, paths), os.path.join(given.folder, paths[0])
    with _open(path) as file:
        try:
            with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
                lines = list(itertools.islice(text, _ROWS))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8: choose --format CsvFileWrapper, and its option encoding") from error
    try:
        separator = given.options.get("separator") or _separator(lines)
        rows = [row for row in csv.reader(lines, delimiter=separator) if row]
    except (csv.Error, TypeError) as error:  # TypeError: the given separator is not one character
        raise ConfigError(
            f"{path} cannot be read as CSV: {error}; correct it, or choose --format CsvFileWrapper and its options"
        ) from error
    if not rows:
        raise ConfigError(f"{path} has no rows; choose --format and its options")
    # A first row with a value that its column repeats, such as a class, has no names.
    has_names = (
        all(name.strip() and not _NUMBER.match(name.strip()) for name in rows[0])
        and len(set(rows[0])) == len(rows[0])
        and not any(same == other for row in rows[1:] for same, other in zip(rows[0], row, strict=False))
    )
    names = [name.strip() for name in rows[0]] if has_names else [str(number) for number in range(len(rows[0]))]
    values = [row for row in rows[has_names:] if len(row) == len(names)]
    columns = [_Column(name, [row[i] for row in values if row[i]]) for i, name in enumerate(names)]
    said = f"{len(paths):,} CSV files{f' with the columns {_listed(names)}' if has_names else f' of {len(names)} columns without names'}"
    more = ({} if separator == "," else {"separator": separator}) | ({} if ending == ".csv" else {"file_extension": ending})
    return _table(given, columns, "label_column" if has_names else "label_index", "column:", "CsvFileWrapper", said, more)


def _separator(lines: Sequence[str]) -> str:
    """Return the separator that divides the first line into most fields, and the next lines into as many."""

    def num_fields(separator: str) -> int:
        numbers = [len(row) for row in csv.reader(lines[:20], delimiter=separator) if row]
        return numbers[0] if numbers and len(set(numbers)) == 1 else 0

    return max((",", ";", "\t", "|"), key=num_fields)


def _json(given: Given, paths: Sequence[str]) -> Recognised:
    ending, path = _one_ending(given, paths), os.path.join(given.folder, paths[0])
    objects = list[dict[str, Any]]()
    with _open(path) as file:
        for number, line in enumerate(itertools.islice(file, _ROWS), 1):
            try:
                found = json.loads(line) if line.strip() else {}
            except ValueError as error:
                raise ConfigError(f"line {number} of {path} is not JSON: {error}; correct it, or choose --format") from error
            if not isinstance(found, dict):
                raise ConfigError(f"line {number} of {path} is not a JSON object; correct it, or choose --format")
            objects += [found] if found else []
    names = list(dict.fromkeys(name for found in objects for name in found))
    columns = [_Column(name, [found[name] for found in objects if found.get(name) is not None]) for name in names]
    said = f"{len(paths):,} JSON Lines files with the fields {_listed(names)}"
    more = {} if ending == ".jsonl" else {"file_extension": ending}
    return _table(given, columns, "label_field", "field:", "JsonLinesFileWrapper", said, more)


def _parquet(given: Given, paths: Sequence[str]) -> Recognised:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = os.path.join(given.folder, paths[0])
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, next(file.iter_batches(_ROWS), None)
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {error}; correct it, or choose --format") from error
    flat = [name for name in schema.names if not pa.types.is_nested(schema.field(name).type)]
    try:
        values = {
            name: [] if rows is None or _is_bytes(rows.column(name).type) else rows.column(name).drop_null().to_pylist()
            for name in flat
        }
    except (ValueError, OverflowError) as error:  # such as times in nanoseconds or after the year 9999
        raise ConfigError(
            f"the first rows of {path} cannot be looked at: {error}; choose --format ParquetFileWrapper and its options"
        ) from error
    columns = [_Column(name, values[name]) for name in flat]
    said = f"{len(paths):,} Parquet files with the columns {_listed(schema.names)}"
    found = _table(given, columns, "label_column", "column:", "ParquetFileWrapper", said, {})
    label = given.options.get("label_column", found.options.get("label_column"))
    time = (given.timestamp_source or found.timestamp_source).removeprefix("column:")
    left = [name for name in flat if name not in (label, time)]
    if "payload_columns" in given.options:
        return found
    bytes_, texts, numbers = (
        [name for name in left if is_kind(schema.field(name).type)]
        for is_kind in (_is_bytes, lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), _is_numeric)
    )
    choices = [[name] for name in bytes_] or [*([numbers] if numbers else []), *([name] for name in texts)]
    if len(choices) == 1:
        out = [name for name in schema.names if name not in (*choices[0], label, time)]
        more = (f"payload: {_listed(choices[0])}", *([f"left out: {_listed(out)}"] if out else []))
        return Recognised(
            found.wrapper, {"payload_columns": choices[0], **found.options}, found.timestamp_source, (*found.said, *more)
        )
    commands = [
        f"  {_with_given(replace(found, options={'payload_columns': choice, **found.options}), given).command(given.name, given.folder)}"
        for choice in choices[:_NAMED]
    ]
    why = "several columns may be the payload" if choices else "no column of bytes, text or numbers is left for the payload"
    raise ConfigError(
        f"{given.folder}: {why}" + ("; choose one with its command:\n" + "\n".join(commands) if commands else "; choose --format")
    )


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_numeric(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


# Archives


def _tar(given: Given, paths: Sequence[str]) -> Recognised:
    path = os.path.join(given.folder, paths[0])
    try:
        with tarfile.open(path, "r:") as archive:
            members = [member for member in itertools.islice(archive, _MEMBERS) if member.isfile()]
            endings = Counter(os.path.basename(member.name).partition(".")[2].lower() for member in members)
            first = next((member for member in members if member.name.lower().endswith(".json")), None)
            content = archive.extractfile(first) if first is not None else None
            text = content.read(1 << 20) if content is not None else b""
    except (tarfile.TarError, OSError) as error:
        raise ConfigError(
            f"{path} cannot be read as an uncompressed tar archive: {error}; correct it, or choose --format"
        ) from error
    payloads = [ending for ending in endings if ending not in ("cls", "json", "txt", "")]
    said = f"{len(paths):,} tar archives with members that end in {_listed([f'.{ending}' for ending in endings])}"
    if len(payloads) != 1:
        raise ConfigError(
            f"{said}: {'several may be payloads' if payloads else 'none is a payload'}; choose --format TarFileWrapper -o payload_extension=..."
        )
    if "cls" in endings:
        options: dict[str, Any] = {"payload_extension": payloads[0], "label_extension": "cls"}
        return Recognised("TarFileWrapper", options, "", (said, "label: members .cls", "time: modification time of each archive"))
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = {}
    columns = [_Column(name, [value]) for name, value in found.items()] if isinstance(found, dict) else []
    more = {"payload_extension": payloads[0], "label_extension": "json"}
    return _table(given, columns, "label_field", "field:", "TarFileWrapper", said, more)


# Files


def _files(folder: str) -> list[str]:
    """Return the paths of the files below a folder, without hidden ones, in the order of their names. Raises: ConfigError."""
    if not os.path.isdir(folder):
        raise ConfigError(
            f"{folder} is not a folder of this machine, so its files cannot be looked at; correct it, or choose --format if only storage sees it"
        )

    def found() -> Iterator[str]:
        seen = {os.path.realpath(folder)}
        for place, folders, names in os.walk(folder, followlinks=True):
            real = {name: os.path.realpath(os.path.join(place, name)) for name in sorted(folders) if not name.startswith(".")}
            folders[:] = [name for name, path in real.items() if path not in seen]
            seen.update(real.values())  # Links may lead in a circle.
            yield from (os.path.relpath(os.path.join(place, name), folder) for name in sorted(names) if not name.startswith("."))

    return list(itertools.islice(found(), _MOST_FILES))


def _ending(path: str) -> str:
    """Return the ending of a name in lower case, without that of a compression."""
    return os.path.splitext(without_packed_ending(path))[1].lower()


def _one_ending(given: Given, paths: Sequence[str]) -> str:
    """Return the ending that the names of all files have. Raises: ConfigError."""
    endings = sorted({os.path.splitext(without_packed_ending(path))[1] for path in paths})
    if len(endings) > 1:
        raise ConfigError(
            f"{given.folder} holds files that end in {' and '.join(endings)}; choose --format and its option file_extension"
        )
    return endings[0]


def _open(path: str) -> IO[bytes]:
    """Return the whole lines in the first _HEAD_BYTES of a file, unpacked. Raises: ConfigError."""
    import pyarrow as pa

    packed = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}.get(os.path.splitext(path)[1])
    try:
        with pa.input_stream(path, compression=packed) as file:
            head = bytes(file.read(_HEAD_BYTES))
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path} cannot be read: {error}; correct it, or choose --format") from error
    return io.BytesIO(head if len(head) < _HEAD_BYTES else head[: head.rfind(b"\n") + 1])


def _as_yaml(value: Any) -> str:
    """Return a value as the option -o reads it."""
    import yaml

    try:
        is_plain = isinstance(value, str) and value != "" and yaml.safe_load(value) == value
    except (yaml.YAMLError, ValueError):  # ValueError: it looks like a date, and is none
        is_plain = False
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_NAMED]) + (f" and {len(listed) - _NAMED:,} more" if len(listed) > _NAMED else "")


def _shown(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"such as {paths[0]}"
