"""File operations of code in a folder, in order, and the possible states after power losses. Made by `disk_recorder.recorded_disk`."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from tests.support.simulated_disk import (
    KINDS,
    ROOT,
    Chooser,
    FileWrite,
    Grow,
    NameChange,
    Names,
    Node,
    Note,
    Operation,
    PowerLoss,
    Resize,
    SimulatedDisk,
    Sync,
    any_of,
    changed,
)

_MISSING: Final = -1
"""Replaces a missing folder: operations in it fail."""


class Killed(BaseException):
    """The recorded code is a process that was killed: from here on it changes nothing."""


class Spot(NamedTuple):
    """A place for a name in the recorded folder."""

    folder: int
    name: str
    node: int | None
    path: str


class DiskRecording:
    """The operations on the files of a folder. Made by `recorded_disk`."""

    def __init__(self, folder: Path, native: Sequence[str] = ()) -> None:
        self.folder = folder
        self._root = os.path.realpath(folder)
        self._native = tuple(native)
        self.lock = threading.RLock()
        """One operation at a time is made and recorded, so that the order is right."""
        self._nodes = [Node(is_folder=True)]
        self._names = Names({ROOT: {}})
        self._contents: dict[int, bytes] = {}
        self._by_inode: dict[tuple[int, int], int] = {}
        self._operations: list[Operation] = []
        self._log: list[str] = []
        self._left: int | None = None
        """Operations until the recorded code is killed."""
        self._load(ROOT, self._root)
        self._before = self._names.copy(), dict(self._contents)

    def note(self, value: Any) -> None:
        """Note that something has been acknowledged: power losses from here on have `value` in their notes."""
        with self.lock:
            self._record(Note(value), f"note {value!r}")

    def kill_at(self, step: int, action: Callable[[], object]) -> bool:
        """Call `action` as a process that is killed before operation `step`, from 0 on, of it; return whether it came so far.

        What it did before is in the system's memory, as after `kill -9`: nothing is lost, and nothing more is synced.
        """
        with self.lock:
            self._left = step
        try:
            action()
        except Killed:
            return True
        finally:
            self._left = None
        return False

    def losses(self) -> Iterator[PowerLoss]:
        """Make what may be found after a power loss at each moment, as `KINDS` says. States that are equal come once."""
        seen: set[tuple[int, tuple[tuple[str, bytes | Node], ...]]] = set()
        for position, disk in self._moments():
            for kind, choose in KINDS.items():
                loss = self._loss(position, disk, kind, choose)
                state = len(loss.notes), tuple(loss.tree.items())
                if state not in seen:
                    seen.add(state)
                    yield loss

    def random_loss(self, random: Random) -> PowerLoss:
        """Make what may be found after a power loss at any moment, with any part of what was not synced."""
        last = random.randrange(len(self._operations) + 1)
        position, disk = next((position, disk) for position, disk in self._moments() if position == last)
        return self._loss(position, disk, "any part", any_of(random))

    def _moments(self) -> Iterator[tuple[int, SimulatedDisk]]:
        """The disk before the first operation, and after each."""
        disk = SimulatedDisk(self._nodes, *self._before)
        yield 0, disk
        for position, operation in enumerate(self._operations, 1):
            disk.apply(operation)
            yield position, disk

    def _loss(self, position: int, disk: SimulatedDisk, kind: str, choose: Chooser) -> PowerLoss:
        notes = tuple(operation.value for operation in self._operations[:position] if isinstance(operation, Note))
        return PowerLoss(self.folder, position, kind, notes, disk.tree(choose), tuple(self._log[:position]))

    # Recording

    def _load(self, folder: int, path: str) -> None:
        """Take in what is there before the recording: it is durable."""
        self._bind(os.stat(path), folder)
        for entry in os.scandir(path):
            found = entry.stat(follow_symlinks=False)
            known = self._by_inode.get((found.st_dev, found.st_ino))
            if known is None:
                target = os.readlink(entry.path) if entry.is_symlink() else None
                known = self._new(Node(entry.is_dir(follow_symlinks=False), target), found)
                if stat.S_ISREG(found.st_mode):
                    self._contents[known] = Path(entry.path).read_bytes()
            self._names.by_folder[folder][entry.name] = known
            if self._nodes[known].is_folder:
                self._load(known, entry.path)

    def _new(self, node: Node, found: os.stat_result) -> int:
        self._nodes.append(node)
        number = len(self._nodes) - 1
        if node.is_folder:
            self._names.by_folder[number] = {}
        self._bind(found, number)
        return number

    def _bind(self, found: os.stat_result, number: int) -> None:
        # The file system uses numbers of inodes again.
        self._by_inode[found.st_dev, found.st_ino] = number

    def _record(self, operation: Operation, text: str) -> None:
        self._operations.append(operation)
        self._log.append(text)
        if isinstance(operation, NameChange):
            self._names.apply(operation)
        elif isinstance(operation, FileWrite | Resize | Grow):
            self._contents[operation.node] = changed(self._contents.get(operation.node, b""), operation)

    def _step(self) -> None:
        """Come to the next operation. Raises: Killed."""
        if self._left is not None:
            if self._left <= 0:
                raise Killed
            self._left -= 1

    def spot(self, path: Any, dir_fd: int | None = None) -> Spot | None:
        """Return the place of the name `path` in the recorded folder; None if the name is outside the folder."""
        text = os.fsdecode(path)
        if dir_fd is not None:
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        text = os.path.abspath(text)
        parent, name = os.path.realpath(os.path.dirname(text)), os.path.basename(text)
        if parent != self._root and not parent.startswith(self._root + os.sep):
            return None
        relative = os.path.relpath(parent, self._root)
        folder = ROOT
        for part in () if relative == os.curdir else relative.split(os.sep):
            folder = self._names.by_folder.get(folder, {}).get(part, _MISSING)
        shown = os.path.normpath(os.path.join(relative, name))
        return self._adopted(Spot(folder, name, self._names.by_folder.get(folder, {}).get(name), shown))

    def _adopted(self, spot: Spot) -> Spot:
        """The spot, once the file there is recorded that compiled code may have written."""
        path = os.path.join(self._root, spot.path)
        if not any(fnmatch(spot.name, pattern) for pattern in self._native) or not os.path.isfile(path):
            return spot
        content, found = Path(path).read_bytes(), os.stat(path)
        node = self._by_inode.get((found.st_dev, found.st_ino))
        if spot.node is None or spot.node != node:
            node = self._new(Node(), found)
            self._record(NameChange(spot.folder, spot.name, node), f"create {spot.path}, by compiled code")
        if content != self._contents.get(node, b""):
            self._record(Resize(node, 0), f"empty {spot.path}, by compiled code")
            self._record(FileWrite(node, 0, content), f"write {len(content)} bytes of {spot.path}, by compiled code")
        return spot._replace(node=node)

    def node_of(self, file: Any) -> tuple[int, str] | None:
        """Node and path of an open file that has a name in the recorded folder; None for another one."""
        descriptor = file if isinstance(file, int) else file.fileno()
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:  # It is closed, of which the real call tells.
            return None
        if path == self._root:
            return ROOT, os.curdir
        found = os.fstat(descriptor)
        if not path.startswith(self._root + os.sep) or not found.st_nlink:
            return None
        spot = self.spot(path)
        node = self._by_inode.get((found.st_dev, found.st_ino))
        if spot is None or node is None:
            raise AssertionError(
                f"{path} was not made by Python's `open` while it was recorded; name it with `native` if compiled code made it"
            )
        return node, spot.path

    def synced(self, file: Any, real: Callable[[Any], None]) -> None:
        """Sync an open file or folder by `real`."""
        with self.lock:
            if (known := self.node_of(file)) is None:
                real(file)
                return
            self._step()
            real(file)
            self._record(Sync(known[0]), f"sync {known[1]}")

    def written(self, descriptor: int, real: Callable[[], int], buffers: Sequence[Any], offset: int | None = None) -> int:
        """Write by `real` what is in `buffers`, at `offset` or (None) where the file stands."""
        with self.lock:
            if (known := self.node_of(descriptor)) is None:
                return real()
            self._step()
            size = real()
            start = os.lseek(descriptor, 0, os.SEEK_CUR) - size if offset is None else offset
            self._record(FileWrite(known[0], start, b"".join(buffers)[:size]), f"write [{start}, {start + size}) of {known[1]}")
            return size

    def sized(self, file: Any, size: int, real: Callable[[], None], kind: type[Resize | Grow] = Resize) -> None:
        """Change the size of an open file, or of one by path, by `real`."""
        with self.lock:
            known = self.node_of(file) if isinstance(file, int) else self._existing(file)
            if known is None:
                real()
                return
            self._step()
            real()
            self._record(kind(known[0], size), f"{kind.__name__.lower()} {known[1]} to {size} bytes")

    def _existing(self, path: Any) -> tuple[int, str] | None:
        spot = self.spot(path)
        return None if spot is None or spot.node is None else (spot.node, spot.path)

    def opened(self, path: Any, flags: int, dir_fd: int | None, real: Callable[[], int]) -> int:
        """Open, and perhaps create or empty, a file by `real`."""
        with self.lock:
            spot = None
            if flags & (os.O_CREAT | os.O_TRUNC) and flags & os.O_TMPFILE != os.O_TMPFILE:
                spot = self.spot(path, dir_fd)
            if spot is None:
                return real()
            if spot.node is None and flags & os.O_CREAT:
                self._step()
                descriptor = real()
                node = self._new(Node(), os.fstat(descriptor))
                self._record(NameChange(spot.folder, spot.name, node), f"create {spot.path}")
                return descriptor
            if spot.node is None or not flags & os.O_TRUNC or not self._contents.get(spot.node):
                return real()
            self._step()
            descriptor = real()
            self._record(Resize(spot.node, 0), f"empty {spot.path}")
            return descriptor

    def made(self, path: Any, dir_fd: int | None, real: Callable[[], None], target: str | None = None) -> None:
        """Make a folder, or (target) a symbolic link, by `real`."""
        with self.lock:
            if (spot := self.spot(path, dir_fd)) is None:
                real()
                return
            self._step()
            real()
            found = os.stat(os.path.join(self._root, spot.path), follow_symlinks=False)
            node = self._new(Node(target is None, target), found)
            self._record(NameChange(spot.folder, spot.name, node), f"{'make folder' if target is None else 'link'} {spot.path}")

    def removed(self, path: Any, dir_fd: int | None, real: Callable[[], None]) -> None:
        """Remove a file or a folder by `real`."""
        with self.lock:
            if (spot := self.spot(path, dir_fd)) is None:
                real()
                return
            self._step()
            real()
            self._record(NameChange(spot.folder, spot.name, None), f"remove {spot.path}")

    def moved(self, source: Spot | None, target: Spot | None, real: Callable[[], None], *, keep: bool = False) -> None:
        """Rename, or (keep) give a second name, by `real`. Raises: AssertionError: of a file from outside nothing is known."""
        with self.lock:
            if (target is None and (source is None or keep)) or (source is not None and source == target):
                real()
                return
            if source is None:
                raise AssertionError(f"a file from outside comes into {self.folder}; record a folder that holds both")
            self._step()
            real()
            if target is None:
                self._record(NameChange(source.folder, source.name, None), f"move {source.path} away")
            elif source.node != target.node:
                before = None if keep else (source.folder, source.name)
                verb = "link" if keep else "rename"
                self._record(
                    NameChange(target.folder, target.name, source.node, before), f"{verb} {source.path} to {target.path}"
                )

    def verify(self) -> None:
        """Compare the folder with what was recorded. Raises: AssertionError: they differ, so something was not recorded."""
        for pattern in self._native:
            for path in Path(self._root).rglob(pattern):
                self.spot(path)
        recorded = SimulatedDisk(self._nodes, self._names, self._contents).tree(KINDS["everything"])
        found = dict(_found(Path(self._root), ""))
        differing = sorted(path for path in recorded.keys() | found.keys() if recorded.get(path) != found.get(path))
        if differing:
            raise AssertionError(
                f"the folder {self.folder} is not what was recorded, at {', '.join(differing[:10])}: other processes, compiled code or "
                "open files from before the recording changed it. Files of compiled code are named with `native`"
            )


def _found(folder: Path, prefix: str) -> Iterator[tuple[str, bytes | Node]]:
    """The content of a folder as a `Tree`."""
    for path in folder.iterdir():
        name = prefix + path.name
        if path.is_symlink():
            yield name, Node(target=os.readlink(path))
        elif path.is_dir():
            yield name, Node(is_folder=True)
            yield from _found(path, f"{name}/")
        else:
            yield name, path.read_bytes() if path.is_file() else b""
