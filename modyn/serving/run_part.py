"""Parts of a serving process that belong to one run. The parts load and follow the versions of the run, take labels, judge new versions and measure
the load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from modyn.config.system import SystemConfig
from modyn.evaluator.client import EvaluatorClient
from modyn.model_storage.client import ModelStorageClient
from modyn.models.classes import is_regression, label_classes
from modyn.records import RunId, ServingLoad, VersionUse
from modyn.rpc.logs import get_logger
from modyn.serving.load_meter import LoadMeter, load_reports
from modyn.serving.model_server import ModelServer
from modyn.serving.observations.intake import ObservationIntake
from modyn.serving.observations.join import JoinLimits
from modyn.serving.observations.storage_log import StorageObservationLog
from modyn.serving.observations.waiting_log import WaitingLog
from modyn.serving.served_model import ServedModel
from modyn.serving.versions.auto_promotion import AutoPromotion
from modyn.serving.versions.promoted import RunFollower, StoredVersionLoader
from modyn.serving.versions.promotion_gate import PromotionGate, parse_conditions
from modyn.state_folders import serving_dir
from modyn.storage.client import StorageClient

Report = Callable[[RunId, ServingLoad, Sequence[VersionUse]], object]
"""Function that receives the load of a run's server, and the uses of each version."""

_JUDGE_S: Final = 1.0
"""Seconds between two searches for a version to judge."""


@dataclass(frozen=True, slots=True)
class ServingClients:
    """Clients that all runs share."""

    models: ModelStorageClient
    storage: StorageClient
    evaluator: EvaluatorClient


class RunPart:
    """Parts of one run in a process that serves several runs.

    Raises: ConflictError: another server of this run accepts labels for the same dataset. NotFoundError, InvalidArgumentError: the run's dataset
    of observations is missing, or is not a dataset of records. CorruptStateError, UnavailableError: see `WaitingLog`.
    """

    def __init__(self, config: SystemConfig, model: ServedModel, clients: ServingClients) -> None:
        self.model, self._clients, self._every_s = model, clients, config.serving.poll_interval_s
        self.load = StoredVersionLoader(clients.models, model.settings, config.serving.device, model.decoding)
        self.meter = LoadMeter(pinned=model.settings.pinned)
        dataset = model.settings.observations
        self.intake = None if dataset is None else _open_intake(config, model, dataset, clients.storage)
        """Intake of labels; None: the run takes no labels."""
        if self.intake is not None:
            self.intake.start()

    def close(self) -> None:
        """Stop taking labels. Labels that have arrived are kept."""
        if self.intake is not None:
            self.intake.close()

    def reporting(self, server: ModelServer, report: Report) -> AbstractContextManager[None]:
        """Report the load of the run and the uses of its versions in a separate thread, until the block ends."""
        return load_reports(self.meter, lambda: server.table().roles(self.model.name), partial(report, self.model.run_id))

    @contextmanager
    def following(self, server: ModelServer) -> Iterator[RunFollower]:
        """Judge new versions of the run in a separate thread, until the block ends.

        Yields: the follower of the run's versions, which the caller starts. Raises: ConfigError: a metric or dataset of a condition is wrong.
        """
        run_id, settings, stored = self.model.run_id, self.model.settings, self._clients.models
        with ExitStack() as stack:
            follower = RunFollower(stored, run_id, settings, server, self._every_s)
            stack.callback(follower.close)
            if settings.promote_if:
                conditions = parse_conditions(settings.promote_if)
                gate = PromotionGate(
                    run_id, self.model.pipeline, conditions, stored, self._clients.evaluator, self._clients.storage
                )
                promotion = AutoPromotion(run_id, gate, stored, max(_JUDGE_S, self._every_s))
                stack.callback(promotion.close)
                promotion.start()
            yield follower


def _open_intake(config: SystemConfig, model: ServedModel, dataset: str, storage: StorageClient) -> ObservationIntake:
    """Return the intake of a model's labels, including the predictions and labels that still waited when the last server of the run ended."""
    serving = config.serving
    # A label transformer function of the pipeline may map any label to a class, so labels are not checked.
    classes = None if model.pipeline["data"].get("label_transformer_function") else label_classes(model.pipeline)
    images = model.decoding is not None
    log = StorageObservationLog(storage, dataset, columns=model.columns is not None, images=images, classes=classes)
    if is_regression(model.pipeline) and not log.takes_fractions:
        get_logger("serving.observations").warning(
            "labels_are_whole_numbers",
            model=model.name,
            dataset=dataset,
            advice="the loss of the run takes fractions, which this dataset refuses: give observations to one of `modyn data register NAME --records "
            "-o label_type=float`",
        )
    limits = JoinLimits(max_bytes=serving.max_waiting_bytes, keep_s=serving.waiting_s)
    # The folder belongs to one registration of the dataset, because another dataset of the same name has other keys.
    folder = serving_dir(config.state_dir) / model.run_id / log.identity
    waiting = WaitingLog(folder) if serving.keep_waiting else None
    return ObservationIntake(model.name, log, limits, waiting=waiting)
