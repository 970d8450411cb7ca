"""Removes runs and models that have outlived the limits of section `retention`, and goes on with removals that were cut off."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from modyn.config.retention import RetentionConfig
from modyn.errors import ConflictError, ModynError, NotFoundError
from modyn.model_storage.client import ModelStorageClient
from modyn.records import ModelVersion
from modyn.retention import KeptItem, outlived
from modyn.rpc.logs import get_logger
from modyn.supervisor.journal import Journal
from modyn.supervisor.removal import RunRemoval
from modyn.supervisor.served_models import ServedModels
from modyn.supervisor.states import RunState

_REMOVABLE = frozenset({RunState.FINISHED, RunState.STOPPED, RunState.FAILED})
"""An interrupted run is to go on."""

_LOG = get_logger("supervisor")


class Retention:
    """What is kept of runs and models. A run or model that is needed, promoted, or of use to a server stays whatever the limits say."""

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
        if not (self._config.runs or self._config.models or self._config.models_of_run):
            return
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
        newest = {max(model.model_id for model in models) for run_id, models in of_runs.items() if run_id in served.runs}
        spared = newest | served.needed
        unpromoted = [[model for model in models if not model.promoted] for models in of_runs.values()]
        chosen = chain.from_iterable(outlived(map(_kept, models), self._config.models_of_run, now) for models in unpromoted)
        gone = set(chosen) - spared
        rest = [model for models in unpromoted for model in models if model.model_id not in gone]
        return sorted(gone.union(outlived(map(_kept, rest), self._config.models, now)) - spared)

    def _models_of_runs(self) -> dict[str, list[ModelVersion]]:
        """The versions of each run; imported ones belong to none."""
        of_runs: dict[str, list[ModelVersion]] = defaultdict(list)
        for info in self._models.list():
            if info.version.run_id:
                of_runs[info.version.run_id].append(info.version)
        return of_runs


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
