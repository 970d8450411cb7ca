"""Samples are copied by a thread in the background, also when the system has no thread to spare at first."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from modyn.records import RunId
from modyn.selector.sample_rows import RowCopier
from modyn.testing.waiting import PATIENCE_S

A, B = RunId("a"), RunId("b")


@pytest.fixture
def without_a_thread(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def call(function: Callable[[], None]) -> None:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refused)
            function()

    return call


def test_runs_are_copied_again_while_more_is_left() -> None:
    copied: queue.SimpleQueue[RunId] = queue.SimpleQueue()
    left = {A: 2, B: 0}

    def copy(run_id: RunId) -> bool:
        copied.put(run_id)
        left[run_id] -= 1
        return left[run_id] > 0

    copier = RowCopier(copy)
    copier.wake(A)
    assert [copied.get(timeout=PATIENCE_S) for _ in range(2)] == [A, A]
    copier.wake(B)
    assert copied.get(timeout=PATIENCE_S) == B
    copier.stop()


def test_what_found_no_thread_is_copied_with_the_next(without_a_thread: Callable[[Callable[[], None]], None]) -> None:
    copied: queue.SimpleQueue[RunId] = queue.SimpleQueue()

    def copy(run_id: RunId) -> bool:
        copied.put(run_id)
        return False

    copier = RowCopier(copy)
    for _ in range(3):
        without_a_thread(lambda: copier.wake(A))
    copier.wake(B)
    assert [copied.get(timeout=PATIENCE_S) for _ in range(2)] == [A, B]
    copier.stop()
    assert copied.empty()


def test_one_that_never_found_a_thread_stops(without_a_thread: Callable[[Callable[[], None]], None]) -> None:
    copier = RowCopier(bool)
    without_a_thread(lambda: copier.wake(A))
    copier.stop()


def test_one_that_is_stopped_drops_further_runs_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    copier = RowCopier(bool)
    copier.stop()
    copier.wake(A)
    assert capsys.readouterr().err == ""


def test_an_interpreter_exits_without_waiting_for_a_copy() -> None:
    program = """
import threading
from modyn.selector.sample_rows import RowCopier
begun = threading.Event()
RowCopier(lambda run_id: begun.set() or threading.Event().wait()).wake("a")
begun.wait()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
