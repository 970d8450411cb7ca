"""The direction of torchmetrics classes (error or score) is known without importing them."""

from __future__ import annotations

from typing import Any

from modyn.evaluator.metrics.metrics import lower_is_better, torchmetrics_names
from modyn.evaluator.metrics.torch_metric import LOWER_IS_BETTER


def test_directions_are_those_of_torchmetrics() -> None:
    import torchmetrics
    import torchmetrics.classification as by_task

    def is_error(name: str) -> bool:
        kinds: list[Any] = [getattr(torchmetrics, name), getattr(by_task, f"Binary{name}", None)]
        return any(getattr(kind, "higher_is_better", None) is False for kind in kinds)

    expected = {name for name in torchmetrics_names() if is_error(name)}
    # Torchmetrics says nothing of a deviance, and the wrong thing of the share of words that is preserved.
    expected = expected - {"WordInfoPreserved"} | {"TweedieDevianceScore"}
    assert expected == LOWER_IS_BETTER & torchmetrics_names()


def test_only_errors_are_better_when_low() -> None:
    assert not lower_is_better({"name": "Accuracy"})
    assert not lower_is_better({"name": "Precision", "config": {"task": "binary"}})
    assert lower_is_better({"name": "MeanSquaredError", "label": "mse"})
