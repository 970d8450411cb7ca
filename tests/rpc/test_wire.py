"""Converters of records and protos lose nothing."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import example, given
from hypothesis import strategies as st

from modyn.errors import InvalidArgumentError
from modyn.evaluator.client import EvaluationRequest, EvaluationResult, EvaluationStatus
from modyn.model_storage.client import ModelHeader, StoredModelInfo
from modyn.proto import evaluator_pb2, model_storage_pb2, selector_pb2, supervisor_pb2, trainer_server_pb2
from modyn.proto.common_pb2 import Column, SampleColumns
from modyn.records import (
    EvalInterval,
    FeedbackHeader,
    FeedbackRows,
    JobState,
    KeysAndWeights,
    ModelVersion,
    RunId,
    SampleBatch,
    TriggerSetInfo,
)
from modyn.rpc.arrays import (
    batch_from_proto,
    batch_to_proto,
    feedback_from_proto,
    feedback_to_proto,
    keys_from_bytes,
    keys_to_bytes,
    pack_column,
    share_from_proto,
    share_to_proto,
    unpack_column,
)
from modyn.rpc.wire import from_message, from_struct, to_message, to_struct
from modyn.supervisor.client import Run, RunMode, RunState, TriggerRecord, TriggerState
from modyn.trainer_server.client import TrainingRequest, TrainingStatus
from modyn.trainer_server.result import (
    BadSampleNote,
    DownsamplingResult,
    GuardResult,
    Rollback,
    TrainingCounts,
    TrainingLosses,
    TrainingResult,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=5))
@example({"text that looks marked": ["$float:", "$int64:1", "$text:", "$"]})
def test_a_section_survives_the_wire(section: dict[str, object]) -> None:
    back = from_struct(to_struct(section))
    assert back == section


def test_a_number_too_large_for_exact_integers_keeps_its_type() -> None:
    """A learning rate of 1e38 stays a float: PyTorch would refuse an integer of 39 digits."""
    back = from_struct(to_struct({"lr": 1e38, "negative": -1e300, "seed": 2**63 - 1, "whole": 3.0}))
    assert back == {"lr": 1e38, "negative": -1e300, "seed": 2**63 - 1, "whole": 3}
    assert {name: type(value) for name, value in back.items()} == {"lr": float, "negative": float, "seed": int, "whole": int}


def test_scores_arrive_in_order_of_their_names_in_every_process() -> None:
    """The order of a protobuf map differs between processes, and so would the order of columns of two runs."""
    names = sorted(f"gradient_{number}" for number in range(1, 30))
    header = FeedbackHeader(RunId("r"), 0, "", 1, 1, dict.fromkeys(reversed(names), 1))
    assert list(from_message(to_message(header, selector_pb2.FeedbackHeader), FeedbackHeader).widths) == names
    rows = FeedbackRows(np.zeros(1, np.int64), np.zeros(1, np.int32), dict.fromkeys(names, np.ones((1, 1), np.float32)))
    assert list(feedback_from_proto(feedback_to_proto(rows, 0)).scores) == names


@given(st.lists(st.tuples(INT64, INT64, INT64), max_size=20), st.booleans())
def test_a_batch_survives_the_wire(rows: list[tuple[int, int, int]], float_labels: bool) -> None:
    keys, timestamps, labels = (np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else ([], [], [])))
    batch = SampleBatch(keys, timestamps, labels.astype(np.float64) if float_labels else labels)
    back = batch_from_proto(batch_to_proto(batch))
    for name in ("keys", "timestamps", "labels"):
        sent, received = getattr(batch, name), getattr(back, name)
        assert sent.dtype == received.dtype
        np.testing.assert_array_equal(sent, received)


def test_big_endian_arrays_are_sent_little_endian() -> None:
    assert keys_from_bytes(keys_to_bytes(np.array([1, 2], ">i8"))).tolist() == [1, 2]


def test_broken_columns_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="7 bytes"):
        keys_from_bytes(b"1234567")
    with pytest.raises(InvalidArgumentError, match="does not hold 1 numbers"):
        batch_from_proto(
            SampleColumns(num_samples=1, keys=Column(width=8, data=bytes(8)), timestamps=Column(width=8, data=bytes(16)))
        )
    with pytest.raises(InvalidArgumentError, match="3 bytes"):
        unpack_column(Column(width=3, data=bytes(6)), 2)
    with pytest.raises(InvalidArgumentError, match="does not hold"):
        unpack_column(Column(stride=1), 2**40)


@given(
    st.lists(INT64, max_size=30)
    | st.builds(
        lambda first, step, n: [first + step * i for i in range(n)], st.integers(-9, 9), st.integers(-9, 9), st.integers(0, 30)
    )
)
def test_numbers_survive_packing(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    column = pack_column(values)
    np.testing.assert_array_equal(unpack_column(column, len(values)), values)
    span = max(numbers) - min(numbers) if numbers else 0
    assert len(column.data) <= len(numbers) * (
        1 + (span.bit_length() > 8) + 2 * (span.bit_length() > 16) + 4 * (span.bit_length() > 32)
    )


@given(st.lists(st.tuples(INT64, st.floats(width=32)), max_size=20))
def test_a_share_survives_the_wire(rows: list[tuple[int, float]]) -> None:
    share = KeysAndWeights(np.array([key for key, _ in rows], np.int64), np.array([weight for _, weight in rows], np.float32))
    back = share_from_proto(share_to_proto(share))
    np.testing.assert_array_equal(back.keys, share.keys)
    assert back.weights.dtype == np.float32
    assert back.weights.tobytes() == share.weights.tobytes()


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be sent"):
        to_struct({"a": object()})


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Run, supervisor_pb2.Run),
        (TriggerRecord, supervisor_pb2.TriggerRecord),
        (TrainingRequest, trainer_server_pb2.TrainingRequest),
        (TrainingStatus, trainer_server_pb2.TrainingStatus),
        (EvaluationRequest, evaluator_pb2.EvaluationRequest),
        (EvaluationStatus, evaluator_pb2.EvaluationStatus),
        (EvaluationResult, evaluator_pb2.EvaluationResult),
        (ModelHeader, model_storage_pb2.ModelHeader),
        (ModelVersion, model_storage_pb2.ModelVersion),
        (StoredModelInfo, model_storage_pb2.StoredModelInfo),
        (TriggerSetInfo, selector_pb2.TriggerSet),
    ],
)
def test_a_record_and_its_message_have_the_same_fields(record: type[Any], message: type[Message]) -> None:
    assert {field.name for field in dataclasses.fields(record)} == set(message.DESCRIPTOR.fields_by_name)
    for name, hint in get_type_hints(record).items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if type(None) in get_args(hint):
            assert field.has_presence, f"{name} may be None: make it optional in the message"


OPTIONAL_INT = st.none() | INT64
INTERVALS = st.builds(EvalInterval, INT64, INT64, INT64)

FLOATS = st.floats(allow_nan=False)
TRAINING_RESULTS = st.builds(
    TrainingResult,
    counts=st.builds(TrainingCounts, INT64, ignored_labels=OPTIONAL_INT),
    losses=st.builds(TrainingLosses, st.none() | FLOATS, batch_losses=st.lists(st.tuples(INT64, FLOATS), max_size=2).map(tuple)),
    seconds=st.dictionaries(st.text(max_size=6), FLOATS, max_size=3),
    warnings=st.lists(st.text(min_size=1), max_size=2).map(tuple),
    bad_samples=st.lists(st.builds(BadSampleNote, INT64, st.text()), max_size=2).map(tuple),
    downsampling=st.none() | st.builds(DownsamplingResult, num_candidates=INT64),
    step_guard=st.none() | st.builds(GuardResult, rollbacks=st.tuples(st.builds(Rollback, INT64, INT64, FLOATS, FLOATS))),
)


@given(
    st.builds(
        Run,
        state=st.sampled_from(RunState),
        mode=st.sampled_from(RunMode),
        submitted_at=st.floats(allow_nan=False),
        to_timestamp=OPTIONAL_INT,
        error=st.text(),
    ),
    st.builds(
        TriggerRecord,
        **dict.fromkeys(["trigger_id", "position", "first_timestamp", "last_timestamp", "fired_at_timestamp"], INT64),
        **dict.fromkeys(["num_keys", "model_id", "parent_model_id"], OPTIONAL_INT),
        state=st.sampled_from(TriggerState),
        started_at=st.floats(allow_nan=False),
        finished_at=st.none() | st.floats(allow_nan=False),
        weights_sha256=st.none() | st.text(),
        training_result=TRAINING_RESULTS,
        seconds=st.dictionaries(st.text(max_size=6), st.floats(allow_nan=False), max_size=3),
    ),
    st.builds(EvaluationRequest, *[st.just(RunId("r")), INT64, INT64, st.text(), st.just({}), st.tuples(INTERVALS, INTERVALS)]),
    st.sampled_from(JobState),
)
def test_records_survive_the_wire(run: Run, trigger: TriggerRecord, request: EvaluationRequest, state: JobState) -> None:
    sent_as: list[tuple[Any, type[Message]]] = [
        (run, supervisor_pb2.Run),
        (trigger, supervisor_pb2.TriggerRecord),
        (request, evaluator_pb2.EvaluationRequest),
        (EvaluationStatus("id", state), evaluator_pb2.EvaluationStatus),
    ]
    for record, message in sent_as:
        sent = message.FromString(to_message(record, message).SerializeToString())
        assert from_message(sent, type(record)) == record
