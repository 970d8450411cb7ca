"""The loss of a training, with the weights that count in it. Imports torch: for workers only."""

from __future__ import annotations

from contextlib import closing

from modyn.dataset.trigger_set import mean_weight
from modyn.errors import InvalidArgumentError
from modyn.trainer_server.criterion import Criterion
from modyn.trainer_server.inputs import TrainingInputs


def build_criterion(inputs: TrainingInputs) -> Criterion:
    """The loss, with the weights of the trigger set and of downsampling where these count. Raises ConfigError, InvalidArgumentError."""
    sampled = inputs.downsampling is not None and inputs.downsampling.weighs
    return Criterion(inputs.config.optimization_criterion, weigh(inputs) if inputs.uses_weights else None, sampled=sampled)


def weigh(inputs: TrainingInputs) -> float:
    """The mean weight of the trigger set's samples, by one pass over it. Raises InvalidArgumentError for weights that weigh nothing."""
    with closing(inputs.context.connect()) as clients:
        mean = mean_weight(clients.selector, inputs.trigger_set)
    if not 0 < mean < float("inf"):
        raise InvalidArgumentError(
            f"the weights of the trigger set have the mean {mean}, but it must be above 0 and finite: correct the selection strategy, or set "
            "selection_strategy.uses_weights: false"
        )
    return mean
