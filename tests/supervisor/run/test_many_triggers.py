"""Ten thousand triggers of a fake trainer in one run: the last hundred cost the database what the first hundred cost."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import String, cast, func, select

from benchmark.many_triggers import DRIFT, compare, run_triggers
from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.states import RunState
from modyn.supervisor.journal.tables import CHECKS, CURSORS, EVENTS, STEPS, TRIGGERS

MOST_BYTES_A_TRIGGER = 16 << 10
"""Bytes of the whole process: the fakes keep each trigger set and each model's result."""
MOST_BYTES_OF_STATE = 16 << 10
"""Bytes of the state of a drift policy that remembers 500 distances and the times of an hour."""


@pytest.mark.slow
def test_rows_statements_and_bytes_of_a_drift_check_stay_the_same(system_config: SystemConfig, tmp_path: Path) -> None:
    triggers = 402
    database = open_database(system_config, "supervisor", "modyn.supervisor.migrations")
    try:
        run_id, marks = run_triggers(database, tmp_path, triggers, trigger=DRIFT)
        run = Journal(database).run(run_id)
        assert (run.state, run.num_triggers) == (RunState.FINISHED, triggers)
        first, last, _ = compare(marks)
        assert first.statements == last.statements
        with database.session() as session:
            query = (
                select(func.length(cast(CHECKS.c.evidence, String))).where(CHECKS.c.run_id == run_id).order_by(CHECKS.c.position)
            )
            lengths = session.scalars(query).all()
            state = session.scalar(select(func.length(cast(CURSORS.c.policy_state, String))).where(CURSORS.c.run_id == run_id))
        assert len(lengths) == triggers
        assert max(lengths[-100:]) <= max(lengths[2:102]) + 40, "numbers of positions grow by a digit"
        assert state is not None
        assert state < MOST_BYTES_OF_STATE
    finally:
        database.close()


@pytest.mark.parametrize(
    "triggers",
    [202, pytest.param(10_000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1200)])],
)
def test_statements_and_rows_of_a_trigger_stay_the_same(system_config: SystemConfig, tmp_path: Path, triggers: int) -> None:
    database = open_database(system_config, "supervisor", "modyn.supervisor.migrations")
    try:
        run_id, marks = run_triggers(database, tmp_path, triggers)
        assert Journal(database).run(run_id).state is RunState.FINISHED
        first, last, grown = compare(marks)
        if triggers > 1000:  # of few, the memory that is taken at once counts for more than what a trigger keeps
            assert grown < MOST_BYTES_A_TRIGGER
        assert first.statements == last.statements
        with database.session() as session:
            for table, rows in ((TRIGGERS, 1), (STEPS, 2)):
                assert session.scalar(select(func.count()).where(table.c.run_id == run_id)) == rows * triggers
            query = select(EVENTS.c.seq).where(EVENTS.c.run_id == run_id, EVENTS.c.kind == "trigger_fired").order_by(EVENTS.c.seq)
            fired = session.scalars(query).all()
        assert {later - earlier for earlier, later in pairwise(fired)} == {fired[1] - fired[0]}, "events of a trigger"
    finally:
        database.close()
