"""Payloads become the columns that they hold, and a bad one is named by row, column and value."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.base import load_section
from modyn.errors import ConfigError, DataError
from modyn.preprocessing import ColumnParser, ColumnSchema

COLUMNS = {"n": "number", "c": "category", "t": "text"}


def parser(**options: Any) -> ColumnParser:
    return ColumnParser(load_section(ColumnSchema, {"columns": COLUMNS, **options}, "preprocessing"))


CSV = parser(format="csv", names=["label", "n", "c", "t"])
JSON = parser(format="json")
VISIBLE = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=5)
ROWS = st.lists(st.tuples(st.none() | st.floats(-1e9, 1e9), st.none() | VISIBLE, st.none() | VISIBLE), max_size=6)


def parsed(of: ColumnParser, payloads: list[bytes]) -> list[tuple[Any, ...]]:
    columns = of.parse(payloads)
    assert list(columns) == list(COLUMNS)
    return list(zip(*(column.to_pylist() for column in columns.values()), strict=True))


@given(rows=ROWS)
def test_csv_rows(rows: list[tuple[Any, ...]]) -> None:
    payloads = []
    for row in rows:
        line = io.StringIO()
        csv.writer(line).writerow([0, *("" if value is None else value for value in row)])
        payloads.append(line.getvalue().encode())
    assert parsed(CSV, payloads) == rows


@given(rows=ROWS, pretty=st.booleans())
def test_json_objects(rows: list[tuple[Any, ...]], pretty: bool) -> None:
    objects = [{"more": [1], **dict(zip(COLUMNS, row, strict=True))} for row in rows]
    payloads = [json.dumps(found, indent=2 if pretty else None).encode() for found in objects]
    assert parsed(JSON, payloads) == rows


def test_fields_that_are_absent_and_categories_that_are_numbers() -> None:
    payloads = [b'{"n": 1, "c": 7}', b'{"n": true, "c": "x", "t": false}', b"{}", b'{"n": 1e999, "c": 12345678901234567890}']
    inf = float("inf")
    assert parsed(JSON, payloads) == [(1, "7", None), (1, "x", "false"), (None, None, None), (inf, "12345678901234567890", None)]


def test_other_separators_and_quoted_line_breaks() -> None:
    found = parser(format="csv", names=["t", "n", "c"], separator="\t")
    assert parsed(found, [b'"a\nb"\t1\tx', b"\t\t"]) == [(1, "x", "a\nb"), (None, None, None)]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"0,two,c,t", "row 1, column 'n': 'two' is no number; correct it, or declare the column as category"),
        (b"0,1,c", "row 1, '0,1,c', is no CSV row as declared"),
        (b"0,1,c,t,5", "row 1, '0,1,c,t,5', is no CSV row as declared"),
        (b"0,1,c,t\n0,2,c,t", "has 2 rows; a sample is one row"),
        (b"", "row 1 is empty; a sample is one row with the fields label, n, c, t"),
        (b"0,1,\xff,t", "row 1, "),
    ],
)
def test_a_bad_csv_row_is_named(payload: bytes, message: str) -> None:
    with pytest.raises(DataError) as raised:
        CSV.parse([b"0,1,c,t", payload, b"0,1,c,t"])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b'{"n": "two"}', "row 1, column 'n': \"two\" is no number; correct it, or declare the column as category"),
        (b'{"c": 1.5}', "row 1, column 'c': 1.5 is no text or whole number"),
        (b'{"t": ["x"]}', "row 1, column 't': [\"x\"] is no text or whole number"),
        (b"[1]", "row 1, '[1]', is no JSON object"),
        (b'{"n": 1', "row 1, '{\"n\": 1', is no JSON"),
        (b"", "row 1, '', is no JSON"),
        (b'{"n": 1} {"n": 2}', "is no JSON"),
        (b'{"c": "\xff"}', "is no JSON"),
    ],
)
def test_a_bad_json_row_is_named(payload: bytes, message: str) -> None:
    with pytest.raises(DataError) as raised:
        JSON.parse([b'{"n": 1}', payload, b"{}"])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "preprocessing.format: is required to read payloads"),
        ({"format": "csv"}, "preprocessing.names: is required with `format: csv`"),
        ({"format": "json", "names": ["n"]}, "preprocessing.names: only `format: csv` has names"),
        ({"format": "csv", "names": ["n", "n", "c", "t"]}, "preprocessing.names: 'n' stands twice"),
        ({"format": "csv", "names": ["n", "c", "text"]}, "preprocessing.columns.t: no field has this name"),
        ({"format": "xml"}, "preprocessing.format: 'xml' is wrong"),
        ({"columns": {"n": "float"}}, "preprocessing.columns.n: 'float' is wrong"),
    ],
)
def test_a_wrong_schema_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parser(**options)
    assert message in str(raised.value)
