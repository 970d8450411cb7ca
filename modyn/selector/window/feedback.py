"""Scores of a run's trainings, for selection policies and users. Each trigger has one columnar file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from modyn.atomic_write import TEMPORARY_SUFFIX, remove, sync
from modyn.columnar import ColumnFile, FileKind, column_writer
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.records import FeedbackHeader, FeedbackRows, RunId

MOST_WIDTH: Final = 4096
"""Largest number of values in a score."""
MOST_SCORES: Final = 64
"""Largest number of scores of one training."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_KIND: Final = FileKind(
    b"MODYNFBK", 1, "feedback of a training", "restore it from a backup, or delete the run and start it again"
)
_CHUNK_ROWS: Final = 65_536


class Feedback:
    """The scores of one training, mapped from a file and read in chunks."""

    def __init__(self, file: ColumnFile, run_id: RunId) -> None:
        meta = file.meta
        self.header = FeedbackHeader(
            run_id, meta["trigger_id"], meta["keys_checksum"], meta["attempt"], meta["num_rows"], meta["widths"]
        )
        self._file = file

    def rows(self, start: int, stop: int) -> FeedbackRows:
        """Return the existing rows among [start, stop)."""
        keys, epochs = (np.array(self._file.column(name)[start:stop]) for name in ("keys", "epochs"))
        return FeedbackRows(
            keys, epochs, {name: np.array(self._file.column(f"score.{name}")[start:stop]) for name in self.header.widths}
        )

    def chunks(self) -> Iterator[FeedbackRows]:
        """Yield all rows, in the order of the training."""
        for start in range(0, self.header.num_rows, _CHUNK_ROWS):
            yield self.rows(start, start + _CHUNK_ROWS)

    def last_epoch(self) -> Iterator[FeedbackRows]:
        """Yield the rows of the last epoch: each sample at most once, scored with the newest weights."""
        last = max((int(rows.epochs.max()) for rows in self.chunks()), default=0)
        for rows in self.chunks():
            kept = rows.epochs == last
            if kept.any():
                yield FeedbackRows(rows.keys[kept], rows.epochs[kept], {name: own[kept] for name, own in rows.scores.items()})


class FeedbackFiles:
    """The feedback of a run: one file for each trigger, such as `000007.feedback`. A file is complete or does not exist."""

    def __init__(self, folder: Path, run_id: RunId) -> None:
        self._folder, self._run_id = folder, run_id

    def put(self, header: FeedbackHeader, parts: Iterable[tuple[int, FeedbackRows]]) -> FeedbackHeader:
        """Write the feedback of a training, unless feedback of this or a later attempt exists. The file is durable on return.

        Args: parts: the rows in order, each part with the position of its first row. Returns: the header of the stored feedback. Raises:
        InvalidArgumentError: the rows do not match the header. UnavailableError: the disk fails.
        """
        _check(header)
        try:
            held = self.find(header.trigger_id)
        except CorruptStateError:
            held = None  # The new feedback replaces the damaged feedback.
        if held is not None and held.header.attempt >= header.attempt:
            return held.header
        path, done = self._path(header.trigger_id), 0
        try:
            self._folder.mkdir(exist_ok=True)  # Parent folders are not created, because the run may be deleted at the same time.
            sync(self._folder.parent)
        except OSError as error:
            raise UnavailableError(f"cannot write {path}: {error.strerror}; free or repair the disk and try again") from error
        size = header.num_rows
        scores = {f"score.{name}": ("<f4", (size, width)) for name, width in header.widths.items()}
        with column_writer(path, _KIND, {"keys": ("<i8", size), "epochs": ("<i4", size), **scores}) as writer:
            for position, rows in parts:
                _check_rows(header, position, rows, done)
                writer.append("keys", rows.keys)
                writer.append("epochs", rows.epochs)
                for name in header.widths:
                    writer.append(f"score.{name}", rows.scores[name])
                done += len(rows)
            if done != size:
                raise InvalidArgumentError(
                    f"feedback of trigger {header.trigger_id} ended after {done} of {size} rows; send it again"
                )
            fields = ("trigger_id", "keys_checksum", "attempt", "num_rows")
            writer.meta.update({name: getattr(header, name) for name in fields}, widths=dict(header.widths))
        return header

    def find(self, trigger_id: int, *, verify: bool = True) -> Feedback | None:
        """Open the scores of a trigger's training. Return None without scores. Raises: CorruptStateError: the file is damaged. UnavailableError:
        the disk fails.

        Args: verify: compare all rows with their checksums, not only the header.
        """
        path = self._path(trigger_id)
        try:
            file = ColumnFile.open(path, _KIND)
            if verify:
                file.verify()
        except NotFoundError:
            return None
        feedback = Feedback(file, self._run_id)
        if feedback.header.trigger_id != trigger_id:
            raise CorruptStateError(f"{path} is the feedback of trigger {feedback.header.trigger_id}; restore the right file")
        return feedback

    def get(self, trigger_id: int, attempt: int, position: int = 0) -> Feedback:
        """Open the scores of this attempt at the training of a trigger, to read them from `position` on. All rows are verified before the first row
        is read.

        Raises: NotFoundError: there are no scores. ConflictError: scores of another attempt have replaced these scores. InvalidArgumentError: the
        position does not exist.
        """
        # A caller reads the scores in several calls, from position 0 on. The call for position 0 verifies the whole file.
        found = self.find(trigger_id, verify=position == 0)
        if found is None:
            raise NotFoundError(f"no training of trigger {trigger_id} of run '{self._run_id}' has sent scores")
        if found.header.attempt != attempt:
            raise ConflictError(
                f"the scores of trigger {trigger_id} of run '{self._run_id}' were replaced meanwhile; read them again"
            )
        if not 0 <= position <= found.header.num_rows:
            raise InvalidArgumentError(
                f"the scores of trigger {trigger_id} have {found.header.num_rows} rows, and none from {position} on"
            )
        return found

    def headers(self) -> list[FeedbackHeader]:
        """Return the headers of the scores of the run's trainings, ordered by trigger."""
        found = [self.find(int(path.stem), verify=False) for path in sorted(self._folder.glob("*.feedback"))]
        return [feedback.header for feedback in found if feedback is not None]

    def repair(self) -> None:
        """Remove unfinished files that a crash has left."""
        for path in self._folder.glob(f"*{TEMPORARY_SUFFIX}"):
            remove(path)

    def _path(self, trigger_id: int) -> Path:
        return self._folder / f"{trigger_id:06}.feedback"


def _check(header: FeedbackHeader) -> None:
    wrong = [name for name, width in header.widths.items() if not _NAME.fullmatch(name) or not 1 <= width <= MOST_WIDTH]
    if wrong or not header.widths or len(header.widths) > MOST_SCORES or header.num_rows < 0 or header.trigger_id < 0:
        raise InvalidArgumentError(
            f"feedback of {header.num_rows} rows with the scores {dict(header.widths)} is wrong: 1 to {MOST_SCORES} names of small letters, digits "
            f"and _, each of 1 to {MOST_WIDTH} numbers, and 0 rows or more"
        )


def _check_rows(header: FeedbackHeader, position: int, rows: FeedbackRows, expected: int) -> None:
    if position != expected or expected + len(rows) > header.num_rows:
        raise InvalidArgumentError(
            f"{len(rows)} rows of feedback came for position {position}, but {expected} of {header.num_rows} are there; send it again"
        )
    for name, width in header.widths.items():
        if name not in rows.scores or (len(rows) and rows.scores[name].shape != (len(rows), width)):
            raise InvalidArgumentError(
                f"rows of feedback lack the score {name} of {width} numbers; send them as the header announces"
            )
