"""A sum that equals its threshold is not decided by rounding: the policies that compare sums, against exact fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.base import load_section
from modyn.config.online import ConvergenceConfig
from modyn.records import SampleBatch
from modyn.supervisor.criteria import CRITERIA, Measurement, Worse
from modyn.supervisor.detectors.page_hinkley import PageHinkley, PageHinkleyConfig
from modyn.supervisor.run.convergence import ConvergenceCheck
from modyn.supervisor.triggers import build_trigger
from modyn.testing.checks import decide
from modyn.testing.fake_evidence import FakeEvidence
from modyn.tolerance import exceeds
from tests.supervisor.run.test_convergence import trigger
from tests.supervisor.triggers.test_cost import RATE, at, policy
from tests.supervisor.triggers.test_performance import COUNT, performance
from tests.support.triggers import fired

TENTHS = st.integers(1, 60)


def decimal(tenths: int) -> float:
    """The number as a file writes it: the float next to it."""
    return float(Fraction(tenths, 10))


@given(terms=st.lists(st.integers(-30, 30), max_size=40), more=st.integers(-1, 1))
def test_sums_of_decimals_are_compared_as_fractions_are(terms: list[int], more: int) -> None:
    total, limit = 0.0, sum(terms) + more
    for term in terms:
        total += decimal(term)
    assert exceeds(total, decimal(limit)) == (more < 0)
    assert exceeds(decimal(limit), total) == (more > 0)


def test_ten_times_a_tenth_is_one() -> None:
    assert sum([0.1] * 10) != 1.0
    assert not exceeds(sum([0.1] * 10), 1.0)
    assert not exceeds(1.0, sum([0.1] * 10))
    assert exceeds(1.000_001, 1.0)


def _counted(errors: Sequence[int], expected: Fraction, threshold: Fraction) -> list[int]:
    """Where avoidable misclassifications exceed the threshold, each check of ten samples; the first one fires. Args: errors: of each check."""
    found, total = [10], Fraction(0)
    for number, wrong in enumerate(errors[1:], 2):
        total += max(Fraction(0), (expected - Fraction(10 - wrong, 10)) * 10)
        if total > threshold:
            found.append(10 * number)
            total = Fraction(0)
    return found


@given(errors=st.lists(st.integers(4, 10), min_size=3, max_size=12), expected=st.integers(61, 100), data=st.data())
def test_avoidable_misclassifications_fire_as_fractions_say(errors: list[int], expected: int, data: st.DataObject) -> None:
    """The threshold is the sum at one of the checks."""
    sums = np.cumsum([expected - 10 * (10 - wrong) for wrong in errors[1:]])  # in tenths of a sample
    threshold = Fraction(int(data.draw(st.sampled_from(list(sums)))), 10)
    labels = np.concatenate([np.repeat([0, 1], [wrong, 10 - wrong]) for wrong in errors])
    samples = SampleBatch(np.arange(len(labels)), np.arange(len(labels)), labels)
    count = COUNT | {"expected_accuracy": expected / 100, "avoidable_misclassification_threshold": float(threshold)}
    records = decide(build_trigger(performance(count)), [samples], source=FakeEvidence(samples))
    assert fired(records) == _counted(errors, Fraction(expected, 100), threshold)


@given(times=st.lists(st.integers(0, 30), min_size=3, max_size=30), rate=TENTHS, data=st.data())
def test_waiting_costs_fire_as_fractions_say(times: list[int], rate: int, data: st.DataObject) -> None:
    """A training is worth what has waited at one of the checks."""
    ordered, expected, last = sorted(times), [1], 1
    waited = [sum(ordered[at - 1] - ordered[sample] for sample in range(1, at)) for at in range(2, len(times) + 1)]
    threshold = data.draw(st.sampled_from(waited))
    for position in range(2, len(times) + 1):
        if sum(ordered[position - 1] - ordered[sample] for sample in range(last, position)) > threshold:
            expected.append(position)
            last = position
    asked = policy(lambda _: float(Fraction(10 * threshold, rate)), **{RATE: decimal(rate)})
    assert fired(decide(asked, [at(*ordered)])) == expected


@given(tenths=TENTHS, number=st.integers(1, 30), worse=st.sampled_from(Worse))
def test_a_value_like_all_before_it_is_usual(tenths: int, number: int, worse: Worse) -> None:
    criterion = CRITERIA.get("DynamicRollingAverageThresholdCriterion")
    found = criterion(load_section(criterion.Config, {"deviation": 0, "window_size": 30}), worse)
    assert not found.decide(Measurement(decimal(tenths)), [decimal(tenths)] * number).fires


@pytest.mark.parametrize(("threshold", "fires"), [(0.3, False), (0.299_999, True)])
def test_a_sum_of_deviations_that_equals_the_threshold_is_not_a_change(threshold: float, fires: bool) -> None:
    # With a mean of 0 so far, what rises by 0.1 three times, less the share of each in the mean, rises by 0.05 + 0.1 + 0.15 = 0.3.
    detector = PageHinkley(PageHinkleyConfig(min_instances=1, delta=0, threshold=threshold, alpha=1.0, mode="up"))
    assert [detector.update(value) for value in (0.0, 0.1, 0.2, 0.3)] == [False, False, False, fires]


def test_an_error_that_stays_the_same_is_flat_at_a_tolerance_of_nothing() -> None:
    check = ConvergenceCheck(ConvergenceConfig(window=3, tolerance=0))
    check.add(trigger(1, [*[(1, 0.1)] * 3, (3, 0.3)], errors=False))
    assert check.paused, "a loss of 0.1 a sample before, and now"
