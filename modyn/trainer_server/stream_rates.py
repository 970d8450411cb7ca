"""Learning rates over the steps of a stream. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from modyn.config.online import LearningRateRule


def stream_rates(rule: LearningRateRule, optimizers: Sequence[Optimizer], steps_before: int) -> list[LambdaLR]:
    """Schedulers that go on from the steps before. Args: rule: of the section `online`. steps_before: as of `Prequential`."""
    if rule.rule == "constant":
        return []
    return [LambdaLR(optimizer, lambda step: rule.factor(steps_before + step + 1)) for optimizer in optimizers]
