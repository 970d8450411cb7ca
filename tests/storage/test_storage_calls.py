"""Calls of storage that meet a lost answer, a client that has gone, or a limit: they end, and end well where they can."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from modyn.config.system import SystemConfig
from modyn.errors import ModynError, NotFoundError, UnavailableError
from modyn.records import Interval
from modyn.storage.client import StorageClient
from modyn.storage.model.records import IngestProgress
from modyn.storage.service import StorageService
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.running_storage import RunningStorage, binary_dataset, start_storage, write_records


@pytest.mark.timeout(60)
def test_an_ingestion_that_has_nothing_to_tell_ends(numbers: RunningStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modyn.storage.datasets.ingest", lambda *_, **__: IngestProgress(files_seen=7, finished=True))
    assert [progress.files_seen for progress in numbers.client.ingest("numbers")] == [7]


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Ingestions that have begun and do not end."""
    begun, released = threading.Event(), threading.Event()

    def ingest(*_: object, **__: object) -> IngestProgress:
        begun.set()
        released.wait()
        return IngestProgress(finished=True)

    monkeypatch.setattr("modyn.storage.datasets.ingest", ingest)
    yield begun
    released.set()


def test_a_client_that_goes_leaves_no_thread_behind(numbers: RunningStorage, endless: threading.Event) -> None:
    def num_ended() -> float:
        return sum(
            REGISTRY.get_sample_value("modyn_call_seconds_count", {"method": "Ingest", "outcome": outcome}) or 0
            for outcome in ("ok", "INTERNAL")
        )

    before = num_ended()
    client = StorageClient(numbers.config.endpoint("storage"))

    def wait() -> None:
        with pytest.raises(ModynError):
            next(client.ingest("numbers"))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    eventually(endless.is_set)
    client.close()
    eventually(lambda: num_ended() > before)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def test_a_deletion_whose_answer_is_lost_has_worked(numbers: RunningStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    delete, lost = StorageService.DeleteDataset, [True]

    def losing(service: StorageService, request: Any, context: Any) -> Any:
        answer = delete(service, request, context)
        if lost.pop():
            raise UnavailableError("the connection broke")
        return answer

    monkeypatch.setattr(StorageService, "DeleteDataset", losing)
    numbers.client.delete_dataset("numbers")
    assert numbers.client.list_datasets() == []
    monkeypatch.undo()
    with pytest.raises(NotFoundError):
        numbers.client.delete_dataset("numbers")


def test_calls_fit_into_the_smallest_messages(quick_config: SystemConfig, stack: ExitStack, tmp_path: Path) -> None:
    settings = quick_config.storage.model_copy(update={"max_message_bytes": 2**16})
    storage = start_storage(quick_config.model_copy(update={"storage": settings}), stack)
    data = np.random.default_rng(1).integers(0, 2**62, 30_000).tolist()
    write_records(tmp_path / "d" / "0.bin", data, 1000, labels=data)
    storage.client.register_dataset(binary_dataset(tmp_path / "d"))
    storage.ingest()
    keys = np.random.default_rng(2).permutation(30_000)
    assert storage.client.samples_by_key("numbers", keys).labels.tolist() == [data[key] for key in keys]
    interval = storage.client.samples_in_interval("numbers", Interval(0, 2000), 30_000)
    assert [label for batch in interval for label in batch.labels.tolist()] == data
    arriving = storage.client.new_samples("numbers", 0, 30_000)
    arrived: list[int] = []
    while len(arrived) < len(data):
        arrived += next(arriving).labels.tolist()
    arriving.cancel()
    assert arrived == data
    assert storage.client.delete_samples("numbers", keys[:20_000]) == 20_000
