"""The irreducible-loss models of a downsampling policy. The job of a training trains these models before the training itself. Each
irreducible-loss model scores samples on which it was not trained.

The training's folder of selections keeps all results (checkpoints and weights of the models, the scores of a pass so far, and finally the losses), so
that the next attempt resumes. Imports torch: for workers only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from modyn.columnar import ColumnFile, FileKind
from modyn.config.base import load_section
from modyn.config.pipeline import ModelReference
from modyn.dataset.order.held_out import Share
from modyn.errors import ConfigError, TrainingError
from modyn.json_codec import to_json
from modyn.models.weights import load_model, load_weights, save_weights, weights_sha256
from modyn.records import Float32Array, Int64Array
from modyn.rpc.logs import get_logger
from modyn.trainer_server.disk.files import (
    find_finished,
    irreducible_dir,
    keep_finished,
    kept_irreducible,
    remove,
    selections_dir,
)
from modyn.trainer_server.disk.row_log import RowLog
from modyn.trainer_server.disk.whole_file import find_whole, write_whole
from modyn.trainer_server.downsampling.policies.policy import DownsamplingPolicy
from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel
from modyn.trainer_server.fitting import build, fit
from modyn.trainer_server.learning import NothingLearnedError, check_learned
from modyn.trainer_server.loop.checkpoint import load_checkpoint
from modyn.trainer_server.loop.components import mixed_precision
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.loop.hooks import DivergedError, check_weights
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.loop.loop import Training
from modyn.trainer_server.loop.seeding import derived_seed, seed_everything
from modyn.trainer_server.request.config import TrainingConfig
from modyn.trainer_server.request.irreducible_config import irreducible_config, irreducible_sections
from modyn.trainer_server.request.records import BatchProgress, StageProgress
from modyn.trainer_server.scoring.scoring_pass import ScoredRows, ScoringPass, candidate_passes
from modyn.workers import JobConnection

_KIND: Final = FileKind(b"MODYNIRR", 1, "file of irreducible losses", "delete it: they are computed again")
_MODEL: Final = 6
"""Purpose of the seed of the first model (see `derived_seed`). The second model has the next number."""
_PATH: Final = "selection_strategy.downsampling_config"


class TooLittleHeldOutError(TrainingError):
    """This trigger set leaves an irreducible-loss model without a batch. Other trigger sets of the run may be larger."""


def prepare_downsampling(inputs: TrainingInputs, training: Training, connection: JobConnection) -> None:
    """Compute the irreducible losses that the policy needs for scoring, or read the losses of an earlier attempt. The seconds count as stage
    `irreducible`.

    Raises: TooLittleHeldOutError. ConfigError: no trigger can hold out a sample. CancelledError: on a request to stop. All errors of a training.
    """
    if (policy := inputs.downsampling) is not None and policy.needs_irreducible_losses:
        policy.irreducible = irreducible_losses(inputs, policy, connection)
        training.clock.lap("irreducible")


def irreducible_losses(inputs: TrainingInputs, policy: DownsamplingPolicy, connection: JobConnection) -> IrreducibleLosses:
    """Return the irreducible losses of all samples of the training. The loss of a sample comes from a model that was not trained on the sample.
    Raises: see `prepare_downsampling`.
    """
    path = selections_dir(inputs.context.folder, inputs.request) / "irreducible"
    if (found := find_losses(path, inputs.identity())) is not None:
        return found
    models = [IrreducibleModel(inputs, policy, *part, connection) for part in enumerate(_parts(inputs, policy))]
    # All sizes are checked before the first training, which may take long.
    for model in models:
        model.check_size()
    rows = [model.losses(len(models)) for model in models]
    keys, losses = (np.concatenate(columns) for columns in zip(*rows, strict=True))
    found = write_losses(path, keys, losses, inputs.identity())
    # The losses are on disk now. Later attempts no longer need the files of the models.
    for model in models:
        model.remove()
    connection.send(StageProgress())
    connection.send(BatchProgress())
    return found


@dataclass(frozen=True)
class ModelShares:
    """The samples that a model is trained on, and the samples that it scores."""

    trained: Share
    scored: Share


def _parts(inputs: TrainingInputs, policy: DownsamplingPolicy) -> list[ModelShares]:
    """Return the samples of each model. `training.validation` ranks all samples. The samples of the models are consecutive ranges after the
    validation set.
    """
    low = inputs.config.validation.ratio if inputs.config.validation else 0
    split = low + policy.holdout if policy.holdout else Fraction((low + 100) // 2)
    lower, upper = (
        Share(inputs.trigger_set, end, held_out=True, seed=inputs.seed or 0, above=first)
        for first, end in ((low, split), (split, 100))
    )
    return [ModelShares(lower, upper)] if policy.holdout else [ModelShares(lower, upper), ModelShares(upper, lower)]


@dataclass(frozen=True)
class IrreducibleInputs(TrainingInputs):
    """The inputs for the training of an irreducible-loss model: all samples of its share, without random transformations."""

    number: int
    share: Share

    @property
    def held_out(self) -> None:
        """Always None: the model has no validation set."""

    @property
    def trained(self) -> Share:
        """The model's share of the samples."""
        return self.share

    @property
    def downsampling(self) -> None:
        """Always None: the model trains on all samples of its share."""

    @property
    def checkpoint(self) -> Path:
        """Path of the checkpoint, in the folder of selections, which is removed with the main training's files."""
        return selections_dir(self.context.folder, self.request) / f"irreducible-{self.number}.checkpoint"

    def identity(self) -> dict[str, Any]:
        """Return the identity of the training, with the number of the model."""
        return {**super().identity(), "irreducible": self.number}


class IrreducibleModel:
    """One irreducible-loss model of a training."""

    def __init__(
        self, inputs: TrainingInputs, policy: DownsamplingPolicy, number: int, part: ModelShares, connection: JobConnection
    ) -> None:
        """Args: inputs: inputs of the training that uses the model. number: number of the model, from 0."""
        self._outer, self._part, self._number, self._connection = inputs, part, number, connection
        self._policy, options = policy.strategy, policy.config.il_training_config
        pipeline = inputs.request.pipeline
        self._options = irreducible_config(pipeline["training"], options, f"{_PATH}.il_training_config")
        model, training = irreducible_sections(pipeline["model"], pipeline["training"], options)
        config = load_section(TrainingConfig, training, f"{_PATH}.il_training_config")
        request = replace(
            inputs.request,
            pipeline={**pipeline, "model": model, "training": training},
            parent_model_id=None,
            num_samples_to_pass=None,
        )
        self._inputs = IrreducibleInputs(
            request,
            load_section(ModelReference, model, f"{_PATH}.il_training_config"),
            config.model_copy(update={"device": inputs.config.device}),
            inputs.data,
            inputs.context,
            replace(inputs.trigger_set, feedback=()),
            number,
            part.trained,
        )
        self._folder = selections_dir(inputs.context.folder, inputs.request)
        kept = irreducible_dir(inputs.context.folder, inputs.request) if self._options.use_previous_model else self._folder
        self._weights = kept / f"irreducible-{number}.safetensors"
        self._scores = self._folder / f"irreducible-{number}.scores"

    def check_size(self) -> None:
        """Check that the model has at least one batch to train on. Raises TooLittleHeldOutError. ConfigError: no trigger set can have a batch."""
        num, size, trigger_set = self._part.trained.num_keys, self._inputs.config.batch_size, self._outer.trigger_set
        if num >= size:
            return
        message = (
            f"{self._policy} holds out {num} of the {trigger_set.num_keys} samples of trigger {self._outer.request.trigger_id} for its "
            f"irreducible-loss model, which is less than a batch of {size}: raise {_PATH}.holdout_set_ratio, lower "
            "il_training_config.batch_size, or let triggers without enough samples be part of warmup_triggers. The share is of each partition of "
            f"{trigger_set.partition_size} samples (selection_strategy.maximum_keys_in_memory), rounded down"
        )
        if not num and trigger_set.num_keys >= trigger_set.partition_size:
            raise ConfigError(f"{_PATH}.holdout_set_ratio: {message}")
        raise TooLittleHeldOutError(message)

    def losses(self, num_models: int) -> tuple[Int64Array, Float32Array]:
        """Train the model, and return keys and losses, (n,), of the samples that it scores. Raises: see `prepare_downsampling`."""
        of = f" {self._number + 1} of {num_models}" if num_models > 1 else ""
        self._train(f"irreducible-loss model{of}")
        of_model = self._inputs.model
        model = load_model(of_model.id, of_model.config, self._weights, self._inputs.definition).to(self._outer.config.device)
        scoring = ScoringModel(model, Criterion(self._outer.config.optimization_criterion), mixed_precision(self._outer.config))
        share = self._part.scored
        digest = hashlib.sha256(
            to_json([self._inputs.identity(), weights_sha256(self._weights)], sort_keys=True).encode()
        ).digest()
        self._connection.send(StageProgress(f"irreducible losses{of}"))
        passes = candidate_passes(self._outer, share, 1)
        # The shift leaves the 63 bits that `RowLog` uses as identity.
        log = RowLog(self._scores, int.from_bytes(digest[:8], "little") >> 1)
        log.open()
        try:
            ScoringPass(
                self._outer, self._connection, lambda scored, batch: scored.losses(batch).unsqueeze(1), _check, share.num_keys
            ).run(scoring, passes, 0, log)
        finally:
            passes.close()
        rows = ScoredRows.read(log)
        # The losses are copied: a view would keep the mapped file on the disk until the training ends, even after `remove`.
        return rows.keys, np.array(rows.scores[:, 0])

    def remove(self) -> None:
        """Remove the files that were needed to compute the losses, except for a model that the next trigger starts from."""
        for path in (self._scores, self._inputs.checkpoint, *self._folder.glob(f"irreducible-{self._number}.*")):
            remove(path)

    def _train(self, stage: str) -> None:
        """Train the model, from its checkpoint if one exists, and store its weights. Does nothing if the weights are already stored."""
        inputs, trigger_id = self._inputs, self._outer.request.trigger_id
        checksum = {"keys_checksum": inputs.trigger_set.keys_checksum}
        if find_finished(self._weights, self._identity(trigger_id)) == checksum:
            return
        # The training's seed may be random. This seed does not depend on it, so that every attempt makes the same model.
        seed = derived_seed(inputs.seed or 0, trigger_id, _MODEL + self._number)
        seed_everything(seed)
        checkpoint = load_checkpoint(inputs.checkpoint, inputs.identity()) if inputs.config.checkpointing.activated else None
        self._connection.send(StageProgress(stage))
        training = build(inputs, None, seed, self._connection, None)
        if (previous := self._previous()) is not None:
            load_weights(training.components.model, previous)
        try:
            fit(inputs, training, seed, checkpoint, self._connection)
            check_weights(training.components.model)
            check_learned(training, inputs.config)
        except (DivergedError, NothingLearnedError) as error:
            raise type(error)(f"the irreducible-loss model: {error.message}; see {_PATH}.il_training_config") from error
        if not training.progress.steps:
            raise TooLittleHeldOutError(
                f"all {inputs.num_candidates} samples that {self._policy} holds out were deleted meanwhile, or left out by data.on_bad_sample: raise "
                f"{_PATH}.holdout_set_ratio"
            )
        keep_finished(self._weights, partial(save_weights, training.components.model), checksum, self._identity(trigger_id))
        get_logger("training").info("irreducible_model_trained", samples=training.progress.samples, steps=training.progress.steps)

    def _previous(self) -> Path | None:
        """Return the newest weights that an earlier trigger has stored; None if there are no such weights, or if the model starts from scratch."""
        if not self._options.use_previous_model:
            return None
        for trigger_id, folder in kept_irreducible(self._outer.context.folder, self._outer.request):
            weights = folder / self._weights.name
            if find_finished(weights, self._identity(trigger_id)) is not None:
                return weights
        return None

    def _identity(self, trigger_id: int) -> Mapping[str, Any]:
        """Return the identity of the model of a trigger. The identity is equal for all attempts, and later triggers can compute it."""
        sections = self._inputs.request.identifying_sections
        digest = hashlib.sha256(to_json([sections, self._inputs.seed], sort_keys=True).encode()).hexdigest()
        return {"run_id": str(self._outer.request.run_id), "trigger_id": trigger_id, "number": self._number, "sha256": digest}


def _check(rows: ScoredRows) -> None:
    """Raise DivergedError if a loss is NaN."""
    wrong = np.flatnonzero(np.isnan(rows.scores[:, 0]))
    if wrong.size:
        raise DivergedError(f"the irreducible loss of sample key {rows.keys[wrong[0]]} is NaN: the sample holds NaN")


class IrreducibleLosses:
    """The irreducible loss of each sample of the training."""

    def __init__(self, file: ColumnFile) -> None:
        self._path = file.path
        self._keys, self._losses = file.column("keys"), file.column("losses")

    def __call__(self, keys: Int64Array) -> Float32Array:
        """Return the losses of the samples with these keys, (n,): float32 (n,). Raises: TrainingError: a sample has no computed loss."""
        rows = np.searchsorted(self._keys, keys)
        missing = (
            np.flatnonzero(self._keys[np.minimum(rows, len(self._keys) - 1)] != keys) if len(self._keys) else np.arange(len(keys))
        )
        if missing.size:
            raise TrainingError(
                f"sample key {keys[missing[0]]} has no irreducible loss: it could not be read when they were computed; delete {self._path} and "
                "resume the run, or see data.on_bad_sample"
            )
        found: Float32Array = self._losses[rows]
        return found


def write_losses(path: Path, keys: Int64Array, losses: Float32Array, identity: Any) -> IrreducibleLosses:
    """Write the losses, (n,), of the samples with these keys, (n,). The file is complete and durable on return.

    Args: identity: identity of the training. Raises: TrainingError: the disk cannot be written to.
    """
    order = np.argsort(keys, kind="stable")
    write_whole(path, _KIND, {"keys": keys[order], "losses": losses[order]}, {"identity": identity})
    return IrreducibleLosses(ColumnFile.open(path, _KIND))


def find_losses(path: Path, identity: Any) -> IrreducibleLosses | None:
    """Return the losses that an earlier attempt wrote; None if there is no file, or if the file is damaged or of another training. Args: identity:
    see `write_losses`.
    """
    file = find_whole(path, _KIND, identity)
    return None if file is None else IrreducibleLosses(file)
