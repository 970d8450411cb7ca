"""A tier in the shared memory of this machine, for all processes of the machine. Each sample is a file in /dev/shm, a file system in memory.

    FOLDER/NAME/budget             the budget of the tier; a process locks this file while it names or drops samples
    FOLDER/NAME/evictions          number and bytes of the evicted samples
    FOLDER/NAME/NAMESPACE/account  bytes and number of the samples of the namespace, and a mark of a change in progress
    FOLDER/NAME/NAMESPACE/KEY      the buffer of a sample

The kernel finds, allocates and frees the memory. Readers take no lock. A process writes a file without the lock, and names the complete file under
the lock. A process that has opened a file can read the file even after it is dropped. A process that is killed during a change of a namespace leaves
the account marked dirty, and the next process with the lock counts the files. Nothing is synced to a disk, because samples need not survive a restart
of the machine.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple

import numpy as np

from modyn.cache.tiers.sample_files import name_file, read_files, size_of, write_unnamed
from modyn.cache.tiers.tier import (
    IDLE_S,
    IN_USE_S,
    Buffer,
    StoredTier,
    TierCounts,
    TierPlace,
    TierUsage,
    WritableBuffer,
    parts_of,
)
from modyn.errors import ConfigError, UnavailableError
from modyn.records import BoolArray, Int64Array
from modyn.rpc.logs import get_logger

LOCK_S: Final = 0.1
"""Longest wait for a lock in seconds. The wait is bounded, so that a stopped process that holds a lock does not stop other processes."""
TOGETHER: Final = 64
"""Number of files that are open at once and are read into one buffer."""
_PAUSE_S: Final = 0.001
"""Seconds between two attempts to take a lock."""
_GONE: Final = ".gone-"
"""Mark in the name of a folder that is being removed."""
LOCK: Final = "budget"
ACCOUNT: Final = "account"
PAGE_BYTES: Final = 4096
"""Size of a page. A file takes whole pages."""
KEPT_FREE_BYTES: Final = 64 << 20
"""Bytes of the folder's file system that stay free, but at most a quarter of its size."""
FILE_BYTES: Final = 1024
"""Bytes that the kernel uses for a file in addition to its content."""
_ACCOUNT: Final = struct.Struct("<QQ?")
"""Bytes, samples, and whether the account is clean."""
_BUDGET: Final = struct.Struct("<Q")
EVICTIONS: Final = "evictions"
"""File with the counts of evictions, next to the namespaces, so that the counts stay when namespaces are removed."""
_EVICTIONS: Final = struct.Struct("<QQ")


@dataclass(slots=True)
class _Account:
    """Size of a namespace."""

    used_bytes: int = 0
    num_samples: int = 0


class _Evictions(NamedTuple):
    """Counts of evictions since the tier was made or cleared."""

    num_samples: int = 0
    num_bytes: int = 0
    """Bytes of the evicted samples."""


class MemoryTier:
    """A `CacheTier` in a folder, usually in this machine's shared memory."""

    def __init__(self, place: TierPlace, folder: Path) -> None:
        """Args: folder: folder of all tiers of one installation, in SHARED_MEMORY or on another fast file system; made when needed."""
        self._place = place
        self._tier = folder / place.name
        self._samples = self._tier / place.namespace.hex()
        self._prefix = f"{self._samples}/"
        self._counts = TierCounts()
        self._log = get_logger("cache").bind(tier=place.name)
        self._has_failed = False
        """Whether a refusal was logged. Only the first refusal is logged."""

    def charge(self, num_bytes: int) -> int:
        """See `CacheTier.charge`."""
        return num_bytes + -num_bytes % PAGE_BYTES + FILE_BYTES

    def open(self) -> None:
        """See `CacheTier.open`. Also raises UnavailableError: the folder cannot be written to."""
        try:
            with self._locked() as lock:
                found = os.statvfs(self._tier)
                if (total := found.f_frsize * found.f_blocks) < self._place.budget_bytes:
                    raise ConfigError(
                        f"the tier '{self._place.name}' has a budget of {self._place.budget_bytes:,} bytes, but {self._tier} can hold "
                        f"{total:,}: give less, or let the machine or container have more shared memory"
                    )
                budget = self._claim(lock, divides_again=True)
        except BlockingIOError:
            return  # Another process holds the lock. `put` tries again, and keeps nothing if budgets differ.
        except OSError as error:
            raise UnavailableError(
                f"cannot use {self._tier} for the cache: {error.strerror or error}; make it writable, or switch the memory tier off"
            ) from error
        if budget != self._place.budget_bytes:
            raise self._place.conflict(str(self._tier), budget)

    def get(self, keys: Int64Array) -> list[Buffer | None]:
        """See `CacheTier.get`."""
        paths = list(map(self._path, keys.tolist()))
        buffers: list[Buffer | None] = []
        for start in range(0, len(paths), TOGETHER):
            buffers += read_files(paths[start : start + TOGETHER])
        # The new modification time shows other processes that the namespace is not idle.
        with suppress(OSError):  # The namespace may not exist.
            os.utime(self._samples / ACCOUNT)
        self._counts.count_hits(buffers)
        return buffers

    def holds(self, keys: Int64Array) -> BoolArray:
        """See `CacheTier.holds`."""
        return np.fromiter((os.access(self._path(key), os.F_OK) for key in keys.tolist()), np.bool_, len(keys))

    def put(self, keys: Int64Array, buffers: Sequence[WritableBuffer]) -> BoolArray:
        """See `CacheTier.put`."""
        kept = np.zeros(len(keys), np.bool_)
        with self._log_errors():
            for start in range(0, len(keys), TOGETHER):
                some = slice(start, start + TOGETHER)
                with ExitStack() as files:
                    written = self._write_files(keys[some], buffers[some], files)
                    if any(file is not None for file in written):  # Otherwise the tier is full, and no lock is needed.
                        self._put(keys[some], buffers[some], written, kept[some])
        self._counts.count_not_kept(kept)
        return kept

    def drop(self, keys: Int64Array) -> bool:
        """See `CacheTier.drop`."""
        is_done = False
        with self._log_errors(), self._locked():
            with self._changed(self._accounts()) as account:
                before = replace(account)
                for key in keys.tolist():
                    path = self._path(key)
                    if (size := size_of(path)) is not None:
                        os.unlink(path)
                        account.used_bytes -= self.charge(size)
                        account.num_samples -= 1
            _count_evictions(self._tier, before.num_samples - account.num_samples, before.used_bytes - account.used_bytes)
            is_done = True
        return is_done  # noqa: RET504  (`_log_errors` may have ended the block)

    def take_not_asked(self) -> int:
        """See `CacheTier.take_not_asked`."""
        return 0

    def usage(self) -> TierUsage:
        """See `CacheTier.usage`. A namespace that another process is changing counts with its size before the change."""
        accounts = {path: _read_account(path)[0] for path in self._namespaces()}
        used_bytes = sum(account.used_bytes for account in accounts.values())
        return self._counts.usage(True, used_bytes, accounts.get(self._samples, _Account()).num_samples)

    def stored(self) -> StoredTier | None:
        """See `CacheTier.stored`. The method takes no lock, so no process waits. A namespace that another process is changing counts with its size
        before the change."""
        try:
            content = (self._tier / LOCK).read_bytes()
        except OSError:
            return None
        if len(content) != _BUDGET.size:
            return None
        held = [account for path in self._namespaces() if (account := _read_account(path)[0]).num_samples]
        used_bytes, num_samples = (
            sum(counts) for counts in zip((0, 0), *((a.used_bytes, a.num_samples) for a in held), strict=True)
        )
        budget: int = _BUDGET.unpack(content)[0]
        return StoredTier(self._place.name, budget, used_bytes, num_samples, len(held), *_read_evictions(self._tier))

    def clear(self) -> None:
        """See `CacheTier.clear`. Removes the folder."""
        with self._log_errors():
            self.remove()

    def remove(self) -> None:
        """Remove the tier. Raises OSError: another process holds the lock for too long, or the folder cannot be changed."""
        with self._locked():
            # Rename the folder first: a process that starts now makes a new folder with its own lock.
            os.rename(self._tier, self._tier.with_name(f"{self._tier.name}{_GONE}{token_hex(4)}"))
            for gone in self._tier.parent.glob(f"{self._tier.name}{_GONE}*"):  # Includes folders that a killed process left.
                shutil.rmtree(gone, ignore_errors=True)
            with suppress(OSError):  # The folder may contain other tiers.
                self._tier.parent.rmdir()

    def close(self) -> None:
        """See `CacheTier.close`. Nothing is open between calls."""

    def _write_files(self, keys: Int64Array, buffers: Sequence[WritableBuffer], files: ExitStack) -> list[int | None]:
        """Write each sample that seems to fit to a file without a name. `files` closes these files. The method takes no lock, so processes can write
        at once."""
        if not self._samples.is_dir():  # It is the first sample, or the tier was cleared.
            with self._locked():
                self._samples.mkdir(mode=0o700, exist_ok=True)
        long_ago = time.time() - IDLE_S
        # Idle namespaces do not count, because `_put` drops them if it needs their room.
        in_use = [path for path in self._namespaces() if path == self._samples or _last_use(path) > long_ago]
        room = self._room({path: _read_account(path)[0] for path in in_use})
        written: list[int | None] = [None] * len(keys)
        sizes: dict[int, int | None] = {}
        with self._log_errors():  # Files that were written before the error are kept.
            for row, (key, buffer) in enumerate(zip(keys.tolist(), buffers, strict=True)):
                more = self._more(sizes.get(key, size_of(self._path(key))), buffer)
                if more <= room:
                    written[row] = file = write_unnamed(str(self._samples), parts_of(buffer))
                    files.callback(os.close, file)
                    room, sizes[key] = room - more, len(buffer)
        return written

    def _put(self, keys: Int64Array, buffers: Sequence[WritableBuffer], files: Sequence[int | None], kept: BoolArray) -> None:
        """Name the files for which there is room. Set `kept` for each named file, also if a later file causes an error."""
        with self._locked() as lock:
            budget = self._claim(lock, divides_again=False)
            if budget != self._place.budget_bytes:
                raise OSError(self._place.conflict(str(self._tier), budget).message)
            accounts = self._accounts()
            # The written files already use memory, which `_room` must not subtract again.
            room = self._room(accounts, sum(len(buffer) for buffer, file in zip(buffers, files, strict=True) if file is not None))
            has_looked = False
            with self._changed(accounts) as account:
                for row, (key, buffer, file) in enumerate(zip(keys.tolist(), buffers, files, strict=True)):
                    if file is None:
                        continue
                    size = size_of(self._path(key))
                    more = self._more(size, buffer)
                    if more > room and not has_looked:
                        room, has_looked = room + self._drop_idle(accounts), True
                    if more <= room:
                        name_file(file, self._path(key))
                        room -= more
                        account.used_bytes += more
                        account.num_samples += size is None
                        kept[row] = True

    def _room(self, accounts: Mapping[Path, _Account], written_bytes: int = 0) -> int:
        """Return the number of bytes that may still be kept. Args: written_bytes: bytes of the files that were written and have no name yet."""
        used_bytes = sum(account.used_bytes for account in accounts.values())
        return min(self._place.budget_bytes - used_bytes, _free_bytes(self._tier) + written_bytes)

    def _more(self, size: int | None, buffer: WritableBuffer) -> int:
        """Return the additional bytes if a new value replaces the stored value of the sample. Args: size: size of the stored value; None: there is
        none."""
        return self.charge(len(buffer)) - (0 if size is None else self.charge(size))

    def _path(self, key: int) -> str:
        return f"{self._prefix}{key:x}"

    def _namespaces(self) -> list[Path]:
        try:
            return [Path(entry.path) for entry in os.scandir(self._tier) if entry.name not in (LOCK, EVICTIONS)]
        except OSError:
            return []

    def _accounts(self) -> dict[Path, _Account]:
        """Return the account of each namespace. If a process was killed during a change of a namespace, count the files of this namespace. Call it
        under the lock."""
        accounts = {}
        for path in self._namespaces():
            account, is_complete = _read_account(path)
            accounts[path] = account if is_complete else self._recount(path)
        return accounts

    def _recount(self, namespace: Path) -> _Account:
        account = _Account()
        # Another process may remove a file during the count, which raises; the folder is closed even then.
        with os.scandir(namespace) as entries:
            for entry in entries:
                if entry.name != ACCOUNT:
                    account.used_bytes += self.charge(entry.stat().st_size)
                    account.num_samples += 1
        _write_account(namespace, account, is_complete=True)
        return account

    @contextmanager
    def _changed(self, accounts: dict[Path, _Account]) -> Iterator[_Account]:
        """Yield the account of this namespace for a change of its files. The account is marked dirty during the block, and written at the end of the
        block.
        """
        self._samples.mkdir(mode=0o700, exist_ok=True)
        account = accounts.setdefault(self._samples, _Account())
        _write_account(self._samples, account, is_complete=False)
        try:
            yield account
        # The account does not contain the change that failed. After other errors the account stays dirty, so that the files are counted.
        except OSError:
            _write_account(self._samples, account, is_complete=True)
            raise
        _write_account(self._samples, account, is_complete=True)

    def _drop_idle(self, accounts: dict[Path, _Account]) -> int:
        """Drop other namespaces that no process has read or changed for IDLE_S. Returns the bytes that this frees."""
        long_ago = time.time() - IDLE_S
        idle = [path for path in accounts if path != self._samples and _last_use(path) < long_ago]
        return self._evict({path: accounts.pop(path) for path in idle})

    def _evict(self, accounts: dict[Path, _Account]) -> int:
        """Drop namespaces, and count their samples as evicted. Returns the freed bytes."""
        for path, account in accounts.items():
            shutil.rmtree(path)
            _count_evictions(self._tier, account.num_samples, account.used_bytes)
        return sum(account.used_bytes for account in accounts.values())

    def _claim(self, lock: int, *, divides_again: bool) -> int:
        """Return the valid budget. If no budget is valid, this object's budget becomes valid. Call it under the lock.

        Args: divides_again: also replace the budget of a tier that no process has used for IN_USE_S, and empty the tier.
        """
        content = os.pread(lock, _BUDGET.size, 0)
        if len(content) == _BUDGET.size:
            budget: int = _BUDGET.unpack(content)[0]
            if budget == self._place.budget_bytes or not divides_again or self._is_used(os.fstat(lock).st_mtime):
                return budget
            self._evict(self._accounts())
        os.ftruncate(lock, 0)
        os.write(lock, _BUDGET.pack(self._place.budget_bytes))
        return self._place.budget_bytes

    def _is_used(self, claimed_at: float) -> bool:
        return max([claimed_at, *map(_last_use, self._namespaces())]) > time.time() - IN_USE_S

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock of the tier, and yield the descriptor of its file, which contains the budget. Raises OSError: another process holds the lock
        for LOCK_S."""
        while True:
            self._tier.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _check_owner(self._tier.parent)
            self._tier.mkdir(exist_ok=True, mode=0o700)
            with open(self._tier / LOCK, "a+b", buffering=0) as file:
                wait_for_lock(file.fileno())
                if os.fstat(file.fileno()).st_nlink:  # Otherwise the file belongs to a folder that was cleared.
                    yield file.fileno()
                    return

    @contextmanager
    def _log_errors(self) -> Iterator[None]:
        """Log an error of the block instead of raising it. Only the first error is logged."""
        try:
            yield
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                self._log.warning("cache_does_not_keep", reason=str(error), folder=str(self._tier))


def wait_for_lock(lock: int) -> None:
    """Take the lock of an open file. Raises BlockingIOError: another process holds the lock for LOCK_S."""
    give_up = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise
        # `flock` cannot wait with a time limit, so this loop polls.
        time.sleep(_PAUSE_S)


def _check_owner(folder: Path) -> None:
    """Raise OSError for a folder to which another user may write, because this user could replace samples. /dev/shm is writable for everybody."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "another user may write to it, or has made it", str(folder))


def _free_bytes(folder: Path) -> int:
    """Return the bytes that the tier may still use in a folder. The remaining free bytes are for batches of worker processes, which also need shared
    memory."""
    found = os.statvfs(folder)
    total, free = (found.f_frsize * blocks for blocks in (found.f_blocks, found.f_bavail))
    return free - min(KEPT_FREE_BYTES, total // 4)


def _read_account(namespace: Path) -> tuple[_Account, bool]:
    """Return an account, and whether it is clean: no process is changing the namespace, and no process was killed during a change."""
    try:
        used_bytes, num_samples, is_complete = _ACCOUNT.unpack((namespace / ACCOUNT).read_bytes())
    except (OSError, struct.error):
        return _Account(), False
    return _Account(used_bytes, num_samples), bool(is_complete)


def _write_account(namespace: Path, account: _Account, *, is_complete: bool) -> None:
    file = os.open(namespace / ACCOUNT, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, _ACCOUNT.pack(account.used_bytes, account.num_samples, is_complete), 0)
    finally:
        os.close(file)


def _last_use(namespace: Path) -> float:
    try:
        return (namespace / ACCOUNT).stat().st_mtime
    except OSError:
        return 0.0


def _read_evictions(tier: Path) -> _Evictions:
    """Args: tier: the folder of the tier. A missing or damaged file means no evictions."""
    try:
        return _Evictions(*_EVICTIONS.unpack((tier / EVICTIONS).read_bytes()))
    except (OSError, struct.error):
        return _Evictions()


def _count_evictions(tier: Path, num_samples: int, num_bytes: int) -> None:
    """Add to the counts, under the lock of the tier. Raises OSError: the counts cannot be written."""
    if not num_samples:
        return
    before = _read_evictions(tier)
    file = os.open(tier / EVICTIONS, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, _EVICTIONS.pack(before.num_samples + num_samples, before.num_bytes + num_bytes), 0)
    finally:
        os.close(file)
