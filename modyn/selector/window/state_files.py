"""Files for the state of a policy that grows with the stream, such as bitmaps and buffers of keys. The next trigger of the run opens these files."""

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
    b"MODYNPOL", 1, "state of a selection policy", "restore it from a backup, or delete the run and start it again"
)

References = Mapping[str, Mapping[str, str]]
"""Maps the policy's name of each state file to the file's name on disk and the SHA-256 of its header. The header has checksums of all columns."""


class StateFiles:
    """The state files of one selection: columnar files with names, next to the trigger sets of a run.

    `open` opens a file of the previous triggers. `write` and `writer` write the file that the next trigger opens under this name. If the selection
    does not write a name, the earlier file of this name stays valid. Written files become valid when the row of their trigger is committed, because
    the row holds `references`. A selection that repeats an interrupted selection therefore opens the same files.

        buffer = context.files.open("buffer")
        keys = buffer.column("keys") if buffer else np.zeros(0, np.int64)
        ...
        context.files.write("buffer", {"keys": keys, "losses": losses}, {"seen": seen})
    """

    def __init__(self, folder: Path, trigger_id: int, before: References | None = None) -> None:
        """Args: folder: folder of the run's trigger sets, created with the first file. before: `references` of the previous trigger."""
        self._folder, self._trigger_id = folder, trigger_id
        self._before = dict(before or {})
        self._written: dict[str, Mapping[str, str]] = {}

    def open(self, name: str) -> ColumnFile | None:
        """Open the last file that an earlier trigger wrote under `name`; None without such a file. The columns are mapped, not read.

        Raises: CorruptStateError: the file is missing or damaged, or is not the file that was written. UnavailableError: the file cannot be read now.
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
        """Open the file that this selection has written under `name`. The columns are mapped, so the data need not fit into memory. Raises the errors
        of `open`."""
        return ColumnFile.open(self._folder / self._written[name]["file"], _KIND)

    def write(self, name: str, columns: Mapping[str, Array], meta: Mapping[str, Any] | None = None) -> None:
        """Write the file that the next trigger opens under `name`. The file is durable on return. A second file under this name replaces the first.

        Args: name: letters, digits, `-` and `_`. columns: arrays of numbers, of any shapes. meta: JSON values, which the opened file has as `meta`.
        Raises: UnavailableError: the disk fails.
        """
        with self.writer(name, {column: (values.dtype, values.shape) for column, values in columns.items()}) as writer:
            writer.meta.update(meta or {})
            for column, values in columns.items():
                writer.append(column, values)

    @contextmanager
    def writer(self, name: str, columns: Mapping[str, tuple[npt.DTypeLike, int | tuple[int, ...]]]) -> Iterator[ColumnWriter]:
        """Write a file like `write`, but chunk by chunk. The file is complete when the block ends without an error.

        Args: columns: for each name of a column, its dtype and shape, or its dtype and number of values.
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
        """Return the files that the next trigger finds, as JSON values for the row of this trigger."""
        return {**self._before, **self._written}
