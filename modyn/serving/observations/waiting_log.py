"""Write-ahead log of the label join. The log appends the calls of the join to files, so that a restart can replay the calls.

A folder contains numbered files of events, and at most one base. A base has the smallest number of events that produce the state of all files up
to the base's number. A kill of the process can cut only the last event of the newest file, and this event was never acknowledged. An appended
event survives a kill of the process. After `sync` has returned, the event also survives a crash of the machine.

    <number>.events   head: magic, version, number, size of the file before; then frames: length, CRC-32, JSON with its own length, tensors as bytes
    <number>.base     the same format, with the events that still matter of the files up to this number
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson

from modyn.atomic_write import TEMPORARY_SUFFIX, remove, sync, write_atomically
from modyn.columnar import FileKind, write_at
from modyn.errors import CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.serving.messages.json_tensors import from_bytes, to_bytes
from modyn.serving.messages.signature import Tensor, datatype_of
from modyn.serving.observations.join import JoinEvent, JoinEventKind, RequestFeatures
from modyn.state_folders import claim_state, hold_lock

KIND: Final = FileKind(b"MODYNWAI", 1, "file of waiting observations", "move it away: what waits in it for its label is lost")
_HEAD: Final = struct.Struct("<8sIQQI")
"""Head of a file: magic, version, number of the file, size of the previous file in bytes, and the CRC-32 of these fields."""
_FRAME: Final = struct.Struct("<II")
_LENGTH: Final = struct.Struct("<I")
_EVENTS, _BASE = ".events", ".base"


class WaitingLog:
    """The files of the log in a folder. The server that uses the folder locks it. Calls must not overlap, except that `append` may overlap with
    `sync` or `compact`.

    Args: folder: made if it is missing. Raises: ConflictError: another server has the folder. UnavailableError: the folder is not writable.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            claim_state(folder)
            self._lock = hold_lock(
                folder / "lock",
                f"another server keeps what waits for its label in {folder}; stop it, or set serving.keep_waiting to false in the system "
                "file of one of them",
            )
            # No other process uses the folder now, so these files are left from a crash.
            for path in folder.glob(f"*{TEMPORARY_SUFFIX}"):
                path.unlink()
        except OSError as error:
            raise _unavailable(folder, error) from error
        self._descriptor = -1
        self._number = self._end = self._base = 0
        self._older = 0  # bytes of the files between the base and the newest file

    @property
    def num_bytes(self) -> int:
        """Number of bytes of events since the last base."""
        return self._older + self._end

    @property
    def num_files(self) -> int:
        """Number of files of events since the last base."""
        return self._number - self._base

    def recover(self) -> Iterator[JoinEvent]:
        """Yield all events in order, and begin a new file. Call this method once, before all other methods.

        Raises: CorruptStateError: a file is damaged or missing.
        """
        base = max(self._numbers(_BASE), default=0)
        later = [number for number in self._numbers(_EVENTS) if number > base]
        # A gap in the numbers means that a file was lost, and with it events in the middle.
        if later != list(range(base + 1, base + 1 + len(later))):
            raise CorruptStateError(
                f"{self._folder} lacks the file {self._path(base + 1, _EVENTS).name} or one after it; restore it, or move the folder away: what "
                "waits in it for its label is lost"
            )
        if base:
            yield from read_events(self._path(base, _BASE), base, None)
        end = 0
        for number in later:
            # The head of the next file states the size of this file. There is no next file after the newest file, whose last event may be cut.
            size = None if number == later[-1] else _size_before(self._path(number + 1, _EVENTS), number + 1)
            end = _HEAD.size
            for event, frame_end in _frames(self._path(number, _EVENTS), number, size):
                end = frame_end
                yield event
            self._older += end
        # The newest file may have been written but not synced before the crash.
        if later:
            self._sync_file(self._path(later[-1], _EVENTS))
        self._base, self._number = base, later[-1] if later else base
        self._begin(end)
        self._remove_up_to(base)

    def append(self, content: bytes) -> None:
        """Append frames that `encode` made. A kill of the process does not lose the frames. Raises UnavailableError: no frame is written."""
        try:
            write_at(self._descriptor, content, self._end)
        except OSError as error:
            # The next append overwrites a partial write.
            raise _unavailable(self._folder, error) from error
        self._end += len(content)

    def sync(self) -> None:
        """Write appended events durably to disk, so that they survive a crash of the machine. Raises UnavailableError."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise _unavailable(self._folder, error) from error

    def rotate(self) -> int:
        """Begin a new file. Returns the number of the previous file, for `compact`. Raises UnavailableError: nothing has changed."""
        before, size = self._number, self._end
        self.sync()  # The head of the next file states the size of this file, so the content of this file must be on disk first.
        self._begin(size)
        self._older += size
        return before

    def compact(self, number: int, events: Iterable[JoinEvent]) -> None:
        """Replace all files up to `number` by a base. Raises UnavailableError: the files stay."""
        write_atomically(self._path(number, _BASE), _sealed(_head(number, 0), events))
        self._base, self._older = number, 0
        # The base is complete now. Files that a crash leaves here are removed at the next start.
        self._remove_up_to(number)

    def close(self) -> None:
        """Close the newest file and unlock the folder."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._lock.close()

    def _begin(self, size_before: int) -> None:
        number = self._number + 1
        path, head = self._path(number, _EVENTS), _head(number, size_before)
        try:
            write_atomically(path, [head])
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except (OSError, UnavailableError) as error:
            # The previous file will grow beyond the size that the new file states, so the new file is removed. If the removal fails, the next attempt
            # replaces the new file.
            with suppress(UnavailableError):
                remove(path)
            raise error if isinstance(error, UnavailableError) else _unavailable(self._folder, error) from error
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._number, self._end = descriptor, number, len(head)

    def _sync_file(self, path: Path) -> None:
        try:
            sync(path)
        except OSError as error:
            raise _unavailable(self._folder, error) from error

    def _remove_up_to(self, number: int) -> None:
        """Remove the files that the base of this number replaces, and older bases."""
        try:
            for kind, last in ((_EVENTS, number), (_BASE, number - 1)):
                for found in self._numbers(kind):
                    if found <= last:
                        self._path(found, kind).unlink()
        except OSError as error:
            raise _unavailable(self._folder, error) from error

    def _numbers(self, kind: str) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob(f"*{kind}") if path.stem.isdigit())

    def _path(self, number: int, kind: str) -> Path:
        return self._folder / f"{number:08d}{kind}"


def encode(event: JoinEvent) -> bytes:
    """Encode an event as a frame."""
    fields: dict[str, Any] = {"kind": event.kind, "key": event.key, "at": event.at, "label": event.label}
    if event.fingerprint:
        fields["fingerprint"] = event.fingerprint
    contents: list[bytes] = []
    if (features := event.features) is not None:
        missing = {name: _missing(values) for name, values in features.inputs.items()}
        contents = [to_bytes(_filled(values, missing[name])) for name, values in features.inputs.items()]
        fields["model"], fields["version"] = features.model, features.version
        fields["inputs"] = [
            (name, datatype_of(values.dtype), values.shape, len(content), missing[name])
            for (name, values), content in zip(features.inputs.items(), contents, strict=True)
        ]
    head = orjson.dumps(fields)
    body = b"".join([_LENGTH.pack(len(head)), head, *contents])
    return _FRAME.pack(len(body), zlib.crc32(body, len(body))) + body


def read_events(path: Path, number: int, size: int | None) -> list[JoinEvent]:
    """Return the events of a complete file. Args: size: size of the file in bytes; None: the file is a base, whose last frame marks the end.

    Raises: CorruptStateError: the file is damaged; the message names the file.
    """
    events = [event for event, _ in _frames(path, number, path.stat().st_size if size is None else size)]
    if size is None and (not events or events.pop() != _seal(len(events))):
        raise KIND.corrupt(path, "its end is missing")
    return events


def _sealed(head: bytes, events: Iterable[JoinEvent]) -> Iterator[bytes]:
    yield head
    count = 0
    for count, event in enumerate(events, 1):  # noqa: B007 - the last event has the number of events
        yield encode(event)
    yield encode(_seal(count))


def _seal(count: int) -> JoinEvent:
    """Return the event that marks the end of a base: a label without a key. The value of the label is the number of earlier events."""
    return JoinEvent(JoinEventKind.LABELLED, "", 0.0, count)


def _head(number: int, size_before: int) -> bytes:
    head = _HEAD.pack(KIND.magic, KIND.version, number, size_before, 0)[: -_LENGTH.size]
    return head + _LENGTH.pack(zlib.crc32(head))


def _checked_head(path: Path, content: bytes, number: int) -> int:
    """Check the head of a file, and return the size of the previous file. Raises CorruptStateError."""
    KIND.check(path, content)
    if len(content) < _HEAD.size or _HEAD.unpack_from(content)[4] != zlib.crc32(content[: _HEAD.size - _LENGTH.size]):
        raise KIND.corrupt(path, "its head is not what was written")
    found = _HEAD.unpack_from(content)
    if found[2] != number:
        raise KIND.corrupt(path, f"it is number {found[2]}")
    return int(found[3])


def _size_before(path: Path, number: int) -> int:
    return _checked_head(path, _read(path), number)


def _frames(path: Path, number: int, size: int | None) -> Iterator[tuple[JoinEvent, int]]:
    """Yield each event with its end offset. Args: size: size of the file in bytes; None: the file is the newest, and its events end before the first
    incomplete frame.
    """
    content = _read(path)
    _checked_head(path, content, number)
    if size is not None and not _HEAD.size <= size <= len(content):
        raise KIND.corrupt(path, f"it has {len(content)} bytes, and {size} were written")
    limit, at = len(content) if size is None else size, _HEAD.size
    while at < limit:
        body = _whole_frame(content, at, limit)
        if body is None:
            if size is None:
                return
            raise KIND.corrupt(path, f"the event at byte {at} is not what was written")
        at += _FRAME.size + len(body)
        yield _decoded(path, body), at


def _missing(values: Tensor) -> list[int]:
    """Return the flat indices of missing texts. The indices are stored because the bytes of a tensor cannot express a missing text."""
    if values.dtype != object:
        return []
    return [place for place, value in enumerate(values.ravel()) if value is None]


def _filled(values: Tensor, missing: list[int]) -> Tensor:
    if not missing:
        return values
    filled = values.copy()
    filled.reshape(-1)[missing] = b""
    return filled


def _whole_frame(content: bytes, at: int, limit: int) -> bytes | None:
    if at + _FRAME.size > limit:
        return None
    length, checksum = _FRAME.unpack_from(content, at)
    body = content[at + _FRAME.size : at + _FRAME.size + length]
    return body if length and len(body) == length and zlib.crc32(body, length) == checksum else None


def _decoded(path: Path, body: bytes) -> JoinEvent:
    try:
        (length,) = _LENGTH.unpack_from(body)
        start = _LENGTH.size + length
        fields = orjson.loads(body[_LENGTH.size : start])
        features = None
        if "inputs" in fields:
            inputs = {}
            for name, datatype, shape, num_bytes, missing in fields["inputs"]:
                inputs[name] = from_bytes(name, datatype, tuple(shape), body[start : start + num_bytes])
                if missing:
                    inputs[name].reshape(-1)[missing] = None
                start += num_bytes
            features = RequestFeatures(inputs, fields["model"], fields["version"])
        kind = JoinEventKind(fields["kind"])
        return JoinEvent(kind, fields["key"], fields["at"], fields["label"], features, fields.get("fingerprint", 0))
    except (struct.error, orjson.JSONDecodeError, KeyError, TypeError, ValueError, InvalidArgumentError) as error:
        raise KIND.corrupt(path, f"an event cannot be read: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror or error}; make it readable for the server") from error


def _unavailable(folder: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"cannot keep what waits for its label in {folder}: {error.strerror or error}; make the folder writable for the server and check the "
        "space on its disk, or set serving.keep_waiting to false in the system file"
    )
