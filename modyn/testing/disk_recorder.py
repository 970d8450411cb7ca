"""What power losses leave of files: records what code does to the files of a folder, and makes the states in which a disk may be found after it.

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

from modyn.testing.disk_recording import DiskRecording
from modyn.testing.simulated_disk import Grow

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


def _hooks(disk: DiskRecording) -> dict[tuple[Any, str], Callable[..., Any]]:
    """What takes the place of each function that changes files, by module and name."""
    real: Any = type("Real", (), {name: staticmethod(getattr(os, name)) for name in dir(os) if callable(getattr(os, name))})
    real_open = builtins.open

    def open_descriptor(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return disk.opened(path, flags, dir_fd, lambda: real.open(path, flags, mode, dir_fd=dir_fd))

    def open_file(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[Any, int], int] | None = None,
    ) -> Any:
        changes = not _CHANGES_FILES.isdisjoint(mode)
        # An opener may open another file than `file`.
        if not changes or not (opener or (disk.node_of(file) if isinstance(file, int) else disk.spot(file))):
            return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = _RecordedFile(disk, file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        buffer = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)

    def write(descriptor: int, content: Any) -> int:
        return disk.written(descriptor, lambda: real.write(descriptor, content), [content])

    def pwrite(descriptor: int, content: Any, offset: int) -> int:
        return disk.written(descriptor, lambda: real.pwrite(descriptor, content, offset), [content], offset)

    def writev(descriptor: int, buffers: Sequence[Any]) -> int:
        return disk.written(descriptor, lambda: real.writev(descriptor, buffers), buffers)

    def pwritev(descriptor: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        return disk.written(descriptor, lambda: real.pwritev(descriptor, buffers, offset, flags), buffers, offset)

    def move(name: str, keep: bool) -> Callable[..., None]:
        def moved(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **options: Any) -> None:
            call = partial(getattr(real, name), src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **options)
            with disk.lock:
                disk.moved(disk.spot(src, src_dir_fd), disk.spot(dst, dst_dir_fd), call, keep=keep)

        return moved

    def remove(name: str) -> Callable[..., None]:
        def removed(path: Any, *, dir_fd: int | None = None) -> None:
            disk.removed(path, dir_fd, lambda: getattr(real, name)(path, dir_fd=dir_fd))

        return removed

    def sync(name: str) -> Callable[[Any], None]:
        return lambda fd: disk.synced(fd, getattr(real, name))

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        disk.made(path, dir_fd, lambda: real.mkdir(path, mode, dir_fd=dir_fd))

    def symlink(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        disk.made(dst, dir_fd, lambda: real.symlink(src, dst, target_is_directory, dir_fd=dir_fd), os.fsdecode(src))

    def truncate(path: Any, length: int) -> None:
        disk.sized(path, length, lambda: real.truncate(path, length))

    def posix_fallocate(descriptor: int, offset: int, length: int) -> None:
        disk.sized(descriptor, offset + length, lambda: real.posix_fallocate(descriptor, offset, length), Grow)

    def copied_by_kernel(name: str, target: int) -> Callable[..., int]:
        def copy(*arguments: Any, **options: Any) -> int:
            if disk.node_of(arguments[target]) is None:
                return int(getattr(real, name)(*arguments, **options))
            raise OSError(errno.ENOSYS, "the kernel's copies are not recorded")  # upon which shutil copies by itself

        return copy

    in_os: dict[str, Callable[..., Any]] = {
        "open": open_descriptor, "write": write, "pwrite": pwrite, "writev": writev, "pwritev": pwritev,
        "truncate": truncate, "ftruncate": truncate, "posix_fallocate": posix_fallocate,
        "fsync": sync("fsync"), "fdatasync": sync("fdatasync"), "mkdir": mkdir, "symlink": symlink,
        "rename": move("rename", False), "replace": move("replace", False), "link": move("link", True),
        "unlink": remove("unlink"), "remove": remove("remove"), "rmdir": remove("rmdir"),
        "sendfile": copied_by_kernel("sendfile", 0), "copy_file_range": copied_by_kernel("copy_file_range", 1),
    }  # fmt: skip
    return {**{(os, name): hook for name, hook in in_os.items()}, (io, "open"): open_file, (builtins, "open"): open_file}


@contextmanager
def recorded_disk(folder: Path, native: Sequence[str] = ()) -> Iterator[DiskRecording]:
    """Record what this process does to the files of `folder` while the block runs. What is in it before is durable.

    Args: native: patterns of names of files that compiled code may write.
    Raises: AssertionError: something else changed the folder, so that the recording is not complete.
    """
    disk = DiskRecording(folder, native)
    hooks = _hooks(disk)
    real = {place: getattr(*place) for place in hooks}
    try:
        for (owner, name), hook in hooks.items():
            setattr(owner, name, hook)
        yield disk
    finally:
        for (owner, name), function in real.items():
            setattr(owner, name, function)
    disk.verify()
