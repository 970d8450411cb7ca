"""Promotions that an evaluation decides, over fakes of model storage, evaluator and storage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import save_file

from modyn.config.promotion import parse_condition
from modyn.config.serving import ServedRun
from modyn.errors import ConfigError, ConflictError, NotFoundError, UnavailableError
from modyn.evaluator.client import EvaluationRequest, EvaluatorClient, Measured, MeasureRequest, Score
from modyn.model_storage.client import CurrentVersions, ModelHeader, ModelStorageClient
from modyn.records import EvalInterval, Interval, RunId
from modyn.serving.versions.auto_promotion import AutoPromotion
from modyn.serving.versions.promoted import ServingPlan, plan
from modyn.serving.versions.promotion_gate import PromotionGate
from modyn.testing.fake_evaluator import FakeEvaluator
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.fakes import FakeModelStorage

RUN = RunId("run-1")
ENTRY = {
    "dataset_id": "test", "batch_size": 4, "bytes_parser_function": "def bytes_parser_function(data): return data",
    "metrics": [{"name": "Accuracy"}],
}  # fmt: skip
PIPELINE: dict[str, Any] = {"evaluation": {"datasets": [ENTRY], "device": "cpu"}}


class Gated:
    """A run whose versions have the scores of `scores`: by model, by metric."""

    def __init__(self, folder: Path, *conditions: str, pipeline: Mapping[str, Any] = PIPELINE, now: float = 1e9) -> None:
        self.models, self.scores, self.folder = FakeModelStorage(), dict[int, dict[str, float | None]](), folder
        self.evaluator = FakeEvaluator(self._score)
        self.storage = storage = FakeStorage()
        for name in ("test", "other", "empty"):
            storage.add_dataset(name)
        for name in ("test", "other"):
            storage.add_samples(name, [5, 9], [0, 1])
        parsed = [parse_condition(text) for text in conditions]
        self.client = cast("ModelStorageClient", self.models)
        evaluator = cast("EvaluatorClient", self.evaluator)
        self.gate = PromotionGate(RUN, pipeline, parsed, self.client, evaluator, storage.client(), lambda: now)
        self.intervals = list[EvalInterval]()

    def _score(self, request: EvaluationRequest, interval: EvalInterval, metric: str) -> tuple[float | None, int]:
        self.intervals.append(interval)
        return self.scores[request.model_id][metric], 2

    def put(self, **scores: float | None) -> int:
        path = self.folder / "weights"
        save_file({"weight": np.zeros(1)}, path)
        trigger_id = len(self.models.list(RUN))
        model_id = self.models.put(ModelHeader(RUN, trigger_id, "M"), path).model_id
        self.scores[model_id] = scores
        return model_id


@pytest.mark.parametrize(("now", "end"), [(8, 8 + 1), (9, 9 + 1), (4, 9 + 1)])
def test_a_sample_in_the_future_moves_no_window(tmp_path: Path, now: int, end: int) -> None:
    """Samples have the times 5 and 9. If all are in the future, they do not follow the clock."""
    gated = Gated(tmp_path, "Accuracy on test over 3s >= 0.9", "Accuracy on other >= 0.9", now=now + 0.5)
    gated.gate.promote(gated.put(Accuracy=0.95), "by hand")
    assert sorted((i.start, i.end) for i in gated.intervals)[1] == (end - 3, end)
    assert max(i.end for i in gated.intervals) == 10, "without a window all samples count"


def test_a_window_measures_the_newest_samples_alone(tmp_path: Path) -> None:
    gated = Gated(
        tmp_path, "Accuracy on test over 3s >= 0.9", "Accuracy on test not worse than promoted", "Accuracy on other over 1d > 0"
    )
    gated.gate.promote(gated.put(Accuracy=0.95), "by hand")
    assert {(max(i.start, -(10**6)), i.end) for i in gated.intervals} == {(7, 10), (-(10**6), 10), (10 - 86_400, 10)}
    first = gated.models.promotions(RUN)[0].verdicts[0]
    assert (first.condition, first.value) == ("Accuracy on test over 3s >= 0.9", 0.95)


def test_a_version_that_meets_all_conditions_is_promoted_and_the_trail_has_the_values(tmp_path: Path) -> None:
    gated = Gated(tmp_path, "Accuracy on test >= 0.9", "Accuracy on test not worse than promoted")
    first, second, third = gated.put(Accuracy=0.95), gated.put(Accuracy=0.92), gated.put(Accuracy=0.96)
    assert gated.gate.promote(first, "by hand").promoted
    refused = gated.gate.promote(second, "by hand")
    assert str(refused) == (
        f"model {second} is not promoted: Accuracy on test >= 0.9: 0.92, passed; "
        "Accuracy on test not worse than promoted: 0.92, promoted 0.95, not passed"
    )
    assert gated.models.current(RUN) == CurrentVersions(third, first)
    assert gated.gate.promote(third, "by hand").promoted
    trail = gated.models.promotions(RUN)
    assert [(entry.action, entry.model_id, entry.before_id) for entry in trail] == [
        ("promote", first, None), ("refuse", second, first), ("promote", third, first),
    ]  # fmt: skip
    assert [[(v.value, v.promoted_value, v.passed) for v in entry.verdicts] for entry in trail] == [
        [(0.95, None, True), (0.95, None, True)],
        [(0.92, None, True), (0.92, 0.95, False)],
        [(0.96, None, True), (0.96, 0.95, True)],
    ]
    assert trail[0].verdicts[1].note == "no other version is promoted"
    assert {(i.start <= 5, i.end) for i in gated.intervals} == {(True, 10)}, "all samples that there are, and no later ones"
    assert gated.models.rollback(RUN).version.model_id == first, "the refused one is not gone back to"


def test_an_undefined_value_does_not_pass_and_is_worse_than_none(tmp_path: Path) -> None:
    gated = Gated(tmp_path, "Accuracy on test not worse than promoted")
    first, second, third = gated.put(Accuracy=None), gated.put(Accuracy=0.1), gated.put(Accuracy=float("nan"))
    assert not gated.gate.promote(first, "").promoted
    gated.models.promote(first)
    decision = gated.gate.promote(second, "")
    assert (decision.promoted, decision.verdicts[0].note) == (True, "of the promoted version: undefined")
    assert gated.gate.promote(third, "").verdicts[0].note == "its value is not finite"


def test_conditions_on_several_datasets_take_one_pass_each(tmp_path: Path) -> None:
    """A dataset that the pipeline lacks is read as its first one."""
    gated = Gated(tmp_path, "Accuracy on test >= 0.5", "F1Score on other >= 0.5", "Accuracy on other < 0.5", pipeline={
        "evaluation": {"datasets": [{**ENTRY, "metrics": [{"name": "F1Score", "num_classes": 3, "label": "F1Score"}]}]}
    })  # fmt: skip
    asked = list[MeasureRequest]()
    measure = gated.evaluator.measured

    def noted(request: MeasureRequest) -> Measured:
        asked.append(request)
        return measure(request)

    gated.evaluator.measured = noted
    model = gated.put(Accuracy=0.4, F1Score=0.6)
    assert [verdict.passed for verdict in gated.gate.promote(model, "").verdicts] == [False, True, True]
    assert {(str(r.dataset["dataset_id"]), *(metric["name"] for metric in r.dataset["metrics"])) for r in asked} == {
        ("test", "Accuracy"), ("other", "F1Score", "Accuracy"),
    }  # fmt: skip
    assert len(asked) == 2


@pytest.mark.parametrize(
    "condition", ["Accuracy on test >= 90", "Accuracy on other < -0.1", "Accuracy on test not worse than promoted by 2"]
)
def test_a_number_that_no_value_can_have_is_refused(tmp_path: Path, condition: str) -> None:
    Gated(tmp_path, condition.replace("Accuracy", "MeanSquaredError"))
    with pytest.raises(ConfigError, match=r"'Accuracy' lies in \[0, 1\]; write a number between 0 and 1"):
        Gated(tmp_path, "Accuracy on test >= 0.5", condition)


def test_what_cannot_be_measured_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Acuracy"):
        Gated(tmp_path, "Acuracy on test >= 0.9")
    gated = Gated(tmp_path, "Accuracy on empty >= 0.9")
    with pytest.raises(NotFoundError, match="dataset 'empty' has no samples"):
        gated.gate.promote(gated.put(Accuracy=1.0), "")
    with pytest.raises(NotFoundError, match="there is no dataset 'none'"):
        none = Gated(tmp_path, "Accuracy on none >= 0.9")
        none.gate.promote(none.put(Accuracy=1.0), "")
    assert gated.models.promotions(RUN) == ()


def test_all_values_of_a_verdict_are_of_one_registration_of_a_dataset(tmp_path: Path) -> None:
    gated = Gated(
        tmp_path, "Accuracy on test >= 0.5", "Accuracy on test over 3s >= 0.5", "Accuracy on test not worse than promoted"
    )
    first, second = gated.put(Accuracy=0.6), gated.put(Accuracy=0.8)
    gated.models.promote(first)
    measure, identities = gated.evaluator.measured, list[str]()

    def registers_again(request: MeasureRequest) -> Measured:
        identities.append(request.dataset_identity)
        gated.storage.find("test", request.dataset_identity)  # As the evaluator does.
        gated.storage.add_dataset("test")
        gated.storage.add_samples("test", [5, 9], [1, 1])
        return measure(request)

    gated.evaluator.measured = registers_again
    with pytest.raises(NotFoundError, match="dataset 'test' was deleted, and another was registered under its name"):
        gated.gate.promote(second, "")
    assert identities[0] == identities[1] != ""
    assert gated.models.current(RUN).promoted_id == first
    assert len(gated.models.promotions(RUN)) == 1
    gated.evaluator.measured = measure
    assert gated.gate.promote(second, "").promoted


@pytest.mark.parametrize("change", ["late sample", "reindex"])
def test_versions_are_compared_on_the_same_samples_alone(tmp_path: Path, change: str) -> None:
    """A sample with an older time, or another one in its place, reaches the version that is measured second alone."""
    gated = Gated(tmp_path, "Accuracy on test not worse than promoted")
    first, second = gated.put(Accuracy=0.6), gated.put(Accuracy=0.8)
    gated.models.promote(first)
    measured, changes = list[int](), 1

    def measure(request: MeasureRequest) -> Measured:
        nonlocal changes
        measured.append(request.model_id)
        number = gated.storage.client().dataset("test").num_samples
        if changes:
            changes -= 1
            if change == "reindex":
                gated.storage.client().delete_samples("test", np.array([gated.storage.client().dataset("test").next_key - 1]))
            gated.storage.add_samples("test", [7], [1])
        value = gated.scores[request.model_id]["Accuracy"]
        return Measured((Score(Interval(), "Accuracy", value, "", number, number),))

    gated.evaluator.measured = measure
    assert gated.gate.promote(second, "").promoted
    assert measured == [second, first, second, first]
    changes = 6
    with pytest.raises(UnavailableError, match=f"samples of test came or were deleted while models {first} and {second} were"):
        gated.gate.promote(first, "")
    assert gated.models.current(RUN).promoted_id == second


@pytest.mark.parametrize("is_first_promoted", [True, False])
def test_a_promotion_meanwhile_is_compared_with(tmp_path: Path, is_first_promoted: bool) -> None:
    gated = Gated(tmp_path, "Accuracy on test not worse than promoted")
    first, second, third = (gated.put(Accuracy=value) for value in (0.5, 0.8, 0.6))
    if is_first_promoted:
        gated.models.promote(first)
    measure = gated.evaluator.measured

    def promotes(request: MeasureRequest) -> Measured:
        gated.models.promote(second)
        return measure(request)

    gated.evaluator.measured = promotes
    compared = f"model {first}" if is_first_promoted else "none"
    with pytest.raises(ConflictError, match=f"model {third} was compared with {compared}, and model {second} is promoted by now"):
        gated.gate.promote(third, "")
    assert not gated.gate.promote(third, "").promoted
    assert gated.gate.promote(second, "").promoted
    assert [bool(entry.verdicts) for entry in gated.models.promotions(RUN)] == [*[False] * (1 + is_first_promoted), True, True]


def test_each_new_version_is_judged_once_and_a_rollback_stays_one(tmp_path: Path) -> None:
    gated = Gated(tmp_path, "Accuracy on test >= 0.9", "Accuracy on test not worse than promoted by 0.01")
    auto = AutoPromotion(RUN, gated.gate, gated.client, 60.0)
    auto.look()  # there is none
    settings = ServedRun(promote_if=("Accuracy on test >= 0.9",))
    gated.put(Accuracy=0.5)
    auto.look()
    auto.look()
    assert plan(gated.models.current(RUN), settings) == ServingPlan(), "none has met the conditions"
    good = gated.put(Accuracy=0.93)
    auto.look()
    assert plan(gated.models.current(RUN), settings) == ServingPlan(str(good))
    better = gated.put(Accuracy=0.95)
    auto.look()
    gated.models.rollback(RUN)
    auto.look()
    assert gated.models.current(RUN) == CurrentVersions(better, good, newest_in_trail=True)
    gated.put(Accuracy=0.925)
    auto.look()
    trail = [(entry.action, entry.model_id, entry.reason) for entry in gated.models.promotions(RUN)]
    why = "serving.promote_if"
    assert trail == [("refuse", 1, why), ("promote", 2, why), ("promote", 3, why), ("rollback", 2, ""), ("promote", 4, why)]


def test_a_version_that_cannot_be_measured_is_measured_later(tmp_path: Path) -> None:
    gated = Gated(tmp_path, "Accuracy on test >= 0.9")
    measure, auto = gated.evaluator.measured, AutoPromotion(RUN, gated.gate, gated.client, 60.0)

    def fails(request: MeasureRequest) -> Measured:
        raise UnavailableError("the evaluator is away")

    gated.evaluator.measured = fails
    first = gated.put(Accuracy=0.95)
    with pytest.raises(UnavailableError):
        auto.look()
    auto.look()  # not at once again
    gated.evaluator.measured = measure
    assert gated.models.promotions(RUN) == ()
    newer = gated.put(Accuracy=0.96)
    auto.look()
    assert gated.models.current(RUN).promoted_id == newer
    assert first not in [entry.model_id for entry in gated.models.promotions(RUN)]
