"""Any list of keys, or stream of lists, is returned as full batches in the given order."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.cache.keys import TierName
from modyn.cache.tiers.tier import TierPlace
from modyn.dataset.batch import CachedCounts
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.config import DataConfig, RecordLayout
from modyn.dataset.connections import PayloadReader
from modyn.dataset.key_loader import KEYS_PER_READ, load_keys
from modyn.errors import InvalidArgumentError, NotFoundError, UserCodeError, WorkerDiedError
from modyn.records import Int64Array
from tests.support.fake_dataset import FakeTriggerSet

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

DATA = DataConfig(dataset_id="fake", record_layout=RecordLayout(dtype="int64"))
DRAWING = DataConfig(
    dataset_id="fake", record_layout=RecordLayout(dtype="int64"), transformations=("lambda x: x + 0 * torch.rand(1).long()",)
)


def payload_client(deleted: frozenset[int] = frozenset()) -> PayloadReader:
    return FakeTriggerSet(np.arange(60), 60, deleted, answer_size=4)().payloads


@given(
    st.lists(st.lists(st.integers(0, 59), max_size=20), max_size=6),
    st.integers(1, 12),
    st.integers(1, 3),
    st.sampled_from([DATA, DRAWING]),
)
def test_batches_are_full_and_in_order(arrays: list[list[int]], batch_size: int, num_threads: int, data: DataConfig) -> None:
    keys = [key for array in arrays for key in array]
    stream = (np.array(array, np.int64) for array in arrays)
    batches = list(load_keys(stream, data, batch_size, num_threads=num_threads, payloads=payload_client()))
    assert [key for batch in batches for key in batch.keys.tolist()] == keys
    assert all(len(batch) == batch_size for batch in batches[:-1])
    for batch in batches:
        assert batch.data.reshape(-1).tolist() == batch.keys.tolist()  # type: ignore[union-attr]
        assert batch.labels.tolist() == (batch.keys % 10).tolist()


def test_a_long_array_is_asked_for_in_parts() -> None:
    asked: list[int] = []
    num_keys = 2 * KEYS_PER_READ + 10
    clients = FakeTriggerSet(np.arange(num_keys), num_keys, before_fetch=lambda keys: asked.append(len(keys)))()
    batches = load_keys(np.arange(num_keys), DATA, 6000, payloads=clients.payloads)
    assert [len(batch) for batch in batches] == [6000] * 5 + [2778]
    assert sum(asked) == num_keys
    assert max(asked) <= KEYS_PER_READ


def test_a_list_of_keys() -> None:
    (batch,) = load_keys([3, 1, 2], DATA, payloads=payload_client())
    assert batch.keys.tolist() == [3, 1, 2]
    assert list(load_keys([], DATA, payloads=payload_client())) == []
    with pytest.raises(InvalidArgumentError, match="keys are whole numbers"):
        list(load_keys([0.5], DATA, payloads=payload_client()))  # type: ignore[arg-type]


def test_deleted_samples() -> None:
    client = payload_client(frozenset([3, 4, 5]))
    assert [batch.keys.tolist() for batch in load_keys(np.arange(8), DATA, 3, payloads=client)] == [[0, 1, 2], [6, 7]]
    with pytest.raises(NotFoundError, match="3"):
        list(load_keys(np.arange(8), DATA, 3, on_missing="raise", payloads=client))


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_skipped_samples_are_counted_and_unknown_ones_are_not_skipped(local: bool, threads: int) -> None:
    fake = FakeTriggerSet(np.arange(60), 60, frozenset([3, 4, 5, 7]), short_cut=local)
    batches = list(load_keys(np.arange(10), DATA, 4, num_threads=threads, payloads=fake().payloads))
    assert [(batch.keys.tolist(), batch.num_skipped) for batch in batches] == [([0, 1, 2], 1), ([6], 3), ([8, 9], 0)]
    with pytest.raises(NotFoundError, match="never had samples .*60"):
        list(load_keys(np.asarray([1, 60]), DATA, 4, payloads=fake().payloads))


@pytest.mark.parametrize("local", [True, False])
def test_keys_of_another_dataset_of_the_name_are_refused(local: bool) -> None:
    fake = FakeTriggerSet(np.arange(60), 60, short_cut=local)
    with pytest.raises(NotFoundError, match="was deleted, and another was registered"):
        next(load_keys(np.arange(8), DATA, 3, identity="of the one before", payloads=fake().payloads))


def test_an_error_in_the_stream_of_keys_surfaces() -> None:
    def broken() -> Iterator[Int64Array]:
        yield np.arange(3)
        raise NotFoundError("there is no dataset 'x'")

    with pytest.raises(NotFoundError, match="no dataset 'x'"):
        list(load_keys(broken(), DATA, 2, payloads=payload_client()))


class Source:
    """A source that opens the same payloads in any process."""

    def __init__(self, deleted: frozenset[int] = frozenset()) -> None:
        self._deleted = deleted

    def open_payloads(self) -> PayloadReader:
        return payload_client(self._deleted)


def test_where_python_runs_for_each_sample_processes_make_the_same_batches() -> None:
    """Each its share of the batches, also of numbers that are drawn. What fails in one fails here, with its own message."""
    data = transformed(
        "lambda x: torch.cat([x.reshape(1), torch.randint(0, 10**9, (1,)), torch.tensor([__import__('os').getpid()])])"
    )
    deleted = frozenset({3, *range(40, 50)})
    made: list[Any] = []
    for num_processes in (1, 2):
        arrays, payloads = iter([np.arange(0, 25), np.arange(25, 26), np.arange(26, 60)]), payload_client(deleted)
        batches = list(load_keys(arrays, data, 10, num_threads=num_processes, payloads=payloads, source=Source(deleted)))
        expected = [[k for k in range(first, first + 10) if k != 3] for first in (0, 10, 20, 30, 50)]
        assert [batch.keys.tolist() for batch in batches] == expected
        made.append([batch.data.numpy() for batch in batches])  # type: ignore[union-attr]
    for alone, shared in zip(*made, strict=True):
        assert np.array_equal(alone[:, :2], shared[:, :2])
        assert len(set(shared[:, 2])) == 1
    pids = {int(rows[0, 2]) for rows in made[1]}
    assert len(pids) == 2
    assert os.getpid() not in pids
    with pytest.raises(UserCodeError, match="transformation.* failed for sample 21 of dataset 'fake'"):
        list(load_keys(np.arange(60), transformed("lambda x: 1 // int(x - 21)"), 10, num_threads=2, source=Source()))
    assert multiprocessing.active_children() == []


def test_a_killed_process_is_a_dead_worker() -> None:
    """Its service repeats the work, as after the death of the worker itself."""
    killed = transformed("lambda x: __import__('os').kill(__import__('os').getpid(), 9) if x == 21 else x")
    with pytest.raises(
        WorkerDiedError, match=r"process \d+ that makes batches was ended by SIGKILL, perhaps because memory ran out"
    ):
        list(load_keys(np.arange(60), killed, 10, num_threads=2, source=Source()))


PARSER = """
def bytes_parser_function(data: memoryview):
    return torch.frombuffer(bytearray(data), dtype=torch.int64)[:1].double()
"""
PARSED = DataConfig(
    dataset_id="fake",
    bytes_parser_function=PARSER,
    deterministic_transformations=("lambda x: x * 3",),
    random_transformations=("lambda x: x + torch.rand(1)",),
)
BROKEN = PARSED.model_copy(update={"bytes_parser_function": PARSER.replace("return", "raise ValueError(1) #")})


def cache_in(folder: Path, budgets: dict[TierName, int]) -> CacheSource:
    places = {name: TierPlace(name, name.encode().ljust(12), budget) for name, budget in budgets.items()}
    return CacheSource("memory", str(folder), places)


def content(batches: list[Any]) -> list[list[list[float]]]:
    return [[batch.keys.tolist(), batch.data.tolist(), batch.labels.tolist()] for batch in batches]


@pytest.mark.parametrize("local", [True, False])
@settings(max_examples=15)
@given(
    keys=st.lists(st.integers(0, 59), max_size=40),
    num_threads=st.integers(1, 3),
    training=st.booleans(),
    data=st.sampled_from([DATA, PARSED]),
    budgets=st.dictionaries(st.sampled_from(["encoded", "decoded"]), st.sampled_from([0, 60_000, 1 << 24]), min_size=1),
    deleted=st.frozensets(st.integers(0, 59), max_size=20),
)
def test_batches_are_the_same_with_and_without_a_cache(
    tmp_path_factory: pytest.TempPathFactory,
    local: bool,
    keys: list[int],
    num_threads: int,
    training: bool,
    data: DataConfig,
    budgets: dict[TierName, int],
    deleted: frozenset[int],
) -> None:
    """This includes samples that were deleted while they were in the cache."""
    cache = cache_in(tmp_path_factory.mktemp("cache"), budgets)

    def made(cache: CacheSource | None, deleted: frozenset[int] = frozenset()) -> list[list[list[float]]]:
        payloads = FakeTriggerSet(np.arange(60), 60, deleted, short_cut=local)().payloads
        options: dict[str, Any] = {"num_threads": num_threads, "training": training, "payloads": payloads, "cache": cache}
        return content(list(load_keys(keys, data, 7, **options)))

    for gone in (frozenset[int](), frozenset[int](), deleted):
        assert made(cache, gone) == made(None, gone)


@pytest.mark.parametrize("local", [True, False])
def test_what_a_cache_holds_is_neither_read_nor_decoded_and_what_is_missing_is_still_said(tmp_path: Path, local: bool) -> None:
    cache, asked = cache_in(tmp_path / "cache", {"decoded": 1 << 24}), list[int]()
    fake = FakeTriggerSet(
        np.arange(60), 60, before_fetch=lambda keys: asked.extend(keys.tolist()), answer_size=4, short_cut=local
    )
    first = list(load_keys(np.arange(60), PARSED, 7, payloads=fake().payloads, cache=cache))
    assert sorted(asked) == list(range(60))
    asked.clear()
    # No random transformation is applied: what is kept comes before these.
    second = list(load_keys(np.arange(60), BROKEN, 7, payloads=fake().payloads, cache=cache))
    assert asked == []
    assert content(second) == content(first)
    assert {batch.cached for batch in second} == {CachedCounts(decoded=7), CachedCounts(decoded=4)}
    for other in (BROKEN, PARSED):
        left = FakeTriggerSet(np.arange(60), 60, frozenset([3]), short_cut=local)
        with pytest.raises(NotFoundError, match="3"):
            list(load_keys(np.arange(8), other, 3, on_missing="raise", payloads=left().payloads, cache=cache))
        with pytest.raises(NotFoundError, match="another was registered"):
            list(load_keys(np.arange(8), other, 3, identity="of the one before", payloads=left().payloads, cache=cache))


def test_processes_share_a_cache(tmp_path: Path) -> None:
    cache, deleted = cache_in(tmp_path / "cache", {"decoded": 1 << 24}), frozenset({3, *range(40, 50)})
    first = list(load_keys(np.arange(60), PARSED, 10, num_threads=2, source=Source(), cache=cache))
    assert content(first) == content(list(load_keys(np.arange(60), PARSED, 10, payloads=payload_client())))
    second = list(load_keys(np.arange(60), BROKEN, 10, num_threads=2, source=Source(deleted), cache=cache))
    assert content(second) == content(list(load_keys(np.arange(60), PARSED, 10, payloads=payload_client(deleted))))
    assert [batch.cached.decoded for batch in second] == [9, 10, 10, 10, 10]


def transformed(text: str) -> DataConfig:
    return DataConfig(dataset_id="fake", record_layout=RecordLayout(dtype="int64"), transformations=(text,))
