"""Batches reach their device whole and in order, and only the computing stream waits for a copy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from modyn.dataset.batch import Batch, on_device

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


def batches(num: int, *, pinned: bool = False) -> Iterator[Batch]:
    for index in range(num):
        keys = torch.arange(index * 1000, (index + 1) * 1000)
        batch = Batch(keys, {"x": keys.repeat(200, 1).T.float().contiguous()}, keys % 7, keys / 2, 0, index)
        yield batch.pin_memory() if pinned else batch


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num", [0, 1, 5])
def test_batches_arrive_whole_and_in_order(device: str, num: int) -> None:
    found = []
    for batch in on_device(batches(num, pinned=device == "cuda"), device):
        assert isinstance(batch.data, dict)
        assert batch.data["x"].device.type == batch.labels.device.type == batch.weights.device.type == device
        assert batch.keys.device.type == "cpu"
        # Read at once: a copy that is not waited for would show here.
        assert torch.equal(batch.data["x"][:, 7].long().cpu(), batch.keys)
        assert torch.equal(batch.labels.cpu(), batch.keys % 7)
        assert torch.equal(batch.weights.cpu(), batch.keys / 2)
        found.append(batch.index)
    assert found == list(range(num))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_of_a_batch_in_use_is_not_given_to_the_next_copies() -> None:
    """The computation is slower than the copies: the sums are only right if no copy writes where it still reads."""
    work = torch.rand(4000, 4000, device="cuda")
    sums = []
    for batch in on_device(batches(30, pinned=True), "cuda"):
        assert isinstance(batch.data, dict)
        work = work @ work.softmax(0)
        sums.append((batch.data["x"][:, 0] + 0 * work[:1, 0]).double().sum())
        del batch
    expected = [sum(range(i * 1000, (i + 1) * 1000)) for i in range(30)]
    assert [int(total) for total in sums] == expected
