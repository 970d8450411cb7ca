"""Labels and features in any order: each observation is appended once, within bounds."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from modyn.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, UnavailableError
from modyn.serving.messages.infer import InferAnswer, InferRequest
from modyn.serving.messages.signature import Tensors
from modyn.serving.observations.intake import ObservationIntake
from modyn.serving.observations.join import Appended, JoinLimits, ObservationJoin, RequestFeatures, num_bytes
from modyn.serving.observations.router import ObservationRouter
from modyn.testing.fake_observation_log import FakeObservationLog


def any_inputs(model: str, inputs: Tensors) -> None:
    """Takes all: what is refused is tested with a model server."""


def post_to(intake: ObservationIntake, body: bytes) -> dict[str, int]:
    """Send labels to the only model."""
    return ObservationRouter({"m": intake}).post(body, any_inputs)


def answer(stored: int = 0, waiting: int = 0, repeated: int = 0) -> dict[str, int]:
    return {"stored": stored, "waiting": waiting, "repeated": repeated}


EVENT = st.tuples(st.sampled_from(("predict", "label", "complete", "take", "fail")), st.sampled_from("abcdef"))


@given(st.lists(EVENT, max_size=60))
def test_each_key_is_appended_once_in_any_order(events: list[tuple[str, str]]) -> None:
    join, log = ObservationJoin(JoinLimits()), list[str]()
    predicted, labelled = set[str](), set[str]()
    for now, (kind, key) in enumerate(events):
        if kind == "predict":
            join.add_prediction(key, RequestFeatures({}), float(now))
            predicted.add(key)
        elif kind == "label":
            join.add_label(key, ord(key), float(now))
            labelled.add(key)
        elif kind == "complete":
            join.complete(key, RequestFeatures({}), ord(key), float(now))
            labelled.add(key)
            if key in [record.key for record in join.ready()] or key in log:
                predicted.add(key)
        elif kind == "take":
            records = join.ready()
            log += [record.key for record in records]
            join.end(records, Appended())
        # "fail": a log that takes nothing; what is ready stays
    log += [record.key for record in join.ready()]
    assert len(log) == len(set(log))
    assert set(log) == predicted & labelled


def test_what_waits_is_bounded_by_bytes_and_the_oldest_go_first() -> None:
    size = num_bytes(RequestFeatures({}))
    join = ObservationJoin(JoinLimits(max_bytes=3 * size))
    join.add_prediction("first", RequestFeatures({}), 0.0)
    join.add_label("early", 1, 1.0)
    join.add_prediction("b", RequestFeatures({}), 2.0)
    assert (join.num_waiting, join.num_waiting_bytes) == (3, 3 * size)
    join.add_label("c", 1, 3.0)
    join.add_label("d", 1, 4.0)
    assert (join.counts.dropped_predictions, join.counts.dropped_labels) == (1, 1)
    join.add_label("b", 1, 5.0)
    assert [record.key for record in join.ready()] == ["b"]
    assert join.num_waiting == 2


def test_more_than_a_hundred_thousand_predictions_are_kept() -> None:
    join = ObservationJoin(JoinLimits())
    for number in range(150_000):
        join.add_prediction(str(number), RequestFeatures({}), 0.0)
    join.add_label("0", 1, 0.0)
    assert [record.key for record in join.ready()] == ["0"]


def test_what_has_waited_too_long_is_gone_at_the_next_call() -> None:
    join = ObservationJoin(JoinLimits(keep_s=10.0))
    join.add_prediction("f", RequestFeatures({}), 0.0)
    join.add_label("l", 1, 1.0)
    join.add_label("f", 1, 10.0)
    join.add_prediction("l", RequestFeatures({}), 11.0)
    assert join.ready() == []
    assert join.counts.expired == 2
    join.expire(30.0)
    assert (join.num_waiting, join.num_waiting_bytes) == (0, 0)


def test_another_label_of_the_same_key_is_refused_wherever_the_first_one_is() -> None:
    join = ObservationJoin(JoinLimits(max_done=1))
    join.add_label("a", 1, 0.0)
    with pytest.raises(
        AlreadyExistsError, match="observation 'a' came before with the label 1, now with 2; the first one counts"
    ):
        join.add_label("a", 2, 0.0)
    join.add_prediction("a", RequestFeatures({}), 0.0)
    with pytest.raises(AlreadyExistsError):
        join.complete("a", RequestFeatures({}), 2, 0.0)
    join.end(join.ready(), Appended())
    with pytest.raises(AlreadyExistsError):
        join.add_label("a", 2, 0.0)
    join.add_label("a", 1, 0.0)
    assert join.is_done("a")
    join.complete("b", RequestFeatures({}), 1, 0.0)
    join.end(join.ready(), Appended())
    join.add_label("a", 2, 0.0)
    assert not join.is_done("a"), "forgotten: it waits for its prediction, which its client is answered"


def row(number: float) -> RequestFeatures:
    return RequestFeatures({"x": np.array([[number]], np.float32), "text": np.array([None], object)})


@pytest.mark.parametrize("stored", [False, True])
def test_an_id_that_comes_again_with_other_inputs_gets_no_label(stored: bool) -> None:
    join = ObservationJoin(JoinLimits())
    join.add_prediction("r", row(1.0), 0.0)
    join.add_prediction("r", row(1.0), 1.0)
    if stored:
        join.add_label("r", 1, 2.0)
        join.end(join.ready(), Appended())
        join.add_prediction("r", row(1.0), 3.0)
        join.add_label("r", 1, 3.0)  # a request and its label, repeated
    assert join.counts.reused == 0
    join.add_prediction("r", row(2.0), 4.0)
    assert (join.counts.reused, join.counts.reused_id) == (1, "r")
    if stored:
        join.add_label("r", 1, 5.0)  # sent again, since its answer was lost
        join.complete("r", row(1.0), 1, 5.0)
    with pytest.raises(ConflictError, match="request id 'r' was used again for other inputs"):
        join.add_label("r", 0, 5.0)
    assert join.ready() == []
    join.complete("own", row(2.0), 1, 6.0)
    assert [record.key for record in join.ready()] == ["own"]
    join.expire(200_000.0)
    assert join.num_waiting == 0


def test_a_key_that_comes_again_with_other_inputs_is_a_conflict() -> None:
    join = ObservationJoin(JoinLimits())
    for _ in range(2):
        join.complete("k", row(1.0), 1, 0.0)
        with pytest.raises(AlreadyExistsError, match="observation 'k' came before with other inputs"):
            join.complete("k", row(2.0), 1, 0.0)
        join.end(join.ready(), Appended())


def test_a_label_of_a_request_of_several_rows_is_refused_and_others_are_taken() -> None:
    log = FakeObservationLog()
    intake = ObservationIntake("m", log, JoinLimits(max_done=3))

    def predict(request_id: str, rows: int) -> None:
        request = InferRequest("m", {"x": np.zeros((rows, 2), np.float32)})
        intake.add_prediction(request, InferAnswer("m", "4", request_id, {}))

    def post(*ids: str) -> dict[str, int]:
        return post_to(intake, json.dumps({"observations": [{"request_id": each, "label": 1} for each in ids]}).encode())

    for request_id, rows in (("one", 1), ("many", 3), ("again", 2), ("again", 1)):
        predict(request_id, rows)
    with pytest.raises(
        InvalidArgumentError, match="request 'many' has 3 rows, and a label is of one: send a request for each row, or"
    ):
        post("one", "many", "again")
    assert sorted(log.records) == ["again", "one"]
    assert post("one", "again") == answer(repeated=2)
    predict("one", 2)
    assert post("one") == answer(repeated=1), "it came before"
    for number in range(3):
        predict(str(number), 2)
    assert post("many") == answer(waiting=1), "as many ids as observations are remembered"


def test_what_a_failing_log_does_not_take_is_offered_again() -> None:
    log, now = FakeObservationLog(), [100.0]
    intake = ObservationIntake("m", log, clock=lambda: now[0])
    inputs = {"x": np.zeros((1, 2), np.float32)}
    intake.add_prediction(InferRequest("m", inputs), InferAnswer("m", "4", "id", {}))
    log.is_away = True
    body = json.dumps({"observations": [{"request_id": "id", "label": 0.5}]}).encode()
    with pytest.raises(UnavailableError):
        post_to(intake, body)
    with pytest.raises(UnavailableError):
        intake.flush()
    log.is_away = False
    assert post_to(intake, body) == answer(stored=1)
    (record,) = log.records.values()
    assert (record.key, record.label, record.observed_at, record.features.version) == ("id", 0.5, 100.0, "4")
    assert record.features.inputs is inputs


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (3, "observations[1] is not an object; write one with request_id and label"),
        ({"request_id": "b"}, "observations[1]: label is missing; write a number"),
        ({"request_id": "b", "label": True}, "observations[1]: label is True; write a number"),
        ({"label": 1}, "observations[1] needs either request_id, or inputs with a key of their own"),
        ({"request_id": "b", "inputs": [], "label": 1}, "observations[1] needs either request_id, or inputs"),
        ({"inputs": [], "label": 1}, "observations[1]: key is missing; write a text of 1 to 128 characters"),
        ({"request_id": "", "label": 1}, "observations[1]: request_id is ''; write a text"),
        (
            {"requestid": "b", "label": 1},
            "observations[1] has the unknown field 'requestid', did you mean 'request_id'?; known are",
        ),
        ({"request_id": "b", "label": 7}, "observations[1]: this log accepts no label 7; send another one"),
        ({"key": "k", "inputs": [{"name": "x"}], "label": 1}, "input 'x': shape is missing"),
    ],
)
def test_a_wrong_observation_is_named_and_none_is_taken(item: Any, message: str) -> None:
    log = FakeObservationLog()
    log.wrong = {7}
    intake = ObservationIntake("m", log)
    good = {"key": "a", "inputs": [], "label": 1}
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        post_to(intake, json.dumps({"observations": [good, item]}).encode())
    intake.flush()
    assert log.records == {}


def test_a_label_that_contradicts_a_stored_one_is_answered_as_a_conflict() -> None:
    """The first label may be stored by another server, or long ago, so that this server does not remember it."""
    log = FakeObservationLog()
    first, second = ObservationIntake("m", log), ObservationIntake("m", log)

    def post(intake: ObservationIntake, *labels: tuple[str, float]) -> dict[str, int]:
        items = [{"key": key, "inputs": [], "label": label} for key, label in labels]
        return post_to(intake, json.dumps({"observations": items}).encode())

    assert post(first, ("a", 1)) == answer(stored=1)
    assert post(second, ("a", 1)) == answer(repeated=1)
    third = ObservationIntake("m", log)
    for _ in range(2):
        with pytest.raises(
            AlreadyExistsError, match="observation 'a' .*with the label 1, (and came )?now with 2; the first one counts"
        ):
            post(third, ("b", 5), ("a", 2))
    assert {key: record.label for key, record in log.records.items()} == {"a": 1, "b": 5}
    assert post(third, ("a", 1), ("b", 5)) == answer(repeated=2)


def test_a_label_that_waits_becomes_whole_by_its_features() -> None:
    """After a restart a client may have sent the label alone before, and then sends both."""
    log = FakeObservationLog()
    intake = ObservationIntake("m", log)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [2.0]}
    assert post_to(intake, json.dumps({"observations": [{"request_id": "r", "label": 1}]}).encode()) == answer(waiting=1)
    whole = json.dumps({"observations": [{"key": "r", "inputs": [tensor], "label": 1}]}).encode()
    assert post_to(intake, whole) == answer(stored=1)
    assert list(log.records) == ["r"]
    assert post_to(intake, whole) == answer(repeated=1)


class Posting:
    """An intake with the time `now`, whose clients predict and send labels."""

    def __init__(self, limits: JoinLimits | None = None) -> None:
        self.log, self.now = FakeObservationLog(), 100.0
        self.intake = ObservationIntake("m", self.log, limits, lambda: self.now)

    def predict(self, request_id: str, number: float = 1.0) -> None:
        request = InferRequest("m", row(number).inputs)
        self.intake.add_prediction(request, InferAnswer("m", "4", request_id, {}))

    def label(self, *labels: tuple[str, float]) -> dict[str, int]:
        items = [{"request_id": key, "label": label} for key, label in labels]
        return post_to(self.intake, json.dumps({"observations": items}).encode())


def test_the_answer_tells_what_is_stored_from_what_waits() -> None:
    made = Posting()
    made.predict("a")
    assert made.label(("a", 1), ("unknown", 1)) == answer(stored=1, waiting=1)
    assert made.label(("a", 1), ("unknown", 1)) == answer(waiting=1, repeated=1)
    made.predict("unknown")
    assert made.label(("unknown", 1), ("unknown", 1)) == answer(stored=1, repeated=1)


def test_what_the_log_refuses_is_answered_once_and_can_be_corrected() -> None:
    made = Posting()
    made.predict("a")
    made.predict("b")
    made.log.refused = {"a": "the record with the key 'a' cannot be taken: its payload is too large"}
    refused, stored = counted("refused"), counted("appended")
    with pytest.raises(InvalidArgumentError, match="'a' cannot be taken: its payload is too large"):
        made.label(("a", 1), ("b", 2))
    assert (counted("refused") - refused, counted("appended") - stored) == (1, 1)
    assert {key: record.label for key, record in made.log.records.items()} == {"b": 2}
    made.log.refused = {}
    made.predict("a")
    assert made.label(("a", 0)) == answer(stored=1)


def counted(result: str) -> float:
    return REGISTRY.get_sample_value("modyn_serving_observations_total", {"model": "m", "result": result}) or 0.0


def test_what_is_lost_is_logged_at_intervals_with_what_to_do() -> None:
    made = Posting(JoinLimits(max_bytes=2 * num_bytes(row(1.0))))
    before = counted("dropped"), counted("reused")
    with capture_logs() as lines:
        for _ in range(3):
            for number in range(3):
                made.predict(f"{made.now}-{number}")
            made.intake.flush()
            made.predict(f"{made.now}-2", 2.0)
            made.intake.flush()
            made.now += 6.0
    first, dropped, reused = [line for line in lines if line["log_level"] == "warning"]
    assert (first["event"], first["predictions"], first["labels"]) == ("observations_dropped", 1, 0)
    assert "raise it in the system file" in first["advice"]
    assert (reused["event"], reused["count"], reused["newest"]) == ("request_ids_reused", 2, "106.0-2")
    assert counted("dropped") - before[0] == first["predictions"] + dropped["predictions"]
    assert counted("reused") - before[1] == 3
