"""The fake keeps the rules of the real evaluator that its users rely on."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from modyn.errors import NotFoundError
from modyn.evaluator.client import EvaluationRequest, EvaluationState, EvaluatorClient
from modyn.records import EvalInterval, RunId
from modyn.testing.fake_evaluator import FakeEvaluator

DATASET: dict[str, Any] = {"dataset_id": "test", "metrics": [{"name": "Accuracy"}]}


def request(model_id: int = 1) -> EvaluationRequest:
    intervals = [EvalInterval(0, 10, 5), EvalInterval(0, 10, 5), EvalInterval(10, 20, 15)]
    return EvaluationRequest(RunId("run-1"), 2, model_id, "matrix", DATASET, intervals)


def test_it_has_the_methods_of_the_client() -> None:
    public = [name for name in dir(EvaluatorClient) if not name.startswith("_")]
    for name in public:
        assert list(signature(getattr(FakeEvaluator, name)).parameters) == list(
            signature(getattr(EvaluatorClient, name)).parameters
        )


def test_an_evaluation_is_carried_out_once() -> None:
    fake = FakeEvaluator()
    status = fake.start(request())
    assert fake.start(request()) == status
    assert [s.state for s in fake.watch(status.evaluation_id)] == [EvaluationState.FINISHED]
    assert len(fake.started) == 1
    assert [(r.interval.anchor, r.metric) for r in fake.results(RunId("run-1"))] == [(5, "Accuracy"), (15, "Accuracy")]
    assert fake.results(RunId("run-2")) == []


def test_a_failure_is_a_status_and_can_be_repeated() -> None:
    failing = [True]
    fake = FakeEvaluator(fail=lambda r: "no such model" if failing[0] else None)
    assert fake.start(request()).state is EvaluationState.FAILED
    assert fake.results(RunId("run-1")) == []
    failing[0] = False
    assert fake.start(request()).state is EvaluationState.FINISHED
    with pytest.raises(NotFoundError):
        next(fake.watch("unknown"))
    with pytest.raises(NotFoundError):
        fake.stop("unknown")
