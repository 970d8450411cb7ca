"""Worker processes: what they report, how they end, and that none outlives its service."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

import modyn.workers.pool
import modyn.workers.session
from modyn.errors import (
    CancelledError,
    ConfigError,
    ConflictError,
    DataError,
    ModynError,
    TrainingError,
    UnavailableError,
    WorkerDiedError,
)
from modyn.local.service_process import is_alive
from modyn.testing.waiting import PATIENCE_S, eventually
from modyn.workers import Job, JobSpec, JobState, SessionRules, WorkerPool
from tests.support.preloaded import PRELOADED

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

HERE = Path(__file__).parent


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with_two = WorkerPool(2, preload=PRELOADED)
    yield with_two
    with_two.close(1.0)


Submit = Callable[..., Job]


@pytest.fixture
def submit(pool: WorkerPool, tmp_path: Path) -> Submit:
    def run(task: str, request: object = None, **options: Any) -> Job:
        return pool.submit(
            JobSpec(f"worker_tasks:{task}", request, name=f"job {task}", log_path=tmp_path / "logs" / task), **options
        )

    return run


def no_thread(_: threading.Thread) -> None:
    """Replacement of Thread.start for a system that has no threads left."""
    raise RuntimeError("can't start new thread")


def test_a_result_comes_after_all_messages_in_order(submit: Submit, tmp_path: Path) -> None:
    heard: list[object] = []
    ended: list[Job] = []
    job = submit("count", 50, on_message=heard.append, on_done=ended.append)
    assert job.result(PATIENCE_S) == 50
    eventually(lambda: ended)
    assert heard == list(range(50))
    assert (job.state, ended, job.error) == (JobState.FINISHED, [job], None)
    assert (tmp_path / "logs" / "count").read_text() == "counted to 50\n"


def test_a_worker_is_warm_and_has_the_configured_threads(tmp_path: Path) -> None:
    pool = WorkerPool(1, rules=SessionRules(num_threads=2), preload=PRELOADED)
    pool.warm_up()
    first, second = (
        pool.submit(JobSpec("worker_tasks:process_state", None, name=name, log_path=tmp_path / name)).result(PATIENCE_S)
        for name in ("a", "b")
    )
    pool.close()
    assert first["torch"]
    assert first["threads"] == 2
    assert first["threads_of_fork_server"] == 1, "a fork carries no other thread along"
    assert (first["name"], second["name"]) == ("a", "b")
    assert first["fork_server"] == second["fork_server"] != os.getpid()


def test_an_error_of_ours_keeps_its_class(submit: Submit, tmp_path: Path) -> None:
    job = submit("our_error")
    with pytest.raises(DataError, match=r"job our_error, worker \d+: record 7 is short \(job our_error\) \(log: .*our_error\)"):
        job.result(PATIENCE_S)
    assert job.state is JobState.FAILED
    assert "Traceback" in (tmp_path / "logs" / "our_error").read_text()


def test_another_error_becomes_a_training_error_and_its_traceback_is_in_the_log(submit: Submit, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"job foreign_error, worker \d+: ZeroDivisionError: of all things \(log: "):
        submit("foreign_error").result(PATIENCE_S)
    assert 'raise ZeroDivisionError("of all things")' in (tmp_path / "logs" / "foreign_error").read_text()


def test_the_class_of_other_errors_can_be_chosen(tmp_path: Path) -> None:
    pool = WorkerPool(1, failure=UnavailableError, preload=PRELOADED)
    with pytest.raises(UnavailableError, match="ZeroDivisionError"):
        pool.submit(JobSpec("worker_tasks:foreign_error", None, name="job", log_path=tmp_path / "log")).result(PATIENCE_S)
    pool.close()


@pytest.mark.parametrize(
    ("task", "request_", "kind", "told"),
    [
        (
            "end_by_signal",
            signal.SIGKILL,
            WorkerDiedError,
            r"ended by SIGKILL, which is what the kernel sends when memory runs out \(log: ",
        ),
        ("end_by_signal", signal.SIGSEGV, WorkerDiedError, r"ended by SIGSEGV \(log: "),
        ("leave", 7, TrainingError, r"ended by exit code 7 \(log: "),
        ("not_picklable", None, TrainingError, r"the result of worker_tasks:not_picklable cannot be sent"),
    ],
)
def test_a_worker_that_ends_without_a_word_is_an_error(
    submit: Submit, task: str, request_: object, kind: type[ModynError], told: str
) -> None:
    job = submit(task, request_)
    with pytest.raises(kind, match=told):
        job.result(PATIENCE_S)
    assert job.state is JobState.FAILED


def test_a_full_disk_is_a_service_that_lacks_something_for_now(submit: Submit) -> None:
    with pytest.raises(UnavailableError, match=r"the disk is full: .*No space left on device.*; free space there"):
        submit("write_to", "/dev/full").result(PATIENCE_S)


class OnFullDisk(WorkerPool):
    """A pool that has no space for the socket of its fork server."""

    def _start_process(self, process: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/listener")


def test_a_worker_that_cannot_start_on_a_full_disk_may_start_later(tmp_path: Path) -> None:
    pool = OnFullDisk(1)
    job = pool.submit(JobSpec("worker_tasks:count", 3, name="job count", log_path=tmp_path / "count"))
    with pytest.raises(UnavailableError, match=r"the disk is full: .*No space left on device.*; free space there"):
        job.result(PATIENCE_S)
    pool.close()


def test_an_unknown_task_is_an_error(submit: Submit) -> None:
    with pytest.raises(ConfigError, match="cannot import 'worker_tasks:nothing'"):
        submit("nothing").result(PATIENCE_S)


def test_a_request_that_cannot_be_sent_is_an_error(submit: Submit) -> None:
    job = submit("count", threading.Lock())
    with pytest.raises(TrainingError, match="no worker can be started"):
        job.result(PATIENCE_S)


def test_a_job_whose_log_cannot_be_made_runs_and_says_why_it_has_none(submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the place of the folder")
    reason = r"record 7 is short.* \(its log .*/logs/our_error cannot be written: (File exists|Not a directory)\)"
    with pytest.raises(DataError, match=reason):
        submit("our_error").result(PATIENCE_S)


def test_a_job_stops_on_request(submit: Submit, tmp_path: Path) -> None:
    started = threading.Event()
    job = submit("until_stopped", on_message=lambda _: started.set())
    assert started.wait(PATIENCE_S)
    states = [job.state]
    job.stop()
    with pytest.raises(CancelledError, match="stopped on request"):
        job.result(PATIENCE_S)
    states.append(job.state)
    assert states == [JobState.RUNNING, JobState.STOPPED]
    log = (tmp_path / "logs" / "until_stopped").read_text()
    assert "Traceback" not in log
    assert "stopped on request" in log
    job.stop()  # of a job that has ended: nothing happens


@pytest.mark.parametrize(("also_to_sigterm", "by"), [(False, "SIGTERM"), (True, "SIGKILL")])
def test_a_job_that_does_not_listen_is_ended(tmp_path: Path, also_to_sigterm: bool, by: str) -> None:
    pool = WorkerPool(1, preload=PRELOADED, kill_after_s=0.1)
    started = threading.Event()
    job = pool.submit(
        JobSpec("worker_tasks:deaf", also_to_sigterm, name="job", log_path=tmp_path / "log"), on_message=lambda _: started.set()
    )
    assert started.wait(PATIENCE_S)
    job.stop(grace_s=0.1)
    with pytest.raises(CancelledError, match=by):
        job.result(PATIENCE_S)
    assert job.state is JobState.STOPPED
    pool.close()


def test_a_queued_job_stops_without_ever_running(submit: Submit, tmp_path: Path) -> None:
    running = [submit("until_stopped"), submit("until_stopped")]
    queued = submit("count", 3)
    queued.stop()
    assert queued.wait(0)
    assert queued.state is JobState.STOPPED
    with pytest.raises(CancelledError, match="before it began"):
        queued.result()
    for job in running:
        job.stop()
        assert job.wait(PATIENCE_S)
    assert not (tmp_path / "logs" / "count").exists()


def test_jobs_are_bounded_and_begin_in_order(pool: WorkerPool, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def running() -> list[str]:
        return sorted(mark.name for mark in marks.iterdir())

    def are_running(names: list[str]) -> bool:
        return running() == names

    jobs = [
        pool.submit(JobSpec("worker_tasks:while_marked", (str(marks), str(i)), name=str(i), log_path=tmp_path / "log"))
        for i in range(5)
    ]
    for both in (["0", "1"], ["1", "2"], ["2", "3"], ["3", "4"]):
        eventually(partial(are_running, both), running)
        (marks / both[0]).unlink()
    (marks / "4").unlink()
    assert max(job.result(PATIENCE_S) for job in jobs) == 2


def test_without_a_thread_a_job_is_refused_and_later_ones_run(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Job] = []
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(
            UnavailableError, match="job count cannot start: can't start new thread; try again .* limit of threads"
        ):
            submit("count", 1, on_done=ended.append)
    assert not (tmp_path / "logs").exists()
    assert submit("count", 2).result(PATIENCE_S) == 2
    assert not ended


def test_without_a_further_thread_a_job_waits_for_the_workers_that_there_are(
    submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submit("until_stopped")
    eventually(lambda: first.state is JobState.RUNNING)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_thread)
        second = submit("count", 2)
    assert second.state is JobState.QUEUED
    first.stop()
    assert second.result(PATIENCE_S) == 2


def test_without_open_files_a_job_is_refused(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pipe(*_: object, **__: object) -> Job:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(modyn.workers.pool, "Job", no_pipe)
        with pytest.raises(UnavailableError, match="job count cannot start: .*Too many open files; .* limit of open files"):
            submit("count", 1)
    assert submit("count", 2).result(PATIENCE_S) == 2


def test_a_last_word_that_comes_between_the_looks_at_connection_and_exit_is_heard(
    submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(objects: Sequence[Any], timeout: float | None = None) -> list[Any]:
        """The connection, which is looked at first, was still empty; then the worker said everything and left."""
        return list(wait(objects[-2:], timeout))

    monkeypatch.setattr(modyn.workers.session, "wait", late)
    heard: list[object] = []
    assert submit("count", 5, on_message=heard.append).result(PATIENCE_S) == 5
    assert heard == list(range(5))


def test_a_callback_that_raises_ends_the_job_and_its_worker(submit: Submit, caplog: pytest.LogCaptureFixture) -> None:
    pids: list[int] = []

    def listener(pid: int) -> None:
        pids.append(pid)
        raise RuntimeError("listener")

    job = submit("until_stopped", on_message=listener)
    with pytest.raises(TrainingError, match="cannot be watched: RuntimeError"):
        job.result(PATIENCE_S)
    eventually(lambda: not is_alive(pids[0]))
    assert "the watcher of job until_stopped failed" in caplog.text


def test_callbacks_that_raise_cost_later_jobs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: object) -> None:
        raise RuntimeError("callback")

    pool = WorkerPool(1, preload=PRELOADED)
    job = pool.submit(JobSpec("worker_tasks:count", 1, name="job a", log_path=tmp_path / "a"), on_message=fails, on_done=fails)
    with pytest.raises(TrainingError, match="cannot be watched: RuntimeError"):
        job.result(PATIENCE_S)
    assert pool.submit(JobSpec("worker_tasks:count", 2, name="job b", log_path=tmp_path / "b")).result(PATIENCE_S) == 2
    pool.close()
    assert "the callback after the end of job a failed" in caplog.text


def test_a_closed_pool_has_no_workers_and_takes_no_jobs(tmp_path: Path) -> None:
    pool = WorkerPool(1, preload=PRELOADED)
    pids: list[int] = []
    jobs = [
        pool.submit(JobSpec("worker_tasks:until_stopped", None, name=name, log_path=tmp_path / name), on_message=pids.append)
        for name in ("running", "queued")
    ]
    eventually(lambda: pids)
    pool.close()
    assert [job.state for job in jobs] == [JobState.STOPPED, JobState.STOPPED]
    assert not is_alive(pids[0])
    with pytest.raises(ConflictError, match="shutting down"):
        pool.submit(JobSpec("worker_tasks:count", 1, name="late", log_path=tmp_path / "late"))


def test_children_of_workers_come_from_the_same_server_and_die_with_their_worker(submit: Submit) -> None:
    told: list[tuple[int, int, int, int]] = []
    job = submit("with_child", on_message=told.append)
    eventually(lambda: told)
    worker, server, child, parent_of_child = told[0]
    assert parent_of_child == server
    os.kill(worker, signal.SIGKILL)
    assert job.wait(PATIENCE_S)
    eventually(lambda: not is_alive(child))
    assert is_alive(server)


SERVICE = """
    import sys, threading, time
    sys.path.insert(0, {here!r})
    from pathlib import Path
    from modyn.workers import JobSpec, WorkerPool

    if __name__ == "__main__":
        pool = WorkerPool(2, preload=())
        pool.warm_up()
        seen = pool.submit(JobSpec("worker_tasks:process_state", None, "first", Path({log!r}) / "first")).result(60)
        print(seen["fork_server"], flush=True)
        told = threading.Event()

        def tell(message):
            print(message, flush=True)
            told.set()

        pool.submit(JobSpec("worker_tasks:{task}", {request!r}, "spin", Path({log!r}) / "spin"), on_message=tell)
        told.wait()
        time.sleep({seconds})
"""


@contextmanager
def service(tmp_path: Path, task: str, request: object, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A process that prints the first message of its worker, then lives for `seconds`."""
    path = tmp_path / "service.py"
    path.write_text(
        textwrap.dedent(SERVICE).format(here=str(HERE), log=str(tmp_path), task=task, request=request, seconds=seconds)
    )
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("task", "request_"), [("until_stopped", None), ("deaf", True)])
def test_workers_die_with_a_killed_service(tmp_path: Path, task: str, request_: object) -> None:
    with service(tmp_path, task, request_, 600) as process:
        assert process.stdout is not None
        fork_server = int(process.stdout.readline())
        worker = int(process.stdout.readline())
        assert is_alive(fork_server)
        assert is_alive(worker)
        process.kill()
    eventually(lambda: not is_alive(worker) and not is_alive(fork_server))


def test_a_service_that_ends_does_not_wait_for_its_workers(tmp_path: Path) -> None:
    with service(tmp_path, "until_stopped", None, 0) as process:
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    eventually(lambda: not is_alive(int(output.split()[-1])))
