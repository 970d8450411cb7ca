"""The shared state in the memory of this machine: a file in a folder, mapped by each process that has a job.

    FOLDER/NAMESPACE/state        version, checksum, mark of a change in progress; jobs; values. Processes lock this file
    FOLDER/NAMESPACE/DIGEST.keys  the sample keys of a job

The process that holds the lock marks the state, changes it, and removes the mark. If another process finds the mark, the first process was killed
during a change. In this case, or if the checksum or the numbers are wrong, the other process begins a new state. A process waits for the lock for at
most LOCK_S seconds.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import randbits, token_hex
from typing import Any, Final

import numpy as np

from modyn.cache.sharing.state import (
    ENTRY_BYTES,
    MOST_MEMBERS,
    STATE_VERSION,
    BatchReply,
    BatchRequest,
    KeySetId,
    Member,
    Membership,
    SharePlace,
    ValueEntries,
)
from modyn.cache.sharing.value_ring import HEADER, MEMBER, StructArray, ValueRing
from modyn.cache.tiers.memory_tier import wait_for_lock
from modyn.cache.tiers.tier import IDLE_S
from modyn.errors import ConflictError, UnavailableError

STATE: Final = "state"
_KEYS: Final = ".keys"
_MAGIC: Final = 0x6D6F64796E73 << 16 | STATE_VERSION
_GUARD: Final = np.dtype([("magic", np.int64), ("is_changing", np.int64), ("checksum", np.int64)])
_BEGIN: Final = _GUARD.itemsize + HEADER.itemsize + MOST_MEMBERS * MEMBER.itemsize
"""Offset of the values."""


class _MappedState:
    """A mapped file, which is read and changed only under its lock."""

    def __init__(self, file: int, num_bytes: int) -> None:
        self.file, self.num_bytes = file, num_bytes
        self.mapping = mmap.mmap(file, num_bytes)
        self.num_slots = (num_bytes - _BEGIN) // ENTRY_BYTES
        self.guard = self._array(_GUARD, 1, 0)[0]
        self._checked = self._array(np.dtype(np.uint8), _BEGIN - _GUARD.itemsize, _GUARD.itemsize)
        at = [_BEGIN, _BEGIN + 8 * self.num_slots, _BEGIN + 12 * self.num_slots]
        self.ring = ValueRing(
            self._array(HEADER, 1, _GUARD.itemsize),
            self._array(MEMBER, MOST_MEMBERS, _GUARD.itemsize + HEADER.itemsize),
            self._array(np.dtype(np.uint8), self.num_slots, at[2]),
            self._array(np.dtype(np.uint32), self.num_slots, at[1]),
            self._array(np.dtype(np.int64), self.num_slots, at[0]),
        )

    @property
    def is_sound(self) -> bool:
        """Whether the state is valid. False: a process was killed during a change, or another program wrote into the file."""
        if int(self.guard["magic"]) != _MAGIC or self.guard["is_changing"] or int(self.guard["checksum"]) != self._checksum():
            return False
        return self.ring.is_consistent

    @contextmanager
    def changed(self) -> Iterator[ValueRing]:
        """Change the state within the block. An interrupted change leaves the mark."""
        self.guard["is_changing"] = 1
        try:
            yield self.ring
        except ConflictError:
            self._complete()
            raise
        self._complete()

    def _complete(self) -> None:
        self.guard["magic"], self.guard["checksum"] = _MAGIC, self._checksum()
        # The mark is removed last, so that the state of a process that was killed before is refused.
        self.guard["is_changing"] = 0

    def _checksum(self) -> int:
        return zlib.crc32(self._checked.tobytes())

    def _array(self, dtype: np.dtype[Any], count: int, offset: int) -> StructArray:
        return np.frombuffer(self.mapping, dtype, count, offset)


class MemoryState:
    """A `SharedState` in a folder of a file system in memory, such as /dev/shm."""

    def __init__(self, place: SharePlace, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Args: folder: contains only the states of one installation; made when needed. clock: seconds, equal in all processes."""
        self.place = place
        self._folder = folder
        self._path = folder / place.namespace.hex()
        self._clock = clock
        self._mapped: _MappedState | None = None

    def join(self, key_set: KeySetId, num_samples: int, is_barred: bool, before: Membership | None) -> Membership:
        """See `SharedState.join`."""
        wanted = self.place.num_slots(num_samples)
        with self._errors():
            self._remove_idle()
            while True:
                with self._locked(wanted) as mapped:
                    if mapped.num_slots * 2 < wanted:
                        # A job with far fewer samples began the state, or the file is a remnant of another state.
                        os.unlink(self._path / STATE)
                        continue
                    is_idle = os.fstat(mapped.file).st_mtime < time.time() - IDLE_S
                    os.utime(mapped.file)
                    with mapped.changed() if mapped.is_sound else self._begin(mapped) as ring:
                        if is_idle:
                            ring.begin(_new_number(), self.place.capacity)
                        lease_ms = int(1000 * self.place.lease_s)
                        token = before.token if before and before.incarnation == ring.incarnation else 0
                        return ring.join(_new_number(), token, key_set, is_barred, self._now_ms(), lease_ms)

    def exchange(self, member: Membership, request: BatchRequest) -> BatchReply | None:
        """See `SharedState.exchange`."""
        with self._locked_if_joined(member) as mapped:
            if mapped is None:
                return None
            with mapped.changed() as ring:
                return ring.exchange(member, request, self._now_ms(), int(1000 * self.place.lease_s))

    def leave(self, member: Membership) -> None:
        """See `SharedState.leave`."""
        with self._locked_if_joined(member) as mapped:
            if mapped is not None:
                with mapped.changed() as ring:
                    ring.leave(member)

    def members(self, member: Membership) -> tuple[int, list[Member]] | None:
        """See `SharedState.members`."""
        with self._locked_if_joined(member) as mapped:
            return mapped.ring.members() if mapped is not None else None

    def entries(self, member: Membership, start: int, stop: int) -> ValueEntries | None:
        """See `SharedState.entries`."""
        with self._locked_if_joined(member) as mapped:
            return mapped.ring.entries(start, stop) if mapped is not None else None

    def put_key_set(self, key_set: KeySetId, packed: bytes) -> None:
        """See `SharedState.put_key_set`."""
        with self._errors():
            path = self._path / f"{key_set.digest.hex()}{_KEYS}"
            with suppress(FileNotFoundError):
                if path.stat().st_size == key_set.num_bytes:
                    # The new modification time shows other jobs that the file is not idle.
                    os.utime(path)
                    return
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
            # The file gets its name after its content, so that readers see a whole set or none.
            new = path.with_name(f"{token_hex(8)}.new")
            new.write_bytes(packed)
            new.rename(path)

    def key_set(self, key_set: KeySetId) -> bytes | None:
        """See `SharedState.key_set`."""
        with self._errors(), suppress(FileNotFoundError):
            return (self._path / f"{key_set.digest.hex()}{_KEYS}").read_bytes()
        return None

    def reset(self) -> None:
        """See `SharedState.reset`. Each access to a damaged state detects the damage. Only a new state is usable again."""
        with self._errors(), suppress(FileNotFoundError):
            os.unlink(self._path / STATE)

    def close(self) -> None:
        """See `SharedState.close`."""
        mapped, self._mapped = self._mapped, None
        if mapped:
            os.close(mapped.file)  # The mapping itself is freed with its last array.

    @contextmanager
    def _locked_if_joined(self, member: Membership) -> Iterator[_MappedState | None]:
        """Yield the state under its lock; None: the state is not the one that the job joined."""
        with self._errors():
            if not (self._path / STATE).exists():
                yield None
                return
            with self._locked(member.num_slots) as mapped:
                if mapped.is_sound and mapped.ring.incarnation == member.incarnation:
                    os.utime(mapped.file)
                    yield mapped
                else:
                    yield None

    @contextmanager
    def _begin(self, mapped: _MappedState) -> Iterator[ValueRing]:
        """Replace a damaged or empty state by a new state."""
        with mapped.changed() as ring:
            ring.begin(_new_number(), self.place.capacity)
            yield ring

    @contextmanager
    def _locked(self, num_slots: int) -> Iterator[_MappedState]:
        """Hold the lock of the file, and make the file if it is missing. Raises OSError: another process holds the lock for LOCK_S."""
        while True:
            mapped = self._open(num_slots)
            wait_for_lock(mapped.file)
            try:
                status = os.fstat(mapped.file)
                # Otherwise the file was removed or truncated. Memory that is mapped beyond the end of a file must not be touched.
                if status.st_nlink and status.st_size == mapped.num_bytes:
                    yield mapped
                    return
            finally:
                fcntl.flock(mapped.file, fcntl.LOCK_UN)
            # The file was removed or truncated. Open the current file; a truncated file is removed first, so that a new one is made.
            self.close()
            if status.st_nlink:
                with suppress(FileNotFoundError):
                    os.unlink(self._path / STATE)

    def _open(self, num_slots: int) -> _MappedState:
        if self._mapped is None:
            path = self._path / STATE
            while True:
                try:
                    file = os.open(path, os.O_RDWR)
                    break
                except FileNotFoundError:
                    self._make(path, num_slots)
            num_bytes = os.fstat(file).st_size
            if num_bytes <= _BEGIN or (num_bytes - _BEGIN) % ENTRY_BYTES:
                os.close(file)
                os.unlink(path)
                return self._open(num_slots)
            self._mapped = _MappedState(file, num_bytes)
        return self._mapped

    def _make(self, path: Path, num_slots: int) -> None:
        """Make an empty file. The file becomes visible when all of its memory is allocated, because access to a mapping without memory would end the
        process.
        """
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_name(f"{token_hex(8)}.new")
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(file, 0, _BEGIN + ENTRY_BYTES * num_slots)
            with suppress(FileExistsError):
                # Unlike a rename, a link does not replace the file that another process made in the meantime.
                os.link(new, path)
        finally:
            os.close(file)
            os.unlink(new)

    def _remove_idle(self) -> None:
        """Remove other namespaces, and files of this namespace, that no process has used for IDLE_S."""
        long_ago = time.time() - IDLE_S
        for folder in self._folder.iterdir():
            with suppress(FileNotFoundError):  # Other processes may remove files at the same time.
                files = list(folder.iterdir())
                if folder == self._path:
                    for file in files:
                        if file.name != STATE and file.stat().st_mtime < long_ago:
                            file.unlink()
                elif max(path.stat().st_mtime for path in (folder, *files)) < long_ago:
                    shutil.rmtree(folder, ignore_errors=True)

    def _now_ms(self) -> int:
        return int(1000 * self._clock())

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(f"cannot use {self._path} for a shared cache: {error.strerror or error}") from error


def _new_number() -> int:
    return randbits(62) + 1
