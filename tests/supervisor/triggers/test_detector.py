"""The trigger of stream detectors: against the detectors themselves on the whole series, golden decisions, and what its evidence says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.config.base import Severity, load_section
from modyn.errors import DataError, InvalidArgumentError
from modyn.evaluator.client import Rows
from modyn.records import SampleBatch
from modyn.supervisor.detectors import DETECTORS
from modyn.supervisor.triggers import TRIGGERS, TriggerContext, build_trigger, check_trigger_section
from modyn.supervisor.triggers.base import TriggerOutcome
from modyn.supervisor.triggers.measures.questions import OutcomeQuestion
from modyn.testing.checks import check_trigger, decide, example_streams
from modyn.testing.fake_evidence import FakeEvidence
from tests.support import triggers
from tests.support.trigger_sections import streams_of_each
from tests.support.triggers import fired

EVALUATION = {"dataset": {"dataset_id": "d", "metrics": [{"name": "Accuracy"}]}}
SENSITIVE: dict[str, dict[str, Any]] = {
    "ADWIN": {"delta": 0.3, "clock": 4},
    "DDM": {"warm_start": 5, "drift_threshold": 1.0},
    "EDDM": {"warm_start": 2, "beta": 0.99},
    "HDDM_A": {"drift_confidence": 0.2},
    "HDDM_W": {"drift_confidence": 0.2},
    "KSWIN": {"alpha": 0.2, "window_size": 20, "stat_size": 5},
    "PageHinkley": {"min_instances": 5, "threshold": 1.0},
}
DISTANCE = {"on": "labels", "metric": {"id": "KSDriftMetric"}, "windowing_strategy": {"id": "AmountWindowingStrategy"}}


def section(id_: str, on: str = "error", **options: Any) -> dict[str, Any]:
    """A section that checks every 10 samples, with a detector that is soon convinced."""
    measured: dict[str, Any] = {"distance": DISTANCE} if on == "distance" else {"evaluation": EVALUATION}
    chosen = {"id": id_, **SENSITIVE[id_]}
    return {
        "id": "StreamDetectorTrigger",
        "evaluation_interval_data_points": 10,
        "on": on,
        "detector": chosen,
        **measured,
        **options,
    }


def stream(labels: Sequence[int]) -> SampleBatch:
    """A sample a second; FakeEvidence errs where the label is 0."""
    return SampleBatch(np.arange(len(labels)), np.arange(len(labels)), np.array(labels, np.int64))


def errors(*parts: tuple[int, float], seed: int = 1) -> SampleBatch:
    """Samples of pairs (number, probability of an error)."""
    rng = np.random.default_rng(seed)
    return stream(np.concatenate([rng.random(count) >= rate for count, rate in parts]).astype(int).tolist())


checks = partial(triggers.checks, asks_twice=False)

WARM_UP: dict[str, Any] = {"warmup_intervals": 3, "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 15}}
CONFIGS: dict[str, dict[str, Any]] = {
    **{f"{id_} on error": section(id_) for id_ in DETECTORS.builtin},
    **{f"{id_} on loss": section(id_, "loss") for id_ in ("ADWIN", "KSWIN", "PageHinkley")},
    "PageHinkley on distance": section("PageHinkley", "distance", evaluation_interval_data_points=3),
    "late labels": section("HDDM_A", label_delay="2d"),
    "warm-up": section("ADWIN", **WARM_UP),
    "cool-down": section("DDM", min_samples_between_triggers=25),
    "long cool-down": section("HDDM_A", min_samples_between_triggers=75),
}


@pytest.mark.parametrize(("name", "titles"), streams_of_each(CONFIGS, 120))
def test_same_decisions_for_any_batching_and_after_any_restart(name: str, titles: list[str]) -> None:
    options = {key: value for key, value in CONFIGS[name].items() if key != "id"}
    streams = example_streams(120)
    for title in titles:
        samples = streams[title]
        source = FakeEvidence(samples, is_error=lambda model_id, found: (found.labels + model_id + found.keys // 40) % 3 == 0)
        check_trigger(TRIGGERS.get("StreamDetectorTrigger"), options, streams={title: samples}, source=source)


@pytest.mark.parametrize("id_", DETECTORS.builtin)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=settings().max_examples // 3)
def test_decides_as_the_detector_itself_between_two_triggers(id_: str, seed: int) -> None:
    samples = errors((150, 0.1), (150, 0.6), (150, 0.2), seed=seed)
    expected = [10]
    detector = DETECTORS.get(id_)

    def new() -> Any:
        return detector(detector.Config.model_validate(SENSITIVE[id_]), seed=3)

    asked = new()
    for position in range(20, 451, 10):
        if sum(asked.update(float(samples.labels[at] == 0)) for at in range(position - 10, position)):
            expected.append(position)
            asked = new()
    assert fired(checks(section(id_), samples)) == expected


@pytest.mark.parametrize(
    ("id_", "expected"),
    [
        ("ADWIN", [50, 1050, 2150]),
        ("DDM", [50, 100, 200, 1050]),
        ("EDDM", [50, 750, 1050, 1150, 1250, 1400, 1500, 1750, 1850, 2000, 2650]),
        ("HDDM_A", [50, 1050]),
        ("HDDM_W", [50, 1050]),
        ("KSWIN", [50, 1050, 2050]),
        ("PageHinkley", [50, 1150, 2150]),
    ],
)
def test_golden_decisions_with_the_parameters_of_the_literature(id_: str, expected: list[int]) -> None:
    """Errors go from 5 % to 40 % after 1,000 samples, and back after 2,000; checks every 50. River 0.26.1 decides so too."""
    samples = errors((1000, 0.05), (1000, 0.4), (1000, 0.05), seed=7)
    options = section(id_, evaluation_interval_data_points=50, detector={"id": id_})
    assert fired(checks(options, samples)) == expected


def test_loss_and_error_see_the_same_change() -> None:
    samples = errors((1000, 0.05), (500, 0.4), seed=7)
    by_error, by_loss = (
        checks(section("ADWIN", on, detector={"id": "ADWIN"}, evaluation_interval_data_points=50), samples)
        for on in ("error", "loss")
    )
    assert fired(by_error) == fired(by_loss) != [50]


def test_evidence_of_a_check() -> None:
    samples = stream([1] * 60 + [0] * 20)
    records = checks(section("HDDM_A"), samples)
    assert records[0].numbers == {"first_trigger": 1}
    assert fired(records) == [10, 70]
    assert records[1].numbers == {
        "increase": 0, "increase.threshold": 0, "increase.unusual": 0, "evaluated_samples": 10, "error": 0,
        "detections": 0, "unusual": 0,
    }  # fmt: skip
    found = records[6].numbers
    assert found["detections"] >= 1
    assert found["increase"] >= found["increase.threshold"] > 0, "at the first detection"
    assert found["error"] == 1


def test_evidence_at_a_detection_of_adwin() -> None:
    found = next(r.numbers for r in checks(section("ADWIN"), stream([1] * 60 + [0] * 20)) if r.numbers.get("detections"))
    assert found["difference"] > found["difference.threshold"] > 0


def test_the_detector_begins_again_after_a_trigger_and_hears_all_before() -> None:
    samples = stream(([1] * 30 + [0] * 10) * 4)
    cooled = checks(section("HDDM_A", min_samples_between_triggers=100), samples)
    assert fired(cooled)[:1] == [10]
    detected = [record.position for record in cooled if record.numbers.get("detections")]
    assert detected[0] == 40, "while it cools down"
    assert [record.numbers["cooling_down"] for record in cooled if record.position == 40] == [1]
    trigger = build_trigger(section("HDDM_A"), TriggerContext(seed=3))
    decide(trigger, [samples.slice(0, 40)], source=FakeEvidence(samples))
    detector = DETECTORS.get("HDDM_A")
    assert trigger.state()["own"]["detector"] == detector(detector.Config.model_validate(SENSITIVE["HDDM_A"])).state()


@pytest.mark.parametrize("id_", ["ADWIN", "DDM", "EDDM", "HDDM_A", "HDDM_W", "KSWIN", "PageHinkley"])
def test_a_detection_while_it_cools_down_fires_when_that_ends(id_: str) -> None:
    """Errors from 5 % to 50 % once: the detector takes the new level for normal, and finds nothing more."""
    samples = errors((1000, 0.05), (3000, 0.5))
    options: dict[str, Any] = {"detector": {"id": id_}, "evaluation_interval_data_points": 50}
    alone = checks(section(id_, **options), samples)
    found = next(r.position for r in alone if r.numbers.get("detections") and r.position > 1000)
    cool_down = found + 500
    cooled = checks(section(id_, min_samples_between_triggers=cool_down, **options), samples)
    ends = 50 + -(-cool_down // 50) * 50
    assert fired(cooled)[:2] == [50, ends]
    between = [record for record in cooled if 50 < record.position < ends]
    first = next(record.position for record in between if record.numbers["detections"])
    kept = [record.position for record in between if record.numbers.get("detected_before")]
    assert kept == [record.position for record in between if record.position > first]
    after = next(record for record in cooled if record.position == ends + 50)
    assert "detected_before" not in after.numbers, "a trigger ends it"


def test_a_detection_is_kept_through_a_restart() -> None:
    samples = errors((1000, 0.05), (2000, 0.5))
    options = section("HDDM_A", min_samples_between_triggers=1500, evaluation_interval_data_points=50)
    whole = fired(checks(options, samples))
    trigger = build_trigger(options, TriggerContext(seed=3))
    before = decide(trigger, [samples.slice(0, 1300)], source=FakeEvidence(samples))
    assert any(record.numbers.get("detections") for record in before)
    assert fired(before) == [50]
    assert trigger.state()["own"]["has_detected"] is True
    again = build_trigger(options, TriggerContext(seed=3))
    again.load_state(trigger.state())
    assert again.state() == trigger.state()
    check_trigger(TRIGGERS.get("StreamDetectorTrigger"), {key: value for key, value in options.items() if key != "id"},
                  streams={"drift": samples}, source=FakeEvidence(samples))  # fmt: skip
    assert whole[:2] == [50, 1550]


def test_a_detection_of_the_warm_up_fires_after_it() -> None:
    samples = errors((410, 0.02), (800, 0.6))
    warm_up: dict[str, Any] = {"warmup_intervals": 10, "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 200}}
    records = checks(section("HDDM_A", detector={"id": "HDDM_A"}, evaluation_interval_data_points=50, **warm_up), samples)
    detected = [record.position for record in records if record.numbers.get("detections")]
    assert detected[0] > 400 > detected[0] - 100, "after the newest trigger of the warm-up"
    assert fired(records)[:3] == [200, 400, 550]


def test_each_sample_is_given_once_in_the_order_of_the_stream_when_its_label_has_come() -> None:
    seen: list[int] = []

    class Source(FakeEvidence):
        def outcomes(self, question: OutcomeQuestion) -> Rows | None:
            rows = super().outcomes(question)
            seen.extend(key for key in ([] if rows is None else rows.keys.tolist()) if key not in seen)
            return rows

    samples = stream([1] * 100)
    records = checks(section("HDDM_A", label_delay=25), samples, Source(samples))
    assert seen == list(range(5, 75)), "the first labels have come at 30, where the first model is trained on them"
    assert [record.numbers.get("evaluated_samples") for record in records] == [None, None, None, 10, 10, 10, 10, 10, 10, 10]


def test_a_threshold_for_errors_of_samples_is_warned_of_over_distances() -> None:
    (problem,) = check_trigger_section(section("PageHinkley", "distance", detector={"id": "PageHinkley"}))
    assert (problem.path, problem.severity) == ("trigger.detector.threshold", Severity.WARNING)
    assert "choose one in units of the distance" in problem.message
    assert check_trigger_section(section("PageHinkley", detector={"id": "PageHinkley"})) == []


def test_labels_that_come_too_late_for_the_stream_are_said() -> None:
    samples = stream([1] * 100)
    trigger = build_trigger(section("HDDM_A", label_delay=1000), TriggerContext(seed=3))
    decide(trigger, [samples], source=FakeEvidence(samples))
    assert "(label_delay: 1000 s), so nothing was measured" in trigger.end_warning()
    assert build_trigger(section("HDDM_A", label_delay=1000)).end_warning() == ""


@pytest.mark.parametrize("id_", sorted(DETECTORS.builtin))
@pytest.mark.parametrize("label", [0, 1])
def test_one_class_only_is_not_a_change(id_: str, label: int) -> None:
    """FakeEvidence errs at each sample of label 0, and at none of label 1."""
    assert fired(checks(section(id_, detector={"id": id_}), stream([label] * 200))) == [10]


def test_distances_one_a_check() -> None:
    samples = stream([0] * 60 + [2] * 40)
    options = section(
        "PageHinkley",
        "distance",
        detector={"id": "PageHinkley", "min_instances": 2, "threshold": 0.9},
        distance=DISTANCE | {"windowing_strategy": {"id": "AmountWindowingStrategy", "amount_cur": 10}},
    )
    records = checks(options, samples)
    # The reference is [0, 10), after the trigger at 70 it is [0, 70) with ten samples of 2.
    assert [record.numbers.get("distance") for record in records] == [None, 0, 0, 0, 0, 0, 2, *[2 - 20 / 70] * 3]
    assert fired(records) == [10, 70]
    assert records[6].numbers["current_samples"] == 10


def test_distances_are_those_of_the_drift_trigger() -> None:
    samples = errors((100, 0.1), (100, 0.5))
    windows = {"windowing_strategy": {"id": "AmountWindowingStrategy", "amount_ref": 30, "amount_cur": 20}}
    never = {"id": "KSDriftMetric", "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": 9}}
    drift = {
        "id": "DataDriftTrigger",
        "evaluation_interval_data_points": 10,
        "on": "labels",
        "metrics": {"distance": never},
        **windows,
    }
    detector = {"id": "PageHinkley", "threshold": 1e9}
    other = section("PageHinkley", "distance", detector=detector, distance=DISTANCE | windows)
    values = [[record.numbers.get("distance") for record in checks(options, samples)] for options in (drift, other)]
    assert values[0] == values[1]


def test_a_trigger_that_trains_nothing_leaves_the_reference() -> None:
    class Untrained(TRIGGERS.get("StreamDetectorTrigger")):  # type: ignore[misc]
        """A policy of which only the first trigger makes a model."""

        def trained(self, outcome: TriggerOutcome) -> None:
            if outcome.trigger_id == 0:
                super().trained(outcome)

    samples = stream([0] * 45 + [1] * 55)
    warm_up = {"warmup_intervals": 7, "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 20}}
    options = {key: value for key, value in section("PageHinkley", "distance", **warm_up).items() if key != "id"}
    source = FakeEvidence(samples)
    decide(Untrained(load_section(Untrained.Config, options)), [samples], source=source)
    assert {question.reference.stop for question in source.asked} == {20}, "the triggers at 40 and 60 have made no model"
    check_trigger(Untrained, options, streams={"abrupt": samples}, source=source)


def test_a_distance_beyond_what_the_detector_takes_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"HDDM_A takes numbers from 0 to 1, and the distance is 2; use ADWIN"):
        checks(section("HDDM_A", "distance"), stream([0] * 10 + [2] * 10))


@pytest.mark.parametrize(
    ("on", "column", "words"),
    [
        ("loss", 1, "the loss of model 1 is not a number for 1 of 10 samples"),
        ("error", 2, "what model 1 says of 1 of 10 samples, of positions 10 to 19 of the stream, is not finite"),
    ],
)
def test_what_is_not_a_number_is_an_error(on: str, column: int, words: str) -> None:
    class Source(FakeEvidence):
        def outcomes(self, question: OutcomeQuestion) -> Rows | None:
            rows = super().outcomes(question)
            if rows is not None:
                rows.outputs[3, column] = np.nan
            return rows

    samples = stream([1] * 30)
    with pytest.raises(DataError, match=words):
        checks(section("ADWIN", on), samples, Source(samples))


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"detector": {"id": "ADWIM"}}, "detector.id", "did you mean 'ADWIN'"),
        ({"detector": {"delta": 0.1}}, "detector.id", "the name of a stream detector"),
        ({"detector": {"id": "ADWIN", "delta": 2}}, "detector.delta", "less than 1"),
        ({"detector": {"id": "KSWIN", "window_size": 10}}, "detector", "at least twice stat_size"),
        ({"detector": {"id": "KSWIN", "window_size": 1001}}, "detector.window_size", "less than or equal to 1000"),
        ({"detector": 3}, "detector", "3 is wrong"),
        ({"on": "accuracy"}, "on", "'error', 'loss' or 'distance'"),
        ({"evaluation": None}, "evaluation", "is required where `on` is error"),
        ({"evaluation": {}}, "evaluation.dataset", "is required"),
        ({"distance": DISTANCE}, "distance", "has no effect where `on` is error"),
        ({"consecutive_checks": 2}, "consecutive_checks", "has no meaning for a detector"),
        (
            {"on": "distance", "evaluation": None, "distance": DISTANCE, "label_delay": "1d"},
            "label_delay",
            "has no effect where `on` is distance",
        ),
        (
            {"on": "distance", "evaluation": None, "distance": DISTANCE | {"projection": {"id": "RandomProjection"}}},
            "distance.projection",
            "cannot be used where `on` is labels",
        ),
        ({"on": "distance", "evaluation": None}, "distance", "is required where `on` is distance"),
        (
            {"on": "distance", "evaluation": None, "distance": {**DISTANCE, "sample_size": 1}},
            "distance.sample_size",
            "or equal to 2",
        ),
        (
            {"on": "loss", "detector": {"id": "DDM"}},
            "detector.id",
            "DDM takes errors, and not a loss; use ADWIN, KSWIN, PageHinkley",
        ),
        ({"on": "loss", "detector": {"id": "HDDM_W"}}, "detector.id", "takes numbers from 0 to 1, and not a loss; use ADWIN"),
    ],
)
def test_mistakes(changes: dict[str, Any], path: str, words: str) -> None:
    found = check_trigger_section(section("ADWIN") | changes)
    assert [problem.path for problem in found] == [f"trigger.{path}"]
    assert words in found[0].message
