"""The ensemble trigger: against a brute force that goes sample by sample, and what its subtriggers hear, remember and show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.base import Severity, load_section
from modyn.errors import ConfigError, CorruptStateError, UserCodeError
from modyn.records import SampleBatch
from modyn.supervisor.evidence import Evidence
from modyn.supervisor.triggers import CheckContext, TriggerContext, build_trigger, check_trigger_section
from modyn.supervisor.triggers.base import CheckRecord, TriggerOutcome
from modyn.supervisor.triggers.ensemble import EnsembleConfig, EnsembleTrigger
from modyn.testing.checks import check_trigger, decide, example_streams
from modyn.testing.fake_evidence import FakeEvidence
from tests.supervisor.triggers.test_drift import drift, stream
from tests.support.trigger_sections import streams_of_each
from tests.support.triggers import fired

AMOUNT = {"id": "DataAmountTrigger", "num_samples": 15}
TIME = {"id": "TimeTrigger", "every": "2d"}


def ensemble(strategy: str | Mapping[str, Any] = "MajorityVote", **subtriggers: Mapping[str, Any]) -> dict[str, Any]:
    """A section with these subtriggers."""
    chosen = {"id": strategy} if isinstance(strategy, str) else dict(strategy)
    return {"id": "EnsembleTrigger", "subtriggers": subtriggers, "ensemble_strategy": chosen}


def custom(function: str) -> dict[str, str]:
    """A strategy that calls a function of this module."""
    return {"id": "Custom", "function": f"{__name__}:{function}"}


def at_least(n: int) -> dict[str, Any]:
    """The strategy."""
    return {"id": "AtLeastN", "n": n}


def odd(votes: dict[str, bool]) -> bool:
    """Return whether the number of votes is odd."""
    return sum(votes.values()) % 2 == 1


def raises(votes: dict[str, bool]) -> bool:
    """Fail."""
    raise ValueError(f"no idea what {len(votes)} votes mean")


def leaves(votes: dict[str, bool]) -> bool:
    """End the process."""
    raise SystemExit(3)


def counts(votes: dict[str, bool]) -> int:
    """Return no bool."""
    return sum(votes.values())


CONFIGS: dict[str, dict[str, Any]] = {
    "amounts": ensemble(at_least(1), a=AMOUNT, b={"id": "DataAmountTrigger", "num_samples": 40}),
    "amount and time": ensemble("All", a=AMOUNT, b=TIME),
    "custom": ensemble(custom("odd"), a=AMOUNT, b=TIME, c={"id": "TimeTrigger", "every": "5d"}),
    "drift or amount": ensemble(at_least(1), drift=drift(), amount={"id": "DataAmountTrigger", "num_samples": 25}),
    "drift and time": ensemble("All", drift=drift(consecutive_checks=2), time=TIME),
    "warm-up by time": ensemble(
        at_least(1), drift=drift(warmup_intervals=5, warmup_policy={"id": "TimeTrigger", "every": "1d"}), amount=AMOUNT
    ),
    "two drifts": ensemble("All", a=drift(), b=drift(evaluation_interval_data_points=None, evaluation_interval="1d")),
    "nested": ensemble(
        at_least(1), both=ensemble("All", drift=drift(), time=TIME), amount={"id": "DataAmountTrigger", "num_samples": 60}
    ),
    "thrice nested": ensemble(a=ensemble(b=ensemble(c=drift()))),
}


@pytest.mark.parametrize(("name", "titles"), streams_of_each(CONFIGS, 60))
def test_same_decisions_for_any_batching_and_after_any_restart(name: str, titles: list[str]) -> None:
    options = {key: value for key, value in CONFIGS[name].items() if key != "id"}
    streams = example_streams(60)
    for title in titles:
        samples = streams[title]
        check_trigger(EnsembleTrigger, options, streams={title: samples}, source=FakeEvidence(samples))


class _BruteForce:
    """A policy that is asked at every position of a stream that it knows as a whole."""

    def __init__(self, section: Mapping[str, Any], times: Sequence[int]) -> None:
        self.section, self.times = section, times
        self.period = 0
        self.children = {name: _BruteForce(s, times) for name, s in section.get("subtriggers", {}).items()}
        self.votes = dict.fromkeys(self.children, False)

    @property
    def has_time(self) -> bool:
        return self.section["id"] == "TimeTrigger" or any(child.has_time for child in self.children.values())

    def decides(self, position: int) -> bool | None:
        """Its verdict after this number of samples; None: it does not decide there."""
        if self.section["id"] == "DataAmountTrigger":
            return True if position % self.section["num_samples"] == 0 else None
        if self.section["id"] == "TimeTrigger":
            period = (self.times[position] - self.times[0]) // self.section["every"] if position < len(self.times) else 0
            is_new, self.period = period > self.period, max(period, self.period)
            return True if is_new else None
        verdicts = {name: verdict for name, child in self.children.items() if (verdict := child.decides(position)) is not None}
        self.votes |= {name: True for name, verdict in verdicts.items() if verdict}
        if not verdicts:
            return None
        strategy, yes = self.section["ensemble_strategy"], sum(self.votes.values())
        answers: dict[str, bool] = {
            "MajorityVote": 2 * yes > len(self.votes),
            "All": yes == len(self.votes),
            "AtLeastN": yes >= strategy.get("n", 0),
            "Custom": yes % 2 == 1,
        }
        return answers[strategy["id"]]

    def clear(self) -> None:
        self.votes = dict.fromkeys(self.children, False)
        for child in self.children.values():
            child.clear()

    def run(self) -> list[int]:
        """Where it fires. What decides by the next sample is not asked at the end, where there is none."""
        found = []
        for position in range(1, len(self.times) + (not self.has_time)):
            if self.decides(position):
                found.append(position)
                self.clear()
        return found


_LEAVES = st.one_of(
    st.builds(lambda n: {"id": "DataAmountTrigger", "num_samples": n}, st.integers(1, 12)),
    st.builds(lambda s: {"id": "TimeTrigger", "every": s}, st.integers(1, 40)),
)


def _ensembles(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    strategies = st.one_of(st.sampled_from(["MajorityVote", "All", custom("odd")]), st.just(at_least(1)))
    named = st.lists(children, min_size=1, max_size=4).map(lambda found: dict(zip("abcd", found, strict=False)))
    return st.builds(lambda strategy, subtriggers: ensemble(strategy, **subtriggers), strategies, named)


_SECTIONS = _ensembles(st.recursive(_LEAVES, _ensembles, max_leaves=4))


@given(_SECTIONS, st.lists(st.integers(-5, 100), max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_it_decides_as_the_rule_says(section: dict[str, Any], times: list[int], edges: list[int]) -> None:
    column = np.array(times, np.int64)
    whole, bounds = (
        SampleBatch(np.arange(len(times)), column, column),
        [0, *sorted(min(e, len(times)) for e in edges), len(times)],
    )
    found = decide(build_trigger(section), [whole.slice(start, stop) for start, stop in pairwise(bounds)])
    assert fired(found) == _BruteForce(section, times).run()
    assert not any(record.numbers for record in found), "pure arithmetic is not journalled"


def test_a_boundary_between_two_batches_is_not_lost() -> None:
    section = ensemble("All", a={"id": "DataAmountTrigger", "num_samples": 4}, b={"id": "TimeTrigger", "every": 100})
    times = np.array([0, 1, 2, 3, 100, 101, 102])
    samples = SampleBatch(np.arange(7), times, times)
    for batches in ([samples], [samples.slice(0, 4), samples.slice(4, 7)], [samples.slice(i, i + 1) for i in range(7)]):
        assert [(record.position, record.fires) for record in decide(build_trigger(section), batches)] == [(4, True)]


def test_a_yes_is_kept_until_the_next_trigger() -> None:
    section = ensemble("All", a={"id": "DataAmountTrigger", "num_samples": 10}, b={"id": "DataAmountTrigger", "num_samples": 25})
    assert fired(decide(build_trigger(section), [stream((0, 100))])) == [25, 50, 75, 100]


def test_votes_in_an_inner_ensemble_end_with_a_trigger_that_it_did_not_bring_about() -> None:
    inner = ensemble("All", a={"id": "DataAmountTrigger", "num_samples": 10}, b={"id": "DataAmountTrigger", "num_samples": 14})
    section = ensemble(at_least(1), inner=inner, other={"id": "DataAmountTrigger", "num_samples": 12})
    assert fired(decide(build_trigger(section), [stream((0, 29))])) == [12, 20, 24], "not at 14, by a's yes from 10"


def test_what_one_hears_all_hear() -> None:
    samples = stream((0, 60))
    source = FakeEvidence(samples)
    section = ensemble(at_least(1), drift=drift(), amount={"id": "DataAmountTrigger", "num_samples": 25})
    records = decide(build_trigger(section), [samples], source=source)
    assert fired(records) == [10, 25, 50], "the first trigger of drift, then the amounts"
    asked = [(question.current.stop, question.reference.stop, question.model_id) for question in source.asked[::2]]
    assert asked == [(20, 10, 1), (30, 25, 2), (40, 25, 2), (50, 25, 2), (60, 50, 3)], "the newest reference and model"


def test_what_several_ask_is_asked_once() -> None:
    samples = stream((0, 60))
    source, alone = FakeEvidence(samples), FakeEvidence(samples)
    one, many = ensemble(at_least(1), a=drift()), ensemble(at_least(2), a=drift(), b=drift(), c=drift())
    expected = decide(build_trigger(one), [samples], source=alone)
    assert fired(decide(build_trigger(many), [samples], source=source)) == fired(expected)
    assert source.asked == alone.asked


class _NoModel(EnsembleTrigger):
    """An ensemble whose first three triggers make no model."""

    def ended(self, outcome: TriggerOutcome) -> None:
        super().ended(outcome if outcome.trigger_id >= 3 else replace(outcome, model_id=None))


def test_a_subtrigger_without_a_model_votes_yes_at_each_of_its_intervals() -> None:
    samples = stream((0, 45), (1, 55))
    amount = {"id": "DataAmountTrigger", "num_samples": 25}
    for strategy, positions in ((at_least(1), [10, 20, 25, 30, 50, 60, 75, 100]), ("All", [25, 50, 75, 100])):
        section = ensemble(strategy, drift=drift(), amount=amount)
        options = {key: value for key, value in section.items() if key != "id"}
        check_trigger(_NoModel, options, streams={"abrupt": samples}, source=FakeEvidence(samples))
        made = _NoModel(load_section(EnsembleConfig, options))
        assert fired(decide(made, [samples], source=FakeEvidence(samples))) == positions


def test_evidence_names_the_subtrigger_and_shows_all_votes() -> None:
    samples = stream((0, 30), (1, 10))
    both = ensemble("All", drift=drift(), amount={"id": "DataAmountTrigger", "num_samples": 30})
    section = ensemble("All", inner=both, other={"id": "DataAmountTrigger", "num_samples": 25})
    records = {r.position: r for r in decide(build_trigger(section), [samples], source=FakeEvidence(samples))}
    assert records[10].numbers == {
        "inner/drift/first_trigger": 1,
        "inner/drift.vote": 1,
        "inner/amount.vote": 0,
        "inner.vote": 0,
        "other.vote": 0,
    }
    assert records[25].numbers == {}, "an amount alone"
    assert (records[30].fires, records[30].numbers["inner.vote"], records[30].numbers["other.vote"]) == (True, 1, 1)
    assert (records[40].numbers["inner/drift/mmd"], records[40].numbers["inner/drift/mmd.threshold"]) == (1, 0.5)
    assert (records[40].fires, records[40].numbers["inner/drift.vote"], records[40].numbers["inner.vote"]) == (False, 1, 0)


@pytest.mark.parametrize("name", CONFIGS)
def test_replayed_verdicts_leave_every_subtrigger_in_the_state_that_the_verdicts_made(name: str) -> None:
    samples = example_streams(120)["late samples"]
    asked, replayed = (build_trigger(CONFIGS[name], TriggerContext(seed=1)) for _ in range(2))
    verdicts = decide(asked, [samples], source=FakeEvidence(samples))
    journalled = [record for record in verdicts if record.evidence]
    source = FakeEvidence(samples)
    decide(replayed, [samples], verdicts=journalled, source=source)
    assert replayed.state() == asked.state()
    assert source.asked == [], "nothing is measured again"


def test_a_verdict_of_other_subtriggers_is_refused() -> None:
    trigger = build_trigger(ensemble(a=AMOUNT))
    assert trigger.next_check(stream((0, 15)), -1) == 15
    with pytest.raises(CorruptStateError, match=r"\['b'\] of the subtriggers have decided as journalled, and \['a'\] decide now"):
        trigger.checked(CheckRecord(15, True, [Evidence("x", 1.0, subtrigger="b")], memory={"b": {"fires": True, "memory": {}}}))
    state = json.loads(json.dumps(build_trigger(ensemble(b=AMOUNT)).state()))
    with pytest.raises(CorruptStateError, match=r"of other subtriggers: \['b'\]"):
        trigger.load_state(state)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", "raises failed for {'a': True}: ValueError: no idea what 1 votes mean"),
        ("leaves", "leaves failed for {'a': True}: SystemExit: 3"),
        ("counts", "counts returned 1 for {'a': True}; it must return True or False"),
    ],
)
def test_a_function_that_fails_is_named_with_the_votes(function: str, message: str) -> None:
    trigger = build_trigger(ensemble(custom(function), a=AMOUNT))
    assert trigger.next_check(stream((0, 15)), -1) == 15
    with pytest.raises(UserCodeError) as caught:
        trigger.check(CheckContext(15, 15))
    assert message in caught.value.message


@pytest.mark.parametrize("function", ["modyn.no_such_module:vote", f"{__name__}:no_such_function", f"{__name__}:AMOUNT"])
def test_a_function_is_imported_when_a_run_executes_and_not_when_a_file_is_checked(function: str) -> None:
    section = ensemble({"id": "Custom", "function": function}, a=AMOUNT)
    assert check_trigger_section(section) == []
    with pytest.raises(ConfigError, match=function):
        build_trigger(section)


def test_a_function_of_a_package_that_is_missing_is_named_when_a_file_is_checked() -> None:
    (problem,) = check_trigger_section(ensemble({"id": "Custom", "function": "no_such_package.votes:vote"}, a=AMOUNT))
    assert (problem.path, problem.severity) == ("trigger.ensemble_strategy.function", Severity.UNAVAILABLE)
    assert "there is no package 'no_such_package' where the supervisor runs" in problem.message
    for function in ("builtins:any", "__main__:vote"):
        assert check_trigger_section(ensemble({"id": "Custom", "function": function}, a=AMOUNT)) == []


def test_a_function_may_answer_as_numpy_does() -> None:
    trigger = build_trigger(ensemble({"id": "Custom", "function": "numpy:bool_"}, a=AMOUNT))
    assert trigger.next_check(stream((0, 15)), -1) == 15
    assert trigger.check(CheckContext(15, 15)).fires is True


def test_what_is_due_after_the_very_last_sample_is_said_to_wait() -> None:
    samples = stream((0, 15))
    trigger = build_trigger(ensemble(at_least(1), amount=AMOUNT, time=TIME))
    assert decide(trigger, [samples]) == []
    assert "due after the very last sample" in trigger.end_warning()
    alone = build_trigger(ensemble(at_least(1), amount=AMOUNT))
    assert [record.position for record in decide(alone, [samples])] == [15]
    assert alone.end_warning() == ""
    more = build_trigger(ensemble(at_least(1), amount=AMOUNT, time=TIME))
    assert [record.position for record in decide(more, [stream((0, 16))])] == [15]
    assert more.end_warning() == ""


def test_a_module_that_fails_when_it_is_imported_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "votes_that_fail.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserCodeError, match="'votes_that_fail:vote' cannot be imported: ZeroDivisionError"):
        build_trigger(ensemble({"id": "Custom", "function": "votes_that_fail:vote"}, a=AMOUNT))


def _nested(levels: int) -> dict[str, Any]:
    section: dict[str, Any] = AMOUNT
    for _ in range(levels):
        section = ensemble(a=section)
    return section


@pytest.mark.parametrize(
    ("section", "path", "words"),
    [
        (ensemble(), "trigger.subtriggers", "at least 1"),
        ({"id": "EnsembleTrigger"}, "trigger.subtriggers", "is required"),
        (ensemble(at_least(3), a=AMOUNT, b=TIME), "trigger.ensemble_strategy.n", "3 of 2 subtriggers never fire together"),
        (ensemble("Majority", a=AMOUNT), "trigger.ensemble_strategy", "MajorityVote"),
        (ensemble({"id": "Custom"}, a=AMOUNT), "trigger.ensemble_strategy.function", "is required"),
        (ensemble({"id": "Custom", "function": "os"}, a=AMOUNT), "trigger.ensemble_strategy", "write 'package.module:function'"),
        (ensemble(a={"id": "TimTrigger"}), "trigger.subtriggers.a.id", "did you mean 'TimeTrigger'"),
        (ensemble(a=AMOUNT, b={"id": "TimeTrigger", "every": 0}), "trigger.subtriggers.b.every", "0 is wrong"),
        (ensemble(**{"a/b": AMOUNT}), "trigger.subtriggers", "begins with a letter"),
        (
            ensemble(a=ensemble(b=drift(metrics={"mmd": {"id": "M", "decision_criterion": {"id": "Tt"}}}))),
            "trigger.subtriggers.a.subtriggers.b.metrics.mmd.decision_criterion.id",
            "there is no decision criterion",
        ),
        (_nested(6), "trigger.subtriggers", "at most 5 ensembles"),
        (_nested(5000), "trigger.subtriggers", "at most 5 ensembles"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes(section: dict[str, Any], path: str, words: str) -> None:
    found = check_trigger_section(section)
    assert any(problem.path.startswith(path) and words in problem.message for problem in found), found


def test_five_levels_are_allowed() -> None:
    assert check_trigger_section(_nested(5)) == []
    assert fired(decide(build_trigger(_nested(5)), [stream((0, 40))])) == [15, 30]


def test_warnings_and_the_least_span_of_late_samples_are_those_of_the_subtriggers() -> None:
    trigger = build_trigger(ensemble(a=AMOUNT, b={"id": "TimeTrigger", "every": 50}, c=TIME))
    assert trigger.late_span_s == 50
    assert trigger.warning() is None
    assert isinstance(trigger, EnsembleTrigger)
    for name in ("a", "c"):
        trigger._children[name].warning = lambda name=name: f"{name} waits"  # type: ignore[method-assign, misc]
    assert trigger.warning() == "a: a waits; c: c waits"
