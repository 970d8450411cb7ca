"""Policies in a simulation: they decide as when they are driven one by one, for all ways of cutting the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from modyn.analysis.simulation import simulation_table
from modyn.analysis.simulation_report import render_simulation
from modyn.errors import DataError, UnavailableError
from modyn.evaluator.client import DriftQuestion, MeasuredDrift, Rows
from modyn.records import SampleBatch, StreamWindow
from modyn.supervisor.journal.records import TriggerRecord
from modyn.supervisor.journal.states import TriggerState
from modyn.supervisor.simulation.engine import SimulatedPolicy, Simulation
from modyn.supervisor.simulation.training_forecast import TrainingForecast
from modyn.supervisor.triggers import TriggerContext, build_trigger
from modyn.supervisor.triggers.measures.questions import NO_EVIDENCE, EvidenceSource, OutcomeQuestion, ScoreQuestion
from modyn.supervisor.triggers.measures.shared_evidence import SharedEvidence
from modyn.supervisor.triggers.measures.training_seconds import TrainingSeconds
from modyn.testing.checks import decide, example_streams
from modyn.testing.fake_evidence import FakeEvidence
from tests.support.trigger_sections import SECTIONS

FORECAST = TrainingForecast(seconds=TrainingSeconds(1.0, 0.01), model_id=7)


def simulation(
    sections: Mapping[str, Mapping[str, Any]], source: EvidenceSource, forecast: TrainingForecast = FORECAST
) -> Simulation:
    built = {name: build_trigger(section, TriggerContext(seed=1)) for name, section in sections.items()}
    shared = source if isinstance(source, SharedEvidence) else None
    return Simulation({name: SimulatedPolicy(policy, forecast, source) for name, policy in built.items()}, shared)


def positions(simulated: Simulation) -> dict[str, list[int]]:
    return {name: [trigger.position for trigger in policy.triggers] for name, policy in simulated.policies.items()}


def results(simulated: Simulation) -> dict[str, Any]:
    return {
        name: (policy.cursor, policy.triggers, policy.num_checks, policy.waiting, policy.failed)
        for name, policy in simulated.policies.items()
    }


def in_pieces(stream: SampleBatch, size: int) -> list[SampleBatch]:
    return [stream.slice(at, at + size) for at in range(0, len(stream), size)]


def stream_of(times: Sequence[int]) -> SampleBatch:
    column = np.array(times, np.int64)
    return SampleBatch(np.arange(len(column)), column, np.zeros(len(column), np.int64))


def test_where_the_run_trained_nothing_the_reference_stays_as_in_the_run() -> None:
    criterion = {"id": "ThresholdDecisionCriterion", "threshold": 0.5}
    drift = {
        "id": "DataDriftTrigger",
        "evaluation_interval_data_points": 10,
        "metrics": {"m": {"id": "MMDDriftMetric", "decision_criterion": criterion}},
    }
    drift["windowing_strategy"] = {"id": "AmountWindowingStrategy", "amount_ref": 20, "amount_cur": 10}
    stream = stream_of(range(100))
    stream = replace(stream, labels=np.repeat([0, 1], [45, 55]))
    run = [
        TriggerRecord(number, position, 0, position, position, state, 0.0, num_keys=10, model_id=model_id)
        for number, position, state, model_id in (
            (0, 10, TriggerState.TRAINED, 1),
            (1, 60, TriggerState.UNTRAINED, None),
            (2, 70, TriggerState.TRAINED, 2),
        )
    ]
    source = FakeEvidence(stream)
    simulated = simulation({"drift": drift}, source, TrainingForecast(run))
    simulated.process(stream)
    assert positions(simulated) == {"drift": [10, 60, 70]}
    assert {asked.reference for asked in source.asked} == {StreamWindow(0, 10), StreamWindow(50, 70)}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("one sample", "uneven, many equal", "late samples") else pytest.mark.slow)
        for name in example_streams(1)
    ],
)
def test_all_policies_together_decide_as_each_alone_for_any_batches(name: str) -> None:
    stream = example_streams(300)[name]
    whole = simulation(SECTIONS, SharedEvidence(FakeEvidence(stream)))
    whole.process(stream)
    for title, section in SECTIONS.items():
        alone = simulation({title: section}, FakeEvidence(stream))
        alone.process(stream)
        assert positions(alone)[title] == positions(whole)[title]
    for size in (1, 37):
        shared = SharedEvidence(FakeEvidence(stream))
        cut = simulation(SECTIONS, shared)
        for batch in in_pieces(stream, size):
            cut.process(batch)
            shared.forget()
        assert results(cut) == results(whole)


def test_data_only_policies_decide_as_the_checks_of_policies_do() -> None:
    for stream in example_streams().values():
        for section in ({"id": "DataAmountTrigger", "num_samples": 37}, {"id": "TimeTrigger", "every": "1w"}):
            simulated = simulation({"p": section}, NO_EVIDENCE)
            simulated.process(stream)
            fired = [record.position for record in decide(build_trigger(section), [stream]) if record.fires]
            assert positions(simulated)["p"] == fired


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param([0, 10, 20, 30], 10 + 10, id="each waits for the second of its pair"),
        pytest.param([0, 10, 20], 10, id="the last has not waited yet"),
        pytest.param([0, 5, 5, 5], 5, id="equal times"),
        pytest.param([0, 10, 3, 40], 10 + 30, id="a late sample waits since it arrived"),
        pytest.param([-(2**63), 2**63 - 1], 2**64 - 1, id="all of time"),
        pytest.param([], 0, id="nothing"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 10])
def test_waiting_is_the_area_under_the_samples_that_wait(times: list[int], expected: int, size: int) -> None:
    simulated = simulation({"p": {"id": "DataAmountTrigger", "num_samples": 2}}, NO_EVIDENCE)
    for batch in in_pieces(stream_of(times), size):
        simulated.process(batch)
    assert simulated.policies["p"].waiting == expected


class Diverged(FakeEvidence):
    """A source whose answers end after some questions. Args: error: that is raised then."""

    def __init__(self, stream: SampleBatch, error: Exception) -> None:
        super().__init__(stream)
        self.error = error

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        if question.current.stop > 100:
            raise self.error
        return super().drift(question)


@pytest.mark.parametrize(
    ("error", "why"),
    [(DataError("model 3 diverged"), "model 3 diverged"), (ValueError("of a plug-in"), "ValueError: of a plug-in")],
)
def test_a_policy_that_fails_is_reported_and_the_others_go_on(error: Exception, why: str) -> None:
    stream = example_streams(300)["every second"]
    sections = {name: SECTIONS[name] for name in ("DataDriftTrigger", "DataAmountTrigger")}
    whole = simulation(sections, Diverged(stream, error))
    whole.process(stream)
    failed, other = whole.policies.values()
    assert failed.failed == f"after 110 samples: {why}"
    assert failed.cursor.position == 110
    assert other.failed == ""
    assert positions(whole)["DataAmountTrigger"] == list(range(37, 301, 37))
    table = simulation_table(whole, list(sections))
    assert table["failed"].to_list() == [failed.failed, ""]
    assert "model 3 diverged" in render_simulation(table, "d") or "plug-in" in render_simulation(table, "d")


def test_a_service_that_is_away_ends_the_simulation() -> None:
    stream = example_streams(300)["every second"]
    simulated = simulation({"moved": SECTIONS["DataDriftTrigger"]}, Diverged(stream, UnavailableError("away")))
    with pytest.raises(UnavailableError, match="policy 'moved': away"):
        simulated.process(stream)


def test_answers_are_shared_metric_by_metric_and_forgotten_when_nothing_asks() -> None:
    stream = example_streams(100)["every second"]
    source = FakeEvidence(stream)
    shared = SharedEvidence(source)
    mmd, ks = {"id": "MMDDriftMetric"}, {"id": "KSDriftMetric"}
    question = DriftQuestion(StreamWindow(0, 10), StreamWindow(10, 20), {"a": mmd}, model_id=1)
    first = shared.ask(question)
    second = shared.ask(replace(question, metrics={"other name": mmd, "ks": ks}))
    assert second.distances["other name"] == first.distances["a"]
    assert [list(asked.metrics) for asked in source.asked] == [["a"], ["ks"]]
    shared.ask(replace(question, model_id=2))
    assert len(source.asked) == 3, "another model is another question"
    shared.forget()
    shared.ask(question)
    assert len(source.asked) == 3
    shared.forget()
    shared.forget()
    shared.ask(question)
    assert len(source.asked) == 4


class ManyNeeded(FakeEvidence):
    """A source whose domain classifier never has enough samples."""

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        answer = super().drift(question)
        needed = {name for name, metric in question.metrics.items() if metric["id"] == "DomainClassifierDriftMetric"}
        return replace(answer, distances={name: found for name, found in answer.distances.items() if name not in needed})


def test_a_metric_without_enough_samples_is_asked_for_once_and_keeps_no_other_from_being_asked() -> None:
    source = ManyNeeded(example_streams(100)["every second"])
    shared = SharedEvidence(source)
    question = DriftQuestion(StreamWindow(0, 5), StreamWindow(5, 9), {"a": {"id": "DomainClassifierDriftMetric"}})
    with_another = replace(question, metrics={"c": {"id": "DomainClassifierDriftMetric"}, "b": {"id": "KSDriftMetric"}})
    for _ in range(2):
        assert shared.ask(question).distances == {}
        assert list(shared.ask(with_another).distances) == ["b"]
    assert [list(asked.metrics) for asked in source.asked] == [["a"], ["b"]]


def test_scores_and_outcomes_are_shared() -> None:
    class Counted(FakeEvidence):
        def outcomes(self, question: OutcomeQuestion) -> Rows | None:
            counted.append(question)
            return super().outcomes(question)

    counted = list[OutcomeQuestion]()
    shared = SharedEvidence(Counted(example_streams(100)["every second"]))
    dataset = {"dataset_id": "d", "metrics": [{"name": "Accuracy"}]}
    for windows in ([StreamWindow(0, 10)], [StreamWindow(5, 5)]):
        scores, outcomes = ScoreQuestion(1, windows, dataset, "cpu"), OutcomeQuestion(1, windows, dataset, "cpu")
        assert shared.ask(scores) is shared.ask(replace(scores, dataset=dict(dataset)))
        assert shared.ask(outcomes) is shared.ask(outcomes)
    assert len(counted) == 4, "those of scores too"


def drifts(numbers: Sequence[int], every: int = 20) -> dict[str, dict[str, Any]]:
    """Policies that fire at different places, and so have references of their own."""
    section = SECTIONS["DataDriftTrigger"]
    return {
        f"{number}": {**section, "evaluation_interval_data_points": every, "min_samples_between_triggers": number}
        for number in numbers
    }


def test_what_policies_ask_at_one_sample_is_asked_together() -> None:
    stream = example_streams(300)["every second"]
    source, alone = FakeEvidence(stream), FakeEvidence(stream)
    sections = drifts(range(0, 200, 7))
    together = simulation(sections, SharedEvidence(source))
    together.process(stream)
    for name, section in sections.items():
        one = simulation({name: section}, alone)
        one.process(stream)
        assert positions(one)[name] == positions(together)[name]
    assert len({tuple(found) for found in positions(together).values()}) > 3, "they have references of their own"
    assert len(source.asked_together) == 14, "one call a check"
    assert sum(source.asked_together) == len(source.asked) > 14
    assert len(source.asked) == len({(asked.reference, asked.current) for asked in source.asked}), "each question once"


def test_one_question_that_fails_keeps_no_other_policy_from_its_answer() -> None:
    stream = example_streams(300)["every second"]

    class OfThisWindow(FakeEvidence):
        def drift(self, question: DriftQuestion) -> MeasuredDrift:
            if question.reference.stop == 40 and question.current.stop > 100:
                raise DataError("the model has diverged")
            return super().drift(question)

    sections = {**drifts([0, 60], every=20), **{f"{name} later": s for name, s in drifts([0, 60], every=40).items()}}
    whole = simulation(sections, SharedEvidence(OfThisWindow(stream)))
    whole.process(stream)
    failed = {name for name, policy in whole.policies.items() if policy.failed}
    alone = {name: simulation({name: section}, OfThisWindow(stream)) for name, section in sections.items()}
    for name, one in alone.items():
        one.process(stream)
        assert one.policies[name].failed == whole.policies[name].failed
        assert positions(one)[name] == positions(whole)[name]
    assert 0 < len(failed) < len(sections)


def test_a_service_that_is_away_ends_policies_that_ask_together() -> None:
    stream = example_streams(300)["every second"]
    simulated = simulation(drifts([0, 30]), SharedEvidence(Diverged(stream, UnavailableError("away"))))
    with pytest.raises(UnavailableError, match="policy '0': away"):
        simulated.process(stream)


def test_progress_is_told_while_policies_ask() -> None:
    stream, seen = example_streams(300)["every second"], list[int]()
    simulated = simulation(drifts([0, 30]), SharedEvidence(FakeEvidence(stream)))
    simulated.process(stream, lambda: seen.append(simulated.position))
    assert seen == [0] * 14
