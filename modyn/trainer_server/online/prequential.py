"""The prequential error: the model's error on each new sample before the model is trained on the sample. Imports torch: for workers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from modyn.dataset.batch import Batch
from modyn.errors import ConfigError
from modyn.records import Int64Array
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.loop.loop import Hook, Training
from modyn.trainer_server.online.new_samples import NewSamples
from modyn.trainer_server.result import PrequentialResult

TESTED_TOGETHER: Final = 128
"""Number of steps that are tested together. Fewer steps are tested together if the outputs of the steps have more than `_MOST_OUTPUTS` numbers."""
_MOST_OUTPUTS: Final = 1 << 20
"""Largest number of output values that are kept on the model's device: 4 MB of float32."""
MOST_ROWS: Final = 1000
"""Largest number of entries in the result of one training."""


class Prequential(Hook):
    """Tests each step on its new samples with the step's own forward pass, before the step changes the weights (Gama, Sebastião and Rodrigues: On
    evaluating stream learning algorithms, 2013).

    A sample counts once, when it is new; samples drawn from the history do not count. The model is in training mode, with the dropout and BatchNorm
    of a step. Numbers stay on the device until `result`.

    Args: new: the new samples of the trigger set. steps_before: number of steps between the last retraining and this training.
    """

    name = "prequential"

    def __init__(self, new: NewSamples, steps_before: int) -> None:
        self._new, self._steps_before = new, steps_before
        self._numbers: list[int] = []
        self._read_losses: list[float] = []
        self._read_errors: list[int] = []
        self._losses: list[Tensor] = []
        self._errors: list[Tensor] = []
        """Losses and errors of consecutive steps that were not read from the device yet."""
        self._classes = True
        """False after a test has shown that labels are not classes."""
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        """Keys, outputs and labels of batches that will be tested together. One test costs much less than several small tests."""
        self._num_outputs = 0
        """Number of values in the outputs of `_waiting`."""
        self._rows: list[Int64Array] = []
        """Rows of new samples in the first batches of `_waiting`. The rows of several batches are found together."""
        self._criterion: Criterion | None = None

    def on_output(self, training: Training, batch: Batch, output: Tensor) -> None:
        """Keep the model's output for the batch, to test it together with the outputs for the next batches."""
        if len(self._waiting) == TESTED_TOGETHER or self._num_outputs >= _MOST_OUTPUTS:
            self._test()
        self._num_outputs += output.numel()
        self._criterion = training.components.criterion
        self._waiting.append((batch.keys, output.detach(), batch.labels))

    def on_epoch(self, training: Training) -> None:
        """Test the waiting batches."""
        self._test()

    @property
    def rows(self) -> Int64Array:
        """The new rows of the newest batch: int64, ascending. Valid until the next `on_output`."""
        self._find_rows()
        return self._rows[-1]

    def _find_rows(self) -> None:
        keys = [keys for keys, *_ in self._waiting[len(self._rows) :]]
        if not keys:
            return
        bounds = [0, *accumulate(map(len, keys))]
        rows = self._new.first_seen(torch.cat(keys).numpy())
        ends = np.searchsorted(rows, bounds).tolist()
        self._rows += [rows[first:last] - begin for (first, last), begin in zip(pairwise(ends), bounds, strict=False)]

    def _test(self) -> None:
        """Test the waiting batches on their new samples."""
        self._find_rows()
        tested = [
            (output, labels, rows) for (_, output, labels), rows in zip(self._waiting, self._rows, strict=True) if len(rows)
        ]
        self._num_outputs = 0
        self._waiting.clear()
        self._rows.clear()
        if not tested or self._criterion is None:
            return
        chosen = [_chosen(rows, labels.device) for _, labels, rows in tested]
        outputs = torch.cat([output[at] for (output, *_), at in zip(tested, chosen, strict=True)])
        labels = torch.cat([labels[at] for (_, labels, _), at in zip(tested, chosen, strict=True)])
        # All waiting batches are tested in one call. `index_add` then adds up the losses of each step.
        counts = [len(rows) for *_, rows in tested]
        self._numbers += counts
        step = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(labels.device)
        zeros = torch.zeros(len(tested), device=labels.device)
        with torch.no_grad():
            self._losses.append(zeros.index_add(0, step, self._criterion.per_sample(outputs, labels).float()))
            classes = self._criterion.classes(labels) if self._classes else None
            try:
                if classes is None:
                    raise ConfigError("labels are not classes")
                wrong = self._criterion.probabilities(outputs).argmax(1) != classes
                wrong |= outputs.isnan().reshape(len(outputs), -1).any(1)  # With NaN, argmax returns an arbitrary class.
                self._errors.append(zeros.index_add(0, step, wrong.float()))
            except ConfigError:
                self._classes = False

    def result(self, *, until_divergence: bool = False) -> PrequentialResult:
        """Return the tests in at most MOST_ROWS entries. If there are more steps, an entry covers several steps. Waits for the device.

        Args: until_divergence: end before the first step whose loss is not finite.
        """
        columns = self._columns()
        if until_divergence:
            end = next((step for step, loss in enumerate(columns["loss"]) if not math.isfinite(loss)), len(columns["loss"]))
            columns = {name: values[:end] for name, values in columns.items()}
        every = max(1, -(-len(columns["num"]) // MOST_ROWS))
        starts = range(0, len(columns["num"]), every)
        sums = {name: tuple(sum(values[i : i + every]) for i in starts) for name, values in columns.items()}
        return PrequentialResult(self._steps_before + 1, **sums)

    def _columns(self) -> dict[str, list[Any]]:
        self._test_waiting()
        columns: dict[str, list[Any]] = {"num": list(self._numbers), "loss": list(self._read_losses)}
        return {**columns, "errors": list(self._read_errors)} if self._classes else columns

    def _test_waiting(self) -> None:
        """Test the waiting batches, and move the numbers from the device to the lists."""
        self._test()
        self._read_losses += [loss for part in self._losses for loss in part.tolist()]
        self._read_errors += [int(error) for part in self._errors for error in part.tolist()]
        self._losses.clear()
        self._errors.clear()

    def losses_from(self, step: int) -> tuple[list[int], list[float]]:
        """Return numbers of new samples and sums of their losses for the steps from number `step`, counted from 0. Waits for the device."""
        self._test_waiting()
        return self._numbers[step:], self._read_losses[step:]

    def state(self) -> dict[str, Any]:
        """Return the tests so far. Waits for the device."""
        return {"columns": self._columns(), "seen": self._new.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state`."""
        columns = state["columns"]
        self._numbers, self._read_losses = list(columns["num"]), list(columns["loss"])
        self._classes, self._read_errors = "errors" in columns, list(columns.get("errors", ()))
        self._new.load_state(state["seen"])


def _chosen(rows: Int64Array, device: torch.device) -> slice | Tensor:
    """Return an index for the rows of a tensor on the device: usually the first rows, which a slice selects without a copy."""
    return slice(len(rows)) if rows[-1] == len(rows) - 1 else torch.from_numpy(rows).to(device)
