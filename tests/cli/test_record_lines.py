"""Lines of records: the values that are read, and the messages for invalid lines."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.cli.record_lines import CALL_RECORDS, parse_record, read_calls, read_labels
from modyn.errors import DataError, NotFoundError
from modyn.storage.client import NewRecord


@given(
    key=st.text(min_size=1),
    label=st.integers(-(2**63), 2**63 - 1),
    payload=st.binary(),
    timestamp=st.none() | st.integers(1_000_000_000, 99_999_999_999),
)
def test_bytes_come_back(key: str, label: int, payload: bytes, timestamp: int | None) -> None:
    line = {"key": key, "label": label, "payload_base64": base64.b64encode(payload).decode(), "timestamp": timestamp}
    assert parse_record(json.dumps(line).encode()) == NewRecord(key, payload, label, timestamp)


def test_the_kinds_of_payload() -> None:
    assert parse_record(b'{"key": "a", "label": 0.5, "payload": "\\u00e4"}') == NewRecord("a", "ä".encode(), 0.5)
    found = parse_record(b'{"key": "a", "label": 1, "features": {"b": [1, 2.5], "a": "\\u00e4"}}')
    assert found.payload == '{"b":[1,2.5],"a":"ä"}'.encode()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[1]", "it is not a JSON object"),
        (b'{"label": 1, "payload": ""}', "'key' is missing; it must be a text"),
        (b'{"key": 7, "label": 1, "payload": ""}', "'key' is 7"),
        (
            b'{"key": "a", "label": "1", "payload": ""}',
            "'label' is '1'; it must be a number; leave it out if it is not known yet",
        ),
        (b'{"key": "a", "label": true, "payload": ""}', "'label' is True"),
        (b'{"key": "a", "label": NaN, "payload": ""}', "NaN is not a JSON number"),
        (b'{"key": "a", "label": 1}', "it has no payload; give one of payload, payload_base64, features"),
        (b'{"key": "a", "label": 1, "payload": "", "features": {}}', "it has payload and features; give one of"),
        (b'{"key": "a", "label": 1, "features": [1]}', "'features' is [1]; it must be an object"),
        (b'{"key": "a", "label": 1, "payload": 3}', "'payload' is 3; it must be a text"),
        (b'{"key": "a", "label": 1, "payload_base64": "*"}', "'payload_base64' is not Base64"),
        (
            b'{"key": "a", "label": 1, "payload": "", "timestamp": true}',
            "'timestamp' is true or false, neither a number nor a text",
        ),
        (
            b'{"key": "a", "label": 1, "payload": "", "timestamp": 20130131}',
            "'timestamp' '20130131' is most likely not a time in seconds since 1970; write",
        ),
        (b'{"key": "a", "label": 1, "payload": "", "timestmp": 1}', "there is no field 'timestmp', did you mean 'timestamp'?"),
    ],
)
def test_a_line_that_is_not_a_record_is_refused(line: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"key": "first", "label": 1, "payload": "x"}\n\n' + line + b"\n")
    found: list[NewRecord] = []
    with pytest.raises(DataError) as caught:
        for records in read_calls(path):
            found += records
    assert f"{path}, line 3: " in caught.value.message
    assert message in caught.value.message
    assert "The lines before it were appended" in caught.value.message
    assert found == [NewRecord("first", b"x", 1)]


def test_calls_are_of_bounded_size(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    lines = [json.dumps({"key": str(i), "label": i, "payload": "x"}) for i in range(2 * CALL_RECORDS + 5)]
    path.write_text("\n".join(lines))
    assert [len(records) for records in read_calls(path)] == [CALL_RECORDS, CALL_RECORDS, 5]
    path.write_text("\n".join(json.dumps({"key": str(i), "label": i, "payload": "x" * (3 << 20)}) for i in range(3)))
    assert [len(records) for records in read_calls(path)] == [2, 1]
    with pytest.raises(NotFoundError, match="there is no file"):
        list(read_calls(tmp_path / "none"))


@pytest.mark.parametrize("time", [1359590400, 1359590400.5, "2013-01-31", "2013-01-31T01:00:00+01:00"])
def test_a_time_is_written_as_in_files(time: object) -> None:
    line = json.dumps({"key": "a", "label": 1, "payload": "", "timestamp": time}).encode()
    assert parse_record(line).timestamp == 1359590400


def test_numbers_are_seconds_where_the_dataset_says_so(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(
        "".join(json.dumps({"key": "a", "payload": "", "timestamp": time}) + "\n" for time in (20130131, "2013-01-31"))
    )
    (records,) = read_calls(path, "s")
    assert [record.timestamp for record in records] == [20130131, 1359590400]


@pytest.mark.parametrize("line", [b'{"key": "a", "payload": "x"}', b'{"key": "a", "label": null, "payload": "x"}'])
def test_a_label_that_comes_later_is_left_out(line: bytes) -> None:
    assert parse_record(line) == NewRecord("a", b"x", None)


def test_labels_come_in_groups_without_a_key_twice(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_bytes(b'{"key": "a", "label": 1}\n{"key": "b", "label": 0.5}\n{"key": "a", "label": 2}\n')
    assert list(read_labels(path)) == [{"a": 1, "b": 0.5}, {"a": 2}]
    for line, message in (
        (b'{"key": "a"}', "'label' is missing"),
        (b'{"label": 1}', "'key' is missing"),
        (b'{"key": "a", "label": 1, "payload": ""}', "no field"),
    ):
        path.write_bytes(b'{"key": "first", "label": 1}\n' + line)
        found: list[dict[str, float]] = []
        with pytest.raises(DataError, match=message) as caught:
            found.extend(read_labels(path))
        assert "line 2" in str(caught.value)
        assert found == [{"first": 1}]
