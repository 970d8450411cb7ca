"""Looks up samples by key and reads their bytes. Local reads need no payload server.

Local reads require a proof of locality, see `modyn.storage.read.locality`. Each request checks the publication again, so a local reader finds
deletions and new samples like a client of the service. Local reads work also while storage is stopped.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from prometheus_client import Counter

from modyn._core import FileChangedError, FilePermissionError
from modyn.config.system import ROW_GROUP_CACHE_BYTES
from modyn.errors import ConfigError, DataError, InvalidArgumentError, NotFoundError
from modyn.records import Int64Array
from modyn.storage.index.segment_index import Entries
from modyn.storage.model.dataset_records import SamplePlace
from modyn.storage.model.samples import OnMissing, Payloads, UInt8Array, UInt32Array
from modyn.storage.model.schema import DatasetSchema
from modyn.storage.read.locality import ShortCutOffer
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.snapshot import DatasetSnapshot, PublishedDataset

PAYLOAD_BYTES = Counter("modyn_storage_payload_bytes_total", "Bytes of payloads that were read", ["dataset"])

T = TypeVar("T")
Gather = Callable[[DatasetSnapshot, UInt32Array, Int64Array, Int64Array | int], T]
"""Function that reads from the files of a dataset. Its arguments are file ids, offsets and lengths, as for `RecordReader.gather`."""


@dataclass(frozen=True, slots=True, eq=False)
class LocatedSamples:
    """Samples with known positions and unread bytes, in the order of the request.

    keys: int64 (n,), the requested keys that exist. where: int64 (n,), the positions of `keys` in the request.
    """

    keys: Int64Array
    where: Int64Array
    entries: Entries
    identity: str
    """Identity of the registration in which the keys were looked up."""
    snapshot: Callable[[], DatasetSnapshot]
    """Returns the newest snapshot, so that samples that became unreadable after the look-up are not read."""

    def __len__(self) -> int:
        return len(self.keys)

    def without_bytes(self, rows: slice) -> Payloads:
        """Return `rows` like `take`, but with empty payloads. No data file is read. Raises the errors of `take`, except for errors of reads."""
        self._readable(rows)
        keys = self.keys[rows]
        return Payloads(keys, self.entries.labels[rows], np.empty(0, np.uint8), np.zeros(len(keys) + 1, np.int64))

    def take(self, rows: Int64Array | slice) -> Payloads:
        """Read `rows` now, a slice or int64 (m,), in this order; duplicates are allowed. Any thread may call the method. The GIL is released during
        the read.

        Raises: DataError: a sample cannot be read; the message names its file and offset. FileChangedError: a file changed since it was indexed.
        NotFoundError: the dataset was deleted, or another dataset is registered under its name.
        """
        data, bounds = self.gather(rows, _read_payloads)
        lengths = self.entries.lengths
        return Payloads(self.keys[rows], self.entries.labels[rows], data, bounds, lengths if isinstance(lengths, int) else None)

    def gather(self, rows: Int64Array | slice, read: Gather[T]) -> T:
        """Read data of each of `rows`, such as a column, with the function `read`. Raises the errors of `take`."""
        now, keys = self._readable(rows), self.keys[rows]
        file_ids, offsets = self.entries.file_ids[rows], self.entries.offsets[rows]
        lengths = self.entries.lengths
        try:
            return read(now, file_ids, offsets, lengths if isinstance(lengths, int) else lengths[rows])
        except FileChangedError as error:
            found = (i for i in np.flatnonzero(offsets == error.offset).tolist() if now.paths[int(file_ids[i])] == error.path)
            named = "".join(f"the sample with key {keys[i]} cannot be read: " for i in itertools.islice(found, 1))
            raise FileChangedError(f"{named}{error.message}: `modyn data ingest {now.name}`") from error
        except FilePermissionError as error:
            raise DataError(f"{error.message}: it was indexed; let the user of storage read it, or delete its samples") from error
        except DataError as error:
            raise DataError(f"{error.message} (`modyn data problems {now.name}` lists all files that are set aside)") from error

    def _readable(self, rows: Int64Array | slice) -> DatasetSnapshot:
        """Return the newest snapshot. Raises: NotFoundError: the dataset is another registration. DataError: a file of `rows` was changed."""
        now = self.snapshot()
        now.refuse_other(self.identity)
        if len(now.altered):
            file_ids = self.entries.file_ids[rows]
            for i in np.flatnonzero(np.isin(file_ids, now.altered))[:1]:
                raise DataError(
                    f"{now.paths[int(file_ids[i])]} was changed after it was indexed, so the sample with key {self.keys[rows][i]} at byte "
                    f"{self.entries.offsets[rows][i]} of it cannot be read; `modyn data problems {now.name}` says why"
                )
        return now


def _read_payloads(
    now: DatasetSnapshot, file_ids: UInt32Array, offsets: Int64Array, lengths: Int64Array | int
) -> tuple[UInt8Array, Int64Array]:
    data, bounds = now.reader.gather(file_ids, offsets, lengths)
    PAYLOAD_BYTES.labels(now.name).inc(data.nbytes)
    return data, bounds


def locate(
    snapshot: Callable[[], DatasetSnapshot], keys: Int64Array, on_missing: OnMissing, identity: str = ""
) -> LocatedSamples:
    """Return the positions of the samples of `keys`, in the order of `keys`, including duplicates. Reads no data file.

    Args: snapshot: returns the newest snapshot of the dataset; called now, and again for each `take`. keys: int64 (n,). on_missing: "skip": leave
    out deleted keys; "raise": raise NotFoundError that names the first deleted keys. identity: identity of the registration to which the keys belong;
    empty: any registration.
    Raises: NotFoundError: the dataset is another registration, or never had a key. UnavailableError: the published index seems to be older than the
    keys.
    """
    now = snapshot()
    now.refuse_other(identity)
    where, tombstones = np.arange(len(keys)), now.tombstones.keys
    # Usually no key is missing, and one pass over the keys is enough.
    if (entries := now.index.entries(keys)) is None:
        now.refuse_unknown(keys)
    if len(tombstones) and (deleted := tombstones.contains(keys)).any():
        if on_missing == "raise":
            now.refuse_missing(keys)
        where = np.flatnonzero(~deleted)
        keys = keys[where]
        entries = now.index.entries(keys)
    assert entries is not None, "unknown keys are refused"
    if len(now.late):
        entries = replace(entries, labels=now.late.filled(keys, entries.labels))
    return LocatedSamples(keys, where, entries, now.identity, snapshot)


class LocalPayloads:
    """Payloads of one dataset by key, read in this process. Several threads may use the object at once, but only in the process that made it, not
    after a fork.
    """

    def __init__(
        self,
        dataset: str,
        ask: Callable[[str], ShortCutOffer],
        num_threads: int = 1,
        row_group_cache_bytes: int = ROW_GROUP_CACHE_BYTES,
    ) -> None:
        """Open `dataset`. `ask` gets the offer from storage. It is called now, and again if storage moves the dataset.

        Raises: ConfigError: the dataset cannot be read here; the message says why. NotFoundError: there is no such dataset. Also the errors of
        `ask`.
        """
        self._dataset = dataset
        self._ask = ask
        self._readers = RecordReaders(num_threads, row_group_cache_bytes)
        self._renewing = threading.Lock()
        """Lets one thread ask storage for a new offer, while other threads wait."""
        self._published = self._open()
        self._identity = self._published.snapshot().identity

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the threads and files that reading uses."""
        self._readers.close()

    def locate(self, dataset: str, keys: Int64Array, on_missing: OnMissing = "raise", identity: str = "") -> LocatedSamples:
        """See the function `locate`. Further errors: InvalidArgumentError: this object reads the payloads of another dataset."""
        self._refuse_other(dataset)
        return locate(self.snapshot, np.ascontiguousarray(keys, np.int64), on_missing, identity)

    def _refuse_other(self, dataset: str) -> None:
        if dataset != self._dataset:
            raise InvalidArgumentError(
                f"these are the payloads of dataset '{self._dataset}', not of '{dataset}'; open others for it"
            )

    def schema(self, dataset: str) -> DatasetSchema | None:
        """Return the schema of the dataset; None: there is no schema, or it is not known yet. Raises: see the methods `locate` and `snapshot`."""
        self._refuse_other(dataset)
        return self.snapshot().schema

    def place(self, key: int) -> SamplePlace | None:
        """Return the location of the sample with `key`; None: the sample is deleted."""
        now = self.snapshot()
        keys = np.array([key], np.int64)
        return None if now.missing(keys).any() else now.places(keys)[0]

    def snapshot(self) -> DatasetSnapshot:
        """Return the newest snapshot of the dataset.

        Raises: NotFoundError: the dataset was deleted. ConfigError: the dataset can no longer be read here. UnavailableError: the dataset's folder
        has moved, and storage, which knows the new folder, cannot be reached.
        """
        published = self._published
        try:
            return published.snapshot()
        except NotFoundError:
            # The folder is missing, because the dataset was deleted or storage was moved. Only storage knows the reason.
            return self._open_again(published).snapshot()

    def _open_again(self, old: PublishedDataset) -> PublishedDataset:
        with self._renewing:
            # Another thread may have opened the dataset again while this thread waited for the lock.
            if self._published is old:
                fresh = self._open()
                # Storage may have another dataset under this name now, whose keys belong to other samples.
                fresh.snapshot().refuse_other(self._identity)
                self._published = fresh
            return self._published

    def _open(self) -> PublishedDataset:
        offer = self._ask(self._dataset)
        if (reason := offer.why_not()) is not None:
            raise ConfigError(f"samples of dataset '{self._dataset}' cannot be read without the payload server: {reason}")
        # Storage has verified the whole index, so a second check of all checksums would only cost time.
        published = PublishedDataset(Path(os.fsdecode(offer.folder)), self._readers, verify=False)
        published.snapshot()
        return published
