"""Files of many samples that are indexed with one request, and what is found in them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from modyn.errors import DataError
from modyn.storage.ingest.file_indexer import ChangedError, FileJob
from modyn.storage.model.samples import IndexedSamples

_FILES_TOGETHER: Final = 16
"""Most small files of a group."""
_SMALL_BYTES: Final = 1 << 20

Item = TypeVar("Item")
Found = tuple[Sequence[IndexedSamples], Iterator[IndexedSamples] | None]
"""Samples of a file: all of them, and None; or the first ones, and what yields the others."""


class JobQueue:
    """Groups of jobs in their order, one made at a time."""

    def __init__(self, jobs: Iterator[FileJob], *, together: bool) -> None:
        """Args: as of `groups`."""
        self._groups = groups(jobs, together=together)
        self._again = deque[list[FileJob]]()

    def take(self) -> list[FileJob]:
        """The next group; an empty one: there is none."""
        return self._again.popleft() if self._again else next(self._groups, [])

    def put_back(self, some: Sequence[list[FileJob]]) -> None:
        """Put groups before all others. Args: some: in their order, maybe empty ones."""
        self._again.extendleft(filter(None, reversed(some)))


def groups(jobs: Iterator[FileJob], *, together: bool) -> Iterator[list[FileJob]]:
    """The jobs in their order, alone or, if `together`, small ones in groups: each request to a process waits for that process to get its turn."""
    group: list[FileJob] = []
    for job in jobs:
        if together and job.seen.size <= _SMALL_BYTES and not job.is_packed:
            group.append(job)
            if len(group) < _FILES_TOGETHER:
                continue
            yield group
        else:
            if group:
                yield group
            yield [job]
        group = []
    if group:
        yield group


def find(jobs: Sequence[FileJob], held_samples: int) -> list[Found | DataError | ChangedError]:
    """The samples of one file after the other, or its error; of fewer files than asked if the first ones hold `held_samples`.

    Args: jobs: one, or several of one isolated format.
    """
    if len(jobs) == 1:
        return [_find_one(jobs[0], held_samples)]
    found: dict[FileJob, Found | DataError | ChangedError] = {}
    for job in jobs:
        try:
            job.begin()
        except (DataError, ChangedError) as error:
            found[job] = error
    begun = [job for job in jobs if job not in found]
    num_held = 0
    # In this order: what is found comes to its end.
    for samples, job in zip(FileJob.found_in_each(begun), begun, strict=False):
        found[job] = one = _find_one(job, held_samples, samples)
        num_held += 0 if isinstance(one, Exception) else sum(map(len, one[0]))
        if num_held >= held_samples:
            break
    return [found[job] for job in itertools.takewhile(found.__contains__, jobs)]


def _find_one(job: FileJob, held_samples: int, found: Iterator[IndexedSamples] | None = None) -> Found | DataError | ChangedError:
    """The samples of one file, held in memory unless it is large, or its error. found: as of `FileJob.samples`."""
    chunks: list[IndexedSamples] = []
    num_held, samples = 0, job.samples(found)
    try:
        for chunk in samples:
            chunks.append(chunk)
            num_held += len(chunk)
            if num_held >= held_samples:
                return chunks, samples
    except (DataError, ChangedError) as error:
        return error
    return chunks, None


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the same items; while one is used, another thread makes the next."""
    # The end of the block waits for the item that is being made: after it, no thread uses `items` and its file.
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        upcoming = pool.submit(next, items, None)
        while (item := upcoming.result()) is not None:
            upcoming = pool.submit(next, items, None)
            yield item
