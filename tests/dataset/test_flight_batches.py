"""Units arrive in windows of bounded size; answers are matched with what was asked; a fetch that waits can be called off."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.dataset import flight_batches
from modyn.dataset.config import DataConfig, RecordLayout
from modyn.dataset.connections import DatasetClients
from modyn.dataset.flight_batches import align, windows
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.plan import Piece, Plan, Unit
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.errors import ModynError
from modyn.testing.fake_dataset import FakeTriggerSet
from modyn.testing.fake_storage import StuckPayloadClient
from modyn.testing.waiting import PATIENCE_S

BYTES = DataConfig(dataset_id="fake", record_layout=RecordLayout(dtype="int64"))


@given(
    st.builds(
        Plan,
        num_keys=st.integers(1, 60),
        partition_size=st.integers(1, 60),
        batch_size=st.integers(1, 17),
        drop_last=st.booleans(),
        shuffle=st.booleans(),
    ),
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
    st.integers(1, 3),
)
def test_windows_hold_what_their_unit_holds(plan: Plan, sizes: list[int], num_workers: int) -> None:
    for unit in plan.units(1, worker=0, num_workers=num_workers):
        limits = iter(sizes * 60)
        pieces, rows = [], []
        for window in windows(unit, lambda: next(limits)):  # noqa: B023  (used up at once)
            assert len(window.rows) <= max(sizes)
            assert window.pieces[0].start == 0
            assert window.pieces[-1].stop == len(window.rows)
            rows += window.rows.tolist()
            for piece in window.pieces:
                pieces.append((piece.epoch, piece.index, window.rows[piece.start : piece.stop].tolist(), piece.last))
        assert rows == unit.rows.tolist()
        assert _merged(pieces) == [(p.epoch, p.index, unit.rows[p.start : p.stop].tolist(), p.last) for p in unit.pieces]


def _merged(pieces: list[tuple[int, int, list[int], bool]]) -> list[tuple[int, int, list[int], bool]]:
    """Parts of one piece as one; nothing follows the last."""
    merged: list[tuple[int, int, list[int], bool]] = []
    for epoch, index, rows, last in pieces:
        if merged and merged[-1][:2] == (epoch, index):
            assert not merged[-1][3]
            merged[-1] = (epoch, index, merged[-1][2] + rows, last)
        else:
            merged.append((epoch, index, rows, last))
    return merged


def test_an_empty_unit_has_one_empty_window() -> None:
    unit = next(iter(Plan(3, 3, 3).units(1)))
    empty = Unit(0, np.empty(0, np.int64), (Piece(0, 5, 0, 0, True),))
    assert [window.pieces for window in windows(empty, lambda: 4)] == [empty.pieces]
    assert len(list(windows(unit, lambda: 4))) == 1


@given(st.lists(st.integers(0, 9), max_size=300), st.sets(st.integers(0, 9)), st.integers(0, 5))
def test_answers_are_aligned_with_what_was_asked(keys: list[int], deleted: set[int], start: int) -> None:
    asked, start = np.array(keys, np.int64), min(start, len(keys))
    there = np.array([i for i in range(start, len(keys)) if keys[i] not in deleted], np.int64)
    assert align(asked, start, asked[there]).tolist() == there.tolist()


def test_an_answer_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(ModynError, match="key 4, which was not asked for or not in this order"):
        align(np.array([4, 5, 6]), 1, np.array([5, 4]))


@pytest.mark.parametrize("shuffle", [False, True])
def test_large_samples_are_asked_for_in_small_windows(monkeypatch: pytest.MonkeyPatch, shuffle: bool) -> None:
    monkeypatch.setattr(flight_batches, "FIRST_WINDOW", 5)
    monkeypatch.setattr(flight_batches, "WINDOW_BYTES", 8 * 20)
    asked: list[int] = []
    keys = FakeTriggerSet(np.arange(200), 200, before_fetch=lambda keys: asked.append(len(keys)))
    options = LoadOptions(16, drop_last=False, shuffle=shuffle, seed=0)
    with BatchLoader(TriggerSetDataset(keys.info, BYTES, keys, options)) as loader:
        found = [key for batch in loader for key in batch.keys.tolist()]
    assert sorted(found) == list(range(200))
    assert sum(asked) == 200
    assert asked[0] == 5
    assert max(asked) == 20
    monkeypatch.setattr(flight_batches, "FIRST_WINDOW", 50)
    asked.clear()
    with BatchLoader(TriggerSetDataset(keys.info, BYTES, keys, options)) as loader:
        next(iter(loader))
    assert asked[0] == 16, "no more than a batch, as long as nothing is known of the samples' size"


def test_closing_calls_off_a_fetch_that_waits() -> None:
    keys = FakeTriggerSet(np.arange(40), 10)
    client = StuckPayloadClient(keys.storage(), stuck_key=10)
    dataset = TriggerSetDataset(keys.info, BYTES, lambda: DatasetClients(keys().selector, client), LoadOptions(10))
    batches: Iterator[object] = iter(loader := BatchLoader(dataset))
    next(batches)
    assert client.started.wait(PATIENCE_S)
    loader.close()
    assert client.called_off.is_set()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("prefetch", "serve"))]
