"""Build the components of a training, and run the training. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from modyn.config.online import LearningRateRule, OnlineConfig
from modyn.dataset.order.batch_plan import BatchPosition
from modyn.dataset.trigger_set import mean_weight
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.model_storage.client import StoredModel
from modyn.models.calls import has_embedding, has_last_layer, num_logits
from modyn.models.weights import build_model, load_weights
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger
from modyn.trainer_server.batches import TrainingBatches
from modyn.trainer_server.divergence import check_initial_weights
from modyn.trainer_server.downsampling.policies.policy import ScoredTraining
from modyn.trainer_server.learning import FirstWeights, IgnoredLabels
from modyn.trainer_server.loop.checkpoint import Checkpoint, Checkpoints, restore
from modyn.trainer_server.loop.components import build_components, freeze, has_batch_norm
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.loop.hooks import EarlyStopping, FiniteLoss, Losses
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.loop.loop import Clock, Hook, Training
from modyn.trainer_server.loop.optimizer_states import take_over_optimizers
from modyn.trainer_server.loop.progress import ProgressReports
from modyn.trainer_server.loop.schedules import check_schedule
from modyn.trainer_server.loop.seeding import derived_seed, seed_everything
from modyn.trainer_server.loop.validation_pass import Validation
from modyn.trainer_server.online.new_samples import new_samples
from modyn.trainer_server.online.prequential import Prequential
from modyn.trainer_server.online.step_guard import StepGuard
from modyn.trainer_server.online.step_parts import StepParts
from modyn.trainer_server.online.stream_preprocessing import StreamPreprocessing, build_preprocessing, learn_before
from modyn.trainer_server.result import TrainingResult
from modyn.trainer_server.scoring.chosen_scores import ChosenScores
from modyn.trainer_server.scoring.downsampling_record import DownsamplingRecord
from modyn.trainer_server.scoring.sample_scores import sample_scores
from modyn.workers import JobConnection

TRAINING: Final = 2
"""Purpose of the seed of a training (see `derived_seed`). Other modules define other purposes."""


def build(
    inputs: TrainingInputs, parent: StoredModel | None, seed: int, connection: JobConnection, validation: Validation | None
) -> Training:
    """Build the model on its device, with the parent's weights if there is a parent, and all components of the training.

    The hooks are in the order of their calls. Checkpoints come last, so that they contain the changes of all other hooks.

    Args: seed: seed that the checkpoints keep. connection: reports progress and receives requests to stop. validation: None if there is no validation
    set.
    Raises: ConfigError, UserCodeError: the pipeline's model, optimizers or criterion cannot be built. CorruptStateError: the parent's weights
    do not fit. InvalidArgumentError: see `weigh`.
    """
    request, config = inputs.request, inputs.config
    online = inputs.online
    held = inputs.keys_of_steps
    keys = None if held is None else held.held.keys
    preprocessing = build_preprocessing(inputs, parent, keys)
    pretrained = inputs.pretrained if parent is None else None
    model = build_model(inputs.model.id, inputs.model.config, inputs.definition, pretrained)
    if parent is not None:
        load_weights(model, parent.path)
        check_initial_weights(model, f"model {parent.version.model_id}")
    freeze(model, inputs.model.freeze)
    check_downsampled(inputs, model)
    plan = replace(inputs.plan, join_single=config.batch_size > 1 and has_batch_norm(model))
    check_schedule(config.lr_scheduler, plan)
    components = build_components(model.to(config.device), config, plan, build_criterion(inputs))
    before = TrainingResult.from_mapping({} if parent is None else parent.training_result)
    if online is not None:
        rates = stream_rates(online.learning_rate, list(components.optimizers.values()), before.stream_steps)
        components = replace(components, schedulers=rates, step_every="batch")
    # A training that only tests makes no step, and needs no states of optimizers.
    if config.keep_optimizer_state and parent is not None and not request.tests_only:
        take_over_optimizers(inputs, components, parent)
    hooks: list[Hook] = [] if online is None or keys is None else steps_hooks(inputs, online, keys, before)
    hooks += [Losses(config.record_loss_every), IgnoredLabels()] + ([] if request.tests_only else [FiniteLoss()])
    if online is None:  # `StepGuard` compares the weights of online steps
        hooks.append(FirstWeights())
    split: StepParts | None = None
    if online is not None and keys is not None and online.update_samples is not None:
        split = StepParts(keys, online, join_single=plan.join_single)
    if inputs.downsampling is not None:
        transforms_labels = inputs.data.label_transformer_function is not None
        hooks.append(DownsamplingRecord(inputs.downsampling, transforms_labels=transforms_labels))
    if inputs.trigger_set.feedback:
        hooks.append(sample_scores(inputs, model))
    elif inputs.downsampling is not None and inputs.downsampling.config.sample_then_batch:
        hooks.append(ChosenScores(inputs, inputs.downsampling.config.epochs_between(plan.num_epochs)))
    if config.early_stopping:
        hooks.append(EarlyStopping(config.early_stopping))
    # The hook for reports also receives requests to stop. The hook for checkpoints comes last, and saves the state of a stopped training.
    keeps_checkpoints = config.checkpointing.activated
    hooks.append(ProgressReports(connection, inputs.context.report_interval_s, between_steps=keeps_checkpoints))
    if keeps_checkpoints:
        hooks.append(Checkpoints(inputs.checkpoint, config.checkpointing.interval, inputs.identity(), seed))
    clock = Clock(torch.device(config.device) if config.enable_accurate_gpu_measurements else None)
    training = Training(components, plan, hooks, clock, validation, preprocessing, tests_only=request.tests_only)
    training.split = split
    return training


def steps_hooks(inputs: TrainingInputs, online: OnlineConfig, keys: Int64Array, before: TrainingResult) -> list[Hook]:
    """Return the hooks of online steps: the tests of new samples, and the guard. These hooks come first, so that other hooks see only kept steps.

    Args: before: result of the parent version.
    """
    prequential = Prequential(new_samples(keys, online), before.stream_steps)
    if online.rollback is None or inputs.request.tests_only:
        return [prequential]
    return [prequential, StepGuard(online.rollback, prequential, before.step_guard, before.stream_steps)]


def check_downsampled(inputs: TrainingInputs, model: nn.Module) -> None:
    """Check that this training's downsampling policy can score with the loss and the model. Raises ConfigError."""
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


def fit(inputs: TrainingInputs, training: Training, seed: int, checkpoint: Checkpoint | None, connection: JobConnection) -> int:
    """Train from the beginning, or from a checkpoint.

    Args: seed: seed of this training, for the order and the choice of its samples and for random numbers. checkpoint: result of `load_checkpoint`.
    connection: reports progress and receives requests to stop.
    Returns: number of samples left out because each was the only sample of its epoch, and BatchNorm needs two samples. Such samples count as skipped.
    Raises: DivergedError, CancelledError, UserCodeError, DataError, UnavailableError, TrainingError: the training cannot continue.
    """
    logger = get_logger("training")
    position, num_seen = BatchPosition(), 0
    if checkpoint is not None:
        progress = checkpoint.progress
        position, num_seen = BatchPosition(progress.epoch, progress.batches_in_epoch), progress.samples
    elif isinstance(training.preprocessing, StreamPreprocessing):
        learn_before(inputs, training.preprocessing, connection)
    with TrainingBatches(inputs, training, seed, connection) as source:
        batches = source.start(position, num_seen, checkpoint.order if checkpoint is not None else None)
        # The seed is set after the start of the loader, because the start draws random numbers, more with more workers.
        seed_everything(derived_seed(seed, inputs.request.trigger_id, TRAINING))
        if checkpoint is not None:
            restore(training, checkpoint)
            logger.info("resumed", batches=training.progress.batches)
        training.clock.lap("load")
        skipped_before = training.progress.skipped
        training.run(batches)
        training.progress.skipped = skipped_before + source.num_skipped  # including samples of batches that were left out
        training.progress.note_bad(source.bad_samples)
        if inputs.context.keep_times is not None:
            inputs.context.keep_times(inputs.trigger_set.dataset_identity, source.times)
    if skipped := training.progress.skipped:
        logger.warning(
            "samples_skipped", num_samples=skipped, alone=source.num_alone, why="deleted since the selection, bad or alone"
        )
    return source.num_alone


def stream_rates(rule: LearningRateRule, optimizers: Sequence[Optimizer], steps_before: int) -> list[LambdaLR]:
    """Return schedulers that continue after the steps of earlier triggers. Args: rule: `online.learning_rate`. steps_before: see `Prequential`."""
    if rule.rule == "constant":
        return []
    return [LambdaLR(optimizer, lambda step: rule.factor(steps_before + step + 1)) for optimizer in optimizers]


def build_criterion(inputs: TrainingInputs) -> Criterion:
    """Build the loss, with the weights of the trigger set and of downsampling, if any are used. Raises ConfigError, InvalidArgumentError."""
    sampled = inputs.downsampling is not None and inputs.downsampling.weighs
    return Criterion(inputs.config.optimization_criterion, weigh(inputs) if inputs.uses_weights else None, sampled=sampled)


def weigh(inputs: TrainingInputs) -> float:
    """Return the mean weight of the trigger set's samples, from one pass. Raises InvalidArgumentError unless the mean is above 0 and finite."""
    with closing(inputs.context.connect()) as clients:
        mean = mean_weight(clients.selector, inputs.trigger_set)
    if not 0 < mean < float("inf"):
        raise InvalidArgumentError(
            f"the weights of the trigger set have the mean {mean}, but it must be above 0 and finite: correct the selection strategy, or set "
            "selection_strategy.uses_weights: false"
        )
    return mean
