"""Batch-then-sample: choose each batch from several candidate batches, by the current model, just before the batch is trained on.

Imports torch: for workers only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from modyn.dataset.batch import Batch, on_device
from modyn.errors import ConfigError
from modyn.records import Float32Array, Int64Array, KeysAndWeights
from modyn.trainer_server.disk.chosen_set import ChosenRows
from modyn.trainer_server.downsampling.policies.policy import Candidates, Choice, DownsamplingPolicy, Draw, single_scores
from modyn.trainer_server.downsampling.policies.sampling import NO_CLASS
from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel
from modyn.trainer_server.loop.hooks import DivergedError
from modyn.trainer_server.loop.loop import Explaining, Training
from modyn.trainer_server.scoring.downsampling_record import DownsamplingRecord, notes_of


class BatchThenSample:
    """Turns a stream of candidate batches into a stream of chosen batches on the device. The training loop reads from this stage directly. No stage
    in between may prefetch, because a choice depends on the current model. Candidates stay in main memory. The device receives the chosen samples,
    and the candidates for scoring in slices of at most one batch, two at a time.

    A chosen batch has the position of its candidates, so that a training can resume after any chosen batch. Random choices depend only on the
    position. The stages `score` and `choose` of the training's clock count the seconds.
    """

    def __init__(
        self,
        policy: DownsamplingPolicy,
        training: Training,
        draw: Callable[[int], Draw],
        uses_weights: bool,
    ) -> None:
        """Args: draw: returns the random source of the choice with a given number. uses_weights: whether the weights of the trigger set are used."""
        self._policy = policy
        self._training = training
        self._draw = draw
        [self._record] = training.hooks_of(DownsamplingRecord)
        self._uses_weights = uses_weights

    def __call__(self, candidates: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the chosen batches, in total at most the plan's number of samples. Args: candidates: in main memory."""
        plan, clock = self._training.plan, self._training.clock
        left = plan.num_samples - self._training.progress.samples
        while left > 0 and (batch := next(candidates, None)) is not None:
            clock.lap("load")
            size = min(plan.chosen_of(batch.index, len(batch)), left)
            # A single remaining sample becomes part of the last batch, as in the plan.
            size += plan.join_single and left - size == 1
            chosen = self._chosen(batch, size, batch.epoch * plan.batches_per_epoch + batch.index)
            clock.lap("choose")
            left -= len(chosen)
            self._training.progress.unchosen += len(batch) - len(chosen)
            yield chosen

    def _chosen(self, batch: Batch, size: int, number: int) -> Batch:
        model, device = self._training.scoring_model(), self._training.components.device
        # Only labels and weights are needed on the device here. The labels replace the data, because the data may be large.
        labelled = replace(batch, data=batch.labels).to(device)
        with Explaining(batch, model.network):
            classes, counts = model.classes_and_counts(labelled)
        labels, keys = classes.cpu().numpy(), batch.keys.numpy()
        scores = np.zeros((len(batch), 0), np.float32)
        # If all candidates are chosen, their scores do not matter.
        if self._policy.needs_pass and size < len(batch):
            # The candidates are scored in batches of the training's size, which are known to fit into the memory of the device.
            pieces = on_device(batch.slices(self._training.plan.batch_size), device)
            with model.scoring(as_trained=self._policy.scores_as_trained):
                scores = torch.cat([self._scored(model, piece) for piece in pieces]).cpu().numpy()
            check_scores(self._policy, scores, keys, f"of batch {batch.index} of epoch {batch.epoch}")
        self._training.clock.lap("score")
        usable = None if bool((labels != NO_CLASS).all()) else (counts > 0).cpu().numpy()
        candidates = Candidates(scores, labels, keys, usable)
        if scores.shape[1]:
            self._policy.remember(candidates)
        choice = self._policy.select(candidates, size, self._draw(number))
        self._record.add(notes_of(labels, choice))
        self._record.chosen = ChosenRows(KeysAndWeights.unweighted(keys[choice.positions]), single_scores(candidates, choice))
        weights = self._weights(labelled, choice, counts)
        return batch.take(torch.from_numpy(choice.positions), weights).to(device)

    def _scored(self, model: ScoringModel, batch: Batch) -> Tensor:
        with Explaining(batch, model.network):
            return self._policy.scored(model, self._training.with_features(batch))

    def _weights(self, batch: Batch, choice: Choice, counts: Tensor) -> Tensor:
        """Return the weights of the chosen samples, on the device of `batch`. Args: counts: `Criterion.counts` of all candidates."""
        rows = torch.from_numpy(choice.positions).to(counts.device)
        own = batch.weights[rows] if self._uses_weights else torch.ones(len(choice), device=counts.device)
        if choice.weights is None:
            return own
        weights = own * torch.from_numpy(choice.weights).to(counts.device)
        if self._training.components.criterion.sums:
            return weights
        # The criterion divides the loss of chosen samples only by their number. This method divides by the mean count of all candidates.
        mean = counts.mean()
        return weights / mean.where(mean > 0, 1.0)


def check_scores(policy: DownsamplingPolicy, scores: Float32Array, keys: Int64Array, when: str) -> None:
    """Check the scores, (n, f), of the samples `keys` before a choice. Args: when: point in the training, as text for messages.

    Raises: DivergedError: a score is NaN, or is infinite in a sample with several scores. ConfigError: a score is negative, but the policy uses it as
    a probability.
    """
    # A single score may be infinite, because it can still be ranked. If a sample has several scores, such as a gradient, all must be finite.
    wrong = np.isnan(scores) if scores.shape[1] == 1 else ~np.isfinite(scores)
    name = policy.strategy
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise DivergedError(f"{name} scored sample key {keys[row]} as {scores[row, column]} under the model {when}")
    if policy.weighs and scores.shape[1] == 1 and (negative := np.flatnonzero(scores[:, 0] < 0)).size:
        row = int(negative[0])
        raise ConfigError(
            f"selection_strategy.downsampling_config.strategy: {name} draws in proportion to scores, but that of sample key {keys[row]} is "
            f"{scores[row, 0]}: choose a loss that is never negative, or GradNorm or RS2"
        )
