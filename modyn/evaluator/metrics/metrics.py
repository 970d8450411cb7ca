"""Metrics, registered by the `name` in `metrics`: built-in metrics, metrics of installed packages, and any class of torchmetrics.

A metric takes the outputs of the samples of one interval, batch by batch, and returns one number. Checking the configuration of a built-in metric or
of a torchmetrics metric does not import torch.
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
from modyn.dataset.code.user_code import check_function
from modyn.errors import InvalidArgumentError
from modyn.evaluator.records import NOT_NUMBERS
from modyn.registry import Registry, load_object

if TYPE_CHECKING:
    import torch

TRANSFORMER = "evaluation_transformer_function"


class MetricConfig(Section):
    """Options that all metrics share."""

    name: str = Field(description="registered name of the metric, or a class of torchmetrics")
    label: str | None = Field(
        None, min_length=1, max_length=100, description="label of the results; by default, the metric chooses it"
    )
    evaluation_transformer_function: str | None = Field(
        None,
        description="source of `def evaluation_transformer_function(model_output)`, or package.module:name; it converts the model's output for "
        "a batch into the input of the metric",
    )

    @field_validator(TRANSFORMER)
    @classmethod
    def _function(cls, value: str | None) -> str | None:
        return value if value is None else check_function(value, TRANSFORMER, 1)


@dataclass(frozen=True, slots=True)
class MetricValue:
    """The value of a metric. None means undefined, and `note` gives the reason. If there is a value, `note` may report an unusual fact."""

    value: float | None
    note: str = ""


class Metric(ABC):
    """One metric over the samples of one interval, built for each interval. The value does not depend on how samples are divided into batches.

    A decomposable metric keeps counts. A holistic metric keeps data of each sample, up to a limit in its docstring.
    """

    Config: ClassVar[type[MetricConfig]]
    is_accuracy: ClassVar[bool] = False
    """Whether values are shares of samples that are predicted correctly. Some criteria estimate the number of wrong predictions from such a value."""

    def __init__(self, config: Any) -> None:
        """Args: config: a valid `Config` of the metric."""
        self.config: Any = config
        self._not_numbers: torch.Tensor | int = 0
        """Number of samples with a NaN score. The count stays on the device, because reading it for every batch would wait for the device."""

    @classmethod
    def for_intervals(cls, config: Any, count: int) -> list[Self]:
        """Make one metric for each of the `count` intervals of an evaluation. All these metrics are in memory at once, so a subclass with a memory
        limit can share the limit among them.
        """
        return [cls(config) for _ in range(count)]

    @property
    def label(self) -> str:
        """Return the label of the metric's results."""
        return self.label_of(self.config)

    @classmethod
    def label_of(cls, config: Any) -> str:
        """Return the label of results with this configuration, without building the metric."""
        return str(config.label or config.name)

    @classmethod
    def lower_is_better(cls, config: Any) -> bool:
        """Return whether lower values are better, without building the metric."""
        return False

    @abstractmethod
    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Add n ≥ 0 samples.

        Args: outputs: (n, …), as the transformer returns them, on the device of the model. labels: (n,) on the same device.

        Implementations must not change the arguments. Raises InvalidArgumentError: the metric does not support these shapes or values.
        """

    @abstractmethod
    def value(self) -> MetricValue:
        """Return the value over all added samples. The caller must have added at least one sample."""

    def count_not_numbers(self, scores: torch.Tensor) -> None:
        """Count the samples with a NaN score. Args: scores: (n, …), as the metric uses them."""
        if scores.is_floating_point():
            self._not_numbers = self._not_numbers + scores.unsqueeze(-1).flatten(1).isnan().any(1).sum()

    def undefined(self) -> MetricValue | None:
        """Return an undefined value if `count_not_numbers` has counted any sample, else None. Waits for the device."""
        count = int(self._not_numbers)
        return MetricValue(None, f"undefined: {count} {NOT_NUMBERS}") if count else None

    def labels_of(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the labels as (n,), even if a label transformer returned (n, 1). Raises InvalidArgumentError for any other shape."""
        if labels.ndim == 1 or labels.shape[1:] == (1,):
            return labels.reshape(-1)
        raise InvalidArgumentError(
            f"{self.label} needs one label a sample; the labels have shape {list(labels.shape)}. Bring them into shape (n,) with "
            "label_transformer_function"
        )

    def classes_of(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the labels like `labels_of`. Raises InvalidArgumentError if a label is not a whole number."""
        labels = self.labels_of(labels)
        odd = labels[labels != labels.floor()] if labels.is_floating_point() else labels[:0]
        if len(odd):
            raise InvalidArgumentError(
                f"{self.label} needs classes as labels, whole numbers, and found {odd[0].item():g}; use label_transformer_function"
            )
        return labels

    def check_two_classes(self, labels: torch.Tensor, because: str = "") -> None:
        """Raise InvalidArgumentError unless all labels (n,) are 0 or 1. Args: because: reason for the error message."""
        odd = labels[(labels != 0) & (labels != 1)]
        if len(odd):
            why = f": {because}" if because else ""
            raise InvalidArgumentError(
                f"{self.label} needs the labels 0 and 1, and found {odd[0].item()}{why}; use label_transformer_function"
            )

    def shape_error(self, needed: str, outputs: torch.Tensor, advice: str = "Bring") -> InvalidArgumentError:
        """Make the error for outputs that do not have the shape `needed`. Args: needed: the shape in words. advice: start of the advice."""
        return InvalidArgumentError(
            f"{self.label} needs {needed}; the model's output has shape {list(outputs.shape)}. {advice} it into that shape with {TRANSFORMER}"
        )


@cache
def torchmetrics_names() -> frozenset[str]:
    """Return the classes that torchmetrics exports, read from the source code, because an import of torchmetrics would import torch."""
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
    """Metrics by name: metrics of Modyn and of installed packages; `TorchMetric` for any other name that is a class of torchmetrics."""

    def names(self) -> list[str]:
        return [*self.ids(), *sorted(torchmetrics_names())]

    def choices(self) -> str:
        return f"{super().choices()}, or one of torchmetrics, for example Precision"

    def get(self, id_: str) -> type[Metric]:
        if id_ not in self and id_ in torchmetrics_names():
            found: type[Metric] = load_object("modyn.evaluator.metrics.torch_metric:TorchMetric")  # type: ignore[assignment]
            return found
        return super().get(id_)


METRICS: Final[Registry[type[Metric]]] = _Metrics(
    group="modyn.metrics",
    kind="metric",
    builtin={
        "Accuracy": "modyn.evaluator.metrics.metrics:Accuracy",
        "F1Score": "modyn.evaluator.metrics.metrics:F1Score",
        "RocAuc": "modyn.evaluator.metrics.roc_auc:RocAuc",
    },
)


def check_metric(section: object, path: str) -> list[Problem]:
    """Return every mistake of one entry of `metrics`, with paths below `path`."""
    if not isinstance(section, Mapping):
        return [Problem(path, f"{section!r} is wrong: write a metric as `name: Accuracy` and its options")]
    return check_policy(METRICS, section, "name", path)


def lower_is_better(section: Mapping[str, Any]) -> bool:
    """Return whether lower values of a metric are better. Args: section: a valid entry of `metrics`."""
    metric, config = load_policy(METRICS, section, "name", "metrics")
    return metric.lower_is_better(config)


def in_unit_interval(section: Mapping[str, Any]) -> bool:
    """Return whether all values of a metric are known to be in [0, 1], as for built-in metrics. Args: section: a valid entry of `metrics`."""
    return section["name"] in METRICS.builtin


def build_metric(section: Mapping[str, Any]) -> Metric:
    """Build a metric without samples. Raises ConfigError that lists every mistake."""
    return build_metrics(section, 1)[0]


def build_metrics(section: Mapping[str, Any], count: int) -> Sequence[Metric]:
    """Build the same metric for each of the `count` intervals of one evaluation. Raises ConfigError that lists every mistake."""
    metric, config = load_policy(METRICS, section, "name", "metrics")
    return metric.for_intervals(config, count)


class _ClassesConfig(MetricConfig):
    """Options of metrics of predicted classes."""

    threshold: float = Field(
        0.0,
        description="threshold for a model with one score for each sample: a score above it predicts class 1, else class 0; 0 for logits, 0.5 "
        "for probabilities",
    )


def _predicted(outputs: torch.Tensor, threshold: float) -> torch.Tensor | None:
    """Return the predicted class of each sample, (n,). Whole numbers (n,) are classes; single scores are compared with the threshold; for scores
    (n, classes), the class with the largest score is predicted. None if the outputs have another shape.
    """
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        return outputs.argmax(1)
    scores = outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs
    if scores.ndim != 1:
        return None
    return (scores > threshold).long() if scores.is_floating_point() else scores.long()


def _one_score(outputs: torch.Tensor) -> bool:
    """Return whether the outputs are one score for each sample. Such outputs are possible only for two classes."""
    return outputs.is_floating_point() and (outputs.ndim == 1 or outputs.shape[1:] == (1,))


class _ClassMetric(Metric):
    """A metric of predicted classes. If the threshold is not set, the metric warns of scores that look like probabilities."""

    def __init__(self, config: _ClassesConfig) -> None:
        super().__init__(config)
        self._single_scores = 0
        self._outside: torch.Tensor | int = 0
        """Number of single scores outside [0, 1], which cannot be probabilities."""

    def predicted(self, outputs: torch.Tensor) -> torch.Tensor | None:
        """Return the predicted classes; None: see `_predicted`. Count samples with NaN scores, and single scores outside [0, 1]."""
        self.count_not_numbers(outputs)
        if _one_score(outputs):
            self._single_scores += len(outputs)
            self._outside = self._outside + (~((outputs >= 0) & (outputs <= 1))).sum()
        return _predicted(outputs, self.config.threshold)

    def threshold_note(self) -> str:
        """Return a note if all scores are in [0, 1] although the default threshold for logits is used; else an empty text. Waits for the device."""
        if not self._single_scores or "threshold" in self.config.model_fields_set or int(self._outside):
            return ""
        return "all scores lie in [0, 1]: if they are probabilities, give `threshold: 0.5`; scores above 0 count as class 1"


class AccuracyConfig(_ClassesConfig):
    """Options of Accuracy."""

    topn: int = Field(1, ge=1, description="a sample is right if its label is among this number of highest-scored classes")


class Accuracy(_ClassMetric):
    """The share of samples whose label is among the `topn` classes with the highest scores.

    The metric is decomposable and keeps two counts. outputs: scores (n, classes). If topn is 1, outputs may also be predicted classes as whole
    numbers (n,). For two classes, outputs may also be scores of class 1 as real numbers (n,) or (n, 1), see `threshold`.

    >>> import torch
    >>> metric = build_metric({"name": "Accuracy"})
    >>> metric.update(torch.tensor([[2.0, 1.0], [0.0, 3.0], [2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 1, 1, 1]))
    >>> metric.value().value
    0.75
    """

    Config: ClassVar[type[MetricConfig]] = AccuracyConfig
    is_accuracy = True

    def __init__(self, config: AccuracyConfig) -> None:
        super().__init__(config)
        self._right: torch.Tensor | int = 0
        self._seen = 0

    @classmethod
    def label_of(cls, config: AccuracyConfig) -> str:
        """Return `Accuracy`, or `Top-N-Accuracy` if `topn` is more than 1."""
        return config.label or ("Accuracy" if config.topn == 1 else f"Top-{config.topn}-Accuracy")

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Add to the two counts, which stay on the device. Args: see `Metric.update`."""
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
        # Reading the count here would wait for the device after every batch.
        self._right = self._right + right.sum()
        self._seen += len(labels)

    def value(self) -> MetricValue:
        """Return a share in [0, 1]; undefined if a score is NaN. Waits for the device."""
        return self.undefined() or MetricValue(int(self._right) / self._seen, self.threshold_note())


class F1ScoreConfig(_ClassesConfig):
    """Options of F1Score."""

    num_classes: int = Field(ge=2, description="number of classes; classes are 0 … num_classes - 1")
    average: Literal["macro", "micro", "weighted", "binary"] = Field(
        "macro",
        description="average over classes (macro), over samples (micro), over classes weighted by their numbers of samples (weighted), or the "
        "class `pos_label` alone (binary)",
    )
    pos_label: int = Field(1, ge=0, description="the positive class for `average: binary`")

    @model_validator(mode="after")
    def _binary_has_two(self) -> F1ScoreConfig:
        if self.average == "binary" and self.num_classes != 2:
            raise ValueError(f"average 'binary' is for num_classes 2, not {self.num_classes}; use macro, micro or weighted")
        if self.pos_label >= self.num_classes:
            raise ValueError(f"pos_label {self.pos_label} is none of the classes 0 … {self.num_classes - 1}")
        return self


class F1Score(_ClassMetric):
    """The harmonic mean of precision and recall, 2·tp / (2·tp + fp + fn), of one class or averaged over classes.

    The metric is decomposable and keeps three counts for each class. outputs: scores (n, num_classes), or predicted classes as whole numbers (n,).
    For two classes, outputs may also be scores of class 1 as real numbers (n,) or (n, 1), see `threshold`.

    A class that neither occurs nor is predicted has an F1 of 0, as in scikit-learn with zero_division=0. The note lists these classes if they change
    the value.

    >>> import torch
    >>> metric = build_metric({"name": "F1Score", "num_classes": 2})
    >>> metric.update(torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1, 1, 1]))  # F1 of class 0: 2/3, of class 1: 4/5
    >>> round(metric.value().value, 3)
    0.733
    """

    Config: ClassVar[type[MetricConfig]] = F1ScoreConfig

    def __init__(self, config: F1ScoreConfig) -> None:
        super().__init__(config)
        self._counts: torch.Tensor | int = 0
        """Counts of each class, int64 (3, num_classes): correctly predicted samples, samples with this label, samples with this prediction."""

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Count pairs of label and predicted class. Args: see `Metric.update`.

        Raises: InvalidArgumentError: a class is outside 0 … num_classes - 1, or a label is not a whole number.
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
        # `where` maps wrong predictions to class n, and the slice drops class n.
        right = labels.where(labels == predicted, n).bincount(minlength=n + 1)[:n]
        counts = right.new_empty((3, n))
        counts[0], counts[1], counts[2] = right, labels.bincount(minlength=n), predicted.bincount(minlength=n)
        self._counts = self._counts + counts

    def value(self) -> MetricValue:
        """Return a value in [0, 1]; undefined if a score is NaN. The note lists classes that neither occur nor are predicted, if they change the
        value."""
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
