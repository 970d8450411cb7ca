"""The samples of a trigger set, with where they lie and what the training scored."""

from __future__ import annotations

from typing import cast

import numpy as np

from modyn.analysis.chosen_samples import chosen_samples
from modyn.records import FeedbackHeader, FeedbackRows, RunId, SampleBatch
from modyn.selector.client import SelectorClient
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.fake_storage import FakeStorage

RUN = RunId("r-1")


def informed(storage: FakeStorage) -> SelectorClient:
    storage.add_dataset("d")
    storage.add_samples("d", timestamps=range(100, 110))
    selector = cast("SelectorClient", FakeSelectorClient())
    selector.register_run(RUN, "d", {"name": "NewDataStrategy", "maximum_keys_in_memory": 4, "limit": 6}, 1)
    keys = np.array([sample.key for sample in storage.client().locate("d", np.arange(10))])
    selector.inform(RUN, 0, SampleBatch(keys, np.arange(100, 110), np.arange(10) % 2))
    selector.trigger(RUN, 0, 10)
    return selector


def test_they_come_in_stream_order_over_partitions_up_to_the_limit() -> None:
    storage = FakeStorage()
    selector = informed(storage)
    table = chosen_samples(selector, storage.client(), RUN, 0)
    assert table["key"].to_list() == [4, 5, 6, 7, 8, 9]
    assert table["timestamp"].to_list() == list(range(104, 110))
    assert chosen_samples(selector, storage.client(), RUN, 0, limit=5)["key"].to_list() == [4, 5, 6, 7, 8]


def test_a_sample_that_was_deleted_since_has_no_place() -> None:
    storage = FakeStorage()
    selector = informed(storage)
    storage.client().delete_samples("d", np.array([5]))
    table = chosen_samples(selector, storage.client(), RUN, 0)
    assert table["key"].to_list() == [4, 5, 6, 7, 8, 9]
    assert table["path"].isna().to_list() == [False, True, False, False, False, False]


def test_scores_are_those_of_the_last_epoch_that_saw_the_sample() -> None:
    storage = FakeStorage()
    selector = informed(storage)
    rows = FeedbackRows(
        np.array([4, 6, 6, 4, 99]),
        np.array([0, 0, 1, 1, 1], np.int32),
        {"loss": np.array([[1], [2], [3], [4], [5]], np.float32), "g": np.zeros((5, 2), np.float32)},
    )
    checksum = selector.trigger_set(RUN, 0).keys_checksum
    selector.put_feedback(FeedbackHeader(RUN, 0, checksum, 1, 5, {"loss": 1, "g": 2}), lambda: iter([rows]))
    table = chosen_samples(selector, storage.client(), RUN, 0).set_index("key")
    assert table["loss"].dropna().to_dict() == {4: 4.0, 6: 3.0}
    assert {"g.0", "g.1"} <= set(table.columns)
