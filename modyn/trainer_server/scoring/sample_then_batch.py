"""Sample-then-batch: between two epochs, a pass scores all candidates by the current model, and the policy chooses some of them.

A killed pass resumes, because a checkpoint has the model at the beginning of the pass, and a file has the scores so far. Another file keeps the
chosen samples for later attempts. Imports torch: for workers only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from modyn.dataset.order.batch_plan import PartitionRead
from modyn.dataset.trigger_set import keys_of_partition
from modyn.errors import CancelledError
from modyn.json_codec import to_json
from modyn.records import Int64Array, KeysAndWeights
from modyn.trainer_server.disk.chosen_set import ChosenRows, ChosenSamples, find_chosen_set, read_chosen_set, write_chosen_set
from modyn.trainer_server.disk.files import chosen_path, remove, selections_dir
from modyn.trainer_server.disk.row_log import RowLog
from modyn.trainer_server.downsampling.policies.policy import Candidates, Choice, DownsamplingPolicy, Draw, single_scores
from modyn.trainer_server.downsampling.policies.sampling import NO_CLASS
from modyn.trainer_server.loop.epoch_passes import EpochPasses
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.loop.loop import Training
from modyn.trainer_server.request.records import StageProgress
from modyn.trainer_server.scoring.batch_then_sample import check_scores
from modyn.trainer_server.scoring.downsampling_record import DownsamplingRecord, bounded, notes_of
from modyn.trainer_server.scoring.scoring_pass import ScoredRows, ScoringPass, candidate_passes
from modyn.workers import JobConnection


class SampleThenBatch:
    """Chooses the samples to train on until the next selection. The stages `score` and `choose` of the training's clock count the seconds."""

    def __init__(
        self,
        inputs: TrainingInputs,
        policy: DownsamplingPolicy,
        training: Training,
        draw: Callable[[int], Draw],
        connection: JobConnection,
    ) -> None:
        """Args: draw: returns the random source of the choice with a given number. connection: reports progress and receives requests to stop."""
        self._inputs = inputs
        self._policy = policy
        self._training = training
        self._draw = draw
        self._connection = connection
        [self._record] = training.hooks_of(DownsamplingRecord)
        self._folder = selections_dir(inputs.context.folder, inputs.request)
        self.period: int = policy.config.epochs_between(training.plan.num_epochs)
        """Number of epochs between two selections."""
        self._passes: EpochPasses | None = None

    def close(self) -> None:
        """End the loader of the candidates."""
        if self._passes is not None:
            self._passes.close()

    def chosen(self, number: int) -> ChosenSamples:
        """Return the samples of selection `number`, from 0, chosen by the current model or read from the file of an earlier attempt.

        Raises: CancelledError: the service asks to stop. DivergedError, ConfigError: the scores allow no choice. TrainingError: the disk cannot
        be written to.
        """
        identity = {**self._inputs.identity(), "draw": list(self._draw(number).generator().integers(2**31, size=2).tolist())}
        path = chosen_path(self._folder, number)
        noted = self._record.num_selections > number  # The checkpoint that this attempt resumes from already counts the choice.
        # A policy with a history must repeat the choice from the kept scores, because the repetition restores the history.
        chosen = find_chosen_set(path, self._inputs.trigger_set, identity) if noted or not self._policy.remembers else None
        if chosen is None:
            selected, notes = self._scored_choice(number) if self._policy.needs_pass else self._choice(number)
            chosen = write_chosen_set(path, self._inputs.trigger_set, selected, {"identity": identity, "notes": bounded(notes)})
            self._training.clock.lap("choose")
            # Later attempts resume from this file, and need no earlier choices. Only a policy with a history still needs the scores.
            remove(self._score_path(number - self._policy.remembers))
            remove(chosen_path(self._folder, number - 1))
        if not noted:
            self._record.add(chosen.notes)
        if self._inputs.trigger_set.feedback:
            self._record.chosen = read_chosen_set(path)
        return chosen

    def _scored_choice(self, number: int) -> tuple[ChosenRows, dict[str, Any]]:
        """Choose by the scores of a pass."""
        for hook in self._training.hooks:
            hook.on_selection(self._training)
        self._training.clock.lap("hooks")
        identity = [self._inputs.identity(), number, _fingerprint(self._training.components.model)]
        digest = hashlib.sha256(to_json(identity, sort_keys=True).encode()).digest()
        log = RowLog(self._score_path(number), int.from_bytes(digest[:8], "little") >> 1)
        log.open()
        self._score(number, log)
        self._training.clock.lap("score")
        rows = ScoredRows.read(log)
        self._policy.remember(rows.candidates)
        choice = self._policy.select(rows.candidates, min(self._training.plan.num_keys, len(rows)), self._draw(number))
        chosen = KeysAndWeights(rows.keys[choice.positions], self._weights(rows, choice))
        return ChosenRows(chosen, single_scores(rows.candidates, choice)), notes_of(rows.labels, choice)

    def _choice(self, number: int) -> tuple[ChosenRows, dict[str, Any]]:
        """Choose without scores. The policy needs only the number of candidates, and only the keys of chosen samples are read."""
        num_candidates = self._inputs.num_candidates
        labels = np.broadcast_to(np.int64(NO_CLASS), num_candidates)
        candidates = Candidates(np.broadcast_to(np.float32(0), (num_candidates, 0)), labels, labels)
        choice = self._policy.select(candidates, self._training.plan.num_keys, self._draw(number))
        chosen = self._keys_at(choice.positions)
        own = chosen.weights if self._inputs.uses_weights else np.ones(len(chosen), np.float32)
        weights = own if choice.weights is None else own * choice.weights
        return ChosenRows(KeysAndWeights(chosen.keys, weights), None), notes_of(labels, choice)

    def _score(self, number: int, log: RowLog) -> None:
        """Score the candidates that are not in `log` yet, and append their rows to `log`."""
        of = f" {number + 1} of {self._num_selections}" if self._num_selections > 1 else ""
        when = f"of epoch {self._training.progress.epoch}"
        self._connection.send(StageProgress(f"selection{of}"))
        scoring = ScoringPass(
            self._inputs,
            self._connection,
            self._policy.scored,
            lambda rows: check_scores(self._policy, rows.scores, rows.keys, when),
            self._inputs.num_candidates,
            self._policy.scores_as_trained,
            self._training.with_features,
        )
        try:
            scoring.run(self._training.scoring_model(), self._candidates(), number, log)
        except CancelledError:
            self._training.stopping = True
            raise
        self._connection.send(StageProgress())

    def _weights(self, rows: ScoredRows, choice: Choice) -> Any:
        """Return the weights of the chosen samples: the weight in the trigger set (1 if weights are not used), times the weight of the choice,
        divided by the mean count.
        """
        own = rows.weights[choice.positions] if self._inputs.uses_weights else np.ones(len(choice), np.float32)
        if choice.weights is None or not len(rows):
            return own
        mean = 1.0 if self._training.components.criterion.sums else float(rows.counts.sum(dtype=np.float64)) / len(rows) or 1.0
        return (own * choice.weights / mean).astype(np.float32)

    def _candidates(self) -> EpochPasses:
        """Return passes over the candidates in the order of the trigger set, one for each selection."""
        if self._passes is None:
            self._passes = candidate_passes(self._inputs, self._inputs.trained, self._num_selections)
        return self._passes

    @property
    def _num_selections(self) -> int:
        return -(-self._training.plan.num_epochs // self.period)

    def _keys_at(self, positions: Int64Array) -> KeysAndWeights:
        """Return keys and weights of the candidates at `positions` (ascending), read partition by partition."""
        inputs, trigger_set = self._inputs, self._inputs.trigger_set
        size, found = (inputs.trained or trigger_set).partition_size, []
        clients = inputs.context.connect()
        try:
            bounds = np.searchsorted(positions, np.arange(trigger_set.num_partitions + 1) * size)
            for partition, (first, last) in enumerate(pairwise(bounds.tolist())):
                if first < last:
                    read = PartitionRead(partition, positions[:0], ())
                    held = keys_of_partition(clients.selector, trigger_set, inputs.trained, read)
                    rows = positions[first:last] - partition * size
                    found.append(KeysAndWeights(held.keys[rows], held.weights[rows]))
        finally:
            clients.close()
        return KeysAndWeights.concatenate(found)

    def _score_path(self, number: int) -> Any:
        return self._folder / f"{number}.scores"


def _fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 over all parameters and buffers of a model."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
