"""The prequential error: what the model says of each new sample before it is trained on. Imports torch: for workers only."""

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
from modyn.trainer_server.criterion import Criterion
from modyn.trainer_server.loop import Hook, Training
from modyn.trainer_server.new_samples import NewSamples

PREQUENTIAL: Final = "prequential"
"""In the result of a training of steps: the columns of `Prequential.result`."""


TESTED_TOGETHER: Final = 128
"""Steps; fewer of them where their outputs have more than `_MOST_OUTPUTS` numbers."""
_MOST_OUTPUTS: Final = 1 << 20
"""4 MB of float32, on the device of the model."""
MOST_ROWS: Final = 1000
"""In the result of one training."""


def steps_before(training_result: Mapping[str, Any]) -> int:
    """How many steps a model has taken since the last training that was not of steps. Args: training_result: of the model.

    >>> steps_before({"num_steps": 7}), steps_before({"num_steps": 7, "prequential": {"first_step": 11}})
    (0, 17)
    """
    found = training_result.get(PREQUENTIAL)
    return 0 if found is None else int(found["first_step"]) - 1 + int(training_result["num_steps"])


class Prequential(Hook):
    """Tests each step on its new samples, by the pass that the step makes anyway, before it changes the weights (Gama, Sebastião and Rodrigues:
    On evaluating stream learning algorithms, 2013).

    A sample counts once, when it comes as a new one; drawn ones do not count. The model is in training mode: dropout and BatchNorm act as in a step.
    Numbers stay on the device until `result`.

    Args: new: the new samples of the trigger set. steps_before: since the last training that was not of steps.
    """

    name = PREQUENTIAL

    def __init__(self, new: NewSamples, steps_before: int) -> None:
        self._new, self._steps_before = new, steps_before
        self._numbers: list[int] = []
        self._read_losses: list[float] = []
        self._read_errors: list[int] = []
        self._losses: list[Tensor] = []
        self._errors: list[Tensor] = []
        """Both: of some steps in a row behind those that were read from the device."""
        self._classes = True
        """Whether labels are classes; found out by the first test."""
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        """Keys, outputs and labels of batches that are tested together: several small tests cost as much as one of them all."""
        self._num_outputs = 0
        """Numbers in the outputs among these."""
        self._rows: list[Int64Array] = []
        """Which rows of the first of what waits are new: they are looked for together too."""
        self._criterion: Criterion | None = None

    def on_output(self, training: Training, batch: Batch, output: Tensor) -> None:
        """Keep what the model says of the batch, to test it with that of the next ones."""
        if len(self._waiting) == TESTED_TOGETHER or self._num_outputs >= _MOST_OUTPUTS:
            self._test()
        self._num_outputs += output.numel()
        self._criterion = training.components.criterion
        self._waiting.append((batch.keys, output.detach(), batch.labels))

    def on_epoch(self, training: Training) -> None:
        """Test what waits."""
        self._test()

    @property
    def rows(self) -> Int64Array:
        """Those of the newest batch that are new: int64, ascending. For the time between `on_output` and the next one."""
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
        """Test what waits, where it has new samples."""
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
        counts = [len(rows) for *_, rows in tested]
        self._numbers += counts
        step = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(labels.device)
        zeros = torch.zeros(len(tested), device=labels.device)
        with torch.no_grad():
            self._losses.append(zeros.index_add(0, step, self._criterion.per_sample(outputs, labels).float()))
            classes = self._criterion.classes(labels) if self._classes else None
            try:
                if classes is None:
                    raise ConfigError("labels are no classes")
                wrong = self._criterion.probabilities(outputs).argmax(1) != classes
                wrong |= outputs.isnan().reshape(len(outputs), -1).any(1)  # The largest of NaN is any class.
                self._errors.append(zeros.index_add(0, step, wrong.float()))
            except ConfigError:
                self._classes = False

    def result(self, *, until_divergence: bool = False) -> dict[str, Any]:
        """What the result of the training says. Waits for the device.

        `first_step`, its number in the stream, and lists with an entry for each step that had new samples, or for several in a row where there are
        more than MOST_ROWS: `num` of new samples, the sums of their losses as `loss`, and how many were classified wrongly as `errors`, where
        labels are classes.

        Args: until_divergence: without the steps from the first on whose loss is no finite number.
        """
        columns = self._columns()
        if until_divergence:
            end = next((step for step, loss in enumerate(columns["loss"]) if not math.isfinite(loss)), len(columns["loss"]))
            columns = {name: values[:end] for name, values in columns.items()}
        every = -(-len(columns["num"]) // MOST_ROWS)
        if every > 1:
            columns = {
                name: [sum(values[i : i + every]) for i in range(0, len(values), every)] for name, values in columns.items()
            }
        return {"first_step": self._steps_before + 1, **columns}

    def _columns(self) -> dict[str, list[Any]]:
        self._read()
        columns: dict[str, list[Any]] = {"num": list(self._numbers), "loss": list(self._read_losses)}
        return {**columns, "errors": list(self._read_errors)} if self._classes else columns

    def _read(self) -> None:
        """Bring what waits and what is on the device to the lists."""
        self._test()
        self._read_losses += [loss for part in self._losses for loss in part.tolist()]
        self._read_errors += [int(error) for part in self._errors for error in part.tolist()]
        self._losses.clear()
        self._errors.clear()

    def losses_from(self, step: int) -> tuple[list[int], list[float]]:
        """Numbers of new samples and sums of their losses in the steps from the one with this number on, from 0. Waits for the device."""
        self._read()
        return self._numbers[step:], self._read_losses[step:]

    def state(self) -> dict[str, Any]:
        """What was tested so far. Waits for the device."""
        return {"columns": self._columns(), "seen": self._new.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        columns = state["columns"]
        self._numbers, self._read_losses = list(columns["num"]), list(columns["loss"])
        self._classes, self._read_errors = "errors" in columns, list(columns.get("errors", ()))
        self._new.load_state(state["seen"])


def _chosen(rows: Int64Array, device: torch.device) -> slice | Tensor:
    """What picks the rows of a tensor on the device: without copying where they are the first ones, which is the rule."""
    return slice(len(rows)) if rows[-1] == len(rows) - 1 else torch.from_numpy(rows).to(device)
