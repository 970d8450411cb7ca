"""Removes runs and models that have outlived the limits of section `retention`, and goes on with removals that were cut off."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from modyn.config.retention import RetentionConfig
from modyn.errors import ConflictError, ModynError, NotFoundError
from modyn.model_storage.client import ModelStorageClient
from modyn.records import ModelVersion
from modyn.retention import KeptItem, outlived
from modyn.rpc.logs import get_logger
from modyn.supervisor.journal import Journal
from modyn.supervisor.removal import RunRemoval
from modyn.supervisor.states import RunState

_REMOVABLE = frozenset({RunState.FINISHED, RunState.STOPPED, RunState.FAILED})
"""An interrupted run is to go on."""

_LOG = get_logger("supervisor")


class Retention:
    """What is kept of runs and models. A run or model that is needed, or promoted, stays whatever the limits say."""

    def __init__(self, journal: Journal, removal: RunRemoval, models: ModelStorageClient, config: RetentionConfig) -> None:
        self._journal = journal
        self._removal = removal
        self._models = models
        self._config = config

    def sweep(self) -> None:
        """Remove what has outlived the limits now; a removal that fails is logged and holds up no other.

        Raises: UnavailableError: what has outlived them cannot be read. The first error that a removal failed with. The next sweep goes on.
        """
        failed = [error for remove in self._removals() if (error := _error_of(remove)) is not None]
        if failed:
            raise failed[0]

    def _removals(self) -> Iterator[Callable[[], None]]:
        for run_id in self._journal.runs_in_removal():
            yield partial(self._removal.remove_run, run_id, even_promoted=True)
        if self._config.runs:
            ended = self._journal.each_run(with_pipelines=False, states=_REMOVABLE)
            kept = [KeptItem(run.run_id, run.finished_at or run.submitted_at) for run in ended]
            for outlived_run in outlived(kept, self._config.runs, time.time()):
                yield partial(self._removal.remove_run, outlived_run)
        for model_id in self._outlived_models():
            yield partial(self._removal.remove_model, model_id)

    def _outlived_models(self) -> list[int]:
        if not (self._config.models or self._config.models_of_run):
            return []
        of_runs: dict[str, list[ModelVersion]] = defaultdict(list)
        for info in self._models.list():
            if info.version.run_id and not info.version.promoted:  # imported ones belong to no run
                of_runs[info.version.run_id].append(info.version)
        now, gone = time.time(), set[int]()
        for models in of_runs.values():
            gone.update(outlived(map(_kept, models), self._config.models_of_run, now))
        rest = [model for models in of_runs.values() for model in models if model.model_id not in gone]
        return sorted(gone.union(outlived(map(_kept, rest), self._config.models, now)))


def _error_of(remove: Callable[[], None]) -> ModynError | None:
    """Make a removal, and return what it failed with; one that is refused, or was made meanwhile, has not failed."""
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
