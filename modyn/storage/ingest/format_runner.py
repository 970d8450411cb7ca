"""Where formats index files: those of our own code here, the others in processes of bounded memory and time."""

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
"""Modules of the process that the others are forked from."""
FILES_TOGETHER: Final = 256
"""Most files of one sample that a process is asked for with one request, which is bounded in time and may fail as a whole."""
SERVER_IDLE_S: Final = 60.0
"""How long it waits for a process to fork, before it ends."""


@dataclass(frozen=True, slots=True)
class IndexingBounds:
    """Of a process that indexes: bytes of memory, and seconds until the next samples of a file, or until the answer for files of one sample."""

    memory_bytes: int = 1 << 32
    timeout_s: float = 300.0


class FormatRunner:
    """Indexes files by their formats. Any number of threads at once; each has a process for itself while it indexes files of an isolated format.

    Processes are started on demand, serve any dataset, and end when they are idle.
    """

    def __init__(self, bounds: IndexingBounds = IndexingBounds()) -> None:
        self._bounds = bounds
        # Protects the three fields below; held only to change them. Reentrant: the garbage collector may end a left request in any thread.
        self._lock = threading.RLock()
        self._idle: list[BoundedProcess] = []
        self._busy: set[BoundedProcess] = set()
        self._closed = False

    def index(self, file_format: FileFormat, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """As `FileFormat.index`.

        Raises: DataError, of an isolated format also for a file that makes its process crash or exceed its bounds. UnusableNowError: the process
        ended for another reason. UnavailableError: storage stops.
        """
        if file_format.isolated:
            for samples in self.index_each(file_format, [(path, resume)]):
                yield from samples
        else:
            yield from file_format.index(path, resume)

    def index_each(
        self, file_format: FileFormat, files: Sequence[tuple[str, FormatResume | None]]
    ) -> Iterator[Iterator[IndexedSamples]]:
        """Index files of an isolated format with one request, which costs less than one for each.

        Yields: for each of `files`, in order, what `index` yields. One that raises, or is not read to its end before the next one is asked for,
        affects no other.
        """
        from modyn.workers.bounded_process import AnswerError, EndedError

        left = deque(files)
        while left:
            asked = copy(file_format)  # Its schema may change until the answers are read.
            answers = self._request(_Request(pickle.dumps(asked), tuple(left)))
            is_read = True
            while left and is_read:
                file = _FileAnswers(self, asked, left.popleft()[0], answers)
                yield iter(file)
                is_read = file.is_read
            if is_read:
                # Read that no more follow, so that the process is free. One that has just died has answered all the same.
                with suppress(EndedError, AnswerError):
                    next(answers, None)

    def schema_in(self, file_format: FileFormat, path: str) -> DatasetSchema | None:
        """Return `FileFormat.schema_in` of a file of this machine; None also where its beginning cannot be read: `index` says why."""
        from modyn.workers.bounded_process import AnswerError, EndedError

        request = _Request(pickle.dumps(file_format), ((path, None),), only_schema=True)
        try:
            (answer,) = self._request(request) if file_format.isolated else index_requested(request)
        except (AnswerError, EndedError):
            return None
        return answer.found if isinstance(answer.found, DatasetSchema) else None

    def index_files(self, file_format: WholeFileFormat, paths: Sequence[str], num_apart: int = 0) -> IndexedFiles:
        """As `WholeFileFormat.index_files`. Files that an isolated format fails to index together are indexed one by one, for a bounded time: once
        requests that failed have taken twice what one may take, the files that are left are to be tried again.

        Args: num_apart: the last ones of `paths`, of which each has failed alone before (FailedAloneError): none is asked for with others.
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
                # At most its bound: the start of a process is no time that a file took.
                lost_s += min(time.monotonic() - begun, self._bounds.timeout_s)
                # What the machine lacks, it lacks for each of them. All else may be of one file.
                if len(some) > 1 and not (isinstance(error, EndedError) and error.by_machine):
                    left.extendleft([path] for path in reversed(some))
                else:
                    parts.append(_unusable(file_format, [self._error(file_format, path, error) for path in some]))
        return _joined(parts)

    def _index_together(self, file_format: WholeFileFormat, paths: Sequence[str]) -> IndexedFiles:
        """Index files with one request. Raises: DataError: of the format. AnswerError, EndedError."""
        request = _Request(pickle.dumps(file_format), tuple((path, None) for path in paths), whole_files=True)
        (answer,) = self._request(request)  # to its end, so that the process is free
        if answer.error is not None:
            raise answer.error.error()
        assert isinstance(answer.found, IndexedFiles)
        return answer.found

    def _error(
        self, file_format: FileFormat, path: str, error: DataError | AnswerError | EndedError, num_samples: int = 0
    ) -> DataError:
        """The error of a file that was asked for alone, or of each one if the machine is at fault. Raises: UnavailableError: storage stops.

        Args: num_samples: that were found before it.
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
        """End all processes; what is being indexed in them fails with UnavailableError."""
        with self._lock:
            self._closed = True
            idle, busy, self._idle = self._idle, list(self._busy), []
        for process in busy:  # the threads that wait for them wait for their end, too
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
                # Between two files a process ends when it is idle, or because something kills it: another one is asked.
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
        """A process that is idle."""
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
        if self._closed:  # `close` may not have seen it
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
    """The error of a file at which the format raised one of class `kind` that is not ours."""
    # The next version of the format, or more memory, may do: the content is not at fault.
    return FailedAloneError(f"{type(file_format).__name__} failed on {path}: {kind}; the log of storage has the details")


def _problem(file_format: FileFormat, path: str, ended: EndedError, num_samples: int) -> DataError:
    """The error of a file in which the process has ended."""
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
    """Files that all have a problem."""
    none = np.zeros(len(errors), np.int64)
    labels: LabelArray = np.zeros(len(errors), np.float64) if file_format.float_labels else none
    return IndexedFiles(none, labels, none, dict(enumerate(errors)), none)


def _joined(parts: Sequence[IndexedFiles]) -> IndexedFiles:
    """What was found in files, some with each part."""
    lengths, labels, timestamps = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("lengths", "labels", "timestamps")
    )
    firsts = np.cumsum([0, *(len(part.lengths) for part in parts)]).tolist()
    problems = {first + i: error for first, part in zip(firsts, parts, strict=False) for i, error in part.problems.items()}
    times = [part.mtimes_ns for part in parts if part.mtimes_ns is not None]
    return IndexedFiles(lengths, labels, timestamps, problems, np.concatenate(times) if len(times) == len(parts) else None)


class _FileAnswers:
    """The part of the answers of a process that is about one file."""

    def __init__(self, runner: FormatRunner, file_format: FileFormat, path: str, answers: Iterator[_Indexed]) -> None:
        self._runner, self._format, self._path, self._answers = runner, file_format, path, answers
        self._num_samples, self.is_read = 0, False
        """is_read: whether the answers about the next file follow."""

    def __iter__(self) -> Iterator[IndexedSamples]:
        """What was found. Raises as `FormatRunner.index`."""
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
    """file_format: pickled. whole_files: that are asked for together. only_schema: which one file would decide."""

    file_format: bytes
    files: tuple[tuple[str, FormatResume | None], ...]
    whole_files: bool = False
    only_schema: bool = False


@dataclass(frozen=True, slots=True)
class _Packed:
    """Samples. `found` lacks what the asking process knows: pickling takes time. rows: in place of the offsets, if they are consecutive numbers, as
    rows of row groups are. as_asked: the schema is that of the format that was asked."""

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
    """The error of a format: its class by its reason, or the one that says nothing of the content."""

    reason: str
    message: str
    is_unrelated: bool

    def error(self) -> ModynError:
        kind = UnusableNowError if self.is_unrelated else BY_REASON[self.reason]
        return kind(self.message)


@dataclass(frozen=True, slots=True)
class _Indexed:
    """is_last: of one file, or of files that were asked for together."""

    found: _Packed | IndexedFiles | DatasetSchema | None = None
    is_last: bool = False
    error: _Refused | None = None


def index_requested(request: _Request) -> Iterator[_Indexed]:
    """Index what is asked, in the process."""
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
    """The same, the last one marked; an error of ours is one, too, after what was found before it: a reader may need no more than that."""
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
