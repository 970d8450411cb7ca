"""JSON Lines, against Python's json module on every line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.errors import ConfigError, DataError
from modyn.storage.formats import build_format
from modyn.storage.formats.json_lines import JsonLinesFormat
from modyn.testing.format_checks import read_file, resume_point


def lines_format(timestamp_source: str = "", **config: object) -> JsonLinesFormat:
    built = build_format("JsonLinesFileWrapper", {"label_field": "y", **config}, timestamp_source)
    assert isinstance(built, JsonLinesFormat)
    return built


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abxy"), inner, max_size=2),
    max_leaves=4,
).filter(lambda value: "Infinity" not in json.dumps(value))


@settings(max_examples=2 * settings().max_examples)
@given(
    rows=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.dictionaries(st.sampled_from("abcx"), values, max_size=3))),
    nested=st.booleans(),
    line_break=st.sampled_from(["\n", "\r\n"]),
    blanks=st.lists(st.sampled_from(["", "  ", "\t"]), max_size=3),
    spaces=st.sampled_from(["", " "]),
    last_line_break=st.booleans(),
    ascii_only=st.booleans(),
)
def test_lines_and_labels_are_those_that_python_reads(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, dict[str, Any]]],
    nested: bool,
    line_break: str,
    blanks: list[str],
    spaces: str,
    last_line_break: bool,
    ascii_only: bool,
) -> None:
    lines = [
        spaces + json.dumps({**rest, "m": {"a": 1, "y": y}} if nested else {**rest, "y": y}, ensure_ascii=ascii_only)
        for y, rest in rows
    ]
    mixed = [*blanks[:1], *lines[:1], *blanks[1:2], *lines[1:], *blanks[2:]]
    content = line_break.join(mixed) + line_break * last_line_break
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(content.encode())
    found = read_file(lines_format(label_field="m.y" if nested else "y"), path)
    assert found.samples == [(line.encode(), y) for line, (y, _) in zip(lines, rows, strict=True)]


@settings(max_examples=4 * settings().max_examples)
@given(
    text=st.lists(st.sampled_from(['{"y":', "1", "}", "{", " ", "\n", '{"y":2}', ",", '"a":', "[", "]", '"', "\r"]), max_size=12)
)
def test_any_text_is_read_line_by_line_as_python_reads_it(tmp_path_factory: pytest.TempPathFactory, text: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_text("".join(text), newline="")
    try:
        lines = [line.removesuffix("\r") for line in "".join(text).split("\n")]
        expected = [(line.encode(), json.loads(line)["y"]) for line in lines if line.strip()]
        valid = all(type(label) is int for _, label in expected)
    except (ValueError, TypeError, KeyError):
        valid = False
    if valid:
        assert read_file(lines_format(), path).samples == expected
    else:
        with pytest.raises(DataError, match=r"a.jsonl.* line \d+ at byte \d+"):
            read_file(lines_format(), path)


@pytest.mark.parametrize(
    "number", ["0.1", "-1e-300", "123456789012345680", "5", "1.7976931348623157e308", "4.9e-324", "0.30000000000000004"]
)
def test_fractions_are_those_that_python_reads(tmp_path: Path, number: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"y": {number}}}\n')
    assert [label for _, label in read_file(lines_format(label_type="float"), path).samples] == [float(number)]


def test_times_in_a_field_may_be_of_both_kinds(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"y": 1, "m": {"t": "1970-01-02"}}\n{"y": 2, "m": {"t": "1970-01-01T00:00:01.5Z"}}\n')
    built = lines_format("field:m.t")
    assert read_file(built, path).timestamps == [86400, 1]
    with path.open("a") as file:
        file.write('{"y": 3, "m": {"t": -7}}\n')
    assert read_file(built, path).timestamps == [86400, 1, -7]
    path.write_text('{"y": 3, "m": {"t": -7}}\n')
    assert read_file(built, path).timestamps == [-7]


@pytest.mark.parametrize(
    ("content", "config", "source", "message"),
    [
        (b'{"y":1}\n\n{"y":"a"}\n', {}, "", "line 3 at byte 9: the label 'y' is a text, 'a', not a whole number"),
        (b'{"y":1}\n{"y":1.0}\n', {}, "", "line 2 at byte 8: the label 'y' is a fraction, '1.0', not a whole number"),
        (b'{"y":true}', {}, "", "the label 'y' is true or false, not"),
        (b'{"y":null}', {}, "", "the label 'y' is null"),
        (b'{"y":9223372036854775808}', {}, "", "the label 'y' '9223372036854775808' is out of the range of int64;"),
        (b'{"y":1e999}', {"label_type": "float"}, "", "out of the range of float64"),
        (b'{"y":NaN}', {"label_type": "float"}, "", "the label 'y' is NaN, not a number"),
        (b'{"y":1, "t":NaN}', {}, "field:t", "the time 't' is not a finite number"),
        (b'{"y":1, "z":0, "y":2}', {}, "", "the field 'y' occurs in it more than once"),
        (b'{"m":{"y":1, "y":1}}', {"label_field": "m.y"}, "", "the field 'm.y' occurs in it more than once"),
        (b'{"m":{"z":1}}', {"label_field": "m.y"}, "", "there is no field 'm.y'"),
        (b'{"m":1}', {"label_field": "m.y"}, "", "there is no field 'm.y'"),
        (b"[1]\n", {}, "", "it is not a JSON object but a list"),
        (b'{"y":1', {}, "", "it is not JSON: Expecting ',' delimiter at its character 6"),
        (b'{"y":1} {"y":2}\n', {}, "", "it is not JSON: Extra data"),
        (b'{"y":1, \r "x":2}\n{"y":1.0}\n', {}, "", "line 3 at byte 17: the label 'y' is a fraction"),  # As editors count.
        (b'{"y":\n1}\n', {}, "", "line 1 at byte 0: it is not JSON"),
        (b'{"y":1, "x":"\xff"} \n', {}, "", "it is not UTF-8"),
        (b'{"y":1, "t":"soon"}\n', {}, "field:t", "the time 't' 'soon' is neither a time in seconds since 1970 nor ISO 8601"),
        (b'{"y":1, "t":true}\n', {}, "field:t", "the time 't' is true or false, neither a number nor a text"),
    ],
)
def test_errors_name_file_line_byte_and_reason(
    tmp_path: Path, content: bytes, config: dict[str, object], source: str, message: str
) -> None:
    path = tmp_path / "bad file.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_file(lines_format(source, **config), path)
    assert str(path) in caught.value.message


ODD_VALUES = [
    "NaN",
    "-Infinity",
    "Inf",
    "-NaN",
    "[" * 5000 + "]" * 5000,
    "9" * 5000,
    "1e999",
    '"\\ud800"',
    '{"a": 1, "a": 2}',
    '1, "z": 2',
]


@pytest.mark.parametrize("others", ["", '{"y": "wrong"}\n'], ids=["alone", "with_a_bad_line"])
def test_a_line_is_read_alike_alone_and_among_others(tmp_path: Path, others: str) -> None:
    path = tmp_path / "a.jsonl"
    lines = [f'{{"y": {number}, "t": 5, "z": {value}}}' for number, value in enumerate(ODD_VALUES)]
    path.write_text(others + "\n".join(lines) + "\n")
    found = read_file(lines_format("field:t", max_bad_rows=1), path)
    assert found.samples == [(line.encode(), number) for number, line in enumerate(lines)]


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_blocks_and_chunks_together_are_the_file(tmp_path: Path, size: int) -> None:
    lines = [json.dumps({"y": i, "x": "x" * (i % 50)}).encode() for i in range(100)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    built = lines_format()
    built.block_bytes, built.chunk_rows = size, 7
    assert read_file(built, path).samples == [(line, i) for i, line in enumerate(lines)]
    chunks = list(built.index(str(path)))
    assert max(len(chunk) for chunk in chunks) <= 7
    ends = np.cumsum([len(chunk) for chunk in chunks])
    for chunk, count in zip(chunks[::8], ends[::8].tolist(), strict=True):  # the end of a chunk is a place to continue from
        resume = resume_point(path, chunk.end, count)
        assert [label for _, label in read_file(built, path, resume).samples] == list(range(count, 100))


def test_a_line_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"y":1}\n' + " " * 300)
    built = lines_format()
    built.block_bytes, built.max_line_bytes = 10, 100
    with pytest.raises(DataError, match="line 2 at byte 8: it is longer than 100 bytes"):
        read_file(built, path)


@pytest.mark.parametrize(
    ("config", "source", "message"),
    [
        ({"label_field": "a..b"}, "", "label_field"),
        ({}, "column:y", "for other formats"),
        ({}, "field:8", "for other formats"),
        ({}, "field:y.t", "one holds the other"),
        ({}, "field:y", "one holds the other"),
        ({}, "field:", "is not known"),
    ],
)
def test_wrong_options_are_refused(config: dict[str, object], source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lines_format(source, **config)
