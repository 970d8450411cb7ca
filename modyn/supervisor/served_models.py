"""Which model versions servers of predictions hold, or load when they start: retention leaves these alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select

from modyn.db.engine import Database
from modyn.supervisor.tables import RUNS, SERVED

_GONE_S: Final = 7 * 86_400.0
"""A server that has reported nothing for so long comes back no more."""
_LAST_S: Final = 60.0
"""Servers of a run report each second, which is written each 10 s: its versions of so many seconds before the last report are those they held."""


@dataclass(frozen=True, slots=True)
class ServedModels:
    """What the journal knows of the versions that servers need."""

    reported: frozenset[int]
    """Models that servers of any run had in use, or pinned, when they reported last."""
    pinned: frozenset[int]
    """Models that the section `serving` of a run pins."""
    runs: frozenset[str]
    """Runs with a section `serving`: their newest version may be loaded as serving version, canary or shadow."""

    @classmethod
    def read(cls, database: Database, now: float) -> ServedModels:
        """Read it from the journal. Args: now: seconds since 1970."""
        last = (
            select(SERVED.c.run_id, func.max(SERVED.c.last_at).label("at"))
            .where(SERVED.c.last_at >= now - _GONE_S)
            .group_by(SERVED.c.run_id)
            .subquery()
        )
        reported = select(SERVED.c.model_id).join(
            last, (SERVED.c.run_id == last.c.run_id) & (SERVED.c.last_at >= last.c.at - _LAST_S)
        )
        sections = select(RUNS.c.run_id, RUNS.c.pipeline["serving"]).where(RUNS.c.pipeline.has_key("serving"))
        with database.session() as session:
            found, of_runs = frozenset(session.scalars(reported)), dict(session.execute(sections).all())
        pinned = frozenset(model_id for section in of_runs.values() for model_id in (section or {}).get("pinned", ()))
        return cls(found, pinned, frozenset(of_runs))

    @property
    def needed(self) -> frozenset[int]:
        """Models that are served, whatever becomes of the run that has made them."""
        return self.reported | self.pinned
