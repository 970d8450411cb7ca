"""Replicas serve what storage publishes: the same payloads, without storage, its database or a message from it."""

from __future__ import annotations

import gc
import subprocess
import sys
import urllib.request
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.errors import ConfigError, DataError, NotFoundError, UnavailableError
from modyn.rpc.probe import main as probe
from modyn.storage.flight.client import FetchLimits, PayloadClient
from modyn.storage.flight.server import PayloadServer
from modyn.storage.read.published_datasets import PublishedDatasets
from modyn.storage.read.snapshot import DatasetSnapshot
from modyn.storage.replica import main as run_replica
from modyn.testing.waiting import PATIENCE_S
from tests.support.processes import ServiceProcess, write_config
from tests.support.running_storage import RunningStorage, binary_dataset, published_by, running_storage, write_records


def with_replicas(config: SystemConfig, number: int) -> SystemConfig:
    return config.model_copy(update={"storage": config.storage.model_copy(update={"replicas": number})})


@pytest.fixture
def replica(storage: RunningStorage, stack: ExitStack) -> PayloadClient:
    """A client of a replica in this process, and only of it."""
    endpoint = with_replicas(storage.config, 1).replicas["replica-1"]
    server = PayloadServer(endpoint, published_by(storage.config))
    stack.callback(server.stop)
    return stack.enter_context(PayloadClient(endpoint))


def data_of(payloads: PayloadClient, keys: list[int] | range) -> list[int]:
    batches = payloads.fetch("numbers", np.asarray(keys, np.int64))
    return [int.from_bytes(batch.payload(i), "little") for batch in batches for i in range(len(batch))]


def test_a_replica_sees_every_change_at_the_next_request(storage: RunningStorage, replica: PayloadClient, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no dataset 'numbers'"):
        data_of(replica, [0])
    storage.client.register_dataset(binary_dataset(tmp_path / "d"))
    for number in range(3):
        write_records(tmp_path / "d" / f"{number}.bin", range(100 * number, 100 * number + 100), 1000 + number)
        storage.ingest()
        keys = np.random.default_rng(number).integers(0, 100 * number + 100, 500).tolist()
        assert data_of(replica, keys) == keys == storage.data_of(keys)
    storage.client.delete_samples("numbers", np.asarray([7]))
    with pytest.raises(NotFoundError, match="the keys 7 any more:"):
        data_of(replica, [6, 7, 8])
    write_records(tmp_path / "d" / "2.bin", range(100), 5000)
    storage.ingest()
    with pytest.raises(DataError, match=r"2\.bin was changed"):
        data_of(replica, [1, 250])
    storage.client.delete_dataset("numbers")
    with pytest.raises(NotFoundError, match="no dataset 'numbers'"):
        data_of(replica, [1])
    write_records(tmp_path / "e" / "0.bin", range(500, 510), 1000)
    storage.index(binary_dataset(tmp_path / "e"))
    assert data_of(replica, [3]) == [503]


class _FromThePast:
    """The datasets of a replica on whose machine the folder of storage is seen as it was: its index lacks the newest samples."""

    def __init__(self, datasets: PublishedDatasets) -> None:
        self._seen = datasets.snapshot("numbers")

    def snapshot(self, name: str) -> DatasetSnapshot:
        return self._seen


def test_keys_that_a_replica_does_not_know_yet_are_asked_for_elsewhere(
    storage: RunningStorage, stack: ExitStack, tmp_path: Path
) -> None:
    storage.client.register_dataset(binary_dataset(tmp_path / "d"))
    write_records(tmp_path / "d" / "0.bin", range(5), 1000)
    storage.ingest()
    past = _FromThePast(published_by(storage.config))
    write_records(tmp_path / "d" / "1.bin", range(5, 10), 1001)
    storage.ingest()
    endpoint = with_replicas(storage.config, 1).replicas["replica-1"]
    server = PayloadServer(endpoint, past)
    stack.callback(server.stop)
    keys = np.asarray([3, 9, 4, 6])
    both = stack.enter_context(PayloadClient([endpoint, storage.config.endpoint("flight")], limits=FetchLimits(first_keys=2)))
    for _ in range(2):  # Fetches begin with different endpoints.
        batches = list(both.fetch("numbers", keys, on_missing="skip"))
        assert [key for batch in batches for key in batch.keys.tolist()] == keys.tolist()
    alone = stack.enter_context(PayloadClient(endpoint, limits=FetchLimits(retry_s=0)))
    with pytest.raises(UnavailableError, match=r"ends here at key 4, so 9, 6 are unknown: the index is older"):
        list(alone.fetch("numbers", keys, on_missing="skip"))
    with pytest.raises(NotFoundError, match="never had samples with the keys -1"):
        list(alone.fetch("numbers", np.asarray([3, -1]), on_missing="skip"))


def test_a_replica_lets_go_of_datasets_that_are_deleted(storage: RunningStorage, tmp_path: Path) -> None:
    datasets = published_by(storage.config)
    write_records(tmp_path / "d" / "0.bin", range(50), 1000)
    for name in ("numbers", "others", "letters"):
        storage.index(binary_dataset(tmp_path / "d").model_copy(update={"name": name}))
    numbers, others = (weakref.ref(datasets.snapshot(name).index) for name in ("numbers", "others"))
    storage.client.delete_dataset("numbers")
    assert numbers() is not None
    with pytest.raises(NotFoundError):
        datasets.snapshot("numbers")
    gc.collect()
    assert numbers() is None
    storage.client.delete_dataset("others")
    datasets.snapshot("letters")
    gc.collect()
    assert others() is None, "it was dropped when another dataset was asked for"


def test_a_replica_serves_without_storage(quick_config: SystemConfig, stack: ExitStack, tmp_path: Path) -> None:
    """Storage ends before the replica starts."""
    write_records(tmp_path / "d" / "0.bin", range(50), 1000)
    with running_storage(quick_config) as storage:
        storage.index(binary_dataset(tmp_path / "d"))
    endpoint = with_replicas(quick_config, 1).replicas["replica-1"]
    server = PayloadServer(endpoint, published_by(quick_config))
    stack.callback(server.stop)
    with PayloadClient(endpoint) as client:
        assert data_of(client, range(50)) == list(range(50))


# As a process


def test_the_process_is_a_service_like_the_others(
    storage: RunningStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process gets no database. It reports health and metrics, and ends on request."""
    write_records(tmp_path / "d" / "0.bin", range(50), 1000)
    storage.index(binary_dataset(tmp_path / "d"))
    config = with_replicas(storage.config, 2).model_copy(update={"database_url": None})
    with ServiceProcess("replica-2", config, tmp_path) as process:
        file = tmp_path / "system.yaml"
        assert probe(["replica-2", "--config", str(file), "--timeout", "60"]) == 0
        assert probe(["replica-1", "--config", str(file)]) == 1
        assert probe(["replica-3", "--config", str(file)]) == 1
        assert "there is no service 'replica-3'" in capsys.readouterr().err
        with PayloadClient(config.replicas["replica-2"]) as client:
            assert data_of(client, range(50)) == list(range(50))
        url = (config.service_dir("replica-2") / "metrics_url").read_text().strip()
        with urllib.request.urlopen(url) as metrics:
            assert 'modyn_storage_payload_bytes_total{dataset="numbers"} 400.0' in metrics.read().decode()
        assert process.end() == 0


def test_a_replica_that_is_not_configured_does_not_start(
    quick_config: SystemConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config(with_replicas(quick_config, 1), tmp_path)
    for number, reason in (("2", "there is no replica 2 of 1"), ("0", "there is no replica 0 of 1")):
        monkeypatch.setattr(sys, "argv", ["replica", "--number", number, "--config", str(file)])
        assert run_replica() == 1
        assert reason in capsys.readouterr().err


def test_a_replica_off_loopback_wants_tls_and_token(make_config: Callable[..., SystemConfig], tmp_path: Path) -> None:
    file = write_config(make_config(storage={"replicas": 1, "replica_addresses": ["0.0.0.0:0"]}), tmp_path)
    command = [sys.executable, "-m", "modyn.storage.replica", "--number", "1", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert "token" in done.stderr


# Configuration


def test_addresses_and_ports_of_replicas(quick_config: SystemConfig, tmp_path: Path) -> None:
    config = with_replicas(quick_config, 2)
    assert [endpoint.address for endpoint in config.flight_endpoints] == [
        f"unix:{config.run_dir}/{name}.sock" for name in ("flight", "flight-1", "flight-2")
    ]
    assert config.endpoint("replica-2").address == f"unix:{config.run_dir}/replica-2.sock"
    named = SystemConfig.model_validate(
        {"storage": {"replicas": 2, "replica_addresses": ["a:1", "b:2"], "metrics_port": 9100, "address": "s:3"}}
    )
    assert [endpoint.address for endpoint in named.replicas.values()] == ["a:1", "b:2"]
    assert named.service("replica-2").metrics_port == 9102
    assert named.endpoint("replica-2").is_unix
    with pytest.raises(ConfigError, match=r"replica_addresses has 1 addresses for 2 replicas"):
        load(tmp_path, "storage: {replicas: 2, replica_addresses: ['a:1']}")
    with pytest.raises(ConfigError, match=r"replica_addresses.*is not an address"):
        load(tmp_path, "storage: {replicas: 1, replica_addresses: [here]}")


def load(folder: Path, text: str) -> SystemConfig:
    from modyn.config.system import load_system_config

    (folder / "system.yaml").write_text(text)
    return load_system_config(folder / "system.yaml")
