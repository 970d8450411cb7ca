"""Sessions of workers: one process for the jobs of one key, whose settings are restored after each job, and a new process after each failure."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from modyn.errors import CancelledError, DataError, TrainingError, UnavailableError, UserCodeError, WorkerDiedError
from modyn.local.service_process import is_alive
from modyn.log_files import LogLimits
from modyn.testing.waiting import PATIENCE_S, eventually
from modyn.workers import Job, JobSpec, SessionRules, WorkerLimits, WorkerPool
from tests.support.preloaded import PRELOADED

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

FOR_LONG = SessionRules(idle_s=600.0)

Make = Callable[..., WorkerPool]
Submit = Callable[..., Job]


@pytest.fixture
def make_pool() -> Iterator[Make]:
    pools: list[WorkerPool] = []

    def make(max_workers: int = 1, **options: Any) -> WorkerPool:
        pools.append(WorkerPool(max_workers, preload=PRELOADED, **{"rules": FOR_LONG, **options}))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close(1.0)


@pytest.fixture
def submit(make_pool: Make, tmp_path: Path) -> Submit:
    return submitter(make_pool(), tmp_path)


def submitter(pool: WorkerPool, folder: Path) -> Submit:
    def submit(
        task: str, request: object = None, session: str | None = "a", log: str = "log", device: str = "cpu", **callbacks: Any
    ) -> Job:
        return pool.submit(JobSpec(f"worker_tasks:{task}", request, f"job {task}", folder / log, session, device), **callbacks)

    return submit


def pid(submit: Submit, session: str | None = "a") -> int:
    """The process that does a job of the session."""
    found: int = submit("own_pid", session=session).result(PATIENCE_S)
    return found


def test_jobs_of_one_session_share_a_process_and_others_do_not(submit: Submit) -> None:
    first = pid(submit)
    assert pid(submit) == first
    assert pid(submit, "b") != first
    alone = pid(submit, None)
    assert pid(submit, None) != alone
    assert not is_alive(first)  # with one worker allowed, the other sessions took its place


def test_each_job_writes_its_own_log(submit: Submit, tmp_path: Path) -> None:
    jobs = [submit("count", i, log=f"log-{i}") for i in (1, 2)]
    assert [job.result(PATIENCE_S) for job in jobs] == [1, 2]
    assert [(tmp_path / f"log-{i}").read_text() for i in (1, 2)] == ["counted to 1\n", "counted to 2\n"]


def test_the_log_of_an_earlier_job_does_not_come_back(make_pool: Make, tmp_path: Path) -> None:
    """The code that limits the size of logs checks only the newest log."""
    limits = WorkerLimits("trainer_server", 300.0, logs=LogLimits(check_every_s=0.01))
    submit = submitter(make_pool(rules=SessionRules(limits=limits, idle_s=600.0)), tmp_path)
    submit("count", 1, log="first").result(PATIENCE_S)
    assert submit("write_for_a_while", 50, log="second").result(PATIENCE_S) == 50
    assert (tmp_path / "first").read_text() == "counted to 1\n"
    assert (tmp_path / "second").read_text().split() == [str(i) for i in range(50)]


def test_a_job_finds_the_settings_of_a_new_process(submit: Submit) -> None:
    fresh = submit("settings", session=None).result(PATIENCE_S)
    process = submit("change_everything").result(PATIENCE_S)
    changed = submit("settings")
    found = changed.result(PATIENCE_S)
    assert changed.worker_pid == process
    assert found == fresh | {"random": found["random"]}  # Python seeds itself in each process


def test_the_random_state_is_the_same_for_each_job(submit: Submit) -> None:
    draws = [submit("draw").result(PATIENCE_S) for _ in range(3)]
    assert draws[0] == draws[1] == draws[2]


def test_memory_that_a_job_frees_is_its_own_until_the_session_rests(submit: Submit) -> None:
    """A step of a training would otherwise wait for the system to clear as many pages as it takes."""
    job = submit("pages_taken", 10)
    assert job.result(PATIENCE_S) < (32 << 20) // os.sysconf("SC_PAGE_SIZE")  # of ten times as many
    memory = Path(f"/proc/{job.worker_pid}/statm")
    held = int(memory.read_text().split()[1])
    eventually(lambda: int(memory.read_text().split()[1]) < held - (16 << 20) // os.sysconf("SC_PAGE_SIZE"))


def test_a_job_that_fails_ends_its_session(submit: Submit) -> None:
    first = pid(submit)
    job = submit("our_error")
    with pytest.raises(DataError, match="record 7 is short"):
        job.result(PATIENCE_S)
    assert job.worker_pid == first
    assert pid(submit) != first
    assert not is_alive(first)


def test_a_result_that_cannot_be_sent_ends_the_session(submit: Submit) -> None:
    first = pid(submit)
    with pytest.raises(TrainingError, match="cannot be sent"):
        submit("not_picklable").result(PATIENCE_S)
    assert pid(submit) != first


def test_a_job_that_is_stopped_ends_its_session(submit: Submit) -> None:
    heard: list[int] = []
    job = submit("until_stopped", on_message=heard.append)
    eventually(lambda: heard)
    job.stop()
    with pytest.raises(CancelledError):
        job.result(PATIENCE_S)
    assert pid(submit) != heard[0]


def test_a_job_that_takes_too_long_ends_its_session(make_pool: Make, tmp_path: Path) -> None:
    limits = WorkerLimits("trainer_server", 2.0)
    submit = submitter(make_pool(rules=SessionRules(limits=limits, idle_s=600.0)), tmp_path)
    first = pid(submit)
    with pytest.raises(UserCodeError, match="did not return for sample 1 within 2 s"):
        submit("call_for_ever").result(PATIENCE_S)
    assert pid(submit) != first


def test_a_worker_that_is_killed_in_its_work_fails_that_job_alone(submit: Submit) -> None:
    first = pid(submit)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        submit("end_by_signal", signal.SIGKILL).result(PATIENCE_S)
    assert pid(submit) != first


def test_a_worker_that_is_killed_while_idle_fails_nothing(submit: Submit) -> None:
    first = pid(submit)
    os.kill(first, signal.SIGKILL)
    assert pid(submit) != first


def test_a_worker_that_ends_before_it_begins_a_job_is_replaced(
    submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here an imported file has changed, which the worker finds when it gets the job."""
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "changing.py"
    module.write_text("VALUE = 1")
    assert submit("value_of", "changing").result(PATIENCE_S) == 1
    module.write_text("VALUE = 22")
    assert submit("value_of", "changing").result(PATIENCE_S) == 22


def test_an_idle_session_ends_by_itself(make_pool: Make, tmp_path: Path) -> None:
    submit = submitter(make_pool(rules=SessionRules(idle_s=0.1)), tmp_path)
    first = pid(submit)
    eventually(lambda: not is_alive(first))
    assert pid(submit) != first


def test_without_idle_time_each_job_has_a_process(make_pool: Make, tmp_path: Path) -> None:
    submit = submitter(make_pool(rules=SessionRules()), tmp_path)
    assert pid(submit) != pid(submit)


def test_a_session_ends_when_it_has_grown_to_half_of_the_limit(make_pool: Make, tmp_path: Path) -> None:
    limits = WorkerLimits("trainer_server", 300.0, 2**37)
    submit = submitter(make_pool(rules=SessionRules(limits=limits, idle_s=600.0)), tmp_path)
    first = pid(submit)
    assert pid(submit) == first
    submit("reserve", 2**36).result(PATIENCE_S)
    eventually(lambda: not is_alive(first))
    assert pid(submit) != first


def test_two_jobs_of_a_session_run_side_by_side_in_two_processes(make_pool: Make, tmp_path: Path) -> None:
    submit = submitter(make_pool(2), tmp_path)
    heard: list[int] = []
    jobs = [submit("until_stopped", on_message=heard.append) for _ in range(2)]
    eventually(lambda: len(heard) == 2)
    assert heard[0] != heard[1]
    for job in jobs:
        job.stop()
        assert job.wait(PATIENCE_S)


def test_jobs_learn_where_they_were_placed(make_pool: Make, tmp_path: Path) -> None:
    submit = submitter(make_pool(2, gpus=lambda: (1 << 34, 1 << 34)), tmp_path)
    heard: list[str] = []
    jobs = [submit("report_device", device="cuda", on_message=heard.append) for _ in range(2)]
    eventually(lambda: len(heard) == 2)
    assert sorted(heard) == ["cuda:0", "cuda:1"]
    for job in jobs:
        job.stop()
        assert job.wait(PATIENCE_S)


def test_a_driver_that_does_not_answer_fails_the_jobs_that_need_a_gpu(make_pool: Make, tmp_path: Path) -> None:
    def no_answer() -> tuple[int, ...]:
        raise UnavailableError("the driver does not answer")

    submit = submitter(make_pool(gpus=no_answer), tmp_path)
    with pytest.raises(UnavailableError, match="job own_pid: the driver does not answer"):
        submit("own_pid", device="cuda").result(PATIENCE_S)
    assert pid(submit) > 0


def test_a_closed_pool_has_no_idle_workers(make_pool: Make, tmp_path: Path) -> None:
    pool = make_pool()
    first = pid(submitter(pool, tmp_path))
    pool.close()
    assert not is_alive(first)


def test_a_fork_server_has_not_begun_to_use_cuda(submit: Submit) -> None:
    """Else no worker could: CUDA does not survive a fork."""
    assert submit("use_cuda").result(PATIENCE_S) == (False, 6.0)
