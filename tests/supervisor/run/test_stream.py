"""Streams neither lose nor repeat a sample when storage breaks off, and end when they are cancelled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import CancelledError, ModynError, NotFoundError, UnavailableError
from modyn.records import Interval, SampleBatch
from modyn.rpc.retry import CancellationToken, Retrier, RetryPolicy
from modyn.supervisor.client import RunMode
from modyn.supervisor.run.stream import SampleStream, StreamSource
from modyn.testing.fake_storage import FakeStorage, FakeStorageClient
from modyn.testing.waiting import PATIENCE_S

EVERYTHING = Interval()


class Flaky(FakeStorageClient):
    """Breaks a stream off after the number of batches in `breaks`, once for each number."""

    def __init__(self, storage: FakeStorage, breaks: list[int], error: ModynError | None = None) -> None:
        super().__init__(storage)
        self.breaks = breaks
        self.error = error or UnavailableError("storage cannot be reached at unix:x")

    def samples_in_interval(
        self,
        name: str,
        interval: Interval,
        batch_size: int,
        after: tuple[int, int] | None = None,
        end_key: int | None = None,
        identity: str = "",
        end_label: int | None = None,
    ) -> Iterator[SampleBatch]:
        left = self.breaks.pop(0) if self.breaks else None
        for batch in super().samples_in_interval(name, interval, batch_size, after, end_key, identity, end_label):
            if left == 0:
                raise self.error
            left = None if left is None else left - 1
            yield batch


def open_stream(
    client: FakeStorageClient,
    mode: RunMode,
    *,
    interval: Interval = EVERYTHING,
    after: tuple[int, int] | None = None,
    signals: CancellationToken | None = None,
) -> SampleStream:
    signals = signals or CancellationToken()
    return SampleStream(client, StreamSource("d", mode, interval, 3), after, Retrier(RetryPolicy(PATIENCE_S), signals))


def make_storage(times: list[int]) -> FakeStorage:
    storage = FakeStorage()
    storage.add_dataset("d")
    storage.add_samples("d", timestamps=times)
    return storage


def read_all(stream: SampleStream) -> list[tuple[int, int]]:
    found = []
    for batch in stream.samples():
        assert len(batch) > 0
        found += list(zip(batch.timestamps.tolist(), batch.keys.tolist(), strict=True))
    return found


@given(st.lists(st.integers(0, 5), max_size=20), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 20))
def test_a_replay_that_breaks_or_is_resumed_gives_every_sample_once(times: list[int], breaks: list[int], done: int) -> None:
    ordered = sorted((t, key) for key, t in enumerate(times))
    after = ordered[min(done, len(ordered)) - 1] if ordered and done else None
    stream = open_stream(Flaky(make_storage(times), breaks), RunMode.EXPERIMENT, after=after)
    assert read_all(stream) == ordered[done if after else 0 :]


def test_live_data_comes_in_order_of_arrival_within_the_interval() -> None:
    storage = make_storage([5, 1, 9, 9, 2])
    stream = open_stream(storage.client(), RunMode.PRODUCTION, interval=Interval(start=5), after=(5, 0))
    batch = stream.read(lambda: None)
    assert isinstance(batch, SampleBatch)
    assert batch.keys.tolist() == [2, 3]
    waiting = threading.Event()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(stream.read(waiting.set)))
    thread.start()
    assert waiting.wait(PATIENCE_S)
    storage.add_samples("d", timestamps=[3, 7])
    thread.join(PATIENCE_S)
    assert found[0].keys.tolist() == [6]
    stream.close()


def test_the_end_wakes_a_stream_that_waits() -> None:
    signals = CancellationToken()
    stream = open_stream(make_storage([]).client(), RunMode.PRODUCTION, signals=signals)
    stopping = threading.Timer(0.05, lambda: signals.cancel(CancelledError("stopped")))
    with pytest.raises(CancelledError, match="stopped"):
        stream.read(stopping.start)  # Only once it waits without a limit, which nothing but the end can break.


def test_errors_other_than_outages_are_raised_after_the_batches_before_them() -> None:
    stream = open_stream(Flaky(make_storage([1] * 6), [1], NotFoundError("no dataset d")), RunMode.EXPERIMENT)
    batch = stream.read(lambda: None)
    assert isinstance(batch, SampleBatch)
    assert batch.keys.tolist() == [0, 1, 2]
    with pytest.raises(NotFoundError, match="no dataset d"):
        stream.read(lambda: None)
