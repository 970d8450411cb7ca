"""From keys to bytes: look up where the samples are, cut the request into pieces of bounded size, gather one ahead of whoever reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from prometheus_client import Counter

from modyn.errors import DataError
from modyn.records import Int64Array, LabelArray
from modyn.storage.flight import OnMissing, Payloads
from modyn.storage.index_view import IndexView
from modyn.storage.segments import Locations

PAYLOAD_BYTES = Counter("modyn_storage_payload_bytes_total", "Bytes of payloads that were read", ["dataset"])

ROWS = 16_384
"""Most samples in one answer."""
BYTES = 8 * 2**20
"""Most payload bytes in one answer, unless a single sample is larger."""


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Samples whose places are known and whose bytes are not read yet, in the order asked.

    keys: int64 (n,), those asked that are there. where: int64 (n,), their positions in the question. labels: int64 or float64 (n,).
    """

    keys: Int64Array
    where: Int64Array
    labels: LabelArray
    locations: Locations
    view: Callable[[], IndexView]
    """The dataset as it is now: what becomes unreadable after the look-up is not read."""

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Int64Array | slice) -> Payloads:
        """Reads these rows now, in this order, duplicates allowed. From any thread; the GIL is released while it reads.

        Raises DataError naming file and offset of what cannot be read, NotFoundError if the dataset was deleted.
        """
        view, keys = self.view(), self.keys[rows]
        lengths = self.locations.lengths
        file_ids, offsets = self.locations.file_ids[rows], self.locations.offsets[rows]
        if (row := view.first_altered(file_ids)) is not None:
            raise DataError(
                f"{view.paths[int(file_ids[row])]} was changed after it was indexed, so the sample with key {keys[row]} at byte "
                f"{offsets[row]} of it cannot be read; `modyn data problems {view.name}` tells more"
            )
        data, bounds = view.source.gather(file_ids, offsets, lengths if isinstance(lengths, int) else lengths[rows])
        PAYLOAD_BYTES.labels(view.name).inc(data.nbytes)
        return Payloads(keys, self.labels[rows], data, bounds)


def locate(view: Callable[[], IndexView], keys: Int64Array, on_missing: OnMissing) -> Located:
    """Where the samples of `keys` are, in the order asked, duplicates included. Reads no data file.

    Keys that do not exist or were deleted raise NotFoundError that names the first of them, or are left out with on_missing="skip".
    """
    now = view()
    missing = now.missing(keys)
    if not missing.any():
        where = np.arange(len(keys))
    elif on_missing == "raise":
        now.refuse_missing(keys)
        raise AssertionError("some keys are missing")
    else:
        where = np.flatnonzero(~missing)
        keys = keys[where]
    return Located(keys, where, now.index.samples_by_key(keys).labels, now.index.locate(keys), view)


class PayloadReader:
    """Reads payloads for all requests of a process, one piece of each ahead of whoever takes them."""

    def __init__(self, requests_at_once: int = 8) -> None:
        self._ahead = ThreadPoolExecutor(requests_at_once, thread_name_prefix="gather")

    def close(self) -> None:
        self._ahead.shutdown(wait=False, cancel_futures=True)

    def read(self, view: Callable[[], IndexView], keys: Int64Array, on_missing: OnMissing) -> Iterator[tuple[Payloads, int]]:
        """Pieces in the order asked, each with the number of `keys` that are dealt with after it. There is at least one piece.

        Raises NotFoundError before the first piece if keys are missing and that is not allowed.
        """
        if on_missing == "raise":
            view().refuse_missing(keys)
        pieces = _pieces(view, keys, on_missing)
        next_piece = self._start(pieces)
        while next_piece is not None:
            piece = next_piece.result()
            next_piece = self._start(pieces)
            yield piece

    def _start(self, pieces: Iterator[Callable[[], tuple[Payloads, int]]]) -> Future[tuple[Payloads, int]] | None:
        piece = next(pieces, None)
        return None if piece is None else self._ahead.submit(piece)


def _pieces(
    view: Callable[[], IndexView], keys: Int64Array, on_missing: OnMissing
) -> Iterator[Callable[[], tuple[Payloads, int]]]:
    for first in range(0, max(1, len(keys)), ROWS):
        part = keys[first : first + ROWS]
        located = locate(view, part, on_missing)
        cuts = cut(located.locations.lengths, len(located), BYTES)
        for number, (start, stop) in enumerate(cuts):
            # Skipped keys at the end belong to the last piece of their part.
            done = first + (len(part) if number == len(cuts) - 1 else int(located.where[stop - 1]) + 1)
            yield partial(_piece, located, start, stop, done)


def _piece(located: Located, start: int, stop: int, done: int) -> tuple[Payloads, int]:
    return located.take(slice(start, stop)), done


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
