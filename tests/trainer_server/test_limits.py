"""Limits of a worker: a user function that hangs or uses too much memory ends its training with a message."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modyn.dataset.code.functions import compile_function
from modyn.errors import ModynError, TrainingError, UserCodeError
from modyn.records import JobState
from modyn.testing.waiting import PATIENCE_S
from modyn.workers import Job, JobSpec, SessionRules, WorkerLimits, WorkerPool
from modyn.workers.limits import Watchdog
from tests.support.preloaded import PRELOADED
from tests.support.training import NUM_FEATURES, MemoryData, small_pipeline

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

HERE = Path(__file__).parent
SLEEPER = f"""
def bytes_parser_function(data):
    import time
    if bytes(data) == bytes.fromhex('%s'):
        time.sleep(600)
    return np.frombuffer(data, np.float32, {NUM_FEATURES}).copy()
"""


@pytest.fixture(autouse=True)
def tasks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)


@contextmanager
def running(task: str, request: object, folder: Path, limits: WorkerLimits) -> Iterator[Job]:
    pool = WorkerPool(1, preload=PRELOADED, rules=SessionRules(limits=limits))
    yield pool.submit(JobSpec(f"trainer_tasks:{task}", request, name="training of run a, trigger 3", log_path=folder / "log"))
    pool.close(0.5)


def hanging_pipeline(**training: Any) -> dict[str, Any]:
    from tests.support.training import payload_of

    parser = SLEEPER % payload_of(13).hex()
    return small_pipeline(training, data={"dataset_id": "fake", "bytes_parser_function": parser})


@pytest.mark.parametrize("dataloader_workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_parser_that_hangs_fails_the_training(tmp_path: Path, dataloader_workers: int) -> None:
    request = (hanging_pipeline(dataloader_workers=dataloader_workers), MemoryData(), str(tmp_path), 0.0)
    with running("train", request, tmp_path, WorkerLimits("trainer_server", 2.0)) as job:
        with pytest.raises(UserCodeError) as caught:
            job.result(PATIENCE_S)
        assert job.state is JobState.FAILED
    for part in (
        "training of run a, trigger 3, worker ",
        "bytes_parser_function did not return for sample 13 of dataset 'fake' within 2 s",
        "raise trainer_server.user_function_timeout_s",
    ):
        assert part in caught.value.message


def test_a_function_that_holds_the_interpreter_fails_the_training_too(tmp_path: Path) -> None:
    with (
        running("match_for_ever", None, tmp_path, WorkerLimits("trainer_server", 0.2)) as job,
        pytest.raises(TrainingError, match="exit code 1, perhaps because .* trainer_server.user_function_timeout_s, 0.2 s"),
    ):
        job.result(PATIENCE_S)
    assert "bytes_parser_function" in (tmp_path / "log").read_text()


def test_memory_that_runs_out_names_the_limit_and_its_field(tmp_path: Path) -> None:
    limits = WorkerLimits("trainer_server", 300.0, 2**36)
    with running("allocate", 2**30, tmp_path, limits) as job:
        assert job.result(PATIENCE_S) == 2**30
    told = r"label_transformer_function failed for some labels: .*; memory ran out: a worker may take 68719476736 bytes; .*"
    with running("allocate", 2**37, tmp_path, limits) as job, pytest.raises(UserCodeError, match=told) as caught:
        job.result(PATIENCE_S)
    assert "trainer_server.worker_memory_bytes" in caught.value.message


def test_what_ends_in_time_is_left_alone_and_calls_are_told_apart() -> None:
    """Many short calls of one function, longer than the limit together, are no long one."""
    given_up: list[str] = []
    watchdog = Watchdog(WorkerLimits("trainer_server", 4.0), given_up.append)
    times = itertools.count()

    def lasting(seconds: int) -> Callable[[], None]:
        """A call during which the watchdog looks once a second."""

        def look() -> None:
            for _ in range(seconds + 1):
                watchdog.poll(next(times))

        return look

    function = compile_function("def f(pass_time):\n    pass_time()", "f")
    short, long = lasting(1), lasting(6)
    for i in range(30):
        function(partial("sample {}".format, i), short)
    function.each("sample {}".format, np.arange(30), [short] * 30)
    assert given_up == []
    function(lambda: "sample 30", long)
    assert "f did not return for sample 30 within 4 s" in given_up[0]
    given_up.clear()
    function.each("sample {}".format, np.arange(3), [short, short, long])
    assert "f did not return for sample 2 within 4 s" in given_up[0]
    given_up.clear()
    with pytest.raises(UserCodeError):
        function(lambda: "sample 31", "no callable")
    lasting(10)()
    assert given_up == []


def test_only_what_memory_is_to_blame_for_is_told_so() -> None:
    limits = WorkerLimits("evaluator", 1.0, 2**30)
    wrapped = ModynError("a batch failed")
    wrapped.__cause__ = MemoryError()
    assert "evaluator.worker_memory_bytes" in limits.out_of_memory(wrapped)
    assert "evaluator.worker_memory_bytes" in limits.out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: 8"))
    assert limits.out_of_memory(RuntimeError("shapes differ")) == ""
    assert WorkerLimits("evaluator", 1.0).out_of_memory(MemoryError()) == ""
