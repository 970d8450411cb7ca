"""Runs formats: isolated formats (`FileFormat.isolated`) in processes of bounded memory and time, all other formats in this process."""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from modyn.errors import BY_REASON, DataError, ModynError, UnavailableError
from modyn.records import LabelArray
from modyn.rpc.logs import get_logger
from modyn.storage.files.file_system import UNRELATED_TO_CONTENT, FailedAloneError, UnusableNowError
from modyn.storage.files.local import reading
from modyn.storage.formats.base import FileFormat, FormatResume, WholeFileFormat
from modyn.storage.model.samples import IndexedFiles, IndexedSamples
from modyn.storage.model.schema import DatasetSchema

if TYPE_CHECKING:
    from modyn.workers.bounded_process import AnswerError, BoundedProcess, EndedError

PRELOAD: Final = ("modyn.storage.ingest.format_runner", "modyn.storage.formats.parquet", "modyn.storage.formats.json_lines")
"""Modules that are imported in the process from which indexing processes are forked."""
FILES_TOGETHER: Final = 256
"""Largest number of files of one sample in one request to a process. A request has a time limit, and if a request fails, all of its files fail."""
SERVER_IDLE_S: Final = 60.0
"""Seconds without a request after which the forking process ends."""


@dataclass(frozen=True, slots=True)
class IndexingBounds:
    """Bounds of an indexing process. timeout_s: longest time until the next samples of a file, or until the answer for files of one sample each."""

    memory_bytes: int = 1 << 32
    timeout_s: float = 300.0


class FormatRunner:
    """Indexes files by their formats. Thread-safe. Each thread has its own process while it indexes files of an isolated format.

    Processes are started on demand, serve any dataset, and end when they are idle.
    """

    def __init__(self, bounds: IndexingBounds = IndexingBounds()) -> None:
        self._bounds = bounds
        # Protects the three fields below, and is held only to change them. Reentrant, because the garbage collector may end an abandoned request in
        # a thread that holds the lock.
        self._lock = threading.RLock()
        self._idle: list[BoundedProcess] = []
        self._busy: set[BoundedProcess] = set()
        self._closed = False

    def index(self, file_format: FileFormat, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """See `FileFormat.index`.

        Raises: DataError; for an isolated format, also if the file makes the process crash or exceed its bounds. UnusableNowError: the process
        ended for another reason. UnavailableError: storage is stopping.
        """
        if file_format.isolated:
            for samples in self.index_each(file_format, [(path, resume)]):
                yield from samples
        else:
            yield from file_format.index(path, resume)

    def index_each(
        self, file_format: FileFormat, files: Sequence[tuple[str, FormatResume | None]]
    ) -> Iterator[Iterator[IndexedSamples]]:
        """Index files of an isolated format with one request, which costs less than one request per file.

        Yields: for each of `files`, in order, an iterator over its samples, as from `index`. If a file raises an error, or its samples are not read
        to the end, the other files are not affected.
        """
        from modyn.workers.bounded_process import AnswerError, EndedError

        left = deque(files)
        while left:
            asked = copy(file_format)  # The schema of `file_format` may change before the answers are read.
            answers = self._request(_Request(pickle.dumps(asked), tuple(left)))
            is_read = True
            while left and is_read:
                file = _FileAnswers(self, asked, left.popleft()[0], answers)
                yield iter(file)
                is_read = file.is_read
            if is_read:
                # The end mark is read, so that the process becomes free. All answers are complete even if the process has just died.
                with suppress(EndedError, AnswerError):
                    next(answers, None)

    def schema_in(self, file_format: FileFormat, path: str) -> DatasetSchema | None:
        """Return the result of `FileFormat.schema_in` for a local file; None also if the file cannot be read: `index` reports the reason."""
        from modyn.workers.bounded_process import AnswerError, EndedError

        request = _Request(pickle.dumps(file_format), ((path, None),), only_schema=True)
        try:
            (answer,) = self._request(request) if file_format.isolated else index_requested(request)
        except (AnswerError, EndedError):
            return None
        return answer.found if isinstance(answer.found, DatasetSchema) else None

    def index_files(self, file_format: WholeFileFormat, paths: Sequence[str], num_apart: int = 0) -> IndexedFiles:
        """See `WholeFileFormat.index_files`. If an isolated format fails to index files with one request, each file gets a request of its own. When
        failed requests have taken twice the time limit of one request, the remaining files are left for a later attempt.

        Args: num_apart: number of files at the end of `paths` that have failed alone before (FailedAloneError). Each of them gets its own request.
        Raises: UnavailableError.
        """
        from modyn.workers.bounded_process import AnswerError, EndedError

        if not file_format.isolated:
            return file_format.index_files(paths)
        num_together = len(paths) - num_apart
        left = deque(paths[first : min(first + FILES_TOGETHER, num_together)] for first in range(0, num_together, FILES_TOGETHER))
        left.extend([path] for path in paths[num_together:])
        parts: list[IndexedFiles] = []
        lost_s, most_s = 0.0, 2 * self._bounds.timeout_s
        while left:
            some, begun = left.popleft(), time.monotonic()
            if lost_s >= most_s:
                reason = f"is not indexed yet: other files took {most_s:g} s; it is tried again"
                parts.append(_unusable(file_format, [UnusableNowError(f"{path} {reason}") for path in some]))
                continue
            try:
                parts.append(self._index_together(file_format, some))
            except (DataError, AnswerError, EndedError) as error:
                # At most the time limit of a request is counted, because a file does not cause the time to start a process.
                lost_s += min(time.monotonic() - begun, self._bounds.timeout_s)
                # A lack of memory or processes affects all files. Other failures may be due to one file.
                if len(some) > 1 and not (isinstance(error, EndedError) and error.by_machine):
                    left.extendleft([path] for path in reversed(some))
                else:
                    parts.append(_unusable(file_format, [self._error(file_format, path, error) for path in some]))
        return _joined(parts)

    def _index_together(self, file_format: WholeFileFormat, paths: Sequence[str]) -> IndexedFiles:
        """Index files with one request. Raises: DataError: an error of the format. AnswerError, EndedError."""
        request = _Request(pickle.dumps(file_format), tuple((path, None) for path in paths), whole_files=True)
        (answer,) = self._request(request)  # The request is read to its end, so that the process becomes free.
        if answer.error is not None:
            raise answer.error.error()
        assert isinstance(answer.found, IndexedFiles)
        return answer.found

    def _error(
        self, file_format: FileFormat, path: str, error: DataError | AnswerError | EndedError, num_samples: int = 0
    ) -> DataError:
        """Return the error of the file `path` after a failed request. The request was for this file alone, or the machine caused the failure.

        Raises: UnavailableError: storage is stopping.
        Args: num_samples: number of samples that were found before the error.
        """
        from modyn.workers.bounded_process import AnswerError

        if isinstance(error, DataError):
            return error
        if isinstance(error, AnswerError):
            get_logger("storage").error("format_failed", path=path, trace=error.trace)
            return format_failed(file_format, path, error.kind)
        if self.is_closed:
            raise UnavailableError("storage is stopping; files are indexed when it is back") from error
        return _problem(file_format, path, error, num_samples)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """End all processes. Requests that these processes are answering fail with UnavailableError."""
        with self._lock:
            self._closed = True
            idle, busy, self._idle = self._idle, list(self._busy), []
        for process in busy:  # Threads that wait for these processes get an error.
            process.kill()
        for process in idle:
            process.end()

    def _request(self, request: _Request) -> Iterator[_Indexed]:
        from modyn.workers.bounded_process import EndedError

        if (process := self._take()) is not None:
            answered = False
            try:
                for answer in process.ask(request):
                    answered = True
                    yield answer
                return
            except EndedError as ended:
                # An idle process may have ended between two requests. Then another process gets the request.
                if answered or not ended.lost:
                    raise
            finally:
                self._give_back(process)
        process = self._start()
        try:
            yield from process.ask(request)
        finally:
            self._give_back(process)

    def _take(self) -> BoundedProcess | None:
        """Return a process that is idle, or None."""
        with self._lock:
            self._idle = [process for process in self._idle if not process.has_ended]
            if not self._idle:
                return None
            process = self._idle.pop()
            self._busy.add(process)
            return process

    def _start(self) -> BoundedProcess:
        from modyn.workers.bounded_process import BoundedProcess, Bounds

        bounds = Bounds(self._bounds.memory_bytes, self._bounds.timeout_s)
        process = BoundedProcess(f"{__name__}:index_requested", bounds, "indexing", PRELOAD, SERVER_IDLE_S)
        with self._lock:
            self._busy.add(process)
        if self._closed:  # The process may have been added to `_busy` after `close` read it.
            process.kill()
        return process

    def _give_back(self, process: BoundedProcess) -> None:
        with self._lock:
            self._busy.discard(process)
            if process.takes_requests and not self._closed:
                self._idle.append(process)
                return
        process.end()


def format_failed(file_format: FileFormat, path: str, kind: str) -> FailedAloneError:
    """Return the error of a file for which the format raised an error of the class `kind`, which is not an error of `modyn.errors`."""
    # The content may be right: with another version of the format, or with more memory, indexing may succeed.
    return FailedAloneError(f"{type(file_format).__name__} failed on {path}: {kind}; the log of storage has the details")


def _problem(file_format: FileFormat, path: str, ended: EndedError, num_samples: int) -> DataError:
    """Return the error for a file if the process ended while it indexed the file."""
    where = f" after its first {num_samples:,} samples" if num_samples else ""
    what = f"{path} cannot be indexed: the process in which {type(file_format).__name__} read it {ended.how}{where}"
    if not ended.by_request:
        kind = UnusableNowError if ended.by_machine else FailedAloneError
        return kind(f"{what}; it is tried again")
    match ended.bound:
        case "memory":
            advice = "write it in smaller parts, or raise storage.indexing_memory_bytes in the system file"
        case "time":
            advice = "correct it, or raise storage.indexing_timeout_s in the system file"
        case _:
            advice = (
                "the library that reads it failed, which a damaged file, or one of a newer kind, brings about: write it again, in another way; "
                "the other files are indexed, and the log of storage may say more"
            )
    return DataError(f"{what}; {advice}")


def _unusable(file_format: WholeFileFormat, errors: Sequence[DataError]) -> IndexedFiles:
    """Return the result for files that all have a problem."""
    none = np.zeros(len(errors), np.int64)
    labels: LabelArray = np.zeros(len(errors), np.float64) if file_format.float_labels else none
    return IndexedFiles(none, labels, none, dict(enumerate(errors)), none)


def _joined(parts: Sequence[IndexedFiles]) -> IndexedFiles:
    """Join the results of several requests, in order."""
    lengths, labels, timestamps = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("lengths", "labels", "timestamps")
    )
    firsts = np.cumsum([0, *(len(part.lengths) for part in parts)]).tolist()
    problems = {first + i: error for first, part in zip(firsts, parts, strict=False) for i, error in part.problems.items()}
    times = [part.mtimes_ns for part in parts if part.mtimes_ns is not None]
    return IndexedFiles(lengths, labels, timestamps, problems, np.concatenate(times) if len(times) == len(parts) else None)


class _FileAnswers:
    """The answers of a process about one file."""

    def __init__(self, runner: FormatRunner, file_format: FileFormat, path: str, answers: Iterator[_Indexed]) -> None:
        self._runner, self._format, self._path, self._answers = runner, file_format, path, answers
        self._num_samples, self.is_read = 0, False
        """is_read: whether all answers about this file were read, so that answers about the next file follow."""

    def __iter__(self) -> Iterator[IndexedSamples]:
        """Yield the samples that were found in the file. Raises: see `FormatRunner.index`."""
        from modyn.workers.bounded_process import AnswerError, EndedError

        try:
            for answer in self._answers:
                self.is_read = answer.is_last
                if answer.error is not None:
                    raise answer.error.error()
                if isinstance(answer.found, _Packed):
                    samples = answer.found.samples(self._format.schema)
                    self._num_samples += len(samples)
                    yield samples
                if answer.is_last:
                    return
        except (AnswerError, EndedError) as error:
            raise self._runner._error(self._format, self._path, error, self._num_samples) from error


# Between the processes


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to a process. file_format: the pickled format. whole_files: whether the files have one sample each and are indexed together.
    only_schema: whether the answer is only the schema that the first file would decide."""

    file_format: bytes
    files: tuple[tuple[str, FormatResume | None], ...]
    whole_files: bool = False
    only_schema: bool = False


@dataclass(frozen=True, slots=True)
class _Packed:
    """Samples for pickling. To save time, `found` omits values that the requesting process can restore. rows: range [first, end) that replaces
    consecutive offsets, such as rows of row groups. as_asked: whether the schema equals the schema of the request's format."""

    found: IndexedSamples
    rows: tuple[int, int] | None
    as_asked: bool

    @staticmethod
    def of(found: IndexedSamples, asked: DatasetSchema | None) -> _Packed:
        as_asked, rows, offsets = found.schema == asked, None, found.offsets
        if len(offsets) and offsets[-1] - offsets[0] == len(offsets) - 1 and (np.diff(offsets) == 1).all():
            rows, offsets = (int(offsets[0]), int(offsets[-1]) + 1), offsets[:0]
        return _Packed(replace(found, offsets=offsets, schema=None if as_asked else found.schema), rows, as_asked)

    def samples(self, asked: DatasetSchema | None) -> IndexedSamples:
        offsets = self.found.offsets if self.rows is None else np.arange(*self.rows, dtype=np.int64)
        return replace(self.found, offsets=offsets, schema=asked if self.as_asked else self.found.schema)


@dataclass(frozen=True, slots=True)
class _Refused:
    """The error of a format. reason: identifies the class. is_unrelated: the content of the file is not the cause, so UnusableNowError is raised."""

    reason: str
    message: str
    is_unrelated: bool

    def error(self) -> ModynError:
        kind = UnusableNowError if self.is_unrelated else BY_REASON[self.reason]
        return kind(self.message)


@dataclass(frozen=True, slots=True)
class _Indexed:
    """An item of an answer. is_last: whether this is the last item about a file, or about files that were requested together."""

    found: _Packed | IndexedFiles | DatasetSchema | None = None
    is_last: bool = False
    error: _Refused | None = None


def index_requested(request: _Request) -> Iterator[_Indexed]:
    """Answer a request. This function runs in the indexing process."""
    file_format = _unpickled(request.file_format)
    if request.whole_files:
        assert isinstance(file_format, WholeFileFormat)
        yield from _with_end_marked(iter([file_format.index_files([path for path, _ in request.files])]))
    elif request.only_schema:
        yield from _with_end_marked(_schema_in(file_format, request.files[0][0]))
    else:
        for path, resume in request.files:
            yield from _with_end_marked(_Packed.of(samples, file_format.schema) for samples in file_format.index(path, resume))


def _schema_in(file_format: FileFormat, path: str) -> Iterator[DatasetSchema]:
    with reading(path), file_format.open(path) as file:
        if (found := file_format.schema_in(path, file)) is not None:
            yield found


def _with_end_marked(found: Iterator[_Packed | IndexedFiles | DatasetSchema]) -> Iterator[_Indexed]:
    """Yield `found` as items, the last item with `is_last`. An error of `modyn.errors` becomes the last item, after the samples that were found
    before the error, because the consumer may need only these samples."""
    now = None
    try:
        for following in found:
            if now is not None:
                yield _Indexed(now)
            now = following
        yield _Indexed(now, is_last=True)
    except ModynError as error:
        if now is not None:
            yield _Indexed(now)
        refused = _Refused(error.reason, error.message, isinstance(error, UNRELATED_TO_CONTENT))
        yield _Indexed(is_last=True, error=refused)


@lru_cache(maxsize=16)
def _unpickled(file_format: bytes) -> FileFormat:
    return cast("FileFormat", pickle.loads(file_format))
