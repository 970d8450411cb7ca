"""Converter from the older pipeline format of the published system to the current format. Most published files have the older format."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from modyn.config.base import Problem, Severity

_MARKS: Final = ("training.selection_strategy", "trigger.trigger_config")
"""Sections that only the older format has."""

_MOVED: Final[Mapping[str, str]] = {
    "training.selection_strategy.config": "training.selection_strategy",
    "training.selection_strategy": "selection_strategy",
    "trigger.trigger_config.data_points_for_trigger": "trigger.num_samples",
    "trigger.trigger_config.trigger_every": "trigger.every",
    "trigger.trigger_config.detection_interval_data_points": "trigger.evaluation_interval_data_points",
    "trigger.trigger_config.data_points_for_detection": "trigger.evaluation_interval_data_points",
    "trigger.trigger_config": "trigger",
    "trigger.detection_interval_data_points": "trigger.evaluation_interval_data_points",
    "training.grad_norm": "training.gradient_clip_norm",
}
"""Old and current paths of keys, in the order in which the keys move. A section that moves to an existing section is merged into that section."""

_METRICS: Final[Mapping[str, Mapping[str, str]]] = {
    "F1-score": {"name": "F1Score"},
    "WeightedF1-score": {"name": "F1Score", "average": "weighted"},
    "ROC-AUC": {"name": "RocAuc"},
}
"""Current sections of metrics, by the older names of the metrics."""
_SUFFIXES: Final = {"presampling_config": "PresamplingStrategy", "downsampling_config": "DownsamplingStrategy"}
"""Endings of the older names of strategies, by section."""

_WHOLE_DATASETS: Final = {"type": "StaticEvalStrategy", "intervals": [["0001-01-01", None]]}


@dataclass(frozen=True, slots=True)
class Converted:
    """A pipeline in the current format."""

    data: dict[str, Any]
    moved: dict[str, str]
    """Current path of each moved key, by its older path."""
    notes: list[Problem]
    """One warning for each key that the current format writes differently."""


def in_todays_format(data: Mapping[str, Any]) -> Converted:
    """Convert a pipeline to the current format. If the new path of a key already exists, the key keeps its old path, and a later check refuses it.

    >>> in_todays_format({"trigger": {"id": "TimeTrigger", "trigger_config": {"trigger_every": "1d"}}}).data
    {'trigger': {'id': 'TimeTrigger', 'every': '1d'}}
    """
    found: dict[str, Any] = copy.deepcopy(dict(data))
    is_older = any(isinstance(_at(data, mark), Mapping) for mark in _MARKS)
    moved = {old: new for old, new in _MOVED.items() if _move(found, old, new)}
    notes = [_note(old, moved.get(new, new)) for old, new in moved.items()]
    return Converted(found, moved, [*notes, *_change_metrics(found), *(_change_values(found) if is_older else ())])


def _note(path: str, today: str) -> Problem:
    is_section = path.endswith("config")
    return Problem(
        path, f"{'its keys are' if is_section else 'is'} written {'in' if is_section else 'as'} `{today}` today", Severity.WARNING
    )


def _at(data: Any, path: str) -> Any:
    """Return the value at a dotted path; None: there is no value."""
    for name in path.split("."):
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


def _move(data: dict[str, Any], old: str, new: str) -> bool:
    """Move the value at `old` to `new`, or merge it into the section at `new`. A value 0 is not moved. Returns whether a non-empty value moved."""
    (parent, name), (target, new_name) = _parent(data, old), _parent(data, new)
    if not isinstance(parent, dict) or not isinstance(target, dict) or parent.get(name, 0) == 0:
        return False
    value, taken = parent[name], target.get(new_name)
    if new_name not in target:
        target[new_name] = value
    elif isinstance(taken, dict) and isinstance(value, Mapping) and not taken.keys() & value.keys():
        taken.update(value)
    else:
        return False
    del parent[name]
    return bool(value)


def _parent(data: Any, path: str) -> tuple[Any, str]:
    section, _, name = path.rpartition(".")
    return (_at(data, section) if section else data), name


def _change_values(data: dict[str, Any]) -> Iterator[Problem]:
    """Change values that the present format writes differently, after all keys have moved. Yields a warning for each value."""
    if isinstance(selection := data.get("selection_strategy"), dict):
        if (resets := selection.pop("reset_after_trigger", None)) is not None:
            tail = selection.setdefault("tail_triggers", 0 if resets else None)
            yield _note("selection_strategy.reset_after_trigger", f"tail_triggers: {'null' if tail is None else tail}")
        for section, suffix in _SUFFIXES.items():
            name = _at(selection, f"{section}.strategy")
            if isinstance(name, str) and name.endswith(suffix):
                selection[section]["strategy"] = name.removesuffix(suffix)
                yield _note(f"selection_strategy.{section}.strategy", name.removesuffix(suffix))
    scheduler = _at(data, "training.lr_scheduler")
    if isinstance(scheduler, dict) and "step_every" not in scheduler:
        scheduler["step_every"] = "batch"
        yield _note("training.lr_scheduler", "step_every: batch")
    if (datasets := _evaluated(data)) and "handlers" not in data["evaluation"]:
        names = [dataset.get("dataset_id") for dataset in datasets]
        data["evaluation"]["handlers"] = [{"execution_time": "after_training", "strategy": _WHOLE_DATASETS, "datasets": names}]
        what = "there are no `handlers`: each model is evaluated after its training, on the whole of each dataset"
        yield Problem("evaluation", what, Severity.WARNING)


def _evaluated(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the datasets of the section `evaluation`; empty if a dataset is not a mapping, because a later check refuses such a dataset."""
    datasets = _at(data, "evaluation.datasets")
    return datasets if isinstance(datasets, list) and all(isinstance(dataset, dict) for dataset in datasets) else []


def _change_metrics(data: dict[str, Any]) -> Iterator[Problem]:
    """Change metrics that the present format writes differently, and label further F1 scores of a dataset. Yields a warning for each metric."""
    for i, dataset in enumerate(_evaluated(data)):
        metrics, labels = dataset.get("metrics"), list[str]()
        for k, metric in enumerate(metrics if isinstance(metrics, list) else ()):
            path = f"evaluation.datasets.{i}.metrics.{k}"
            if not isinstance(metric, dict):
                continue
            options = metric.get("config") or {}
            if "config" in metric and isinstance(options, Mapping) and not options.keys() & metric.keys():
                del metric["config"]
                metric.update(options)
                yield _note(f"{path}.config", path)
            if isinstance(name := metric.get("name"), str) and name in _METRICS:
                metric.update(_METRICS[name])
                yield _note(f"{path}.name", _METRICS[name]["name"])
            if metric.get("name") == "F1Score" and metric.get("label") is None:
                if labels:
                    by_average = f"F1Score-{metric.get('average', 'macro')}"
                    metric["label"] = by_average if by_average not in labels else f"{by_average}-{len(labels) + 1}"
                    yield Problem(
                        path,
                        f"gets the label `{metric['label']}`, because another metric has the label `F1Score`",
                        Severity.WARNING,
                    )
                labels.append(metric.get("label") or "F1Score")
