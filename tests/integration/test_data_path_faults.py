"""Processes of the data path are killed while trainings read: each epoch holds every key once, with what belongs to it.

Payload, label and weight of a sample follow from its key, and all that is read is checked.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest

from benchmark.data_path.resident import MIB, watching
from modyn.dataset import OnlineDataset
from modyn.dataset.batch import Batch
from modyn.records import Int64Array
from modyn.storage.read.payload_reader import PAYLOAD_BYTES
from modyn.testing.stack import clean_environment
from modyn.testing.waiting import PATIENCE_S, at_rest
from tests.support.breakable_stack import BreakableStack, Way
from tests.support.keyed_samples import checked, joined, keyed_data

NUM_KEYS, NUM_FILES = 60_000, 6
BATCH = 256


def read(batches: OnlineDataset, at: Mapping[int, Callable[[], object]] | None = None) -> list[Int64Array]:
    """Return the checked keys of each epoch. Args: at: actions by the number of batches before them."""
    epochs: dict[int, list[Int64Array]] = {}
    left = dict(at or {})
    for number, batch in enumerate(batches, start=1):
        epochs.setdefault(batch.epoch, []).append(checked(batch))
        left.pop(number, lambda: None)()
    assert not left, f"there were only {number} batches"
    return [np.concatenate(epochs[epoch]) for epoch in sorted(epochs)]


@pytest.fixture(scope="module")
def keys(breakable: BreakableStack) -> Int64Array:
    """Keys of trigger 0 of run `read`, over the dataset `faults`."""
    breakable.samples("faults", NUM_KEYS, NUM_FILES)
    found = breakable.trigger("read", "faults")
    assert joined([found]) == list(range(NUM_KEYS))
    return found


# Storage


@pytest.mark.parametrize(
    ("shuffle", "per_sample"),
    [pytest.param(False, False, marks=pytest.mark.slow), (True, False), pytest.param(True, True, marks=pytest.mark.slow)],
    ids=["in order", "shuffled", "worker processes"],
)
def test_storage_is_killed_and_comes_back(breakable: BreakableStack, keys: Int64Array, shuffle: bool, per_sample: bool) -> None:
    """Its readers, threads or processes, wait and continue with its successor."""

    def strike() -> None:
        breakable.kill("storage")

    data = keyed_data("faults", per_sample=per_sample)
    dataset = OnlineDataset(
        "read", 0, data, batch_size=BATCH, epochs=2, shuffle=shuffle, seed=3, workers=2, system=breakable.system("off")
    )
    # The epoch has 235 batches.
    epochs = read(dataset, {20: strike, 300: strike})
    assert [joined([epoch]) for epoch in epochs] == 2 * [keys.tolist()]
    breakable.wait_for("storage")
    assert breakable.served_bytes("storage", "faults") > 0, "none of it came from the third process"
    if not shuffle:
        assert np.array_equal(epochs[0], keys)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.exhaustive if seed else pytest.mark.slow) for seed in range(3)]
)
def test_payload_servers_die_all_the_time(breakable: BreakableStack, keys: Int64Array, seed: int) -> None:
    """Two of three at once now and then, at random moments."""
    chance = random.Random(seed)
    names = ["storage", "replica-1", "replica-2"]

    def strike() -> None:
        struck = chance.sample(names, 2)
        for name in struck:
            breakable.kill(name)
        breakable.wait_for(*struck)

    dataset = OnlineDataset(
        "read",
        0,
        batch_size=BATCH,
        epochs=6,
        shuffle=True,
        seed=seed,
        workers=2,
        num_prefetched_partitions=chance.randint(1, 3),
        parallel_prefetch_requests=chance.randint(1, 4),
        system=breakable.system("off", replicas=True),
    )
    epochs = read(dataset, dict.fromkeys(chance.sample(range(1, 6 * 235), 12), strike))
    assert [joined([epoch]) for epoch in epochs] == 6 * [keys.tolist()]


def test_storage_is_away_where_the_short_cut_is_taken(breakable: BreakableStack, keys: Int64Array) -> None:
    """No reader notices the outage, and neither does a reader that starts after the return of storage."""
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 4, "workers": 2, "system": breakable.system("on")}
    with breakable.unattended():
        epochs = read(OnlineDataset("read", 0, epochs=2, **options), {20: lambda: breakable.kill("storage")})
    assert [joined([epoch]) for epoch in epochs] == 2 * [keys.tolist()]
    breakable.wait_for("storage")
    assert np.array_equal(read(OnlineDataset("read", 0, **options))[0], epochs[0])


# Replicas


def test_one_of_three_payload_servers_is_enough(breakable: BreakableStack, keys: Int64Array) -> None:
    """All servers except one are killed in the middle of an epoch and return. Then the last server is killed, so the others are needed."""
    dataset = OnlineDataset(
        "read",
        0,
        batch_size=BATCH,
        epochs=2,
        shuffle=True,
        seed=5,
        parallel_prefetch_requests=2,
        system=breakable.system("off", replicas=True),
    )
    epochs: list[list[Int64Array]] = [[], []]
    with closing(iter(dataset)) as batches:  # type: ignore[type-var]  # a generator

        def go_on(number: int) -> None:
            for _ in range(number):
                batch: Batch = next(batches)
                epochs[batch.epoch].append(checked(batch))

        go_on(20)
        with breakable.unattended():
            breakable.kill("storage")
            breakable.kill("replica-1")
            go_on(150)
            assert breakable.served_bytes("replica-2", "faults") > 0
        breakable.wait_for("storage", "replica-1")
        with breakable.unattended():
            breakable.kill("replica-2")
            go_on(2 * 235 - 170)
            assert next(batches, None) is None
            assert breakable.served_bytes("storage", "faults") + breakable.served_bytes("replica-1", "faults") > 0
    breakable.wait_for("replica-2")
    assert [joined(epoch) for epoch in epochs] == 2 * [keys.tolist()]


def test_a_replica_that_is_back_is_used(breakable: BreakableStack, keys: Int64Array) -> None:
    """Clients that begin then use it: with three servers, every third begins with it."""
    breakable.kill("replica-1")
    breakable.wait_for("replica-1")
    system = breakable.system("off", replicas=True)
    for seed in range(3):
        dataset = OnlineDataset("read", 0, batch_size=5_000, shuffle=True, seed=seed, parallel_prefetch_requests=3, system=system)
        assert joined(read(dataset)) == keys.tolist()
    assert breakable.served_bytes("replica-1", "faults") > 0


# The training itself

TRAIN = """
import json, sys
from pathlib import Path
from modyn.config.system import load_system_config
from modyn.dataset import OnlineDataset
from tests.support.keyed_samples import checked, keyed_data

if __name__ == "__main__":
    file, way, per_sample, workers, state = json.loads(sys.argv[1])
    config = load_system_config(Path(file))
    config = config.model_copy(update={"storage": config.storage.model_copy(update={"short_cut": way})})
    data = keyed_data("faults", per_sample=per_sample)
    dataset = OnlineDataset("read", 0, data, batch_size=256, shuffle=True, workers=workers, system=config)
    if state is not None:
        dataset.seek(state)
    for batch in dataset:
        keys = checked(batch).tolist()
        print(json.dumps([dataset.state(batch), keys]), flush=True)
"""


@pytest.mark.parametrize(
    ("way", "per_sample"),
    [
        pytest.param("on", False, id="short cut, threads"),
        pytest.param("off", True, id="flight, processes", marks=pytest.mark.slow),
    ],
)
def test_a_killed_training_continues_with_what_is_missing(
    breakable: BreakableStack, keys: Int64Array, way: Way, per_sample: bool
) -> None:
    """Each time, the number of workers differs, and the training resumes after the last counted batch."""
    program = breakable.stack.folder / "train.py"
    program.write_text(TRAIN)
    state = None
    seen: list[Int64Array] = []
    for workers, num_batches in ((2, 50), (3, 60)):
        arguments = json.dumps([str(breakable.stack.config_file), way, per_sample, workers, state])
        with subprocess.Popen(
            [sys.executable, str(program), arguments], stdout=subprocess.PIPE, text=True, env=clean_environment()
        ) as training:
            assert training.stdout is not None
            for _ in range(num_batches):
                line = training.stdout.readline()
                assert line, "the training ended by itself"
                state, found = json.loads(line)
                seen.append(np.asarray(found, np.int64))
            training.send_signal(signal.SIGKILL)
    assert state is not None
    assert (state["epoch"], state["batch"]) == (0, 110)
    system = breakable.system(way)
    data = keyed_data("faults", per_sample=per_sample)
    dataset = OnlineDataset("read", 0, data, batch_size=BATCH, shuffle=True, seed=state["seed"], workers=1, system=system)
    whole = read(dataset)[0]
    assert np.array_equal(np.concatenate(seen), whole[: 110 * BATCH])
    dataset.seek(state)
    assert np.array_equal(np.concatenate([*seen, *read(dataset)]), whole)
    assert joined([whole]) == keys.tolist()


@pytest.mark.slow
def test_eight_trainings_at_once(breakable: BreakableStack, keys: Int64Array) -> None:
    """Each in its own order, by threads and by processes, both ways; a replica dies meanwhile."""
    reading = threading.Semaphore(0)

    def train(number: int) -> list[Int64Array]:
        dataset = OnlineDataset(
            "read",
            0,
            keyed_data("faults", per_sample=number == 7),
            batch_size=100 + 77 * number,
            shuffle=number % 4 != 0,
            seed=number,
            epochs=2,
            workers=1 + number % 3 if number != 7 else 2,
            num_prefetched_partitions=1 + number % 2,
            parallel_prefetch_requests=1 + number % 3,
            system=breakable.system("on" if number % 2 else "off", replicas=True),
        )
        return read(dataset, {5: reading.release})

    with ThreadPoolExecutor(8) as pool:
        trainings = [pool.submit(train, number) for number in range(8)]
        for _ in trainings:
            assert reading.acquire(timeout=PATIENCE_S), [training.exception() for training in trainings if training.done()]
        breakable.kill("replica-1")
        orders = [training.result() for training in trainings]
    breakable.wait_for("replica-1")
    for epochs in orders:
        assert [joined([epoch]) for epoch in epochs] == 2 * [keys.tolist()]
    assert len({epochs[0].tobytes() for number, epochs in enumerate(orders) if number % 4}) == 6


# Slow readers

WIDE, NUM_WIDE = 2**18, 8_192
"""Bytes of a payload, and how many: 2 GiB, nearly all of it holes."""
AHEAD = 384 * MIB
"""What may be read ahead of a training that stands still: three windows of 64 MiB, and for each what is on its way."""
MEMORY = 1024 * MIB
"""What either side may take, with what its allocators keep for the next window, while the training runs as fast as it can."""


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("on", id="short cut"), pytest.param("off", id="flight")])
def test_a_slow_reader_holds_up_the_others(breakable: BreakableStack, way: Way) -> None:
    """The training stops in the middle, until nothing moves any more: what was read by then is bounded on both sides, and so is memory
    throughout."""
    dataset_name = f"wide-{way}"
    breakable.samples(dataset_name, NUM_WIDE, 4, payload_bytes=WIDE)
    found = breakable.trigger(dataset_name, dataset_name, partition=1_000)
    dataset = OnlineDataset(dataset_name, 0, batch_size=16, shuffle=True, seed=1, workers=2, system=breakable.system(way))

    def num_read() -> int:
        if way == "off":
            return breakable.served_bytes("storage", dataset_name)
        return int(PAYLOAD_BYTES.labels(dataset_name)._value.get())

    storage = breakable.pid("storage")
    assert storage is not None
    with watching(os.getpid()) as reader, watching(storage) as server:
        ahead: list[int] = []

        def stand_still(consumed: int) -> None:
            """The batch that comes next is read by then at least."""
            ahead.append(at_rest(num_read, at_least=(consumed + 1) * 16 * WIDE) - consumed * 16 * WIDE)

        epochs = read(dataset, {number: partial(stand_still, number) for number in (1, 40)})
    assert joined(epochs) == found.tolist()
    assert num_read() >= NUM_WIDE * WIDE
    assert max(ahead) <= AHEAD
    assert reader.grown <= MEMORY, f"the reader grew by {reader.grown / MIB:.0f} MiB"
    assert server.grown <= MEMORY, f"storage grew by {server.grown / MIB:.0f} MiB"
