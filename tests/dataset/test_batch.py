"""Batches are cut and joined without losing a sample; they reach their device whole and in order, and only the computing stream waits for a copy."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.dataset.batch import Batch, bounded, joined, on_device
from modyn.trainer_server.request.training_plan import TrainingPlan

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def batches(num: int, *, pinned: bool = False, of_block: int = 1) -> Iterator[Batch]:
    """Args: of_block: number of consecutive batches that are views of one block of memory."""
    for first in range(0, num, of_block):
        keys = torch.arange(first * 1000, min(num, first + of_block) * 1000)
        block = Batch(keys, {"x": keys.repeat(200, 1).T.float().contiguous()}, keys % 7, keys / 2)
        for index, batch in enumerate((block.pin_memory() if pinned else block).slices(1000), first):
            yield replace(batch, index=index)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("of_block", [1, 3])
@pytest.mark.parametrize("num", [0, 1, 5])
def test_batches_arrive_whole_and_in_order(device: str, of_block: int, num: int) -> None:
    found = []
    for batch in on_device(batches(num, pinned=device == "cuda", of_block=of_block), device):
        assert isinstance(batch.data, dict)
        assert batch.data["x"].device.type == batch.labels.device.type == batch.weights.device.type == device
        assert batch.keys.device.type == "cpu"
        # Read at once: a copy that is not waited for would show here.
        assert torch.equal(batch.data["x"][:, 7].long().cpu(), batch.keys)
        assert torch.equal(batch.labels.cpu(), batch.keys % 7)
        assert torch.equal(batch.weights.cpu(), batch.keys / 2)
        found.append(batch.index)
    assert found == list(range(num))


@pytest.mark.gpu
def test_batches_that_are_views_of_one_block_share_its_copy() -> None:
    blocks = []
    for batch in on_device(batches(7, pinned=True, of_block=3), "cuda"):
        assert isinstance(batch.data, dict)
        blocks.append(batch.data["x"].untyped_storage().data_ptr())
    assert [len(list(group)) for _, group in itertools.groupby(blocks)] == [3, 3, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("of_block", [1, 3])
def test_memory_of_a_batch_in_use_is_not_given_to_the_next_copies(of_block: int) -> None:
    """The computation is slower than the copies: the sums are right only if no copy overwrites memory that the computation still reads."""
    work = torch.rand(4000, 4000, device="cuda")
    sums = []
    for batch in on_device(batches(30, pinned=True, of_block=of_block), "cuda"):
        assert isinstance(batch.data, dict)
        work = work @ work.softmax(0)
        sums.append((batch.data["x"][:, 0] + 0 * work[:1, 0]).double().sum())
        del batch
    expected = [sum(range(i * 1000, (i + 1) * 1000)) for i in range(30)]
    assert [int(total) for total in sums] == expected


def batches_of(sizes: Sequence[Sequence[int]], several: bool = False) -> Iterator[Batch]:
    """Batches of these sizes by epoch, as the loader gives them: without those of no sample."""
    key = 0
    for epoch, in_epoch in enumerate(sizes):
        for index, size in enumerate(in_epoch):
            keys = torch.arange(key, key + size)
            key += size
            data: Any = {"a": keys.float(), "b": keys * 2} if several else keys.float()
            if size:
                yield Batch(keys, data, keys % 3, keys / 2, epoch, index)


@settings(max_examples=4 * settings().max_examples)
@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=4), st.booleans())
def test_joining_keeps_all_samples_in_order_but_one_that_has_no_neighbour_in_its_epoch(
    sizes: list[list[int]], several: bool
) -> None:
    plan = TrainingPlan(num_keys=24, batch_size=4, epochs=4, join_single=True)
    left_out: list[Batch] = []
    before = list(batches_of(sizes, several))
    after = list(joined(batches_of(sizes, several), plan.batches_in, left_out.append))
    alone = [batch.keys.tolist() for batch in left_out]
    for epoch in range(len(sizes)):
        of_epoch = [batch for batch in after if batch.epoch == epoch]
        keys = [key for batch in before if batch.epoch == epoch for key in batch.keys.tolist()]
        if len(keys) == 1:
            assert (of_epoch, keys in alone) == ([], True)
            continue
        assert [key for batch in of_epoch for key in batch.keys.tolist()] == keys
        assert 1 not in map(len, of_epoch)
        last = plan.batches_in(epoch) - 1
        indices = {key: batch.index for batch in before if batch.epoch == epoch for key in batch.keys.tolist()}
        # A training that resumes after a batch sees none of its samples again.
        assert [batch.index for batch in of_epoch] == [min(indices[int(batch.keys[-1])], last) for batch in of_epoch]
    for batch in after:
        first = batch.data["a"] if isinstance(batch.data, dict) else batch.data
        assert torch.equal(first, batch.keys.float())  # type: ignore[arg-type]
        assert torch.equal(batch.labels, batch.keys % 3)
        assert torch.equal(batch.weights, batch.keys / 2)


def test_a_joined_last_batch_counts_as_the_last_of_the_plan() -> None:
    """97 keys in batches of 32, those of the third deleted: the single last sample is part of the second."""
    plan = TrainingPlan(num_keys=97, batch_size=32, epochs=1, join_single=True)
    assert [(len(batch), batch.index) for batch in joined(batches_of([[32, 32, 0, 1]]), plan.batches_in, print)] == [
        (32, 0),
        (33, 2),
    ]


@settings(max_examples=4 * settings().max_examples)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 30))
def test_a_bound_cuts_the_last_batch(sizes: list[int], bound: int) -> None:
    found = list(bounded(batches_of([sizes]), bound))
    keys = [key for batch in found for key in batch.keys.tolist()]
    assert keys == list(range(min(bound, sum(sizes))))


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6), cut=st.integers(1, 4), data=st.data())
def test_columns_follow_their_samples(sizes: list[int], cut: int, data: st.DataObject) -> None:
    """This holds for any cuts, joins and choices of rows: column `key` contains the key of each row."""
    ends = np.cumsum(sizes).tolist()
    made = list[Batch]()
    for index, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        keys = torch.arange(start, end)
        columns = pa.RecordBatch.from_pydict({"key": pa.array(keys.numpy()), "text": [str(key) for key in range(start, end)]})
        made.append(Batch(keys, torch.empty(len(keys), 0), keys, torch.ones(len(keys)), index=index, columns=columns))
    found = [
        *joined(iter(made), lambda _: len(sizes), lambda _: None),
        *bounded(iter(made), ends[-1] - 1),
        *(piece for batch in made for piece in batch.slices(cut)),
    ]
    for batch in made:
        rows = torch.tensor(data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=4)), dtype=torch.int64)
        found.append(pickle.loads(pickle.dumps(batch)).take(rows, torch.ones(len(rows))))
    for batch in found:
        assert batch.columns is not None
        assert batch.columns["key"].to_pylist() == batch.keys.tolist()
        assert batch.columns["text"].to_pylist() == [str(key) for key in batch.keys.tolist()]
        assert isinstance(batch.data, torch.Tensor)
        assert batch.data.shape == (len(batch), 0)
