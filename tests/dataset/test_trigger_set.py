"""Batches of a trigger set: exact multisets, paired columns, resumption, errors that surface, threads that end."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from modyn.dataset.batch import Batch
from modyn.dataset.chunks import ReadLimits
from modyn.dataset.config import DataConfig, RecordLayout
from modyn.dataset.connections import DatasetClients
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.batch_plan import BatchPosition
from modyn.dataset.reader import BLOCK_BATCHES
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.errors import ConflictError, CorruptStateError, DataError, InvalidArgumentError, UserCodeError
from modyn.records import Int64Array, RunId, TriggerSetInfo
from modyn.testing.fake_storage import FakePayloadClient
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.fake_dataset import FakeTriggerSet, StuckPayloadClient

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

LAYOUT = DataConfig(dataset_id="fake", record_layout=RecordLayout(dtype="int64"))
PER_SAMPLE = DataConfig(
    dataset_id="fake", bytes_parser_function="def bytes_parser_function(x):\n    return torch.tensor(struct.unpack('<q', x)[0])\n"
)
BATCHWISE = DataConfig(
    dataset_id="fake",
    batch_parser_function="def batch_parser_function(data, offsets):\n    return torch.from_numpy(data.copy()).view(torch.int64)\n",
)

START = BatchPosition()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    eventually(lambda: not left_threads(), left_threads)


def left_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("prefetch", "serve"))]


def trigger_set(num_keys: int, partition_size: int, **fields: Any) -> FakeTriggerSet:
    """Keys are neither dense nor in order, so that a position cannot be confused with a key."""
    keys = np.random.default_rng(num_keys).permutation(2 * num_keys)[:num_keys].astype(np.int64)
    return FakeTriggerSet(keys, partition_size, **fields)


def served(dataset: TriggerSetDataset, num_workers: int = 1) -> list[Batch]:
    with BatchLoader(dataset, num_workers) as loader:
        batches = list(loader)
    for batch in batches:
        check_pairing(batch)
    return batches


def check_pairing(batch: Batch) -> None:
    assert isinstance(batch.data, torch.Tensor)
    assert torch.equal(batch.data.reshape(-1), batch.keys)
    assert torch.equal(batch.labels, batch.keys % 10)
    assert torch.equal(batch.weights, (batch.keys / 2).to(torch.float32))


def content(batches: list[Batch]) -> list[tuple[int, int, list[int]]]:
    return [(batch.epoch, batch.index, batch.keys.tolist()) for batch in batches]


@given(
    num_keys=st.integers(0, 50),
    partition_size=st.integers(1, 30),
    batch_size=st.integers(1, 20),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    data=st.sampled_from([LAYOUT, PER_SAMPLE, BATCHWISE]),
    ahead=st.integers(0, 3),
    threads=st.integers(1, 3),
    answer_size=st.integers(1, 20),
    limits=st.builds(
        ReadLimits, fetch_samples=st.integers(1, 30), fetch_bytes=st.integers(1, 400), first_fetch=st.integers(1, 20)
    ),
    short_cut=st.booleans(),
    num_workers=st.integers(1, 3),
)
def test_each_epoch_yields_each_key_once_with_its_own_columns(
    *,
    num_keys: int,
    partition_size: int,
    batch_size: int,
    shuffle: bool,
    drop_last: bool,
    data: DataConfig,
    ahead: int,
    threads: int,
    answer_size: int,
    limits: ReadLimits,
    short_cut: bool,
    num_workers: int,
) -> None:
    if data is PER_SAMPLE:
        num_workers = 1  # several are processes, which take too long for many examples
    keys = trigger_set(num_keys, partition_size, answer_size=answer_size, short_cut=short_cut)
    options = LoadOptions(batch_size, drop_last, shuffle, 7, 2, ahead, threads, limits)
    dataset = TriggerSetDataset(keys.info, data, keys, options)
    batches = served(dataset, num_workers)
    assert [(b.epoch, b.index) for b in batches] == [(e, i) for e in range(2) for i in range(dataset.num_batches)]
    for epoch in range(2):
        of_epoch = [b for b in batches if b.epoch == epoch]
        assert all(len(b) == batch_size for b in of_epoch[:-1])
        got = Counter(key for b in of_epoch for key in b.keys.tolist())
        expected = Counter(keys.keys.tolist())
        assert got <= expected
        assert sum(got.values()) == (num_keys - num_keys % batch_size if drop_last else num_keys)
        if not shuffle:
            assert [key for b in of_epoch for key in b.keys.tolist()] == keys.keys[: sum(got.values())].tolist()


@given(
    st.integers(1, 40),
    st.integers(1, 20),
    st.integers(1, 12),
    st.integers(0, 12),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
def test_resuming_skips_exactly_what_was_consumed(
    num_keys: int, partition: int, size: int, consumed: int, shuffle: bool, short_cut: bool, num_workers: int
) -> None:
    """With another number of workers, by the other flow, and without a seed: the second dataset has drawn another one."""
    keys = trigger_set(num_keys, partition)
    options = LoadOptions(size, drop_last=False, shuffle=shuffle, epochs=3)
    first = TriggerSetDataset(keys.info, LAYOUT, keys, options)
    whole = served(first)
    consumed = min(consumed, len(whole))
    state = json.loads(json.dumps(first.state(whole[consumed - 1] if consumed else None)))
    keys.short_cut = short_cut
    second = TriggerSetDataset(keys.info, LAYOUT, keys, options)
    assert second.plan.seed != first.plan.seed
    second.seek(state)
    assert len(second) == len(whole) - consumed
    assert content(served(second, num_workers)) == content(whole[consumed:])


@given(
    num_keys=st.integers(1, 40),
    partition=st.integers(1, 20),
    size=st.integers(1, 12),
    num_epochs=st.integers(1, 3),
    consumed=st.integers(0, 12),
    num_workers=st.integers(1, 3),
)
def test_an_epoch_that_is_set_is_served_alone_and_resumed_alone(
    *, num_keys: int, partition: int, size: int, num_epochs: int, consumed: int, num_workers: int
) -> None:
    """Batches are as users of PyTorch's samplers expect: for any `epochs`, and in the order that the epoch has in the whole."""
    keys = trigger_set(num_keys, partition)

    def dataset(epochs: int, seed: int | None) -> TriggerSetDataset:
        options = LoadOptions(size, drop_last=False, shuffle=True, seed=seed, epochs=epochs)
        return TriggerSetDataset(keys.info, LAYOUT, keys, options)

    whole = served(dataset(3, 5))
    one = dataset(num_epochs, 5)
    each: list[Batch] = []
    for epoch in range(3):
        one.set_epoch(epoch)
        assert len(one) == one.num_batches
        each += served(one, num_workers)
    assert content(each) == content(whole)

    consumed = min(consumed, one.num_batches)
    state = one.state(each[2 * one.num_batches + consumed - 1] if consumed else None)
    other = dataset(1, None)
    other.seek(state)
    assert content(served(other)) == content(whole[2 * one.num_batches + consumed :])
    one.seek(BatchPosition())
    assert content(served(one)) == content(whole[: num_epochs * one.num_batches])


@given(
    num_keys=st.integers(1, 40),
    partition=st.integers(1, 20),
    size=st.integers(1, 12),
    shuffle=st.booleans(),
    short_cut=st.booleans(),
    window=st.integers(1, 30),
    deleted=st.sets(st.integers(0, 79)),
    data=st.sampled_from([LAYOUT, PER_SAMPLE]),
)
def test_deleted_samples_leave_their_batch_and_no_other(
    num_keys: int, partition: int, size: int, *, shuffle: bool, short_cut: bool, window: int, deleted: set[int], data: DataConfig
) -> None:
    options = LoadOptions(size, drop_last=False, shuffle=shuffle, seed=3, limits=ReadLimits(window, 8 * window, window))
    keys = trigger_set(num_keys, partition, answer_size=3)
    whole = served(TriggerSetDataset(keys.info, data, keys, options))
    missing = frozenset(deleted & set(keys.keys.tolist()))
    fewer = trigger_set(num_keys, partition, answer_size=3, deleted=missing, short_cut=short_cut)
    with BatchLoader(TriggerSetDataset(fewer.info, data, fewer, options)) as loader:
        left = list(loader)
    assert loader.num_skipped == len(missing)
    expected = [(e, i, [k for k in ks if k not in missing]) for e, i, ks in content(whole)]
    assert content(left) == [batch for batch in expected if batch[2]]


def test_repeated_keys_keep_their_places() -> None:
    keys = FakeTriggerSet(np.array([4, 1, 4, 4, 2, 1]), 6, answer_size=2, deleted=frozenset([2]))
    for shuffle in (False, True):
        batches = served(TriggerSetDataset(keys.info, LAYOUT, keys, LoadOptions(6, drop_last=False, shuffle=shuffle, seed=1)))
        assert sorted(batches[0].keys.tolist()) == [1, 1, 4, 4, 4]
    assert content(served(TriggerSetDataset(keys.info, LAYOUT, keys, LoadOptions(2, False)))) == [
        (0, 0, [4, 1]),
        (0, 1, [4, 4]),
        (0, 2, [1]),
    ]


def test_several_worker_processes_yield_the_same_batches() -> None:
    keys = trigger_set(60, 17)
    options = LoadOptions(8, drop_last=False, shuffle=True, seed=5, epochs=2)
    config = DataConfig(
        dataset_id="fake", record_layout=LAYOUT.record_layout, random_transformations=("lambda x: x + 0 * torch.rand(1).long()",)
    )
    position = BatchPosition(0, 3)
    alone = served(TriggerSetDataset(keys.info, config, keys, options, position))
    assert len(alone) == 13
    for short_cut in (False, True):
        keys.short_cut = short_cut
        shared = served(TriggerSetDataset(keys.info, config, keys, options, position), num_workers=2)
        assert content(shared) == content(alone)
    one = TriggerSetDataset(keys.info, config, keys, replace(options, epochs=1))
    one.seek(BatchPosition(1, one_epoch=True))
    assert content(served(one, num_workers=2)) == [batch for batch in content(alone) if batch[0] == 1]


def test_workers_are_threads_where_no_python_runs_for_each_sample() -> None:
    keys = trigger_set(600, 100, short_cut=True)
    with BatchLoader(TriggerSetDataset(keys.info, BATCHWISE, keys, LoadOptions(10)), num_workers=3) as loader:
        next(iter(loader))
        assert multiprocessing.active_children() == []
        assert {f"serve-{i}" for i in range(3)} <= {thread.name for thread in threading.enumerate()}


def test_one_partition_is_shuffled_globally_and_read_batch_by_batch() -> None:
    """Under the short cut nothing but keys and some blocks of batches waits in memory, however large the partition is."""
    read: list[int] = []
    keys = trigger_set(500, 10_000, short_cut=True, before_fetch=lambda keys: read.append(len(keys)))
    options = LoadOptions(20, shuffle=True, seed=1, num_prefetched_partitions=5)
    batches = TriggerSetDataset(keys.info, LAYOUT, keys, options).serve(2)
    order = next(batches).keys.tolist()
    eventually(lambda: len(read) >= 3)
    assert len(read) <= 5  # one in use, two ahead, and two threads at work
    order += [key for batch in batches for key in batch.keys.tolist()]
    assert set(read) <= {20 * num for num in range(1, BLOCK_BATCHES + 1)}
    assert sorted(order) == sorted(keys.keys.tolist())
    positions = np.argsort(np.argsort(keys.keys))[np.searchsorted(np.sort(keys.keys), order)]
    assert np.abs(np.diff(positions)).mean() > 500 / 5  # of a random order: a third


def test_without_a_seed_the_order_changes_and_with_one_it_does_not() -> None:
    keys = trigger_set(200, 50)

    def order(seed: int | None, trigger_id: int = 0) -> list[tuple[int, int, list[int]]]:
        keys.trigger_id = trigger_id
        return content(served(TriggerSetDataset(keys.info, LAYOUT, keys, LoadOptions(200, shuffle=True, seed=seed))))

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1) != order(1, trigger_id=1)
    assert order(None) != order(None)


def test_random_transformations_are_repeatable_and_leave_the_generators_alone() -> None:
    keys = trigger_set(20, 20)
    config = DataConfig(
        dataset_id="fake",
        record_layout=LAYOUT.record_layout,
        random_transformations=("lambda x: torch.rand(2) + np.random.rand()",),
    )

    def drawn(seed: int, position: BatchPosition = START) -> list[torch.Tensor]:
        dataset = TriggerSetDataset(keys.info, config, keys, LoadOptions(5, seed=seed), position)
        with BatchLoader(dataset) as loader:
            return [batch.data for batch in loader if isinstance(batch.data, torch.Tensor)]

    torch.manual_seed(0)
    before = torch.rand(1)
    torch.manual_seed(0)
    first = drawn(1)
    assert torch.equal(torch.rand(1), before)
    assert all(torch.equal(a, b) for a, b in zip(first, drawn(1), strict=True))
    assert not torch.equal(first[0], drawn(2)[0])
    assert not torch.equal(first[0], first[1])
    assert torch.equal(drawn(1, BatchPosition(0, 2))[0], first[2])


def test_samples_come_out_before_the_partition_is_complete() -> None:
    taken = threading.Event()
    asked: list[int] = []

    def before_fetch(keys: Int64Array) -> None:
        asked.append(len(keys))

    keys = trigger_set(30, 30, answer_size=5, before_fetch=before_fetch)
    clients = keys()
    client = clients.payloads
    assert isinstance(client, FakePayloadClient)
    original = client._answers

    def answers(*arguments: Any) -> Iterator[Any]:
        for number, payloads in enumerate(original(*arguments)):
            if number == 2:
                assert taken.wait(PATIENCE_S)
            yield payloads

    client._answers = answers  # type: ignore[method-assign,assignment]
    options = LoadOptions(10, num_prefetched_partitions=0)
    with BatchLoader(TriggerSetDataset(keys.info, LAYOUT, lambda: clients, options)) as loader:
        batches = iter(loader)
        assert [len(next(batches)), len(next(batches))] == [10, 10], "the second one from the first half of an answer of twenty"
        taken.set()
    assert asked == [10, 20], "a batch to learn how large samples are, then the rest at once"


def test_prefetching_is_bounded_and_runs_ahead() -> None:
    asked: list[int] = []
    keys = trigger_set(100, 10, before_fetch=lambda keys: asked.append(len(keys)))
    dataset = TriggerSetDataset(
        keys.info, LAYOUT, keys, LoadOptions(10, num_prefetched_partitions=3, parallel_prefetch_requests=2)
    )
    batches = dataset.serve()
    next(batches)
    eventually(lambda: len(asked) >= 4)
    # One in use, three ahead of it; the thread that makes batches is at most three further than we are.
    assert len(asked) <= 8
    batches.close()


def test_an_error_in_a_prefetch_thread_surfaces_at_once_with_its_cause() -> None:
    """This holds even if the previous fetch is waiting; it is cancelled."""

    def before_fetch(keys: Int64Array) -> None:
        if int(keys[0]) == 20:
            assert client.started.wait(PATIENCE_S)
            raise DataError("digits/7.png, offset 0: truncated")

    keys = FakeTriggerSet(np.arange(40), 10, before_fetch=before_fetch)
    client = StuckPayloadClient(keys.storage(), stuck_key=10)
    options = LoadOptions(10, num_prefetched_partitions=3, parallel_prefetch_requests=3)
    loader = BatchLoader(TriggerSetDataset(keys.info, LAYOUT, lambda: DatasetClients(keys().selector, client), options))
    with pytest.raises(DataError, match="truncated"):
        list(loader)
    assert client.called_off.is_set()


def test_an_error_in_a_worker_process_keeps_its_message() -> None:
    keys = trigger_set(20, 10)
    config = DataConfig(dataset_id="fake", bytes_parser_function="def bytes_parser_function(x):\n    return x['a']\n")
    with (
        BatchLoader(TriggerSetDataset(keys.info, config, keys, LoadOptions(5)), num_workers=2) as loader,
        pytest.raises(
            UserCodeError,
            match=r"^bytes_parser_function failed for sample \d+ of dataset 'fake': TypeError.* at line 2: `return x\[.a.\]`; the sample is ",
        ),
    ):
        list(loader)


def test_a_trigger_set_that_changed_is_noticed() -> None:
    keys = trigger_set(20, 10)
    info = FakeTriggerSet(np.arange(25), 10).info
    with pytest.raises(ConflictError, match="partition 2 of trigger 0"):
        list(BatchLoader(TriggerSetDataset(info, LAYOUT, keys, LoadOptions(5))))


def test_positions_that_do_not_exist_are_refused() -> None:
    keys = trigger_set(20, 10)
    dataset = TriggerSetDataset(keys.info, LAYOUT, keys, LoadOptions(5, epochs=2))
    for position in (BatchPosition(2, 1), BatchPosition(3), BatchPosition(0, 5), BatchPosition(-1), BatchPosition(0, -1)):
        with pytest.raises(InvalidArgumentError, match=rf"no position of {position.batch} batches in epoch {position.epoch}"):
            dataset.seek(position)
    with pytest.raises(InvalidArgumentError):
        dataset.seek(BatchPosition(-1, one_epoch=True))
    assert dataset.position == BatchPosition()
    for end in (BatchPosition(2), BatchPosition(1, 4)):
        dataset.seek(end)
        assert (len(dataset), served(dataset)) == (0, [])
    dataset.seek(BatchPosition(7, one_epoch=True))
    assert len(dataset) == 4


def test_a_state_of_other_samples_or_options_is_refused_by_name() -> None:
    keys = trigger_set(20, 10)
    options = LoadOptions(5, shuffle=True)
    state = TriggerSetDataset(keys.info, LAYOUT, keys, options).state()

    def refusal(info: TriggerSetInfo, options: LoadOptions) -> str:
        dataset = TriggerSetDataset(info, LAYOUT, keys, options)
        before = dataset.state()
        with pytest.raises(ConflictError) as caught:
            dataset.seek(state)
        assert dataset.state() == before
        return caught.value.message.removeprefix("the state does not fit this dataset: ")

    assert refusal(keys.info, replace(options, batch_size=4)) == "batch_size is 4 here and 5 in the state"
    both = refusal(keys.info, replace(options, drop_last=False, shuffle=False))
    assert both == "drop_last is False here and True in the state; shuffle is False here and True in the state"
    assert refusal(keys.info, replace(options, seed=9)) == f"seed is 9 here and {state['seed']} in the state"
    assert refusal(replace(keys.info, partition_size=7), options) == "partition_size is 7 here and 10 in the state"
    assert refusal(replace(keys.info, run_id=RunId("other")), options) == "run_id is 'other' here and 'fake-run' in the state"
    changed = refusal(FakeTriggerSet(keys.keys[::-1], 10).info, options)
    assert changed.startswith("keys_checksum is ")
    fewer = refusal(FakeTriggerSet(keys.keys[:15], 10, trigger_id=3).info, options)
    assert [part.split()[0] for part in fewer.split("; ")] == ["keys_checksum", "num_keys", "trigger_id"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "that was saved has version 1, this Modyn reads version 4"),
        ({"epoch": -1}, "epoch is -1"),
        ({"batch": None}, "batch is None"),
        ({"drop_last": 1}, "drop_last is 1"),
        ({"num_keys": True}, "num_keys is True"),
        ({"seed": "7"}, "seed is '7'"),
    ],
)
def test_states_that_cannot_be_read_are_refused(change: dict[str, Any], message: str) -> None:
    keys = trigger_set(20, 10)
    dataset = TriggerSetDataset(keys.info, LAYOUT, keys, LoadOptions(5))
    with pytest.raises(CorruptStateError, match=message):
        dataset.seek(dataset.state() | change)
    with pytest.raises(CorruptStateError, match="version None, this Modyn reads"):
        dataset.seek({})


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"seed": -1},
        {"epochs": -1},
        {"num_prefetched_partitions": -1},
        {"parallel_prefetch_requests": 0},
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidArgumentError, match=rf"^{name} is {wrong[name]}; it must be at least {wrong[name] + 1}$"):
        LoadOptions(**{"batch_size": 5} | wrong)  # type: ignore[arg-type]


def test_the_length_is_that_of_what_comes() -> None:
    keys = trigger_set(20, 10)
    dataset = TriggerSetDataset(keys.info, LAYOUT, keys, LoadOptions(6, drop_last=False, epochs=3))
    for position, left in ((BatchPosition(), 12), (BatchPosition(1, 3), 5)):
        dataset.seek(position)
        assert len(dataset) == len(BatchLoader(dataset, 2)) == len(DataLoader(dataset, batch_size=None)) == left
        assert len(list(dataset)) == left


def test_an_abandoned_iteration_ends_its_threads() -> None:
    keys = trigger_set(1000, 10)
    loader = BatchLoader(TriggerSetDataset(keys.info, LAYOUT, keys, LoadOptions(5, epochs=5, num_prefetched_partitions=2)))
    next(iter(loader))
    loader.close()
    assert not left_threads()
