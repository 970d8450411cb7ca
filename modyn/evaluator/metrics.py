"""Metrics, found by the `name` in `metrics`: ours, those of installed packages, and any of torchmetrics by its class name.

A metric takes the outputs of the samples of one interval, batch by batch, and gives one number. Checking the configuration of one of ours
or of torchmetrics imports no torch.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from modyn.config.base import Problem, Section
from modyn.config.policy import check_policy, load_policy
from modyn.dataset.user_code import check_function
from modyn.errors import InvalidArgumentError
from modyn.evaluator.records import NOT_NUMBERS
from modyn.registry import Registry, load_object

if TYPE_CHECKING:
    import torch

TRANSFORMER = "evaluation_transformer_function"


class MetricConfig(Section):
    """The options of every metric; each adds its own."""

    name: str = Field(description="registered name of the metric, or a class of torchmetrics")
    label: str | None = Field(
        None, min_length=1, max_length=100, description="name of its results; none: what the metric calls itself"
    )
    evaluation_transformer_function: str | None = Field(
        None,
        description="source of `def evaluation_transformer_function(model_output)`, or package.module:name: from the model's output for a "
        "batch to what the metric sees",
    )

    @field_validator(TRANSFORMER)
    @classmethod
    def _function(cls, value: str | None) -> str | None:
        return value if value is None else check_function(value, TRANSFORMER, 1)


@dataclass(frozen=True, slots=True)
class MetricValue:
    """None: undefined for these samples, `note` gives the reason. A note beside a value names what is unusual about it."""

    value: float | None
    note: str = ""


class Metric(ABC):
    """One metric over the samples of one interval. Made anew for each interval; one batch or ten give the same value.

    A decomposable metric keeps counts; a holistic one keeps what it needs of each sample, up to a bound that its docstring states.
    """

    Config: ClassVar[type[MetricConfig]]

    def __init__(self, config: Any) -> None:
        """Args: config: a checked `Config` of the metric."""
        self.config: Any = config
        self._not_numbers: torch.Tensor | int = 0
        """Samples with a score that is NaN, counted on the device: reading it for every batch would wait for the device each time."""

    @classmethod
    def for_intervals(cls, config: Any, count: int) -> list[Self]:
        """Make the metrics of `count` intervals of one evaluation, which are all held at once: one that is bounded shares its bound."""
        return [cls(config) for _ in range(count)]

    @property
    def label(self) -> str:
        """The label of its results."""
        return self.label_of(self.config)

    @classmethod
    def label_of(cls, config: Any) -> str:
        """The label of results of this configuration; known without making the metric."""
        return str(config.label or config.name)

    @classmethod
    def lower_is_better(cls, config: Any) -> bool:
        """Whether low values are the good ones, as of an error; known without making the metric."""
        return False

    @abstractmethod
    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Add n ≥ 0 samples.

        Args: outputs: (n, …), as the transformer returns them, on the model's device. labels: (n,) on the same device.

        Neither is changed. Raises InvalidArgumentError if their shapes or values are not what the metric is for.
        """

    @abstractmethod
    def value(self) -> MetricValue:
        """The value over all samples added, of which there is at least one."""

    def count_not_numbers(self, scores: torch.Tensor) -> None:
        """Count the samples of which a score is NaN. Args: scores: (n, …), as the metric uses them."""
        if scores.is_floating_point():
            self._not_numbers = self._not_numbers + scores.unsqueeze(-1).flatten(1).isnan().any(1).sum()

    def undefined(self) -> MetricValue | None:
        """The value if `count_not_numbers` has counted any sample, else None. Waits for the device."""
        count = int(self._not_numbers)
        return MetricValue(None, f"undefined: {count} {NOT_NUMBERS}") if count else None

    def labels_of(self, labels: torch.Tensor) -> torch.Tensor:
        """The labels as (n,), also where a label transformer made (n, 1) of them. Raises InvalidArgumentError for any other shape."""
        if labels.ndim == 1 or labels.shape[1:] == (1,):
            return labels.reshape(-1)
        raise InvalidArgumentError(
            f"{self.label} needs one label a sample; the labels have shape {list(labels.shape)}. Bring them into shape (n,) with "
            "label_transformer_function"
        )

    def classes_of(self, labels: torch.Tensor) -> torch.Tensor:
        """As `labels_of`; labels that are real numbers must be whole ones. Raises InvalidArgumentError for any other."""
        labels = self.labels_of(labels)
        odd = labels[labels != labels.floor()] if labels.is_floating_point() else labels[:0]
        if len(odd):
            raise InvalidArgumentError(
                f"{self.label} needs classes as labels, whole numbers, and found {odd[0].item():g}; use label_transformer_function"
            )
        return labels

    def check_two_classes(self, labels: torch.Tensor, because: str = "") -> None:
        """Raise InvalidArgumentError unless all labels (n,) are 0 or 1. Args: because: why they must be."""
        odd = labels[(labels != 0) & (labels != 1)]
        if len(odd):
            why = f": {because}" if because else ""
            raise InvalidArgumentError(
                f"{self.label} is for the labels 0 and 1 and found {odd[0].item()}{why}; use label_transformer_function"
            )

    def shape_error(self, needed: str, outputs: torch.Tensor, advice: str = "Bring") -> InvalidArgumentError:
        """The error of outputs that lack the shape that is `needed`.

        Args: needed: the shape in words. advice: how the advice begins.
        """
        return InvalidArgumentError(
            f"{self.label} needs {needed}; the model's output has shape {list(outputs.shape)}. {advice} it into that shape with {TRANSFORMER}"
        )


@cache
def torchmetrics_names() -> frozenset[str]:
    """The classes that torchmetrics exports, read from its source: importing it would import torch."""
    spec = find_spec("torchmetrics")
    if spec is None or spec.origin is None:
        return frozenset()
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            return frozenset(name for name in ast.literal_eval(node.value) if name[:1].isupper())
    return frozenset()


class _Metrics(Registry[type[Metric]]):
    """Metrics by name: those of Modyn and of installed packages, or else `TorchMetric` if torchmetrics has a class of this name."""

    def names(self) -> list[str]:
        return [*self.ids(), *sorted(torchmetrics_names())]

    def choices(self) -> str:
        return f"{super().choices()}, or one of torchmetrics, for example Precision"

    def get(self, id_: str) -> type[Metric]:
        if id_ not in self and id_ in torchmetrics_names():
            found: type[Metric] = load_object("modyn.evaluator.torch_metric:TorchMetric")  # type: ignore[assignment]
            return found
        return super().get(id_)


METRICS: Final[Registry[type[Metric]]] = _Metrics(
    group="modyn.metrics",
    kind="metric",
    builtin={
        "Accuracy": "modyn.evaluator.metrics:Accuracy",
        "F1Score": "modyn.evaluator.metrics:F1Score",
        "RocAuc": "modyn.evaluator.roc_auc:RocAuc",
    },
)


def check_metric(section: object, path: str) -> list[Problem]:
    """Every mistake of one entry of `metrics`, with paths below `path`; empty if there is none."""
    if not isinstance(section, Mapping):
        return [Problem(path, f"{section!r} is wrong: a metric is written as `name: Accuracy` and its options")]
    return check_policy(METRICS, section, "name", path)


def lower_is_better(section: Mapping[str, Any]) -> bool:
    """Whether low values of a metric are the good ones. Args: section: an entry of `metrics` without mistakes."""
    metric, config = load_policy(METRICS, section, "name", "metrics")
    return metric.lower_is_better(config)


def in_unit_interval(section: Mapping[str, Any]) -> bool:
    """Whether values of a metric are known to lie in [0, 1]: those of ours do. Args: section: an entry of `metrics` without mistakes."""
    return section["name"] in METRICS.builtin


def build_metric(section: Mapping[str, Any]) -> Metric:
    """A metric that has seen nothing yet. Raises ConfigError that lists every mistake."""
    return build_metrics(section, 1)[0]


def build_metrics(section: Mapping[str, Any], count: int) -> Sequence[Metric]:
    """The same metric for each of `count` intervals of one evaluation. Raises ConfigError that lists every mistake."""
    metric, config = load_policy(METRICS, section, "name", "metrics")
    return metric.for_intervals(config, count)


class _ClassesConfig(MetricConfig):
    """Options of a metric of predicted classes."""

    threshold: float = Field(
        0.0,
        description="of a model with one score a sample: class 1 where the score is above this, else class 0; 0 for logits, 0.5 for probabilities",
    )


def _predicted(outputs: torch.Tensor, threshold: float) -> torch.Tensor | None:
    """The predicted class of each sample, (n,): whole numbers (n,) as they are, one score a sample by the threshold, (n, classes) scores by
    the best. None: the outputs have another shape."""
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        return outputs.argmax(1)
    scores = outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs
    if scores.ndim != 1:
        return None
    return (scores > threshold).long() if scores.is_floating_point() else scores.long()


def _one_score(outputs: torch.Tensor) -> bool:
    """Whether the outputs are one score a sample, which is for two classes."""
    return outputs.is_floating_point() and (outputs.ndim == 1 or outputs.shape[1:] == (1,))


class _ClassMetric(Metric):
    """A metric of predicted classes, which notices scores that look like probabilities where no threshold was chosen."""

    def __init__(self, config: _ClassesConfig) -> None:
        super().__init__(config)
        self._single_scores = 0
        self._outside: torch.Tensor | int = 0
        """Number of single scores outside [0, 1], which cannot be probabilities."""

    def predicted(self, outputs: torch.Tensor) -> torch.Tensor | None:
        """As `_predicted`, by the threshold of the options; counts samples whose scores give no class."""
        self.count_not_numbers(outputs)
        if _one_score(outputs):
            self._single_scores += len(outputs)
            self._outside = self._outside + (~((outputs >= 0) & (outputs <= 1))).sum()
        return _predicted(outputs, self.config.threshold)

    def threshold_note(self) -> str:
        """Return a note if all scores lie in [0, 1] although the default threshold, which is for logits, is in use; else "". Waits for the device."""
        if not self._single_scores or "threshold" in self.config.model_fields_set or int(self._outside):
            return ""
        return "all scores lie in [0, 1]: if they are probabilities, give `threshold: 0.5`; scores above 0 count as class 1"


class AccuracyConfig(_ClassesConfig):
    """Options of Accuracy."""

    topn: int = Field(1, ge=1, description="a sample counts as right if its label is among so many best classes")


class Accuracy(_ClassMetric):
    """The share of samples whose label is among the `topn` classes with the highest scores.

    Decomposable: keeps two counts. outputs: (n, classes) scores; if topn is 1, also whole numbers (n,), which are predicted classes, or real
    numbers (n,) or (n, 1), which are scores of class 1 of two: see `threshold`.
    """

    Config: ClassVar[type[MetricConfig]] = AccuracyConfig

    def __init__(self, config: AccuracyConfig) -> None:
        super().__init__(config)
        self._right: torch.Tensor | int = 0
        self._seen = 0

    @classmethod
    def label_of(cls, config: AccuracyConfig) -> str:
        """`Accuracy`, or `Top-N-Accuracy` where `topn` is more than 1."""
        return config.label or ("Accuracy" if config.topn == 1 else f"Top-{config.topn}-Accuracy")

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Add to the two counts, which stay on the device. Args as for `Metric.update`."""
        topn, labels = self.config.topn, self.classes_of(labels)
        if topn == 1 and (predicted := self.predicted(outputs)) is not None:
            if _one_score(outputs):
                self.check_two_classes(labels, "a model with one score a sample has two classes")
            right = predicted == labels
        elif topn > 1 and outputs.ndim == 2 and outputs.shape[1] >= topn:
            self.count_not_numbers(outputs)
            right = (outputs.topk(topn, 1).indices == labels.unsqueeze(1)).any(1)
        else:
            needed = f"scores of shape (n, classes) with at least {topn} classes"
            raise self.shape_error(needed, outputs, "Lower topn, or bring")
        # Stays on the device: reading it for every batch would wait for the device each time.
        self._right = self._right + right.sum()
        self._seen += len(labels)

    def value(self) -> MetricValue:
        """A share in [0, 1]; None if a score is NaN. Waits for the device."""
        return self.undefined() or MetricValue(int(self._right) / self._seen, self.threshold_note())


class F1ScoreConfig(_ClassesConfig):
    """Options of F1Score."""

    num_classes: int = Field(ge=2, description="classes are 0 … num_classes - 1")
    average: Literal["macro", "micro", "weighted", "binary"] = Field(
        "macro",
        description="mean over classes, over samples, over classes weighted by their samples, or the class `pos_label` alone",
    )
    pos_label: int = Field(1, ge=0, description="the positive class of average: binary")

    @model_validator(mode="after")
    def _binary_has_two(self) -> F1ScoreConfig:
        if self.average == "binary" and self.num_classes != 2:
            raise ValueError(f"average 'binary' is for num_classes 2, not {self.num_classes}; use macro, micro or weighted")
        if self.pos_label >= self.num_classes:
            raise ValueError(f"pos_label {self.pos_label} is none of the classes 0 … {self.num_classes - 1}")
        return self


class F1Score(_ClassMetric):
    """The harmonic mean of precision and recall, 2·tp / (2·tp + fp + fn), of one class or averaged over classes.

    Decomposable: keeps three counts a class. outputs: (n, num_classes) scores; whole numbers (n,), which are predicted classes; or, of two
    classes, real numbers (n,) or (n, 1), which are scores of class 1: see `threshold`.

    A class that is neither there nor predicted has F1 0, as in scikit-learn with zero_division=0; where it counts, the note says so.
    """

    Config: ClassVar[type[MetricConfig]] = F1ScoreConfig

    def __init__(self, config: F1ScoreConfig) -> None:
        super().__init__(config)
        self._counts: torch.Tensor | int = 0
        """int64 (3, num_classes): right, labelled, predicted."""

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Count pairs of label and predicted class. Args as for `Metric.update`.

        Raises: InvalidArgumentError: a class lies outside 0 … num_classes - 1, or a label between two.
        """
        n = self.config.num_classes
        predicted = self.predicted(outputs)
        fits = n == 2 if _one_score(outputs) else outputs.ndim == 1 or outputs.shape[1:] == (n,)
        if predicted is None or not fits:
            needed = f"scores of shape (n, {n}) or predicted classes (whole numbers) of shape (n,)"
            raise self.shape_error(needed, outputs, "Correct num_classes, or bring")
        labels = self.classes_of(labels).long()
        for name, values in (("label", labels), ("prediction", predicted)):
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) < n:
                odd = int(values.max()) if int(values.max()) >= n else int(values.min())
                raise InvalidArgumentError(f"{self.label} with num_classes {n} found the {name} {odd}; classes are 0 … {n - 1}")
        right = labels.where(labels == predicted, n).bincount(minlength=n + 1)[:n]
        counts = right.new_empty((3, n))
        counts[0], counts[1], counts[2] = right, labels.bincount(minlength=n), predicted.bincount(minlength=n)
        self._counts = self._counts + counts

    def value(self) -> MetricValue:
        """A value in [0, 1]; its note lists classes that neither occur nor are predicted, where these count. None if a score is NaN."""
        if (undefined := self.undefined()) is not None:
            return undefined
        assert not isinstance(self._counts, int)
        right, labelled, predicted = self._counts.cpu().numpy()
        average, positive, note = self.config.average, self.config.pos_label, self.threshold_note()
        if average == "micro":
            return MetricValue(float(right.sum() / labelled.sum()), note)
        both = labelled + predicted
        scores = 2 * right / both.clip(min=1)
        absent = [int(c) for c in (both == 0).nonzero()[0]]
        if average == "binary":
            unseen = f"class {positive} neither occurs nor is predicted" if positive in absent else ""
            return MetricValue(float(scores[positive]), _joined(note, unseen))
        if average == "weighted":
            return MetricValue(float((scores * labelled).sum() / labelled.sum()), note)
        shown = ", ".join(map(str, absent[:10])) + (", …" if len(absent) > 10 else "")
        unseen = f"classes that neither occur nor are predicted count as 0: {shown}" if absent else ""
        return MetricValue(float(scores.mean()), _joined(note, unseen))


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))
