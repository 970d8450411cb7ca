"""Log files of bounded size: `x.log`, and the older ones `x.log.1`, `x.log.2`, …; written by processes, read across rotations."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final


@dataclass(frozen=True, slots=True)
class LogLimits:
    """max_bytes: size beyond which a new file is begun. keep: number of older files that are kept. check_every_s: seconds from one look at the size
    to the next."""

    max_bytes: int = 20 << 20
    keep: int = 3
    check_every_s: float = 1.0


def rotate(path: Path, limits: LogLimits, *, copy: bool = False) -> bool:
    """Make `path` the newest of its older files if it has outgrown `limits`. Returns whether it did.

    Args: copy: for a process that keeps `path` open, to append: the content is copied, then cut off. A line that is written in between is
    lost.
    """
    try:
        if path.stat().st_size <= limits.max_bytes:
            return False
    except FileNotFoundError:
        return False
    existing = 0
    while _older(path, existing + 1).exists():
        existing += 1
    for number in range(existing, 0, -1):
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


_dropping = threading.Lock()  # Protects the count below and those of outputs: each dropped line is counted and reported once.
_num_dropped = 0
_why_dropped = "they could not be made"


def dropped_lines() -> int:
    """Return how many lines of its log this process has dropped."""
    return _num_dropped


def why_dropped() -> str:
    """Return why this process has dropped the newest of these lines."""
    return _why_dropped


def count_dropped(number: int = 1) -> None:
    """Count lines of the log that this process could not make or write."""
    global _num_dropped  # noqa: PLW0603 - one count for all outputs and loggers of the process
    with _dropping:
        _num_dropped += number


class LossyOutput(io.RawIOBase):
    """The end of a file descriptor at which no write fails.

    What cannot be written (full disk, limit of the file size) is dropped and its lines are counted. One line with their number precedes
    what is written next.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unreported = 0

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Write all of `data`, or drop what is left of it. Returns the number of bytes in `data`."""
        content = bytes(data)
        with _dropping:
            number, self._unreported = self._unreported, 0
        if number:
            moment = datetime.now(UTC).isoformat()
            report = {"number": number, "event": "log_lines_dropped", "level": "warning", "timestamp": moment}
            # A line that was cut off by the failure may stand before it.
            if self._write(f"\n{json.dumps(report)}\n".encode()):
                with _dropping:
                    self._unreported += number
        if rest := self._write(content):
            lines = max(1, rest.count(b"\n"))
            count_dropped(lines)
            with _dropping:
                self._unreported += lines
        return len(content)

    def _write(self, content: bytes) -> bytes:
        """Write `content`; return what could not be written."""
        while content:
            try:
                content = content[os.write(self._descriptor, content) :]
            except OSError as error:
                global _why_dropped  # noqa: PLW0603 - as the count
                _why_dropped = error.strerror or str(error)
                return content
        return b""


def protect_output() -> None:
    """Let no `print`, no log line and no traceback of this process fail because standard output or error cannot be written.

    Both become `LossyOutput`: a full disk must not change what the program does.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = LossyOutput(descriptor)
        setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True))


_output: Final[list[Path]] = []
"""The file that standard output and error of this process go to, if `write_output_to` chose one."""
_redirecting = threading.Lock()  # Between a change of the file and a look at it, which would bring the old one back.


def write_output_to(path: Path, limits: LogLimits) -> None:
    """Send standard output and error of this process to the end of `path`, and begin a new file whenever it has outgrown `limits`.

    Loses no line: both descriptors are exchanged while the old file stays open to threads in the middle of a write. Child processes
    go on with the file that they inherited. While `path` cannot be opened, output stays where it was. Called again, it changes the file;
    the first limits count.
    """
    with _redirecting, suppress(OSError):  # the first look below tries again
        watched = bool(_output)
        _output[:] = [path]
        _redirect(path)
    if watched:
        return

    def watch() -> None:
        while True:
            time.sleep(limits.check_every_s)
            with _redirecting:
                keep_output(_output[0], limits)

    threading.Thread(target=watch, name="log-rotation", daemon=True).start()


def keep_output(path: Path, limits: LogLimits) -> None:
    """Look once at the file of standard output and error: begin a new one if it has outgrown `limits`, or is no longer there."""
    # A full disk or a folder that was removed must not end a service; the next look tries again.
    with suppress(OSError):
        if rotate(path, limits) or not is_output(path):
            _redirect(path)


def is_output(path: Path) -> bool:
    """Whether standard error of this process is the file `path`."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(2), path.stat())
    return False


def _redirect(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


class LogReader:
    """The complete lines of a log and its older files, each once, whatever is rotated between two calls."""

    def __init__(self, path: Path) -> None:
        """Args: path: of the newest file, which need not exist yet."""
        self._path = path
        self._positions: dict[int, int] = {}
        """By inode of each file of the last call, the newest last: bytes of it that were read."""
        self._rest = b""

    def lines(self) -> list[str]:
        """Return the lines completed since the last call; at the first call all, oldest first. An unfinished line waits."""
        with ExitStack() as exits:
            files = self._open(exits)
            positions, self._positions = self._positions, {}
            newest = next(reversed(files), None)
            # Only a copying rotation leaves the newest file in its place and puts an unknown one before it.
            copied = list(files)[-2] if len(files) > 1 and newest == next(reversed(positions), None) else None
            found = self._rest
            for inode, file in files.items():
                size, start = os.fstat(file.fileno()).st_size, positions.get(inode, 0)
                if inode == copied and inode not in positions and newest is not None:
                    if _beginning(files[newest]) == _beginning(file):
                        continue  # copied, and not cut off yet: read at the next call
                    start = positions.pop(newest)
                # A file smaller than what was read of it was cut off, or is a new one with the inode of a removed one.
                file.seek(start if start <= size else 0)
                found += file.read()
                self._positions[inode] = file.tell()
        complete = found.rfind(b"\n") + 1
        self._rest = found[complete:]
        return found[:complete].decode("utf-8", errors="replace").splitlines()

    def _open(self, exits: ExitStack) -> dict[int, BinaryIO]:
        """Open the log's files by inode, the newest last; opened again if a rotation came between."""
        while True:
            files: dict[int, BinaryIO] = {}
            with ExitStack() as opened, suppress(FileNotFoundError):  # removed while the folder was listed
                for path in self._names():
                    file = opened.enter_context(path.open("rb"))
                    files[os.fstat(file.fileno()).st_ino] = file
                if [path.stat().st_ino for path in self._names()] == list(files):
                    exits.push(opened.pop_all())
                    return files

    def _names(self) -> list[Path]:
        numbers = [path.name.removeprefix(f"{self._path.name}.") for path in self._path.parent.glob(f"{self._path.name}.*")]
        older = sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)
        return [*(_older(self._path, number) for number in older), *([self._path] if self._path.exists() else [])]


def _beginning(file: BinaryIO) -> bytes:
    """The first bytes of a log file, which differ from those of the next one by their time."""
    return os.pread(file.fileno(), 256, 0)
