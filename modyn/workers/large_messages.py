"""Messages from one process to another on the same machine. Large arrays pass through memory that both have mapped: each is copied twice, without
the system calls and the new pages of a pipe."""

from __future__ import annotations

import errno
import mmap
import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, Final

SHARED_BYTES: Final = 16 << 20
"""Arrays of one message that do not fit in go by the connection, as all else does."""
LARGE_BYTES: Final = 1 << 17
"""Of an array, from which on it goes through the shared memory."""


class LargeMessages:
    """One end of a duplex connection. One end sends, the other receives; each is used by one thread at a time."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._shared: mmap.mmap | None = None
        self._descriptor: int | None = None
        """Of the shared memory, until the other end has it."""

    def send(self, message: object) -> None:
        """Send a picklable message. Waits, where it holds large arrays, until the other end has copied them.

        Raises: EOFError: the other end is gone. OSError: it cannot be given the shared memory.
        """
        with _end_as_eof():
            self._send(message)

    def receive(self) -> Any:
        """Receive what the other end sends. Its arrays may be written to.

        Raises: EOFError: the other end is gone. OSError: the shared memory cannot be received.
        """
        with _end_as_eof():
            return self._receive()

    def _send(self, message: object) -> None:
        sizes: list[int] = []

        def stays(buffer: pickle.PickleBuffer) -> bool:
            """Whether the buffer is part of the pickle; else it is copied to where the one before it ends."""
            view, start = buffer.raw(), sum(sizes)
            if view.nbytes < LARGE_BYTES or start + view.nbytes > SHARED_BYTES or not self._is_made():
                return True
            assert self._shared is not None
            self._shared[start : start + view.nbytes] = view
            sizes.append(view.nbytes)
            return False

        content = pickle.dumps(message, protocol=5, buffer_callback=stays)
        self._connection.send((content, sizes))
        if not sizes:
            return
        if self._descriptor is not None:
            send_handle(self._connection, self._descriptor, None)  # whose process it is matters on Windows only
            os.close(self._descriptor)
            self._descriptor = None
        self._connection.recv_bytes()

    def _receive(self) -> Any:
        content, sizes = self._connection.recv()
        if not sizes:
            return pickle.loads(content)
        if self._shared is None:
            try:
                descriptor = recv_handle(self._connection)
            except RuntimeError as error:  # of the standard library: the kernel has kept it back
                raise OSError(errno.EMFILE, f"the shared memory was not received: {error}") from error
            try:
                self._shared = mmap.mmap(descriptor, SHARED_BYTES)
            finally:
                os.close(descriptor)
        shared = memoryview(self._shared)
        copies = [bytearray(shared[end - size : end]) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        self._connection.send_bytes(b"")
        return pickle.loads(content, buffers=copies)

    def _is_made(self) -> bool:
        """Whether there is the shared memory, which takes as much as was written to it at once. Not in /dev/shm, which is small in containers."""
        if self._shared is None:
            with suppress(OSError), ExitStack() as stack:  # the machine lacks descriptors or memory: all goes by the connection
                descriptor = os.memfd_create("modyn")
                stack.callback(os.close, descriptor)
                os.ftruncate(descriptor, SHARED_BYTES)
                self._shared = mmap.mmap(descriptor, SHARED_BYTES)
                self._descriptor = descriptor
                stack.pop_all()
        return self._shared is not None


@contextmanager
def _end_as_eof() -> Iterator[None]:
    """A context in which all errors that mean that the other end is gone are an EOFError."""
    try:
        yield
    except OSError as error:
        # `Connection` raises one without a number for a message that breaks off.
        if isinstance(error, ConnectionError) or error.errno is None:
            raise EOFError(str(error)) from error
        raise
