"""Labels and features in any order: each observation is appended once, within bounds."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from modyn.serving.infer import InferAnswer, InferRequest
from modyn.serving.observation_join import JoinLimits, ObservationJoin, RequestFeatures
from modyn.serving.observation_router import ObservationRouter
from modyn.serving.observations import ObservationIntake
from modyn.serving.signature import ModelSignature, Tensors
from modyn.testing.fake_observation_log import FakeObservationLog


def any_inputs(model: str, inputs: Tensors) -> None:
    """Takes all: what is refused is tested with a model server."""


def post_to(intake: ObservationIntake, body: bytes) -> dict[str, int]:
    """Send labels to the only model."""
    return ObservationRouter({"m": intake}).post(body, any_inputs)


EVENT = st.tuples(st.sampled_from(("predict", "label", "complete", "take", "fail")), st.sampled_from("abcdef"))


@given(st.lists(EVENT, max_size=60))
def test_each_key_is_appended_once_whatever_the_order(events: list[tuple[str, str]]) -> None:
    join, log = ObservationJoin(JoinLimits()), list[str]()
    predicted, labelled = set[str](), set[str]()
    for now, (kind, key) in enumerate(events):
        if kind == "predict":
            join.predicted(key, RequestFeatures({}), float(now))
            predicted.add(key)
        elif kind == "label":
            assert join.labelled(key, ord(key), float(now)) == (key not in labelled)
            labelled.add(key)
        elif kind == "complete":
            join.complete(key, RequestFeatures({}), ord(key), float(now))
            labelled.add(key)
            if key in [record.key for record in join.ready()] or key in log:
                predicted.add(key)
        elif kind == "take":
            records = join.ready()
            log += [record.key for record in records]
            join.done(records)
        # "fail": a log that takes nothing; what is ready stays
    log += [record.key for record in join.ready()]
    assert len(log) == len(set(log))
    assert set(log) == predicted & labelled


def test_what_waits_is_bounded_expires_and_is_counted() -> None:
    join = ObservationJoin(JoinLimits(max_features=2, max_labels=1, keep_s=10.0))
    for number in range(3):
        join.predicted(f"f{number}", RequestFeatures({}), float(number))
        join.labelled(f"l{number}", 1, float(number))
    assert (join.num_waiting_features, join.num_waiting_labels) == (2, 1)
    join.expire(11.0)
    assert (join.num_waiting_features, join.num_waiting_labels) == (1, 1)
    join.expire(12.0)
    counts = join.counts
    assert (counts.dropped_features, counts.dropped_labels, counts.expired_features, counts.expired_labels) == (1, 2, 2, 1)
    assert join.labelled("f2", 1, 13.0), "waits as a label without features now"
    assert join.ready() == []


def test_another_label_of_the_same_key_is_refused_wherever_the_first_one_is() -> None:
    join = ObservationJoin(JoinLimits(max_done=1))
    join.labelled("a", 1, 0.0)
    with pytest.raises(
        AlreadyExistsError, match="observation 'a' came before with the label 1, now with 2; the first one counts"
    ):
        join.labelled("a", 2, 0.0)
    join.predicted("a", RequestFeatures({}), 0.0)
    with pytest.raises(AlreadyExistsError):
        join.complete("a", RequestFeatures({}), 2, 0.0)
    join.done(join.ready())
    with pytest.raises(AlreadyExistsError):
        join.labelled("a", 2, 0.0)
    assert not join.labelled("a", 1, 0.0)
    join.complete("b", RequestFeatures({}), 1, 0.0)
    join.done(join.ready())
    assert join.labelled("a", 2, 0.0), "forgotten: the log knows its key"


def test_what_a_failing_log_does_not_take_is_offered_again() -> None:
    log, now = FakeObservationLog(), [100.0]
    intake = ObservationIntake("m", log, clock=lambda: now[0])
    inputs = {"x": np.zeros((1, 2), np.float32)}
    intake.answered(InferRequest("m", inputs), InferAnswer("m", "4", "id", ModelSignature((), ()), {}))
    log.is_away = True
    body = json.dumps({"observations": [{"request_id": "id", "label": 0.5}]}).encode()
    with pytest.raises(UnavailableError):
        post_to(intake, body)
    with pytest.raises(UnavailableError):
        intake.flush()
    log.is_away = False
    assert post_to(intake, body) == {"accepted": 0, "repeated": 1}
    (record,) = log.records.values()
    assert (record.key, record.label, record.observed_at, record.features.version) == ("id", 0.5, 100.0, "4")
    assert record.features.inputs is inputs


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (3, "observations[1] is no object; write one with request_id and label"),
        ({"request_id": "b"}, "observations[1]: label is missing; write a number"),
        ({"request_id": "b", "label": True}, "observations[1]: label is True; write a number"),
        ({"label": 1}, "observations[1] needs either request_id, or inputs with a key of their own"),
        ({"request_id": "b", "inputs": [], "label": 1}, "observations[1] needs either request_id, or inputs"),
        ({"inputs": [], "label": 1}, "observations[1]: key is missing; write a text of 1 to 128 characters"),
        ({"request_id": "", "label": 1}, "observations[1]: request_id is ''; write a text"),
        ({"key": "k", "inputs": [{"name": "x"}], "label": 1}, "input 'x': shape is missing"),
    ],
)
def test_a_wrong_observation_is_named_and_none_is_taken(item: Any, message: str) -> None:
    log = FakeObservationLog()
    intake = ObservationIntake("m", log)
    good = {"key": "a", "inputs": [], "label": 1}
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        post_to(intake, json.dumps({"observations": [good, item]}).encode())
    intake.flush()
    assert log.records == {}


def test_a_label_that_contradicts_a_stored_one_is_answered_as_a_conflict() -> None:
    """Also where this server does not remember it: stored by another one, or long ago."""
    log = FakeObservationLog()
    first, second = ObservationIntake("m", log), ObservationIntake("m", log)

    def post(intake: ObservationIntake, *labels: tuple[str, float]) -> dict[str, int]:
        items = [{"key": key, "inputs": [], "label": label} for key, label in labels]
        return post_to(intake, json.dumps({"observations": items}).encode())

    assert post(first, ("a", 1)) == {"accepted": 1, "repeated": 0}
    assert post(second, ("a", 1)) == {"accepted": 1, "repeated": 0}
    third = ObservationIntake("m", log)
    for _ in range(2):
        with pytest.raises(
            AlreadyExistsError, match="observation 'a' .*with the label 1, (and came )?now with 2; the first one counts"
        ):
            post(third, ("b", 5), ("a", 2))
    assert {key: record.label for key, record in log.records.items()} == {"a": 1, "b": 5}
    assert post(third, ("a", 1), ("b", 5)) == {"accepted": 0, "repeated": 2}


def test_a_label_that_waits_becomes_whole_by_its_features() -> None:
    """After a restart a client may have sent the label alone before, and then sends both."""
    log = FakeObservationLog()
    intake = ObservationIntake("m", log)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [2.0]}
    assert post_to(intake, json.dumps({"observations": [{"request_id": "r", "label": 1}]}).encode()) == {
        "accepted": 1,
        "repeated": 0,
    }
    whole = json.dumps({"observations": [{"key": "r", "inputs": [tensor], "label": 1}]}).encode()
    assert post_to(intake, whole) == {"accepted": 1, "repeated": 0}
    assert list(log.records) == ["r"]
    assert post_to(intake, whole) == {"accepted": 0, "repeated": 1}
