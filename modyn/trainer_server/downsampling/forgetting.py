"""The samples that the model forgets, or has never learnt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
from pydantic import model_validator

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.downsampling.policy import (
    BalancedConfig,
    Candidates,
    Choice,
    DownsamplingPolicy,
    Draw,
    ScoredTraining,
)
from modyn.trainer_server.downsampling.sampling import highest

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel

_NEVER: Final = -1
"""In place of a number of events: the sample was never classified rightly."""


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
    """Chooses the samples with the most forgetting events: classified rightly by one pass of this training, and wrongly by the next (Toneva and
    others: An Empirical Study of Example Forgetting during Deep Neural Network Learning, 2019, section 3). Those that were never classified
    rightly come first. Each counts once; those of equal number are drawn among.

    The paper looks at the batches that are trained on. Here the passes that score candidates do: one an epoch, or one a `period` in
    sample-then-batch, so that samples that are not chosen have a history too. What is remembered, in memory and in the checkpoint, is
    12 bytes a candidate; it ends with the training.
    """

    Config: ClassVar[type[ForgettingConfig]] = ForgettingConfig
    needs_classes = True
    remembers = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._keys: Int64Array = np.zeros(0, np.int64)
        """Ascending."""
        self._held = np.zeros(0, np.int32)
        """Of each key 2 · events + 1 if the newest pass was right."""
        self._new: list[tuple[Int64Array, Any]] = []
        """Those that the first pass to meet them has met, which comes to its end before they are needed."""
        self._epoch = 0

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Events up to this pass, or -1 for a sample that no pass has classified rightly, and whether this one does: (n, 2)."""
        import torch

        if batch.epoch != self._epoch:
            self._merge()
            self._epoch = batch.epoch
        right = (model.probabilities(batch).argmax(1) == model.classes(batch)).cpu().numpy()
        held = np.full(len(batch), 2 * _NEVER, np.int32)
        rows, known = self._rows(batch.keys.numpy())
        held[known] = self._held[rows[known]]
        events, was_right = held >> 1, (held & 1).astype(np.bool_)
        events = np.where(right, np.maximum(events, 0), events + was_right)
        return torch.from_numpy(np.stack((events, right), 1).astype(np.float32)).to(batch.labels.device)

    def remember(self, candidates: Candidates) -> None:
        """Keep what the pass has found of these candidates."""
        events, right = candidates.scores.astype(np.int32).T
        held = 2 * events + right
        rows, known = self._rows(candidates.keys)
        self._held[rows[known]] = held[known]
        if not known.all():
            self._new.append((candidates.keys[~known], held[~known]))

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Those never learnt, then those most often forgotten."""
        events: Float32Array = candidates.scores[:, 0]
        return Choice(highest(np.where(events == _NEVER, np.float32(np.inf), events), size, draw.generator()))

    def refusals(self, training: ScoredTraining) -> Iterator[str]:
        """Also a training with one pass, which has nothing to compare."""
        yield from super().refusals(training)
        period, num_epochs = self.config.period if self.config.sample_then_batch else 1, training.num_epochs
        if num_epochs is not None and num_epochs <= period:
            yield (
                f"{self.strategy} compares a pass with the one before, but this training has one: epochs_per_trigger is {num_epochs}, and a pass "
                f"comes every {period}; raise training.epochs_per_trigger to at least {period + 1}, or choose EL2N"
            )

    def state(self) -> dict[str, Any]:
        """What is remembered."""
        import torch

        self._merge()
        return {"epoch": self._epoch, "keys": torch.from_numpy(self._keys), "held": torch.from_numpy(self._held)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._keys, self._held, self._new = state["keys"].cpu().numpy().copy(), state["held"].cpu().numpy().copy(), []
        self._epoch = int(state["epoch"])

    def _rows(self, keys: Int64Array) -> tuple[Int64Array, Any]:
        """Where these keys stand, and which of them are known."""
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
