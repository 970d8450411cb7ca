"""Replicas whose mounts differ from storage's: they raise an error that names the mount, and clients ask another endpoint."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import NotFoundError, UnavailableError
from modyn.storage.flight.client import FetchLimits, PayloadClient
from modyn.storage.flight.server import PayloadServer
from modyn.storage.read.published_datasets import PublishedDatasets, PublishedNames
from tests.support.running_storage import RunningStorage, binary_dataset, published_by, start_storage, write_records


@pytest.fixture
def datasets(numbers: RunningStorage) -> PublishedDatasets:
    return published_by(numbers.config, "replica-7")


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.parametrize("there", ["nothing", "other files"])
def test_a_dataset_that_is_not_mounted_is_left_to_others(
    numbers: RunningStorage, datasets: PublishedDatasets, mount: Path, stack: ExitStack, there: str
) -> None:
    mount.rename(mount.with_name("away"))
    if there == "other files":
        for i in range(10):
            write_records(mount / f"{i}.bin", range(50), 7)
    with pytest.raises(
        UnavailableError, match=r"replica-7 finds no file of dataset 'numbers'.*bin; mount .*data where replica-7"
    ):
        datasets.snapshot("numbers")
    endpoint = Endpoint(address=f"unix:{numbers.config.run_dir}/replica-7.sock")
    server = PayloadServer(endpoint, datasets)
    stack.callback(server.stop)
    with PayloadClient(endpoint, limits=FetchLimits(retry_s=0)) as client, pytest.raises(UnavailableError, match="mount"):
        next(client.fetch("numbers", np.arange(10)))
    if there == "nothing":
        mount.with_name("away").rename(mount)
        assert datasets.snapshot("numbers").index.num_samples == 1000


def test_files_that_are_gone_or_altered_do_not_make_it_another_mount(datasets: PublishedDatasets, mount: Path) -> None:
    for i in range(9):
        (mount / f"{i}.bin").unlink()
    (mount / "3.bin").write_bytes(b"else")
    view = datasets.snapshot("numbers")
    (mount / "9.bin").unlink()
    assert datasets.snapshot("numbers") is view, (
        "a dataset that was accepted once is not checked again; stamps are compared when files are read"
    )


def test_what_has_no_files_yet_is_served(numbers: RunningStorage, datasets: PublishedDatasets, tmp_path: Path) -> None:
    numbers.client.register_dataset(binary_dataset(tmp_path / "empty", "empty"))
    assert datasets.snapshot("empty").index.num_samples == 0
    with pytest.raises(NotFoundError):
        datasets.snapshot("none")


def test_a_folder_of_storage_that_is_not_mounted_is_told(quick_config: SystemConfig, stack: ExitStack) -> None:
    names = PublishedNames.of(quick_config)
    assert names.names() == []
    with pytest.raises(UnavailableError, match="mount its state_dir"):
        names.target("numbers")
    start_storage(quick_config, stack)
    with pytest.raises(NotFoundError, match="there is no dataset"):
        names.target("numbers")


def test_an_address_that_is_taken_is_told_with_its_setting(numbers: RunningStorage) -> None:
    path = f"{numbers.config.run_dir}/taken.sock"
    os.mkdir(path)
    with pytest.raises(UnavailableError, match=r"replica-1 cannot serve payloads on.*set storage\.replica_addresses in"):
        PayloadServer(Endpoint(address=f"unix:{path}"), numbers.store, name="replica-1", setting="storage.replica_addresses")
