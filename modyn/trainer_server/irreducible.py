"""The irreducible-loss models of RHOLoss: trained before the training itself, in the same job, and scoring the samples that they were not trained on.

All that is computed stands in the training's folder of selections, so that an attempt that was killed goes on: checkpoints and weights of the
models, the scores of a pass so far, and at last the losses. Imports torch: for workers only.
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

from modyn.config.base import load_section
from modyn.dataset.order.held_out import Share
from modyn.errors import ConfigError, TrainingError
from modyn.json_codec import to_json
from modyn.models.weights import load_model, load_weights, save_weights, weights_sha256
from modyn.records import Float32Array, Int64Array
from modyn.rpc.logs import get_logger
from modyn.trainer_server.checkpoint import derived_seed, load_checkpoint, seed_everything
from modyn.trainer_server.components import mixed_precision
from modyn.trainer_server.config import TrainingConfig
from modyn.trainer_server.criterion import Criterion
from modyn.trainer_server.downsampling.rho_loss import RHOLoss
from modyn.trainer_server.downsampling.scoring import ScoringModel
from modyn.trainer_server.files import find_finished, irreducible_dir, keep_finished, kept_irreducible, remove, selections_dir
from modyn.trainer_server.fitting import build, fit
from modyn.trainer_server.hooks import DivergedError, check_weights
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.irreducible_config import irreducible_config, irreducible_sections
from modyn.trainer_server.irreducible_file import IrreducibleLosses, find_losses, write_losses
from modyn.trainer_server.learning import NothingLearnedError, check_learned
from modyn.trainer_server.loop import Training
from modyn.trainer_server.score_file import ScoredRows, ScoreFile
from modyn.trainer_server.scoring_pass import ScoringPass, candidate_passes
from modyn.trainer_server.stages import NOTHING_SEEN, StagedConnection
from modyn.workers import JobConnection

_MODEL: Final = 6
"""Purpose of the seed of the first model; of the second, one more."""
_PATH: Final = "selection_strategy.downsampling_config"


class TooLittleHeldOutError(TrainingError):
    """This trigger set leaves an irreducible-loss model without a batch; others of the run may have more."""


def prepare_downsampling(inputs: TrainingInputs, training: Training, connection: JobConnection) -> None:
    """Compute what the policy needs before it scores, or find it. The seconds stand under `irreducible`.

    Raises: TooLittleHeldOutError. ConfigError: no trigger can hold anything out. CancelledError: asked to stop. And what a training raises.
    """
    if isinstance(inputs.downsampling, RHOLoss):
        inputs.downsampling.irreducible = irreducible_losses(inputs, inputs.downsampling, connection)
        training.clock.lap("irreducible")


def irreducible_losses(inputs: TrainingInputs, policy: RHOLoss, connection: JobConnection) -> IrreducibleLosses:
    """The irreducible losses of all samples that can be trained on. Each under a model that was not trained on it. Raises as above."""
    path = selections_dir(inputs.context.folder, inputs.request) / "irreducible"
    if (found := find_losses(path, inputs.identity())) is not None:
        return found
    models = [IrreducibleModel(inputs, policy, *part, connection) for part in enumerate(_parts(inputs, policy))]
    for model in models:
        model.check_size()
    rows = [model.losses(len(models)) for model in models]
    keys, losses = (np.concatenate(columns) for columns in zip(*rows, strict=True))
    found = write_losses(path, keys, losses, inputs.identity())
    for model in models:
        model.remove()
    connection.send({"stage": "", **NOTHING_SEEN})
    return found


@dataclass(frozen=True)
class ModelShares:
    """The samples that a model is trained on, and those that it scores."""

    trained: Share
    scored: Share


def _parts(inputs: TrainingInputs, policy: RHOLoss) -> list[ModelShares]:
    """What each model has. Bands of the order that `training.validation` draws from too, behind what that holds out."""
    low = inputs.config.validation.ratio if inputs.config.validation else 0
    split = low + policy.holdout if policy.holdout else Fraction((low + 100) // 2)
    lower, upper = (
        Share(inputs.trigger_set, end, held_out=True, seed=inputs.seed or 0, above=first)
        for first, end in ((low, split), (split, 100))
    )
    return [ModelShares(lower, upper)] if policy.holdout else [ModelShares(lower, upper), ModelShares(upper, lower)]


@dataclass(frozen=True)
class IrreducibleInputs(TrainingInputs):
    """What the training of an irreducible-loss model is given: all samples of its share, without random transformations."""

    number: int
    share: Share

    @property
    def held_out(self) -> None:
        """Nothing."""

    @property
    def trained(self) -> Share:
        """The share."""
        return self.share

    @property
    def downsampling(self) -> None:
        """None."""

    @property
    def checkpoint(self) -> Path:
        """In the folder of selections, which goes with the training that the model is for."""
        return selections_dir(self.context.folder, self.request) / f"irreducible-{self.number}.checkpoint"

    def identity(self) -> dict[str, Any]:
        """Also of which model."""
        return {**super().identity(), "irreducible": self.number}


class IrreducibleModel:
    """One irreducible-loss model of a training."""

    def __init__(
        self, inputs: TrainingInputs, policy: RHOLoss, number: int, part: ModelShares, connection: JobConnection
    ) -> None:
        """Args: inputs: of the training that the model is for. number: of the model, from 0."""
        self._outer, self._part, self._number, self._connection = inputs, part, number, connection
        options = policy.config.il_training_config
        pipeline = inputs.request.pipeline
        self._options = irreducible_config(pipeline["training"], options, f"{_PATH}.il_training_config")
        self._model, training = irreducible_sections(pipeline["model"], pipeline["training"], options)
        config = load_section(TrainingConfig, training, f"{_PATH}.il_training_config")
        request = replace(
            inputs.request,
            pipeline={**pipeline, "model": self._model, "training": training},
            parent_model_id=None,
            num_samples_to_pass=None,
        )
        self._inputs = IrreducibleInputs(
            request,
            config.model_copy(update={"device": inputs.config.device}),
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
        """Check that the model has a batch to be trained on. Raises TooLittleHeldOutError. ConfigError: no trigger set can have one."""
        num, size, trigger_set = self._part.trained.num_keys, self._inputs.config.batch_size, self._outer.trigger_set
        if num >= size:
            return
        message = (
            f"RHOLoss holds out {num} of the {trigger_set.num_keys} samples of trigger {self._outer.request.trigger_id} for its irreducible-loss "
            f"model, which is less than a batch of {size}: raise {_PATH}.holdout_set_ratio, lower il_training_config.batch_size, or let triggers "
            "without enough samples be part of warmup_triggers. The share is of each partition of "
            f"{trigger_set.partition_size} samples (selection_strategy.maximum_keys_in_memory), rounded down"
        )
        if not num and trigger_set.num_keys >= trigger_set.partition_size:
            raise ConfigError(f"{_PATH}.holdout_set_ratio: {message}")
        raise TooLittleHeldOutError(message)

    def losses(self, num_models: int) -> tuple[Int64Array, Float32Array]:
        """Keys and losses, (n,), of the samples that the model scores; trains it first. Raises as `prepare_downsampling`."""
        of = f" {self._number + 1} of {num_models}" if num_models > 1 else ""
        self._train(f"irreducible-loss model{of}")
        model = load_model(self._model["id"], self._model.get("config") or {}, self._weights).to(self._outer.config.device)
        scoring = ScoringModel(model, Criterion(self._outer.config.optimization_criterion), mixed_precision(self._outer.config))
        share = self._part.scored
        digest = hashlib.sha256(
            to_json([self._inputs.identity(), weights_sha256(self._weights)], sort_keys=True).encode()
        ).digest()
        stage = StagedConnection(self._connection, f"irreducible losses{of}")
        passes = candidate_passes(self._outer, share, 1)
        with ScoreFile(self._scores, share.num_keys, int.from_bytes(digest[:8], "little") >> 1) as file:
            try:
                ScoringPass(
                    self._outer, stage, lambda scored, batch: scored.losses(batch).unsqueeze(1), _check, share.num_keys
                ).run(scoring, passes, 0, file)
            finally:
                passes.close()
            rows = file.read()
            return np.array(rows.keys), np.array(rows.scores[:, 0])

    def remove(self) -> None:
        """Remove what the losses were made of, but for a model that the next trigger begins with."""
        for path in (self._scores, self._inputs.checkpoint, *self._folder.glob(f"irreducible-{self._number}.*")):
            remove(path)

    def _train(self, stage: str) -> None:
        """Train the model, from its checkpoint on if there is one, and keep its weights. Does nothing if they are there."""
        inputs, trigger_id = self._inputs, self._outer.request.trigger_id
        checksum = {"keys_checksum": inputs.trigger_set.keys_checksum}
        if find_finished(self._weights, self._identity(trigger_id)) == checksum:
            return
        # Not of the training's seed, which may be drawn: every attempt makes the same model.
        seed = derived_seed(inputs.seed or 0, trigger_id, _MODEL + self._number)
        seed_everything(seed)
        checkpoint = load_checkpoint(inputs.checkpoint, inputs.identity()) if inputs.config.checkpointing.activated else None
        connection = StagedConnection(self._connection, stage)
        training = build(inputs, None, seed, connection, None)
        if (previous := self._previous()) is not None:
            load_weights(training.components.model, previous)
        try:
            fit(inputs, training, seed, checkpoint, connection)
            check_weights(training.components.model)
            check_learned(training, inputs.config)
        except (DivergedError, NothingLearnedError) as error:
            raise type(error)(f"the irreducible-loss model: {error.message}; see {_PATH}.il_training_config") from error
        if not training.progress.steps:
            raise TooLittleHeldOutError(
                f"all {inputs.num_candidates} samples that RHOLoss holds out were deleted meanwhile, or left out by data.on_bad_sample: raise "
                f"{_PATH}.holdout_set_ratio"
            )
        keep_finished(self._weights, partial(save_weights, training.components.model), checksum, self._identity(trigger_id))
        get_logger("training").info("irreducible_model_trained", samples=training.progress.samples, steps=training.progress.steps)

    def _previous(self) -> Path | None:
        """The weights that the newest trigger before has kept; None: there are none, or the model is to start from scratch."""
        if not self._options.use_previous_model:
            return None
        for trigger_id, folder in kept_irreducible(self._outer.context.folder, self._outer.request):
            weights = folder / self._weights.name
            if find_finished(weights, self._identity(trigger_id)) is not None:
                return weights
        return None

    def _identity(self, trigger_id: int) -> Mapping[str, Any]:
        """Of the model of this number in a trigger: equal for two attempts, and known to later triggers."""
        pipeline = self._inputs.request.pipeline
        sections = {name: pipeline.get(name) for name in ("model", "training", "data", "selection_strategy")}
        digest = hashlib.sha256(to_json([sections, self._inputs.seed], sort_keys=True).encode()).hexdigest()
        return {"run_id": str(self._outer.request.run_id), "trigger_id": trigger_id, "number": self._number, "sha256": digest}


def _check(rows: ScoredRows) -> None:
    """Check that losses are numbers. Raises DivergedError."""
    wrong = np.flatnonzero(np.isnan(rows.scores[:, 0]))
    if wrong.size:
        raise DivergedError(f"the irreducible loss of sample key {rows.keys[wrong[0]]} is NaN: the sample holds NaN")
