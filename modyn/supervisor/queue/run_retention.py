"""Removal of runs and models that exceed the limits of section `retention`, and continuation of interrupted removals."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final, Self

from sqlalchemy import func, select

from modyn.config.system_sections.retention import RetentionConfig
from modyn.db.engine import Database
from modyn.errors import ConflictError, ModynError, NotFoundError
from modyn.keep_limits import KeptItem, outlived
from modyn.model_storage.client import ModelStorageClient
from modyn.records import ModelVersion
from modyn.rpc.logs import get_logger
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.states import RunState
from modyn.supervisor.journal.tables import RUNS, SERVED
from modyn.supervisor.queue.removal import RunRemoval

_REMOVABLE = frozenset({RunState.FINISHED, RunState.STOPPED, RunState.FAILED})
"""States of removable runs. An interrupted run can continue and is not removable."""

_GONE_S: Final = 7 * 86_400.0
"""Seconds without a report after which a server counts as gone."""
_LAST_S: Final = 60.0
"""A server counts as running if its last report is at most this number of seconds older than the newest report about the same run. Servers report
every second, and the reports are written every 10 s.
"""

_LOG = get_logger("supervisor")


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Model versions that servers need, according to the journal."""

    reported: frozenset[int]
    """Models that a server of any run used or pinned at the time of the server's last report."""
    pinned: frozenset[int]
    """Models that the section `serving` of a run pins."""
    runs: frozenset[str]
    """Runs with a section `serving`. Servers may load the newest version of such a run as serving version, canary or shadow."""

    @classmethod
    def read(cls, database: Database, now: float) -> Self:
        """Read the versions from the journal. Args: now: seconds since 1970."""
        last = (
            select(SERVED.c.run_id, func.max(SERVED.c.last_at).label("at"))
            .where(SERVED.c.last_at >= now - _GONE_S)
            .group_by(SERVED.c.run_id)
            .subquery()
        )
        # Only the versions in the last reports about a run are still served.
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
        """Models that are served, independent of the run that made them."""
        return self.reported | self.pinned


class Retention:
    """Enforces the limits of runs and models. A run or model that is needed, promoted, or used by a server is kept regardless of the limits."""

    def __init__(self, journal: Journal, removal: RunRemoval, models: ModelStorageClient, config: RetentionConfig) -> None:
        self._journal = journal
        self._removal = removal
        self._models = models
        self._config = config

    def sweep(self) -> None:
        """Remove the runs and models that exceed the limits now. A failed removal is logged and does not prevent other removals.

        Raises: UnavailableError: runs or models cannot be listed. Other errors: the first error of a removal, after all removals. The next sweep
        retries.
        """
        failed = [error for remove in self._removals() if (error := _error_of(remove)) is not None]
        if failed:
            raise failed[0]

    def _removals(self) -> Iterator[Callable[[], None]]:
        # A removal that was interrupted is finished first, even without limits: the run can no longer be used.
        for run_id in self._journal.runs_in_removal():
            yield partial(self._removal.remove_run, run_id, even_promoted=True)
        if not (self._config.runs or self._config.models or self._config.models_of_run):
            return
        # Versions that servers use, and the runs that made these versions, are never removed.
        served = ServedModels.read(self._journal.database, time.time())
        if self._config.runs:
            ended = self._journal.each_run(with_pipelines=False, states=_REMOVABLE)
            kept, models = [KeptItem(run.run_id, run.finished_at or run.submitted_at) for run in ended], self._models_of_runs()
            for run_id in outlived(kept, self._config.runs, time.time()):
                if served.needed.isdisjoint(model.model_id for model in models.get(run_id, ())):
                    yield partial(self._removal.remove_run, run_id)
        if self._config.models or self._config.models_of_run:
            for model_id in self._outlived_models(served):
                yield partial(self._removal.remove_model, model_id)

    def _outlived_models(self, served: ServedModels) -> list[int]:
        of_runs, now = self._models_of_runs(), time.time()
        # A server may load the newest version of its run at any time.
        newest = {max(model.model_id for model in models) for run_id, models in of_runs.items() if run_id in served.runs}
        spared = newest | served.needed
        unpromoted = [[model for model in models if not model.promoted] for models in of_runs.values()]
        chosen = chain.from_iterable(outlived(map(_kept, models), self._config.models_of_run, now) for models in unpromoted)
        gone = set(chosen) - spared
        # The limit for all models counts only the models that the limit for each run keeps.
        rest = [model for models in unpromoted for model in models if model.model_id not in gone]
        return sorted(gone.union(outlived(map(_kept, rest), self._config.models, now)) - spared)

    def _models_of_runs(self) -> dict[str, list[ModelVersion]]:
        """Return the versions of each run, without imported versions."""
        of_runs: dict[str, list[ModelVersion]] = defaultdict(list)
        for info in self._models.list():
            if info.version.run_id:
                of_runs[info.version.run_id].append(info.version)
        return of_runs


def _error_of(remove: Callable[[], None]) -> ModynError | None:
    """Make a removal and return the error of the removal; None if the removal succeeded, was refused, or was already made."""
    try:
        remove()
    except (ConflictError, NotFoundError) as error:
        _LOG.info("kept", reason=error.message)
    except ModynError as error:
        _LOG.warning("removal_failed", reason=error.message)
        return error
    return None


def _kept(model: ModelVersion) -> KeptItem[int]:
    return KeptItem(model.model_id, model.created_at, model.num_bytes)
