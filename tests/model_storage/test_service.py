"""The service through its client, also while it is killed; the fake keeps the same rules."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from safetensors.numpy import save_file

from modyn.config.system import SystemConfig
from modyn.errors import (
    ConfigError,
    ConflictError,
    CorruptStateError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
    UnavailableError,
)
from modyn.model_storage.client import CurrentVersions, GateVerdict, ModelHeader, ModelStorageClient
from modyn.model_storage.service import build
from modyn.models.weights import weights_sha256
from modyn.proto import model_storage_pb2 as pb
from modyn.proto import model_storage_pb2_grpc as pb_grpc
from modyn.records import RunId
from modyn.rpc.channel import Channel
from modyn.rpc.logs import get_logger
from modyn.rpc.server import ServiceContext, start_server
from modyn.state_folders import prepare_run_dir
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.waiting import PATIENCE_S, eventually
from modyn.workers import KeptModels
from tests.support.processes import ServiceProcess
from tests.support.running_storage import flip

RUN = RunId("run-1")
Client = ModelStorageClient | FakeModelStorage


@pytest.fixture
def served(system_config: SystemConfig) -> Iterator[SystemConfig]:
    context = ServiceContext("model_storage", system_config, get_logger("model_storage"))
    prepare_run_dir(system_config.run_dir)
    server = start_server("model_storage", system_config.endpoint("model_storage"), build(context), max_threads=8)
    yield system_config
    server.stop(0)
    context.shut_down()


@pytest.fixture
def real(served: SystemConfig) -> Iterator[ModelStorageClient]:
    with ModelStorageClient(served.endpoint("model_storage")) as client:
        yield client


@pytest.fixture(params=["real", "fake"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    if request.param == "real":
        yield request.getfixturevalue("real")
    else:
        with FakeModelStorage() as fake:
            yield fake


def model_file(path: Path, seed: int = 0, size: int = 700_000) -> Path:
    save_file({"w": np.random.default_rng(seed).random(size, np.float32), "n": np.array(seed)}, path)
    return path


def header(trigger_id: int = 0, **fields: object) -> ModelHeader:
    given = {"model_config": {"input_size": 3}, "training_result": {"num_batches": 4, "loss": 0.25}, **fields}
    return ModelHeader(RUN, trigger_id, "MLP", **given)  # type: ignore[arg-type]


def test_put_get_find_list(client: Client, tmp_path: Path) -> None:
    put = model_file(tmp_path / "put")
    version = client.put(header(parent_id=None), put)
    assert (version.run_id, version.trigger_id, version.parent_id, version.promoted) == (RUN, 0, None, False)
    assert version.weights_sha256 == weights_sha256(put)
    assert abs(version.created_at - time.time()) < 60
    child = client.put(header(1, parent_id=version.model_id), model_file(tmp_path / "put2", 1))
    assert child.parent_id == version.model_id
    got = client.get(version.model_id, tmp_path / "got")
    assert got.path == tmp_path / "got"
    assert got.path.read_bytes() == put.read_bytes()
    assert (got.version, got.model_class, got.model_config) == (version, "MLP", {"input_size": 3})
    assert got.training_result == {"num_batches": 4, "loss": 0.25}
    found = client.find(RUN, 1)
    assert found is not None
    assert found == client.describe(child.model_id)
    assert client.find(RUN, 7) is None
    assert [info.version for info in client.list(RUN)] == [info.version for info in client.list()] == [version, child]
    assert client.list(RunId("other")) == []
    with pytest.raises(NotFoundError):
        client.get(child.model_id + 1, tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_the_fake_lacks_no_call() -> None:
    assert [name for name in vars(ModelStorageClient) if name[0] != "_" and name not in vars(FakeModelStorage)] == []


def test_promote_and_delete(client: Client, tmp_path: Path) -> None:
    version = client.put(header(), model_file(tmp_path / "put0"))
    child = client.put(header(1, parent_id=version.model_id), model_file(tmp_path / "put1", 1))
    imported = client.put(ModelHeader(RunId(""), 0, "MLP"), tmp_path / "put0")
    assert client.promote(imported.model_id).version.promoted
    assert client.promote(version.model_id).version.promoted
    with pytest.raises(ConflictError, match=f"model {version.model_id} is promoted"):
        client.delete(version.model_id)
    assert client.promote(child.model_id).version.promoted
    assert [info.version.promoted for info in client.list()] == [False, True, True]
    client.delete(version.model_id)
    assert client.describe(child.model_id).version.parent_id == version.model_id, "a parent that is deleted stays named"
    client.delete(child.model_id, even_promoted=True)
    assert client.find(RUN, 0) is None
    with pytest.raises(NotFoundError):
        client.get(version.model_id, tmp_path / "gone")
    for gone in (client.promote, client.delete, client.describe):
        with pytest.raises(NotFoundError):
            gone(version.model_id)


def test_rollbacks_go_back_step_by_step_and_all_is_in_the_trail(client: Client, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="run 'run-1' has no models"):
        client.rollback(RUN)
    assert client.current(RUN) == CurrentVersions()
    first, second, third = (client.put(header(i), model_file(tmp_path / "put", i)).model_id for i in range(3))
    assert client.current(RUN) == CurrentVersions(third)
    with pytest.raises(ConflictError, match="no model of run 'run-1' is promoted"):
        client.rollback(RUN)
    client.promote(first)
    with pytest.raises(ConflictError, match="no model of run 'run-1' that still exists was promoted before"):
        client.rollback(RUN)
    client.promote(second, "better on May")
    client.promote(second, "again")
    client.promote(third)
    assert client.rollback(RUN, "errors").version.model_id == second
    assert client.rollback(RUN).version.model_id == first
    assert client.current(RUN) == CurrentVersions(third, first, newest_in_trail=True)
    assert [info.version.promoted for info in client.list(RUN)] == [True, False, False]
    trail = client.promotions(RUN)
    assert [(entry.action, entry.model_id, entry.before_id, entry.reason) for entry in trail] == [
        ("promote", first, None, ""),
        ("promote", second, first, "better on May"),
        ("promote", third, second, ""),
        ("rollback", second, third, "errors"),
        ("rollback", first, second, ""),
    ]
    assert all(entry.made_by and abs(entry.made_at - time.time()) < 60 for entry in trail)
    with pytest.raises(InvalidArgumentError, match="name a run"):
        client.rollback(RunId(""))


def test_verdicts_are_in_the_trail_also_those_against_a_promotion(client: Client, tmp_path: Path) -> None:
    first, second, third = (client.put(header(i), model_file(tmp_path / "put", i)).model_id for i in range(3))
    against = (
        GateVerdict("Accuracy on test >= 0.9", 0.8, None, False),
        GateVerdict("Loss on test < 1", None, None, False, "empty"),
    )
    met = (GateVerdict("Accuracy on test not worse than promoted", 0.95, 0.9, True),)
    client.refuse_promotion(first, "automatic", against)
    assert client.current(RUN) == CurrentVersions(third)
    client.promote(first)
    client.promote(second, "automatic", met, compares=True, compared_id=first)
    with pytest.raises(
        ConflictError, match=f"model {third} was compared with model {first}, and model {second} is promoted by now"
    ):
        client.promote(third, "automatic", met, compares=True, compared_id=first)
    client.promote(second, "repeated, since its answer was lost", met, compares=True, compared_id=first)
    client.refuse_promotion(third, "automatic", against)
    assert client.rollback(RUN).version.model_id == first
    assert [(entry.action, entry.model_id, entry.before_id, entry.verdicts) for entry in client.promotions(RUN)] == [
        ("refuse", first, None, against),
        ("promote", first, None, ()),
        ("promote", second, first, met),
        ("refuse", third, second, against),
        ("rollback", first, second, ()),
    ]
    with pytest.raises(NotFoundError):
        client.refuse_promotion(third + 1, "", against)


def test_verdicts_that_compare_with_nothing_conflict_with_what_is_promoted_meanwhile(client: Client, tmp_path: Path) -> None:
    first, second = (client.put(header(i), model_file(tmp_path / "put", i)).model_id for i in range(2))
    met = (GateVerdict("Accuracy on test not worse than promoted", 0.95, None, True, "no other version is promoted"),)
    client.promote(first)
    with pytest.raises(ConflictError, match=f"model {second} was compared with none, and model {first} is promoted by now"):
        client.promote(second, "", met, compares=True)
    client.promote(first, "", met, compares=True)
    client.promote(second, "", met)  # of conditions that do not compare
    assert client.current(RUN).promoted_id == second


def test_verdicts_on_the_promoted_version_stand_in_the_trail_and_are_not_a_step_of_a_rollback(
    client: Client, tmp_path: Path
) -> None:
    first, second = (client.put(header(i), model_file(tmp_path / "put", i)).model_id for i in range(2))
    met = [(GateVerdict("Accuracy on test >= 0.9", value, None, True),) for value in (0.95, 0.92)]
    client.promote(first)
    client.promote(second)
    for verdicts in (met[0], met[0], met[1]):
        client.promote(second, "", verdicts)
    assert [(entry.action, entry.model_id, entry.before_id, entry.verdicts) for entry in client.promotions(RUN)] == [
        ("promote", first, None, ()),
        ("promote", second, first, ()),
        ("promote", second, second, met[0]),
        ("promote", second, second, met[1]),
    ]
    assert client.rollback(RUN).version.model_id == first


def test_a_rollback_leaves_out_what_was_deleted(client: Client, tmp_path: Path) -> None:
    first, second, third = (client.put(header(i), model_file(tmp_path / "put", i)).model_id for i in range(3))
    for model_id in (first, second, third):
        client.promote(model_id)
    client.delete(second)
    assert client.rollback(RUN).version.model_id == first


def test_put_is_idempotent_by_run_and_trigger(client: Client, tmp_path: Path) -> None:
    first = client.put(header(), model_file(tmp_path / "a"))
    assert client.put(header(), model_file(tmp_path / "b", 1)) == first
    others = [client.put(ModelHeader(RunId(run), 0, "MLP"), tmp_path / "a").model_id for run in ("", "", "run-2")]
    assert len({first.model_id, *others}) == 4
    assert [info.version.model_id for info in client.list(RunId("run-2"))] == others[2:]


def test_the_state_of_optimizers_goes_with_the_newest_version_of_a_run(client: Client, tmp_path: Path) -> None:
    state, got = tmp_path / "optimizers", tmp_path / "got"
    versions = []
    for trigger_id in range(2):
        state.write_bytes(b"state" * (300_000 + trigger_id))
        versions.append(client.put(header(trigger_id), model_file(tmp_path / "put", trigger_id), optimizers=state))
        client.get_optimizers(versions[-1].model_id, got)
        assert got.read_bytes() == state.read_bytes()
        client.get(versions[-1].model_id, tmp_path / "weights")
        assert weights_sha256(tmp_path / "weights") == versions[-1].weights_sha256
    # A put that is repeated changes nothing, and a later version without a state takes none away.
    state.write_bytes(b"another")
    assert client.put(header(1), tmp_path / "put", optimizers=state) == versions[1]
    plain = client.put(header(2), tmp_path / "put")
    client.get_optimizers(versions[1].model_id, got)
    assert got.read_bytes() == b"state" * 300_001
    got.unlink()
    for model_id in (versions[0].model_id, plain.model_id):
        with pytest.raises(NotFoundError, match=f"no state of optimizers is kept with model {model_id}"):
            client.get_optimizers(model_id, got)
    client.delete(versions[1].model_id)
    for model_id in (versions[1].model_id, 4711):
        with pytest.raises(NotFoundError, match="there is no model"):
            client.get_optimizers(model_id, got)
    assert not got.exists()


def test_a_session_has_at_hand_what_it_put_last(real: ModelStorageClient, tmp_path: Path) -> None:
    """Model storage is not asked: the version may even be deleted there."""
    kept, state, got = KeptModels(limit=10_000_000), tmp_path / "optimizers", tmp_path / "got"
    for trigger_id in range(2):
        state.write_bytes(b"state" * (1 + trigger_id))
        put = real.put(header(trigger_id), model_file(tmp_path / "put", trigger_id), kept, state)
    described = real.describe(put.model_id)
    real.delete(put.model_id)
    stored = real.get(put.model_id, got, kept)
    assert (stored.version, stored.training_result) == (described.version, described.training_result)
    assert got.read_bytes() == (tmp_path / "put").read_bytes()
    real.get_optimizers(put.model_id, got, kept)
    assert got.read_bytes() == b"statestate"


def test_a_session_keeps_nothing_of_a_put_in_whose_place_another_model_was_there(client: Client, tmp_path: Path) -> None:
    kept, state = KeptModels(limit=10_000_000), tmp_path / "optimizers"
    state.write_bytes(b"first")
    first = client.put(header(), model_file(tmp_path / "a"), optimizers=state)
    state.write_bytes(b"second")
    assert client.put(header(), model_file(tmp_path / "b", 1), kept, state) == first
    client.get(first.model_id, tmp_path / "weights", kept)
    assert weights_sha256(tmp_path / "weights") == first.weights_sha256
    client.get_optimizers(first.model_id, tmp_path / "got", kept)
    assert (tmp_path / "got").read_bytes() == b"first"


def test_only_models_are_taken(client: Client, tmp_path: Path) -> None:
    (tmp_path / "no").write_bytes(b"no model")
    with pytest.raises((InvalidArgumentError, CorruptStateError), match="not a safetensors file"):
        client.put(header(), tmp_path / "no")
    with pytest.raises(FileNotFoundError):
        client.put(header(), tmp_path / "missing")
    assert client.list() == []


def test_validate_and_plugins(real: ModelStorageClient, tmp_path: Path) -> None:
    assert real.validate({"model_storage": {"full_model_strategy": {"name": "PyTorchFullModel"}}}) == []
    (problem,) = real.validate({"model_storage": {"full_model_strategy": {"name": "Pytorch"}}})
    assert problem.path == "model_storage.full_model_strategy.name"
    assert {"BinaryFullModel", "PyTorchFullModel", "SafetensorsFullModel"} <= {plugin.id for plugin in real.plugins()}
    with pytest.raises(ConfigError, match="full_model_interval"):
        real.put(header(model_storage={"full_model_interval": 0}), model_file(tmp_path / "a"))


def test_a_corrupt_file_is_an_error_at_the_client_and_leaves_no_file(
    real: ModelStorageClient, served: SystemConfig, tmp_path: Path
) -> None:
    version = real.put(header(), model_file(tmp_path / "put"))
    (stored,) = (served.service_dir("model_storage") / "models").iterdir()
    flip(stored, -1)
    (tmp_path / "into").mkdir()
    with pytest.raises(CorruptStateError, match=rf"model {version.model_id} .*{stored.name}"):
        real.get(version.model_id, tmp_path / "into" / "got")
    assert list((tmp_path / "into").iterdir()) == []


@pytest.mark.parametrize("replies", [[], [pb.GetReply(chunk=b"abc")]])
def test_an_answer_without_its_beginning_is_an_error(
    replies: list[pb.GetReply], served: SystemConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ModelStorageClient(served.endpoint("model_storage")) as client:
        monkeypatch.setattr(client._stub, "Get", lambda _: iter(replies))
        with pytest.raises(CorruptStateError, match="model 1 arrived without its description: it is incomplete; fetch it again"):
            client.get(1, tmp_path / "got")
    assert not list(tmp_path.glob("got*"))


HEADER = pb.PutRequest(header=pb.ModelHeader(run_id=RUN, model_class="MLP"))
CHUNK = pb.PutRequest(chunk=b"abc")
TRAILER = pb.PutRequest(trailer=pb.Trailer(num_bytes=3, sha256="0" * 64))


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ([], "begins with a header"),
        ([CHUNK], "begins with a header"),
        ([HEADER], "without a trailer"),
        ([HEADER, CHUNK], "without a trailer"),
        ([HEADER, CHUNK, HEADER], "one header, then chunks"),
        ([HEADER, CHUNK, TRAILER], "changed or cut on its way"),
    ],
)
def test_an_incomplete_put_stores_nothing(
    real: ModelStorageClient, served: SystemConfig, requests: list[pb.PutRequest], told: str
) -> None:
    with Channel(served.endpoint("model_storage")) as channel, pytest.raises(InvalidArgumentError, match=told):
        pb_grpc.ModelStorageStub(channel).Put(iter(requests))
    assert real.list() == []
    folder = served.service_dir("model_storage")
    assert [*(folder / "models").iterdir(), *(folder / "incoming").iterdir()] == []


def test_kept_weights_are_not_fetched_again(real: ModelStorageClient, served: SystemConfig, tmp_path: Path) -> None:
    kept = KeptModels(10_000_000)
    put = real.put(header(), model_file(tmp_path / "put"), kept)
    fetched = real.put(header(1), model_file(tmp_path / "fetched", seed=1))
    assert real.get(fetched.model_id, tmp_path / "first", kept).version == fetched
    for stored in served.service_dir("model_storage").rglob("*"):
        if stored.is_file() and stored.stat().st_size > 1_000_000:
            stored.unlink()
    with pytest.raises(CorruptStateError):
        real.get(put.model_id, tmp_path / "gone")
    for version, path in ((put, tmp_path / "put"), (fetched, tmp_path / "fetched")):
        found = real.get(version.model_id, tmp_path / "again", kept)
        assert (found.version, found.model_config) == (version, {"input_size": 3})
        assert weights_sha256(tmp_path / "again") == weights_sha256(path)
    real.put(header(2), model_file(tmp_path / "newest", seed=2), kept)
    real.delete(put.model_id)
    with pytest.raises(NotFoundError):
        real.get(put.model_id, tmp_path / "deleted", kept)


def test_only_the_weights_of_a_version_are_kept_under_its_hash(real: ModelStorageClient, tmp_path: Path) -> None:
    """A repeated put returns the version that exists, and its weights are not those of the file."""
    kept, small = KeptModels(10_000_000), KeptModels(1000)
    version = real.put(header(), model_file(tmp_path / "a"), small)
    assert real.put(header(), model_file(tmp_path / "b", seed=1), kept) == version
    assert (len(kept), len(small)) == (0, 0)


@pytest.fixture
def process(system_config: SystemConfig, tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess("model_storage", system_config, tmp_path) as process:
        yield process


@pytest.mark.parametrize("strikes", [3, pytest.param(12, marks=pytest.mark.exhaustive)])
def test_killed_at_random_moments_a_put_is_whole_or_not_there(
    process: ServiceProcess, system_config: SystemConfig, tmp_path: Path, strikes: int
) -> None:
    """Kills and stops while models are being put: the clients' puts all succeed in the end, each trigger has one whole version."""
    random = Random(3)
    folder = system_config.service_dir("model_storage")
    strategies = ["SafetensorsFullModel", "PyTorchFullModel", "BinaryFullModel"]
    hashes: dict[int, str] = {}
    failures: list[ModynError] = []

    def put_all() -> None:
        trigger_id = 0
        with ModelStorageClient(system_config.endpoint("model_storage")) as client:
            while not stop.is_set():
                section = {"full_model_strategy": {"name": strategies[trigger_id % 3], "zip": trigger_id % 2 == 1}}
                path = model_file(tmp_path / "put", trigger_id, 2_000_000 if trigger_id % 8 == 0 else 1000)
                version = None
                while version is None:  # also when all is over: what was stored is known only once a put was answered
                    try:
                        version = client.put(header(trigger_id, model_storage=section), path)
                    except UnavailableError:
                        continue  # as the trainer does: on a slow machine restarts outlast the client's own patience
                    except ModynError as error:
                        failures.append(error)
                        return
                hashes[trigger_id] = version.weights_sha256
                assert version.weights_sha256 == weights_sha256(path)
                trigger_id += 1

    stop = threading.Event()
    putting = threading.Thread(target=put_all)
    putting.start()
    try:
        for _ in range(strikes):
            time.sleep(random.uniform(0, 0.4))
            random.choice([process.kill] * 5 + [process.end])()
            process.start()
    finally:
        stop.set()
        putting.join(PATIENCE_S)
    assert not putting.is_alive()
    assert failures == []
    assert hashes
    process.kill()
    process.start()
    with ModelStorageClient(system_config.endpoint("model_storage")) as client:
        listed = client.list(RUN)
        assert [info.version.trigger_id for info in listed] == sorted(hashes) == list(range(len(hashes)))
        for info in listed:
            got = client.get(info.version.model_id, tmp_path / "got")
            assert weights_sha256(got.path) == hashes[info.version.trigger_id] == info.version.weights_sha256
    assert len(list((folder / "models").iterdir())) == len(hashes)
    # A version is removed from there after the last of it was sent.
    eventually(lambda: not list((folder / "incoming").iterdir()))


def test_process_serves_metrics_and_ends_cleanly_without_torch(
    process: ServiceProcess, system_config: SystemConfig, tmp_path: Path
) -> None:
    with ModelStorageClient(system_config.endpoint("model_storage")) as client:
        client.put(header(), model_file(tmp_path / "put"))
    url = (system_config.service_dir("model_storage") / "metrics_url").read_text().strip()
    with urllib.request.urlopen(url, timeout=5) as reply:
        assert b'modyn_models_stored_total{strategy="SafetensorsFullModel"} 1.0' in reply.read()
    mapped = Path(f"/proc/{process.pid}/maps").read_text()
    assert not [name for name in ("libtorch", "pandas/_libs") if name in mapped]
    assert process.end() == 0


@pytest.mark.slow
def test_the_service_imports_nothing_heavy() -> None:
    check = (
        "import sys; import modyn.rpc.__main__, modyn.model_storage.service; from modyn.model_storage.formats import MODEL_FORMATS; "
        "[MODEL_FORMATS.get(id_) for id_ in MODEL_FORMATS.builtin]; "
        "found = {'torch', 'pandas', 'plotly'} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_get_waits_for_a_service_that_restarts(process: ServiceProcess, system_config: SystemConfig, tmp_path: Path) -> None:
    with ModelStorageClient(system_config.endpoint("model_storage"), wait_s=PATIENCE_S) as client:
        version = client.put(header(), model_file(tmp_path / "put"))
        process.kill()
        restart = threading.Thread(target=process.start)
        restart.start()
        got = client.get(version.model_id, tmp_path / "got")
        restart.join()
    assert got.path.read_bytes() == (tmp_path / "put").read_bytes()
