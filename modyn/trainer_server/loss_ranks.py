"""Give the losses of samples to a sampler of the cache that chooses by them. Imports torch: for workers only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from modyn.dataset.batch import Batch
from modyn.errors import ConfigError
from modyn.rpc.logs import get_logger
from modyn.trainer_server.loop import Hook, Training


class LossRanks(Hook):
    """Hand over the losses of each batch, if the sampler of this training wants them (`Training.rank_samples`).

    They are computed from the output that is there anyway, and read when the batch behind it has been sent to the device. A criterion without a loss
    a sample is warned of once: then all samples stay alike.
    """

    name = "loss_ranks"

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor] | None = None
        """Keys and losses of the newest batch."""
        self._is_off = False

    def on_output(self, training: Training, batch: Batch, output: Any) -> None:
        """Compute the losses of a batch, and hand over those of the one before."""
        if self._is_off or training.rank_samples is None:
            return
        try:
            with torch.no_grad():
                detached = output.detach() if isinstance(output, Tensor) else output
                losses = training.components.criterion.per_sample(detached, batch.labels).float()
        except ConfigError as error:
            self._is_off = True
            get_logger("training").warning("cache_sampler_without_losses", reason=error.message)
            return
        if self._last is not None:
            keys, before = self._last
            training.rank_samples(keys.numpy(), before.cpu().numpy())
        self._last = batch.keys, losses
