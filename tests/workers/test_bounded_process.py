"""Processes that answer requests within bounds: what a request does to one, and what is said of it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from modyn.testing.waiting import PATIENCE_S, eventually
from modyn.workers.bounded_process import AnswerError, BoundedProcess, Bounds, EndedError, available_memory, left_in_groups
from modyn.workers.fork_server import PROCESS_TABLE

pytestmark = pytest.mark.usefixtures("bare_fork_server")

HERE = Path(__file__).parent
MEMORY = 200 << 20
Start = Callable[..., BoundedProcess]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts processes, which are ended with the test."""
    monkeypatch.syspath_prepend(HERE)
    started: list[BoundedProcess] = []

    def run(silence_s: float = 60.0, idle_s: float = 60.0, module: str = "bounded_tasks") -> BoundedProcess:
        bounds = Bounds(MEMORY, silence_s, idle_s)
        process = BoundedProcess(f"{module}:answer", bounds, "test", ("modyn.workers.bounded_process",), 60.0)
        started.append(process)
        return process

    yield run
    for process in started:
        process.end()


def ended(process: BoundedProcess, what: str, number: int = 0) -> EndedError:
    """Return how a process ends after the request `what`."""
    with pytest.raises(EndedError) as caught:
        list(process.ask((what, number)))
    assert not process.takes_requests
    return caught.value


def test_answers_come_in_order_from_one_process(start: Start) -> None:
    process = start()
    for number in (0, 1, 1000):
        assert list(process.ask(("count", number))) == list(range(number))
    assert list(process.ask(("", 0))) == [process.pid]
    assert process.takes_requests


@pytest.mark.parametrize(
    ("what", "number", "how"),
    [
        ("signal", signal.SIGSEGV, "crashed: SIGSEGV"),
        ("abort", 0, "crashed: SIGABRT"),
        ("exit", 3, "crashed: exit code 3"),
        ("allocate", 0, f"took more than {MEMORY:,} bytes of memory"),
        ("reserve", 1 << 40, f"took more than {MEMORY:,} bytes of memory"),
    ],
)
def test_a_request_that_makes_it_crash_or_takes_too_much_is_at_fault(start: Start, what: str, number: int, how: str) -> None:
    found = ended(start(), what, number)
    assert (found.how, found.by_request, found.lost) == (how, True, False)


def test_a_request_that_works_without_end_is_at_fault(start: Start) -> None:
    """It is not at fault if the machine is so busy that the process hardly runs."""

    def is_at_fault() -> bool:
        process = start(silence_s=0.3)
        list(process.ask(("count", 1)))
        found = ended(process, "spin")
        assert found.bound == "time"
        assert (found.how == "gave no answer for 0.3 s") == found.by_request
        return found.by_request

    eventually(is_at_fault)


def test_a_request_that_only_waits_is_not_at_fault(start: Start) -> None:
    """A thread that waits for a mount of FUSE or a lock looks as one that sleeps."""
    found = ended(start(silence_s=0.3), "hang")
    assert found.how == "gave no answer for 0.3 s, in which it waited: for a disk, a server or a processor"
    assert (found.by_request, found.bound) == (False, "time")


def test_a_process_that_does_not_start_is_ended_also_if_the_request_is_large(start: Start) -> None:
    """The process reads nothing, and the request is larger than the buffer of a connection."""
    with pytest.raises(EndedError, match="did not start: it took more than") as caught:
        list(start(module="large_import").ask(b"x" * (16 << 20)))
    assert not caught.value.by_request


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_something_else_ends_says_nothing_of_the_request(start: Start, number: int) -> None:
    found = ended(start(), "signal", number)
    assert (found.by_request, found.lost) == (False, True)
    assert found.how.startswith(f"was ended by {signal.Signals(number).name}")


def test_one_that_was_killed_between_two_requests_is_lost(start: Start) -> None:
    process = start()
    list(process.ask(("count", 1)))
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: process.has_ended)
    assert ended(process, "count", 1).lost


def test_an_idle_one_ends(start: Start) -> None:
    process = start(idle_s=0.05)
    list(process.ask(("count", 1)))
    eventually(lambda: process.has_ended)
    found = ended(process, "count", 1)
    assert found.lost, "another one can be asked"


@pytest.mark.parametrize(("what", "kind"), [("raise", "KeyError"), ("leave", "SystemExit")])
def test_an_error_of_the_function_comes_with_its_trace(start: Start, what: str, kind: str) -> None:
    process = start()
    with pytest.raises(AnswerError) as caught:
        list(process.ask((what, 0)))
    assert caught.value.kind == kind
    assert "bounded_tasks.py" in caught.value.trace


def test_a_caller_that_leaves_before_the_last_answer_ends_it(start: Start) -> None:
    process = start()
    answers = process.ask(("count", 1000))
    assert next(answers) == 0
    answers.close()  # type: ignore[attr-defined]
    assert (process.takes_requests, process.has_ended) == (False, True)


def test_a_request_that_is_left_may_be_collected_while_its_thread_starts_another_process(start: Start) -> None:
    process = start()
    left = process.ask(("count", 10))
    next(left)

    def collect() -> None:
        with PROCESS_TABLE:  # as in `start_worker`, where the garbage collector may run
            left.close()  # type: ignore[attr-defined]

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert process.has_ended


def test_a_process_that_cannot_make_shared_memory_answers_all_the_same(start: Start) -> None:
    (found,) = start(module="no_descriptors").ask(1 << 20)
    assert np.array_equal(found, np.arange(1 << 20))


def test_what_the_machine_has_left_is_less_than_it_has() -> None:
    assert 0 < available_memory() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_what_is_left_in_control_groups(tmp_path: Path) -> None:
    for name, limit, current, cached in (("", "max", 900, 0), ("pod", "1000", 700, 50), ("pod/one", "500", 450, 20)):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{current}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\nactive_file 9\n")
    assert list(left_in_groups(tmp_path, "pod/one")) == [70, 350]
    assert list(left_in_groups(tmp_path, "")) == []
    assert list(left_in_groups(tmp_path / "absent", "pod")) == []
