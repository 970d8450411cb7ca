"""Choose the samples that the model forgets, or has never learnt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
from pydantic import model_validator

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.downsampling.policies.policy import (
    BalancedConfig,
    Candidates,
    Choice,
    DownsamplingPolicy,
    Draw,
    ScoredTraining,
)
from modyn.trainer_server.downsampling.policies.sampling import highest

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel

_NEVER: Final = -1
"""Value in place of the number of events, for a sample that was never classified correctly."""


class ForgettingConfig(BalancedConfig):
    """Options of Forgetting."""

    @model_validator(mode="after")
    def _passes_follow_each_other(self) -> Self:
        if self.sample_then_batch and self.period == 0:
            raise ValueError(
                "Forgetting compares a pass with the one before, and period: 0 makes one only: set period to at least 1, or choose EL2N"
            )
        return self


class Forgetting(DownsamplingPolicy):
    """Chooses the samples with the most forgetting events. An event means that one pass of this training classifies the sample correctly and the next
    pass classifies it wrongly (Toneva and others: An Empirical Study of Example Forgetting during Deep Neural Network Learning, 2019, section 3).
    Samples that were never classified correctly come first. Chosen samples get no weights; ties are drawn at random.

    The paper counts events in the training batches. This policy counts events in the passes that score candidates (one pass an epoch, or one pass a
    `period` in sample-then-batch), so that samples that are not chosen also have a history. The history takes 12 bytes a candidate, in memory and in
    the checkpoint, and ends with the training.

    >>> events_and_right = np.array([[3, 1], [-1, 0], [0, 1], [1, 0]], np.float32)  # -1: never classified rightly
    >>> candidates = Candidates(events_and_right, np.zeros(4, np.int64), np.arange(4))
    >>> Forgetting(ForgettingConfig(ratio=50)).choose(candidates, 2, Draw(seed=7, trigger_id=0, number=0)).positions.tolist()
    [0, 1]
    """

    Config: ClassVar[type[ForgettingConfig]] = ForgettingConfig
    needs_classes = True
    remembers = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._keys: Int64Array = np.zeros(0, np.int64)
        """The known keys, ascending."""
        self._held = np.zeros(0, np.int32)
        """For each key: 2 · number of events, plus 1 if the newest pass classified the sample correctly."""
        self._new: list[tuple[Int64Array, Any]] = []
        """Keys and states of samples in their first pass. `_merge` adds them to `_keys` and `_held` after the pass, before the next pass needs them.
        """
        self._epoch = 0

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return, for each sample, the number of events up to this pass (-1 if the sample was never classified correctly), and whether this pass
        classifies the sample correctly: (n, 2)."""
        import torch

        if batch.epoch != self._epoch:
            self._merge()
            self._epoch = batch.epoch
        right = (model.probabilities(batch).argmax(1) == model.classes(batch)).cpu().numpy()
        held = np.full(len(batch), 2 * _NEVER, np.int32)
        rows, known = self._rows(batch.keys.numpy())
        held[known] = self._held[rows[known]]
        # `held` is twice the number of events, plus 1 if the previous pass classified the sample correctly.
        events, was_right = held >> 1, (held & 1).astype(np.bool_)
        events = np.where(right, np.maximum(events, 0), events + was_right)
        return torch.from_numpy(np.stack((events, right), 1).astype(np.float32)).to(batch.labels.device)

    def remember(self, candidates: Candidates) -> None:
        """Store this pass's events and results of these candidates."""
        events, right = candidates.scores.astype(np.int32).T
        held = 2 * events + right
        rows, known = self._rows(candidates.keys)
        self._held[rows[known]] = held[known]
        if not known.all():
            self._new.append((candidates.keys[~known], held[~known]))

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Choose the samples that were never learnt, and then the samples with the most forgetting events."""
        events: Float32Array = candidates.scores[:, 0]
        return Choice(highest(np.where(events == _NEVER, np.float32(np.inf), events), size, draw.generator()))

    def refusals(self, training: ScoredTraining) -> Iterator[str]:
        """Also refuse a training with one pass, because events need two passes."""
        yield from super().refusals(training)
        period, num_epochs = self.config.period if self.config.sample_then_batch else 1, training.num_epochs
        if num_epochs is not None and num_epochs <= period:
            yield (
                f"{self.strategy} compares a pass with the one before, but this training has one: epochs_per_trigger is {num_epochs}, and a pass "
                f"comes every {period}; raise training.epochs_per_trigger to at least {period + 1}, or choose EL2N"
            )

    def state(self) -> dict[str, Any]:
        """Return the history."""
        import torch

        self._merge()
        return {"epoch": self._epoch, "keys": torch.from_numpy(self._keys), "held": torch.from_numpy(self._held)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the history from a result of `state`."""
        self._keys, self._held, self._new = state["keys"].cpu().numpy().copy(), state["held"].cpu().numpy().copy(), []
        self._epoch = int(state["epoch"])

    def _rows(self, keys: Int64Array) -> tuple[Int64Array, Any]:
        """Return the positions of these keys, and which keys are known."""
        rows = np.searchsorted(self._keys, keys)
        known = np.zeros(len(keys), np.bool_)
        inside = rows < len(self._keys)
        known[inside] = self._keys[rows[inside]] == keys[inside]
        return rows, known

    def _merge(self) -> None:
        if self._new:
            keys = np.concatenate([self._keys, *(keys for keys, _ in self._new)])
            held = np.concatenate([self._held, *(held for _, held in self._new)])
            order = np.argsort(keys, kind="stable")
            self._keys, self._held, self._new = keys[order], held[order], []
