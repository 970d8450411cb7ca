"""A disk in memory that applies recorded changes of files, and is left by a power loss in any of the states that POSIX allows.

A file's content survives once the file was synced, a name in a folder once the folder was. What was not synced is there or not, in any
combination, with four exceptions, which journalling file systems and disks make: a sector is written whole or not at all; what was not written
before the end of a file is zeros; a rename within a folder loses neither name; a rename to another folder appears there first.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

SECTOR: Final = 512
"""Bytes that are written as one."""
ROOT: Final = 0
"""The node of the recorded folder."""


@dataclass(frozen=True, slots=True)
class Node:
    """A file, a folder, or (`target`) a symbolic link. Its number is its place in a list."""

    is_folder: bool = False
    target: str | None = None


@dataclass(frozen=True, slots=True)
class FileWrite:
    """Bytes of a file are written at an offset."""

    node: int
    offset: int
    content: bytes = field(repr=False)

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.offset + len(self.content)


@dataclass(frozen=True, slots=True)
class Resize:
    """A file is cut, or grows by zeros."""

    node: int
    size: int


@dataclass(frozen=True, slots=True)
class Grow:
    """A file becomes at least so long, by zeros."""

    node: int
    size: int


@dataclass(frozen=True, slots=True)
class NameChange:
    """A name in a folder becomes that of `node`, or (None) of nothing.

    source: folder and name that it is moved from, by a rename. is_source_synced: whether that folder was synced since.
    """

    folder: int
    name: str
    node: int | None
    source: tuple[int, str] | None = None
    is_source_synced: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    """The content of a file, or the names in a folder, are made durable."""

    node: int


@dataclass(frozen=True, slots=True)
class Note:
    """What the recorded code notes, of no effect on the disk."""

    value: Any


Content = FileWrite | Resize | Grow
Change = Content | NameChange
Operation = Change | Sync | Note
Tree = dict[str, bytes | Node]
"""Content by path, relative to the recorded folder; of folders and links the node."""


@dataclass(slots=True)
class Names:
    """The names in all folders, by node."""

    by_folder: dict[int, dict[str, int]] = field(default_factory=dict)

    def copy(self) -> Names:
        """Return a copy that changes by itself."""
        return Names({folder: dict(names) for folder, names in self.by_folder.items()})

    def apply(self, entry: NameChange) -> None:
        """Make the change."""
        names = self.by_folder.setdefault(entry.folder, {})
        if entry.node is None:
            names.pop(entry.name, None)
            return
        names[entry.name] = entry.node
        if entry.source is not None:
            folder, name = entry.source
            left = self.by_folder.setdefault(folder, {})
            if left.get(name) == entry.node:
                del left[name]


def changed(content: bytes, change: Content) -> bytes:
    """The content of a file after the change.

    >>> changed(b"abc", FileWrite(1, 5, b"x")), changed(b"abc", Resize(1, 2))
    (b'abc\\x00\\x00x', b'ab')
    """
    if isinstance(change, Grow):
        return content.ljust(change.size, b"\0")
    if isinstance(change, Resize):
        return content[: change.size].ljust(change.size, b"\0")
    before = content[: change.offset].ljust(change.offset, b"\0")
    return before + change.content + content[change.end :]


def sectors(write: FileWrite) -> list[FileWrite]:
    """The write, cut where sectors of the disk begin.

    >>> [(part.offset, part.end) for part in sectors(FileWrite(1, 500, bytes(600)))]
    [(500, 512), (512, 1024), (1024, 1100)]
    """
    cuts = [write.offset, *range((write.offset // SECTOR + 1) * SECTOR, write.end, SECTOR), write.end]
    return [
        FileWrite(write.node, start, write.content[start - write.offset : stop - write.offset])
        for start, stop in pairwise(cuts)
        if start < stop
    ]


Chooser = Callable[[Sequence[Change]], Sequence[Change]]
"""Chooses from the unsynced changes, in order, those that survive, perhaps in part."""


class SimulatedDisk:
    """What is durable, and what was changed since. Args: nodes: of all files and folders, by number; grows with the recording."""

    def __init__(self, nodes: Sequence[Node], names: Names, contents: dict[int, bytes]) -> None:
        self._nodes, self._names, self._contents = nodes, names.copy(), dict(contents)
        self.pending: list[Change] = []
        """What is not durable, in order."""

    def apply(self, operation: Operation) -> None:
        """Make the next change."""
        if isinstance(operation, Sync):
            self._sync(operation.node)
        elif not isinstance(operation, Note):
            self.pending.append(operation)

    def _sync(self, node: int) -> None:
        left: list[Change] = []
        for change in self.pending:
            if isinstance(change, NameChange) and change.folder == node:
                source = change.source
                # What was moved away from this name before is not taken from it again when the folder that it went to is synced.
                left = [_without_source(other, (node, change.name)) for other in left]
                if source is None or source[0] == node or change.is_source_synced:
                    self._names.apply(change)
                else:
                    # Durable where it went to; where it came from it may still be.
                    self._names.apply(replace(change, source=None))
                    left.append(NameChange(*source, None))
            elif isinstance(change, NameChange) and change.source is not None and change.source[0] == node:
                left.append(replace(change, is_source_synced=True))
            elif not isinstance(change, NameChange) and change.node == node:
                self._contents[node] = changed(self._contents.get(node, b""), change)
            else:
                left.append(change)
        self.pending = left

    def tree(self, choose: Chooser) -> Tree:
        """What is found after a power loss, if of the pending changes those survive that `choose` chooses."""
        names, contents = self._names.copy(), dict(self._contents)
        for change in choose(self.pending):
            if isinstance(change, NameChange):
                names.apply(change)
            else:
                contents[change.node] = changed(contents.get(change.node, b""), change)
        return dict(self._listed(names, contents, ROOT, ""))

    def _listed(self, names: Names, contents: dict[int, bytes], folder: int, prefix: str) -> Iterator[tuple[str, bytes | Node]]:
        for name, number in sorted(names.by_folder.get(folder, {}).items()):
            node, path = self._nodes[number], prefix + name
            if node.is_folder:
                yield path, node
                yield from self._listed(names, contents, number, f"{path}/")
            else:
                yield path, contents.get(number, b"") if node.target is None else node


def _without_source(change: Change, place: tuple[int, str]) -> Change:
    """Return the change; a rename from `place` no longer removes the name there."""
    return replace(change, source=None) if isinstance(change, NameChange) and change.source == place else change


def _everything(pending: Sequence[Change]) -> Sequence[Change]:
    return pending


def _nothing(_: Sequence[Change]) -> Sequence[Change]:
    return ()


def _names(pending: Sequence[Change]) -> Sequence[Change]:
    return [change for change in pending if isinstance(change, NameChange)]


def _contents(pending: Sequence[Change]) -> Sequence[Change]:
    return [change for change in pending if not isinstance(change, NameChange)]


def _zeros(pending: Sequence[Change]) -> Sequence[Change]:
    return [Grow(change.node, change.end) if isinstance(change, FileWrite) else change for change in pending]


def _torn(pending: Sequence[Change]) -> Sequence[Change]:
    last = {change.node: change for change in pending if isinstance(change, FileWrite)}
    chosen: list[Change] = []
    for change in pending:
        if isinstance(change, FileWrite) and change is last[change.node]:
            parts = sectors(change)
            chosen += parts[: len(parts) // 2]
        else:
            chosen.append(change)
    return chosen


def _newest(pending: Sequence[Change]) -> Sequence[Change]:
    return [*_contents(pending)[-1:], *_names(pending)[-1:]]


KINDS: Final[dict[str, Chooser]] = {
    "everything": _everything,
    "nothing": _nothing,
    "names, and no contents": _names,
    "contents, and no names": _contents,
    "names and sizes, and zeros for contents": _zeros,
    "everything but the second half of the last write of each file": _torn,
    "the newest name and the newest write": _newest,
}
"""What survives of that which was not synced, in the states that are made for each moment."""


def any_of(random: Random) -> Chooser:
    """A chooser of any changes, and of any sectors of writes."""

    def choose(pending: Sequence[Change]) -> Sequence[Change]:
        chosen: list[Change] = []
        for change in pending:
            kind = random.randrange(4)
            if kind == 0:
                chosen.append(change)
            elif isinstance(change, FileWrite) and kind == 1:
                chosen += (part for part in sectors(change) if random.randrange(2))
            elif isinstance(change, FileWrite) and kind == 2:
                chosen.append(Grow(change.node, change.end))
            elif isinstance(change, NameChange) and kind == 1:
                source = change.source
                # A rename to another folder appears there first.
                chosen.append(change if source is None or source[0] == change.folder else replace(change, source=None))
        return chosen

    return choose


@dataclass(frozen=True, slots=True, eq=False)
class PowerLoss:
    """What may be found after a power loss. num_operations: that were made before. kind: what survived. notes: of the recorded code until then.

    log: the operations, as texts.
    """

    folder: Path
    num_operations: int
    kind: str
    notes: tuple[Any, ...]
    tree: Tree = field(repr=False)
    log: tuple[str, ...] = field(repr=False)

    @contextmanager
    def restored(self, folder: Path | None = None) -> Iterator[Path]:
        """Make `folder`, by default the recorded one, what is found. An error of the block gets a note that says which power loss it was."""
        try:
            yield self.restore(folder)
        except BaseException as error:
            error.add_note(str(self))
            raise

    def restore(self, folder: Path | None = None) -> Path:
        """Make `folder`, by default the recorded one, what is found, and return it. What else is in it goes."""
        folder = folder or self.folder
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        for name, found in self.tree.items():
            path = folder / name
            if isinstance(found, bytes):
                path.write_bytes(found)
            elif found.target is not None:
                path.symlink_to(found.target)
            else:
                path.mkdir()
        return folder

    def __str__(self) -> str:
        newest = "\n".join(f"  {line}" for line in self.log[-20:])
        return (
            f"a power loss after {self.num_operations} operations; of what was not synced, this survived: {self.kind}. Notes: "
            f"{list(self.notes)}. The last operations:\n{newest}"
        )
