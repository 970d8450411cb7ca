"""From a request to what is trained: model, optimizers, schedulers, loss, data and hooks. Imports torch: for workers only."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from modyn.config.base import load_section
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients
from modyn.dataset.order.plan import Position
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.errors import ConfigError
from modyn.model_storage.client import ModelHeader, StoredModel
from modyn.models import build_model
from modyn.models.weights import load_weights
from modyn.records import ModelVersion, RunId, TriggerSetInfo
from modyn.trainer_server.checkpoint import Checkpoints
from modyn.trainer_server.components import build_criterion, build_optimizers, build_scaler, build_schedulers
from modyn.trainer_server.config import TrainingConfig
from modyn.trainer_server.downsampling import build_downsampling
from modyn.trainer_server.files import checkpoint_path, optimizers_path
from modyn.trainer_server.hooks import EarlyStopping, Losses, ProgressReports, Schedulers, StopRequests
from modyn.trainer_server.loop import Hook, TrainingComponents
from modyn.trainer_server.plan import TrainingPlan
from modyn.trainer_server.request import TrainingRequest
from modyn.workers import Report
from modyn.workers.devices import missing_device


@dataclass(frozen=True, slots=True)
class TrainingContext:
    """What a training reaches outside of its process: calls of the selector and of model storage, the dataset's clients, its folder."""

    trigger_set: Callable[[RunId, int], TriggerSetInfo]
    get_model: Callable[[int, Path], StoredModel]
    put_model: Callable[[ModelHeader, Path], ModelVersion]
    connect: Callable[[], DatasetClients]
    folder: Path
    put_limit_s: float = 300.0
    """Seconds that a finished training waits for a model storage that does not answer."""
    report_interval_s: float = 0.3
    """Seconds between two progress messages."""


@dataclass(frozen=True)
class TrainingInputs:
    """One training as it was asked for, with the trigger set that it trains on."""

    request: TrainingRequest
    config: TrainingConfig
    context: TrainingContext
    trigger_set: TriggerSetInfo

    @cached_property
    def plan(self) -> TrainingPlan:
        """Numbers of batches, steps and epochs. The request's bound on samples goes before that of the pipeline."""
        return TrainingPlan(
            num_keys=self.trigger_set.num_keys,
            batch_size=self.config.batch_size,
            drop_last=self.config.drop_last_batch,
            epochs=self.config.epochs_per_trigger,
            max_samples=self.request.num_samples_to_pass or self.config.samples_to_pass(self.request.trigger_id),
            accumulation=self.config.gradient_accumulation_steps,
        )

    @property
    def requested_seed(self) -> int | None:
        """The request's seed, else that of the pipeline; None: neither sets one."""
        return self.request.seed if self.request.seed is not None else self.config.seed

    @property
    def selection(self) -> Mapping[str, Any]:
        """The pipeline's section `selection_strategy`; empty if there is none."""
        return self.request.pipeline.get("selection_strategy") or {}

    @property
    def checkpoint_path(self) -> Path:
        """The file of this training's checkpoint."""
        return checkpoint_path(self.context.folder, self.request)

    def optimizers_path(self, trigger_id: int) -> Path:
        """The file that holds the optimizers' state after the training of `trigger_id` in this run."""
        return optimizers_path(self.context.folder, self.request.run_id, trigger_id)

    def identity(self) -> dict[str, Any]:
        """Equal for two attempts at one training, different for two trainings."""
        request = self.request
        sections = {name: request.pipeline.get(name) for name in ("model", "training", "data", "selection_strategy")}
        asked = [sections, request.parent_model_id, request.num_samples_to_pass, request.seed]
        return {
            "run_id": str(request.run_id),
            "trigger_id": request.trigger_id,
            "request_sha256": hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest(),
            "keys_checksum": self.trigger_set.keys_checksum,
        }


def derived_seed(seed: int, trigger_id: int, purpose: int) -> int:
    """63 bits that depend on nothing but the arguments."""
    high, low = np.random.SeedSequence([seed, trigger_id, purpose]).generate_state(2, np.uint32).tolist()
    return (int(high) << 31) | (int(low) >> 1)


def configure_torch(config: TrainingConfig, *, deterministic: bool) -> None:
    """Choose the device and the determinism of this process. Raises ConfigError: the device does not exist."""
    if config.on_gpu:
        missing = missing_device(config.device)
        if missing:
            raise ConfigError(f"training.device: {missing}")
        # Code that asks for the current GPU, such as the thread that page-locks batches, must not take memory of the first one.
        torch.cuda.set_device(torch.device(config.device).index or 0)
    if deterministic:
        # cuBLAS reads this once, before its first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # An operation without a deterministic form logs a warning; the seed promises equal weights on CPU only.
        # The same as use_deterministic_algorithms(True, warn_only=True), which imports PyTorch's compiler: that takes seconds.
        torch.set_deterministic_debug_mode("warn")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def initial_model(inputs: TrainingInputs, parent: StoredModel | None) -> torch.nn.Module:
    """The network on its device, with the weights of the parent if there is one."""
    section = inputs.request.pipeline["model"]
    model = build_model(section["id"], section.get("config") or {})
    if parent is not None:
        load_weights(model, parent.path)
    return model.to(inputs.config.device)


def build_components(inputs: TrainingInputs, model: torch.nn.Module) -> TrainingComponents:
    """Build all that trains `model` from the pipeline: optimizers, schedulers, scaler, loss, downsampling."""
    config, plan = inputs.config, inputs.plan
    optimizers = build_optimizers(model, config.optimizers)
    return TrainingComponents(
        model=model,
        optimizers=optimizers,
        schedulers=build_schedulers(config.lr_scheduler, optimizers, num_batches=plan.num_steps, num_epochs=plan.num_epochs),
        scaler=build_scaler(config),
        criterion=build_criterion(config.optimization_criterion, weighted=bool(inputs.selection.get("uses_weights", False))),
        downsampling=build_downsampling(inputs.selection),
        device=torch.device(config.device),
        amp=config.amp,
        clip_norm=config.gradient_clip_norm,
        compiled=torch.compile(model) if config.compile else None,  # type: ignore[arg-type]
    )


def build_dataset(inputs: TrainingInputs, seed: int, position: Position) -> TriggerSetDataset:
    """The batches of the trigger set behind `position`."""
    config = inputs.config
    options = LoadOptions(
        batch_size=config.batch_size,
        drop_last=config.drop_last_batch,
        shuffle=config.shuffle,
        seed=seed,
        epochs=inputs.plan.num_epochs,
        num_prefetched_partitions=config.num_prefetched_partitions,
        parallel_prefetch_requests=config.parallel_prefetch_requests,
    )
    data = load_section(DataConfig, inputs.request.pipeline["data"], "data")
    return TriggerSetDataset(inputs.trigger_set, data, inputs.context.connect, options, position)


def build_hooks(inputs: TrainingInputs, losses: Losses, report: Report, seed: int) -> list[Hook]:
    """The hooks in the order of their calls: checkpoints last, so that they hold what the others have changed."""
    config = inputs.config
    hooks: list[Hook] = [StopRequests(report), losses]
    if config.lr_scheduler:
        hooks.append(Schedulers(config.lr_scheduler.step_every))
    if config.early_stopping:
        hooks.append(EarlyStopping(config.early_stopping))
    hooks.append(ProgressReports(report, inputs.context.report_interval_s))
    if config.checkpointing.activated:
        hooks.append(Checkpoints(inputs.checkpoint_path, config.checkpointing.interval, inputs.identity(), seed))
    return hooks
