"""Random CSV, JSON Lines and Parquet files that are wrong in one place, and what their rows mean."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from modyn.errors import DataError
from modyn.storage.files.file_system import SeenFile
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats import build_format
from modyn.storage.ingest.file_indexer import FileJob
from modyn.storage.ingest.limits import IngestLimits
from modyn.storage.model.samples import BadRow, IndexedSamples
from modyn.testing.format_checks import payloads

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
MANY = 1000
"""Number of bad rows that may be skipped."""


@dataclass
class Row:
    """label, time: what the row means; None: it means nothing, and must be a problem. content: its bytes in the file, or its payload."""

    number: int
    label: float | None
    time: int | None
    content: bytes = b""
    begin: int = 0
    waits: bool = False
    """The row is unfinished: it must not be a sample yet, and must be reported as waiting."""


@dataclass
class WrongFile:
    """A file, how it is registered, and its rows. whole: what is wrong concerns all of it, so that no row need be named."""

    wrapper: str
    options: dict[str, Any]
    source: str
    rows: list[Row]
    content: bytes = b""
    table: pa.Table | None = None
    writing: dict[str, Any] = field(default_factory=dict)
    cut: int | None = None
    """Bytes of a Parquet file that are left."""
    whole: bool = False

    def write(self, path: Path) -> None:
        """Write it."""
        if self.table is not None:
            pq.write_table(self.table, path, **self.writing)
            path.write_bytes(path.read_bytes()[: self.cut])
        else:
            path.write_bytes(self.content)


def moment(seconds: int) -> dt.datetime:
    """The time as a datetime of UTC."""
    return EPOCH + dt.timedelta(seconds=seconds)


def written(seconds: int, spelling: str) -> str:
    """A time as a timestamp_format says."""
    per_second = PER_SECOND.get(spelling or "s")
    return str(seconds * per_second) if per_second else moment(seconds).strftime(spelling)


def day_of(seconds: int) -> int:
    """Midnight before it."""
    return seconds - seconds % 86_400


SPELLINGS = [
    "",
    "iso",
    "s",
    "ms",
    "us",
    "ns",
    "%d/%m/%Y %H:%M:%S",
    "%Y%m%d%H%M%S",
    "%d-%b-%Y %I:%M:%S %p",
    "%a, %d %b %Y %H:%M:%S %z",
]
"""Formats of the times of a file; iso needs none."""

WRONG_TIMES: dict[str, Callable[[int], tuple[str, int | None]]] = {
    "milliseconds": lambda t: (str(t * 1000), t),
    "microseconds": lambda t: (str(t * 10**6), t),
    "nanoseconds": lambda t: (str(t * 10**9), t),
    "day": lambda t: (moment(t).strftime("%Y%m%d"), day_of(t)),
    "second": lambda t: (moment(t).strftime("%Y%m%d%H%M%S"), t),
    "slashes": lambda t: (moment(t).strftime("%d/%m/%Y"), day_of(t)),
    "dots": lambda t: (moment(t).strftime("%d.%m.%Y %H:%M:%S"), t),
    "no_such_year": lambda _: ("10000-01-01", None),
    "no_such_day": lambda _: ("2013-02-30", None),
    "no_such_digits": lambda _: ("20130230", None),
    "no_such_hour": lambda _: ("2013-01-31 25:00", None),
    "no_time": lambda _: ("soon", None),
    "empty_time": lambda _: ("", None),
    "end_of_int64": lambda _: (str(2**63 - 1), None),
    "beyond_int64": lambda _: ("9" * 30, None),
    "open_end": lambda _: ("9999-12-31", None),
    "infinite_time": lambda _: ("inf", None),
}
"""Replacement of a time: its text, and its meaning; None: it must be a problem."""

WRONG_LABELS: dict[str, str] = {
    "empty_label": "",
    "word_label": "cat",
    "long_label": "9" * 400,
    "nan_label": "nan",
    "infinite_label": "inf",
    "hexadecimal_label": "0x10",
    "comma_label": "1;5",
}


def wrong_time(defect: str, time: int, spelling: str) -> tuple[str, int | None]:
    """What stands in place of a time, and what it means: of a file that says that digits are a number of units, they are that."""
    text, meaning = WRONG_TIMES[defect](time)
    if spelling in PER_SECOND and text.isdigit():
        seconds = int(text) // PER_SECOND[spelling]
        return text, seconds if seconds < 253_402_300_800 and int(text) < 2**63 else None
    return text, meaning


def random_rows(rng: random.Random, *, floats: bool) -> list[Row]:
    """Two rows or more of the years 1980 to 2024."""
    labels = (lambda: rng.choice([-1.5, 0.25, 1e10, 7.0])) if floats else (lambda: rng.choice([0, 1, -3, 2**62]))
    return [Row(i, labels(), rng.randrange(315_532_800, 1_704_067_200)) for i in range(rng.randrange(2, 9))]


def placed(lines: list[bytes], rows: list[Row], before: bytes = b"") -> bytes:
    """The bytes of a file of lines; each row learns its place in it."""
    content = before
    for row, line in zip(rows, lines, strict=True):
        row.begin, row.content = len(content), line
        content += line + b"\n"
    return content


CSV_STRUCTURE = [
    *("right", "blank_line", "lost_quote", "text_after_quote", "missing_field", "extra_field", "shifted_fields"),
    *("second_header", "carriage_returns", "utf16", "cut", "byte_order_mark"),
]


_WRONG_CELLS: dict[str, Callable[[list[str]], list[str]]] = {
    "lost_quote": lambda cells: [*cells[:3], cells[3][:-1]],
    "text_after_quote": lambda cells: [*cells[:3], cells[3] + "x"],
    "missing_field": lambda cells: [*cells[:2], *cells[3:]],
    "extra_field": lambda cells: [*cells, "more"],
    "shifted_fields": lambda cells: ["x", *cells],
    "second_header": lambda _: ["label", "time", "id", "note"],
}


def csv_file(rng: random.Random, defect: str) -> WrongFile:
    """A CSV file with the fields label, time, id, note."""
    floats, spelling = rng.random() < 0.3, rng.choice(SPELLINGS)
    rows = random_rows(rng, floats=floats)
    at = rng.randrange(1, len(rows))
    is_quoted = rng.random() < 0.3
    fields = []
    for row in rows:
        assert row.time is not None
        time = moment(row.time).strftime("%Y-%m-%d %H:%M:%S") if spelling == "iso" else written(row.time, spelling)
        # A quoted field has a separator in it.
        fields.append([str(row.label), f'"{time}"' if is_quoted or "," in time else time, f"id{row.number}", f'"n,{row.number}"'])
    bad, cells = rows[at], fields[at]
    if defect in WRONG_TIMES:
        assert bad.time is not None
        cells[1], bad.time = wrong_time(defect, bad.time, spelling)
    elif defect in WRONG_LABELS:
        cells[0], bad.label = WRONG_LABELS[defect], None
    elif defect in _WRONG_CELLS:
        fields[at], bad.label = _WRONG_CELLS[defect](cells), None
    header = rng.choice([b"", b"", b"label,time,id,note\n", b'"label, read",time,"id",note\n'])
    mark, blank = b"\xef\xbb\xbf" if defect == "byte_order_mark" else b"", b"\n" if defect == "blank_line" else b""
    content = _as_a_whole(rng, defect, placed([",".join(found).encode() for found in fields], rows, mark + header + blank), rows)
    options: dict[str, Any] = (
        {"label_column": "label, read"} if b'"' in header else {"label_index": 0, "ignore_first_line": bool(header)}
    )
    options["label_type"] = "float" if floats else "int"
    if spelling not in ("", "iso"):
        options["timestamp_format"] = spelling
    options["max_bad_rows"] = rng.choice([0, MANY])
    return WrongFile("CsvFileWrapper", options, "column:1", rows, content, whole=defect in ("carriage_returns", "utf16"))


def _as_a_whole(rng: random.Random, defect: str, content: bytes, rows: list[Row]) -> bytes:
    """The content of a file with a defect that concerns all of it, or its end."""
    match defect:
        case "carriage_returns":
            return content.replace(b"\n", b"\r")
        case "utf16":
            return content.decode().encode("utf-16")
        case "cut":
            rows[-1].label, rows[-1].waits = None, True
            return content[: rng.randrange(rows[-1].begin + 1, len(content) - 1)]
    return content


JSON_STRUCTURE = [
    *(
        "right",
        "cut_line",
        "joined_lines",
        "split_line",
        "trailing_comma",
        "single_quotes",
        "invalid_utf8",
        "duplicate_key",
        "duplicate_feature",
        "not_a_number",
        "arrow_infinity",
    ),
    *(
        "list_line",
        "number_line",
        "null_label",
        "null_time",
        "true_label",
        "true_time",
        "no_label",
        "no_time_field",
        "text_label",
    ),
    *("fraction_label", "carriage_returns", "utf16", "cut", "byte_order_mark"),
]


_ODD_FEATURES = ("duplicate_feature", "not_a_number", "arrow_infinity")
"""Defects of fields that are neither label nor time: the row is a sample, and readers of payloads see them."""


def json_file(rng: random.Random, defect: str) -> WrongFile:
    """A file of JSON lines with the fields y, t and id."""
    floats, spelling = rng.random() < 0.3, rng.choice(SPELLINGS)
    rows = random_rows(rng, floats=floats)
    at = rng.randrange(1, len(rows))
    objects: list[dict[str, Any]] = []
    for row in rows:
        assert row.time is not None
        time: Any = moment(row.time).isoformat() if spelling == "iso" else written(row.time, spelling)
        objects.append(
            {"y": row.label, "t": int(time) if time.isdigit() and rng.random() < 0.7 else time, "id": f"id{row.number}"}
        )
    bad, found = rows[at], objects[at]
    texts: dict[str, Callable[[bytes], bytes]] = {
        "cut_line": lambda line: line[: rng.randrange(1, len(line))],
        "split_line": lambda line: line.replace(b", ", b",\n", 1),
        "trailing_comma": lambda line: line.replace(b"}", b",}"),
        "single_quotes": lambda line: line.replace(b'"', b"'"),
        "invalid_utf8": lambda line: line.replace(b'"id', b'"\xff'),
        "duplicate_key": lambda line: line.replace(b"}", b', "y": 77}'),
        "duplicate_feature": lambda line: line.replace(b"}", b', "id": "again"}'),
        "not_a_number": lambda line: line.replace(b"}", b', "z": NaN}'),
        "arrow_infinity": lambda line: line.replace(b"}", b', "z": Inf}'),
        "list_line": lambda line: b"[" + line + b"]",
        "number_line": lambda _: b"7",
    }
    values: dict[str, tuple[str, Any]] = {
        "null_label": ("y", None),
        "null_time": ("t", None),
        "true_label": ("y", True),
        "true_time": ("t", True),
        "text_label": ("y", "7"),
    }
    if defect in WRONG_TIMES:
        assert bad.time is not None
        text, bad.time = wrong_time(defect, bad.time, spelling)
        found["t"] = int(text) if text.isdigit() and rng.random() < 0.5 else text
    elif defect in WRONG_LABELS:
        found["y"], bad.label = WRONG_LABELS[defect], None
    elif defect in values:
        found[values[defect][0]] = values[defect][1]
        bad.label = None
    elif defect in ("no_label", "no_time_field"):
        del found["y" if defect == "no_label" else "t"]
        bad.label = None
    elif defect == "fraction_label" and not floats:
        found["y"], bad.label = 1.5, None
    lines = [json.dumps(value).encode() for value in objects]
    if defect in texts:
        lines[at] = texts[defect](lines[at])
        bad.label = bad.label if defect in _ODD_FEATURES else None
    elif defect == "joined_lines":
        lines[at] = lines[at] + (b" " if rng.random() < 0.5 else b"") + lines[at - 1]
        bad.label = None
    content = placed(lines, rows, b"\xef\xbb\xbf" if defect == "byte_order_mark" else b"")
    content = _as_a_whole(rng, defect, content, rows)
    options = {"label_field": "y", "label_type": "float" if floats else "int", "max_bad_rows": rng.choice([0, MANY])}
    if spelling not in ("", "iso"):
        options["timestamp_format"] = spelling
    return WrongFile("JsonLinesFileWrapper", options, "field:t", rows, content, whole=defect in ("carriage_returns", "utf16"))


PARQUET_STRUCTURE = [
    *("right", "null_label", "null_time", "null_payload", "huge_label", "nan_label", "infinite_label", "text_labels"),
    *(
        "no_label",
        "no_time_column",
        "cut",
        "far_timestamp",
        "early_timestamp",
        "far_date",
        "far_int96",
        "early_int96",
        "no_times",
    ),
]


_KINDS = {
    "far_timestamp": "timestamp",
    "early_timestamp": "timestamp",
    "far_date": "date",
    "far_int96": "int96",
    "early_int96": "int96",
}
"""Kind of the time column that a defect needs."""
_RAW_TIMES: dict[str, tuple[int, pa.DataType, pa.DataType]] = {
    "far_timestamp": (2**63 - 1, pa.int64(), pa.timestamp("us")),
    "early_timestamp": (-(2**63) + 1, pa.int64(), pa.timestamp("us")),
    "far_date": (2**31 - 1, pa.int32(), pa.date32()),
    "far_int96": (253_402_214_400_000_000, pa.int64(), pa.timestamp("us")),
    "early_int96": (-14_831_769_600_000_000, pa.int64(), pa.timestamp("us")),
}
_BAD_LABELS: dict[str, Any] = {"null_label": None, "nan_label": math.nan, "infinite_label": math.inf, "huge_label": 2**64 - 1}
_WHOLE = ("no_label", "no_time_column", "text_labels", "cut", "no_times")


def parquet_file(rng: random.Random, defect: str) -> WrongFile:
    """A Parquet file with the columns x, y and t."""
    floats = defect in ("nan_label", "infinite_label") or (defect != "huge_label" and rng.random() < 0.3)
    rows = random_rows(rng, floats=floats)
    at = rng.randrange(len(rows))
    for row in rows:
        row.content = f"id{row.number}".encode()
    kind = _KINDS.get(defect) or rng.choice(["int", "float", "text", "timestamp", "date", "int96"])
    times, kind = _parquet_times(rng, defect, kind, rows, at)
    labels: list[Any] = [abs(row.label or 0) if defect == "huge_label" else row.label for row in rows]
    if defect in _BAD_LABELS:
        labels[at] = _BAD_LABELS[defect]
    for row, label in zip(rows, labels, strict=True):
        row.label = None if defect in _WHOLE or (row is rows[at] and defect in (*_BAD_LABELS, "null_payload")) else label
    label_type = pa.float64() if floats else pa.uint64() if defect == "huge_label" else pa.int64()
    label_column = pa.array(labels, label_type)
    contents = [None if row is rows[at] and defect == "null_payload" else row.content for row in rows]
    columns = {
        "x": pa.array(contents, pa.binary()),
        "y": label_column.cast(pa.string()) if defect == "text_labels" else label_column,
        "t": pa.array([0.0] * len(rows), pa.float32()) if defect == "no_times" else times,
    }
    columns.pop({"no_label": "y", "no_time_column": "t"}.get(defect, ""), None)
    options: dict[str, Any] = {"payload_columns": ["x"], "label_column": "y", "label_type": "float" if floats else "int"}
    writing: dict[str, Any] = {"row_group_size": rng.choice([1, 3, 100]), "use_deprecated_int96_timestamps": kind == "int96"}
    cut = rng.randrange(1, 200) if defect == "cut" else None
    return WrongFile(
        "ParquetFileWrapper", options, "column:t", rows, table=pa.table(columns), writing=writing, cut=cut, whole=defect in _WHOLE
    )


def _parquet_times(rng: random.Random, defect: str, kind: str, rows: list[Row], at: int) -> tuple[pa.Array, str]:
    """The column of times, of which row `at` learns what it means, and its kind."""
    text, bad = "", rows[at]
    assert bad.time is not None
    if defect in WRONG_TIMES:
        text, meaning = wrong_time(defect, bad.time, "")
        most = {"int": 2**63, "float": 2**53}.get(kind, 0)
        kind = kind if text.isdigit() and int(text) < most else "text"
    column = _times(rng, kind, [row.time or 0 for row in rows])
    if kind == "date":
        for row in rows:
            row.time = day_of(row.time or 0)
    values = column.to_pylist()
    if defect in WRONG_TIMES:
        values[at], bad.time = {"int": int, "float": float, "text": str}[kind](text), meaning
    elif defect == "null_time":
        values[at], bad.time = None, None
    elif defect in _RAW_TIMES:
        raw, held, shown = _RAW_TIMES[defect]
        column = column.cast(shown)
        found = [raw if i == at else value for i, value in enumerate(column.view(held).to_pylist())]
        bad.time = raw // 10**6 if defect == "early_int96" else None
        return pa.array(found, held).view(shown), kind
    return pa.array(values, column.type), kind


def _times(rng: random.Random, kind: str, times: list[int]) -> pa.Array:
    match kind:
        case "int":
            return pa.array(times, rng.choice([pa.int64(), pa.uint64()]))
        case "float":
            return pa.array([(time) + 0.5 for time in times])
        case "text":
            return pa.array([moment(time).isoformat() for time in times])
        case "date":
            return pa.array([moment(time).date() for time in times])
        case "int96":
            return pa.array([moment(time).replace(tzinfo=None) for time in times], pa.timestamp("us"))
    return pa.array([moment(time).replace(tzinfo=None) for time in times], pa.timestamp(rng.choice(["s", "ms", "us", "ns"])))


MAKERS: dict[str, tuple[Callable[[random.Random, str], WrongFile], list[str]]] = {
    "csv": (csv_file, [*CSV_STRUCTURE, *WRONG_TIMES, *WRONG_LABELS]),
    "json": (json_file, [*JSON_STRUCTURE, *WRONG_TIMES, *WRONG_LABELS]),
    "parquet": (parquet_file, [*PARQUET_STRUCTURE, *WRONG_TIMES]),
}
DEFECTS = [(kind, defect) for kind, (_, defects) in MAKERS.items() for defect in defects]


def why_wrong(folder: Path, kind: str, defect: str, seed: int) -> str:
    """Index a random file with this defect, and compare with what its rows mean. Returns: what is wrong with what was found; empty: nothing."""
    rng = random.Random(f"{kind} {defect} {seed}")
    made = MAKERS[kind][0](rng, defect)
    path = folder / f"{kind}-{defect}-{seed}.x"
    made.write(path)
    status = path.stat()
    built = build_format(made.wrapper, {**made.options, "file_extension": ".x"}, made.source)
    job = FileJob(
        LocalFiles(str(folder)),
        built,
        SeenFile(path.name, status.st_size, status.st_mtime_ns),
        limits=IngestLimits(future_tolerance_s=86_400.0),
        takes_unended=defect != "cut",
    )
    chunks: list[IndexedSamples] = []
    try:
        job.begin()
        chunks = list(job.samples(built.index(str(path))))
    except DataError as error:
        if all(row.label is not None and row.time is not None for row in made.rows) and defect in (
            "right",
            "blank_line",
            "byte_order_mark",
        ):
            return f"a right file is refused: {error}"
        return "" if _names_place(error.message, path, made) else f"the file is set aside without its path or the place: {error}"
    samples = list[tuple[bytes, float, int]]()
    for chunk in chunks:
        times = np.broadcast_to(np.asarray(chunk.timestamps), len(chunk)).tolist()
        samples += zip(payloads(built, path, chunk), chunk.labels.tolist(), times, strict=True)
    return _compare(made, samples, job.skipped, job.unended)


def _names_place(message: str, path: Path, made: WrongFile) -> bool:
    words = ("row ", "rows ", "line ", "record ", "sample at ", "byte ", "first line")
    return str(path) in message and (made.whole or any(word in message for word in words))


def _compare(made: WrongFile, samples: list[tuple[bytes, float, int]], skipped: Any, unended: str) -> str:
    by_content: dict[bytes, list[Row]] = {}
    for row in made.rows:
        by_content.setdefault(row.content, []).append(row)
    found = set[int]()
    for payload, label, time in samples:
        rows = [row for row in by_content.get(payload, []) if row.number not in found]
        if not rows:
            return f"{payload!r} is no row of the file"
        row = rows[0]
        if (label, time) != (row.label, row.time):
            return f"row {row.number}, {row.content!r}, is a sample with label {label} at {time}, and means {row.label} at {row.time}"
        found.add(row.number)
    begins = sorted(row.begin for row in made.rows if row.number in found)
    for row in made.rows:
        is_listed = any(_covers(bad, row, begins) for bad in skipped) or (row.waits and f"byte {row.begin} " in unended)
        if row.number not in found and not is_listed:
            return f"row {row.number}, {row.content!r}, has vanished"
    return ""


def _covers(bad: BadRow, row: Row, begins: list[int]) -> bool:
    """Whether a bad row begins in `row`, or before it with no sample between: a quote that is lost makes one row of several."""
    return bad.offset <= row.begin + len(row.content) and not any(bad.offset < begin <= row.begin for begin in begins)
