"""The prequential error: what the model says of each new sample before it is trained on. Imports torch: for workers only."""

from __future__ import annotations

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
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.loop import Hook, Training
from modyn.trainer_server.online_steps import new_of_steps

PREQUENTIAL: Final = "prequential"
"""In the result of a training of steps: the columns of `Prequential.result`."""


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

    Args: new: keys of the new samples of the trigger set. steps_before: since the last training that was not of steps.
    """

    name = PREQUENTIAL

    def __init__(self, new: Int64Array, steps_before: int) -> None:
        self._steps_before = steps_before
        self._new = np.sort(new)
        self._seen = np.zeros(len(new), np.bool_)
        self._numbers: list[int] = []
        self._losses: list[Tensor | float] = []
        self._errors: list[Tensor | float] = []
        self._classes = True
        """Whether labels are classes; found out by the first batch."""

    def on_output(self, training: Training, batch: Batch, output: Any) -> None:
        """Add up losses and errors of the rows that are new."""
        rows = self._first_seen(batch.keys.numpy())
        if not len(rows):
            return
        criterion, chosen = training.components.criterion, torch.from_numpy(rows).to(batch.labels.device)
        with torch.no_grad():
            detached = output.detach() if isinstance(output, Tensor) else output
            losses = criterion.per_sample(detached, batch.labels).float()
            self._numbers.append(len(rows))
            self._losses.append(losses[chosen].sum())
            if self._classes:
                self._add_errors(criterion, detached, batch.labels, chosen)

    def _add_errors(self, criterion: Any, output: Any, labels: Tensor, chosen: Tensor) -> None:
        classes = criterion.classes(labels)
        try:
            if classes is None or not isinstance(output, Tensor):
                raise ConfigError("labels are no classes")
            found = criterion.probabilities(output[chosen]).argmax(1)
        except ConfigError:
            self._classes = False
            self._errors.clear()
            return
        self._errors.append((found != classes[chosen]).sum())

    def _first_seen(self, keys: Int64Array) -> Int64Array:
        """The rows of new samples that have not come before: int64, ascending."""
        if not len(self._new):
            return np.zeros(0, np.int64)
        at = np.minimum(np.searchsorted(self._new, keys), len(self._new) - 1)
        rows = np.flatnonzero((self._new[at] == keys) & ~self._seen[at])
        # Within a batch, a new sample may be drawn too: only where there is no history, and then it is the same sample.
        rows = rows[np.sort(np.unique(at[rows], return_index=True)[1])]
        self._seen[at[rows]] = True
        return rows

    def result(self) -> dict[str, Any]:
        """What the result of the training says: `first_step`, its number in the stream, and lists with an entry for each step, or for several in a
        row where there are more than MOST_ROWS: `num` of new samples, the sums of their losses as `loss`, and how many were classified wrongly as
        `errors`, where labels are classes. Waits for the device."""
        columns, every = self._columns(), -(-len(self._numbers) // MOST_ROWS)
        if every > 1:
            columns = {
                name: [sum(values[i : i + every]) for i in range(0, len(values), every)] for name, values in columns.items()
            }
        return {"first_step": self._steps_before + 1, **columns}

    def _columns(self) -> dict[str, list[Any]]:
        self._losses = [float(value) for value in self._losses]
        self._errors = [int(value) for value in self._errors]
        columns: dict[str, list[Any]] = {"num": self._numbers, "loss": self._losses}
        return {**columns, "errors": self._errors} if self._classes else columns

    def state(self) -> dict[str, Any]:
        """What was tested so far. Waits for the device."""
        return {"columns": self._columns(), "seen": torch.from_numpy(self._seen.copy())}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        columns = state["columns"]
        self._numbers, self._losses = list(columns["num"]), list(columns["loss"])
        self._classes, self._errors = "errors" in columns, list(columns.get("errors", ()))
        self._seen = state["seen"].numpy().copy()


def build_prequential(inputs: TrainingInputs, online: OnlineConfig, steps_before: int) -> Prequential:
    """The test of the new samples of a trigger set, whose keys are read from the selector. Args: steps_before: as of `Prequential`.

    Raises: ConflictError: the selector has another trigger set by now.
    """
    trigger_set = inputs.trigger_set
    run_id, number, checksum = trigger_set.run_id, trigger_set.trigger_id, trigger_set.keys_checksum
    with closing(inputs.context.connect()) as clients:
        parts = [clients.selector.keys(run_id, number, p, keys_checksum=checksum).keys for p in range(trigger_set.num_partitions)]
    return Prequential(new_of_steps(np.concatenate([np.zeros(0, np.int64), *parts]), online), steps_before)
