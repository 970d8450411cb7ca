"""Messages from one process to another on the same machine. Large arrays pass through memory that both have mapped: each is copied twice, without
the system calls and the new pages of a pipe."""

from __future__ import annotations

import mmap
import os
import pickle
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

        Raises: OSError, EOFError: the other end is gone.
        """
        sizes: list[int] = []

        def stays(buffer: pickle.PickleBuffer) -> bool:
            """Whether the buffer is part of the pickle; else it is copied to where the one before it ends."""
            view, start = buffer.raw(), sum(sizes)
            if view.nbytes < LARGE_BYTES or start + view.nbytes > SHARED_BYTES:
                return True
            self._made()[start : start + view.nbytes] = view
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

    def receive(self) -> Any:
        """Receive what the other end sends. Its arrays may be written to. Raises: OSError, EOFError: the other end is gone."""
        content, sizes = self._connection.recv()
        if not sizes:
            return pickle.loads(content)
        if self._shared is None:
            descriptor = recv_handle(self._connection)
            self._shared = mmap.mmap(descriptor, SHARED_BYTES)
            os.close(descriptor)
        shared = memoryview(self._shared)
        copies = [bytearray(shared[end - size : end]) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        self._connection.send_bytes(b"")
        return pickle.loads(content, buffers=copies)

    def _made(self) -> mmap.mmap:
        """The shared memory, which takes as much as was written to it at once. Not in /dev/shm, which is small in containers."""
        if self._shared is None:
            self._descriptor = os.memfd_create("modyn")
            os.ftruncate(self._descriptor, SHARED_BYTES)
            self._shared = mmap.mmap(self._descriptor, SHARED_BYTES)
        return self._shared
