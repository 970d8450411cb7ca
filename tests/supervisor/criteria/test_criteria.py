"""Verdicts of the decision criteria against series that were worked out by hand."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import InvalidArgumentError
from modyn.supervisor.criteria import CRITERIA, DecisionCriterion, Measurement, Verdict, Worse
from modyn.supervisor.criteria.votes import AllVote, AtLeastN, MajorityVote

SERIES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20)


def criterion(id_: str, worse: Worse = Worse.HIGHER, **options: object) -> DecisionCriterion:
    policy = CRITERIA.get(id_)
    return policy(policy.Config.model_validate(options), worse)


def fires(found: DecisionCriterion, series: Sequence[float]) -> list[bool]:
    """The verdict on each value of a series, given those before it."""
    verdicts = []
    for number, value in enumerate(series):
        before = series[max(0, number - found.window_size) : number]
        verdicts.append(found.decide(Measurement(value), before).fires)
    return verdicts


def test_a_constant_threshold_is_strict_and_has_two_sides() -> None:
    assert fires(criterion("ThresholdDecisionCriterion", threshold=0.5), [0.4, 0.5, 0.6]) == [False, False, True]
    low = criterion("ThresholdDecisionCriterion", Worse.LOWER, threshold=0.5)
    assert fires(low, [0.4, 0.5, 0.6]) == [True, False, False]


def test_zero_is_a_threshold_and_a_value() -> None:
    assert fires(criterion("ThresholdDecisionCriterion", threshold=0), [0.0, 1e-9, -1.0]) == [False, True, False]
    assert fires(criterion("DynamicQuantileThresholdCriterion"), [0.0, 0.0, 0.1]) == [False, False, True]
    assert fires(criterion("DynamicRollingAverageThresholdCriterion"), [0.0, 0.0, 0.1]) == [False, False, True]


def test_the_quantile_is_interpolated_between_neighbours() -> None:
    # Of 1, 2, 3, 4 in order, index 0.9 · 3 = 2.7: 3.7. Of low values, index 0.1 · 3 = 0.3: 1.3.
    high = criterion("DynamicQuantileThresholdCriterion", window_size=4, quantile=0.1)
    verdict = high.decide(Measurement(3.8), [4, 1, 3, 2])
    assert verdict.fires
    assert verdict.threshold == pytest.approx(3.7)
    assert not high.decide(Measurement(3.6), [4, 1, 3, 2]).fires
    low = criterion("DynamicQuantileThresholdCriterion", Worse.LOWER, window_size=4, quantile=0.1)
    verdict = low.decide(Measurement(1.2), [4, 1, 3, 2])
    assert verdict.fires
    assert verdict.threshold == pytest.approx(1.3)


def test_autodrift_fires_at_the_largest_of_fifteen_scores() -> None:
    scores = [0.010, 0.012, 0.011, 0.013, 0.012, 0.011, 0.014, 0.012, 0.010, 0.013, 0.011, 0.012, 0.014, 0.013, 0.012]
    autodrift = criterion("DynamicQuantileThresholdCriterion", window_size=15, quantile=0.05)
    assert autodrift.decide(Measurement(0.0141), scores).fires
    assert not autodrift.decide(Measurement(0.0139), scores).fires


def test_the_deviation_is_of_the_absolute_value_of_the_average() -> None:
    relative = criterion("DynamicRollingAverageThresholdCriterion", deviation=0.5)
    assert relative.decide(Measurement(0.0), [-1.0, -1.0]) == Verdict(True, -0.5)
    assert not relative.decide(Measurement(-0.6), [-1.0, -1.0]).fires
    absolute = criterion("DynamicRollingAverageThresholdCriterion", Worse.LOWER, deviation=0.5, absolute=True)
    assert absolute.decide(Measurement(0.4), [1.0]) == Verdict(True, 0.5)


@pytest.mark.parametrize("id_", ["DynamicQuantileThresholdCriterion", "DynamicRollingAverageThresholdCriterion"])
@pytest.mark.parametrize("worse", list(Worse))
def test_without_observations_the_answer_is_no(id_: str, worse: Worse) -> None:
    assert criterion(id_, worse).decide(Measurement(1e9 * worse), []) == Verdict(False, None)


@given(before=SERIES, value=st.floats(-1e6, 1e6))
@pytest.mark.parametrize("id_", ["DynamicQuantileThresholdCriterion", "DynamicRollingAverageThresholdCriterion"])
def test_low_is_the_mirror_of_high(id_: str, before: list[float], value: float) -> None:
    high = criterion(id_).decide(Measurement(value), before)
    low = criterion(id_, Worse.LOWER).decide(Measurement(-value), [-each for each in before])
    assert high.threshold is not None
    assert low.threshold == pytest.approx(-high.threshold, abs=1e-6)
    if abs(value - high.threshold) > 1e-5:
        assert high.fires == low.fires


@given(before=SERIES, value=st.floats(-1e6, 1e6), deviation=st.floats(0, 3))
def test_the_average_is_that_of_statistics(before: list[float], value: float, deviation: float) -> None:
    found = criterion("DynamicRollingAverageThresholdCriterion", deviation=deviation, absolute=True)
    assert found.decide(Measurement(value), before).threshold == pytest.approx(statistics.fmean(before) + deviation, abs=1e-6)


def test_p_values_below_the_level_fire() -> None:
    found = criterion("PValueDecisionCriterion", p_val=0.05)
    assert found.decide(Measurement(7.0, 0.04), []).fires
    assert not found.decide(Measurement(7.0, 0.05), []).fires
    with pytest.raises(InvalidArgumentError, match="num_permutations"):
        found.decide(Measurement(7.0), [])


@given(votes=st.lists(st.booleans(), min_size=1, max_size=9), n=st.integers(1, 9))
def test_votes_are_counted(votes: list[bool], n: int) -> None:
    yes, no = votes.count(True), votes.count(False)
    assert MajorityVote().decide(votes) == (yes > no)
    assert AtLeastN(n=n).decide(votes) == (yes >= n)
    assert AllVote().decide(votes) == (no == 0)
