"""What the section `trigger` of a pipeline asks of the evaluator: drift metrics, projections, and a dataset to measure performance on. The
triggers themselves are checked by the supervisor. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard

from modyn.config.base import Problem, Severity
from modyn.config.online import ONLINE
from modyn.config.policy import check_policy, load_policy
from modyn.config.preprocessing import PREPROCESSING
from modyn.evaluator.config import check_dataset, check_dataset_of, check_device, load_dataset
from modyn.evaluator.drift import DRIFT_METRICS, DriftMetric, missing_modules
from modyn.evaluator.drift.base import PermutationConfig
from modyn.evaluator.drift.projections import PROJECTIONS
from modyn.evaluator.metrics import METRICS, in_unit_interval, lower_is_better
from modyn.evaluator.records import ESTIMATED_METRICS, ComparedData
from modyn.registry import Registry, nearest

CRITERION: Final = "decision_criterion"
"""The key of a metric's entry that the trigger acts on."""
OF_DISTANCES: Final = "ThresholdDecisionCriterion"
"""The criterion that compares a distance with a constant."""
OF_P_VALUES: Final = "PValueDecisionCriterion"
"""The criterion that needs a metric with a test."""
DEFAULT_P_VALUE: Final = 0.05
"""Its level where none is given."""
COUNTING: Final = "StaticNumberMisclassificationCriterion"
"""The criterion that makes numbers of misclassifications of a score."""
OF_WINDOWS: Final = ("AutoDrift", "DataDriftTrigger")
"""The triggers whose `metrics` are drift metrics, whatever is in them."""
OF_SHARES: Final = ("HDDM_A", "HDDM_W")
"""The stream detectors that need distances from 0 to 1."""


def check_metrics(metrics: Mapping[str, object], path: str) -> list[Problem]:
    """Every mistake in drift metrics by name, with paths below `path`; what this machine lacks for one counts as unavailable."""
    return [problem for name, section in metrics.items() for problem in _check_metric(section, f"{path}.{name}")]


def _check_metric(section: object, path: str) -> list[Problem]:
    found = _check_policy(DRIFT_METRICS, metric_options(section), path)
    return found if _wrong(found) else [*found, *_without_p_value(section, path), *_beyond_distances(section, path)]


def _beyond_distances(section: object, path: str) -> Iterator[Problem]:
    """Whether a distance that lies in [0, 1] is compared with a threshold outside. Args: section: one without other mistakes."""
    criterion = section.get(CRITERION) if isinstance(section, Mapping) else None
    threshold = criterion.get("threshold") if isinstance(criterion, Mapping) and criterion.get("id") == OF_DISTANCES else None
    if isinstance(section, Mapping) and DRIFT_METRICS.get(section["id"]).in_unit_interval and _beyond(threshold):
        message = f"distances of {section['id']} lie in [0, 1], so {threshold:g} {'always' if threshold < 0 else 'never'} fires"
        yield Problem(f"{path}.{CRITERION}.threshold", f"{message}: write a number between 0 and 1")


def _beyond(number: object) -> TypeGuard[float]:
    """Whether it is a number outside [0, 1]."""
    return isinstance(number, int | float) and not 0 <= number <= 1


def _without_p_value(section: object, path: str) -> list[Problem]:
    """Whether its criterion judges the p-value of a metric that gives none. Args: section: one without other mistakes."""
    assert isinstance(section, Mapping)
    criterion = section.get(CRITERION)
    if not isinstance(criterion, Mapping) or criterion.get("id") != OF_P_VALUES:
        return []
    metric, config = load_policy(DRIFT_METRICS, metric_options(section), "id", path)
    if metric.gives_p_value(config):
        return _unreachable(config, criterion.get("p_val", DEFAULT_P_VALUE), f"{path}.num_permutations")
    remedy = f"set {path}.num_permutations" if metric.has_test else "use another criterion, or a metric with a test"
    return [Problem(f"{path}.{CRITERION}.id", f"{OF_P_VALUES} judges p-values, and {section['id']} gives none so: {remedy}")]


def _unreachable(config: object, level: object, path: str) -> list[Problem]:
    """Whether a permutation test has too few permutations to give any p-value below the level."""
    if not isinstance(config, PermutationConfig) or not isinstance(level, float) or not 0 < level <= config.least_p_value:
        return []
    never = f"{config.num_permutations} permutations give no p-value below {config.least_p_value:.3g}, so none lies below p_val {level}"
    return [Problem(path, f"{never}: write at least {int(1 / level)}, or a larger p_val")]


def check_projection(section: object, path: str) -> list[Problem]:
    """Every mistake in a projection of what is compared; none for None."""
    return [] if section is None else _check_policy(PROJECTIONS, section, path)


def metric_options(section: object) -> Any:
    """The entry of a metric without what the trigger acts on."""
    return {key: value for key, value in section.items() if key != CRITERION} if isinstance(section, Mapping) else section


def check_trigger(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Every mistake in what the sections `trigger` and `online.trigger` of a whole pipeline ask of the evaluator; empty if they ask nothing."""
    online = pipeline.get(ONLINE)
    of_steps = online.get("trigger") if isinstance(online, Mapping) else None
    return [*_problems(pipeline.get("trigger"), "trigger", pipeline), *_problems(of_steps, f"{ONLINE}.trigger", pipeline)]


def _problems(trigger: object, path: str, pipeline: Mapping[str, Any]) -> Iterator[Problem]:
    if not isinstance(trigger, Mapping):
        return
    if (metrics := _drift_metrics(trigger)) is not None:
        yield from check_metrics(metrics, f"{path}.metrics")
        yield from check_projection(trigger.get("projection"), f"{path}.projection")
        placed = {f"metrics.{name}": metric for name, metric in metrics.items()}
        yield from _check_amounts(trigger, placed, path)
        yield from _blind_to_classes(trigger, placed, path)
    evaluation = trigger.get("evaluation")
    if isinstance(evaluation, Mapping):
        yield from _check_evaluation(evaluation, f"{path}.evaluation", pipeline)
        yield from _check_labels(trigger.get("decision_criteria"), evaluation.get("dataset"), f"{path}.decision_criteria")
    distance = trigger.get("distance")
    if pipeline.get(PREPROCESSING) is not None:
        yield from _of_columns({"on": trigger, "distance.on": distance}, path)
    if isinstance(distance, Mapping) and trigger.get("id") == "StreamDetectorTrigger":
        if "metric" in distance:
            wrong = _check_policy(DRIFT_METRICS, distance["metric"], f"{path}.distance.metric")
            yield from wrong
            if not _wrong(wrong):
                yield from _beyond_shares(trigger.get("detector"), distance["metric"], f"{path}.distance.metric")
        yield from check_projection(distance.get("projection"), f"{path}.distance.projection")
        yield from _check_amounts(distance, {"metric": distance.get("metric")}, f"{path}.distance")
        yield from _blind_to_classes(distance, {"metric": distance.get("metric")}, f"{path}.distance")
    yield from _problems(trigger.get("warmup_policy"), f"{path}.warmup_policy", pipeline)
    children = trigger.get("subtriggers")
    for name, child in children.items() if isinstance(children, Mapping) else ():
        yield from _problems(child, f"{path}.subtriggers.{name}", pipeline)


def _of_columns(compared: Mapping[str, object], path: str) -> Iterator[Problem]:
    """Where payloads are compared that are rows of columns: without a model there are no statistics that make numbers of them.

    Args: compared: sections of windows by the places of their key `on`.
    """
    for place, section in compared.items():
        if isinstance(section, Mapping) and section.get("on") == ComparedData.PAYLOAD:
            message = "payloads are rows of columns here (section `preprocessing`), which are no numbers: compare embeddings, predictions or labels"
            yield Problem(f"{path}.{place}", message)


def _blind_to_classes(compared: Mapping[str, Any], metrics: Mapping[str, object], path: str) -> Iterator[Problem]:
    """A warning of each of our metrics that takes labels for numbers. Of those of other packages it is not known.

    Args: compared: the section of windows at `path`. metrics: sections of metrics by their paths below it.
    """
    for place, section in metrics.items() if compared.get("on") == ComparedData.LABELS else ():
        if not isinstance(section, Mapping) or section.get("id") not in DRIFT_METRICS.builtin:
            continue
        if not check_policy(DRIFT_METRICS, metric_options(section), "id", place):
            metric, config = load_policy(DRIFT_METRICS, metric_options(section), "id", place)
            if why := metric.blind_to_classes(config):
                remedy = "compare classes by ChiSquaredDriftMetric, unless labels are quantities"
                yield Problem(f"{path}.{place}.id", f"{section['id']} sees no classes: {why}; {remedy}", Severity.WARNING)


def _check_amounts(compared: Mapping[str, Any], metrics: Mapping[str, object], path: str) -> Iterator[Problem]:
    """Every number of samples that is too small for a metric or the projection: it would never be measured.

    Args: compared: the section of windows at `path`. metrics: sections of metrics by their paths below it.
    """
    needs = dict[str, tuple[int, str]]()
    for place, section in metrics.items():
        if isinstance(section, Mapping) and not check_policy(DRIFT_METRICS, metric_options(section), "id", place):
            needs[place] = (DRIFT_METRICS.get(section["id"]).min_samples, section["id"])
    of_reference, projection = dict(needs), compared.get("projection")
    if isinstance(projection, Mapping) and not check_policy(PROJECTIONS, projection, "id", "projection"):
        kind, config = load_policy(PROJECTIONS, projection, "id", "projection")
        of_reference["projection"] = (kind(config).min_samples, projection["id"])
    windows = compared.get("windowing_strategy")
    amounts = windows if isinstance(windows, Mapping) else {}
    for place, amount, needed in (
        ("sample_size", compared.get("sample_size"), of_reference),
        ("windowing_strategy.amount_ref", amounts.get("amount_ref"), of_reference),
        ("windowing_strategy.amount_cur", amounts.get("amount_cur"), needs),
    ):
        for what, (least, name) in needed.items():
            if isinstance(amount, int) and 2 <= amount < least:  # fewer are a mistake in any case
                yield Problem(f"{path}.{place}", f"{amount} samples are never enough for {what}, {name}: write at least {least}")


def _beyond_shares(detector: object, metric: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Whether distances are not from 0 to 1 though the detector needs that. Args: metric: a section without mistakes."""
    id_ = detector.get("id") if isinstance(detector, Mapping) else None
    if id_ in OF_SHARES and DRIFT_METRICS.get(metric["id"]).in_unit_interval is False:
        fitting = ", ".join(sorted(name for name in DRIFT_METRICS.builtin if DRIFT_METRICS.get(name).in_unit_interval))
        message = (
            f"{id_} takes distances from 0 to 1, and those of {metric['id']} may lie beyond; use {fitting}, or another detector"
        )
        yield Problem(f"{path}.id", message)


def _drift_metrics(trigger: Mapping[str, Any]) -> Mapping[str, object] | None:
    """Its drift metrics by name; None: it compares no windows. The `metrics` of a trigger of another package may mean anything."""
    metrics = trigger.get("metrics")
    metrics = metrics if isinstance(metrics, Mapping) else {}
    if trigger.get("id") in OF_WINDOWS:
        return metrics
    is_drift = metrics and all(isinstance(entry, Mapping) and "id" in entry for entry in metrics.values())
    return metrics if is_drift else None


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
    """Every criterion whose `metric` is no score, or one where low is good, of a dataset that is valid by itself."""
    if _wrong(check_dataset(dataset, path)) or not isinstance(dataset, Mapping) or not isinstance(criteria, Mapping):
        return
    loaded = load_dataset(dataset)
    labels = [*loaded.metric_labels(), *ESTIMATED_METRICS]
    by_label = dict(zip(labels, loaded.metrics, strict=False))
    errors = [label for label, section in by_label.items() if lower_is_better(section)]
    bounded = {label for label, section in by_label.items() if in_unit_interval(section)} | set(ESTIMATED_METRICS)
    others = {label: section["name"] for label, section in by_label.items() if not _may_be_accuracy(section["name"])}
    for name, criterion in criteria.items():
        counts = isinstance(criterion, Mapping) and criterion.get("id") == COUNTING
        metric = criterion.get("metric", "Accuracy" if counts else None) if isinstance(criterion, Mapping) else None
        if isinstance(metric, str) and metric not in labels:
            hint = nearest(metric, labels) or "."
            message = f"evaluation.dataset has no metric '{metric}'{hint} There are: {', '.join(labels)}"
            yield Problem(f"{path}.{name}.metric", message)
        elif metric in errors:
            message = f"low values of '{metric}' are the good ones, and this criterion takes low scores as bad: judge one where high is good"
            yield Problem(f"{path}.{name}.metric", message)
        elif counts and metric in others:
            known = ", ".join(["Accuracy", *ESTIMATED_METRICS])
            message = (
                f"{COUNTING} takes the metric as a share of right answers, and '{metric}' is {others[metric]}: judge {known}"
            )
            yield Problem(f"{path}.{name}.metric", message)
        elif isinstance(criterion, Mapping) and metric in bounded and _beyond(threshold := criterion.get("metric_threshold")):
            fires = "never" if threshold < 0 else "always"
            message = f"'{metric}' lies in [0, 1], so {threshold:g} {fires} fires: write a number between 0 and 1"
            yield Problem(f"{path}.{name}.metric_threshold", message)


def _may_be_accuracy(name: str) -> bool:
    """Whether a metric may be a share of right answers: ours is, and of those of other packages it is not known."""
    return name == "Accuracy" or (name in METRICS.plugins and name not in METRICS.builtin)


def _wrong(problems: list[Problem]) -> bool:
    """Whether one of them is a mistake, so that nothing can be said of the section as it is meant."""
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
