"""What trainings have scored, kept with the run: a file of columns for each trigger. Selection policies and users read it."""

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
"""Numbers that a score has at most."""
MOST_SCORES: Final = 64
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_KIND: Final = FileKind(b"MODYNFBK", 1, "feedback of a training", "restore it from a backup, or delete the run and start it anew")
_CHUNK_ROWS: Final = 65_536


class Feedback:
    """What one training has scored, mapped from its file and read in chunks."""

    def __init__(self, file: ColumnFile, run_id: RunId) -> None:
        meta = file.meta
        self.header = FeedbackHeader(
            run_id, meta["trigger_id"], meta["keys_checksum"], meta["attempt"], meta["num_rows"], meta["widths"]
        )
        self._file = file

    def rows(self, start: int, stop: int) -> FeedbackRows:
        """Rows [start, stop) of those that there are."""
        keys, epochs = (np.array(self._file.column(name)[start:stop]) for name in ("keys", "epochs"))
        return FeedbackRows(
            keys, epochs, {name: np.array(self._file.column(f"score.{name}")[start:stop]) for name in self.header.widths}
        )

    def chunks(self) -> Iterator[FeedbackRows]:
        """Yield all rows, in the order of the training."""
        for start in range(0, self.header.num_rows, _CHUNK_ROWS):
            yield self.rows(start, start + _CHUNK_ROWS)

    def last_epoch(self) -> Iterator[FeedbackRows]:
        """Yield the rows of the last epoch: each sample at most once, scored by the newest weights."""
        last = max((int(rows.epochs.max()) for rows in self.chunks()), default=0)
        for rows in self.chunks():
            kept = rows.epochs == last
            if kept.any():
                yield FeedbackRows(rows.keys[kept], rows.epochs[kept], {name: own[kept] for name, own in rows.scores.items()})


class FeedbackFiles:
    """The feedback of a run, in files `000007.feedback` of a folder, each complete or absent."""

    def __init__(self, folder: Path, run_id: RunId) -> None:
        self._folder, self._run_id = folder, run_id

    def put(self, header: FeedbackHeader, parts: Iterable[tuple[int, FeedbackRows]]) -> FeedbackHeader:
        """Write the feedback of a training, unless there is that of this attempt or of a later one; durable on return.

        Args: parts: the rows in order, each part with the position of its first row.
        Returns: the header of what there is now.
        Raises: InvalidArgumentError: the rows are not those that the header announces. UnavailableError: the disk refuses.
        """
        _check(header)
        try:
            held = self.find(header.trigger_id)
        except CorruptStateError:
            held = None  # What is sent takes its place.
        if held is not None and held.header.attempt >= header.attempt:
            return held.header
        path, done = self._path(header.trigger_id), 0
        try:
            self._folder.mkdir(exist_ok=True)  # Not those above: the run may be deleted meanwhile.
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
        """Open what the training of a trigger has scored; None: there is none. Raises: CorruptStateError, UnavailableError.

        Args: verify: compare all rows with their checksums, not the header alone.
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
        """Open what this attempt at the training of a trigger has scored, to read it from `position` on. Before the first row, all are verified.

        Raises: NotFoundError. ConflictError: another attempt has taken its place. InvalidArgumentError: there is no such position.
        """
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
        """Return what trainings of the run have scored, by trigger."""
        found = [self.find(int(path.stem), verify=False) for path in sorted(self._folder.glob("*.feedback"))]
        return [feedback.header for feedback in found if feedback is not None]

    def repair(self) -> None:
        """Remove what a crash has left of files that were being written."""
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
