"""Calls of storage that meet a lost answer, a client that has gone, a limit, a full disk or no database: they end, and end well where they can."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_client import REGISTRY

from modyn.config.system import StorageConfig, SystemConfig
from modyn.errors import ModynError, NotFoundError, UnavailableError
from modyn.local.databases import PostgresServer
from modyn.records import Interval
from modyn.storage.client import StorageClient
from modyn.storage.model.dataset_records import IngestProgress
from modyn.storage.service import StorageService
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.running_storage import RunningStorage, binary_dataset, running_storage, start_storage, write_records


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


def test_a_client_that_goes_leaves_no_thread(numbers: RunningStorage, endless: threading.Event) -> None:
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
    storage.index(binary_dataset(tmp_path / "d"))
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


def test_the_process_tells_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "system.yaml"
    path.write_text(yaml.safe_dump({"state_dir": str(tmp_path / "s"), "database_url": "postgresql://nobody@127.0.0.1:1/none"}))
    command = [sys.executable, "-m", "modyn.rpc", "storage", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert "PostgreSQL" in done.stderr


def test_a_disk_that_cannot_be_written(quick_config: SystemConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost or incomplete; the next ingestion succeeds."""
    write_records(tmp_path / "d" / "a.bin", range(10), 1000)
    with running_storage(quick_config) as storage:
        storage.client.register_dataset(binary_dataset(tmp_path / "d"))

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(UnavailableError, match="No space left"):
                storage.ingest()
        assert storage.client.dataset("numbers").num_samples == 0
        assert storage.ingest().samples_indexed == 10
        assert storage.data_of(range(10)) == list(range(10))


def test_postgres_gone_in_the_middle(tmp_path: Path) -> None:
    """Indexed samples are still served, calls that need the catalogue report the problem, and nothing is lost when PostgreSQL returns."""
    write_records(tmp_path / "d" / "a.bin", range(10), 1000)
    with tempfile.TemporaryDirectory(prefix="modyn-pg-") as folder, ExitStack() as stack:
        server = PostgresServer(Path(folder))
        server.start()
        stack.callback(server.stop)
        config = SystemConfig(
            state_dir=Path(folder) / "state", database_url=server.url, storage=StorageConfig(settle_s=0.05, poll_interval_s=0.05)
        )
        storage = start_storage(config, stack)
        storage.index(binary_dataset(tmp_path / "d", watch=True))
        new = storage.client.new_samples("numbers", 0, 100)
        assert len(next(new)) == 10
        server.stop()
        write_records(tmp_path / "d" / "b.bin", range(10, 15), 2000)
        with pytest.raises(UnavailableError, match="PostgreSQL"):
            storage.ingest()
        assert storage.data_of(range(10)) == list(range(10))
        server.start()
        assert next(new).keys.tolist() == list(range(10, 15))
        new.cancel()
        assert storage.data_of(range(15)) == list(range(15))
