"""A tier in the shared memory of this machine, for all of its processes: a file for each sample, in /dev/shm, where files are memory.

    FOLDER/NAME/budget             of the tier; its lock is held while samples are named or dropped
    FOLDER/NAME/evictions          how many samples were evicted, and their bytes
    FOLDER/NAME/NAMESPACE/account  bytes and number of the samples beside it, and whether they are being changed
    FOLDER/NAME/NAMESPACE/KEY      the buffer of a sample

The kernel does what is hard about shared memory: it finds, allocates and frees. Readers take no lock. A file is written without it too, and gets its
name under it, when it is complete; it stays readable where it is open. A process that is killed while it changes a namespace leaves that
word in its account: the next one to take the lock counts the files. Nothing is synced, for nothing needs to survive the machine.
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
from typing import Final

import numpy as np

from modyn.cache.evictions import EVICTIONS, count_evictions, read_evictions
from modyn.cache.sample_files import name_file, read_files, size_of, write_unnamed
from modyn.cache.tier import (
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
"""Seconds that a lock is waited for. A process that is stopped while it holds it must not stop others."""
TOGETHER: Final = 64
"""Files that are open at once; those that are read are read into one piece of memory."""
_PAUSE_S: Final = 0.001
_GONE: Final = ".gone-"
LOCK: Final = "budget"
ACCOUNT: Final = "account"
PAGE_BYTES: Final = 4096
"""Of memory, of which a file takes whole ones."""
KEPT_FREE_BYTES: Final = 64 << 20
"""Of the memory or disk of the folder; a fourth of it, where that is less."""
FILE_BYTES: Final = 1024
"""What the kernel keeps of a file beside its content."""
_ACCOUNT: Final = struct.Struct("<QQ?")
"""Bytes, samples, and whether that is true."""
_BUDGET: Final = struct.Struct("<Q")


@dataclass(slots=True)
class _Account:
    """What a namespace holds."""

    used_bytes: int = 0
    num_samples: int = 0


class MemoryTier:
    """A `CacheTier` in a folder, of this machine's memory by default."""

    def __init__(self, place: TierPlace, folder: Path) -> None:
        """Args: folder: of all tiers of one installation, in SHARED_MEMORY or where else files are fast; made when it is needed."""
        self._place = place
        self._tier = folder / place.name
        self._samples = self._tier / place.namespace.hex()
        self._prefix = f"{self._samples}/"
        self._counts = TierCounts()
        self._log = get_logger("cache").bind(tier=place.name)
        self._has_failed = False
        """It is logged once."""

    def charge(self, num_bytes: int) -> int:
        """As `CacheTier.charge`."""
        return num_bytes + -num_bytes % PAGE_BYTES + FILE_BYTES

    def open(self) -> None:
        """As `CacheTier.open`. Raises also: UnavailableError: the folder cannot be written to."""
        try:
            with self._locked() as lock:
                found = os.statvfs(self._tier)
                if (total := found.f_frsize * found.f_blocks) < self._place.budget_bytes:
                    raise ConfigError(
                        f"the tier '{self._place.name}' has a budget of {self._place.budget_bytes:,} bytes, but {self._tier} can hold "
                        f"{total:,}: give less, or let the machine or container have more shared memory"
                    )
                budget = self._claim(lock, divides_anew=True)
        except BlockingIOError:
            return  # Others keep samples just now. `put` asks again, and keeps nothing where budgets differ.
        except OSError as error:
            raise UnavailableError(
                f"cannot use {self._tier} for the cache: {error.strerror or error}; make it writable, or switch the memory tier off"
            ) from error
        if budget != self._place.budget_bytes:
            raise self._place.conflict(str(self._tier), budget)

    def get(self, keys: Int64Array) -> list[Buffer | None]:
        """As `CacheTier.get`."""
        paths = list(map(self._path, keys.tolist()))
        buffers: list[Buffer | None] = []
        for start in range(0, len(paths), TOGETHER):
            buffers += read_files(paths[start : start + TOGETHER])
        with suppress(OSError):  # it is not there
            os.utime(self._samples / ACCOUNT)
        self._counts.found(buffers)
        return buffers

    def holds(self, keys: Int64Array) -> BoolArray:
        """As `CacheTier.holds`."""
        return np.fromiter((os.access(self._path(key), os.F_OK) for key in keys.tolist()), np.bool_, len(keys))

    def put(self, keys: Int64Array, buffers: Sequence[WritableBuffer]) -> BoolArray:
        """As `CacheTier.put`."""
        kept = np.zeros(len(keys), np.bool_)
        with self._tried():
            for start in range(0, len(keys), TOGETHER):
                some = slice(start, start + TOGETHER)
                with ExitStack() as files:
                    written = self._written(keys[some], buffers[some], files)
                    if any(file is not None for file in written):  # Else the tier is full, for which nothing needs to wait.
                        self._put(keys[some], buffers[some], written, kept[some])
        self._counts.kept(kept)
        return kept

    def drop(self, keys: Int64Array) -> bool:
        """As `CacheTier.drop`."""
        is_done = False
        with self._tried(), self._locked():
            with self._changed(self._accounts()) as account:
                before = replace(account)
                for key in keys.tolist():
                    path = self._path(key)
                    if (size := size_of(path)) is not None:
                        os.unlink(path)
                        account.used_bytes -= self.charge(size)
                        account.num_samples -= 1
            count_evictions(self._tier, before.num_samples - account.num_samples, before.used_bytes - account.used_bytes)
            is_done = True
        return is_done  # noqa: RET504  (`_tried` may have ended the block)

    def take_not_asked(self) -> int:
        """See `CacheTier.take_not_asked`."""
        return 0

    def usage(self) -> TierUsage:
        """As `CacheTier.usage`. What others are changing is counted as it was before."""
        accounts = {path: _read_account(path)[0] for path in self._namespaces()}
        used_bytes = sum(account.used_bytes for account in accounts.values())
        return self._counts.usage(True, used_bytes, accounts.get(self._samples, _Account()).num_samples)

    def stored(self) -> StoredTier | None:
        """As `CacheTier.stored`. Without the lock, so that nothing waits; what others are changing is counted as it was before."""
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
        return StoredTier(self._place.name, budget, used_bytes, num_samples, len(held), *read_evictions(self._tier))

    def clear(self) -> None:
        """As `CacheTier.clear`. Removes the folder."""
        with self._tried():
            self.remove()

    def remove(self) -> None:
        """Clear it. Raises OSError: another process holds the lock for too long, or the folder cannot be changed."""
        with self._locked():
            # Under another name first: whoever comes meanwhile makes a new folder, with a lock of its own.
            os.rename(self._tier, self._tier.with_name(f"{self._tier.name}{_GONE}{token_hex(4)}"))
            for gone in self._tier.parent.glob(f"{self._tier.name}{_GONE}*"):  # those that a process left that was killed, too
                shutil.rmtree(gone, ignore_errors=True)
            with suppress(OSError):  # other tiers are in it
                self._tier.parent.rmdir()

    def close(self) -> None:
        """As `CacheTier.close`. Nothing is open between calls."""

    def _written(self, keys: Int64Array, buffers: Sequence[WritableBuffer], files: ExitStack) -> list[int | None]:
        """Write what there seems to be room for, in files without names, which `files` closes. Without the lock: several processes write at once."""
        if not self._samples.is_dir():  # It is the first sample, or the tier was cleared.
            with self._locked():
                self._samples.mkdir(mode=0o700, exist_ok=True)
        long_ago = time.time() - IDLE_S
        in_use = [path for path in self._namespaces() if path == self._samples or _last_use(path) > long_ago]
        room = self._room({path: _read_account(path)[0] for path in in_use})
        written: list[int | None] = [None] * len(keys)
        sizes: dict[int, int | None] = {}
        with self._tried():  # What was written before is kept.
            for row, (key, buffer) in enumerate(zip(keys.tolist(), buffers, strict=True)):
                more = self._more(sizes.get(key, size_of(self._path(key))), buffer)
                if more <= room:
                    written[row] = file = write_unnamed(str(self._samples), parts_of(buffer))
                    files.callback(os.close, file)
                    room, sizes[key] = room - more, len(buffer)
        return written

    def _put(self, keys: Int64Array, buffers: Sequence[WritableBuffer], files: Sequence[int | None], kept: BoolArray) -> None:
        """Name the files for which there is room. Fills `kept`, as far as it gets."""
        with self._locked() as lock:
            budget = self._claim(lock, divides_anew=False)
            if budget != self._place.budget_bytes:
                raise OSError(self._place.conflict(str(self._tier), budget).message)
            accounts = self._accounts()
            # What is written has its memory already.
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
        """How many bytes more may be kept. Args: written_bytes: of them, in files that have no name yet."""
        used_bytes = sum(account.used_bytes for account in accounts.values())
        return min(self._place.budget_bytes - used_bytes, _free_bytes(self._tier) + written_bytes)

    def _more(self, size: int | None, buffer: WritableBuffer) -> int:
        """How many bytes more a sample takes than what is kept of it now. Args: size: of that; None: nothing is."""
        return self.charge(len(buffer)) - (0 if size is None else self.charge(size))

    def _path(self, key: int) -> str:
        return f"{self._prefix}{key:x}"

    def _namespaces(self) -> list[Path]:
        try:
            return [Path(entry.path) for entry in os.scandir(self._tier) if entry.name not in (LOCK, EVICTIONS)]
        except OSError:
            return []

    def _accounts(self) -> dict[Path, _Account]:
        """What each namespace holds, counted anew where a process was killed that changed it. Under the lock."""
        accounts = {}
        for path in self._namespaces():
            account, is_complete = _read_account(path)
            accounts[path] = account if is_complete else self._recount(path)
        return accounts

    def _recount(self, namespace: Path) -> _Account:
        account = _Account()
        with os.scandir(namespace) as entries:  # Others may remove a file in the middle.
            for entry in entries:
                if entry.name != ACCOUNT:
                    account.used_bytes += self.charge(entry.stat().st_size)
                    account.num_samples += 1
        _write_account(namespace, account, is_complete=True)
        return account

    @contextmanager
    def _changed(self, accounts: dict[Path, _Account]) -> Iterator[_Account]:
        """The account of this namespace, which counts each file once it is changed. Written when the block ends, and marked meanwhile."""
        self._samples.mkdir(mode=0o700, exist_ok=True)
        account = accounts.setdefault(self._samples, _Account())
        _write_account(self._samples, account, is_complete=False)
        try:
            yield account
        except OSError:  # of a file: its change is not counted. After other errors the files are.
            _write_account(self._samples, account, is_complete=True)
            raise
        _write_account(self._samples, account, is_complete=True)

    def _drop_idle(self, accounts: dict[Path, _Account]) -> int:
        """Drop other namespaces that nothing has read or changed for IDLE_S. Returns the bytes that this frees."""
        long_ago = time.time() - IDLE_S
        idle = [path for path in accounts if path != self._samples and _last_use(path) < long_ago]
        return self._evict({path: accounts.pop(path) for path in idle})

    def _evict(self, accounts: dict[Path, _Account]) -> int:
        """Drop namespaces, which hold what their accounts say. Returns the bytes that this frees."""
        for path, account in accounts.items():
            shutil.rmtree(path)
            count_evictions(self._tier, account.num_samples, account.used_bytes)
        return sum(account.used_bytes for account in accounts.values())

    def _claim(self, lock: int, *, divides_anew: bool) -> int:
        """The budget that holds: the own one, if there was none. Under the lock.

        Args: divides_anew: the own one also where nothing has used the tier for IN_USE_S; then it is emptied.
        """
        content = os.pread(lock, _BUDGET.size, 0)
        if len(content) == _BUDGET.size:
            budget: int = _BUDGET.unpack(content)[0]
            if budget == self._place.budget_bytes or not divides_anew or self._is_used(os.fstat(lock).st_mtime):
                return budget
            self._evict(self._accounts())
        os.ftruncate(lock, 0)
        os.write(lock, _BUDGET.pack(self._place.budget_bytes))
        return self._place.budget_bytes

    def _is_used(self, claimed_at: float) -> bool:
        return max([claimed_at, *map(_last_use, self._namespaces())]) > time.time() - IN_USE_S

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock of the tier, the file of its budget, which is handed in. Raises OSError: another process holds it for too long."""
        while True:
            self._tier.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _check_owner(self._tier.parent)
            self._tier.mkdir(exist_ok=True, mode=0o700)
            with open(self._tier / LOCK, "a+b", buffering=0) as file:
                wait_for_lock(file.fileno())
                if os.fstat(file.fileno()).st_nlink:  # else it belongs to a folder that has been cleared
                    yield file.fileno()
                    return

    @contextmanager
    def _tried(self) -> Iterator[None]:
        """Nothing within the block that goes wrong is raised: it is logged once."""
        try:
            yield
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                self._log.warning("cache_does_not_keep", reason=str(error), folder=str(self._tier))


def wait_for_lock(lock: int) -> None:
    """Take the lock of an open file. Raises BlockingIOError: another process holds it for LOCK_S."""
    give_up = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise
        time.sleep(_PAUSE_S)


def _check_owner(folder: Path) -> None:
    """Raises OSError for a folder that another user may write to: he could give trainings other samples. /dev/shm is everybody's."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "another user may write to it, or has made it", str(folder))


def _free_bytes(folder: Path) -> int:
    """What may still be filled where a folder lies: batches of worker processes need shared memory too."""
    found = os.statvfs(folder)
    total, free = (found.f_frsize * blocks for blocks in (found.f_blocks, found.f_bavail))
    return free - min(KEPT_FREE_BYTES, total // 4)


def _read_account(namespace: Path) -> tuple[_Account, bool]:
    """What the account says, and whether it is true: no process was killed while it changed the namespace, nor is changing it now."""
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
