"""Effects of power losses on files: records the file operations of code in a folder, and creates the possible states of the disk afterwards.

    with recorded_disk(folder) as disk:
        store.put("a")
        disk.note("a")  # acknowledged: what must hold from here on
    for loss in disk.losses():
        with loss.restored():
            assert set(loss.notes) <= set(Store(folder).names())

What a disk may lose is said in `simulated_disk.py`. `losses` makes seven states for each moment of the recording, `random_loss` any.

Recorded are Python's own ways to change files: those in `os`, and `open`. What compiled code and other processes write is not seen, and fails the
recording: at its end, what was recorded must make the folder as it is, byte for byte. Files that compiled code may write are named by
patterns; what it wrote is recorded when Python next syncs, links, moves or opens them.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.support.disk_recording import DiskRecording
from tests.support.simulated_disk import Grow

_CHANGES_FILES: Final = frozenset("wax+")
"""Letters in the mode of a file that may be written to."""


class _RecordedFile(io.FileIO):
    """A file of the recorded folder, as `open` opens it below its buffer."""

    def __init__(
        self, disk: DiskRecording, name: Any, mode: str, closefd: bool, opener: Callable[[Any, int], int] | None
    ) -> None:
        self._disk = disk
        super().__init__(name, mode, closefd, opener or (lambda path, flags: os.open(path, flags, 0o666)))

    def write(self, content: Any, /) -> int:
        """Write, and record."""
        disk = self._disk
        return disk.written(self.fileno(), lambda: super(_RecordedFile, self).write(content), [content])

    def truncate(self, size: int | None = None, /) -> int:
        """Cut or lengthen, and record."""
        size = self.tell() if size is None else size
        os.ftruncate(self.fileno(), size)
        return size


class _Hooks:
    """What takes the place of each function that changes files: it records, and calls the function."""

    def __init__(self, disk: DiskRecording) -> None:
        self._disk = disk
        self._os: Any = type(
            "Real", (), {name: staticmethod(getattr(os, name)) for name in dir(os) if callable(getattr(os, name))}
        )
        self._open = builtins.open

    def by_place(self) -> dict[tuple[Any, str], Callable[..., Any]]:
        """The hooks by the module and the name of the function that they replace."""
        in_os: dict[str, Callable[..., Any]] = {
            "open": self._open_descriptor, "write": self._write, "pwrite": self._pwrite, "writev": self._writev, "pwritev": self._pwritev,
            "truncate": self._truncate, "ftruncate": self._truncate, "posix_fallocate": self._allocate,
            "fsync": self._sync("fsync"), "fdatasync": self._sync("fdatasync"), "mkdir": self._mkdir, "symlink": self._symlink,
            "rename": self._move("rename"), "replace": self._move("replace"), "link": self._move("link", keep=True),
            "unlink": self._remove("unlink"), "remove": self._remove("remove"), "rmdir": self._remove("rmdir"),
            "sendfile": self._copy("sendfile", 0), "copy_file_range": self._copy("copy_file_range", 1),
        }  # fmt: skip
        opens = {(module, "open"): self._open_file for module in (io, builtins)}
        return {**{(os, name): hook for name, hook in in_os.items()}, **opens}

    def _open_descriptor(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return self._disk.opened(path, flags, dir_fd, lambda: self._os.open(path, flags, mode, dir_fd=dir_fd))

    def _open_file(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[Any, int], int] | None = None,
    ) -> Any:
        disk, changes = self._disk, not _CHANGES_FILES.isdisjoint(mode)
        # An opener may open another file than `file`.
        if not changes or not (opener or (disk.node_of(file) if isinstance(file, int) else disk.spot(file))):
            return self._open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = _RecordedFile(disk, file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffer = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)

    def _write(self, descriptor: int, content: Any) -> int:
        return self._disk.written(descriptor, lambda: self._os.write(descriptor, content), [content])

    def _pwrite(self, descriptor: int, content: Any, offset: int) -> int:
        return self._disk.written(descriptor, lambda: self._os.pwrite(descriptor, content, offset), [content], offset)

    def _writev(self, descriptor: int, buffers: Sequence[Any]) -> int:
        return self._disk.written(descriptor, lambda: self._os.writev(descriptor, buffers), buffers)

    def _pwritev(self, descriptor: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        return self._disk.written(descriptor, lambda: self._os.pwritev(descriptor, buffers, offset, flags), buffers, offset)

    def _move(self, name: str, *, keep: bool = False) -> Callable[..., None]:
        disk = self._disk

        def moved(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **options: Any) -> None:
            call = partial(getattr(self._os, name), src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **options)
            with disk.lock:
                disk.moved(disk.spot(src, src_dir_fd), disk.spot(dst, dst_dir_fd), call, keep=keep)

        return moved

    def _remove(self, name: str) -> Callable[..., None]:
        def removed(path: Any, *, dir_fd: int | None = None) -> None:
            self._disk.removed(path, dir_fd, lambda: getattr(self._os, name)(path, dir_fd=dir_fd))

        return removed

    def _sync(self, name: str) -> Callable[[Any], None]:
        return lambda fd: self._disk.synced(fd, getattr(self._os, name))

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._disk.made(path, dir_fd, lambda: self._os.mkdir(path, mode, dir_fd=dir_fd))

    def _symlink(self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        call = partial(self._os.symlink, src, dst, target_is_directory, dir_fd=dir_fd)
        self._disk.made(dst, dir_fd, call, os.fsdecode(src))

    def _truncate(self, path: Any, length: int) -> None:
        self._disk.sized(path, length, lambda: self._os.truncate(path, length))

    def _allocate(self, descriptor: int, offset: int, length: int) -> None:
        self._disk.sized(descriptor, offset + length, lambda: self._os.posix_fallocate(descriptor, offset, length), Grow)

    def _copy(self, name: str, target: int) -> Callable[..., int]:
        """The hook of a copy by the kernel. Args: target: position of the descriptor that is written to among the arguments."""

        def copied(*arguments: Any, **options: Any) -> int:
            if self._disk.node_of(arguments[target]) is None:
                return int(getattr(self._os, name)(*arguments, **options))
            raise OSError(errno.ENOSYS, "the kernel's copies are not recorded")  # upon which shutil copies by itself

        return copied


@contextmanager
def recorded_disk(folder: Path, native: Sequence[str] = ()) -> Iterator[DiskRecording]:
    """Record what this process does to the files of `folder` while the block runs. What is in it before is durable.

    Args: native: patterns of names of files that compiled code may write.
    Raises: AssertionError: something else changed the folder, so that the recording is not complete.
    """
    disk = DiskRecording(folder, native)
    hooks = _Hooks(disk).by_place()
    real = {place: getattr(*place) for place in hooks}
    try:
        for (owner, name), hook in hooks.items():
            setattr(owner, name, hook)
        yield disk
    finally:
        for (owner, name), function in real.items():
            setattr(owner, name, function)
    disk.verify()
