"""A stream of batches ends when it is complete, or with an error, or because it is closed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from modyn.dataset.config import DataConfig, RecordLayout
from modyn.dataset.loader import BatchLoader
from modyn.dataset.prefetch import Prefetcher
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.errors import ModynError
from tests.support.fake_dataset import FakeTriggerSet

DATA = DataConfig(dataset_id="fake", record_layout=RecordLayout(dtype="int64"))
DRAWING = DataConfig(
    dataset_id="fake", record_layout=RecordLayout(dtype="int64"), transformations=("lambda x: x + 0 * torch.rand(1).long()",)
)


def dataset(data: DataConfig, short_cut: bool) -> TriggerSetDataset:
    """6 partitions, 20 batches."""
    keys = FakeTriggerSet(np.arange(60), 10, answer_size=4, short_cut=short_cut)
    return TriggerSetDataset(keys.info, data, keys, LoadOptions(batch_size=3))


@pytest.mark.parametrize("data", [DATA, DRAWING])
@pytest.mark.parametrize(
    ("short_cut", "stage"),
    [(False, "prefetch-keys"), (False, "prefetch-payloads"), (False, "serve"), (True, "prefetch-keys"), (True, "serve")],
)
@pytest.mark.parametrize("lost", ["the end", "the last result"])
def test_a_stream_that_loses_its_end_does_not_look_complete(
    data: DataConfig, short_cut: bool, stage: str, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates a defect in what reads ahead: one there once ended streams early, without an error."""
    complete = Prefetcher.__iter__

    def losing(prefetcher: Prefetcher[Any, Any]) -> Iterator[tuple[Any, Iterator[Any]]]:
        tasks = complete(prefetcher)
        if not prefetcher._threads[0].name.startswith(stage):
            yield from tasks
        elif lost == "the end":
            yield from islice(tasks, 3)
        else:
            for number, (task, results) in enumerate(tasks):
                yield task, results if number < 3 else iter(list(results)[:-1])

    monkeypatch.setattr(Prefetcher, "__iter__", losing)
    with BatchLoader(dataset(data, short_cut)) as loader, pytest.raises(ModynError, match=r"the batches ended after \d+, but"):
        list(loader)


@pytest.mark.parametrize("short_cut", [False, True])
def test_a_stream_that_is_closed_early_ends_quietly(short_cut: bool) -> None:
    for wanted in (1, 19, 20):
        batches = dataset(DATA, short_cut).serve()
        assert len(list(islice(batches, wanted))) == wanted
        batches.close()
        assert list(batches) == []
