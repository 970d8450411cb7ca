"""Files of what a policy keeps from one trigger of a run to the next, for what grows with the stream: bitmaps, buffers of keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt

from modyn.atomic_write import make_folder
from modyn.columnar import Array, ColumnFile, ColumnWriter, FileKind, column_writer
from modyn.errors import CorruptStateError, NotFoundError, UnavailableError

_KIND: Final = FileKind(
    b"MODYNPOL", 1, "state of a selection policy", "restore it from a backup, or delete the run and start it anew"
)

References = Mapping[str, Mapping[str, str]]
"""File name and SHA-256 (of the header, and so of all columns) of each file, by the name that the policy gave it."""


class StateFiles:
    """Files of columns by name, beside the trigger sets of a run, as one selection sees them.

    `open` reads what the triggers before have left; `write` and `writer` make what the next trigger opens under that name. A name that is
    not written keeps its file. Nothing of a selection counts before the row of its trigger does, which holds `references`: one that was
    cut off and is made again opens the same files as the first time.

        buffer = context.files.open("buffer")
        keys = buffer.column("keys") if buffer else np.zeros(0, np.int64)
        ...
        context.files.write("buffer", {"keys": keys, "losses": losses}, {"seen": seen})
    """

    def __init__(self, folder: Path, trigger_id: int, before: References | None = None) -> None:
        """Args: folder: of the run's trigger sets; made when a file is written. before: `references` after the trigger before."""
        self._folder, self._trigger_id = folder, trigger_id
        self._before = dict(before or {})
        self._written: dict[str, Mapping[str, str]] = {}

    def open(self, name: str) -> ColumnFile | None:
        """Open the file that an earlier trigger wrote last under `name`; None if none did. Its columns are mapped, not read.

        Raises: CorruptStateError: it is missing, damaged or another one. UnavailableError: it cannot be read now.
        """
        if name not in self._before:
            return None
        path = self._folder / self._before[name]["file"]
        try:
            file = ColumnFile.open(path, _KIND)
            file.verify()
        except NotFoundError as error:
            raise CorruptStateError(error.message) from error
        if file.written.digest != self._before[name]["sha256"]:
            raise _KIND.corrupt(path, "it is not the one that the trigger before has written")
        return file

    def reopen(self, name: str) -> ColumnFile:
        """Open the file that this selection has written under `name`, to read what is larger than memory. Raises: as `open`."""
        return ColumnFile.open(self._folder / self._written[name]["file"], _KIND)

    def write(self, name: str, columns: Mapping[str, Array], meta: Mapping[str, Any] | None = None) -> None:
        """Write the file that the next trigger opens under `name`, which is durable on return; the last one of a selection counts.

        Args: name: letters, digits, `-` and `_`. columns: numbers, of any shapes. meta: values that JSON can express, `meta` of the opened file.
        Raises: UnavailableError: the disk refuses.
        """
        with self.writer(name, {column: (values.dtype, values.shape) for column, values in columns.items()}) as writer:
            writer.meta.update(meta or {})
            for column, values in columns.items():
                writer.append(column, values)

    @contextmanager
    def writer(self, name: str, columns: Mapping[str, tuple[npt.DTypeLike, int | tuple[int, ...]]]) -> Iterator[ColumnWriter]:
        """Write a file as `write` does, part by part; it counts once the block has ended without an error.

        Args: columns: dtype and shape, or number of values, by name.
        """
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"'{name}' cannot name a file of a policy's state: use letters, digits, - and _")
        path = self._folder / f"{self._trigger_id:06}.{name}.state"
        try:
            make_folder(self._folder)
        except OSError as error:
            raise UnavailableError(f"cannot write {path}: {error.strerror}; free or repair the disk and try again") from error
        with column_writer(path, _KIND, columns) as writer:
            yield writer
        self._written[name] = {"file": path.name, "sha256": writer.written.digest}

    def references(self) -> dict[str, Mapping[str, str]]:
        """Return what the next trigger finds, as JSON values for the row of this one."""
        return {**self._before, **self._written}
