"""Background tasks run one after the other, are bounded and counted, and end; the code that makes batches raises their errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from modyn.dataset.batch import NO_WORK, CacheWork
from modyn.dataset.cached.background_fill import MOST_WAITING, BackgroundFill, Filled
from modyn.errors import DataError
from modyn.testing.waiting import PATIENCE_S, at_rest, eventually


class Pieces:
    """Runs tasks, which are numbers of pieces, as soon as the test allows it."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.done: list[int] = []

    def __call__(self, task: int) -> Iterator[Filled]:
        for piece in range(task):
            assert self.gate.wait(PATIENCE_S)
            self.done.append(task)
            if task == 13:
                raise DataError("sample 13 is damaged")
            yield Filled(CacheWork(read=piece))


@pytest.fixture
def pieces() -> Pieces:
    return Pieces()


@pytest.fixture
def fill(pieces: Pieces) -> Iterator[BackgroundFill[int]]:
    fill = BackgroundFill(pieces)
    yield fill
    fill.stop()
    pieces.gate.set()
    fill.join()
    assert not [thread for thread in threading.enumerate() if thread.name == "cache-fill"]


def test_tasks_are_done_in_turn_and_counted_once(fill: BackgroundFill[int], pieces: Pieces) -> None:
    assert fill.take().work == NO_WORK
    fill.add(3)
    fill.add(2)
    assert fill.take().work == NO_WORK, "nothing is waited for"
    pieces.gate.set()
    eventually(lambda: len(pieces.done) == 5)
    assert pieces.done == [3, 3, 3, 2, 2]
    fill.stop()
    fill.join()
    assert fill.take().work == CacheWork(read=4)
    assert fill.take().work == NO_WORK


def test_few_tasks_wait(fill: BackgroundFill[int], pieces: Pieces) -> None:
    added: list[int] = []

    def add() -> None:
        for task in range(1, 8):
            fill.add(task)
            added.append(task)

    adding = threading.Thread(target=add)
    adding.start()
    # One of them is being done.
    assert at_rest(lambda: len(added), MOST_WAITING + 1, rest_s=0.2) == MOST_WAITING + 1
    pieces.gate.set()
    adding.join(PATIENCE_S)
    eventually(lambda: len(pieces.done) == sum(range(1, 8)))
    assert pieces.done == [task for task in range(1, 8) for _ in range(task)]


def test_what_a_task_raises_is_raised_where_batches_are_made(fill: BackgroundFill[int], pieces: Pieces) -> None:
    fill.add(13)
    pieces.gate.set()
    eventually(lambda: pieces.done == [13])
    fill.join()
    for call in (lambda: fill.add(1), fill.take):
        with pytest.raises(DataError, match="sample 13 is damaged"):
            call()
    assert pieces.done == [13]


def test_stopping_leaves_out_the_rest(fill: BackgroundFill[int], pieces: Pieces) -> None:
    fill.add(13)
    fill.add(2)
    fill.stop()
    pieces.gate.set()
    fill.join()
    assert pieces.done in ([], [13])
    fill.add(1)
    assert fill.take().work == NO_WORK, "a task that is called off may raise what it wants"
