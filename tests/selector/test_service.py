"""The selector over gRPC: one call each, errors that arrive as they left, and processes that are killed while they work."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modyn.config.base import Problem
from modyn.config.system import SystemConfig
from modyn.errors import NotFoundError
from modyn.records import RunId, RunRegistration, SampleBatch
from modyn.selector.client import SelectorClient
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.waiting import PATIENCE_S
from tests.support.processes import ServiceProcess
from tests.support.selecting import serving, serving_storage, stream

RUN = RunId("run-1")
SECTION: dict[str, Any] = {"name": "NewDataStrategy", "maximum_keys_in_memory": 300_000}


@pytest.fixture
def client(system_config: SystemConfig) -> Iterator[SelectorClient]:
    with serving(system_config) as client:
        yield client


def test_a_run_over_the_wire(client: SelectorClient) -> None:
    data = {"dataset_id": "d", "record_layout": {"dtype": "u1", "shape": [2, 3]}}
    for _ in range(2):
        client.register_run(RunRegistration(RUN, "d", {**SECTION, "uses_weights": True}, seed=2**62 + 1, data=data))
    assert client.data_section(RUN) == data
    assert client.inform(RUN, 0, stream(0, 300_001)) == 300_001
    assert client.inform(RUN, 0, stream(0, 300_002)) == 300_002
    assert client.inform(RUN, 300_002, SampleBatch.empty()) == 300_002
    info = client.trigger(RUN, 0, 300_002)
    assert (info.run_id, info.trigger_id, info.num_keys, info.num_partitions) == (RUN, 0, 300_002, 2)
    assert client.trigger_set(RUN, 0) == info
    partitions = [client.keys(RUN, 0, 0, info.keys_checksum), client.keys(RUN, 0, 1)]
    assert [len(partition) for partition in partitions] == [300_000, 2]
    assert np.array_equal(np.concatenate([partition.keys for partition in partitions]), stream(0, 300_002).keys)
    assert partitions[0].weights.dtype == np.float32
    assert set(partitions[0].weights.tolist()) == {1.0}
    client.delete_run(RUN)
    with pytest.raises(NotFoundError, match="no run 'run-1'"):
        client.trigger_set(RUN, 0)


def test_sections_are_validated_and_plugins_listed(client: SelectorClient) -> None:
    assert client.validate({"selection_strategy": SECTION}) == []
    (missing,) = client.validate({"pipeline": {"name": "p"}})
    assert missing.path == "selection_strategy"
    (no_mapping,) = client.validate({"selection_strategy": [1]})
    assert "write a mapping" in no_mapping.message
    (wrong,) = client.validate({"selection_strategy": {**SECTION, "limit": 0.5}})
    assert isinstance(wrong, Problem)
    assert wrong.path == "selection_strategy.limit"
    scored = {**SECTION, "keep_scores": True}
    assert client.asked_scores({"selection_strategy": SECTION}) == ()
    assert client.asked_scores({"selection_strategy": scored}) == ("loss",)
    assert client.asked_scores({"selection_strategy": {**scored, "limit": 0.5}}) == ()
    ids = {(plugin.group, plugin.id) for plugin in client.plugins()}
    assert {("modyn.selection", "NewDataStrategy"), ("modyn.presampling", "Random")} <= ids


def test_messages_are_not_larger_than_configured(make_config: Callable[..., SystemConfig]) -> None:
    """Neither informing nor reading, of numbers that cannot be packed."""
    samples = SampleBatch(*(np.random.default_rng(column).integers(-(2**63), 2**63, 20_000) for column in range(3)))
    with serving(make_config(selector={"max_message_bytes": 65_536})) as client:
        client.register_run(RunRegistration(RUN, "d", SECTION, 1))
        assert client.inform(RUN, 0, samples) == len(samples)
        client.trigger(RUN, 0, len(samples))
        assert np.array_equal(client.keys(RUN, 0, 0).keys, samples.keys)


def drive(client: SelectorClient | FakeSelectorClient, number: int, answered: Callable[[], object] = int) -> list[str]:
    """Send a run's samples in small batches, with some triggers. Returns the checksums of the trigger sets."""
    run_id = RunId(f"run-{number}")
    section = {
        "name": "CoresetStrategy",
        "maximum_keys_in_memory": 500,
        "tail_triggers": 1,
        "storage_backend": ("local", "database")[number % 2],
        "presampling_config": {"strategy": "Random", "ratio": 50},
    }
    client.register_run(RunRegistration(run_id, "d", section, number))
    checksums = []
    for step in range(12):
        held = client.inform(run_id, step * 700, stream(step * 700, step * 700 + 700))
        assert held == step * 700 + 700
        answered()
        if step % 3 == 2:
            checksums.append(client.trigger(run_id, step // 3, held - 100).keys_checksum)
            answered()
    return checksums


def whole_sets(client: SelectorClient | FakeSelectorClient, number: int) -> list[list[int]]:
    """The keys of every trigger set of a run, as they are handed out."""
    run_id, found = RunId(f"run-{number}"), []
    for trigger_id in range(4):
        partitions = range(client.trigger_set(run_id, trigger_id).num_partitions)
        found.append([key for p in partitions for key in client.keys(run_id, trigger_id, p).keys.tolist()])
    return found


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_killed_at_any_moment_it_continues_with_the_same_result(system_config: SystemConfig, tmp_path: Path, kills: int) -> None:
    """Several times kill -9 while runs on both backends are informed and triggered: every trigger set is that of an undisturbed run."""
    moments = random.Random(7)
    results: dict[int, list[str]] = {}
    errors: list[BaseException] = []
    enough, answers = threading.Event(), threading.Semaphore(0)

    def keep_driving(parity: int) -> None:
        try:
            # A restart takes its time on a machine that is busy otherwise.
            with SelectorClient(system_config.endpoint("selector"), wait_s=PATIENCE_S) as client:
                number = parity
                while number < 2 or not enough.is_set():
                    results[number] = drive(client, number, answers.release)
                    number += 2
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            errors.append(error)
            answers.release()

    drivers = [threading.Thread(target=keep_driving, args=(parity,), daemon=True) for parity in (0, 1)]
    with serving_storage(system_config), ServiceProcess("selector", system_config, tmp_path) as process:
        for driver in drivers:
            driver.start()
        try:
            for _ in range(kills):
                # In the middle of work: after some answers, a random moment into the next calls.
                for _ in range(moments.randrange(1, 12)):
                    assert answers.acquire(timeout=PATIENCE_S)
                    assert not errors, errors
                time.sleep(moments.uniform(0, 0.02))
                process.kill()
                while answers.acquire(blocking=False):
                    pass
                process.start()
        finally:
            enough.set()
            for driver in drivers:
                driver.join(PATIENCE_S)
        assert not errors, errors
        assert not any(driver.is_alive() for driver in drivers)
        assert {number % 2 for number in results} == {0, 1}
        with SelectorClient(system_config.endpoint("selector")) as client:
            for number, checksums in results.items():
                fake = FakeSelectorClient()
                assert checksums == drive(fake, number)
                assert whole_sets(client, number) == whole_sets(fake, number)
    leftovers = [path for path in system_config.service_dir("selector").glob("runs/*/triggers/*") if path.suffix != ".set"]
    assert not leftovers


def test_keys_are_waited_for_while_the_selector_starts_again(system_config: SystemConfig, tmp_path: Path) -> None:
    with (
        serving_storage(system_config),
        ServiceProcess("selector", system_config, tmp_path) as process,
        SelectorClient(system_config.endpoint("selector"), wait_s=PATIENCE_S) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        client.register_run(RunRegistration(RUN, "d", SECTION, 1))
        client.inform(RUN, 0, stream(0, 100))
        client.trigger(RUN, 0, 100)
        process.kill()
        keys = pool.submit(client.keys, RUN, 0, 0)
        process.start()
        assert len(keys.result()) > 0


def test_sigterm_ends_it_cleanly(system_config: SystemConfig, tmp_path: Path) -> None:
    with ServiceProcess("selector", system_config, tmp_path) as process:
        assert process.end() == 0
