"""Follows the versions of a run in model storage: the promoted one serves, and others may be canary or shadow."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from modyn.config.serving import ServedRun
from modyn.errors import ConfigError, NotFoundError
from modyn.model_storage.client import CurrentVersions, StoredModel
from modyn.models.export import parse_input
from modyn.periodic_task import PeriodicTask
from modyn.records import RunId
from modyn.rpc.logs import get_logger
from modyn.serving.metrics import count_inputs
from modyn.serving.model_server import ModelServer
from modyn.serving.predictor import Predictor, VersionName
from modyn.serving.routing import Canary

_RETRY_S: Final = 5.0
"""Before a version that could not be loaded is tried again."""


class StoredModels(Protocol):
    """What is needed of a client of model storage."""

    def current(self, run_id: RunId) -> CurrentVersions:
        """See `ModelStorageClient`."""
        ...

    def get(self, model_id: int, into: Path) -> StoredModel:
        """See `ModelStorageClient`."""
        ...


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """Which versions of a run are in use; None: none is."""

    serving: str | None = None
    canary: Canary | None = None
    shadow: str | None = None


def plan(versions: CurrentVersions, settings: ServedRun) -> ServingPlan:
    """Decide which versions of a run are in use. Rule: the promoted one serves, or the newest where none is promoted or `follow` says so, but
    with conditions none that has not met them; the newest, if it is newer than that, is canary or shadow as the settings say. One that was refused
    or taken back is no canary, for a canary answers clients."""
    newest, promoted = versions.newest_id, versions.promoted_id
    if newest is None or (settings.promote_if and promoted is None):
        return ServingPlan()
    serving = promoted if promoted is not None and settings.follow == "promoted" else newest
    if newest == serving:
        return ServingPlan(str(serving))
    canary = Canary(str(newest), settings.canary_share) if settings.canary_share and not versions.newest_in_trail else None
    return ServingPlan(str(serving), canary, str(newest) if settings.shadow else None)


class StoredVersionLoader:
    """Loads versions from model storage as PyTorch predictors, behind the statistics of preprocessing of the same version if it has some.

    Args: device: of torch.

    Raises: InvalidArgumentError: an input in the settings cannot be read.
    """

    def __init__(self, models: StoredModels, settings: ServedRun, device: str) -> None:
        self._models, self._settings, self._device = models, settings, device
        self._inputs = tuple(map(parse_input, settings.inputs))

    def __call__(self, name: VersionName) -> Predictor:
        """Fetch, build and return a version. Raises NotFoundError, CorruptStateError; ConfigError: its inputs are unknown or wrong."""
        try:
            return self._predictor(name)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error.message}") from error

    def _predictor(self, name: VersionName) -> Predictor:
        from modyn.models.weights import load_model, read_statistics
        from modyn.preprocessing import Preprocessing
        from modyn.serving.column_predictor import ColumnPredictor
        from modyn.serving.torch_predictor import TorchPredictor, inputs_of

        if not name.version.isdigit():
            raise NotFoundError(f"there is no {name}: versions are numbers of models, as `modyn models ls` lists them")
        with tempfile.TemporaryDirectory(prefix="modyn-serving-") as folder:
            stored = self._models.get(int(name.version), Path(folder) / "model.safetensors")
            module = load_model(stored.model_class, stored.model_config, stored.path)
            statistics = read_statistics(stored.path)
        if statistics is not None:
            if self._inputs:
                raise ConfigError(
                    "it was trained with the section `preprocessing`, so its inputs are the columns of that; remove serving.inputs (or --input)"
                )
            return ColumnPredictor(module, Preprocessing.from_bytes(statistics), self._device, partial(count_inputs, name))
        given = self._inputs or inputs_of(stored.model_class, stored.model_config)
        return TorchPredictor(module, given, self._device, nan_allowed=self._settings.nan_allowed)


class RunFollower:
    """Looks in intervals which versions of a run are to be used, and brings a model server there.

    A version that is in memory serves at once, also while another one is loaded. One that cannot be loaded is logged and tried again; what served
    before serves on, as it does while model storage is away.
    """

    def __init__(self, models: StoredModels, run_id: RunId, settings: ServedRun, server: ModelServer, every_s: float) -> None:
        self._models, self._run_id, self._settings, self._server = models, run_id, settings, server
        self.model = settings.model_name(run_id)
        self._plan = ServingPlan()
        self._failed = (ServingPlan(), 0.0)  # what could not be loaded last, and when
        self._loading: threading.Thread | None = None
        self._logger = get_logger("serving.follower")
        self._away = False
        self._task = PeriodicTask("follow", every_s, [self.look], self._report, every_s)

    def start(self) -> ServingPlan:
        """Load what is to be used now and what is pinned, and follow from then on. Returns the former. Raises: as the loader and the client.

        A pinned version that model storage has no more is logged: what serves serves.
        """
        self._plan = plan(self._models.current(self._run_id), self._settings)
        self._apply(self._plan)
        for model_id in self._settings.pinned:
            try:
                self._server.load(VersionName(self.model, str(model_id)))
            except NotFoundError as error:
                self._logger.warning("pinned_version_is_gone", model_id=model_id, error=str(error))
        self._task.start()
        return self._plan

    def close(self) -> None:
        """Follow no more; a version that is being loaded is not waited for."""
        self._task.close()

    def look(self) -> None:
        """Look once, and act on it. What must be loaded first is loaded in a thread of its own."""
        wanted = plan(self._models.current(self._run_id), self._settings)
        self._away = False
        self._plan = wanted
        if self._in_use(wanted):
            return
        if wanted.serving is not None and self._server.is_ready(self.model, wanted.serving):
            self._server.swap(VersionName(self.model, wanted.serving))  # at once: it is in memory
            if self._in_use(wanted):
                return
        if self._may_load(wanted) and (self._loading is None or not self._loading.is_alive()):
            self._loading = threading.Thread(target=self._load, args=(wanted,), name="load", daemon=True)
            self._loading.start()

    def _load(self, wanted: ServingPlan) -> None:
        try:
            self._apply(wanted)
        except Exception as error:
            self._logger.error("version_not_loaded", model=self.model, wanted=str(wanted), exc_info=error)
            self._failed = wanted, time.monotonic()

    def _may_load(self, wanted: ServingPlan) -> bool:
        failed, at = self._failed
        return failed != wanted or time.monotonic() > at + _RETRY_S

    def _apply(self, wanted: ServingPlan) -> None:
        """Bring the server to a plan, unless another one has taken its place once a version is loaded."""
        if wanted.serving is None:
            return
        self._server.swap_if(VersionName(self.model, wanted.serving), lambda: self._plan.serving == wanted.serving)
        if self._plan == wanted:
            self._server.set_canary(self.model, wanted.canary)
            self._server.set_shadow(self.model, wanted.shadow)

    def _in_use(self, wanted: ServingPlan) -> bool:
        routes = self._server.table().models.get(self.model)
        found = ServingPlan() if routes is None else ServingPlan(routes.serving, routes.canary, routes.shadow)
        return wanted.serving is None or found == wanted

    def _report(self, error: Exception) -> None:
        if not self._away:
            self._logger.warning("versions_not_seen", model=self.model, error=str(error))
        self._away = True
