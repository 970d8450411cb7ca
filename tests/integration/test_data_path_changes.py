"""Files and samples change while trainings read them: an error that says what is wrong, or an epoch that is exact, and nothing in between.

Payload, label and weight of a sample follow from its key, and all that is read is checked.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modyn.dataset import OnlineDataset, load_keys
from modyn.dataset.order.batch_plan import BatchPosition
from modyn.errors import DataError, NotFoundError
from modyn.records import Int64Array
from modyn.testing.stack import clean_environment
from modyn.testing.waiting import PATIENCE_S
from tests.support.breakable_stack import BreakableStack, Way
from tests.support.keyed_samples import checked, joined, keyed_data, keyed_dataset, write_keyed_file

NUM_KEYS, NUM_FILES = 40_000, 8
IN_FILE, RECORD = NUM_KEYS // NUM_FILES, 56
BATCH = 256
BOTH_WAYS = pytest.mark.parametrize("way", ["on", "off"], ids=["short cut", "flight"])


def ingest(breakable: BreakableStack, dataset: str) -> None:
    with breakable.storage() as storage:
        list(storage.ingest(dataset))


def delete(breakable: BreakableStack, dataset: str, keys: Int64Array) -> None:
    with breakable.storage() as storage:
        assert storage.delete_samples(dataset, keys) == len(keys)


def read(batches: OnlineDataset) -> list[Int64Array]:
    return [checked(batch) for batch in batches]


# Files


def truncate(path: Path) -> int:
    """Cut a file in the middle of its sample 1,000."""
    os.truncate(path, 1_000 * RECORD + 30)
    return 1_000


def remove(path: Path) -> int:
    path.unlink()
    return 0


def replace(path: Path) -> int:
    """Replace a file by one of the same size, with samples of other keys."""
    other = path.with_suffix(".other")
    write_keyed_file(other, range(10**6, 10**6 + IN_FILE), 9_000)
    other.replace(path)
    return 0


def overwrite(path: Path) -> int:
    """Overwrite a file in place, so that processes that hold it open see it too."""
    write_keyed_file(path, range(10**6, 10**6 + IN_FILE), 9_000, mode="r+b")
    return 0


def changed_files() -> Iterator[Any]:
    """A change, and the changed files. The gate tests each change over both paths, noticed and unnoticed, in half of the combinations."""
    in_gate = ((truncate, 0), (truncate, 6), (remove, 0), (replace, 6), (overwrite, 0))
    in_slow = ((remove, 6, False), (replace, 0, False), (overwrite, 6, False), (truncate, 0, True))
    cases = [(change, number, False, turn) for turn, (change, number) in enumerate(in_gate)] + [(*case, None) for case in in_slow]
    for change, number, shuffle, turn in cases:
        for way, noticed in itertools.product(("on", "off"), (False, True)):
            is_in_gate = turn is not None and (way == "on") == (noticed == bool(turn % 2))
            name = f"{change.__name__}-{number}-{shuffle}-{way}-{noticed}"
            yield pytest.param(way, change, number, shuffle, noticed, id=name, marks=() if is_in_gate else pytest.mark.slow)


@pytest.mark.parametrize(("way", "change", "number", "shuffle", "noticed"), [*changed_files()])
def test_a_file_is_not_what_it_was(
    breakable: BreakableStack, way: Way, change: Callable[[Path], int], number: int, shuffle: bool, noticed: bool
) -> None:
    """A file changes before an epoch or in the middle of it. `noticed`: storage has looked at the folder since. What comes before the
    error is right; once the file is back, the training resumes."""
    name = f"{change.__name__}-{noticed}-{number}-{shuffle}-{way}"
    folder = breakable.samples(name, NUM_KEYS, NUM_FILES)
    keys = breakable.trigger(name, name, partition=2_000)
    path = folder / f"{number}.bin"
    content = path.read_bytes()
    first_bad = 0
    dataset = OnlineDataset(name, 0, batch_size=BATCH, shuffle=shuffle, seed=1, workers=2, system=breakable.system(way))
    order = np.concatenate(read(dataset)) if shuffle else keys
    seen: list[Int64Array] = []

    def break_it() -> None:
        nonlocal first_bad
        first_bad = number * IN_FILE + change(path)
        if noticed:
            ingest(breakable, name)
            first_bad = number * IN_FILE

    if number == 0:
        break_it()
    with closing(iter(dataset)) as batches:  # type: ignore[type-var]  # a generator
        if number:
            seen += [checked(next(batches)) for _ in range(10)]
            break_it()
        with pytest.raises(DataError, match=rf"{re.escape(str(path))}.*\bbyte \d|\bbyte \d.*{re.escape(str(path))}"):
            seen.extend(checked(batch) for batch in batches)
    got = np.concatenate([np.empty(0, np.int64), *seen])
    assert np.array_equal(got, order[: len(got)])
    assert not ((got >= first_bad) & (got < (number + 1) * IN_FILE)).any()

    path.write_bytes(content)
    os.utime(path, (1000 + number,) * 2)
    ingest(breakable, name)
    dataset.seek(BatchPosition(0, len(seen)))
    assert np.array_equal(np.concatenate([got, *read(dataset)]), order)


@BOTH_WAYS
def test_a_file_is_touched_or_grows_before_a_scan(breakable: BreakableStack, way: Way) -> None:
    """One that grew is read at once; one that was touched once a look at it has shown that it is the same, also by readers that began before."""
    name = f"touched-{way}"
    folder = breakable.samples(name, NUM_KEYS, NUM_FILES)
    keys = breakable.trigger(name, name, partition=2_000)
    options: dict[str, Any] = {"batch_size": BATCH, "workers": 2, "system": breakable.system(way)}
    write_keyed_file(folder / "3.bin", range(NUM_KEYS, NUM_KEYS + 100), 9_000, mode="ab")
    dataset = OnlineDataset(name, 0, epochs=3, **options)
    seen: dict[int, list[Int64Array]] = {0: [], 1: [], 2: []}
    for batch in dataset:
        seen[batch.epoch].append(checked(batch))
        if batch.index == 100 and batch.epoch == 0:
            ingest(breakable, name)
    assert [joined(seen[epoch]) for epoch in seen] == 3 * [keys.tolist()]

    os.utime(folder / "0.bin", (8_000, 8_000))
    with pytest.raises(DataError, match=rf"key \d+ cannot be read: file changed.*0\.bin.*byte \d+.*modyn data ingest {name}"):
        read(OnlineDataset(name, 0, **options))
    ingest(breakable, name)
    assert np.array_equal(np.concatenate(read(OnlineDataset(name, 0, **options))), keys)


@BOTH_WAYS
def test_a_file_grows_between_and_inside_epochs(breakable: BreakableStack, way: Way) -> None:
    """A trigger set stays what it was; the next one has the new samples too. The last of them are appended while it is read."""
    name = f"grown-{way}"
    folder = breakable.samples(name, NUM_KEYS, 2)
    old = breakable.trigger(name, name)
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "workers": 2, "system": breakable.system(way)}
    first = OnlineDataset(name, 0, epochs=2, seed=1, **options)
    seen: dict[int, list[Int64Array]] = {0: [], 1: []}
    end = NUM_KEYS
    for batch in first:
        seen[batch.epoch].append(checked(batch))
        if batch.index in (20, 100, 156):  # an epoch has 157 batches
            write_keyed_file(folder / "1.bin", range(end, end + 500), 2000 + end, mode="ab")
            end += 500
            ingest(breakable, name)
    assert end == NUM_KEYS + 6 * 500
    assert joined(seen[0]) == joined(seen[1]) == old.tolist()
    keys = breakable.trigger(name, name, trigger=1)
    assert joined([keys]) == list(range(end))
    assert joined(read(OnlineDataset(name, 1, seed=2, **options))) == list(range(end))


# Keys


@BOTH_WAYS
def test_keys_that_never_existed_end_a_training(breakable: BreakableStack, way: Way) -> None:
    name = f"never-{way}"
    breakable.samples(name, 5_000, 2)
    ghosts = [5_000, 10**6, 2**62]
    assert len(breakable.trigger(name, name, partition=1_000, extra=ghosts)) == 5_003
    system = breakable.system(way)
    for shuffle in (False, True):
        dataset = OnlineDataset(name, 0, batch_size=100, shuffle=shuffle, seed=1, system=system)
        with pytest.raises(NotFoundError, match="never had samples with the keys"):
            read(dataset)
    asked = np.asarray([7, *ghosts, 3, 7])
    data = keyed_data(name)
    for on_missing in ("raise", "skip"):
        with pytest.raises(NotFoundError, match=f"never had samples with the keys 5000, 1000000, {2**62}"):
            list(load_keys(asked, data, on_missing=on_missing, system=system))


@pytest.mark.parametrize(
    ("way", "shuffle"),
    [("on", True), ("off", False), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("on", False), ("off", True)))],
)
def test_samples_are_deleted_in_the_middle_of_an_epoch(breakable: BreakableStack, way: Way, shuffle: bool) -> None:
    """A deleted sample comes once at most, and not once its turn was far away; all others come exactly once; the next epoch has none."""
    name = f"deleted-{way}-{shuffle}"
    breakable.samples(name, NUM_KEYS, NUM_FILES)
    keys = breakable.trigger(name, name, partition=1_000)
    options: dict[str, Any] = {"batch_size": 100, "shuffle": shuffle, "seed": 1, "workers": 2, "system": breakable.system(way)}
    (order,) = [np.concatenate(read(OnlineDataset(name, 0, **options)))]
    assert joined([order]) == keys.tolist()
    chance = np.random.default_rng(1)
    gone: list[Int64Array] = []
    parts: dict[int, list[Int64Array]] = {0: [], 1: []}
    far_away: list[Int64Array] = []
    for batch in OnlineDataset(name, 0, epochs=2, **options):
        parts[batch.epoch].append(checked(batch))
        if batch.epoch == 0 and batch.index in (50, 150, 250):
            alive = np.setdiff1d(keys, np.concatenate([np.empty(0, np.int64), *gone]))
            # Some here and there, and all samples of some batches to come.
            whole = order[100 * batch.index + 12_000 :][:300]
            now = np.union1d(chance.choice(alive, 500, replace=False), np.intersect1d(whole, alive))
            delete(breakable, name, now)
            gone.append(now)
            far_away.append(np.intersect1d(now, order[100 * batch.index + 12_000 :]))
    deleted = np.concatenate(gone)
    first = np.concatenate(parts[0])
    assert len(np.unique(first)) == len(first)
    assert np.isin(np.setdiff1d(keys, deleted), first).all()
    assert not np.isin(np.concatenate(far_away), first).any()
    assert len(np.concatenate(far_away)) > 900
    assert np.array_equal(first, order[np.isin(order, first)]), "what is left is in another order"
    assert joined(parts[1]) == np.setdiff1d(keys, deleted).tolist()


@BOTH_WAYS
def test_all_samples_are_deleted(breakable: BreakableStack, way: Way) -> None:
    name = f"all-{way}"
    breakable.samples(name, 2_000, 2)
    keys = breakable.trigger(name, name, partition=500)
    delete(breakable, name, keys)
    assert read(OnlineDataset(name, 0, batch_size=64, epochs=2, system=breakable.system(way))) == []


# Ingestion

INGEST = """
import sys
from pathlib import Path
from modyn.config.system import load_system_config
from modyn.storage.catalogue.catalogue import Catalogue
from modyn.storage.datasets import DatasetStore

config = load_system_config(Path(sys.argv[1]))
store = DatasetStore(config, Catalogue.open(config))
print("ready", flush=True)
for line in sys.stdin:
    list(store.ingest(line.strip()))
    print("done", flush=True)
store.close()
"""


@pytest.mark.parametrize("way", ["on", pytest.param("off", marks=pytest.mark.slow)], ids=["short cut", "flight"])
def test_a_dataset_is_ingested_by_two_processes_at_once(breakable: BreakableStack, way: Way) -> None:
    """Another process on the same catalogue and two calls of the service ingest, while files grow and are added: each sample is there
    once, and a training that reads meanwhile has an exact epoch."""
    name = f"twice-{way}"
    folder = breakable.folder(name)
    folder.mkdir(parents=True)
    with breakable.storage() as storage:
        storage.register_dataset(keyed_dataset(name, folder))
    command = [sys.executable, "-c", INGEST, str(breakable.stack.config_file)]
    pipe = subprocess.PIPE
    keys = np.empty(0, np.int64)
    count = 0
    with (
        # Its files are private, as those of a service.
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=clean_environment(), umask=0o077) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        for round_ in range(4):
            for number in range(6):
                path = folder / f"{round_}-{number}.bin"
                write_keyed_file(path, range(count, count + 1_000), 1000 + count)
                count += 1_000
            write_keyed_file(folder / "grown.bin", range(count, count + 500), 1000 + count, mode="ab")
            count += 500
            other.stdin.write(f"{name}\n")
            calls = [pool.submit(ingest, breakable, name) for _ in range(2)]
            if round_:
                dataset = OnlineDataset(
                    name, round_ - 1, batch_size=BATCH, shuffle=True, seed=round_, system=breakable.system(way)
                )
                assert joined(read(dataset)) == keys.tolist()
            for call in calls:
                call.result()
            assert other.stdout.readline() == "done\n"
            keys = breakable.trigger(name, name, trigger=round_, partition=1_500)
            assert joined([keys]) == list(range(count))
        other.stdin.close()
        assert other.wait(PATIENCE_S) == 0
    with breakable.storage() as storage:
        assert storage.dataset(name).num_samples == count
        assert storage.problems(name) == []
    assert joined(read(OnlineDataset(name, 3, batch_size=BATCH, system=breakable.system(way)))) == list(range(count))
