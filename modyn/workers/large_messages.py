"""Messages between two processes on one machine. Large arrays pass through shared memory, and are copied twice. A pipe would take longer, because of
its system calls and new memory pages.
"""

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
"""Size of the shared memory, in bytes. Arrays that do not fit are sent over the connection."""
LARGE_BYTES: Final = 1 << 17
"""Smallest size of an array that goes through the shared memory, in bytes."""


class LargeMessages:
    """One end of a duplex connection. One end sends, and the other end receives. Only one thread at a time may use an end."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._shared: mmap.mmap | None = None
        self._descriptor: int | None = None
        """Descriptor of the shared memory; None: the other end has received the descriptor."""

    def send(self, message: object) -> None:
        """Send a picklable message. If the message has large arrays, wait until the other end has copied them.

        Raises: EOFError: the other end is closed. OSError: the other end cannot get the shared memory.
        """
        with _end_as_eof():
            self._send(message)

    def receive(self) -> Any:
        """Receive a message. The arrays in the message are writable.

        Raises: EOFError: the other end is closed. OSError: the shared memory cannot be received.
        """
        with _end_as_eof():
            return self._receive()

    def _send(self, message: object) -> None:
        sizes: list[int] = []

        def stays(buffer: pickle.PickleBuffer) -> bool:
            """Return whether the pickle keeps the buffer. If not, the buffer is copied to the shared memory."""
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
            send_handle(self._connection, self._descriptor, None)  # the process id matters on Windows only
            os.close(self._descriptor)
            self._descriptor = None
        self._connection.recv_bytes()  # this message confirms that the other end has copied the arrays

    def _receive(self) -> Any:
        content, sizes = self._connection.recv()
        if not sizes:
            return pickle.loads(content)
        if self._shared is None:
            try:
                descriptor = recv_handle(self._connection)
            except RuntimeError as error:  # the kernel has not delivered the descriptor
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
        """Make the shared memory if it is missing, and return whether it exists. The shared memory is not in /dev/shm, because /dev/shm is small in
        containers.
        """
        if self._shared is None:
            with suppress(OSError), ExitStack() as stack:  # without descriptors or memory, arrays are sent over the connection
                descriptor = os.memfd_create("modyn")
                stack.callback(os.close, descriptor)
                os.ftruncate(descriptor, SHARED_BYTES)
                self._shared = mmap.mmap(descriptor, SHARED_BYTES)
                self._descriptor = descriptor
                stack.pop_all()
        return self._shared is not None


@contextmanager
def _end_as_eof() -> Iterator[None]:
    """Convert errors that mean that the other end is closed to EOFError."""
    try:
        yield
    except OSError as error:
        # `Connection` raises an error without a number for a truncated message.
        if isinstance(error, ConnectionError) or error.errno is None:
            raise EOFError(str(error)) from error
        raise
