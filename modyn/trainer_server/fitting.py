"""Build what a training is made of, and fit it. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from modyn.config.cache import BY_LOSS
from modyn.config.online import OnlineConfig
from modyn.dataset.order.plan import BatchPosition
from modyn.errors import ConfigError
from modyn.model_storage.client import StoredModel
from modyn.models.calls import has_embedding, has_last_layer, num_logits
from modyn.models.weights import build_model, load_weights
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger
from modyn.trainer_server.batches import TrainingBatches
from modyn.trainer_server.checkpoint import Checkpoints, derived_seed, restore, seed_everything
from modyn.trainer_server.chosen_scores import ChosenScores
from modyn.trainer_server.components import build_components, has_batch_norm
from modyn.trainer_server.divergence import check_initial_weights
from modyn.trainer_server.downsampling.policy import ScoredTraining
from modyn.trainer_server.downsampling_record import DownsamplingRecord
from modyn.trainer_server.hooks import EarlyStopping, FiniteLoss, Losses, ProgressReports
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.learning import IgnoredLabels
from modyn.trainer_server.loop import Clock, Hook, Training
from modyn.trainer_server.loss_ranks import LossRanks
from modyn.trainer_server.new_samples import new_samples
from modyn.trainer_server.optimizer_states import take_over_optimizers
from modyn.trainer_server.prequential import Prequential, steps_before
from modyn.trainer_server.sample_scores import sample_scores
from modyn.trainer_server.schedules import check_schedule
from modyn.trainer_server.step_guard import StepGuard, guard_result
from modyn.trainer_server.step_parts import StepParts
from modyn.trainer_server.stream_preprocessing import StreamPreprocessing, build_preprocessing, learn_before
from modyn.trainer_server.stream_rates import stream_rates
from modyn.trainer_server.validation_pass import Validation
from modyn.trainer_server.weighted_loss import build_criterion
from modyn.workers import JobConnection

TRAINING: Final = 2
"""Purpose of a seed; others are where they are used."""


def build(
    inputs: TrainingInputs, parent: StoredModel | None, seed: int, connection: JobConnection, validation: Validation | None
) -> Training:
    """The network on its device, with the weights of the parent if there is one, and all that trains it.

    The hooks stand in the order of their calls: checkpoints last, so that they hold what the others have changed.

    Args: seed: kept in the checkpoints. connection: receives progress and requests to stop. validation: None: nothing is held out.
    Raises: ConfigError, UserCodeError: the pipeline's model, optimizers or criterion cannot be made. CorruptStateError: the parent's weights
    do not fit. InvalidArgumentError: as `weigh`.
    """
    request, config = inputs.request, inputs.config
    online = inputs.online
    held = inputs.keys_of_steps
    keys = None if held is None else held.held.keys
    preprocessing = build_preprocessing(inputs, parent, keys)
    section = request.pipeline["model"]
    model = build_model(section["id"], section.get("config") or {})
    if parent is not None:
        load_weights(model, parent.path)
        check_initial_weights(model, f"model {parent.version.model_id}")
    check_downsampled(inputs, model)
    plan = replace(inputs.plan, join_single=config.batch_size > 1 and has_batch_norm(model))
    check_schedule(config.lr_scheduler, plan)
    components = build_components(model.to(config.device), config, plan, build_criterion(inputs))
    before = 0 if parent is None else steps_before(parent.training_result)
    if online is not None:
        rates = stream_rates(online.learning_rate, list(components.optimizers.values()), before)
        components = replace(components, schedulers=rates, step_every="batch")
    if config.keep_optimizer_state and parent is not None and not request.tests_only:
        take_over_optimizers(inputs, components, parent)
    hooks: list[Hook] = [] if online is None or keys is None else steps_hooks(inputs, online, keys, parent)
    hooks += [Losses(config.record_loss_every), IgnoredLabels()] + ([] if request.tests_only else [FiniteLoss()])
    split: StepParts | None = None
    if online is not None and keys is not None and online.update_samples is not None:
        split = StepParts(keys, online, join_single=plan.join_single)
    if inputs.downsampling is not None:
        transforms_labels = request.pipeline["data"].get("label_transformer_function") is not None
        hooks.append(DownsamplingRecord(inputs.downsampling, transforms_labels=transforms_labels))
    if inputs.context.cache is not None and inputs.context.cache.sampler in BY_LOSS:
        hooks.append(LossRanks())
    if inputs.trigger_set.feedback:
        hooks.append(sample_scores(inputs, model))
    elif inputs.downsampling is not None and inputs.downsampling.config.sample_then_batch:
        hooks.append(ChosenScores(inputs, inputs.downsampling.config.epochs_between(plan.num_epochs)))
    if config.early_stopping:
        hooks.append(EarlyStopping(config.early_stopping))
    keeps_checkpoints = config.checkpointing.activated
    hooks.append(ProgressReports(connection, inputs.context.report_interval_s, between_steps=keeps_checkpoints))
    if keeps_checkpoints:
        hooks.append(Checkpoints(inputs.checkpoint, config.checkpointing.interval, inputs.identity(), seed))
    clock = Clock(torch.device(config.device) if config.enable_accurate_gpu_measurements else None)
    training = Training(components, plan, hooks, clock, validation, preprocessing, tests_only=request.tests_only)
    training.split = split
    return training


def steps_hooks(inputs: TrainingInputs, online: OnlineConfig, keys: Int64Array, parent: StoredModel | None) -> list[Hook]:
    """What a training of steps has: their tests, and what undoes them. They come before other hooks, which see what is left of an epoch."""
    result = {} if parent is None else parent.training_result
    before = steps_before(result)
    prequential = Prequential(new_samples(keys, online), before)
    if online.rollback is None or inputs.request.tests_only:
        return [prequential]
    return [prequential, StepGuard(online.rollback, prequential, guard_result(result), before)]


def check_downsampled(inputs: TrainingInputs, model: nn.Module) -> None:
    """Check that the downsampling of this training can score by its loss and model. Raises ConfigError."""
    if (policy := inputs.downsampling) is not None:
        config = inputs.config
        training = ScoredTraining(
            config.optimization_criterion.name,
            has_last_layer(model),
            has_embedding(model),
            config.batch_size,
            inputs.plan.num_epochs,
            num_logits(model),
        )
        for message in policy.refusals(training):
            raise ConfigError(f"selection_strategy.downsampling_config.strategy: {message}")


def fit(
    inputs: TrainingInputs, training: Training, seed: int, checkpoint: Mapping[str, Any] | None, connection: JobConnection
) -> int:
    """Train from the beginning, or from the checkpoint on.

    Args: seed: of this training, for the order of its samples, the choices among them and its random numbers. checkpoint: as
    `load_checkpoint` returns it, or None. connection: receives progress and requests to stop.
    Returns: samples that were left out because each was alone in its epoch and BatchNorm needs two; they count as skipped.
    Raises: DivergedError, CancelledError, UserCodeError, DataError, UnavailableError, TrainingError: the training cannot go on.
    """
    logger = get_logger("training")
    position, num_seen = BatchPosition(), 0
    if checkpoint is not None:
        position = BatchPosition(checkpoint["progress"]["epoch"], checkpoint["progress"]["batches_in_epoch"])
        num_seen = checkpoint["progress"]["samples"]
    elif isinstance(training.preprocessing, StreamPreprocessing):
        learn_before(inputs, training.preprocessing, connection)
    with TrainingBatches(inputs, training, seed, connection) as source:
        batches = source.start(position, num_seen, checkpoint["order"] if checkpoint is not None else None)
        # Only now: starting to load draws random numbers, how many depends on the number of workers.
        seed_everything(derived_seed(seed, inputs.request.trigger_id, TRAINING))
        if checkpoint is not None:
            restore(training, checkpoint)
            logger.info("resumed", batches=training.progress.batches)
        training.clock.lap("load")
        skipped_before = training.progress.skipped
        training.run(batches)
        training.progress.skipped = skipped_before + source.num_skipped  # with those of batches that were left out
        training.progress.note_bad(source.bad_samples)
        if inputs.context.keep_times is not None:
            inputs.context.keep_times(inputs.trigger_set.dataset_identity, source.times)
    if skipped := training.progress.skipped:
        logger.warning(
            "samples_skipped", num_samples=skipped, alone=source.num_alone, why="deleted since the selection, bad or alone"
        )
    return source.num_alone
