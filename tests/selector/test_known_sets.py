"""Trigger sets in memory: found again until their run is deleted, and not after."""

from __future__ import annotations

from modyn.records import RunId
from modyn.selector.known_sets import FoundSet, KnownSets
from modyn.selector.run_rows import RunRecord, TriggerSetRecord

RUN, OTHER = RunId("run-1"), RunId("run-2")


def run(run_id: RunId, number: int) -> RunRecord:
    return RunRecord(number, run_id, "d", {"name": "NewDataStrategy", "maximum_keys_in_memory": 10}, 1, None, 0, False, "", None)


def record(trigger_id: int) -> TriggerSetRecord:
    return TriggerSetRecord(trigger_id, 10, 10, 10, f"checksum {trigger_id}", {}, 0, {}, online=True)


def never() -> FoundSet:
    raise AssertionError("it was looked up")


def test_what_was_added_or_looked_up_is_not_looked_up_again() -> None:
    sets = KnownSets()
    sets.add(run(RUN, 1), record(0))
    assert sets.newest(RUN) == (run(RUN, 1), record(0))
    assert sets.get(RUN, 0, never)[1].keys_checksum == "checksum 0"
    looked_up = run(RUN, 1), record(3).info(run(RUN, 1))
    assert sets.get(RUN, 3, lambda: looked_up) == sets.get(RUN, 3, never) == looked_up


def test_nothing_is_known_of_a_run_that_was_deleted_even_while_it_was_looked_up() -> None:
    sets = KnownSets()
    sets.add(run(RUN, 1), record(0))
    sets.add(run(OTHER, 2), record(0))

    def deleted_meanwhile() -> FoundSet:
        sets.forget(RUN)
        return run(RUN, 1), record(1).info(run(RUN, 1))

    assert sets.get(RUN, 1, deleted_meanwhile)[1].trigger_id == 1
    assert sets.newest(RUN) is None
    again = run(RUN, 3), record(7).info(run(RUN, 3))
    assert [sets.get(RUN, trigger_id, lambda: again) for trigger_id in (0, 1)] == [again, again]
    assert sets.get(OTHER, 0, never)[0].number == 2


def test_a_bounded_number_of_sets_and_runs_is_known() -> None:
    sets = KnownSets()
    for number in range(300):
        sets.add(run(RunId(f"run-{number}"), number), record(0))
    assert sets.newest(RunId("run-0")) is None
    assert sets.newest(RunId("run-299")) is not None
    assert sets.get(RunId("run-0"), 0, lambda: (run(RUN, 9), record(5).info(run(RUN, 9))))[0].number == 9
