"""Tickets and answers keep their content over the wire, and foreign ones are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from modyn.errors import DataError, InvalidArgumentError, ModynError, NotFoundError, UnavailableError
from modyn.storage.flight.protocol import (
    VERSION,
    AnswerHead,
    PayloadRequest,
    answer_schema,
    error_from_flight,
    error_from_text,
    error_to_flight,
    error_to_text,
    from_record_batch,
    to_record_batch,
)
from modyn.storage.model.samples import OnMissing, Payloads, common_size


@given(st.lists(st.tuples(st.integers(), st.binary(max_size=9)), max_size=20), st.integers(0, 5), st.booleans())
def test_record_batches_keep_payloads(samples: list[tuple[int, bytes]], skip: int, float_labels: bool) -> None:
    keys = np.asarray([key % 2**62 for key, _ in samples], np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(p) for _, p in samples])]).astype(np.int64)
    data = np.frombuffer(b"".join(p for _, p in samples), np.uint8)
    labels = keys.astype(np.float64) if float_labels else keys
    batch = to_record_batch(Payloads(keys, labels, data, offsets), answer_schema(float_labels, "d-1")).slice(skip)
    back = from_record_batch(batch)
    assert [bytes(back.payload(i)) for i in range(len(back))] == [p for _, p in samples[skip:]]
    assert back.keys.tolist() == keys[skip:].tolist()
    assert back.labels.tolist() == labels[skip:].tolist()


@given(st.lists(st.integers(0, 3) | st.just(2), max_size=6), st.integers(0, 9))
def test_the_common_size_is_that_of_every_sample(sizes: list[int], first: int) -> None:
    offsets = first + np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    assert common_size(offsets) == (sizes[0] if len(set(sizes)) == 1 else None)


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.text(max_size=20),
    st.text(max_size=9),
    st.sampled_from(["raise", "skip"]),
    st.booleans(),
)
def test_tickets_keep_what_is_asked(
    keys: list[int], dataset: str, identity: str, on_missing: OnMissing, with_bytes: bool
) -> None:
    asked = PayloadRequest(dataset, on_missing, np.asarray(keys, np.int64), identity, with_bytes=with_bytes)
    request = PayloadRequest.from_ticket(asked.to_ticket().ticket)
    assert (request.dataset, request.identity, request.on_missing) == (dataset, identity, on_missing)
    assert request.with_bytes is with_bytes
    assert request.keys.tolist() == keys


@given(st.integers(0, 2**40), st.none() | st.integers(0, 2**40))
def test_heads_keep_their_numbers(done: int, size: int | None) -> None:
    head = AnswerHead(done, size)
    assert AnswerHead.from_bytes(head.to_bytes()) == head


@given(st.text(st.characters(), max_size=200))  # longer ones are cut
def test_heads_bring_errors(message: str) -> None:
    head = AnswerHead(3, error=error_to_text(DataError(message)))
    error = error_from_text(AnswerHead.from_bytes(head.to_bytes()).error)
    assert type(error) is DataError
    assert error.message == message.encode("utf-8", "backslashreplace").decode()
    assert error_from_text("SOMETHING NEW|text") is None


def test_what_is_not_ours_is_refused() -> None:
    good = {"version": VERSION, "dataset": "d", "identity": "", "on_missing": "skip"}
    for head in (
        {},
        {**good, "version": 1},
        {**good, "on_missing": "ask"},
        {"version": VERSION, "on_missing": "skip"},
        [good],
        7,
    ):
        with pytest.raises(InvalidArgumentError, match="same version"):
            PayloadRequest.from_ticket(json.dumps(head).encode() + b"\n")
    for ticket in (b"", b"\n", json.dumps(good).encode(), json.dumps(good).encode() + b"\n1234567", b"\xff\n"):
        with pytest.raises(InvalidArgumentError, match="same version"):
            PayloadRequest.from_ticket(ticket)
    for answer in (b"", b"x" * 12, AnswerHead(0).to_bytes() + b"\xff"):
        with pytest.raises(ModynError, match="same version"):
            AnswerHead.from_bytes(answer)


def test_flight_errors_are_translated() -> None:
    for error in (DataError("a|b"), NotFoundError("ünï"), DataError("bad\udcff")):
        back = error_from_flight(error_to_flight(error), "here")
        assert type(back) is type(error)
    for lost in (flight.FlightTimedOutError("x"), flight.FlightCancelledError("x"), flight.FlightInternalError("RST_STREAM")):
        assert isinstance(error_from_flight(lost, "here"), UnavailableError)
