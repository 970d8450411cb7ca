"""A log of samples: the stream of one run, appended at its end, read by position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from modyn.errors import ConflictError, InvalidArgumentError
from modyn.records import Int64Array, RunId, SampleBatch
from modyn.selector.rules import unseen


@dataclass(frozen=True, slots=True)
class Held:
    """How many samples a log holds, and of which type their labels are: unknown before the first."""

    num_samples: int = 0
    float_labels: bool | None = None


class SampleLog(ABC):
    """The samples of one run.

    A sample exists once `held` counts it, and never before: a crash at any moment leaves either all samples of an `append` or none.
    Only one may append at a time; how it is made sure is the backend's.
    """

    def __init__(self, run_id: RunId) -> None:
        self.run_id = run_id

    def append(self, position: int, batch: SampleBatch) -> int:
        """Appends those samples that are not held yet; how many these are.

        Raises ConflictError when there would be a gap, or when samples sent again are not those that are held; InvalidArgumentError when
        the labels have another type than those before.
        """
        held = self.held()
        new = unseen(self.run_id, held.num_samples, position, batch)
        self._check_repeated(position, batch.slice(0, len(batch) - len(new)))
        if not len(new):
            return 0
        new_are_float = new.labels.dtype.kind == "f"
        if held.float_labels is not None and held.float_labels != new_are_float:
            names = {True: "float64", False: "int64"}
            raise InvalidArgumentError(
                f"run '{self.run_id}' has {names[held.float_labels]} labels, but samples from position {held.num_samples} on bring "
                f"{names[new_are_float]} labels; a dataset has labels of one type"
            )
        self.write(held.num_samples, new)
        return len(new)

    def _check_repeated(self, position: int, batch: SampleBatch) -> None:
        if len(batch) and not np.array_equal(self.read_keys(position, position + len(batch)), batch.keys):
            raise ConflictError(
                f"run '{self.run_id}' holds other samples at positions {position} to {position + len(batch)} than were sent again; "
                "a stream must be repeated as it was"
            )

    @abstractmethod
    def create(self) -> None:
        """Called once, when the run is registered."""

    @abstractmethod
    def held(self) -> Held:
        """What the log holds now."""

    @abstractmethod
    def write(self, position: int, batch: SampleBatch) -> None:
        """Puts the samples at `position`, the end, and counts them: all of them durably, or none."""

    @abstractmethod
    def read(self, start: int, end: int) -> SampleBatch:
        """Samples [start, end), which must exist. Raises CorruptStateError if they are not all there."""

    @abstractmethod
    def read_keys(self, start: int, end: int) -> Int64Array:
        """Their keys alone."""
