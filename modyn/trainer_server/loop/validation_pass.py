"""The loss on a training's validation set, for early stopping and plateaus. Imports torch: for workers only."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from modyn.dataset.batch import on_device
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.models.calls import unchanged
from modyn.rpc.logs import get_logger
from modyn.trainer_server.loop.epoch_passes import EpochPasses
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.loop.loop import Training, stopped
from modyn.workers import JobConnection


class Validation:
    """Computes the mean loss of the validation set by one pass in evaluation mode. The loss is computed as in a training without downsampling. The
    model and all random generators stay unchanged.

    One loader serves the passes of all epochs. The first pass starts the loader, and leaving the context manager ends it. Raises CancelledError on
    the service's request to stop.
    """

    def __init__(self, inputs: TrainingInputs, connection: JobConnection) -> None:
        """Args: inputs: inputs of a training with a validation set. connection: checked before each batch for a request to stop."""
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
        """Return the current mean loss; None if all samples of the validation set were deleted."""
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
