"""Follower of the versions of a run in model storage. The promoted version serves, and other versions may be canary or shadow."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from modyn.config.serving import ServedRun
from modyn.dataset.config import ImageDecoding
from modyn.errors import ConfigError, NotFoundError
from modyn.model_storage.client import CurrentVersions, ModelStorageClient
from modyn.models.export import parse_input
from modyn.periodic_task import PeriodicTask
from modyn.records import RunId
from modyn.rpc.logs import get_logger
from modyn.serving.model_server import ModelServer
from modyn.serving.prometheus import count_inputs
from modyn.serving.versions.predictor import Predictor, VersionName
from modyn.serving.versions.routing import Canary

_RETRY_S: Final = 5.0
"""Seconds after which a version that could not be loaded is loaded again."""


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """The versions of a run that are in use."""

    serving: str | None = None
    canary: Canary | None = None
    shadow: str | None = None


def plan(versions: CurrentVersions, settings: ServedRun) -> ServingPlan:
    """Decide which versions of a run are in use.

    Rule: the promoted version serves. The newest version serves if no version is promoted or if `follow` requires the newest; with `promote_if`, only
    a promoted version serves. If the newest version does not serve, it becomes canary or shadow according to the settings. A version that was refused
    or rolled back does not become canary, because a canary answers clients.
    """
    newest, promoted = versions.newest_id, versions.promoted_id
    if newest is None or (settings.promote_if and promoted is None):
        return ServingPlan()
    serving = promoted if promoted is not None and settings.follow == "promoted" else newest
    # The newest version serves already, so it is neither canary nor shadow.
    if newest == serving:
        return ServingPlan(str(serving))
    canary = Canary(str(newest), settings.canary_share) if settings.canary_share and not versions.newest_in_trail else None
    return ServingPlan(str(serving), canary, str(newest) if settings.shadow else None)


class StoredVersionLoader:
    """Loads versions from model storage as PyTorch predictors, including the preprocessing of the version, if there is any.

    Args: device: torch device. decoding: how the pipeline decodes images, which are then the inputs; None: inputs are tensors. Raises:
    InvalidArgumentError: an input in the settings cannot be read.
    """

    def __init__(
        self, models: ModelStorageClient, settings: ServedRun, device: str, decoding: ImageDecoding | None = None
    ) -> None:
        self._models, self._settings, self._device, self._decoding = models, settings, device, decoding
        self._inputs = tuple(map(parse_input, settings.inputs))

    def __call__(self, name: VersionName) -> Predictor:
        """Fetch and build a version. Raises NotFoundError, CorruptStateError; ConfigError: the inputs of the version are unknown or wrong."""
        try:
            return self._predictor(name)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error.message}") from error

    def _predictor(self, name: VersionName) -> Predictor:
        from modyn.models.weights import load_model, read_statistics
        from modyn.preprocessing import Preprocessing
        from modyn.serving.versions.column_predictor import ColumnPredictor
        from modyn.serving.versions.image_predictor import ImagePredictor
        from modyn.serving.versions.torch_predictor import TorchPredictor, inputs_of

        if not name.version.isdigit():
            raise NotFoundError(f"there is no {name}: versions are numbers of models, as `modyn models ls` lists them")
        with tempfile.TemporaryDirectory(prefix="modyn-serving-") as folder:
            stored = self._models.get(int(name.version), Path(folder) / "model.safetensors")
            module = load_model(stored.model_class, stored.model_config, stored.path, stored.model_definition)
            statistics = read_statistics(stored.path)
        if statistics is not None:
            if self._inputs:
                raise ConfigError(
                    "it was trained with the section `preprocessing`, so its inputs are the columns of that; remove serving.inputs (or --input)"
                )
            return ColumnPredictor(module, Preprocessing.from_bytes(statistics), self._device, partial(count_inputs, name))
        if self._decoding is not None:
            return ImagePredictor(module, self._decoding, self._device)
        given = self._inputs or inputs_of(stored.model_class, stored.model_config)
        return TorchPredictor(module, given, self._device, nan_allowed=self._settings.nan_allowed)


class RunFollower:
    """Reads at intervals which versions of a run should be in use, and makes a model server use these versions.

    A version in memory serves at once, even while another version is loaded. If a version cannot be loaded, this is logged, and the version is loaded
    again later. Until then, and while model storage is unavailable, the previous version serves.
    """

    def __init__(
        self, models: ModelStorageClient, run_id: RunId, settings: ServedRun, server: ModelServer, every_s: float
    ) -> None:
        self._models, self._run_id, self._settings, self._server = models, run_id, settings, server
        self.model = settings.model_name(run_id)
        self._plan = ServingPlan()
        self._failed = (ServingPlan(), 0.0)  # the last plan that could not be applied, and the time of the attempt
        self._loading: threading.Thread | None = None  # loads versions; meanwhile `look` lets versions in memory serve
        self._logger = get_logger("serving.follower")
        self._away = False
        self._task = PeriodicTask("follow", every_s, [self.look], self._report, every_s)

    def start(self) -> ServingPlan:
        """Load the versions in use and the pinned versions, and start to follow the run. If a pinned version no longer exists, this is only logged.

        Returns: the plan of the versions in use. Raises: the errors of the loader and of the client.
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
        """Stop following, without waiting for a version that is being loaded."""
        self._task.close()

    def look(self) -> None:
        """Read once which versions should be in use, and use them. A version that is not in memory is loaded in a separate thread."""
        wanted = plan(self._models.current(self._run_id), self._settings)
        self._away = False
        self._plan = wanted
        if self._in_use(wanted):
            return
        if wanted.serving is not None and self._server.is_ready(self.model, wanted.serving):
            self._server.swap(VersionName(self.model, wanted.serving))  # this is quick, because the version is in memory
            if self._in_use(wanted):
                return
        # Loading takes long, and the next calls of this method must not wait for it. One version is loaded at a time.
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
        """Make the server follow a plan, unless a newer plan has replaced this plan while a version was loaded."""
        if wanted.serving is None:
            return
        self._server.swap_if(VersionName(self.model, wanted.serving), lambda: self._plan.serving == wanted.serving)
        # Checked again after the load: a newer plan has its own canary and shadow.
        if self._plan == wanted:
            self._server.set_canary(self.model, wanted.canary)
            self._server.set_shadow(self.model, wanted.shadow)

    def _in_use(self, wanted: ServingPlan) -> bool:
        routes = self._server.table().models.get(self.model)
        found = ServingPlan() if routes is None else ServingPlan(routes.serving, routes.canary, routes.shadow)
        return wanted.serving is None or found == wanted

    def _report(self, error: Exception) -> None:
        # The failure is logged once, not at each call of `look`.
        if not self._away:
            self._logger.warning("versions_not_seen", model=self.model, error=str(error))
        self._away = True
