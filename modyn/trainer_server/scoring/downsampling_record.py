"""Statistics of downsampling in a training, for its result. Checkpoints contain these statistics. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from modyn.dataset.batch import Batch
from modyn.records import OTHER_CLASSES, Int64Array
from modyn.trainer_server.disk.chosen_set import ChosenRows
from modyn.trainer_server.downsampling.policies.policy import Choice, DownsamplingPolicy
from modyn.trainer_server.downsampling.policies.sampling import NO_CLASS
from modyn.trainer_server.loop.loop import Hook, Training
from modyn.trainer_server.result import ClassShares, DownsamplingResult

MAX_CLASSES: Final = 1000
"""Largest number of classes that are counted separately."""
MAX_WEIGHTS: Final = 10_000
"""Largest number of weights that are kept for quantiles. If there are more, every second weight is dropped, including weights of later choices."""
MAX_NOTED_WEIGHTS: Final = 1000
"""Approximate limit on the number of weights that are kept for one choice."""
_FEWEST_EFFECTIVE: Final = 3
"""A training warns if the number of chosen samples exceeds this number times the effective number of samples."""
_QUANTILES: Final = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class WeightSums(NamedTuple):
    """The largest weight, the sum of the weights and the sum of their squares; all 0 without weights."""

    largest: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, choice: Choice) -> WeightSums:
        """Return the sums over all chosen samples."""
        if choice.weights is None or not len(choice):
            return cls()
        weights = choice.weights.astype(np.float64)
        return cls(float(weights.max()), float(weights.sum()), float(np.dot(weights, weights)))

    def plus(self, other: WeightSums) -> WeightSums:
        """Return the sums over both sets of samples."""
        return WeightSums(max(self.largest, other.largest), self.total + other.total, self.squares + other.squares)

    @property
    def effective_samples(self) -> float:
        """(Σ w)² / Σ w²: the number of samples with equal weight that estimate a mean equally well (Kish, 1965).

        >>> WeightSums(1, 4, 4).effective_samples, WeightSums(9, 12, 84).effective_samples
        (4.0, 1.7142857142857142)
        """
        return self.total**2 / self.squares if self.squares else 0.0


class DownsamplingRecord(Hook):
    """Counts candidates and chosen samples by class, and keeps some of the weights.

    A choice from the whole trigger set without a pass has no labels. In this case, the record counts classes in the batches that are trained on.
    """

    name = "downsampling"

    def __init__(self, policy: DownsamplingPolicy, *, transforms_labels: bool = False) -> None:
        """Args: transforms_labels: whether the counted classes differ from the labels in the selector."""
        self._policy, self._transforms_labels = policy, transforms_labels
        self._mode = "sample_then_batch" if policy.config.sample_then_batch else "batch_then_sample"
        self.chosen: ChosenRows | None = None
        """The choice that contains the samples of the newest batches, if scores of samples are kept."""
        self._counts_trained = policy.config.sample_then_batch and not policy.needs_pass
        self._trained: Tensor | None = None
        """Counts of the samples trained on since the last update of `_classes`, on the device: one for each class, one for other classes, and one for
        samples without a class.
        """
        self._counts = {"num_candidates": 0, "num_chosen": 0, "num_selections": 0}
        self._classes: dict[str, dict[str, int]] = {"before": {}, "after": {}}
        self._weights: list[float] = []
        self._every = 1
        self._weight_sums = WeightSums()

    @property
    def num_selections(self) -> int:
        """Number of choices that were counted."""
        return self._counts["num_selections"]

    def add(self, notes: Mapping[str, Any]) -> None:
        """Count one choice. Args: notes: see `notes_of`."""
        self._counts["num_candidates"] += notes["num_candidates"]
        self._counts["num_chosen"] += notes["num_chosen"]
        self._counts["num_selections"] += 1
        _add(self._classes["before"], notes["before"])
        _add(self._classes["after"], notes["after"], self._classes["before"])
        self._weight_sums = self._weight_sums.plus(WeightSums(*notes["weight_sums"]))
        self._weights += notes["weights"][:: self._every]
        # If there are too many weights, every second is dropped, and only every `_every`-th later weight is kept, so that all are evenly spread.
        while len(self._weights) > MAX_WEIGHTS:
            self._weights, self._every = self._weights[::2], 2 * self._every

    def warnings(self) -> Iterator[str]:
        """Yield warnings about the weights for the user."""
        sums, strategy, chosen = self._weight_sums, self._policy.strategy, self._counts["num_chosen"]
        if sums.largest and _FEWEST_EFFECTIVE * sums.effective_samples < chosen:
            options = getattr(self._policy.config, "uniform_share", None)
            advice = (
                "choose another strategy, such as RS2"
                if options is None
                else f"raise uniform_share ({options:g}), or choose GradNorm or RS2"
            )
            yield (
                f"the weights of {strategy} are so uneven that its {chosen:,} chosen samples count as {sums.effective_samples:,.0f}, the largest "
                f"weight being {sums.largest:,.4g}: {advice}"
            )

    def on_output(self, training: Training, batch: Batch, output: Any) -> None:
        """Count the classes of a batch, if the choices have no labels."""
        if self._counts_trained:
            classes = training.scoring_model().classes(batch)
            rows = classes.clamp_max(MAX_CLASSES).where(classes >= 0, MAX_CLASSES + 1)
            if self._trained is None:
                self._trained = rows.new_zeros(MAX_CLASSES + 2)
            self._trained.scatter_add_(0, rows, torch.ones_like(rows))

    def result(self, training: Training, num_keys: int) -> DownsamplingResult:
        """Return the statistics so far. Args: num_keys: number of candidates in each epoch."""
        self._count_trained()
        quantiles = np.quantile(self._weights, _QUANTILES).tolist() if self._weights else []
        sums = self._weight_sums
        return DownsamplingResult(
            self._policy.strategy,
            self._mode,
            self._transforms_labels,
            **self._counts,
            class_shares=ClassShares(*(_shares(self._classes[when]) for when in ("before", "after"))),
            weight_quantiles={f"{at:g}": value for at, value in zip(_QUANTILES, quantiles, strict=False)},
            largest_weight=sums.largest or None,
            effective_samples=sums.effective_samples if sums.largest else None,
            seconds={stage: training.clock.seconds.get(stage, 0.0) for stage in ("score", "choose")},
            effective_epochs=training.progress.samples / max(1, num_keys),
        )

    def state(self) -> dict[str, Any]:
        """Return all counts, the kept weights, and the policy's own state. Waits for the device."""
        self._count_trained()
        classes = {when: dict(counts) for when, counts in self._classes.items()}
        noted = {"counts": dict(self._counts), "classes": classes, "weights": list(self._weights), "every": self._every}
        noted["weight_sums"] = list(self._weight_sums)
        return {**noted, "policy": self._policy.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state`."""
        self._counts, self._classes = dict(state["counts"]), {when: dict(counts) for when, counts in state["classes"].items()}
        self._weights, self._every = list(state["weights"]), int(state["every"])
        self._weight_sums = WeightSums(*state["weight_sums"])
        self._policy.load_state(state["policy"])

    def _count_trained(self) -> None:
        if self._trained is not None:
            counts, self._trained = self._trained.tolist(), None
            names = [*map(str, range(MAX_CLASSES)), OTHER_CLASSES]
            found = {name: count for name, count in zip(names, counts, strict=False) if count}
            _add(self._classes["after"], found, names)


def notes_of(labels: Int64Array, choice: Choice) -> dict[str, Any]:
    """Return the notes on one choice, as JSON data. Args: labels: labels of the candidates, as in `Candidates`."""
    weights = [] if choice.weights is None else choice.weights[:: max(1, len(choice) // MAX_NOTED_WEIGHTS)].tolist()
    counts = {"num_candidates": len(labels), "num_chosen": len(choice), "weight_sums": list(WeightSums.of(choice))}
    return {**counts, "before": _counted(labels), "after": _counted(labels[choice.positions]), "weights": weights}


def bounded(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the notes with classes beyond MAX_CLASSES counted together. The separate classes are the same for candidates and chosen samples."""
    before, after = dict[str, int](), dict[str, int]()
    _add(before, notes["before"])
    _add(after, notes["after"], before)
    return {**notes, "before": before, "after": after}


def _counted(labels: Int64Array) -> dict[str, int]:
    found, numbers = np.unique(labels[labels != NO_CLASS], return_counts=True)
    return dict(zip(map(str, found.tolist()), numbers.tolist(), strict=True))


def _add(counts: dict[str, int], more: Mapping[str, int], named: Collection[str] | None = None) -> None:
    """Add to counts by class. Args: named: classes that are counted separately; None for the first MAX_CLASSES classes."""
    for label, number in more.items():
        by_itself = label in named if named is not None else label in counts or len(counts) < MAX_CLASSES
        name = label if by_itself else OTHER_CLASSES
        counts[name] = counts.get(name, 0) + number


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: number / total for name, number in sorted(counts.items(), key=lambda item: (len(item[0]), item[0]))}
