"""Served requests are counted in a bounded number of intervals, and no request is lost or counted twice."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.errors import NotFoundError, UnavailableError
from modyn.records import VersionRole, VersionUse
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.records import NewRun, RunMode, RunOptions, ServedInterval
from modyn.supervisor.served.history import DAY, HOUR, MINUTE, ServedHistory, add_intervals, joined, widened
from tests.support.clock import Clock

SERVING, CANARY, SHADOW = VersionRole.SERVING, VersionRole.CANARY, VersionRole.SHADOW
NEW = NewRun(RunOptions(RunMode.PRODUCTION), "p", "yaml: text", "p.yaml", {}, selection_seed=3)


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0 * DAY)


def answers(number: int, model_id: int = 7, role: VersionRole = SERVING) -> VersionUse:
    return VersionUse(model_id, role, 1.0, {8184: number} if number else {})


INTERVALS = st.lists(
    st.builds(
        lambda start, model_id, role, first, number: ServedInterval(
            start * MINUTE, MINUTE, model_id, role, start * MINUTE + first, start * MINUTE + first + 1, {8184: number}
        ),
        st.integers(0, 200),
        st.integers(1, 3),
        st.sampled_from([SERVING, CANARY]),
        st.floats(0, 58),
        st.integers(1, 9),
    ),
    max_size=30,
)


@given(intervals=INTERVALS, width=st.sampled_from([MINUTE, HOUR, DAY]))
def test_wider_intervals_have_all_requests_in_any_order(intervals: list[ServedInterval], width: int) -> None:
    found = joined(widened(interval, width) for interval in intervals)
    assert found == joined(widened(interval, width) for interval in reversed(joined(intervals)))
    assert len({(f.start, f.model_id, f.role) for f in found}) == len(found)
    for f in found:
        parts = [i for i in intervals if (i.start // width * width, i.model_id, i.role) == (f.start, f.model_id, f.role)]
        assert f.num_requests == sum(part.num_requests for part in parts)
        assert (f.first_at, f.last_at) == (min(p.first_at for p in parts), max(p.last_at for p in parts))
        assert (f.width, f.start % width) == (width, 0)


def test_what_servers_report_is_counted_by_the_minute(journal: Journal, clock: Clock) -> None:
    run, start = journal.create(NEW).run_id, int(clock.now)
    history = ServedHistory(journal, clock)
    history.add(run, [answers(3), answers(0, 8, SHADOW)])
    history.flush()
    clock.now += 30
    history.add(run, [answers(4), answers(1, 8, CANARY)])
    ServedHistory(journal, clock).add(run, [answers(9)])  # is killed before it writes
    clock.now += 30
    history.add(run, [answers(5)])
    history.flush()
    history.flush()
    assert list(ServedHistory(journal).each(run)) == [
        ServedInterval(start, MINUTE, 7, SERVING, start, start + 30.0, {8184: 7}),
        ServedInterval(start, MINUTE, 8, CANARY, start + 30.0, start + 30.0, {8184: 1}),
        ServedInterval(start, MINUTE, 8, SHADOW, start, start, {}),
        ServedInterval(start + MINUTE, MINUTE, 7, SERVING, start + 60.0, start + 60.0, {8184: 5}),
    ]


def test_a_year_takes_a_bounded_number_of_rows(journal: Journal, clock: Clock) -> None:
    run, began = journal.create(NEW).run_id, clock.now
    history = ServedHistory(journal, clock)
    steps = [(75, 5 * DAY), (30, HOUR), (50, 10 * MINUTE), (20, MINUTE)]  # ever more often
    number = 0
    for times, pause in steps:
        for _ in range(times):
            history.add(run, [answers(1)])
            history.flush()
            clock.now, number = clock.now + pause, number + 1
    rows = list(ServedHistory(journal).each(run))
    assert sum(row.num_requests for row in rows) == number
    assert (rows[0].first_at, rows[-1].last_at) == (began, clock.now - MINUTE)
    for width, kept in ((MINUTE, DAY + HOUR), (HOUR, 91 * DAY)):
        assert all(clock.now - row.start <= kept + MINUTE for row in rows if row.width == width)
    spans = [(row.start, row.start + row.width) for row in rows]
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@given(read=st.integers(0, 3 * 288), wait=st.sampled_from([0, HOUR, DAY, 2 * DAY, 95 * DAY]))
@settings(max_examples=settings().max_examples // 4)
def test_a_reader_gets_each_request_once_even_if_intervals_are_widened_meanwhile(
    journal: Journal, clock: Clock, read: int, wait: int
) -> None:
    """A report is read while servers report: an interval of one page may become part of a wider one before the next page is read."""
    run_id, history, begin = journal.create(NEW).run_id, ServedHistory(journal, clock), 1000 * DAY + 5000
    minutes = [
        ServedInterval(start, MINUTE, 7, SERVING, start, start + 1, {8184: 1})
        for start in range(begin // MINUTE * MINUTE, begin + 3 * DAY, 5 * MINUTE)
    ]
    clock.now = begin + DAY
    with journal.write(run_id) as write:
        add_intervals(write.session, run_id, minutes, clock())
    reader = history.each(run_id)
    found = [*islice(reader, read)]
    clock.now += wait
    history.add(run_id, [answers(5)])
    history.flush()
    found += reader
    counted = sum(interval.num_requests for interval in found)
    assert counted in (len(minutes), len(minutes) + 5), "the newest are read, or came after what was read"
    assert all(one.start + one.width <= other.start for one, other in pairwise(found))


def test_what_comes_late_is_added_to_the_wide_interval(journal: Journal, clock: Clock) -> None:
    run, began = journal.create(NEW).run_id, clock.now
    early, late = ServedHistory(journal, clock), ServedHistory(journal, clock)
    early.add(run, [answers(1)])
    late.add(run, [answers(2)])
    early.flush()
    clock.now += 2 * DAY
    for history in (early, late):
        history.add(run, [answers(4)])
        history.flush()
    rows = [(row.start, row.width, row.num_requests) for row in ServedHistory(journal).each(run)]
    assert rows == [(began, HOUR, 3), (clock.now, MINUTE, 8)]


class AwayOnce(Journal):
    """A journal whose database is away for one write."""

    is_away = True

    def write(self, run_id: str, attempt: int | None = None) -> Any:
        if self.is_away:
            self.is_away = False
            raise UnavailableError("the database is away")
        return super().write(run_id, attempt)


def test_counts_wait_for_a_database_that_is_away_and_not_for_a_run_that_is_gone(journal: Journal, clock: Clock) -> None:
    run = journal.create(NEW).run_id
    history = ServedHistory(AwayOnce(journal.database), clock)
    history.add(run, [answers(3)])
    history.add("never-0001", [answers(3)])
    with pytest.raises(UnavailableError, match="the database is away"):
        history.flush()
    history.add(run, [answers(4)])
    history.flush()
    assert [row.num_requests for row in ServedHistory(journal).each(run)] == [7]
    with pytest.raises(NotFoundError, match="there is no run 'never-0001'"):
        list(ServedHistory(journal).each("never-0001"))
