"""All datasets that a storage folder publishes, by name: `names/NAME` links to the folder of the dataset NAME."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from modyn._core import PathTable
from modyn.atomic_write import TEMPORARY_SUFFIX, make_folder, remove, sync
from modyn.config.dataset import DATASET_NAME
from modyn.config.system import SystemConfig
from modyn.config.system_sections.buckets import is_bucket
from modyn.errors import NotFoundError, UnavailableError
from modyn.registry import nearest
from modyn.storage.read.locality import some_files
from modyn.storage.read.publication import INDEX
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.snapshot import DatasetSnapshot, PublishedDataset


class PublishedNames:
    """The links from names of datasets to their folders."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: folder of the links. The folder is made with the first link."""
        self._folder = folder

    @staticmethod
    def of(config: SystemConfig) -> PublishedNames:
        """Return the links in storage's state folder, which `config` names."""
        return PublishedNames(config.service_dir("storage") / "names")

    def add(self, name: str, target: Path) -> None:
        """Link the name of a dataset to its folder. An existing link is replaced. Raises UnavailableError if the link cannot be made.

        Args: target: folder of the dataset's index.
        """
        temporary = self._folder / f".{name}.{os.getpid()}-{threading.get_ident()}{TEMPORARY_SUFFIX}"
        try:
            make_folder(self._folder)
            # A link cannot be changed in place. A rename replaces it in one step, so that readers always find a link.
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(os.path.relpath(target, self._folder))
            temporary.replace(self._folder / name)
            sync(self._folder)
        except OSError as error:
            raise UnavailableError(f"cannot write {self._folder / name}: {error.strerror or error}; make it writable") from error

    def remove(self, name: str) -> None:
        """Durably remove the link of a dataset, if the link exists: after a crash, replicas must not find it before storage runs again.

        Raises: UnavailableError.
        """
        remove(self._folder / name)

    def keep_only(self, names: Set[str]) -> None:
        """Remove all links except those of `names`, and temporary files that a crash left. If the folder of the links is missing, it is made."""
        make_folder(self._folder)
        for path in self._folder.glob("*"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of all datasets that have a link, sorted."""
        return sorted(path.name for path in self._folder.glob("*") if re.fullmatch(DATASET_NAME, path.name))

    def target(self, name: str) -> Path:
        """Return the folder of a dataset. Raises NotFoundError if no dataset has this name, UnavailableError if the link cannot be read."""
        path = self._folder / name
        try:
            if re.fullmatch(DATASET_NAME, name):
                return self._folder / os.readlink(path)
        except OSError as error:
            # ENOENT: there is no such link. EINVAL: the path is not a link, so it is not a dataset either.
            if error.errno not in (errno.ENOENT, errno.EINVAL):
                raise UnavailableError(f"cannot read {path}: {error.strerror or error}; make it readable") from error
            if not self._folder.is_dir():
                raise UnavailableError(
                    f"{self._folder}, where storage publishes datasets, is not there; start storage, or mount its state_dir here"
                ) from error
        raise self.not_found(name)

    def not_found(self, name: str) -> NotFoundError:
        """Return the error for a name that no dataset has. The message suggests the most similar name."""
        hint = nearest(name, self.names()) or ";"
        return NotFoundError(f"there is no dataset '{name}'{hint} `modyn data ls` lists them, `modyn data register` adds one")


class PublishedDatasets:
    """The datasets of a storage folder, for a process without a catalogue. Any number of threads may use it.

    The object serves only datasets whose files are on this machine. This check is weaker than the proof for local reads, because inodes differ on
    another machine. The check compares sizes and times of some files. If one of them agrees, the check succeeds and is not repeated. Otherwise the
    next request repeats the check.
    """

    def __init__(self, names: PublishedNames, readers: RecordReaders, process: str) -> None:
        """Args: process: name of this process, for errors."""
        self._names, self._readers, self._process = names, readers, process
        self._lock = threading.Lock()
        # Protects changes of the two fields below: two threads must not open the same dataset, and no dataset may be lost while deleted datasets are
        # dropped. Publications and users' files are read without the lock, so a dead mount blocks only requests of its own dataset.
        self._open: dict[str, PublishedDataset] = {}
        self._found: set[str] = set()
        """Identities of the datasets whose files were found on this machine."""

    def snapshot(self, name: str) -> DatasetSnapshot:
        """Return the newest published snapshot of the dataset `name`.

        Raises: NotFoundError: there is no dataset of this name. CorruptStateError. UnavailableError: the files of the dataset are not on this
        machine; then a client asks another server.
        """
        try:
            target = self._names.target(name)
            with self._lock:
                published = self._open.get(name)
                if published is None or published.folder != target:
                    self._drop_deleted()
                    published = self._open[name] = PublishedDataset(target, self._readers, may_lag=True)
            snapshot = published.snapshot()
        except NotFoundError:
            with self._lock:
                self._drop_deleted()
            raise
        if snapshot.identity not in self._found:
            self._check_mounted(snapshot)
        return snapshot

    def _drop_deleted(self) -> None:
        """Close files and maps of deleted datasets, because no request may ever name them again."""
        self._open = {name: published for name, published in self._open.items() if os.path.exists(published.folder / INDEX)}

    def _check_mounted(self, snapshot: DatasetSnapshot) -> None:
        paths, base_path = snapshot.paths, snapshot.config.base_path
        if is_bucket(base_path) or not (files := some_files(len(paths))):
            return
        if not any(_is_as_indexed(paths, file_id) for file_id in files):
            raise UnavailableError(
                f"{self._process} finds no file of dataset '{snapshot.name}' as storage has indexed it, such as {paths[files[0]]}; mount "
                f"{base_path} where {self._process} runs as where storage runs"
            )
        with self._lock:
            self._found.add(snapshot.identity)


def _is_as_indexed(paths: PathTable, file_id: int) -> bool:
    with suppress(OSError):
        status = os.stat(paths[file_id])
        return paths.may_be(file_id, status.st_size, status.st_mtime_ns)
    return False
