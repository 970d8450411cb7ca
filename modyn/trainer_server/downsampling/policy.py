"""What a downsampling policy is: it scores candidates under the present model, and chooses among them by their scores.

One version of a policy serves both modes. In batch-then-sample the candidates are a few batches of the stream, out of which one full batch is
chosen; in sample-then-batch they are all samples of the trigger set, scored by one pass. Imports no torch at run time: services name policies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from modyn.config.base import Section
from modyn.errors import ConfigError
from modyn.records import BoolArray, Float32Array, Int64Array
from modyn.trainer_server.downsampling.sampling import NO_CLASS, class_quotas

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel

_CHOICE: Final = 5
"""Purpose of the seed of choices: others are in `modyn.dataset.order`."""

MOST_CANDIDATES: Final = 2**18
"""Samples that a batch may be chosen from: they are in memory together. A quarter of them is a batch of 65,536, as published for Criteo."""

CLASSIFICATION: Final = ("CrossEntropyLoss", "NLLLoss", "BCEWithLogitsLoss", "BCELoss")
"""Losses whose model gives the probabilities of classes; the last two, of one value a sample, those of two classes."""


class DownsamplingConfig(Section):
    """The options of every strategy."""

    sample_then_batch: bool = Field(
        False,
        description="choose from the whole trigger set, after one pass that scores it, before batches are made; false: score a few batches at a "
        "time, and choose a full batch out of them",
    )
    ratio_max: int = Field(100, ge=1, description="what `ratio` is a share of")
    ratio: int = Field(
        ge=1, description="share of the samples to train on in each epoch, in units of 1 / `ratio_max`, rounded over the epoch"
    )
    period: int = Field(
        1, ge=0, description="epochs between two selections in sample_then_batch; 0: once a trigger. Ignored without it"
    )

    @field_validator("ratio")
    @classmethod
    def _is_a_share(cls, value: int, info: ValidationInfo) -> int:
        if value > info.data.get("ratio_max", value):
            raise ValueError(f"{value} is more than the whole; it must be at most ratio_max, {info.data['ratio_max']}")
        return value

    def num_candidates(self, batch_size: int) -> int:
        """Candidates out of which a batch of `batch_size` is chosen in batch-then-sample, at most: batch_size · ratio_max / ratio, rounded.

        >>> DownsamplingConfig(ratio=30).num_candidates(64)
        213
        """
        return (2 * batch_size * self.ratio_max + self.ratio) // (2 * self.ratio)

    def num_chosen(self, num_samples: int) -> int:
        """Samples that are chosen out of a trigger set for an epoch: num_samples · ratio / ratio_max rounded, but at least one.

        >>> [DownsamplingConfig(ratio=30).num_chosen(n) for n in (0, 1, 5, 1000)]
        [0, 1, 2, 300]
        """
        rounded = (2 * num_samples * self.ratio + self.ratio_max) // (2 * self.ratio_max)
        return min(num_samples, max(1, rounded))

    def epochs_between(self, num_epochs: int) -> int:
        """Epochs between two selections in sample-then-batch. Args: num_epochs: of the training."""
        return self.period or max(1, num_epochs)


class BalancedConfig(DownsamplingConfig):
    """The options of strategies that may choose in each class by itself."""

    balance: bool = Field(
        False,
        description="choose in each class by itself, so that each keeps its share of the samples, and at least one while there is room for all",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """N samples to choose from. scores: what the policy has kept of each, float32 (N, f), memory-mapped if they are many; f is 0 where the
    policy needs none. labels: their classes, int64 (N,), or NO_CLASS. keys: int64 (N,). usable: bool (N,), False where the loss ignores the
    label; None: all are."""

    scores: Float32Array
    labels: Int64Array
    keys: Int64Array
    usable: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, positions: Int64Array) -> Candidates:
        """The candidates at these positions, int64 (n,)."""
        usable = None if self.usable is None else self.usable[positions]
        return Candidates(self.scores[positions], self.labels[positions], self.keys[positions], usable)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Candidates that are to be trained on. positions: int64 (k,), ascending. weights: float32 (k,), by which the mean over the chosen of
    wᵢ xᵢ estimates the mean of x over all candidates; None: the choice estimates nothing, and each counts once."""

    positions: Int64Array
    weights: Float32Array | None = None

    def __len__(self) -> int:
        return len(self.positions)


def single_scores(candidates: Candidates, choice: Choice) -> Float32Array | None:
    """The scores of what was chosen, float32 (k,); None where a candidate has not one number."""
    return candidates.scores[choice.positions, 0] if candidates.scores.shape[1] == 1 else None


@dataclass(frozen=True, slots=True)
class Draw:
    """The source of randomness of one choice. number: of the choice in its training, from 0: a resumed training draws the same. part: of the
    choice, where several make one."""

    seed: int
    trigger_id: int
    number: int
    part: int = 0

    def generator(self) -> np.random.Generator:
        """A new generator, which depends on nothing but these numbers."""
        return np.random.default_rng([self.seed, self.trigger_id, _CHOICE, self.number, self.part])


@dataclass(frozen=True, slots=True)
class ScoredTraining:
    """A training that is to be downsampled. criterion: name of its loss. has_last_layer, has_embedding: of its model. num_epochs, num_logits (of the
    `last_layer` that its model offers): None: not known."""

    criterion: str
    has_last_layer: bool
    has_embedding: bool
    batch_size: int
    num_epochs: int | None = None
    num_logits: int | None = None

    @property
    def has_classes(self) -> bool:
        """Whether the loss gives each sample one class, as far as that is known: with more than one logit, BCELoss has a label for each."""
        return self.criterion in CLASSIFICATION and not (self.criterion.startswith("BCE") and (self.num_logits or 1) > 1)


class DownsamplingPolicy(ABC):
    """Scores candidates and chooses among them; made anew for each training. No choice depends on one before, but for what `remember` keeps."""

    Config: ClassVar[type[DownsamplingConfig]] = DownsamplingConfig
    needs_pass: ClassVar[bool] = True
    """False: the choice needs no scores, only how many candidates there are; `score` is not called."""
    needs_classes: ClassVar[bool] = False
    """True: the policy needs probabilities of classes, which the losses of CLASSIFICATION give."""
    weighs: ClassVar[bool] = False
    """True: choices have weights."""
    scores_as_trained: ClassVar[bool] = False
    """True: `score` is given the model in the mode of training, but for what keeps statistics: with dropout, a loss is what a step will see."""
    remembers: ClassVar[bool] = False
    """True: scores depend on what passes before have found; `remember`, `state` and `load_state` are called."""

    def __init__(self, config: Any) -> None:
        """Args: config: a checked `Config` of the policy."""
        self.config = config
        self.strategy = type(self).__name__
        """Id of the policy in the pipeline."""

    @property
    def needs_last_layer(self) -> bool:
        """Whether the policy needs logits or gradients of the last layer."""
        return False

    @property
    def needs_embedding(self) -> bool:
        """Whether the policy needs embeddings, by the model's own `embedding(data)` or as the input of the last layer."""
        return False

    @property
    def holdout(self) -> Fraction:
        """Percent of each partition of the trigger set that the policy holds out for a model of its own: never scored, nor trained on."""
        return Fraction(0)

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """What is kept of each sample of a batch: (n,) or (n, f), on the model's device.

        Numbers from which the policy alone can choose. A single one is at least 0, and more is better: samples whose label the loss ignores get 0.
        """
        raise NotImplementedError(f"{type(self).__name__} needs no pass")

    def scored(self, model: ScoringModel, batch: Batch) -> Tensor:
        """The scores of a batch as they are kept: float32 (n, f), on the model's device; 0 of samples whose label the loss ignores.

        Raises: ConfigError: the policy is to balance classes, and labels are none.
        """
        if self._balances and not model.has_classes(batch):
            raise ConfigError(
                f"selection_strategy.downsampling_config.balance: {self.strategy} is to balance classes, but under the loss of the training, labels "
                f"of shape {list(batch.labels.shape)} give no sample one class: set balance: false, or choose a loss with one class a sample"
            )
        scores = self.score(model, batch).float().reshape(len(batch), -1)
        return scores.where((model.counts(batch) > 0).unsqueeze(1), 0.0)

    def remember(self, candidates: Candidates) -> None:  # noqa: B027  (optional)
        """Keep for later passes what this one has found of its candidates; called before the choice among them."""

    def state(self) -> dict[str, Any]:
        """What checkpoints keep of what is remembered; plain values and tensors only."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027  (optional)
        """Go on from what `state` returned."""

    @abstractmethod
    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Choose `size` of the candidates, which are more. Pure: equal arguments, equal choice."""

    def choose_among(self, candidates: Candidates, among: Int64Array, size: int, draw: Draw) -> Choice:
        """What `choose` chooses of the candidates at the positions `among`, ascending: their positions among all, and weights for the mean over
        `among`. Copies what is kept of those; a policy that keeps many numbers of each has a version that does not."""
        choice = self.choose(candidates.take(among), size, draw)
        return Choice(among[choice.positions], choice.weights)

    def select(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Choose `size` of the candidates: all, if there are no more; in each class by itself, if `balance` says so."""
        if size >= len(candidates):
            return self._all(np.arange(len(candidates)))
        choice = self._balanced(candidates, size, draw) if self._balances else self.choose(candidates, size, draw)
        assert len(choice) == size, f"{type(self).__name__} chose {len(choice)} of {size}"
        return choice

    def refusals(self, training: ScoredTraining) -> Iterator[str]:
        """What keeps the policy from serving this training: texts for `modyn check`."""
        name, criterion = self.strategy, training.criterion
        if (self.needs_classes or self._balances) and not training.has_classes:
            what, advice = (
                ("scores probabilities of classes", "") if self.needs_classes else ("balances classes", "set balance: false, ")
            )
            several = criterion in CLASSIFICATION
            over, suited = (f" over {training.num_logits} logits", CLASSIFICATION[:2]) if several else ("", CLASSIFICATION)
            yield (
                f"{name} {what}, which {criterion}{over} has none of: {advice}choose Loss or RS2, or a loss of classes ({', '.join(suited)})"
            )
        if self.needs_last_layer and not training.has_last_layer:
            yield f"{name} needs the last layer of the model, which has no nn.Linear: let it end in one, or choose Loss, Uncertainty or RS2"
        if self.needs_embedding and not training.has_embedding:
            yield (
                f"{name} needs embeddings, and the model has none: it has no nn.Linear, and offers no `embedding(data)`; add that, or choose Loss, "
                "Uncertainty or RS2"
            )
        if self.config.sample_then_batch:
            return
        size, ratio, whole = training.batch_size, self.config.ratio, self.config.ratio_max
        candidates = self.config.num_candidates(size)
        if candidates > max(MOST_CANDIDATES, size):
            yield (
                f"{name} chooses each batch of {size} out of {candidates} samples, since ratio is {ratio} of {whole}; they are in memory together, "
                f"and may be at most {MOST_CANDIDATES}: set sample_then_batch: true, raise the ratio, or lower training.batch_size"
            )

    def notes(self, training: ScoredTraining) -> Iterator[tuple[str, str]]:
        """Options that work for this training, but probably not as they are meant: key and text, for warnings of `modyn check`."""
        yield from ()

    @property
    def _balances(self) -> bool:
        return bool(getattr(self.config, "balance", False))

    def _balanced(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """The choices of all classes, each of its quota. Weights are of the whole: a class of N' in N of which k' in k are chosen counts
        N'/N · k/k' as much. Samples without a class, such as those whose label is ignored, are left out while there are others."""
        known = np.flatnonzero(candidates.labels != NO_CLASS)
        if len(known) < size:
            return self.choose(candidates, size, draw)
        _, members = np.unique(candidates.labels[known], return_inverse=True)
        by_class = np.split(known[np.argsort(members, kind="stable")], np.cumsum(np.bincount(members))[:-1])
        quotas = class_quotas(np.array([len(own) for own in by_class]), size, draw.generator())
        chosen = []
        for part, (own, quota) in enumerate(zip(by_class, quotas.tolist(), strict=True), start=1):
            if quota:
                some = quota < len(own)
                choice = self.choose_among(candidates, own, quota, replace(draw, part=part)) if some else self._all(own)
                factor = len(own) / len(candidates) * size / quota
                chosen.append((choice.positions, None if choice.weights is None else choice.weights * factor))
        positions = np.concatenate([positions for positions, _ in chosen])
        in_order = np.argsort(positions)
        if not self.weighs:
            return Choice(positions[in_order])
        weights = np.concatenate([weights for _, weights in chosen if weights is not None])
        return Choice(positions[in_order], weights[in_order].astype(np.float32))

    def _all(self, positions: Int64Array) -> Choice:
        return Choice(positions, np.ones(len(positions), np.float32) if self.weighs else None)
