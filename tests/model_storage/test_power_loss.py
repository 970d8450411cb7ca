"""Model versions after a power loss at any moment: one that was acknowledged is there, with its weights; one that was not is there whole or not."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from modyn.config.system import SystemConfig
from modyn.db.engine import Database, open_database
from modyn.errors import NotFoundError
from modyn.model_storage.client import ModelHeader
from modyn.model_storage.store import ModelStore
from modyn.models.weights import weights_sha256
from modyn.records import RunId
from modyn.rpc.logs import get_logger
from tests.support.committed_rows import RecordedDatabase, losses_with_rows, restore_rows
from tests.support.disk_recorder import recorded_disk

RUN = RunId("run-1")
SECTION: dict[str, Any] = {
    "full_model_strategy": {"name": "PyTorchFullModel"},
    "incremental_model_strategy": {"name": "WeightsDifference"},
}


def receive(store: ModelStore, trigger_id: int, content: bytes, states: bytes, section: dict[str, Any]) -> int:
    """Put a model with the states of its optimizers, as the service does."""
    with store.receive() as weights, store.receive() as optimizers:
        weights.write_bytes(content)
        optimizers.write_bytes(states)
        header = ModelHeader(RUN, trigger_id, "MLP", {}, section)
        return store.publish(header, weights, optimizers).version.model_id


@pytest.mark.parametrize(
    "section",
    [
        pytest.param({"full_model_strategy": {"name": "PyTorchFullModel"}}, marks=pytest.mark.slow),
        {"incremental_model_strategy": {"name": "WeightsDifference"}},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param(
            {"full_model_strategy": {"name": "BinaryFullModel", "zip": True, "zip_algorithm": "zstd"}}, marks=pytest.mark.slow
        ),
    ],
)
def test_versions_that_were_acknowledged_are_there(system_config: SystemConfig, tmp_path: Path, section: dict[str, Any]) -> None:
    """Two versions of a run, of which the second takes over the states of the optimizers; then the first is deleted.

    If the second is a difference to the first, the deletion writes it to a new file.
    """
    contents, digests = [], []
    for number in range(2):
        path = tmp_path / f"{number}.safetensors"
        save_file({"weight": np.full(300, number, np.float32), "steps": np.array(number)}, path)
        contents.append(path.read_bytes())
        digests.append(weights_sha256(path))
    database = open_database(system_config, "model_storage", "modyn.model_storage.migrations")
    folder = system_config.service_dir("model_storage")
    folder.mkdir(parents=True)
    with recorded_disk(folder) as disk:
        store = ModelStore(recorded := RecordedDatabase(database, disk), folder, get_logger("test"))
        ids = []
        for number in range(2):
            ids.append(receive(store, number, contents[number], b"states" * 100 + bytes([number]), section))
            disk.note("put")
        store.delete(ids[0])
        disk.note("deleted")
    for loss in losses_with_rows(disk):
        with loss.restored():
            notes = restore_rows(database, loss)
            found = ModelStore(database, folder, get_logger("test"))
            here = {info.version.trigger_id: info.version.model_id for info in found.list(RUN)}
            assert set(here) in {
                0: [set(), {0}],
                1: [{0}, {0, 1}],
                2: [{0, 1}, {1}],
                3: [{1}],
            }[len(notes)]  # fmt: skip
            for trigger_id, model_id in here.items():
                with found.fetch(model_id) as (_, path):
                    assert weights_sha256(path) == digests[trigger_id]
                try:
                    with found.open_optimizers(model_id) as file:
                        assert file.read() == b"states" * 100 + bytes([trigger_id])
                except NotFoundError:
                    assert trigger_id == 0
                    assert 1 in here
            # Nothing else is left, and nothing is set aside once it is deleted.
            assert len(notes) < 3 or not any(path.suffix == ".model" for path in (folder / "quarantine").glob("*"))
            assert not list((folder / "incoming").iterdir())
            assert len(list((folder / "models").glob("*.model"))) == len(here)
    recorded.close()
    database.close()


@pytest.mark.slow
def test_kills_and_power_losses_one_after_the_other_lose_nothing(system_config: SystemConfig, tmp_path: Path) -> None:
    """Each round brings a version: a process is killed at the put, the next one puts it again, and then the power is lost."""
    database, random = open_database(system_config, "model_storage", "modyn.model_storage.migrations"), Random(0)
    folder = system_config.service_dir("model_storage")
    folder.mkdir(parents=True)
    digests: list[str] = []
    for number in range(25):
        save_file({"weight": np.full(300, number, np.float32)}, path := tmp_path / "weights")
        digests.append(weights_sha256(path))
        with recorded_disk(folder) as disk:
            recorded = RecordedDatabase(database, disk)
            disk.kill_at(random.randrange(80), partial(put, recorded, folder, number, path.read_bytes()))
            put(recorded, folder, number, path.read_bytes())
            disk.note("put")
        loss = next(loss for loss in iter(partial(disk.random_loss, random), None) if loss.notes)
        with loss.restored():
            done = restore_rows(database, loss)
            found = ModelStore(database, folder, get_logger("test"))
            assert len(found.list(RUN)) in ({number + 1} if done else {number, number + 1})
            put(database, folder, number, path.read_bytes())
            for info, digest in zip(found.list(RUN), digests, strict=True):
                with found.fetch(info.version.model_id) as (_, weights):
                    assert weights_sha256(weights) == digest
            with found.open_optimizers(info.version.model_id) as file:
                assert file.read() == b"states%d" % number
    database.close()


def put(database: Database, folder: Path, number: int, content: bytes) -> None:
    receive(ModelStore(database, folder, get_logger("test")), number, content, b"states%d" % number, SECTION)
