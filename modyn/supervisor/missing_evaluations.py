"""Which evaluations in the journal of a run failed, and which of these are missing: parts of queries."""

from __future__ import annotations

from sqlalchemy import ColumnElement, FromClause, and_, exists, func, not_, or_, select

from modyn.supervisor.states import TERMINAL
from modyn.supervisor.tables import RUNS, STEPS


def _is_own(steps: FromClause) -> ColumnElement[bool]:
    return steps.c.name.not_like("%/request %")


OWN = _is_own(STEPS)
"""Evaluations of the run, not of a request: by the last part of `EvaluationTask.step_name`."""
# One that failed is `started` while it is made again: until it has ended well, it counts.
FAILED = or_(STEPS.c.state == "failed", and_(STEPS.c.state == "started", OWN, RUNS.c.state.in_([str(s) for s in TERMINAL])))

_MADE = STEPS.alias("made")
# Two of the run are of different intervals. What a request failed at is there already if the run has made it by itself, or a request
# once the run had ended: all intervals were known then.
_MADE_AGAIN = and_(_MADE.c.finished_at > func.coalesce(STEPS.c.finished_at, STEPS.c.started_at), not_(and_(OWN, _is_own(_MADE))))
_MADE_BEFORE = and_(not_(OWN), or_(_is_own(_MADE), _MADE.c.started_at >= RUNS.c.finished_at))
MISSING_EVALUATIONS = (
    select(func.count())
    .select_from(STEPS)
    .where(STEPS.c.run_id == RUNS.c.run_id, STEPS.c.step == "evaluate", FAILED)
    .where(
        ~exists()
        .where(
            _MADE.c.run_id == STEPS.c.run_id,
            _MADE.c.trigger_id == STEPS.c.trigger_id,
            _MADE.c.step == "evaluate",
            _MADE.c.state == "finished",
            *(_MADE.c.detail[name].astext == STEPS.c.detail[name].astext for name in ("handler", "dataset")),
            or_(_MADE_AGAIN, _MADE_BEFORE),
        )
        .correlate(STEPS, RUNS)
    )
    .correlate(RUNS)
    .scalar_subquery()
)
"""The number of failed evaluations of a run whose scores are not there."""
