"""Conditions that a version must meet to be promoted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from modyn.errors import InvalidArgumentError
from modyn.tolerance import exceeds

_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": lambda value, number: not exceeds(number, value, unit=0),
    "<=": lambda value, number: not exceeds(value, number, unit=0),
    ">": lambda value, number: exceeds(value, number, unit=0),
    "<": lambda value, number: exceeds(number, value, unit=0),
}
_BATCH: Final = 256
"""Batch size of an evaluation if the pipeline has no batch size."""
NOT_WORSE: Final = "not worse than promoted"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_FORM: Final = re.compile(
    rf"\s*(?P<metric>\S.*?)\s+on\s+(?P<dataset>\S+)\s+(?:over\s+(?P<window>[1-9]\d*[smhdwy])\s+)?"
    rf"(?:(?P<sign>>=|<=|>|<)\s*(?P<number>{_NUMBER})|not\s+worse\s+than\s+promoted(?:\s+by\s+(?P<margin>{_NUMBER}))?)\s*"
)


@dataclass(frozen=True, slots=True)
class PromotionCondition:
    """Compares the metric of a version on a dataset with a number, or with the metric of the promoted version."""

    metric: str
    """Label or name of a metric."""
    dataset: str
    sign: str = ""
    """`>=`, `<=`, `>` or `<`; empty: not worse than the promoted version."""
    number: float = 0.0
    """Number to compare with; for `not worse`: allowed difference, at least 0."""
    window: str = ""
    """Duration such as `1d`: samples within this time before the newest sample (ignoring samples in the future) count; empty: all samples."""

    @property
    def compares(self) -> bool:
        """Return whether the promoted version is evaluated too."""
        return not self.sign

    def holds(self, value: float, promoted: float | None, *, low_is_good: bool) -> bool:
        """Return whether a value meets the condition. Values that are equal up to rounding count as equal, and NaN meets no condition.

        Args: promoted: value of the promoted version; None: no version is promoted, and `not worse` holds.

        >>> parse_condition("Loss on test not worse than promoted by 0.1").holds(1.05, 1.0, low_is_good=True)
        True
        """
        if math.isnan(value):
            return False
        if self.sign:
            return _OPERATORS[self.sign](value, self.number)
        if promoted is None:
            return True
        worse_by = value - promoted if low_is_good else promoted - value
        return not exceeds(worse_by, self.number, unit=max(abs(value), abs(promoted)))

    def __str__(self) -> str:
        """Return the condition as users write it."""
        what = f"{self.metric} on {self.dataset}" + (f" over {self.window}" if self.window else "")
        if self.sign:
            return f"{what} {self.sign} {self.number:g}"
        return f"{what} {NOT_WORSE}" + (f" by {self.number:g}" if self.number else "")


def parse_condition(text: str) -> PromotionCondition:
    """Parse `METRIC on DATASET >= NUMBER` (or <=, >, <), or `METRIC on DATASET not worse than promoted [by NUMBER]`. After the dataset, `over 1d`
    limits the samples to the newest day.

    >>> parse_condition("Accuracy on test >= 0.9")
    PromotionCondition(metric='Accuracy', dataset='test', sign='>=', number=0.9, window='')

    Raises: InvalidArgumentError.
    """
    found = _FORM.fullmatch(text)
    number = 0.0 if found is None else float(found["number"] or found["margin"] or 0)
    if found is None or not math.isfinite(number) or (not found["sign"] and number < 0):
        raise InvalidArgumentError(
            f"'{text}' is not a condition of a promotion; write, for example, 'Accuracy on test >= 0.9', 'Accuracy on test {NOT_WORSE}', or with "
            f"an allowed difference, 'Accuracy on test {NOT_WORSE} by 0.01'; for the newest day alone, write 'on test over 1d'"
        )
    return PromotionCondition(found["metric"], found["dataset"], found["sign"] or "", number, found["window"] or "")


def evaluated_entries(pipeline: Mapping[str, Any], conditions: Iterable[PromotionCondition]) -> dict[str, dict[str, Any]]:
    """Return the datasets of conditions by name, as entries of `evaluation.datasets` with the metrics of the conditions.

    >>> pipeline = {"evaluation": {"datasets": [{"dataset_id": "test", "batch_size": 8, "metrics": [{"name": "F1Score", "num_classes": 3}]}]}}
    >>> evaluated_entries(pipeline, [PromotionCondition("F1Score", "test", ">=", 0.5)])["test"]["metrics"]
    [{'name': 'F1Score', 'num_classes': 3, 'label': 'F1Score'}]
    """
    data = pipeline.get("data") or {}
    own = {str(entry.get("dataset_id")): entry for entry in (pipeline.get("evaluation") or {}).get("datasets") or []}
    batch = (pipeline.get("training") or {}).get("batch_size", _BATCH)
    model = next(iter(own.values()), {**data, "batch_size": batch})
    found: dict[str, dict[str, Any]] = {}
    for each in conditions:
        entry = own.get(each.dataset, model)
        made = found.setdefault(each.dataset, {**entry, "dataset_id": each.dataset, "metrics": []})
        if each.metric not in [metric["label"] for metric in made["metrics"]]:
            made["metrics"].append(_metric(entry.get("metrics") or (), each.metric))
    return found


def _metric(known: Sequence[Mapping[str, Any]], wanted: str) -> dict[str, Any]:
    """Return the entry of `metrics` that has this label or name. Without such an entry, return an entry with this name and default options."""
    for key in ("label", "name"):
        for metric in known:
            if metric.get(key) == wanted:
                return {**metric, "label": wanted}
    return {"name": wanted, "label": wanted}
