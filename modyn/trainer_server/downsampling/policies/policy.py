"""The interface of downsampling policies: a policy scores candidates by the current model, and chooses among them by their scores.

A policy serves two modes. In batch-then-sample, the candidates are a few batches of the stream, and one full batch is chosen. In
sample-then-batch, the candidates are all samples of the trigger set, scored in one pass. Imports no torch at run time, because services import this
module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from pydantic import Field

from modyn.config.selection_parts import RatioConfig, downsampled_size
from modyn.errors import ConfigError
from modyn.records import BoolArray, Float32Array, Int64Array
from modyn.trainer_server.downsampling.policies.sampling import NO_CLASS, class_quotas

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel

_CHOICE: Final = 5
"""Purpose of the seed of choices; `modyn.dataset.order` defines the other purposes."""

MOST_CANDIDATES: Final = 2**18
"""Largest number of candidates for a batch. All candidates are in memory together. The number allows the published batch size for Criteo, 65,536,
with a ratio of 25 %.
"""

CLASSIFICATION: Final = ("CrossEntropyLoss", "NLLLoss", "BCEWithLogitsLoss", "BCELoss")
"""Losses whose models give class probabilities. The last two losses have two classes if the model has one output value a sample."""


class DownsamplingConfig(RatioConfig):
    """The options of every policy."""

    sample_then_batch: bool = Field(
        False,
        description="score the whole trigger set in one pass, and choose from it before batches are made; false: score a few batches at a time, "
        "and choose a full batch from them",
    )
    ratio: int = Field(
        ge=1, description="share of the samples to train on in each epoch, in units of 1 / `ratio_max`, rounded over the epoch"
    )
    period: int = Field(
        1,
        ge=0,
        description="number of epochs between two selections with sample_then_batch (ignored without it); 0: one selection per trigger",
    )

    def num_candidates(self, batch_size: int) -> int:
        """Return the largest number of candidates for a batch of `batch_size` in batch-then-sample: batch_size · ratio_max / ratio, rounded.

        >>> DownsamplingConfig(ratio=30).num_candidates(64)
        213
        """
        return (2 * batch_size * self.ratio_max + self.ratio) // (2 * self.ratio)

    def num_chosen(self, num_samples: int) -> int:
        """Return the number of samples of a trigger set that are chosen for an epoch. See `downsampled_size`."""
        return downsampled_size(num_samples, self.ratio, self.ratio_max)

    def epochs_between(self, num_epochs: int) -> int:
        """Return the number of epochs between two selections in sample-then-batch. Args: num_epochs: number of epochs of the training."""
        return self.period or max(1, num_epochs)


class BalancedConfig(DownsamplingConfig):
    """The options of policies that can choose within each class."""

    balance: bool = Field(
        False,
        description="choose within each class separately, so that each class keeps its share of the samples, and at least one sample if there "
        "is room for all",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """N samples to choose from. scores: scores by the policy, float32 (N, f), memory-mapped if there are many; f is 0 for a policy without scores.
    labels: classes of the samples, int64 (N,), or NO_CLASS. keys: int64 (N,). usable: bool (N,), False if the loss ignores the label; None if all
    samples are usable."""

    scores: Float32Array
    labels: Int64Array
    keys: Int64Array
    usable: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, positions: Int64Array) -> Candidates:
        """Return the candidates at these positions, int64 (n,)."""
        usable = None if self.usable is None else self.usable[positions]
        return Candidates(self.scores[positions], self.labels[positions], self.keys[positions], usable)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Chosen candidates. positions: int64 (k,), ascending. weights: float32 (k,); the mean of wᵢ xᵢ over the chosen samples estimates the mean of x
    over all candidates. If weights is None, the choice estimates no mean."""

    positions: Int64Array
    weights: Float32Array | None = None

    def __len__(self) -> int:
        return len(self.positions)


def single_scores(candidates: Candidates, choice: Choice) -> Float32Array | None:
    """Return the scores of the chosen samples, float32 (k,); None if the policy does not give each candidate a single score."""
    return candidates.scores[choice.positions, 0] if candidates.scores.shape[1] == 1 else None


@dataclass(frozen=True, slots=True)
class Draw:
    """The source of random numbers for one choice. number: number of the choice in its training, from 0, so that a resumed training draws the same
    samples. part: distinguishes several draws of one choice."""

    seed: int
    trigger_id: int
    number: int
    part: int = 0

    def generator(self) -> np.random.Generator:
        """Return a new generator, which depends only on these numbers."""
        return np.random.default_rng([self.seed, self.trigger_id, _CHOICE, self.number, self.part])


@dataclass(frozen=True, slots=True)
class ScoredTraining:
    """Facts about a training with downsampling. criterion: name of its loss. has_last_layer, has_embedding: properties of its model. num_epochs,
    num_logits (of the model's `last_layer`): None if unknown."""

    criterion: str
    has_last_layer: bool
    has_embedding: bool
    batch_size: int
    num_epochs: int | None = None
    num_logits: int | None = None

    @property
    def has_classes(self) -> bool:
        """Whether the loss requires one class a sample. A BCE loss with several logits requires a label for each logit."""
        return self.criterion in CLASSIFICATION and not (self.criterion.startswith("BCE") and (self.num_logits or 1) > 1)


class DownsamplingPolicy(ABC):
    """Scores candidates and chooses among them. Each training has its own instance. A choice depends on earlier passes only through `remember`."""

    Config: ClassVar[type[DownsamplingConfig]] = DownsamplingConfig
    needs_pass: ClassVar[bool] = True
    """Whether the policy needs a pass that calls `score`. Otherwise the choice needs only the number of candidates."""
    needs_classes: ClassVar[bool] = False
    """Whether the policy needs probabilities of classes, which the losses of CLASSIFICATION give."""
    weighs: ClassVar[bool] = False
    """Whether choices have weights."""
    scores_as_trained: ClassVar[bool] = False
    """Whether `score` gets the model in training mode, so that a loss with dropout is computed as in a step. Statistics of BatchNorm stay."""
    remembers: ClassVar[bool] = False
    """Whether scores depend on earlier passes. If so, `remember`, `state` and `load_state` are called."""
    needs_irreducible_losses: ClassVar[bool] = False
    """Whether `score` needs losses under models that were trained on other samples. If so, `Config` extends `RHOLossConfig`. Without `holdout`, each
    of two such models is trained on one half of the samples."""
    irreducible: Callable[[Int64Array], Float32Array] | None = None
    """Returns the irreducible losses, float32 (n,), of the samples with these keys, int64 (n,). If the policy needs these losses, the trainer sets
    this function before scoring."""

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
        """Whether the policy needs embeddings, from the model's own `embedding(data)` or from the input of the last layer."""
        return False

    @property
    def holdout(self) -> Fraction:
        """Percent of each partition that the policy holds out to train another model. These samples are neither scored nor trained on."""
        return Fraction(0)

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the scores of a batch: (n,) or (n, f), on the model's device.

        `choose` gets these scores, but not the samples. A single score is at least 0, and higher is better; it is 0 if the loss ignores the label.
        """
        raise NotImplementedError(f"{type(self).__name__} needs no pass")

    def scored(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the scores of a batch in their stored form: float32 (n, f), on the model's device; 0 for labels that the loss ignores.

        Raises: ConfigError: the policy balances classes, but labels are not classes.
        """
        if self._balances and not model.has_classes(batch):
            raise ConfigError(
                f"selection_strategy.downsampling_config.balance: {self.strategy} is to balance classes, but under the loss of the training, labels "
                f"of shape {list(batch.labels.shape)} give no sample one class: set balance: false, or choose a loss with one class a sample"
            )
        scores = self.score(model, batch).float().reshape(len(batch), -1)
        return scores.where((model.counts(batch) > 0).unsqueeze(1), 0.0)

    def remember(self, candidates: Candidates) -> None:  # noqa: B027  (optional)
        """Store results of this pass for later passes. The trainer calls this method before each choice."""

    def state(self) -> dict[str, Any]:
        """Return the results that `remember` has stored, for a checkpoint: only plain values and tensors."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027  (optional)
        """Resume from a result of `state`."""

    @abstractmethod
    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Choose `size` candidates from a larger number of candidates. Equal arguments give equal choices."""

    def choose_among(self, candidates: Candidates, among: Int64Array, size: int, draw: Draw) -> Choice:
        """Choose like `choose`, but only among the candidates at the ascending positions `among`. Positions in the result refer to all candidates,
        weights refer to the mean over `among`. This method copies the scores of `among`; policies with many scores a sample override it."""
        choice = self.choose(candidates.take(among), size, draw)
        return Choice(among[choice.positions], choice.weights)

    def select(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Choose `size` of the candidates, or all candidates if there are fewer. If the option `balance` is set, choose within each class."""
        if size >= len(candidates):
            return self._all(np.arange(len(candidates)))
        choice = self._balanced(candidates, size, draw) if self._balances else self.choose(candidates, size, draw)
        assert len(choice) == size, f"{type(self).__name__} chose {len(choice)} of {size}"
        return choice

    def refusals(self, training: ScoredTraining) -> Iterator[str]:
        """Yield the reasons why the policy cannot be used in this training, as texts for `modyn check`."""
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
        """Yield options that probably do not work as intended in this training: pairs of key and text, for warnings of `modyn check`."""
        yield from ()

    @property
    def _balances(self) -> bool:
        return bool(getattr(self.config, "balance", False))

    def _balanced(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Choose within each class by its quota. Weights refer to all candidates: if k' of the k chosen samples are from a class with N' of N
        candidates, their weights are multiplied by N'/N · k/k'. Samples without a class, such as samples with an ignored label, are chosen only if
        too few samples have a class."""
        known = np.flatnonzero(candidates.labels != NO_CLASS)
        # Too few samples have a class: other samples must be chosen too, and the classes are not balanced.
        if len(known) < size:
            return self.choose(candidates, size, draw)
        _, members = np.unique(candidates.labels[known], return_inverse=True)
        # The candidates in the order of their classes, split where the class changes. The stable sort keeps the order within a class.
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
