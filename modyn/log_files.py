"""Log files of bounded size: `x.log`, and older files `x.log.1`, `x.log.2`, …, with a reader that follows rotations."""

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
    """Limits of a log. max_bytes: size beyond which a new file is started. keep: number of older files to keep. check_every_s: seconds between two
    checks of the size."""

    max_bytes: int = 20 << 20
    keep: int = 3
    check_every_s: float = 1.0


def rotate(path: Path, limits: LogLimits, *, copy: bool = False) -> bool:
    """Rename a log to `x.log.1` if the log exceeds `limits`. Returns whether the log was renamed.

    Args: copy: copy the content and truncate the file instead, for a process that keeps `path` open for appending. A line that is written between the
    copy and the truncation is lost.
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
            fresh = path.with_name(f"{path.name}.copy")  # Each copy has a new inode, by which readers detect a rotation.
            shutil.copyfile(path, fresh)
            fresh.replace(_older(path, 1))
        os.truncate(path, 0)
    return True


# Protects `_num_dropped` and the counts of outputs, so that each dropped line is counted and reported once.
_dropping = threading.Lock()
_num_dropped = 0
_why_dropped = "they could not be made"


def dropped_lines() -> int:
    """Return the number of log lines that this process has dropped."""
    return _num_dropped


def why_dropped() -> str:
    """Return the reason for the last dropped line of this process."""
    return _why_dropped


def count_dropped(number: int = 1) -> None:
    """Count log lines that this process could not format or write."""
    global _num_dropped  # noqa: PLW0603 - one count for all outputs and loggers of the process
    with _dropping:
        _num_dropped += number


class LossyOutput(io.RawIOBase):
    """A file-like output to a descriptor. Writes never fail.

    Lines that cannot be written (full disk, limit of the file size) are dropped and counted. The next write begins with a line that reports the
    number of dropped lines.
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
        """Write all of `data`, or drop the rest. Returns the number of bytes in `data`."""
        content = bytes(data)
        with _dropping:
            number, self._unreported = self._unreported, 0
        if number:
            moment = datetime.now(UTC).isoformat()
            report = {"number": number, "event": "log_lines_dropped", "level": "warning", "timestamp": moment}
            # The report starts on a new line, because the failure may have left an incomplete line.
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
        """Write `content`; return the part that could not be written."""
        while content:
            try:
                content = content[os.write(self._descriptor, content) :]
            except OSError as error:
                global _why_dropped  # noqa: PLW0603 - one reason for all outputs of the process
                _why_dropped = error.strerror or str(error)
                return content
        return b""


def protect_output() -> None:
    """Replace standard output and error by `LossyOutput`, so that a full disk does not make a `print`, a log line or a traceback fail."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = LossyOutput(descriptor)
        setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True))


_output: Final[list[Path]] = []
"""The file of this process's standard output and error, if `write_output_to` chose one."""
# Protects `_output`. Otherwise a check during a change of the file would redirect output to the old file.
_redirecting = threading.Lock()


def write_output_to(path: Path, limits: LogLimits) -> None:
    """Append standard output and error of this process to `path`, and start a new file when the file exceeds `limits`.

    No line is lost: the descriptors are replaced, and threads finish a running write in the old file. Child processes keep the file that they
    inherited. While `path` cannot be opened, output continues in the former file. A second call changes the file, but not the limits.
    """
    with _redirecting, suppress(OSError):  # The first check of the thread tries again.
        watched = bool(_output)
        _output[:] = [path]
        _redirect(path)
    if watched:
        return

    def watch() -> None:
        while True:
            time.sleep(limits.check_every_s)  # Nothing announces that a file grows. The daemon thread ends with the process.
            with _redirecting:
                keep_output(_output[0], limits)

    threading.Thread(target=watch, name="log-rotation", daemon=True).start()


def keep_output(path: Path, limits: LogLimits) -> None:
    """Check the file of standard output and error once: start a new file if the file exceeds `limits` or was removed."""
    # A full disk or a removed folder must not end a service; the next check tries again.
    with suppress(OSError):
        if rotate(path, limits) or not is_output(path):
            _redirect(path)


def is_output(path: Path) -> bool:
    """Return whether standard error of this process is the file `path`."""
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
    """Reads each complete line of a log and its older files once, even if files are rotated between two calls."""

    def __init__(self, path: Path) -> None:
        """Args: path: path of the newest file, which need not exist yet."""
        self._path = path
        self._positions: dict[int, int] = {}
        """Number of bytes that were read from each file until the last call, by inode, newest file last."""
        self._rest = b""

    def lines(self) -> list[str]:
        """Return the lines that were completed since the last call, oldest first; at the first call all lines. An incomplete line is returned
        later."""
        with ExitStack() as exits:
            files = self._open(exits)
            positions, self._positions = self._positions, {}
            newest = next(reversed(files), None)
            # If the newest file is still the same, and the file before it is new, a rotation has copied the newest file.
            copied = list(files)[-2] if len(files) > 1 and newest == next(reversed(positions), None) else None
            found = self._rest
            for inode, file in files.items():
                size, start = os.fstat(file.fileno()).st_size, positions.get(inode, 0)
                if inode == copied and inode not in positions and newest is not None:
                    if _beginning(files[newest]) == _beginning(file):
                        continue  # The file was copied but not yet truncated; the next call reads it.
                    start = positions.pop(newest)
                # If a file is smaller than its read part, it was truncated, or it is a new file with the inode of a removed file.
                file.seek(start if start <= size else 0)
                found += file.read()
                self._positions[inode] = file.tell()
        complete = found.rfind(b"\n") + 1
        self._rest = found[complete:]
        return found[:complete].decode("utf-8", errors="replace").splitlines()

    def _open(self, exits: ExitStack) -> dict[int, BinaryIO]:
        """Open the files of the log. The result has their inodes as keys, newest last. If a rotation happens meanwhile, the files are opened
        again."""
        while True:
            files: dict[int, BinaryIO] = {}
            with ExitStack() as opened, suppress(FileNotFoundError):  # a file was removed while the folder was listed
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
    """Return the first bytes of a log file. These bytes differ between files, because each line contains the time."""
    return os.pread(file.fileno(), 256, 0)
