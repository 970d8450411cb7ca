"""Messages whose large arrays pass through shared memory."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, get_context
from threading import Thread
from typing import Any

import numpy as np
import pytest

from modyn.testing.waiting import PATIENCE_S
from modyn.workers.large_messages import LARGE_BYTES, SHARED_BYTES, LargeMessages


def send_all(end: LargeMessages, messages: Sequence[Any]) -> None:
    for message in messages:
        end.send(message)


def passed(messages: Sequence[Any]) -> list[Any]:
    """The messages as they arrive, of one pair of ends."""
    ours, theirs = Pipe()
    with ours, theirs:
        thread = Thread(target=send_all, args=(LargeMessages(theirs), messages))
        thread.start()
        receiving = LargeMessages(ours)
        found = [receiving.receive() for _ in messages]
        thread.join()
    return found


@pytest.mark.parametrize("num_bytes", [0, 8, LARGE_BYTES - 8, LARGE_BYTES, SHARED_BYTES, SHARED_BYTES + 8])
def test_arrays_of_any_size_arrive_as_they_were_sent(num_bytes: int) -> None:
    sent: list[dict[str, Any]] = [
        {"numbers": np.arange(num_bytes // 8) + i, "flags": np.full(num_bytes, i % 2 == 0), "i": i} for i in range(3)
    ]
    for before, after in zip(sent, passed(sent), strict=True):
        assert before.keys() == after.keys()
        for name in ("numbers", "flags"):
            assert (before[name].dtype, before[name].tobytes()) == (after[name].dtype, after[name].tobytes())
            after[name][:] = 0  # it is the receiver's own


def test_arrays_of_any_layout_arrive() -> None:
    table = np.arange(4 * LARGE_BYTES, dtype=np.float32).reshape(512, -1)
    sent = [table.T, table[::2, ::3], table[:0], np.array(["a", None], object)]
    for before, after in zip(sent, passed(sent), strict=True):
        assert np.array_equal(before, after)


def test_nothing_stays_open() -> None:
    gc.collect()  # what earlier tests left open closes now, not in between
    before = os.listdir("/proc/self/fd")
    passed([np.zeros(LARGE_BYTES)] * 3)
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_a_receiver_that_leaves_is_an_end() -> None:
    ours, theirs = Pipe()
    with theirs:
        with ours:
            sending = Thread(target=lambda: LargeMessages(ours).receive())
            sending.start()
            LargeMessages(theirs).send(1)
            sending.join()
        with pytest.raises(EOFError):
            LargeMessages(theirs).send(np.zeros(LARGE_BYTES))


@contextmanager
def nothing_opens() -> Iterator[None]:
    """A context in which this process gets no further file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_where_no_shared_memory_can_be_made_arrays_go_by_the_connection() -> None:
    sent = np.arange(LARGE_BYTES)
    ours, theirs = Pipe()
    with ours, theirs:
        receiving: list[np.ndarray[Any, Any]] = []
        thread = Thread(target=lambda: receiving.append(LargeMessages(ours).receive()))
        thread.start()
        with nothing_opens():
            LargeMessages(theirs).send(sent)
        thread.join()
    assert np.array_equal(receiving[0], sent)


def send_until_gone(end: LargeMessages, other: Any) -> None:
    other.close()  # of which this process has a copy
    with suppress(EOFError):
        end.send(np.zeros(LARGE_BYTES))


def test_memory_that_cannot_be_received_does_not_end_the_other_process() -> None:
    """A process of its own sends: while nothing can be opened here, it can."""
    ours, theirs = Pipe()
    with ours:
        with theirs:
            sender = get_context("fork").Process(target=send_until_gone, args=(LargeMessages(theirs), ours))
            sender.start()
        assert ours.poll(PATIENCE_S)
        with nothing_opens(), pytest.raises(OSError, match="Too many open files|shared memory"):
            LargeMessages(ours).receive()
    sender.join(PATIENCE_S)
    assert sender.exitcode is not None
