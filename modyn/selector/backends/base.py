"""A log of samples: the stream of one run, appended at its end, read by position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
from sqlalchemy.orm import Session

from modyn.errors import ConflictError, InvalidArgumentError
from modyn.records import Int64Array, SampleBatch
from modyn.selector.catalogue import RunRecord, extend_run
from modyn.selector.rules import unseen


class SampleLog(ABC):
    """The samples of one run, for the length of one transaction.

    A sample exists once the transaction commits that counts it in the run's row, and never before: a crash at any moment leaves either
    all samples of an `append` or none. Appending requires that the transaction has locked the row.
    """

    def __init__(self, run: RunRecord, session: Session, directory: Path) -> None:
        self.run = run
        self.session = session
        self.directory = directory

    def append(self, position: int, batch: SampleBatch) -> int:
        """Appends those samples that are not held yet; how many these are.

        Raises ConflictError when there would be a gap, or when samples sent again are not those that are held; InvalidArgumentError when
        the labels have another type than those before.
        """
        held, float_labels = self.run.num_samples, self.run.float_labels
        new = unseen(self.run.run_id, held, position, batch)
        self._check_repeated(position, batch.slice(0, len(batch) - len(new)))
        if not len(new):
            return 0
        new_are_float = new.labels.dtype.kind == "f"
        if float_labels is not None and float_labels != new_are_float:
            names = {True: "float64", False: "int64"}
            raise InvalidArgumentError(
                f"run '{self.run.run_id}' has {names[float_labels]} labels, but samples from position {held} on bring "
                f"{names[new_are_float]} labels; a dataset has labels of one type"
            )
        self.write(held, new)
        extend_run(self.session, self.run, held + len(new), new_are_float)
        return len(new)

    def _check_repeated(self, position: int, batch: SampleBatch) -> None:
        if len(batch) and not np.array_equal(self.read_keys(position, position + len(batch)), batch.keys):
            raise ConflictError(
                f"run '{self.run.run_id}' holds other samples at positions {position} to {position + len(batch)} than were sent again; "
                "a stream must be repeated as it was"
            )

    @abstractmethod
    def write(self, position: int, batch: SampleBatch) -> None:
        """Puts the samples at `position`, the end, such that they are safe when the transaction commits."""

    @abstractmethod
    def read(self, start: int, end: int) -> SampleBatch:
        """Samples [start, end), which must exist. Raises CorruptStateError if they are not all there."""

    @abstractmethod
    def read_keys(self, start: int, end: int) -> Int64Array:
        """Their keys alone."""

    def prepare(self) -> None:  # noqa: B027 - not every backend needs it
        """Called once, in the transaction that registers the run."""

    def repair(self) -> None:  # noqa: B027
        """Called when the service starts: removes what a crash has left behind the last sample."""

    def drop(self) -> None:  # noqa: B027
        """Removes what lies outside the run's directory."""
