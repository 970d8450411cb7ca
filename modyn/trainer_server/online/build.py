"""What trains a model by steps: rates over the stream, the test before each step. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from modyn.config.online import LearningRateRule, OnlineConfig
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.online.prequential import Prequential
from modyn.trainer_server.online.steps import new_of_steps


def stream_rates(rule: LearningRateRule, optimizers: Sequence[Optimizer], steps_before: int) -> list[LambdaLR]:
    """Schedulers that go on from the steps before. Args: rule: of the section `online`. steps_before: as of `Prequential`."""
    if rule.rule == "constant":
        return []
    return [LambdaLR(optimizer, lambda step: rule.factor(steps_before + step + 1)) for optimizer in optimizers]


def build_prequential(inputs: TrainingInputs, online: OnlineConfig, steps_before: int) -> Prequential:
    """The test of the new samples of a trigger set, whose keys are read from the selector. Args: steps_before: as of `Prequential`.

    Raises: ConflictError: the selector has another trigger set by now.
    """
    trigger_set = inputs.trigger_set
    run_id, number, checksum = trigger_set.run_id, trigger_set.trigger_id, trigger_set.keys_checksum
    with closing(inputs.context.connect()) as clients:
        parts = [clients.selector.keys(run_id, number, p, keys_checksum=checksum).keys for p in range(trigger_set.num_partitions)]
    return Prequential(new_of_steps(np.concatenate([np.zeros(0, np.int64), *parts]), online), steps_before)
