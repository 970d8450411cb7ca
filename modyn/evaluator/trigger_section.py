"""Check the parts of the section `trigger` of a pipeline that the evaluator uses: drift metrics, projections, and a dataset to measure performance
on.

The supervisor checks the triggers themselves, and sends the sections with default values. The module does not import torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, TypeGuard

from modyn.config.base import Problem, Severity, section_at, sections_in
from modyn.config.policy import check_policy, load_policy
from modyn.config.preprocessing import PREPROCESSING
from modyn.config.trigger_parts import (
    CRITERION,
    WINDOWS,
    ComparedData,
    Part,
    compared_windows,
    declared,
    drift_metrics,
    each_part,
    trigger_sections,
)
from modyn.errors import NotFoundError
from modyn.evaluator.config import check_dataset, check_dataset_of, check_device, load_dataset
from modyn.evaluator.drift import DRIFT_METRICS, DriftMetric, missing_modules
from modyn.evaluator.drift.base import UNIT, PermutationConfig
from modyn.evaluator.drift.projections import PROJECTIONS
from modyn.evaluator.metrics.metrics import METRICS, in_unit_interval, lower_is_better
from modyn.evaluator.records import ESTIMATED_METRICS
from modyn.registry import Registry, nearest
from modyn.storage.client import StorageClient


def check_metrics(metrics: Mapping[str, object], path: str) -> list[Problem]:
    """Return every mistake in drift metrics by name, with paths below `path`. If this machine lacks a module, the metric is UNAVAILABLE."""
    return [problem for name, section in metrics.items() for problem in _check_metric(section, f"{path}.{name}")]


def _check_metric(section: object, path: str) -> list[Problem]:
    found = _check_policy(DRIFT_METRICS, metric_options(section), path)
    return found if _wrong(found) else [*found, *_without_p_value(section, path), *_beyond_distances(section, path)]


def _beyond_distances(section: object, path: str) -> Iterator[Problem]:
    """Find a threshold outside the range of the distances. Args: section: a section without other mistakes."""
    assert isinstance(section, Mapping)
    option, threshold = _constant(section.get(CRITERION), "value")
    metric, config = load_policy(DRIFT_METRICS, metric_options(section), "id", path)
    bounds = metric.range_of(config)
    if bounds is None or not isinstance(threshold, int | float) or bounds[0] <= threshold <= bounds[1]:
        return
    low, high = bounds
    lie, write = (
        (f"lie in [{low:g}, {high:g}]", f"between {low:g} and {high:g}")
        if high < inf
        else (f"are at least {low:g}", f"of at least {low:g}")
    )
    fires = "always" if threshold < low else "never"
    message = f"distances of {section['id']} {lie} with these options, so {threshold:g} {fires} fires: write a number {write}"
    yield Problem(f"{path}.{CRITERION}.{option}", message)


def _constant(criterion: object, judged: str) -> tuple[str, object]:
    """Return the name and the value of the option with the criterion's threshold. Return "" and None if the criterion has no such option or judges
    another number. Args: judged: `value` or `p_value`.
    """
    option = declared(criterion, "constant") if declared(criterion, "judges") == judged else None
    return (option, criterion.get(option)) if isinstance(criterion, Mapping) and isinstance(option, str) else ("", None)


def _beyond(number: object) -> TypeGuard[float]:
    """Return whether the value is a number outside [0, 1]."""
    return isinstance(number, int | float) and not 0 <= number <= 1


def _without_p_value(section: object, path: str) -> list[Problem]:
    """Find a criterion that judges the p-value of a metric without p-values. Args: section: a section without other mistakes."""
    assert isinstance(section, Mapping)
    criterion = section.get(CRITERION)
    if not isinstance(criterion, Mapping) or declared(criterion, "judges") != "p_value":
        return []
    metric, config = load_policy(DRIFT_METRICS, metric_options(section), "id", path)
    if metric.gives_p_value(config):
        return _unreachable(config, *_constant(criterion, "p_value"), f"{path}.num_permutations")
    remedy = f"set {path}.num_permutations" if metric.has_test else "use another criterion, or a metric with a test"
    message = f"{criterion['id']} judges p-values, and {section['id']} gives none with these options: {remedy}"
    return [Problem(f"{path}.{CRITERION}.id", message)]


def _unreachable(config: object, option: str, level: object, path: str) -> list[Problem]:
    """Find a permutation test with too few permutations to give a p-value below the level."""
    if not isinstance(config, PermutationConfig) or not isinstance(level, float) or not 0 < level <= config.least_p_value:
        return []
    never = f"{config.num_permutations} permutations give no p-value below {config.least_p_value:.3g}, so none is below {option} {level}"
    return [Problem(path, f"{never}: write at least {int(1 / level)}, or a larger {option}")]


def check_projection(section: object, path: str) -> list[Problem]:
    """Return every mistake in a projection of the compared data; no mistakes for None."""
    return [] if section is None else _check_policy(PROJECTIONS, section, path)


def metric_options(section: object) -> Any:
    """Return the entry of a metric without the options that the trigger uses."""
    return {key: value for key, value in section.items() if key != CRITERION} if isinstance(section, Mapping) else section


def check_trigger(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake in the parts of the sections `trigger` and `online.trigger` that the evaluator uses, given the whole pipeline."""
    return [
        problem
        for path, trigger in trigger_sections(pipeline).items()
        for place, part in each_part(trigger, path)
        for problem in _problems(part, place, pipeline)
    ]


def check_label_kinds(pipeline: Mapping[str, Any], storage: StorageClient) -> list[Problem]:
    """Warn of each metric that takes every value as a category, if it compares labels that are floating-point numbers. Invalid metrics are skipped.

    Raises: UnavailableError: a metric compares labels by category, and storage cannot be reached.
    """
    by_category = [
        (f"{place}.{name}.id", section["id"])
        for path, trigger in trigger_sections(pipeline).items()
        for place, compared in compared_windows(trigger, path)
        for name, section in sections_in(drift_metrics(compared)).items()
        if compared.get("on") == ComparedData.LABELS
        and not check_policy(DRIFT_METRICS, metric_options(section), "id", name)
        and DRIFT_METRICS.get(section["id"]).by_category
    ]
    dataset = section_at(pipeline, "data").get("dataset_id")
    if not by_category or not isinstance(dataset, str):
        return []
    with suppress(NotFoundError):  # Another check reports the missing dataset.
        if storage.dataset(dataset).float_labels:
            message = f"counts classes, and labels of the dataset '{dataset}' are floating-point numbers"
            remedy = "if they are quantities, compare them by another metric, such as KSDriftMetric; else the run fails"
            return [Problem(path, f"{name} {message}: {remedy}", Severity.WARNING) for path, name in by_category]
    return []


def _problems(part: Part, path: str, pipeline: Mapping[str, Any]) -> Iterator[Problem]:
    """Find the mistakes in one part of a trigger section, without the mistakes of nested parts."""
    if WINDOWS in part or _looks_like_drift(part):
        yield from _check_compared(part, path, has_columns=pipeline.get(PREPROCESSING) is not None)
    evaluation = part.get("evaluation")
    if isinstance(evaluation, Mapping):
        yield from _check_evaluation(evaluation, f"{path}.evaluation", pipeline)
        yield from _check_labels(part.get("decision_criteria"), evaluation.get("dataset"), f"{path}.decision_criteria")
    if declared(part.get("detector"), "takes") == "shares":
        for name, compared in sections_in(part).items():
            if WINDOWS in compared:
                yield from _beyond_shares(part["detector"]["id"], compared.get("metric"), f"{path}.{name}.metric")


def _looks_like_drift(part: Part) -> bool:
    """Return whether a part without windows has drift metrics. Each entry needs an `id`, because other packages may use `metrics` differently."""
    metrics = section_at(part, "metrics")
    return bool(metrics) and all("id" in section_at(metrics, name) for name in metrics)


def _check_compared(compared: Part, path: str, *, has_columns: bool) -> Iterator[Problem]:
    """Find the mistakes of a part that compares windows. Args: has_columns: whether payloads are rows of columns."""
    metrics = drift_metrics(compared)
    for place, metric in metrics.items():
        # Other entries are checked without a criterion, because only an entry of `metrics` may have a criterion.
        check = _check_metric if place.startswith("metrics.") else partial(_check_policy, DRIFT_METRICS)
        yield from check(metric, f"{path}.{place}")
    yield from check_projection(compared.get("projection"), f"{path}.projection")
    yield from _check_amounts(compared, metrics, path)
    yield from _blind_to_classes(compared, metrics, path)
    if has_columns and compared.get("on") == ComparedData.PAYLOAD:
        message = "payloads are rows of columns here (section `preprocessing`), which are not numbers"
        yield Problem(f"{path}.on", f"{message}: compare embeddings, predictions or labels")


def _blind_to_classes(compared: Mapping[str, Any], metrics: Mapping[str, object], path: str) -> Iterator[Problem]:
    """Warn of each built-in metric that treats labels as numbers. Metrics of other packages are not checked, because their treatment of labels is
    unknown.

    Args: compared: the section of windows at `path`. metrics: sections of metrics by their paths below `path`.
    """
    for place, section in sections_in(metrics).items() if compared.get("on") == ComparedData.LABELS else ():
        if section.get("id") not in DRIFT_METRICS.builtin:
            continue
        if not check_policy(DRIFT_METRICS, metric_options(section), "id", place):
            metric, config = load_policy(DRIFT_METRICS, metric_options(section), "id", place)
            if why := metric.blind_to_classes(config):
                remedy = "compare classes by ChiSquaredDriftMetric, unless labels are quantities"
                yield Problem(f"{path}.{place}.id", f"{section['id']} sees no classes: {why}; {remedy}", Severity.WARNING)


def _check_amounts(compared: Mapping[str, Any], metrics: Mapping[str, object], path: str) -> Iterator[Problem]:
    """Find every number of samples that is too small for a metric or the projection, so that drift would never be measured.

    Args: compared: the section of windows at `path`. metrics: sections of metrics by their paths below `path`.
    """
    needs = dict[str, tuple[int, str]]()
    for place, section in sections_in(metrics).items():
        if not check_policy(DRIFT_METRICS, metric_options(section), "id", place):
            needs[place] = (DRIFT_METRICS.get(section["id"]).min_samples, section["id"])
    of_reference, projection = dict(needs), compared.get("projection")
    if isinstance(projection, Mapping) and not check_policy(PROJECTIONS, projection, "id", "projection"):
        kind, config = load_policy(PROJECTIONS, projection, "id", "projection")
        of_reference["projection"] = (kind(config).min_samples, projection["id"])
    amounts = section_at(compared, WINDOWS)
    for place, amount, needed in (
        ("sample_size", compared.get("sample_size"), of_reference),
        ("windowing_strategy.amount_ref", amounts.get("amount_ref"), of_reference),
        ("windowing_strategy.amount_cur", amounts.get("amount_cur"), needs),
    ):
        for what, (least, name) in needed.items():
            if isinstance(amount, int) and 2 <= amount < least:  # The supervisor refuses fewer than 2.
                yield Problem(f"{path}.{place}", f"{amount} samples are never enough for {what}, {name}: write at least {least}")


def _beyond_shares(detector: str, metric: object, path: str) -> Iterator[Problem]:
    """Find metrics with distances outside [0, 1] for a detector that needs numbers from 0 to 1."""
    if not isinstance(metric, Mapping) or check_policy(DRIFT_METRICS, metric, "id", path):
        return
    kind, config = load_policy(DRIFT_METRICS, metric, "id", path)
    if kind.range_of(config) not in (None, UNIT):
        fitting = ", ".join(sorted(name for name in DRIFT_METRICS.builtin if DRIFT_METRICS.get(name).distance_range == UNIT))
        message = f"{detector} takes distances from 0 to 1, and distances of {metric['id']} may exceed 1"
        yield Problem(f"{path}.id", f"{message}; use {fitting}, or another detector")


def _check_evaluation(evaluation: Mapping[str, Any], path: str, pipeline: Mapping[str, Any]) -> Iterator[Problem]:
    if "device" in evaluation:
        yield from check_device(evaluation["device"], f"{path}.device")
    if "dataset" not in evaluation:
        return
    dataset, data = evaluation["dataset"], pipeline.get("data")
    yield from check_dataset_of(pipeline, dataset, f"{path}.dataset")
    name, streamed = (section.get("dataset_id") if isinstance(section, Mapping) else None for section in (dataset, data))
    if name is not None and streamed is not None and name != streamed:
        message = (
            f"'{name}' is not the dataset that the run trains on: its new samples are evaluated; write {streamed}, as in `data`"
        )
        yield Problem(f"{path}.dataset.dataset_id", message)


def _check_labels(criteria: object, dataset: object, path: str) -> Iterator[Problem]:
    """Find every criterion whose `metric` is not a score of the dataset, or for which lower values are better. Invalid datasets are skipped."""
    if _wrong(check_dataset(dataset, path)) or not isinstance(dataset, Mapping):
        return
    loaded = load_dataset(dataset)
    labels = [*loaded.metric_labels(), *ESTIMATED_METRICS]
    by_label = dict(zip(labels, loaded.metrics, strict=False))
    errors = [label for label, section in by_label.items() if lower_is_better(section)]
    bounded = {label for label, section in by_label.items() if in_unit_interval(section)} | set(ESTIMATED_METRICS)
    others = {label: section["name"] for label, section in by_label.items() if not METRICS.get(section["name"]).is_accuracy}
    for name, criterion in sections_in(criteria).items():
        counts, metric = declared(criterion, "judges") == "count", criterion.get("metric")
        if isinstance(metric, str) and metric not in labels:
            hint = nearest(metric, labels) or "."
            message = f"evaluation.dataset has no metric '{metric}'{hint} There are: {', '.join(labels)}"
            yield Problem(f"{path}.{name}.metric", message)
        elif metric in errors:
            message = (
                f"lower values of '{metric}' are better, but this criterion fires on low values: "
                "choose a metric whose higher values are better"
            )
            yield Problem(f"{path}.{name}.metric", message)
        elif counts and metric in others:
            accuracies = [name for name in METRICS.builtin if METRICS.get(name).is_accuracy]
            known = ", ".join([*accuracies, *ESTIMATED_METRICS])
            message = f"{criterion['id']} takes the metric as a share of right answers, and '{metric}' is {others[metric]}: judge {known}"
            yield Problem(f"{path}.{name}.metric", message)
        elif metric in bounded:
            option, threshold = _constant(criterion, "value")
            if _beyond(threshold):
                fires = "never" if threshold < 0 else "always"
                message = f"'{metric}' lies in [0, 1], so {threshold:g} {fires} fires: write a number between 0 and 1"
                yield Problem(f"{path}.{name}.{option}", message)


def _wrong(problems: list[Problem]) -> bool:
    """Return whether one of the problems is a mistake, so that no further check of the section is possible."""
    return any(problem.severity is Severity.ERROR for problem in problems)


def _check_policy(registry: Registry[Any], section: object, path: str) -> list[Problem]:
    if not isinstance(section, Mapping):
        return [Problem(path, f"{section!r} is wrong: a section with the id of a {registry.kind} is expected")]
    if found := check_policy(registry, section, "id", path):
        return found
    policy, config = load_policy(registry, section, "id", path)
    if not issubclass(policy, DriftMetric):
        return []
    missing = missing_modules(policy)
    found = [Problem(f"{path}.id", missing, Severity.UNAVAILABLE)] if missing else []
    return found + [Problem(f"{path}.{name}", why, Severity.WARNING) for name, why in policy.without_effect(config).items()]
