"""Every message of an exchange says after the wire what it said before, and what is not ours is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from modyn.errors import DataError, InvalidArgumentError, ModynError, NotFoundError, UnavailableError
from modyn.storage.flight.protocol import (
    AnswerHead,
    Kind,
    Question,
    error_from_flight,
    error_from_text,
    error_to_flight,
    error_to_text,
    from_record_batch,
    keys_from_batch,
    keys_to_batch,
    number_from_bytes,
    number_to_bytes,
    payload_schema,
    to_record_batch,
)
from modyn.storage.model.samples import Payloads, common_size


@given(st.lists(st.tuples(st.integers(), st.binary(max_size=9)), max_size=20), st.integers(0, 5), st.booleans())
def test_record_batches_keep_payloads(samples: list[tuple[int, bytes]], skip: int, float_labels: bool) -> None:
    keys = np.asarray([key % 2**62 for key, _ in samples], np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(p) for _, p in samples])]).astype(np.int64)
    data = np.frombuffer(b"".join(p for _, p in samples), np.uint8)
    labels = keys.astype(np.float64) if float_labels else keys
    batch = to_record_batch(Payloads(keys, labels, data, offsets), payload_schema(float_labels)).slice(skip)
    back = from_record_batch(batch)
    assert [bytes(back.payload(i)) for i in range(len(back))] == [p for _, p in samples[skip:]]
    assert back.keys.tolist() == keys[skip:].tolist()
    assert back.labels.tolist() == labels[skip:].tolist()


@given(st.lists(st.integers(0, 3) | st.just(2), max_size=6), st.integers(0, 9))
def test_the_common_size_is_that_of_every_sample(sizes: list[int], first: int) -> None:
    offsets = first + np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    assert common_size(offsets) == (sizes[0] if len(set(sizes)) == 1 else None)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.text(min_size=1, max_size=20), st.sampled_from(["raise", "skip"]))
def test_requests_keep_what_is_asked(keys: list[int], dataset: str, on_missing: str) -> None:
    question = Question(dataset, on_missing)  # type: ignore[arg-type]
    assert Question.from_schema(question.schema()) == question
    assert keys_from_batch(keys_to_batch(np.asarray(keys, np.int64), question.schema())).tolist() == keys


@given(st.sampled_from(Kind), st.integers(-1, 2**40), st.integers(0, 2**40), st.none() | st.integers(0, 2**40))
def test_heads_keep_their_numbers(kind: Kind, request: int, done: int, size: int | None) -> None:
    head = AnswerHead(kind, request, done, size)
    assert AnswerHead.from_bytes(head.to_bytes()) == head
    assert number_from_bytes(number_to_bytes(done)) == done


@given(st.text(st.characters(), max_size=200))  # longer ones are cut
def test_heads_bring_errors(message: str) -> None:
    head = AnswerHead(Kind.FAILED, error=error_to_text(DataError(message)))
    error = error_from_text(AnswerHead.from_bytes(head.to_bytes()).error)
    assert type(error) is DataError
    assert error.message == message.encode("utf-8", "backslashreplace").decode()
    assert error_from_text("SOMETHING NEW|text") is None


def test_what_is_not_ours_is_refused() -> None:
    key = pa.field("key", pa.int64())
    good = {"dataset": "d", "on_missing": "skip"}
    for schema in (
        pa.schema([]),
        pa.schema([key]),
        pa.schema([key], {"dataset": "d"}),
        pa.schema([key], {**good, "on_missing": "ask"}),
        pa.schema([key], {**good, "dataset": b"\xff"}),
        pa.schema([pa.field("key", pa.int32())], good),
        pa.schema([key, key], good),
    ):
        with pytest.raises(InvalidArgumentError, match="same version"):
            Question.from_schema(schema)
    with pytest.raises(InvalidArgumentError, match="null"):
        keys_from_batch(pa.record_batch([pa.array([1, None], pa.int64())], schema=pa.schema([key], good)))
    with pytest.raises(InvalidArgumentError, match="number"):
        number_from_bytes(b"")
    for head in (b"", b"x" * 32, AnswerHead(Kind.ALIVE).to_bytes() + b"\xff"):
        with pytest.raises(ModynError, match="same version"):
            AnswerHead.from_bytes(head)


def test_flight_errors_are_translated() -> None:
    for error in (DataError("a|b"), NotFoundError("ünï"), DataError("bad\udcff")):
        back = error_from_flight(error_to_flight(error), "here")
        assert type(back) is type(error)
    for lost in (flight.FlightTimedOutError("x"), flight.FlightCancelledError("x"), flight.FlightInternalError("RST_STREAM")):
        assert isinstance(error_from_flight(lost, "here"), UnavailableError)
