"""Proof that a reader sees the files that storage sees: the same kernel, the same nonce, and the same data files by device and inode.

A path may lead to another file in another container, on another machine or on another mount. Therefore storage names, in addition to the paths, its
kernel's boot id, a nonce in the dataset's folder that only storage's user can read, and device and inode of a few data files. On one kernel, device
and inode identify a file.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from modyn._core import PathTable
from modyn.atomic_write import TEMPORARY_SUFFIX
from modyn.errors import UnavailableError

NONCE = "nonce"
"""Name of the file with the nonce."""

_FILES = 16
"""Largest number of data files that are compared."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """The identity of a file on one machine: its path, its device and its inode."""

    path: bytes
    device: int
    inode: int

    @staticmethod
    def of(path: str) -> FileIdentity:
        """Return the identity of the file `path` on this machine. Raises OSError if there is no such file."""
        status = os.stat(path)
        return FileIdentity(os.fsencode(path), status.st_dev, status.st_ino)


@dataclass(frozen=True, slots=True)
class ShortCutOffer:
    """Storage's answer to a reader that asks for local reads. refused: reason why local reads are refused; empty: local reads are allowed if the
    reader finds all other values on its machine.
    """

    refused: str = ""
    folder: bytes = b""
    nonce: bytes = b""
    kernel: str = ""
    files: tuple[FileIdentity, ...] = ()

    def why_not(self) -> str | None:
        """Return why this process must not read the dataset by itself; None: the process sees the same files as storage."""
        if self.refused:
            return self.refused
        if not self.kernel or self.kernel != _kernel():
            return "storage runs on another machine"
        folder = os.fsdecode(self.folder)
        try:
            nonce = (Path(folder) / NONCE).read_bytes()
        except OSError as error:
            return f"{folder}/{NONCE}, which storage wrote, cannot be read here: {error.strerror}"
        if nonce != self.nonce:
            return f"{folder} here is not the folder in which storage wrote its nonce"
        return next(filter(None, map(_difference, self.files)), None)


class Proof:
    """Makes offers for one dataset in storage, with a new nonce at each start of storage."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: folder of the dataset's index, in which the nonce is written."""
        self._folder = folder
        self._nonce = secrets.token_hex(32).encode()
        self._lock = threading.Lock()
        """Lets one thread at a time write the nonce."""

    def offer(self, base_path: str, paths: PathTable) -> ShortCutOffer:
        """Return the offer of a dataset with these files below `base_path`. Raises UnavailableError if the nonce cannot be written.

        Args: paths: full path by file id.
        """
        try:
            self._place_nonce()
        except OSError as error:
            raise UnavailableError(f"cannot write {self._folder / NONCE}: {error.strerror}; make its folder writable") from error
        files = tuple(_present([base_path, *(paths[file_id] for file_id in some_files(len(paths)))]))
        if not files:
            return ShortCutOffer(f"the dataset's folder {base_path} cannot be read by storage itself")
        return ShortCutOffer("", os.fsencode(self._folder.absolute()), self._nonce, _kernel(), files)

    def _place_nonce(self) -> None:
        path = self._folder / NONCE
        with self._lock:
            with suppress(FileNotFoundError):
                if path.read_bytes() == self._nonce:
                    return
            # The nonce is written to a temporary file that is then renamed, so that a reader never reads an incomplete nonce.
            temporary = path.with_name(f"{NONCE}{TEMPORARY_SUFFIX}")
            temporary.unlink(missing_ok=True)
            with open(temporary, "xb", opener=_private) as file:
                file.write(self._nonce)
            temporary.replace(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _kernel() -> str:
    """Return the boot id of the kernel; empty: the id is unknown. All containers of one machine have the same id. Other machines, including virtual
    machines, have other ids.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def some_files(count: int) -> list[int]:
    """Return ids of some of `count` files: the first, the last, and a random choice of the others."""
    # The choice is random, so that a later offer may reveal a difference that earlier offers missed.
    return list(range(count)) if count <= _FILES else [0, count - 1, *random.sample(range(1, count - 1), _FILES - 2)]


def _present(paths: list[str]) -> Iterator[FileIdentity]:
    for path in paths:
        with suppress(OSError):  # A file that was removed after it was indexed is left out.
            yield FileIdentity.of(path)


def _difference(file: FileIdentity) -> str | None:
    path = os.fsdecode(file.path)
    try:
        if FileIdentity.of(path) != file:
            return f"{path} is another file here than where storage runs"
        if not os.access(path, os.R_OK):
            return f"{path} may not be read here"
    except OSError as error:
        return f"{path} cannot be found here: {error.strerror}"
    return None
