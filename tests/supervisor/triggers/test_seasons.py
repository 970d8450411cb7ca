"""Windows that cover the same phases of a season: a cycle alone fires nothing, a drift in addition to it does; golden decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modyn.records import Interval, SampleBatch
from modyn.supervisor.triggers import TriggerContext, build_trigger, check_trigger_section
from modyn.supervisor.triggers.base import CheckRecord
from modyn.testing.checks import decide
from modyn.testing.fake_evidence import FakeEvidence
from tests.supervisor.triggers.test_drift import drift, seasons
from tests.support.triggers import fired

DAY, HOUR, A_DAY = 86_400, 3600, 96
DAYS = 42
CHANGE = 30
"""The day of the drift."""


def cycle(change: float = 0.0, weekend: float = 0.0, start: int = 0) -> SampleBatch:
    """Six weeks, a sample each quarter of an hour: labels rise and fall by 1 with the hour of the day, by `weekend` on two days of seven, and from
    the day of the drift on by `change`."""
    times = start + np.arange(DAYS * A_DAY) * (DAY // A_DAY)
    days = times // DAY
    labels = np.sin(2 * np.pi * times / DAY) + weekend * (days % 7 >= 5) + change * (days >= start // DAY + CHANGE)
    return SampleBatch(np.arange(len(times)), times, labels)


def checks(windows: dict[str, Any], samples: SampleBatch, **options: Any) -> list[CheckRecord]:
    """Each six hours, with a threshold of 0.5 for the difference of the means."""
    policy = build_trigger(
        drift(evaluation_interval_data_points=24, windowing_strategy=windows, **options), TriggerContext(seed=3)
    )
    return decide(policy, [samples], source=FakeEvidence(samples))


def days_fired(windows: dict[str, Any], samples: SampleBatch, **options: Any) -> list[float]:
    return [position / A_DAY for position in fired(checks(windows, samples, **options))]


PLAIN = seasons(limit_ref="1d", limit_cur="6h")
WHOLE = seasons(limit_ref="2d", limit_cur="1d", season="1d")
SAME = seasons(limit_cur="6h", season="1d", reference="same_phase")


@pytest.mark.parametrize(
    "start",
    [0, pytest.param(1_600_000_000 // DAY * DAY + 5 * HOUR, marks=pytest.mark.slow), -40 * DAY + 7],
    ids=["1970", "2020", "before 1970"],
)
def test_a_cycle_alone_fires_nothing_but_without_its_season(start: int) -> None:
    samples = cycle(start=start)
    assert days_fired(WHOLE, samples) == days_fired(SAME, samples) == [0.25], "the first trigger of each run"
    assert len(days_fired(PLAIN, samples)) > DAYS


def test_a_drift_in_addition_to_the_cycle_is_found() -> None:
    samples = cycle(change=0.8)
    assert days_fired(WHOLE, samples) == [0.25, CHANGE + 0.75], "the day that ended then is new for 18 of its hours, 0.6"
    again = [CHANGE + 0.25, CHANGE + 0.5, CHANGE + 0.75, CHANGE + 1]
    assert days_fired(SAME, samples) == [0.25, *again], "until the same phase one season ago is new, too"
    assert days_fired(SAME, samples, min_samples_between_triggers=A_DAY) == [0.25, CHANGE + 0.25]


def test_a_week_is_a_longer_season_than_a_day() -> None:
    samples = cycle(weekend=0.8)
    assert len(days_fired(SAME, samples)) > 10, "Saturday is compared with Friday"
    week = seasons(limit_cur="6h", season="1w", reference="same_phase")
    assert days_fired(week, samples) == days_fired(seasons(limit_ref="1w", limit_cur="1w", season="1w"), samples) == [0.25]
    assert days_fired(week, cycle(weekend=0.8, change=0.8), min_samples_between_triggers=7 * A_DAY) == [0.25, CHANGE + 0.25]


def test_windows_are_whole_or_nothing_is_measured() -> None:
    samples = cycle(change=0.8)
    for windows, first in ((WHOLE, 2.5), (SAME, 1.5)):
        measured = [record.position / A_DAY for record in checks(windows, samples) if "mmd" in record.numbers]
        assert measured[0] == first, "two days after the first sample, and a window after the first trigger"
        assert measured == [
            at for at in np.arange(first, DAYS + 0.25, 0.25) if windows is SAME or not CHANGE + 0.75 < at < CHANGE + 1.75
        ]
    numbers = {
        (record.numbers["reference_samples"], record.numbers["current_samples"])
        for record in checks(WHOLE, samples)
        if "mmd" in record.numbers
    }
    assert numbers == {(2 * A_DAY, A_DAY)}
    overlapping = [record for record in checks({**WHOLE, "allow_overlap": True}, samples) if "mmd" in record.numbers]
    assert len(overlapping) > len(measured) - 8


def test_the_reference_of_a_trigger_before_a_season_are_the_first_ones() -> None:
    samples = cycle(change=0.8)
    source = FakeEvidence(samples)
    policy = build_trigger(drift(evaluation_interval_data_points=24, windowing_strategy=WHOLE))
    decide(policy, [samples], source=source)
    references = list(dict.fromkeys(question.reference.times for question in source.asked))
    assert references[0] == Interval(0, 2 * DAY)
    end = (CHANGE * A_DAY + 72) * DAY // A_DAY  # after the newest sample at the trigger
    assert references[1].start == end - DAY // A_DAY - 2 * DAY + 1
    assert len(references) == 2
    assert policy.end_warning() == ""


def test_the_reference_is_the_same_window_one_season_ago() -> None:
    samples = cycle()
    source = FakeEvidence(samples)
    decide(build_trigger(drift(evaluation_interval_data_points=24, windowing_strategy=SAME)), [samples], source=source)
    for question in source.asked:
        assert question.current.times.start - question.reference.times.start == DAY
        assert question.reference.times.end - question.reference.times.start == 6 * HOUR
        assert question.reference.stop - question.reference.start < 40, "positions near these times alone are read"


def test_a_stream_that_is_shorter_than_its_windows_is_told() -> None:
    samples = cycle().slice(0, A_DAY)
    for windows, said in ((WHOLE, "limit_ref=172800s"), (SAME, "season + limit_cur=108000s")):
        policy = build_trigger(drift(evaluation_interval_data_points=24, windowing_strategy=windows))
        decide(policy, [samples], source=FakeEvidence(samples))
        assert said in policy.end_warning()


@pytest.mark.parametrize(
    ("windows", "path", "words"),
    [
        ({"limit_cur": "1d"}, "limit_ref", "is required"),
        ({"limit_cur": "1d", "reference": "same_phase"}, "season", "is required where `reference` is same_phase"),
        ({"limit_cur": "1d", "season": "1d", "limit_ref": "1d", "reference": "same_phase"}, "limit_ref", "has no meaning"),
        ({"limit_cur": "36h", "season": "1d", "reference": "same_phase"}, "limit_cur", "write at most 1d"),
        ({"limit_cur": "1d", "season": "1w", "limit_ref": "2w"}, "limit_cur",
         "1d is not a multiple of the season, 1w, so that the windows cover other phases; write 1w"),
        ({"limit_cur": "1w", "season": "1w", "limit_ref": "30d"}, "limit_ref", "write 5w"),
        ({"limit_cur": "1d", "limit_ref": "1d", "reference": "same phase"}, "reference", "'last_trigger' or 'same_phase'"),
        ({"limit_cur": "1d", "limit_ref": "1d", "season": 0}, "season", "greater than or equal to 1"),
    ],
)  # fmt: skip
def test_windows_that_cover_other_phases_are_refused(windows: dict[str, Any], path: str, words: str) -> None:
    found = check_trigger_section(drift(windowing_strategy=seasons(**windows)))
    assert [problem.path for problem in found] == [f"trigger.windowing_strategy.{path}"], found
    assert words in found[0].message
