"""The control plane of storage over gRPC, and that the in-memory fake answers the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.errors import AlreadyExistsError, ConfigError, InvalidArgumentError, ModynError, NotFoundError, UnavailableError
from modyn.records import Interval, SampleBatch
from modyn.storage.client import NewSamples, StorageClient
from modyn.storage.flight.client import PayloadClient
from modyn.storage.formats import FILE_FORMATS
from modyn.storage.ingest.open_dataset import OpenDataset
from modyn.storage.model.dataset_records import IngestProgress
from modyn.storage.read.snapshot import DatasetSnapshot
from modyn.storage.wire import spec_from_proto, spec_to_proto
from modyn.testing.fake_storage import FakeStorage, FakeStorageClient
from modyn.testing.waiting import PATIENCE_S
from tests.support.running_storage import RunningStorage, binary_dataset, running_storage, start_storage, write_records

TIMES = [50, 10, 30, 30, 20, 10, 40, 30]
"""File times by key: files are named in this order and made one after the other, so keys do not follow time."""


class Real:
    """A real service whose files have the times of TIMES, one record in each."""

    def __init__(self, storage: RunningStorage, folder: Path) -> None:
        self.storage, self.folder = storage, folder
        self.client: StorageClient = storage.client
        self.payloads: PayloadClient = storage.payloads
        self.client.register_dataset(binary_dataset(folder))
        self.count = 0
        for timestamp in TIMES:
            self.add(timestamp)

    def add(self, timestamp: int) -> None:
        write_records(self.folder / f"{self.count:04}.bin", [self.count], timestamp)
        self.count += 1
        self.storage.ingest()

    def register_again(self) -> None:
        self.client.delete_dataset("numbers")
        self.client.register_dataset(binary_dataset(self.folder))
        self.storage.ingest()


class Fake:
    """The fake with the same samples."""

    def __init__(self) -> None:
        self.fake = FakeStorage()
        self.client: StorageClient = self.fake.client()
        self.payloads: PayloadClient = self.fake.payload_client()
        self.fake.add_dataset("numbers")
        self.count = 0
        for timestamp in TIMES:
            self.add(timestamp)

    def add(self, timestamp: int) -> None:
        self.fake.add_samples("numbers", [timestamp], [self.count % 10], [self.count.to_bytes(8, "little")])
        self.count += 1

    def register_again(self) -> None:
        self.fake.add_dataset("numbers")
        self.fake.add_samples("numbers", TIMES)


def test_the_fake_inherits_no_call_that_needs_a_connection() -> None:
    client = FakeStorage().client()
    assert [name for name in vars(StorageClient) if name[0] != "_" and name not in vars(FakeStorageClient)] == []
    for call in (client.delete_dataset, client.ingest, client.rebuild_dataset, client.offer_short_cut):
        with pytest.raises(NotImplementedError, match=r"make datasets with FakeStorage\.add_dataset"):
            call("numbers")


@pytest.fixture(params=["real", "fake"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Real | Fake:
    return Real(request.getfixturevalue("storage"), tmp_path / "data") if request.param == "real" else Fake()


def keys_of(batches: list[SampleBatch]) -> list[int]:
    return SampleBatch.concatenate(batches).keys.tolist()  # type: ignore[no-any-return]


BY_TIME = [1, 5, 4, 2, 3, 7, 6, 0]


def test_the_file_formats_are_listed(storage: RunningStorage) -> None:
    assert [plugin.id for plugin in storage.client.plugins()] == sorted(FILE_FORMATS)


def test_intervals_are_replayed_by_time_then_key(service: Real | Fake) -> None:
    batches = list(service.client.samples_in_interval("numbers", Interval(), 3))
    assert keys_of(batches) == BY_TIME
    assert [len(batch) for batch in batches] == [3, 3, 2]
    whole = SampleBatch.concatenate(batches)
    assert whole.timestamps.tolist() == [TIMES[key] for key in BY_TIME]
    assert whole.labels.tolist() == BY_TIME


def test_a_sample_on_a_boundary_belongs_to_one_interval(service: Real | Fake) -> None:
    for start, end in ((10, 30), (30, 50), (50, 51), (30, 30), (0, 10)):
        expected = [key for key in BY_TIME if start <= TIMES[key] < end]
        interval = Interval(start, end)
        assert keys_of(list(service.client.samples_in_interval("numbers", interval, 2))) == expected
        assert service.client.count_samples("numbers", interval) == len(expected)
    assert service.client.count_samples("numbers", Interval()) == len(TIMES)


def test_a_replay_continues_after_any_sample(service: Real | Fake) -> None:
    for i, key in enumerate(BY_TIME):
        rest = service.client.samples_in_interval("numbers", Interval(10, 51), 2, after=(TIMES[key], key))
        assert keys_of(list(rest)) == BY_TIME[i + 1 :]


def test_a_replay_is_bounded_by_the_next_key_of_an_earlier_time(service: Real | Fake) -> None:
    end_key = service.client.dataset("numbers").next_key
    service.add(0)
    service.add(15)
    assert keys_of(list(service.client.samples_in_interval("numbers", Interval(), 3, end_key=end_key))) == BY_TIME
    rest = service.client.samples_in_interval("numbers", Interval(), 3, after=(TIMES[4], 4), end_key=6)
    assert keys_of(list(rest)) == [key for key in BY_TIME[3:] if key < 6]
    for bound in (0, 3, end_key, end_key + 1, None):
        expected = len(TIMES) + 2 if bound is None else bound
        assert service.client.count_samples("numbers", Interval(), bound) == expected


def test_samples_and_payloads_by_key(service: Real | Fake) -> None:
    keys = np.asarray([7, 0, 7, 3])
    batch = service.client.samples_by_key("numbers", keys)
    assert (batch.keys.tolist(), batch.timestamps.tolist(), batch.labels.tolist()) == (
        keys.tolist(),
        [TIMES[key] for key in keys],
        keys.tolist(),
    )
    payloads = next(service.payloads.fetch("numbers", keys))
    assert [int.from_bytes(payloads.payload(i), "little") for i in range(4)] == keys.tolist()
    assert (payloads.keys.tolist(), payloads.labels.tolist()) == (keys.tolist(), keys.tolist())
    for missing in (8, -1):
        with pytest.raises(NotFoundError, match=str(missing)):
            service.client.samples_by_key("numbers", np.asarray([1, missing]))
        with pytest.raises(NotFoundError, match=str(missing)):
            list(service.payloads.fetch("numbers", np.asarray([1, missing])))
        with pytest.raises(NotFoundError, match=f"never had samples with .*{missing}"):
            list(service.payloads.fetch("numbers", np.asarray([1, missing]), on_missing="skip"))


def test_what_was_made_for_a_dataset_is_refused_by_another_of_its_name(service: Real | Fake) -> None:
    client, keys, interval = service.client, np.asarray([1, 2]), Interval()
    first = client.dataset("numbers").identity
    requests: list[Callable[[str], object]] = [
        lambda identity: client.count_samples("numbers", interval, identity=identity),
        lambda identity: next(iter(client.samples_in_interval("numbers", interval, 10, identity=identity))),
        lambda identity: next(client.new_samples("numbers", 0, 10, identity)),
        lambda identity: client.samples_by_key("numbers", keys, identity),
        lambda identity: next(service.payloads.fetch("numbers", keys, identity=identity)),
        lambda identity: client.delete_samples("numbers", keys, identity),
    ]
    for request in requests:
        assert request(first) is not None
    service.register_again()
    second = client.dataset("numbers").identity
    assert client.list_datasets()[0].identity == second != first
    for request in requests:
        with pytest.raises(NotFoundError, match=f"'numbers' was deleted, and another.*{first}.*{second}"):
            request(first)
    assert client.dataset("numbers").num_deleted == 0
    for request in requests:
        assert request(second) is not None
        assert request("") is not None  # any


def test_only_deleted_samples_are_skipped(service: Real | Fake) -> None:
    service.client.delete_samples("numbers", np.asarray([3]))
    (kept,) = service.payloads.fetch("numbers", np.asarray([1, 3, 2, 3]), on_missing="skip")
    assert kept.keys.tolist() == [1, 2]
    with pytest.raises(NotFoundError, match=r"never had samples with .*5000000"):
        list(service.payloads.fetch("numbers", np.asarray([1, 3, 5_000_000, 2]), on_missing="skip"))


def test_a_key_leads_to_its_file(service: Real | Fake) -> None:
    first, second = service.client.locate("numbers", np.array([5, 2]))
    assert (first.key, first.timestamp, first.num_bytes, second.key, second.timestamp) == (5, 10, 8, 2, 30)
    if isinstance(service, Real):
        assert (first.path, first.offset) == (str(service.folder / "0005.bin"), 8)
    with pytest.raises(NotFoundError, match="99"):
        service.client.locate("numbers", np.array([99]))


def test_deleted_samples_leave_every_answer(service: Real | Fake) -> None:
    for _ in range(2):  # as after a lost answer
        assert service.client.delete_samples("numbers", np.asarray([4, 2, 4, 100])) == 2
    assert keys_of(list(service.client.samples_in_interval("numbers", Interval(), 3))) == [1, 5, 3, 7, 6, 0]
    assert service.client.count_samples("numbers", Interval(20, 31)) == 2
    new = service.client.new_samples("numbers", 0, 100)
    assert next(new).keys.tolist() == [0, 1, 3, 5, 6, 7]
    new.cancel()
    info = service.client.dataset("numbers")
    assert (info.num_samples, info.num_deleted, info.next_key) == (6, 2, 8)
    assert service.client.deleted_keys("numbers", info.identity).between(0, 100).tolist() == [2, 4]
    with pytest.raises(NotFoundError, match="another was registered under its name"):
        service.client.deleted_keys("numbers", "of another")
    service.add(60)
    assert service.client.samples_by_key("numbers", np.asarray([8])).timestamps.tolist() == [60]


def test_new_samples_are_pushed_in_order_of_arrival(service: Real | Fake) -> None:
    new = service.client.new_samples("numbers", 2, 4)
    got = keys_of([next(new), next(new)])
    assert got == [2, 3, 4, 5, 6, 7]
    threading.Timer(0.1, service.add, [5]).start()
    assert next(new).keys.tolist() == [8]
    service.add(6)
    service.add(6)
    got = []
    while len(got) < 2:
        got += next(new).keys.tolist()
    assert got == [9, 10]
    new.cancel()
    with pytest.raises(StopIteration):
        next(new)


def test_a_stream_of_new_samples_may_begin_in_the_future(service: Real | Fake) -> None:
    new = service.client.new_samples("numbers", 9, 4)
    service.add(5)
    service.add(6)
    assert next(new).keys.tolist() == [9]
    new.cancel()


def test_cancel_from_another_thread_ends_a_waiting_stream(service: Real | Fake) -> None:
    new: NewSamples = service.client.new_samples("numbers", 8, 4)
    threading.Timer(0.1, new.cancel).start()
    assert list(new) == []


def test_datasets_are_listed(service: Real | Fake) -> None:
    (info,) = service.client.list_datasets()
    assert (info.name, info.num_samples, info.min_timestamp, info.max_timestamp, info.float_labels) == (
        "numbers",
        8,
        10,
        50,
        False,
    )
    assert service.client.dataset("numbers") == info
    with pytest.raises(NotFoundError, match="no-such"):
        service.client.count_samples("no-such", Interval())


def test_a_dataset_is_registered_once_and_forgotten(storage: RunningStorage, tmp_path: Path) -> None:
    client = Real(storage, tmp_path / "data").client
    (info,) = client.list_datasets()
    assert client.register_dataset(info.config) == info
    with pytest.raises(AlreadyExistsError, match="numbers"):
        client.register_dataset(info.config.model_copy(update={"timestamp_source": "field:8"}))
    client.delete_dataset("numbers")
    assert client.list_datasets() == []
    with pytest.raises(NotFoundError, match="numbers"):
        client.count_samples("numbers", Interval())


def test_defaults_that_are_written_out_are_not_other_options(storage: RunningStorage, tmp_path: Path) -> None:
    config = binary_dataset(tmp_path / "d")
    storage.client.register_dataset(config)
    short = {"record_size": 16, "label_size": 8}
    storage.client.register_dataset(config.model_copy(update={"file_wrapper_config": short}))
    with pytest.raises(AlreadyExistsError, match="byteorder"):
        storage.client.register_dataset(config.model_copy(update={"file_wrapper_config": {**short, "byteorder": "big"}}))


def test_options_are_checked_at_registration(storage: RunningStorage, tmp_path: Path) -> None:
    config = binary_dataset(tmp_path / "d")
    for change, expected in (
        ({"file_wrapper": "BinaryFileWraper"}, "BinaryFileWrapper"),
        ({"file_wrapper_config": {"record_size": 0, "label_size": 8}}, "record_size"),
        ({"file_wrapper_config": {"record_size": 16, "label_siz": 8}}, "label_siz"),
        ({"timestamp_source": "moon"}, "moon"),
    ):
        with pytest.raises(ConfigError, match=expected):
            storage.client.register_dataset(config.model_copy(update=change))
    assert storage.client.list_datasets() == []


def test_batch_sizes_and_keys_are_checked(storage: RunningStorage, tmp_path: Path) -> None:
    storage.client.register_dataset(binary_dataset(tmp_path / "d"))
    for batch_size in (0, -1, 10_000_000):
        with pytest.raises(InvalidArgumentError, match="batch_size"):
            list(storage.client.samples_in_interval("numbers", Interval(), batch_size))
        with pytest.raises(InvalidArgumentError, match="batch_size"):
            next(storage.client.new_samples("numbers", 0, batch_size))
    with pytest.raises(InvalidArgumentError, match="first_key"):
        next(storage.client.new_samples("numbers", -1, 10))


def test_deleting_a_dataset_ends_its_streams_with_an_error(storage: RunningStorage, tmp_path: Path) -> None:
    write_records(tmp_path / "d" / "a.bin", [7], 1000)
    storage.index(binary_dataset(tmp_path / "d"))
    new = storage.client.new_samples("numbers", 0, 10)
    assert next(new).keys.tolist() == [0]
    deletion = threading.Timer(0.1, storage.client.delete_dataset, ["numbers"])
    deletion.start()
    with pytest.raises(NotFoundError, match="was deleted"):
        next(new)
    deletion.join()


def test_an_ingestion_that_fails_is_logged_also_when_no_one_waits(
    storage: RunningStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    storage.client.register_dataset(binary_dataset(tmp_path / "d"))
    may_fail = threading.Event()

    def broken(dataset: OpenDataset, *_: object, on_progress: Callable[[IngestProgress], None], **__: object) -> None:
        on_progress(IngestProgress(1, 0, 0, 0, False))
        may_fail.wait()
        raise UnavailableError("the disk is full")

    monkeypatch.setattr("modyn.storage.datasets.ingest", broken)
    progress = storage.store.ingest("numbers")
    next(progress)
    del progress
    may_fail.set()
    for thread in threading.enumerate():
        if thread.name == "ingest-numbers":
            thread.join()
    told = capfd.readouterr().err
    assert "ingestion_failed" in told
    assert "the disk is full" in told


def test_streams_continue_after_a_restart(quick_config: SystemConfig, stack: ExitStack, tmp_path: Path) -> None:
    write_records(tmp_path / "d" / "a.bin", range(500), 1000)
    first = ExitStack()
    storage = start_storage(quick_config, first)
    storage.index(binary_dataset(tmp_path / "d"))
    client = stack.enter_context(StorageClient(quick_config.endpoint("storage"), retry_s=PATIENCE_S))
    new, replay = client.new_samples("numbers", 0, 100), client.samples_in_interval("numbers", Interval(), 100)
    arrived = [next(new) for _ in range(5)]
    replayed = [next(replay)]
    first.close()
    storage = start_storage(quick_config, stack)
    write_records(tmp_path / "d" / "b.bin", range(500, 510), 2000)
    storage.ingest()
    arrived.append(next(new))
    replayed += list(replay)
    new.cancel()
    assert keys_of(arrived) == list(range(510))
    assert keys_of(replayed)[:500] == list(range(500)), "neither less nor twice"


def test_an_error_in_the_middle_of_a_replay_is_an_error(
    storage: RunningStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path / "d" / "a.bin", range(500), 1000)
    storage.index(binary_dataset(tmp_path / "d"))
    real: Callable[..., object] = DatasetSnapshot.samples_in_interval

    def broken(*arguments: object) -> object:
        yield next(iter(real(*arguments)))  # type: ignore[call-overload]
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(DatasetSnapshot, "samples_in_interval", broken)
    stream = storage.client.samples_in_interval("numbers", Interval(), 100)
    next(stream)
    with pytest.raises(ModynError, match="ZeroDivisionError"):
        next(stream)


def test_a_service_that_stays_away_is_an_error_in_bounded_time(tmp_path: Path, quick_config: SystemConfig) -> None:
    with StorageClient(quick_config.endpoint("storage"), retry_s=0.3) as client:
        with pytest.raises(UnavailableError):
            list(client.samples_in_interval("numbers", Interval(), 10))
        with pytest.raises(UnavailableError):
            next(client.new_samples("numbers", 0, 10))
        with pytest.raises(UnavailableError, match="cannot be reached"):
            client.check_column("numbers", "site")
        with pytest.raises(UnavailableError, match="cannot be reached"):
            list(client.column_values("numbers", np.arange(3), "site"))


def test_datasets_of_the_system_file_are_registered_at_start(
    make_config: Callable[..., SystemConfig], stack: ExitStack, tmp_path: Path, quick_config: SystemConfig
) -> None:
    folder = tmp_path / "later"
    section = {**quick_config.storage.model_dump(), "datasets": [binary_dataset(folder).model_dump()]}
    folder.rmdir()
    config = make_config(state_dir=quick_config.state_dir, storage=section)
    for _ in range(2):
        with running_storage(config) as storage:
            assert [info.name for info in storage.client.list_datasets()] == ["numbers"]
    bad = {**section, "datasets": [{**section["datasets"][0], "file_wrapper_config": {"record_size": -1}}]}
    with pytest.raises(ConfigError, match=r"storage\.datasets: numbers.*record_size"):
        start_storage(make_config(state_dir=quick_config.state_dir, storage=bad), stack)


@pytest.mark.parametrize("in_system_file", [False, True])
def test_a_dataset_whose_index_is_damaged_does_not_harm_the_others(
    quick_config: SystemConfig, tmp_path: Path, in_system_file: bool
) -> None:
    datasets = [binary_dataset(tmp_path / name, name) for name in ("bad", "good")]
    if in_system_file:
        settings = quick_config.storage.model_copy(update={"datasets": datasets})
        quick_config = quick_config.model_copy(update={"storage": settings})
    with running_storage(quick_config) as storage:
        for config in datasets:
            write_records(tmp_path / config.name / "a.bin", range(10), 1000)
            storage.index(config)
        folder = storage.store.dataset("bad").folder
    for path in folder.glob("*.segment"):
        path.write_bytes(path.read_bytes()[:-1])
    with running_storage(quick_config) as storage:
        assert storage.data_of(range(10), "good") == list(range(10))
        with pytest.raises(ModynError) as caught:
            storage.client.dataset("bad")
        assert caught.value.reason == "CORRUPT_STATE"
        storage.client.delete_dataset("bad")


@given(
    st.builds(
        DatasetConfig,
        name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,20}", fullmatch=True),
        base_path=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).map(lambda text: Path("/") / text),
        file_wrapper=st.text(min_size=1, max_size=10),
        file_wrapper_config=st.dictionaries(st.text(max_size=5), st.integers() | st.booleans() | st.text(max_size=5) | st.none()),
        timestamp_source=st.text(max_size=10),
        watch=st.booleans(),
    )
)
def test_specs_survive_the_wire(config: DatasetConfig) -> None:
    back = spec_from_proto(type(spec_to_proto(config)).FromString(spec_to_proto(config).SerializeToString()))
    assert back == config
