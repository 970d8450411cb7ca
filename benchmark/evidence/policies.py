"""The trigger policies that are compared, with options that fit the density of a stream."""

from __future__ import annotations

from typing import Any

from benchmark.evidence.streams import YEAR, Stream

Section = dict[str, Any]


def policies_of(stream: Stream, dataset: str) -> dict[str, Section]:
    """Name → `trigger` section. Args: dataset: that the run is on."""
    year = stream.train_a_year
    return {
        **{f"every {years} y": {"id": "TimeTrigger", "every": int(years * YEAR)} for years in (0.5, 1, 3, 5)},
        **{f"{samples:,} samples": {"id": "DataAmountTrigger", "num_samples": samples} for samples in (year * 2, year * 4)},
        **{f"MMD > {threshold}": _drift(year, _mmd(threshold)) for threshold in (0.02, 0.05, 0.1)},
        "AutoDrift": _drift(year, _quantile()),
        "AutoDrift on payload": _drift(year, _quantile(), on="payload"),
        **{f"accuracy < {threshold}": _performance(stream, dataset, threshold) for threshold in (0.9, 0.8)},
        "latency cost": {
            "id": "DataIncorporationLatencyCostTrigger",
            "evaluation_interval_data_points": year // 2,
            "incorporation_delay_per_training_second": 4.0 * year * YEAR,
        },
        "misclassification cost": _misclassification_cost(stream, dataset),
        "AutoDrift or accuracy < 0.8": {
            "id": "EnsembleTrigger",
            "subtriggers": {"drift": _drift(year, _quantile()), "accuracy": _performance(stream, dataset, 0.8)},
            "ensemble_strategy": {"id": "AtLeastN", "n": 1},
        },
    }


def _drift(year: int, metric: Section, **options: Any) -> Section:
    """A check every half year, of the newest half year against the year before the last trigger; warmed up for three years."""
    return {
        "id": "DataDriftTrigger",
        "evaluation_interval_data_points": year // 2,
        "windowing_strategy": {
            "id": "AmountWindowingStrategy",
            "amount_ref": min(year, 1000),
            "amount_cur": min(year // 2, 1000),
        },
        "warmup_intervals": 6,
        "warmup_policy": {"id": "DataAmountTrigger", "num_samples": year},
        "metrics": {"mmd": metric},
        **options,
    }


def _mmd(threshold: float) -> Section:
    return {"id": "MMDDriftMetric", "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": threshold}}


def _quantile() -> Section:
    criterion = {"id": "DynamicQuantileThresholdCriterion", "window_size": 15, "quantile": 0.05}
    return {"id": "MMDDriftMetric", "decision_criterion": criterion}


def _misclassification_cost(stream: Stream, dataset: str) -> Section:
    """Avoidable misclassification of a tenth of a year's samples for a year is worth a second of training."""
    year = stream.train_a_year
    return {
        "id": "AvoidableMisclassificationCostTrigger",
        "evaluation_interval_data_points": year // 2,
        "warmup_intervals": 6,
        "warmup_policy": {"id": "DataAmountTrigger", "num_samples": year},
        "avoidable_misclassification_latency_per_training_second": 0.1 * year * YEAR,
        "evaluation": _evaluation(stream, dataset),
    }


def _evaluation(stream: Stream, dataset: str) -> Section:
    metrics = [{"name": "Accuracy"}]
    return {"device": "cpu", "dataset": {"dataset_id": dataset, **stream.data, "batch_size": 256, "metrics": metrics}}


def _performance(stream: Stream, dataset: str, threshold: float) -> Section:
    criterion = {"id": "StaticPerformanceThresholdCriterion", "metric": "Accuracy", "metric_threshold": threshold}
    return {
        "id": "PerformanceTrigger",
        "evaluation_interval_data_points": stream.train_a_year // 2,
        "warmup_intervals": 6,
        "warmup_policy": {"id": "DataAmountTrigger", "num_samples": stream.train_a_year},
        "evaluation": _evaluation(stream, dataset),
        "decision_criteria": {"low": criterion},
    }
