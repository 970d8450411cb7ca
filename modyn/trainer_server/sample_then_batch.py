"""Sample-then-batch: between two epochs, a pass scores all candidates by the model as it is then, and a part of them is chosen.

A pass that is killed goes on: a checkpoint has the model that it began with, and a file the scores so far. What was chosen is a file too, and
is found again. Imports torch: for workers only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from modyn.dataset.order.plan import PartitionRead
from modyn.dataset.trigger_set import keys_of_partition
from modyn.errors import CancelledError
from modyn.json_codec import to_json
from modyn.records import Int64Array, KeysAndWeights
from modyn.trainer_server.batch_then_sample import check_scores
from modyn.trainer_server.chosen_set import ChosenRows, ChosenSamples, find_chosen_set, read_chosen_set, write_chosen_set
from modyn.trainer_server.downsampling.policy import Candidates, Choice, DownsamplingPolicy, Draw, single_scores
from modyn.trainer_server.downsampling.sampling import NO_CLASS
from modyn.trainer_server.downsampling_record import DownsamplingRecord, bounded, notes_of
from modyn.trainer_server.epoch_passes import EpochPasses
from modyn.trainer_server.files import chosen_path, remove, selections_dir
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.loop import Training
from modyn.trainer_server.score_file import ScoredRows, ScoreFile
from modyn.trainer_server.scoring_pass import ScoringPass, candidate_passes
from modyn.trainer_server.stages import StagedConnection
from modyn.workers import JobConnection


class SampleThenBatch:
    """Chooses what is trained on until the next selection. The seconds stand under `score` and `choose`."""

    def __init__(
        self,
        inputs: TrainingInputs,
        policy: DownsamplingPolicy,
        training: Training,
        draw: Callable[[int], Draw],
        connection: JobConnection,
    ) -> None:
        """Args: draw: the randomness of the choice of this number. connection: receives progress and requests to stop."""
        self._inputs = inputs
        self._policy = policy
        self._training = training
        self._draw = draw
        self._connection = connection
        self._record = next(hook for hook in training.hooks if isinstance(hook, DownsamplingRecord))
        self._folder = selections_dir(inputs.context.folder, inputs.request)
        self.period: int = policy.config.epochs_between(training.plan.num_epochs)
        """Epochs between two selections."""
        self._passes: EpochPasses | None = None

    def close(self) -> None:
        """End what loads the candidates."""
        if self._passes is not None:
            self._passes.close()

    def chosen(self, number: int) -> ChosenSamples:
        """What selection `number`, from 0, chooses by the present model: found again, if an earlier attempt has made it.

        Raises: CancelledError: the service asks to stop. DivergedError, ConfigError: one cannot choose by the scores. TrainingError: the disk cannot
        be written to.
        """
        identity = {**self._inputs.identity(), "draw": list(self._draw(number).generator().integers(2**31, size=2).tolist())}
        path = chosen_path(self._folder, number)
        noted = self._record.num_selections > number  # in the checkpoint that this attempt goes on from
        # What a policy remembers is found by choosing again, by scores that were kept for it.
        chosen = find_chosen_set(path, self._inputs.trigger_set, identity) if noted or not self._policy.remembers else None
        if chosen is None:
            selected, notes = self._scored_choice(number) if self._policy.needs_pass else self._choice(number)
            chosen = write_chosen_set(path, self._inputs.trigger_set, selected, {"identity": identity, "notes": bounded(notes)})
            self._training.clock.lap("choose")
            # What comes later goes on from here: neither the scores nor what was chosen before are needed any more.
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
        room = self._inputs.num_candidates
        with ScoreFile(self._score_path(number), room, int.from_bytes(digest[:8], "little") >> 1) as file:
            self._score(number, file)
            self._training.clock.lap("score")
            rows = file.read()
            self._policy.remember(rows.candidates)
            choice = self._policy.select(rows.candidates, min(self._training.plan.num_keys, len(rows)), self._draw(number))
            chosen = KeysAndWeights(rows.keys[choice.positions], self._weights(rows, choice))
            return ChosenRows(chosen, single_scores(rows.candidates, choice)), notes_of(rows.labels, choice)

    def _choice(self, number: int) -> tuple[ChosenRows, dict[str, Any]]:
        """Choose without scores: what there is to choose from is known by its number, and keys are read of what was chosen."""
        num_candidates = self._inputs.num_candidates
        labels = np.broadcast_to(np.int64(NO_CLASS), num_candidates)
        candidates = Candidates(np.broadcast_to(np.float32(0), (num_candidates, 0)), labels, labels)
        choice = self._policy.select(candidates, self._training.plan.num_keys, self._draw(number))
        chosen = self._keys_at(choice.positions)
        own = chosen.weights if self._inputs.uses_weights else np.ones(len(chosen), np.float32)
        weights = own if choice.weights is None else own * choice.weights
        return ChosenRows(KeysAndWeights(chosen.keys, weights), None), notes_of(labels, choice)

    def _score(self, number: int, file: ScoreFile) -> None:
        """Score all candidates that `file` does not hold yet, and append them."""
        of = f" {number + 1} of {self._num_selections}" if self._num_selections > 1 else ""
        when = f"of epoch {self._training.progress.epoch}"
        scoring = ScoringPass(
            self._inputs,
            StagedConnection(self._connection, f"selection{of}"),
            self._policy.scored,
            lambda rows: check_scores(self._policy, rows.scores, rows.keys, when),
            self._inputs.num_candidates,
            self._policy.scores_as_trained,
        )
        try:
            scoring.run(self._training.scoring_model(), self._candidates(), number, file)
        except CancelledError:
            self._training.stopping = True
            raise
        self._connection.send({"stage": ""})

    def _weights(self, rows: ScoredRows, choice: Choice) -> Any:
        """The weights of the chosen samples: of the trigger set if they count, times those of the choice, which divide by the mean count."""
        own = rows.weights[choice.positions] if self._inputs.uses_weights else np.ones(len(choice), np.float32)
        if choice.weights is None or not len(rows):
            return own
        mean = 1.0 if self._training.components.criterion.sums else float(rows.counts.sum(dtype=np.float64)) / len(rows) or 1.0
        return (own * choice.weights / mean).astype(np.float32)

    def _candidates(self) -> EpochPasses:
        """Passes over the candidates in the order of the trigger set, one for each selection."""
        if self._passes is None:
            self._passes = candidate_passes(self._inputs, self._inputs.trained, self._num_selections)
        return self._passes

    @property
    def _num_selections(self) -> int:
        return -(-self._training.plan.num_epochs // self.period)

    def _keys_at(self, positions: Int64Array) -> KeysAndWeights:
        """Keys and weights at positions among the candidates, ascending, read partition by partition."""
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
    """SHA-256 over all parameters and buffers of a model."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
