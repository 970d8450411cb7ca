"""The sections of a pipeline that the evaluator uses: `evaluation.device`, `evaluation.datasets`, and the metrics of `serving.promote_if`. These
sections are checked without importing torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from modyn.config.base import Problem, Severity, check_section, load_section, refuse
from modyn.config.downsampling_turns import scored_handlers, turns_by_score
from modyn.config.label_delay import LABEL_DELAY
from modyn.config.policy import load_policy
from modyn.config.promotion import PromotionCondition, evaluated_entries, parse_condition
from modyn.dataset.code.user_code import missing_extras
from modyn.dataset.config import DataConfig
from modyn.errors import InvalidArgumentError
from modyn.evaluator.metrics.metrics import (
    METRICS,
    TRANSFORMER,
    AccuracyConfig,
    F1ScoreConfig,
    check_metric,
    in_unit_interval,
    lower_is_better,
)
from modyn.evaluator.metrics.roc_auc import RocAucConfig
from modyn.models.classes import num_classes
from modyn.registry import nearest
from modyn.workers.devices import missing_device

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


class EvaluationDatasetConfig(DataConfig):
    """One entry of `evaluation.datasets`: a `data` section with the options of the evaluation. Random transformations are not applied."""

    batch_size: int = Field(ge=1, le=2**24, description="number of samples in one forward pass")
    dataloader_workers: int = Field(
        1,
        ge=1,
        le=256,
        description="number of threads that fetch and decode samples; processes, if Python code runs for each sample",
    )
    metrics: tuple[dict[str, Any], ...] = Field(min_length=1, description="metrics to compute; each has a `name` and its options")

    def metric_labels(self) -> list[str]:
        """Return the labels of the results, in order. The metrics must be valid."""
        return [_label(section) for section in self.metrics]


class DriftDataConfig(EvaluationDatasetConfig):
    """A `data` section with `batch_size`. Samples for drift are decoded as for an evaluation, but no metrics of models are computed."""

    metrics: tuple[dict[str, Any], ...] = Field(
        (), max_length=0, description="must be empty, because the trigger names its metrics"
    )


def check_dataset(section: object, path: str) -> list[Problem]:
    """Return every mistake of one entry of `evaluation.datasets`, with paths below `path`."""
    found = check_section(EvaluationDatasetConfig, section, path)
    if isinstance(section, Mapping) and section.get(LABEL_DELAY):
        why = "has no effect: an evaluation uses the labels that exist when it runs; remove it"
        found.append(Problem(f"{path}.{LABEL_DELAY}", why))
    if not isinstance(section, Mapping) or not isinstance(section.get("metrics"), list | tuple):
        return found
    metrics = section["metrics"]
    in_metrics = [problem for i, metric in enumerate(metrics) for problem in check_metric(metric, f"{path}.metrics.{i}")]
    if found or in_metrics:
        # `check_metric` describes problems in `metrics` in more detail, so its problems replace the others below `metrics`.
        covered = re.compile(rf"{re.escape(path)}\.metrics" + (r"(\..*)?" if in_metrics else r"\..*"))
        return [*(problem for problem in found if not covered.fullmatch(problem.path)), *in_metrics]
    labels = [_label(metric) for metric in metrics]
    for i, label in enumerate(labels):
        if label in labels[:i]:
            message = f"two metrics have the label '{label}'; give one of them another `label`"
            found.append(Problem(f"{path}.metrics.{i}", message))
    dataset = load_section(EvaluationDatasetConfig, section, path)
    found += [Problem(path, message, Severity.UNAVAILABLE) for message in missing_extras(dataset.all_transformations)]
    return found + dataset.warnings(path)


def check_evaluation(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake in the sections of a pipeline that the evaluator uses; empty if there is no mistake or no evaluation."""
    evaluation = pipeline.get("evaluation")
    if not evaluation:
        return []
    if not isinstance(evaluation, Mapping):
        return [Problem("evaluation", f"{evaluation!r} is wrong: a section with device, datasets and handlers is expected")]
    found = check_device(evaluation["device"], "evaluation.device") if "device" in evaluation else []
    datasets = evaluation.get("datasets")
    if not isinstance(datasets, list) or not datasets:
        return [*found, Problem("evaluation.datasets", "is required: at least one dataset to evaluate on")]
    for i, dataset in enumerate(datasets):
        found += check_dataset_of(pipeline, dataset, f"evaluation.datasets.{i}")
    return found + list(_unfit_thresholds(pipeline, evaluation))


def check_conditions(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake in the metrics of `serving.promote_if`: unknown metrics, and metrics that do not fit the model. Args: pipeline: a
    pipeline with a valid section `evaluation`.
    """
    section, found = pipeline.get("serving"), list[Problem]()
    texts = section.get("promote_if") if isinstance(section, Mapping) else None
    classes = num_classes(pipeline.get("model"))
    for i, text in enumerate(texts if isinstance(texts, list) else []):
        try:
            condition = parse_condition(str(text))
        except InvalidArgumentError:
            continue  # The check of the section `serving` reports the unreadable condition.
        (metric,) = evaluated_entries(pipeline, [condition])[condition.dataset]["metrics"]
        path = f"serving.promote_if.{i}"
        wrong = check_metric(metric, path)
        if not wrong and classes is not None:
            wrong = _unfit_metrics([metric], classes, path)
        if not wrong and (message := beyond_range(condition, metric)):
            wrong = [Problem(path, message)]
        found += [Problem(path, problem.message, problem.severity) for problem in wrong]
    return found


def beyond_range(condition: PromotionCondition, metric: Mapping[str, Any]) -> str:
    """Return an error message, or "" if the number of a condition is inside the range of its metric. Args: metric: a valid section."""
    if not in_unit_interval(metric) or 0 <= condition.number <= 1:
        return ""
    return f"'{condition}': '{condition.metric}' lies in [0, 1]; write a number between 0 and 1"


def _unfit_thresholds(pipeline: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Iterator[Problem]:
    """Find mistakes of the score that chooses the downsampling policy: a dataset lacks the score, or the score or a threshold does not fit. The
    supervisor checks that the named handler exists."""
    if (found := turns_by_score(pipeline)) is None:
        return
    (thresholds, path), metric = found, found[0].metric
    handlers = scored_handlers(thresholds, evaluation)
    names = handlers[0].get("datasets") if len(handlers) == 1 else None
    for i, section in enumerate(evaluation["datasets"]):
        name = section.get("dataset_id") if isinstance(section, Mapping) else None
        if not isinstance(names, list) or name not in names or _is_wrong(check_dataset(section, "")):
            continue
        dataset = load_dataset(section)
        of_label = dict(zip(dataset.metric_labels(), dataset.metrics, strict=True))
        if metric not in of_label:
            hint = nearest(metric, list(of_label)) or "."
            message = f"'{metric}' is not a metric of evaluation.datasets.{i}{hint} There are: {', '.join(of_label)}"
            yield Problem(f"{path}.metric", message)
        elif lower_is_better(of_label[metric]):
            message = (
                f"low values of '{metric}' are good, but the downsampling policies expect a score that rises: choose a metric whose high values are "
                "good"
            )
            yield Problem(f"{path}.metric", message)
        elif in_unit_interval(of_label[metric]) and (beyond := [value for value in thresholds.values if not 0 <= value <= 1]):
            reached = "never" if beyond[-1] > 1 else "always"
            message = f"{beyond[-1]:g} is {reached} reached: '{metric}' lies in [0, 1]"
            yield Problem(f"{path}.values", message)


def _is_wrong(found: Sequence[Problem]) -> bool:
    return any(problem.severity is Severity.ERROR for problem in found)


def check_dataset_of(pipeline: Mapping[str, Any], dataset: object, path: str) -> list[Problem]:
    """Return the mistakes of `check_dataset`, and conflicts with the rest of the pipeline."""
    found = _fails_where_training_skips(pipeline.get("data"), dataset, path)
    found += (wrong := check_dataset(dataset, path))
    number = num_classes(pipeline.get("model"))
    if not wrong and number is not None:
        assert isinstance(dataset, Mapping)
        found += _unfit_metrics(dataset["metrics"], number, path)
    return found


def _fails_where_training_skips(data: object, dataset: object, path: str) -> list[Problem]:
    """Warn if an evaluation dataset does not set `on_bad_sample`, and so fails at bad samples, but section `data` of the same dataset skips them."""
    if not isinstance(data, Mapping) or not isinstance(dataset, Mapping) or "on_bad_sample" in dataset:
        return []
    name = dataset.get("dataset_id")
    if data.get("on_bad_sample") != "skip" or data.get("dataset_id") != name:
        return []
    what = (
        f"trainings leave out the bad samples of dataset '{name}' (data.on_bad_sample), but an evaluation fails at the first one"
    )
    return [
        Problem(
            f"{path}.on_bad_sample", f"{what}: write on_bad_sample: skip here too, or fail if that is meant", Severity.WARNING
        )
    ]


def _unfit_metrics(metrics: Sequence[Mapping[str, Any]], num_classes: int, path: str) -> list[Problem]:
    """Find the metrics that do not fit a model with this number of classes. Each metric is valid on its own."""
    found = []
    for i, section in enumerate(metrics):
        _, config = load_policy(METRICS, section, "name", path)
        if not config.evaluation_transformer_function and (why := _unfit(config, num_classes)):
            found.append(Problem(f"{path}.metrics.{i}", f"{config.name} does not fit the model: {why}"))
    return found


def _unfit(metric: object, num_classes: int) -> str:
    """Explain why a built-in metric does not accept scores of shape (n, num_classes), and how to correct this. Return an empty text if the metric
    accepts these scores, or is not checked.
    """
    match metric:
        case AccuracyConfig() if metric.topn > num_classes:
            return f"topn is {metric.topn}, but the model has {num_classes} classes; lower topn"
        case F1ScoreConfig() if metric.num_classes != num_classes:
            return f"num_classes is {metric.num_classes}, but the model has {num_classes}; correct it, or use {TRANSFORMER}"
        case RocAucConfig() if num_classes > 2:
            return f"it takes one or two classes, but the model has {num_classes}; use {TRANSFORMER}"
    return ""


def check_device(device: object, path: str) -> list[Problem]:
    """Check whether models can be evaluated on this device. If this machine lacks the device, the problem has the severity UNAVAILABLE."""
    if not isinstance(device, str) or not _DEVICE.fullmatch(device):
        return [Problem(path, f"{device!r} is not a device; write cpu, cuda or cuda:N")]
    missing = missing_device(device)
    return [Problem(path, missing, Severity.UNAVAILABLE)] if missing else []


def load_dataset(section: Mapping[str, Any], path: str = "evaluation.datasets") -> EvaluationDatasetConfig:
    """Check and load an entry of `evaluation.datasets`. Args: path: path of the entry in the pipeline, for messages."""
    refuse(check_dataset(section, path))
    return load_section(EvaluationDatasetConfig, section, path)


def _label(section: Mapping[str, Any]) -> str:
    """Return the label of the results of a valid metric."""
    metric = METRICS.get(section["name"])
    return metric.label_of(load_section(metric.Config, section))
