"""Trainings with a cache make the same models as without, in either store, by threads and by processes, and while Redis is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from modyn.config.cache import CacheConfig
from modyn.config.system import SystemConfig
from modyn.local.control import status_file
from modyn.state_folders import shared_folder
from modyn.supervisor.client import RunState
from modyn.testing.stack import TINY_PARSER, RunningStack, tiny_evaluation, tiny_pipeline, tiny_training
from tests.support.cache_profiles import training_cache_of
from tests.support.comparison import RunOutcome, differences, outcome

DATA = {
    "dataset_id": "cached",
    "bytes_parser_function": TINY_PARSER,
    "deterministic_transformations": ["lambda x: x * 2"],
    "random_transformations": ["lambda x: x + torch.rand(1)"],
}


def pipeline(workers: int = 1, epochs: int = 3, seed: int | None = 5, checkpoints: bool = False, **sections: Any) -> str:
    options: dict[str, Any] = {"checkpointing": {"activated": True, "interval": 5}} if checkpoints else {}
    options["seed"] = seed
    return tiny_pipeline(
        "cached",
        data=DATA,
        trigger={"id": "DataAmountTrigger", "num_samples": 100},
        training=tiny_training(shuffle=True, epochs_per_trigger=epochs, dataloader_workers=workers, **options),
        **sections,
    )


@pytest.fixture(scope="module")
def stack(running_stack: RunningStack) -> RunningStack:
    running_stack.tiny_dataset("cached", num_samples=200, num_files=4)
    return running_stack


def run(stack: RunningStack, text: str) -> tuple[RunOutcome, list[dict[str, int] | None]]:
    """Return the outcome, and what each training took from the cache."""
    ended = stack.run(text)
    assert ended.state is RunState.FINISHED, ended.error
    with stack.client() as client:
        results = [client.model(int(model)).training_result for model in client.models(ended.run_id)["model_id"]]
        return outcome(client, ended.run_id), [result.get("num_cached") for result in results]


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_models_are_the_same_with_and_without_a_cache(stack: RunningStack, workers: int) -> None:
    plain, counts = run(stack, pipeline(workers))
    assert set(map(str, counts)) == {"None"}
    for store in ("memory", "redis"):
        cached, counts = run(stack, pipeline(workers, cache={"size": "3MB", "store": store, "split": "50-50-0"}))
        assert differences(plain, cached) == []
        # An answer of Redis may come too late on a machine that is busy.
        assert store == "redis" or all(count is not None and count["decoded"] >= 100 for count in counts)
    assert (shared_folder(stack.config.state_dir) / "decoded").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "redis"])
def test_runs_that_may_share_samples_train_on_all_of_them(stack: RunningStack, store: str) -> None:
    """Each trains on every sample of each trigger once an epoch, in an order that the cache chooses. What trainings
    at once take from each other is tested in tests/trainer_server/test_cached_trainings.py."""
    text = pipeline(2, epochs=6, seed=None, checkpoints=True, cache={"size": "3MB", "store": store, "jobs": 2})
    assert stack.modyn("cache", "clear").returncode == 0  # Others have just used it, divided otherwise.
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(stack.run, [text, text]))
    with stack.client() as client:
        for run in ended:
            assert run.state is RunState.FINISHED, run.error
            results = [client.model(int(model)).training_result for model in client.models(run.run_id)["model_id"]]
            assert [result["num_samples"] for result in results] == [6 * 100, 6 * 100]
            assert [result["num_skipped"] for result in results] == [0, 0]


def test_a_run_is_refused_where_another_system_file_has_divided_the_same_redis_otherwise(stack: RunningStack) -> None:
    """Another installation trains meanwhile; once it has ended and the cache is cleared, the same pipeline runs."""
    text = pipeline(cache={"size": "3MB", "store": "redis", "split": "50-50-0"})
    assert stack.modyn("cache", "clear").returncode == 0
    with stack.client() as client:
        info = client.dataset("cached")
    cache = CacheConfig.model_validate({"size": "4MB", "store": "redis", "split": "50-50-0"})
    other = SystemConfig(state_dir=stack.folder / "other-installation", redis_url=stack.config.resolved_redis_url(), cache=cache)
    ended = threading.Event()

    def use() -> None:
        """Use the cache like a training: the cache counts as in use for ten seconds."""
        while not ended.wait(1.0):
            training_cache_of(other, {"data": DATA}, info)

    assert training_cache_of(other, {"data": DATA}, info) is not None
    user = threading.Thread(target=use)
    user.start()
    try:
        refused = stack.run(text)
    finally:
        ended.set()
        user.join()
    assert refused.state is RunState.FAILED
    for part in (
        "the tier 'encoded' in the Redis at ",
        str(stack.config.resolved_redis_url()).removeprefix("unix://"),
        "has a budget of 2,000,000 bytes, and this one wants 1,500,000",
        "give both the same size and split, or wait until the other has ended",
    ):
        assert part in refused.error
    assert stack.modyn("cache", "clear").returncode == 0
    again = stack.run(text)
    assert again.state is RunState.FINISHED, again.error


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_evaluations_are_the_same_with_and_without_a_cache(stack: RunningStack, workers: int) -> None:
    """Evaluations use samples that trainings and evaluations of earlier models have decoded."""
    evaluation = tiny_evaluation("cached")
    evaluation["datasets"] = [
        {**entry, **DATA, "dataloader_workers": workers}
        for entry in evaluation["datasets"]  # type: ignore[attr-defined]
    ]
    plain, _ = run(stack, pipeline(evaluation=evaluation))
    assert stack.modyn("cache", "clear").returncode == 0
    ended = stack.run(pipeline(evaluation=evaluation, cache={"size": "3MB", "store": "memory", "split": "50-50-0"}))
    assert ended.state is RunState.FINISHED, ended.error
    with stack.client() as client:
        assert differences(plain, outcome(client, ended.run_id)) == []
    logs = (stack.config.log_dir / "runs" / str(ended.run_id)).glob("evaluation-*.log")
    lines = [json.loads(line) for log in sorted(logs) for line in log.read_text().splitlines()]
    passed = [line for line in lines if line.get("event") == "samples"]
    assert passed
    assert all(line["num_cached"]["decoded"] > 0 for line in passed), passed


@pytest.mark.slow
def test_models_are_the_same_while_redis_is_killed_again_and_again(stack: RunningStack) -> None:
    plain, _ = run(stack, pipeline(epochs=30))
    ended = threading.Event()

    def kill() -> None:
        while not ended.wait(0.7):  # until the run has ended
            parts = json.loads(status_file(stack.config).read_text())["parts"]
            with suppress(ProcessLookupError, TypeError):
                os.kill(next(part["pid"] for part in parts if part["name"] == "redis"), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        cached, _ = run(stack, pipeline(epochs=30, cache={"size": "3MB", "store": "redis", "split": "50-50-0"}))
    finally:
        ended.set()
        killer.join()
    assert differences(plain, cached) == []
