"""The model of a label, if one process serves several models."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from modyn.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from modyn.serving.messages.infer import InferAnswer, InferRequest
from modyn.serving.messages.signature import Tensors
from modyn.serving.observations.intake import ObservationIntake
from modyn.serving.observations.join import Appended, ObservationRecord
from modyn.serving.observations.router import ObservationRouter, split_observations
from modyn.testing.fake_observation_log import FakeObservationLog

TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [2.0]}


class Models:
    """Models that take labels, each with a log of its own; `checked` are those whose inputs were checked."""

    def __init__(self, *names: str) -> None:
        self.logs = {name: FakeObservationLog() for name in names}
        self.router = ObservationRouter({name: ObservationIntake(name, log) for name, log in self.logs.items()})
        self.checked: list[str] = []

    def predict(self, model: str, request_id: str) -> None:
        inputs = {"x": np.zeros((1, 1), np.float32)}
        self.router.add_prediction(InferRequest(model, inputs), InferAnswer(model, "1", request_id, {}))

    def check(self, model: str, inputs: Tensors) -> None:
        self.checked.append(model)

    def post(self, *observations: dict[str, Any]) -> dict[str, int]:
        return self.router.post(json.dumps({"observations": observations}).encode(), self.check)

    def stored(self) -> dict[str, dict[str, float]]:
        return {name: {key: record.label for key, record in log.records.items()} for name, log in self.logs.items()}


ITEMS = st.recursive(
    st.one_of(st.none(), st.integers(-9, 9), st.text('{}[],:"\\ ab', max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "},", '"', "]"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=15)
@given(st.lists(ITEMS, min_size=1, max_size=12), st.integers(1, 30), st.sampled_from([None, 1]), st.booleans())
def test_a_body_in_parts_has_the_observations_of_the_whole(items: list[Any], size: int, indent: int | None, first: bool) -> None:
    others = {"x": {"y": 1}, "z": [{}, {"b": "},"}]}
    fields = {"observations": items, **others} if first else {**others, "observations": items}
    parts = list(split_observations(json.dumps(fields, indent=indent).encode(), size))
    assert [item for part in parts for item in part] == items
    assert all(parts)


@pytest.mark.parametrize("field", ["label", "request_id", "model"])
def test_a_value_of_any_depth_is_named_in_short(field: str) -> None:
    body = json.dumps({"observations": [{"request_id": "r", "label": 1, field: "DEEP"}]}).encode()
    with pytest.raises(InvalidArgumentError, match=rf"{field} is \[\[.{{,80}}; write"):
        Models("a").router.post(body.replace(b'"DEEP"', b"[" * 1000 + b"]" * 1000), lambda *_: None)


def test_fields_before_the_list_of_observations_do_not_make_it_one_part() -> None:
    fields = b'{"client": "\\"observations\\": ", "n": 1, "observations": [{}, {}, {}]}'
    assert list(split_observations(fields, 1)) == [[{}], [{}], [{}]]
    with pytest.raises(InvalidArgumentError, match="'observations' is missing"):
        list(split_observations(b'{"no\\"observations": [{}, {}, {}]}', 1))


@pytest.mark.parametrize("end", [b"", b"]", b",]}", b"}]}", b"]}}", b'],"a":}', b" {}]}"])
def test_invalid_json_after_many_good_observations_is_refused_as_a_whole(end: bytes) -> None:
    models = Models("a")
    body = b'{"observations": [' + b",".join(b'{"request_id": "r%d", "label": 1}' % number for number in range(5000)) + end
    with pytest.raises(InvalidArgumentError):
        models.router.post(body, models.check)
    assert models.post({"request_id": "r1", "label": 2})["waiting"] == 1, "none of them was taken"


def test_many_labels_are_taken_a_thousand_at_a_time_and_each_counts_once() -> None:
    """Predictions wait while labels are written."""
    sizes = list[int]()

    class CountingLog(FakeObservationLog):
        def append(self, records: Sequence[ObservationRecord]) -> Appended:
            sizes.append(len(records))
            return super().append(records)

    log = CountingLog()
    router = ObservationRouter({"a": ObservationIntake("a", log)})
    labels = [{"key": f"k{number}", "inputs": [TENSOR], "label": number % 10} for number in range(2500)]
    body = json.dumps({"observations": labels}).encode()
    assert router.post(body, lambda *_: None) == {"stored": 2500, "waiting": 0, "repeated": 0}
    assert sizes == [1000, 1000, 500]
    labels[1200] = {**labels[1200], "label": 99}
    labels.append({"key": "new", "inputs": [TENSOR], "label": 1})
    with pytest.raises(AlreadyExistsError, match="'k1200' came before with the label 0, now with 99"):
        router.post(json.dumps({"observations": labels}).encode(), lambda *_: None)
    assert len(log.records) == 2501, "the others of all parts are taken"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), unique=True, max_size=20), st.booleans())
def test_each_label_reaches_the_model_that_predicted(requests: list[tuple[str, int]], names_model: bool) -> None:
    """A request id is enough if no other model has it; a label that names its model always reaches it."""
    models = Models("a", "b", "c")
    if not names_model:
        requests = list({number: (model, number) for model, number in requests}.values())
    for model, number in requests:
        models.predict(model, str(number))
    named = [{"model": model} if names_model else {} for model, _ in requests]
    labels = [{"request_id": str(number), "label": number, **name} for (_, number), name in zip(requests, named, strict=True)]
    if labels:
        assert models.post(*labels) == {"stored": len(labels), "waiting": 0, "repeated": 0}
        assert models.post(*labels) == {"stored": 0, "waiting": 0, "repeated": len(labels)}
    expected: dict[str, dict[str, float]] = {"a": {}, "b": {}, "c": {}}
    for model, number in requests:
        expected[model][str(number)] = number
    assert models.stored() == expected


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        ({"request_id": "new", "label": 1}, InvalidArgumentError,
         "observations[1]: no model that takes labels has seen request 'new'; set 'model' to one of a, b"),
        ({"request_id": "both", "label": 1}, InvalidArgumentError,
         "observations[1]: a and b have seen request 'both'; set 'model' to one of a, b"),
        ({"key": "k", "inputs": [TENSOR], "label": 1}, InvalidArgumentError,
         "observations[1]: several models take labels here; set 'model' to one of a, b"),
        ({"request_id": "r", "label": 1, "model": "c"}, NotFoundError,
         "observations[1]: no labels are taken for model 'c'; taken are those for a, b"),
        ({"request_id": "r", "label": 1, "model": 3}, InvalidArgumentError, "observations[1]: model is 3; write its name"),
    ],
)  # fmt: skip
def test_a_label_whose_model_is_not_clear_is_named_and_none_is_taken(
    item: dict[str, Any], error: type[Exception], message: str
) -> None:
    models = Models("a", "b")
    models.predict("a", "both")
    models.predict("b", "both")
    models.predict("a", "good")
    with pytest.raises(error, match=re.escape(message)):
        models.post({"request_id": "good", "label": 1}, item)
    assert models.stored() == {"a": {}, "b": {}}
    assert models.post({"request_id": "good", "label": 2}) == {"stored": 1, "waiting": 0, "repeated": 0}, "it had not come before"


def test_features_that_come_with_a_label_are_checked_by_its_model() -> None:
    models = Models("a", "b")
    with_features = {"inputs": [TENSOR], "label": 1}
    assert models.post({**with_features, "key": "k", "model": "b"}, {**with_features, "key": "l", "model": "a"})["stored"] == 2
    assert (models.checked, models.stored()) == (["b", "a"], {"a": {"l": 1}, "b": {"k": 1}})


def test_a_label_may_come_before_its_prediction_where_the_model_is_named_or_the_only_one() -> None:
    for models, item in ((Models("a", "b"), {"model": "b"}), (Models("b"), {})):
        assert models.post({"request_id": "r", "label": 1, **item}) == {"stored": 0, "waiting": 1, "repeated": 0}
        models.predict("b", "r")
        assert models.post({"request_id": "r", "label": 1}) == {"stored": 1, "waiting": 0, "repeated": 0}
        assert models.stored()["b"] == {"r": 1}


def test_predictions_of_a_model_that_takes_no_labels_are_not_kept() -> None:
    models = Models("a", "b")
    models.predict("c", "r")
    with pytest.raises(InvalidArgumentError, match="no model that takes labels has seen request 'r'"):
        models.post({"request_id": "r", "label": 1})


def test_a_conflict_of_one_model_keeps_no_label_of_another_out() -> None:
    models = Models("a", "b")
    for model in "ab":
        models.predict(model, f"of {model}")
    models.post({"request_id": "of a", "label": 1})
    with pytest.raises(AlreadyExistsError, match="observation 'of a' came before with the label 1, now with 2"):
        models.post({"request_id": "of a", "label": 2}, {"request_id": "of b", "label": 3})
    assert models.stored() == {"a": {"of a": 1}, "b": {"of b": 3}}


def test_observations_are_counted_by_model() -> None:
    def appended(model: str) -> float:
        return REGISTRY.get_sample_value("modyn_serving_observations_total", {"model": model, "result": "appended"}) or 0.0

    models, before = Models("a", "b"), (appended("a"), appended("b"))
    models.predict("b", "r")
    models.post({"request_id": "r", "label": 1})
    assert (appended("a") - before[0], appended("b") - before[1]) == (0, 1)
