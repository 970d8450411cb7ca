"""The prequential error: what the model says of each new sample before it is trained on. Imports torch: for workers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from modyn.config.online import OnlineConfig
from modyn.dataset.batch import Batch
from modyn.errors import ConfigError
from modyn.records import Int64Array
from modyn.trainer_server.criterion import Criterion
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.loop import Hook, Training
from modyn.trainer_server.online_steps import new_of_steps

PREQUENTIAL: Final = "prequential"
"""In the result of a training of steps: the columns of `Prequential.result`."""


TESTED_TOGETHER: Final = 32
"""Steps."""
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

    Args: new: keys of the new samples of the trigger set, in the order of the stream. step_samples: of them in a step. steps_before: since the last
    training that was not of steps.
    """

    name = PREQUENTIAL

    def __init__(self, new: Int64Array, step_samples: int, steps_before: int) -> None:
        self._new, self._step_samples, self._steps_before = new, step_samples, steps_before
        self._order = np.argsort(new, kind="stable")
        self._seen = np.zeros(len(new), np.bool_)
        self._next = 0
        """The place in `new` behind the last one that was seen."""
        self.rows = np.zeros(0, np.int64)
        """Those of the newest batch that are new."""
        self._numbers: list[int] = []
        self._read_losses: list[float] = []
        self._read_errors: list[int] = []
        self._losses: list[Tensor] = []
        self._errors: list[Tensor] = []
        """Both: of some steps in a row behind those that were read from the device."""
        self._classes = True
        """Whether labels are classes; found out by the first test."""
        self._waiting: list[tuple[Tensor, Tensor]] = []
        """Outputs and labels of the new samples of steps that are tested together: several small tests cost as much as one of them all."""
        self._criterion: Criterion | None = None

    def on_output(self, training: Training, batch: Batch, output: Tensor) -> None:
        """Keep what the model says of the rows that are new, and test it with that of the next steps."""
        rows = self.rows = self._first_seen(batch.keys.numpy())
        if not len(rows):
            return
        self._criterion = training.components.criterion
        are_first = rows[-1] == len(rows) - 1
        chosen = slice(len(rows)) if are_first else torch.from_numpy(rows).to(batch.labels.device)
        self._waiting.append((output.detach()[chosen], batch.labels[chosen]))
        self._numbers.append(len(rows))
        if len(self._waiting) == TESTED_TOGETHER:
            self._test()

    def _test(self) -> None:
        """Test what waits."""
        if not self._waiting or self._criterion is None:
            return
        outputs, labels = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
        counts = torch.tensor(self._numbers[-len(self._waiting) :])
        step = torch.repeat_interleave(counts).to(labels.device)
        zeros = torch.zeros(len(self._waiting), device=labels.device)
        with torch.no_grad():
            self._losses.append(zeros.index_add(0, step, self._criterion.per_sample(outputs, labels).float()))
            classes = self._criterion.classes(labels)
            try:
                if classes is None:
                    raise ConfigError("labels are no classes")
                wrong = self._criterion.probabilities(outputs).argmax(1) != classes
                wrong |= outputs.isnan().reshape(len(outputs), -1).any(1)  # The largest of NaN is any class.
                self._errors.append(zeros.index_add(0, step, wrong.float()))
            except ConfigError:
                self._classes = False
        self._waiting.clear()

    def _first_seen(self, keys: Int64Array) -> Int64Array:
        """The rows of new samples that have not come before: int64, ascending."""
        end = min(self._next + self._step_samples, len(self._new))
        count = end - self._next
        # A last sample may be joined to the batch before: then it stands right behind it.
        is_joined = end < len(self._new) and len(keys) > count and keys[count] == self._new[end]
        if count and len(keys) >= count and not is_joined and np.array_equal(keys[:count], self._new[self._next : end]):
            # As the trigger set has it, where nothing was deleted meanwhile or left out.
            self._seen[self._next : end], self._next = True, end
            return np.arange(count)
        if not len(self._new):
            return np.zeros(0, np.int64)
        at = np.minimum(np.searchsorted(self._new, keys, sorter=self._order), len(self._new) - 1)
        place = self._order[at]
        rows = np.flatnonzero((self._new[place] == keys) & ~self._seen[place])
        # Within a batch, a new sample may be drawn too: only where there is no history, and then it is the same sample.
        rows = rows[np.sort(np.unique(place[rows], return_index=True)[1])]
        self._seen[place[rows]] = True
        self._next = max(self._next, int(place[rows].max(initial=-1)) + 1)
        return rows

    def result(self, *, until_divergence: bool = False) -> dict[str, Any]:
        """What the result of the training says: `first_step`, its number in the stream, and lists with an entry for each step, or for several in a
        row where there are more than MOST_ROWS: `num` of new samples, the sums of their losses as `loss`, and how many were classified wrongly as
        `errors`, where labels are classes. Waits for the device.

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
        return {"columns": self._columns(), "seen": torch.from_numpy(self._seen.copy())}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        columns = state["columns"]
        self._numbers, self._read_losses = list(columns["num"]), list(columns["loss"])
        self._classes, self._read_errors = "errors" in columns, list(columns.get("errors", ()))
        self._seen = state["seen"].numpy().copy()
        self._next = int(np.flatnonzero(self._seen).max(initial=-1)) + 1


def build_prequential(inputs: TrainingInputs, online: OnlineConfig, steps_before: int) -> Prequential:
    """The test of the new samples of a trigger set, whose keys are read from the selector. Args: steps_before: as of `Prequential`.

    Raises: ConflictError: the selector has another trigger set by now.
    """
    trigger_set = inputs.trigger_set
    run_id, number, checksum = trigger_set.run_id, trigger_set.trigger_id, trigger_set.keys_checksum
    with closing(inputs.context.connect()) as clients:
        parts = [clients.selector.keys(run_id, number, p, keys_checksum=checksum).keys for p in range(trigger_set.num_partitions)]
    new = new_of_steps(np.concatenate([np.zeros(0, np.int64), *parts]), online)
    return Prequential(new, online.step_samples, steps_before)
