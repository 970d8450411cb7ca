"""The loss of samples that a training holds out, for early stopping and plateaus. Imports torch: for workers only."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from modyn.dataset.batch import on_device
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.models.calls import unchanged
from modyn.rpc.logs import get_logger
from modyn.trainer_server.epoch_passes import EpochPasses
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.loop import Training, stopped
from modyn.workers import JobConnection


class Validation:
    """The mean loss of the samples that are held out, each counted as in a training without downsampling, by one pass in evaluation mode that leaves
    the model and all random generators as they were.

    One loader serves the passes of all epochs, and starts with the first; use as a context manager, which ends it. Raises CancelledError once
    the service asks to stop.
    """

    def __init__(self, inputs: TrainingInputs, connection: JobConnection) -> None:
        """Args: inputs: of a training that holds samples out. connection: asked before each batch whether the training is to stop."""
        assert inputs.held_out is not None
        config = inputs.config
        options = LoadOptions(
            batch_size=config.batch_size, drop_last=False, seed=0, epochs=inputs.plan.num_epochs, classes=inputs.classes
        )
        data = inputs.data
        dataset = TriggerSetDataset(inputs.trigger_set, data, inputs.context.connect, options, share=inputs.held_out)
        self._passes = EpochPasses(dataset, config.dataloader_workers, pin_memory=config.on_gpu)
        self._config = config
        self._connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._passes.close()

    def __call__(self, training: Training) -> float | None:
        """The mean loss now; None: all samples were deleted meanwhile."""
        summed: Tensor = torch.zeros((), dtype=torch.float64, device=training.components.device)
        num_samples, criterion = 0, training.components.criterion.not_sampled
        with torch.no_grad(), unchanged(training.components.model):
            for batch in on_device(self._passes.batches(training.progress.epoch), self._config.device):
                if self._connection.stopping:
                    training.stopping = True
                    raise stopped()
                loss = training.loss_of(batch, criterion=criterion)
                summed += loss if criterion.sums else loss * len(batch)
                num_samples += len(batch)
        if not num_samples:
            get_logger("training").warning("nothing_to_validate", reason="all samples that are held out were deleted meanwhile")
            return None
        return float(summed) / num_samples
