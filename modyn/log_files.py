"""Log files of bounded size: `x.log`, and the older ones `x.log.1`, `x.log.2`, …; written by processes, read across rotations."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class LogLimits:
    """max_bytes: size beyond which a new file is begun. keep: number of older files that are kept. look_every_s: at the size."""

    max_bytes: int = 20 << 20
    keep: int = 3
    look_every_s: float = 1.0


def rotate(path: Path, limits: LogLimits, *, copy: bool = False) -> bool:
    """Make `path` the newest of its older files if it has outgrown `limits`. Returns whether it did.

    copy: for a process that keeps `path` open, to append: the content is copied, then cut off. A line that is written in between is lost.
    """
    try:
        if path.stat().st_size <= limits.max_bytes:
            return False
    except FileNotFoundError:
        return False
    existing = itertools.takewhile(lambda number: _older(path, number).exists(), itertools.count(1))
    for number in reversed(list(existing)):
        if number < limits.keep:
            _older(path, number).replace(_older(path, number + 1))
        else:
            _older(path, number).unlink()
    if limits.keep and not copy:
        path.replace(_older(path, 1))
    else:
        if limits.keep:
            fresh = path.with_name(f"{path.name}.copy")  # a new file each time, by which readers notice
            shutil.copyfile(path, fresh)
            fresh.replace(_older(path, 1))
        os.truncate(path, 0)
    return True


def write_output_to(path: Path, limits: LogLimits) -> None:
    """Send standard output and error of this process to the end of `path`, and begin a new file whenever it has outgrown `limits`.

    Loses no line: both descriptors are exchanged while the old file stays open to threads in the middle of a write. Child processes
    go on with the file that they inherited.
    """
    _redirect(path)

    def watch() -> None:
        while True:
            time.sleep(limits.look_every_s)
            # A full disk or a folder that was removed must not end a service; the next look tries again.
            with suppress(OSError):
                if rotate(path, limits) or not is_output(path):
                    _redirect(path)

    threading.Thread(target=watch, name="log-rotation", daemon=True).start()


def is_output(path: Path) -> bool:
    """Whether standard error of this process is the file `path`."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(2), path.stat())
    return False


def _redirect(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


class LogReader:
    """The complete lines of a log and its older files, each once, whatever rotates between two looks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._positions: dict[int, int] = {}
        """By inode of each file that was there at the last look: bytes of it that were read. The newest file stands last."""
        self._rest = b""

    def lines(self) -> list[str]:
        """Those that were completed since the last call; at the first one all, the oldest first. A line that is being written waits."""
        with ExitStack() as exits:
            files = {os.fstat(file.fileno()).st_ino: exits.enter_context(file) for file in self._open()}
            positions = self._positions
            inodes = list(files)
            if len(inodes) > 1 and inodes[-1] in positions and inodes[-2] not in positions:
                # The newest file was copied to the one before it, and cut off.
                positions[inodes[-2]] = positions.pop(inodes[-1])
            found = self._rest
            self._positions = {}
            for inode, file in files.items():
                file.seek(positions.get(inode, 0))
                found += file.read()
                self._positions[inode] = file.tell()
        complete = found.rfind(b"\n") + 1
        self._rest = found[complete:]
        return found[:complete].decode("utf-8", errors="replace").splitlines()

    def _open(self) -> list[BinaryIO]:
        """The oldest first. Opened from the newest on, so that one that is renamed meanwhile is met twice rather than not at all."""
        found: dict[int, BinaryIO] = {}
        for number in itertools.count():
            path = _older(self._path, number) if number else self._path
            try:
                file = path.open("rb")
            except FileNotFoundError:
                if number:
                    break
                continue  # the newest is about to be made
            if found.setdefault(os.fstat(file.fileno()).st_ino, file) is not file:
                file.close()
        return list(reversed(found.values()))
