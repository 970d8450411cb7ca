"""A version is there at once and complete, or not at all; what is wrong on the disk is told with file and version."""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg2
import pytest
from safetensors.numpy import save_file

from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.errors import ConflictError, CorruptStateError, NotFoundError, UnavailableError
from modyn.model_storage.client import ModelHeader, weights_from_proto
from modyn.model_storage.promotions import PromotionRequest
from modyn.model_storage.store import ModelStore
from modyn.models.weights import weights_sha256
from modyn.proto import model_storage_pb2 as pb
from modyn.records import RunId
from modyn.rpc.logs import get_logger


@contextmanager
def opened(config: SystemConfig) -> Iterator[ModelStore]:
    database = open_database(config, "model_storage", "modyn.model_storage.migrations")
    try:
        yield ModelStore(database, config.service_dir("model_storage"), get_logger("test"))
    finally:
        database.close()


@pytest.fixture
def models(system_config: SystemConfig) -> Path:
    return system_config.service_dir("model_storage") / "models"


@pytest.fixture
def store(system_config: SystemConfig) -> Iterator[ModelStore]:
    with opened(system_config) as made:
        yield made


@pytest.fixture
def weights(tmp_path: Path) -> Callable[[float], Path]:
    def make(value: float = 1.0) -> Path:
        path = tmp_path / f"{value}.safetensors"
        save_file({"layer.weight": np.full(5000, value, np.float32), "steps": np.array(7)}, path)
        return path

    return make


def header(trigger_id: int = 0, run_id: str = "run-1", strategy: dict[str, Any] | None = None, **fields: Any) -> ModelHeader:
    section = {"full_model_strategy": strategy} if strategy else {}
    return ModelHeader(RunId(run_id), trigger_id, "MLP", {"input_size": 3}, section, **fields)


def content(store: ModelStore, model_id: int) -> bytes:
    with store.fetch(model_id) as (_, path):
        return path.read_bytes()


def leftovers(models: Path) -> list[Path]:
    return list((models.parent / "incoming").iterdir())


STRATEGIES: list[dict[str, Any]] = [
    {"name": name, "zip": algorithm is not None, **({"zip_algorithm": algorithm} if algorithm else {})}
    for name in ("SafetensorsFullModel", "PyTorchFullModel", "BinaryFullModel")
    for algorithm in (None, "ZIP_DEFLATED", "zstd")
]


def test_every_strategy_gives_the_same_weights_and_hash(store: ModelStore, models: Path, weights: Callable[[], Path]) -> None:
    put = weights()
    for index, strategy in enumerate(STRATEGIES):
        info = store.publish(header(index, strategy=strategy, training_result={"loss": float("inf"), "batches": 4}), put)
        assert info == store.describe(info.version.model_id) == store.find(RunId("run-1"), index)
        assert info.version.weights_sha256 == weights_sha256(put)
        assert info.version.strategy == strategy["name"]
        assert info.training_result == {"loss": float("inf"), "batches": 4}
        with store.fetch(info.version.model_id) as (_, path):
            assert weights_sha256(path) == weights_sha256(put)
        assert info.version.num_bytes in [path.stat().st_size for path in models.iterdir()]
        assert (info.version.num_bytes < 5000) == strategy["zip"]
    assert len(store.list(RunId("run-1"))) == len(STRATEGIES) == len(list(models.iterdir()))
    assert leftovers(models) == []


def test_states_of_optimizers_are_files_of_their_versions(
    system_config: SystemConfig, models: Path, weights: Callable[[float], Path], tmp_path: Path
) -> None:
    def state() -> Path:
        path = models.parent / "incoming" / "state"
        path.write_bytes(b"state")
        return path

    with opened(system_config) as store:
        first, second = (store.publish(header(i), weights(float(i)), state()).version.model_id for i in range(2))
        store.publish(header(1), weights(1.0), state())  # the version exists
        assert sorted(path.suffix for path in models.iterdir()) == [".model", ".model", ".optimizers"]
        (models / "left.optimizers").write_bytes(b"by a put that was killed")
    with opened(system_config) as store:
        assert sorted(path.suffix for path in models.iterdir()) == [".model", ".model", ".optimizers"]
        with store.open_optimizers(second) as file:
            assert file.read() == b"state"
        (path,) = models.glob("*.optimizers")
        path.write_bytes(b"cut")
        with pytest.raises(CorruptStateError, match=r"optimizers has 3 bytes, 5 were written"), store.open_optimizers(second):
            pass
        path.unlink()
        with pytest.raises(CorruptStateError, match="of model 2 is missing"), store.open_optimizers(second):
            pass
        store.publish(header(2), weights(2.0), state())
        for model in store.list(None):
            store.delete(model.version.model_id)
        assert list(models.iterdir()) == []
        with pytest.raises(NotFoundError), store.open_optimizers(first):
            pass


def test_puts_of_one_trigger_at_once_store_one_version(store: ModelStore, models: Path, weights: Callable[[float], Path]) -> None:
    paths = [weights(float(index)) for index in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda path: store.publish(header(0), path), paths))
    assert len({info.version.model_id for info in found}) == 1
    assert len(list(models.iterdir())) == len(store.list(None)) == 1


def test_imported_models_belong_to_no_run(store: ModelStore, weights: Callable[[], Path]) -> None:
    first, second = (store.publish(header(0, ""), weights()) for _ in range(2))
    assert first.version.model_id != second.version.model_id
    assert store.find(RunId(""), 0) is None
    store.promote(PromotionRequest(first.version.model_id))
    store.promote(PromotionRequest(second.version.model_id))
    assert store.describe(first.version.model_id).version.promoted


def test_a_damaged_file_is_named_with_its_version(store: ModelStore, models: Path, weights: Callable[[], Path]) -> None:
    info = store.publish(header(), weights())
    (path,) = models.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptStateError, match=rf"model {info.version.model_id} .*trigger 0.*{path.name}"):
        content(store, info.version.model_id)
    path.unlink()
    with pytest.raises(CorruptStateError, match="the file is missing"):
        content(store, info.version.model_id)
    path.write_bytes(whole)
    assert content(store, info.version.model_id)
    assert leftovers(models) == []


def test_what_arrives_changed_or_cut_is_noticed(tmp_path: Path) -> None:
    def arrived(content: bytes, trailer: pb.Trailer) -> str:
        messages = [*(pb.PutRequest(chunk=bytes([byte])) for byte in content), pb.PutRequest(trailer=trailer)]
        with (tmp_path / "arrived").open("wb") as file:
            return weights_from_proto(messages, file)

    abc = pb.Trailer(num_bytes=3, sha256=hashlib.sha256(b"abc").hexdigest())
    assert arrived(b"abc", abc) == ""
    assert (tmp_path / "arrived").read_bytes() == b"abc"
    assert "changed or cut" in arrived(b"abd", abc)
    assert "3 bytes arrived, 4 were sent" in arrived(b"abc", pb.Trailer(num_bytes=4, sha256=abc.sha256))


@pytest.mark.parametrize("strategy", STRATEGIES[2:5])
def test_a_full_disk_is_told_and_leaves_nothing(
    store: ModelStore, models: Path, tmp_path: Path, strategy: dict[str, Any]
) -> None:
    put = tmp_path / "put"
    save_file({"w": np.random.default_rng(0).random(100_000)}, put)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(UnavailableError, match="no space is left"):
            store.publish(header(strategy=strategy), put)
        with pytest.raises(UnavailableError, match="no space is left"), store.receive() as path:
            path.write_bytes(bytes(20_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.list(None) == []
    assert list(models.iterdir()) == leftovers(models) == []
    assert store.publish(header(strategy=strategy), put)


def test_a_restart_sets_aside_what_an_interrupted_put_left(
    system_config: SystemConfig, models: Path, weights: Callable[[], Path]
) -> None:
    with opened(system_config) as store:
        info = store.publish(header(), weights())
    (models / "orphan.model").write_bytes(b"not committed")
    (models.parent / "incoming" / "half").write_bytes(b"half")
    with opened(system_config) as store:
        assert store.list(None) == [info]
        assert content(store, info.version.model_id) == weights().read_bytes()
    assert len(list(models.iterdir())) == 1
    assert leftovers(models) == []
    assert (models.parent / "quarantine" / "orphan.model").read_bytes() == b"not committed"


def test_an_older_catalogue_destroys_no_model(
    system_config: SystemConfig, models: Path, weights: Callable[[], Path], postgres_url: str
) -> None:
    """A database that was restored from a backup does not know the newest version."""
    with opened(system_config) as store:
        store.publish(header(), weights())
    (file,) = models.iterdir()
    stored = file.read_bytes()
    connection = psycopg2.connect(postgres_url)
    with connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM model_storage.models")
    connection.close()
    with opened(system_config) as store:
        assert store.list(None) == []
    assert (models.parent / "quarantine" / file.name).read_bytes() == stored


def test_a_folder_of_another_database_is_left_alone(
    system_config: SystemConfig, models: Path, weights: Callable[[], Path], postgres_url: str
) -> None:
    with opened(system_config) as store:
        store.publish(header(), weights())
    connection = psycopg2.connect(postgres_url)
    with connection, connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA model_storage CASCADE")
    connection.close()
    with pytest.raises(ConflictError, match="belongs to another database"), opened(system_config):
        pass
    assert len(list(models.iterdir())) == 1
    (models.parent / "store_id").unlink()
    with pytest.raises(ConflictError, match="belongs to another database"), opened(system_config):
        pass
    assert len(list(models.iterdir())) == 1


@pytest.mark.parametrize("lost", [b"", None])
def test_a_folder_that_lost_its_identity_in_a_crash_is_used_again(
    system_config: SystemConfig, models: Path, weights: Callable[[], Path], lost: bytes | None
) -> None:
    with opened(system_config) as store:
        info = store.publish(header(), weights())
    identity = models.parent / "store_id"
    before = identity.read_bytes()
    identity.unlink()
    if lost is not None:
        identity.write_bytes(lost)
    with opened(system_config) as store:
        assert store.list(None) == [info]
    assert identity.read_bytes() == before


def test_a_version_that_is_deleted_while_it_is_read_stays_readable(store: ModelStore, weights: Callable[[], Path]) -> None:
    info = store.publish(header(), weights())
    with store.fetch(info.version.model_id) as (_, path):
        store.delete(info.version.model_id)
        assert path.read_bytes() == weights().read_bytes()
