"""When steps pause and start again, against the rule computed sample by sample."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.online import ConvergenceConfig
from modyn.supervisor.journal.records import TriggerRecord
from modyn.supervisor.journal.states import TriggerState
from modyn.supervisor.run.convergence import ConvergenceCheck, RecentRows, RiseTest
from modyn.trainer_server.client import ErrorRow, TrainingResult
from modyn.trainer_server.result import PrequentialResult

ROWS = st.lists(st.integers(1, 9).flatmap(lambda num: st.tuples(st.just(num), st.integers(0, num))), max_size=60)


def trigger(number: int, rows: list[tuple[int, float]], *, online: bool = True, errors: bool = True) -> TriggerRecord:
    sums = tuple(total for _, total in rows)
    tests = PrequentialResult(1, tuple(num for num, _ in rows), sums, tuple(map(int, sums)) if errors else None)
    result = TrainingResult(prequential=tests if online else None)
    return TriggerRecord(
        number, 10 * number, 0, 9, 9, TriggerState.TRAINED, 0.0, model_id=number, training_result=result, online=online
    )


def rows_of(share: float, num_rows: int = 10, size: int = 20) -> list[tuple[int, float]]:
    return [(size, round(share * size))] * num_rows


@given(rows=ROWS, window=st.integers(1, 40))
def test_windows_are_the_newest_rows_that_reach_them(rows: list[tuple[int, int]], window: int) -> None:
    recent = RecentRows(2 * window)
    for number, row in enumerate(rows, 1):
        recent.add(ErrorRow(*row))
        seen = rows[:number]
        first = number
        while first and sum(num for num, _ in seen[first:]) < window:
            first -= 1
        assert list(recent.newest(window)) == [ErrorRow(*row) for row in seen[first:]]
        found = recent.halves(window)
        if sum(num for num, _ in seen[:first]) < window:
            assert found is None
            continue
        # Those before reach the window too, or a little more: rows that went are not needed.
        assert found is not None
        assert found[1] == sum(total for _, total in seen[first:]) / sum(num for num, _ in seen[first:])
        before = first
        while sum(num for num, _ in seen[before:first]) < window:
            before -= 1
        means = [
            sum(t for _, t in seen[i:first]) / sum(n for n, _ in seen[i:first])
            for i in range(before + 1)
            if sum(n for n, _ in seen[i:]) < 2 * window + 2 * 9
        ]
        assert found[0] in means


@given(before=ROWS.filter(len), after=ROWS, rise=st.floats(0, 1), threshold=st.floats(0.5, 8), errors=st.booleans())
def test_a_rise_is_what_the_sums_say(
    before: list[tuple[int, int]], after: list[tuple[int, int]], rise: float, threshold: float, errors: bool
) -> None:
    """Page-Hinkley by its definition: all sums are made again for each row."""
    test = RiseTest(ConvergenceConfig(rise=rise, threshold=threshold), [ErrorRow(*row) for row in before], errors)
    samples = sum(num for num, _ in before)
    level = sum(total for _, total in before) / samples
    variance = sum(num * (total / num - level) ** 2 for num, total in before) / max(1, len(before) - 1)
    if errors:
        share = (sum(total for _, total in before) + 1) / (samples + 2)
        variance = max(variance, share * (1 - share))
    deviation = max(math.sqrt(variance), 1e-6 * level, 1e-12)
    values: list[float] = []
    fired = False
    for number, (num, total) in enumerate([*before, *after]):
        if fired:
            values.clear()
        values.append((total / num - level) * math.sqrt(num) / deviation)
        sums = np.cumsum([value - np.mean(values[: i + 1]) - rise for i, value in enumerate(values)])
        excess = sums[-1] - sums.min()
        fired = bool(excess > threshold)
        if number >= len(before):
            found = test.add(ErrorRow(num, total))
            if abs(excess - threshold) < 1e-6 * max(1.0, abs(excess)):
                return  # Rounding decides.
            assert found == fired
        elif abs(excess - threshold) < 1e-6 * max(1.0, abs(excess)):
            return
    assert test.level == pytest.approx(level)


def test_steps_pause_while_the_error_is_flat_and_start_again_when_it_rises() -> None:
    check = ConvergenceCheck(ConvergenceConfig(window=400, tolerance=0.05))
    seen = []
    shares = [0.5, 0.4, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 0.1, 0.2, 0.5, 0.4, 0.4, 0.4, 0.4]
    for number, share in enumerate(shares, 1):
        check.add(trigger(number, rows_of(share)))
        seen.append((check.paused, bool(check.change)))
    # 200 samples a trigger: flat once the newest two equal the two before; a fall is not a rise.
    assert [paused for paused, _ in seen] == [False] * 6 + [True] * 4 + [False] * 4 + [True]
    assert [number for number, (_, change) in enumerate(seen, 1) if change] == [7, 11, 15]


def test_a_retraining_begins_again() -> None:
    check, paused = ConvergenceCheck(ConvergenceConfig(window=200)), []
    for number in (1, 2):
        check.add(trigger(number, rows_of(0.2)))
        paused.append(check.paused)
    assert "steps pause: the prequential error is flat, 0.2 over the newest 200 samples" in check.change
    for record in (trigger(3, [], online=False), trigger(4, rows_of(0.2)), trigger(5, rows_of(0.2))):
        check.add(record)
        paused.append(check.paused)
    assert paused == [False, True, False, False, True]


def test_losses_have_any_scale() -> None:
    decisions = []
    for scale in (1e-4, 1.0, 1e4):
        check = ConvergenceCheck(ConvergenceConfig(window=400))
        found = []
        for number in range(30):
            noise = np.random.default_rng(number).normal(1.0 if number < 20 else 1.3, 0.2, 200).reshape(10, 20).sum(1)
            check.add(trigger(number, [(20, scale * float(total)) for total in noise], errors=False))
            found.append(check.paused)
        decisions.append(found)
    assert decisions[0] == decisions[1] == decisions[2]
    assert decisions[1][10:20] == [True] * 10
    assert decisions[1][20] is False


def test_few_false_alarms_while_the_error_stays() -> None:
    """1,000 triggers with 20 rows each, whose errors have one share."""
    check = ConvergenceCheck(ConvergenceConfig(window=2000, tolerance=0.2))
    draw = np.random.default_rng(3)
    flips = 0
    for number in range(1000):
        check.add(trigger(number, [(50, float(total)) for total in draw.binomial(50, 0.1, 20)]))
        flips += bool(check.change) and not check.paused
    assert flips <= 2


@given(
    triggers_rows=st.lists(st.tuples(ROWS, st.booleans()), max_size=12),
    cut=st.integers(0, 12),
    window=st.integers(2, 60),
    tolerance=st.floats(0, 0.5),
)
def test_decisions_are_those_of_a_run_that_was_not_interrupted(
    triggers_rows: list[tuple[list[tuple[int, int]], bool]], cut: int, window: int, tolerance: float
) -> None:
    """A resumed run takes the triggers from the journal, which is all that it knows."""
    config = ConvergenceConfig(window=window, tolerance=tolerance, threshold=1.0)
    triggers = [trigger(number, list(rows), online=online) for number, (rows, online) in enumerate(triggers_rows)]
    first, resumed = ConvergenceCheck(config), ConvergenceCheck(config)
    found = []
    for record in triggers:
        first.add(record)
        found.append((first.paused, first.change))
    for record in triggers[:cut]:
        resumed.add(record)
    for number, record in enumerate(triggers[cut:], cut):
        resumed.add(record)
        assert (resumed.paused, resumed.change) == found[number]
    assert all(not change or before[0] != after[0] for before, after in pairwise([(False, ""), *found]) for change in [after[1]])


def test_rows_without_a_number_are_left_out() -> None:
    assert PrequentialResult(1, (2, 3), (float("nan"), 1.5)).rows == [ErrorRow(3, 1.5)]
