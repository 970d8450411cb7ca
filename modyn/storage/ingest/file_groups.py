"""Groups files of many samples for one request, and indexes the files of a group."""

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
"""Largest number of small files of a group."""
_SMALL_BYTES: Final = 1 << 20
"""Largest size of a file that is indexed in a group."""

Item = TypeVar("Item")
Found = tuple[Sequence[IndexedSamples], Iterator[IndexedSamples] | None]
"""Samples of a file: chunks in memory, and an iterator over the remaining chunks; None: all chunks are in memory."""


class JobQueue:
    """Returns groups of jobs in order. Each group is made when `take` returns it."""

    def __init__(self, jobs: Iterator[FileJob], *, together: bool) -> None:
        """Args: see `groups`."""
        self._groups = groups(jobs, together=together)
        self._again = deque[list[FileJob]]()

    def take(self) -> list[FileJob]:
        """Return the next group; at the end, an empty group."""
        return self._again.popleft() if self._again else next(self._groups, [])

    def put_back(self, some: Sequence[list[FileJob]]) -> None:
        """Put groups back to the front of the queue. Args: some: groups in order; empty groups are left out."""
        self._again.extendleft(filter(None, reversed(some)))


def groups(jobs: Iterator[FileJob], *, together: bool) -> Iterator[list[FileJob]]:
    """Yield the jobs in order, each as a group of its own. If `together`, small files are grouped, because each request to a process costs a switch
    between processes.
    """
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
    """Return the samples or the error of each file, in order. The list ends early when `held_samples` samples are in memory.

    Args: jobs: one job, or several jobs of one isolated format.
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
    # The generator is the first argument of `zip`, so that after the last job, the generator runs to its end.
    for samples, job in zip(FileJob.found_in_each(begun), begun, strict=False):
        found[job] = one = _find_one(job, held_samples, samples)
        num_held += 0 if isinstance(one, Exception) else sum(map(len, one[0]))
        if num_held >= held_samples:
            break
    return [found[job] for job in itertools.takewhile(found.__contains__, jobs)]


def _find_one(job: FileJob, held_samples: int, found: Iterator[IndexedSamples] | None = None) -> Found | DataError | ChangedError:
    """Return the samples of one file, or its error. Of a large file, only the first samples are in memory. Args: found: see `FileJob.samples`."""
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
    """Yield the same items. While the consumer uses an item, another thread makes the next item."""
    # The end of the block waits for the item in progress. After the block, no thread uses `items` or its file.
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        upcoming = pool.submit(next, items, None)
        while (item := upcoming.result()) is not None:
            upcoming = pool.submit(next, items, None)
            yield item
