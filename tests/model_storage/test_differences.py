"""Versions that are stored as differences: the same bits come back, also after deletions, damage and kills; chains are bounded."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.errors import CorruptStateError, ModynError, NotFoundError, UnavailableError
from modyn.model_storage.client import ModelHeader, ModelStorageClient
from modyn.model_storage.formats.differences import WeightsDifference
from modyn.model_storage.section import DifferenceConfig
from modyn.model_storage.store import ModelStore
from modyn.models.weights import DTYPE_BITS, Layout, TensorSpec, header_bytes, weights_sha256, wire_order
from modyn.records import ModelVersion, RunId
from modyn.rpc.logs import get_logger
from modyn.testing.waiting import PATIENCE_S
from tests.support.processes import ServiceProcess
from tests.support.running_storage import flip

RUN = RunId("run-1")
CONFIGS = [
    DifferenceConfig(operator=operator, split_exponent=split, rle=rle)
    for operator, split, rle in product(("sub", "xor"), (False, True), (False, True))
]
DIFFERENCE: dict[str, Any] = {"name": "WeightsDifference"}

SPECS = st.tuples(
    st.sampled_from("abcd"),
    st.sampled_from(sorted(DTYPE_BITS)),
    st.lists(st.integers(0, 3), max_size=2).map(lambda sizes: (*sizes, 8)),  # a multiple of 8: also 4 bits fill bytes
)
LAYOUTS = st.lists(SPECS, max_size=4, unique_by=lambda spec: spec[0]).map(
    lambda specs: wire_order(TensorSpec(*spec) for spec in specs)
)


def write(path: Path, layout: Layout, content: bytes) -> Path:
    path.write_bytes(header_bytes(layout) + content)
    return path


def round_trip(config: DifferenceConfig, base: Path, put: Path, layout: Layout) -> None:
    encoded, got = put.with_name("encoded"), put.with_name("got")
    difference = WeightsDifference(config, base)
    difference.encode(put, encoded)
    difference.decode(encoded, layout, got)
    assert weights_sha256(got) == weights_sha256(put)


@given(
    config=st.sampled_from(CONFIGS), layout=LAYOUTS, others=LAYOUTS, kept=st.sets(st.sampled_from("abcd")), seed=st.integers(0)
)
def test_any_bits_of_any_tensors_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    config: DifferenceConfig,
    layout: Layout,
    others: Layout,
    kept: set[str],
    seed: int,
) -> None:
    """Tensors that the base has too, that are new, that are missing, and of another dtype or shape; also bits of NaN and -0.0."""
    folder, random = tmp_path_factory.mktemp("f"), Random(seed)
    other = [spec for spec in others if spec.name not in kept]
    of_base = wire_order([*other, *(spec for spec in layout if spec.name in kept)])
    base = write(folder / "base", of_base, random.randbytes(sum(spec.num_bytes for spec in of_base)))
    put = write(folder / "put", layout, random.randbytes(sum(spec.num_bytes for spec in layout)))
    round_trip(config, base, put, layout)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: "-".join(map(str, config.model_dump().values())))
def test_large_tensors_come_back(tmp_path: Path, config: DifferenceConfig) -> None:
    """One tensor is larger than what is processed at once, and some bytes run for long."""
    layout = wire_order(
        [TensorSpec("large", "F32", (1_500_000,)), TensorSpec("small", "BF16", (999,)), TensorSpec("n", "I64", ())]
    )
    random = np.random.default_rng(0)
    before = [random.bytes(8), random.normal(size=1_500_000).astype("<f4"), random.bytes(1998)]
    steps = np.where(np.arange(1_500_000) < 500_000, np.float32(0), np.float32(1e-4))
    after = [random.bytes(8), before[1] + steps, random.bytes(1998)]
    base = write(tmp_path / "base", layout, b"".join(bytes(part) for part in before))
    put = write(tmp_path / "put", layout, b"".join(bytes(part) for part in after))
    round_trip(config, base, put, layout)
    assert ((tmp_path / "encoded").stat().st_size < 6_000_000) == config.rle


@pytest.mark.parametrize("config", CONFIGS[:2])
def test_a_damaged_difference_is_never_taken_for_weights(tmp_path: Path, config: DifferenceConfig) -> None:
    layout = (TensorSpec("w", "F32", (40,)),)
    base, put = (write(tmp_path / name, layout, bytes([value]) * 160) for name, value in (("base", 1), ("put", 2)))
    difference = WeightsDifference(config, base)
    difference.encode(put, tmp_path / "encoded")
    content = (tmp_path / "encoded").read_bytes()
    damaged = [content[:size] for size in range(len(content))] + [content + b"\0"]
    damaged += [content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :] for at in range(len(content))]
    for index, wrong in enumerate(damaged):
        (tmp_path / f"{index}.encoded").write_bytes(wrong)
        try:
            difference.decode(tmp_path / f"{index}.encoded", layout, tmp_path / f"{index}.got")
        except CorruptStateError:
            continue
        assert weights_sha256(tmp_path / f"{index}.got") != weights_sha256(put)


@pytest.fixture
def store(system_config: SystemConfig) -> Iterator[ModelStore]:
    database = open_database(system_config, "model_storage", "modyn.model_storage.migrations")
    yield ModelStore(database, system_config.service_dir("model_storage"), get_logger("test"))
    database.close()


@pytest.fixture
def models(system_config: SystemConfig) -> Path:
    return system_config.service_dir("model_storage") / "models"


def trained(path: Path, trigger_id: int) -> Path:
    """The weights after some trainings: each changes a tenth of the weights by little."""
    random = np.random.default_rng(0)
    weights = random.normal(size=20_000).astype(np.float32)
    for _ in range(trigger_id):
        weights[random.integers(0, 20_000, 2000)] *= np.float32(1.001)
    save_file({"w": weights, "half": weights[:500].astype(np.float16), "steps": np.array(trigger_id)}, path)
    return path


def header(trigger_id: int, interval: int | None = None, run_id: str = RUN, **strategy: Any) -> ModelHeader:
    section = {"incremental_model_strategy": {**DIFFERENCE, **strategy}, "full_model_interval": interval}
    return ModelHeader(RunId(run_id), trigger_id, "MLP", {}, section)


def published(store: ModelStore, path: Path, trigger_id: int, interval: int | None = None, **fields: Any) -> ModelVersion:
    return store.publish(header(trigger_id, interval, **fields), trained(path, trigger_id)).version


def check(store: ModelStore, models: Path, path: Path, longest: int) -> None:
    """Each version has the weights of its training, no chain is too long, and no file is left over."""
    versions = {info.version.model_id: info.version for info in store.list(None)}
    for version in versions.values():
        with store.fetch(version.model_id) as (_, got):
            assert weights_sha256(got) == version.weights_sha256 == weights_sha256(trained(path, version.trigger_id))
        length, base_id = 1, version.base_id
        while base_id is not None:
            length, base_id = length + 1, versions[base_id].base_id
        assert length <= longest
        assert (version.num_bytes < 0.95 * version.full_bytes) == (version.base_id is not None)
    assert len([file for file in models.iterdir() if file.suffix == ".model"]) == len(versions)
    assert list((models.parent / "incoming").iterdir()) == []


def test_every_nth_version_is_whole(store: ModelStore, models: Path, tmp_path: Path) -> None:
    found = [published(store, tmp_path / "put", trigger_id, 3) for trigger_id in range(7)]
    assert [version.base_id for version in found] == [None, 1, 2, None, 4, 5, None]
    assert [version.strategy for version in found[:2]] == ["SafetensorsFullModel", "WeightsDifference"]
    assert all(version.encode_s > version.full_encode_s > 0 for version in found if version.base_id is not None)
    check(store, models, tmp_path / "put", 3)
    others = [published(store, tmp_path / "put", trigger_id, run_id="run-2") for trigger_id in range(11)]
    assert [trigger_id for trigger_id, version in enumerate(others) if version.base_id is None] == [0, 10]
    assert [published(store, tmp_path / "put", 0, run_id="").base_id for _ in range(2)] == [None, None], "imported"


def test_a_difference_that_saves_nothing_is_not_stored(store: ModelStore, tmp_path: Path) -> None:
    published(store, tmp_path / "put", 0)
    save_file({"w": np.frombuffer(np.random.default_rng(1).bytes(80_000), np.float32)}, tmp_path / "unrelated")
    unrelated = store.publish(header(1), tmp_path / "unrelated").version
    assert (unrelated.base_id, unrelated.strategy) == (None, "SafetensorsFullModel")
    assert published(store, tmp_path / "put", 2, zip=False).base_id is None
    assert published(store, tmp_path / "put", 3, zip=False, config={"rle": True, "operator": "xor"}).base_id is not None


@pytest.mark.parametrize("seed", range(4))
def test_deletions_in_any_order_leave_the_other_versions(store: ModelStore, models: Path, tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    left = [published(store, tmp_path / "put", trigger_id, 5).model_id for trigger_id in range(8)]
    while left:
        model_id = left.pop(random.randrange(len(left)))
        store.delete(model_id)
        with pytest.raises(NotFoundError), store.fetch(model_id):
            pass
        check(store, models, tmp_path / "put", 5)
    assert list(models.iterdir()) == []


def test_optimizers_stay_with_a_version_that_is_rewritten(store: ModelStore, models: Path, tmp_path: Path) -> None:
    published(store, tmp_path / "put", 0)
    with store.receive() as state:
        state.write_bytes(b"state")
        second = store.publish(header(1), trained(tmp_path / "put", 1), state).version.model_id
    store.delete(1)
    with store.open_optimizers(second) as file:
        assert file.read() == b"state"
    assert sorted(path.suffix for path in models.iterdir()) == [".model", ".optimizers"]
    store.delete(second)
    assert list(models.iterdir()) == []


def file_of(models: Path, before: set[Path]) -> Path:
    [path] = set(models.iterdir()) - before
    return path


def test_damage_is_named_for_the_versions_that_need_the_file(store: ModelStore, models: Path, tmp_path: Path) -> None:
    paths: list[Path] = []
    for trigger_id in range(3):
        published(store, tmp_path / "put", trigger_id)
        paths.append(file_of(models, set(paths)))
    flip(paths[1], 40)
    with store.fetch(1):
        pass
    with (
        pytest.raises(CorruptStateError, match=rf"model 2 \(run 'run-1', trigger 1\) cannot be read from {paths[1]}"),
        store.fetch(2),
    ):
        pass
    needs = rf"model 3 .* stored as a difference that needs model 2 \(trigger 1\), which cannot be read from {paths[1]}"
    with pytest.raises(CorruptStateError, match=needs) as caught, store.fetch(3):
        pass
    assert "delete model 3, then model 2, and train them again" in str(caught.value)
    for model_id in (1, 2):
        with pytest.raises(CorruptStateError, match=f"model {model_id} cannot be deleted before model {model_id + 1}"):
            store.delete(model_id)
    assert published(store, tmp_path / "put", 3).base_id is None, "the version before cannot be read"
    store.delete(3)
    store.delete(2)
    assert published(store, tmp_path / "put", 2).base_id == 1
    check(store, models, tmp_path / "put", 10)
    paths[0].unlink()
    with (
        pytest.raises(CorruptStateError, match=rf"needs model 1 .* cannot be read from {paths[0]}: the file is missing"),
        store.fetch(5),
    ):
        pass


def test_a_version_can_be_read_while_another_one_is_deleted(store: ModelStore, tmp_path: Path) -> None:
    """The files of the version change while it is read."""
    count = 12
    newest = [published(store, tmp_path / "put", trigger_id, count) for trigger_id in range(count)][-1]
    failures: list[Exception] = []
    reads = 0

    def read() -> None:
        nonlocal reads
        try:
            while not stop.is_set():
                with store.fetch(newest.model_id) as (_, got):
                    assert weights_sha256(got) == newest.weights_sha256
                reads += 1
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    stop = threading.Event()
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for info in store.list(None)[:-1]:
        store.delete(info.version.model_id)
    stop.set()
    for reader in readers:
        reader.join(PATIENCE_S)
    assert failures == []
    assert reads


def test_a_deletion_that_lacks_space_changes_nothing(store: ModelStore, models: Path, tmp_path: Path) -> None:
    for trigger_id in range(2):
        published(store, tmp_path / "put", trigger_id)
    before = set(models.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(UnavailableError, match="model 1 cannot be deleted before model 2, .* no space is left"):
            store.delete(1)
        store.delete(2)
        store.delete(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(before) == 2
    assert list(models.iterdir()) == []


@pytest.mark.parametrize("strikes", [2, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_kills_during_puts_and_deletions_lose_no_version(system_config: SystemConfig, tmp_path: Path, strikes: int) -> None:
    """Versions are put, and the oldest are deleted, so that others are rewritten; the service is killed all the time."""
    random, stop, failures = Random(5), threading.Event(), list[ModynError]()
    kept = list[int]()

    def work() -> None:
        trigger_id = 0
        with ModelStorageClient(system_config.endpoint("model_storage")) as client:
            while not stop.is_set():
                try:
                    version = client.put(header(trigger_id, 4), trained(tmp_path / "put", trigger_id))
                    kept.append(version.model_id)
                    trigger_id += 1
                    if len(kept) > 5:
                        client.delete(kept[0])
                        del kept[0]
                except UnavailableError:
                    continue
                except NotFoundError:  # the deletion was made before the kill
                    del kept[0]
                except ModynError as error:
                    failures.append(error)
                    return

    with ServiceProcess("model_storage", system_config, tmp_path) as process:
        working = threading.Thread(target=work)
        working.start()
        try:
            for _ in range(strikes):
                time.sleep(random.uniform(0.1, 0.6))
                process.kill()
                process.start()
        finally:
            stop.set()
            working.join(PATIENCE_S)
        assert not working.is_alive()
        assert failures == []
        process.kill()
        process.start()
        with ModelStorageClient(system_config.endpoint("model_storage")) as client:
            listed = client.list(RUN)
            assert set(kept) <= {info.version.model_id for info in listed} | set(kept[:1])
            for info in listed:
                got = client.get(info.version.model_id, tmp_path / "got")
                assert weights_sha256(got.path) == weights_sha256(trained(tmp_path / "expected", info.version.trigger_id))
        models = system_config.service_dir("model_storage") / "models"
        assert len(list(models.iterdir())) == len(listed)
