"""Where the samples of a run are kept: `local` columnar files, or the `database`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy.orm import Session

from modyn.selector.backends.base import SampleLog
from modyn.selector.backends.local import FileLog
from modyn.selector.backends.postgres import TableLog
from modyn.selector.catalogue import RunRecord

__all__ = ["BACKENDS", "SampleLog", "open_log"]

BACKENDS: Final[dict[str, type[SampleLog]]] = {"database": TableLog, "local": FileLog}
"""Values of `selection_strategy.storage_backend`."""


def open_log(run: RunRecord, session: Session, directory: Path) -> SampleLog:
    """The samples of a run whose row the session's transaction has read; `directory` is the run's own."""
    return BACKENDS[run.selection_strategy.get("storage_backend", "local")](run, session, directory)
