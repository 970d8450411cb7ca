"""From keys to bytes: look up where the samples are, cut the request into pieces of bounded size, gather one ahead of the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from prometheus_client import Counter

from modyn._core import Gatherer
from modyn.errors import DataError
from modyn.records import Int64Array
from modyn.storage.flight import OnMissing, Payloads
from modyn.storage.open_dataset import OpenDataset
from modyn.storage.segments import Locations

PAYLOAD_BYTES = Counter("modyn_storage_payload_bytes_total", "Bytes of payloads that were read", ["dataset"])

ROWS = 16_384
"""Most samples in one answer."""
BYTES = 8 * 2**20
"""Most payload bytes in one answer, unless a single sample is larger."""

_OPEN_FILES = 512


class PayloadReader:
    """Reads payloads for all requests of the service with `num_threads` threads a piece."""

    def __init__(self, num_threads: int, requests_at_once: int = 8) -> None:
        self._gatherer = Gatherer(_OPEN_FILES, num_threads)
        self._ahead = ThreadPoolExecutor(requests_at_once, thread_name_prefix="gather")

    def close(self) -> None:
        self._ahead.shutdown(wait=False, cancel_futures=True)
        self._gatherer.close_files()

    def read(self, dataset: OpenDataset, keys: Int64Array, on_missing: OnMissing) -> Iterator[tuple[Payloads, int]]:
        """Pieces in the order asked, each with the number of `keys` that are dealt with after it. There is at least one piece.

        Raises NotFoundError before the first piece if keys are missing and that is not allowed.
        """
        if on_missing == "raise":
            dataset.refuse_missing(keys)
        pieces = self._pieces(dataset, keys, on_missing)
        next_piece: Future[tuple[Payloads, int]] | None = self._start(pieces)
        while next_piece is not None:
            piece = next_piece.result()
            next_piece = self._start(pieces)
            PAYLOAD_BYTES.labels(dataset.name).inc(piece[0].data.nbytes)
            yield piece

    def _start(self, pieces: Iterator[Callable[[], tuple[Payloads, int]]]) -> Future[tuple[Payloads, int]] | None:
        piece = next(pieces, None)
        return None if piece is None else self._ahead.submit(piece)

    def _pieces(
        self, dataset: OpenDataset, keys: Int64Array, on_missing: OnMissing
    ) -> Iterator[Callable[[], tuple[Payloads, int]]]:
        for first in range(0, max(1, len(keys)), ROWS):
            part = keys[first : first + ROWS]
            ends = np.arange(first + 1, first + len(part) + 1)
            if on_missing == "skip":
                there = ~dataset.missing(part)
                part, ends = part[there], ends[there]
            locations = dataset.index.locate(part)
            cuts = cut(locations.lengths, len(part), BYTES)
            for number, (start, stop) in enumerate(cuts):
                # Skipped keys at the end belong to the last piece of their part.
                done = min(first + ROWS, len(keys)) if number == len(cuts) - 1 else int(ends[stop - 1])
                yield _Piece(self._gatherer, dataset, part[start:stop], _slice(locations, start, stop), done)


class _Piece:
    """A gather that is yet to be done."""

    def __init__(self, gatherer: Gatherer, dataset: OpenDataset, keys: Int64Array, locations: Locations, done: int) -> None:
        self._gatherer, self._dataset, self._keys, self._locations, self._done = gatherer, dataset, keys, locations, done

    def __call__(self) -> tuple[Payloads, int]:
        labels = self._dataset.index.samples_by_key(self._keys).labels
        ids, positions = np.unique(self._locations.file_ids, return_inverse=True)
        self._refuse_altered(ids)
        data, offsets = self._gatherer.gather(
            [self._dataset.path_of(int(file_id)) for file_id in ids],
            positions.astype(np.uint32),
            self._locations.offsets,
            self._locations.lengths,
        )
        return Payloads(self._keys, labels, data, offsets), self._done

    def _refuse_altered(self, file_ids: npt.NDArray[np.uint32]) -> None:
        for file_id in self._dataset.files.altered.intersection(file_ids.tolist()):
            first = int(np.flatnonzero(self._locations.file_ids == file_id)[0])
            raise DataError(
                f"{self._dataset.path_of(file_id)} was changed after it was indexed, so the sample with key {self._keys[first]} at byte "
                f"{self._locations.offsets[first]} of it cannot be read; `modyn data problems {self._dataset.name}` tells more"
            )


def cut(lengths: Int64Array | int, num_samples: int, max_bytes: int) -> list[tuple[int, int]]:
    """Ranges [start, stop) over the samples, each of at most `max_bytes` or of one sample. One empty range if there are no samples.

    >>> cut(np.array([3, 3, 3, 20, 1]), 5, 6), cut(4, 5, 8), cut(1, 0, 8)
    ([(0, 2), (2, 3), (3, 4), (4, 5)], [(0, 2), (2, 4), (4, 5)], [(0, 0)])
    """
    ends = np.cumsum(np.broadcast_to(np.asarray(lengths, np.int64), num_samples))
    ranges: list[tuple[int, int]] = []
    start = 0
    while start < num_samples:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
        ranges.append((start, stop))
        start = stop
    return ranges or [(0, 0)]


def _slice(locations: Locations, start: int, stop: int) -> Locations:
    lengths = locations.lengths if isinstance(locations.lengths, int) else locations.lengths[start:stop]
    return Locations(locations.file_ids[start:stop], locations.offsets[start:stop], lengths)
