"""Payloads over Flight: each with its own key, in the order asked, whatever breaks on the way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.dataset import DatasetConfig
from modyn.config.endpoint import Endpoint
from modyn.config.security import SecurityConfig
from modyn.errors import (
    DataError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
    SecurityError,
    UnavailableError,
)
from modyn.storage.flight.client import FetchLimits, PayloadClient
from modyn.storage.flight.server import PayloadServer
from modyn.storage.model.samples import Payloads
from modyn.testing.waiting import PATIENCE_S
from tests.support.running_storage import ONCE, SMALL_FETCHING, SMALL_SERVING, RunningStorage, image_dataset, write_image


def check_paired(batches: Iterator[Payloads], keys: list[int]) -> None:
    got: list[int] = []
    for batch in batches:
        for i, key in enumerate(batch.keys.tolist()):
            assert int.from_bytes(batch.payload(i), "little") == 1_000_000 + key
            assert batch.labels[i] == key % 10
        got += batch.keys.tolist()
    assert got == keys


def test_payloads_are_paired_with_their_keys(numbers: RunningStorage) -> None:
    keys = np.random.default_rng(1).integers(0, 1000, 2000)
    chunks = list(numbers.payloads.fetch("numbers", keys))
    check_paired(iter(chunks), keys.tolist())
    assert max(chunk.data.nbytes for chunk in chunks) <= 80


def test_labels_come_without_payloads_and_without_reading(numbers: RunningStorage, tmp_path: Path) -> None:
    """In the order asked, without deleted samples; what is known of files holds as if they were read."""
    numbers.client.delete_samples("numbers", np.asarray([7]))
    keys = np.random.default_rng(1).integers(0, 1000, 2000)
    present = keys[keys != 7]
    list(numbers.payloads.fetch("numbers", np.arange(3)))
    for path in (tmp_path / "data").glob("*.bin"):
        path.rename(path.with_suffix(".away"))
    answers = list(numbers.payloads.fetch("numbers", keys, "skip", with_bytes=False))
    assert np.concatenate([answer.keys for answer in answers]).tolist() == present.tolist()
    assert np.concatenate([answer.labels for answer in answers]).tolist() == (present % 10).tolist()
    assert sum(answer.data.nbytes for answer in answers) == 0
    assert all((answer.offsets == 0).all() for answer in answers)
    with pytest.raises(NotFoundError, match="the keys 7 any more"):
        list(numbers.payloads.fetch("numbers", np.arange(10), with_bytes=False))
    with pytest.raises(DataError):
        list(numbers.payloads.fetch("numbers", np.arange(10), "skip"))


def test_labels_say_nothing_of_the_size_of_samples(numbers: RunningStorage) -> None:
    list(numbers.payloads.fetch("numbers", np.arange(1000)))
    expected = len(list(numbers.payloads.fetch("numbers", np.arange(1000))))
    list(numbers.payloads.fetch("numbers", np.arange(1000), with_bytes=False))
    assert numbers.payloads._pool.sample_bytes["numbers", True] == 8
    assert len(list(numbers.payloads.fetch("numbers", np.arange(1000)))) == expected


def test_any_keys_in_any_order_over_any_streams(numbers: RunningStorage, stack: ExitStack) -> None:
    numbers.client.delete_samples("numbers", np.arange(500, 600))
    clients = [
        stack.enter_context(PayloadClient(numbers.config.endpoint("flight"), streams, SMALL_FETCHING)) for streams in (1, 2, 3)
    ]

    @given(st.lists(st.integers(0, 999), max_size=700), st.booleans(), st.sampled_from(clients))
    def check(keys: list[int], in_order: bool, client: PayloadClient) -> None:
        keys = sorted(keys) if in_order else keys
        present = [key for key in keys if not 500 <= key < 600]
        check_paired(client.fetch("numbers", np.asarray(keys, np.int64), "skip"), present)
        if len(present) == len(keys):
            check_paired(client.fetch("numbers", np.asarray(keys, np.int64)), keys)
        else:
            with pytest.raises(NotFoundError):
                list(client.fetch("numbers", np.asarray(keys, np.int64)))

    check()


def test_no_stream_is_left_when_a_fetch_is_done(numbers: RunningStorage, stack: ExitStack) -> None:
    """Also not one that wanted to ask when another had just asked for the last keys."""
    client = stack.enter_context(PayloadClient(numbers.config.endpoint("flight"), 4, SMALL_FETCHING))
    before = set(threading.enumerate())
    for count in range(1, 120, 3):
        list(client.fetch("numbers", np.arange(count * 8)))
    for thread in set(threading.enumerate()) - before:
        if thread.name == "payloads":
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread.name


def test_records_of_one_size_say_so(numbers: RunningStorage) -> None:
    assert [batch.record_size for batch in numbers.payloads.fetch("numbers", np.arange(10))] == [8]


def test_payloads_of_many_lengths(storage: RunningStorage, tmp_path: Path) -> None:
    contents = [bytes([i]) * (1 + i * i % 200) for i in range(100)]
    for i, content in enumerate(contents):
        write_image(tmp_path / "d", f"{i:03}", content, i, 1000)
    storage.client.register_dataset(image_dataset(tmp_path / "d"))
    storage.ingest("images")
    keys = np.random.default_rng(2).integers(0, 100, 500)
    got = [
        (int(key), bytes(batch.payload(i)), int(batch.labels[i]))
        for batch in storage.payloads.fetch("images", keys)
        for i, key in enumerate(batch.keys)
    ]
    assert got == [(int(key), contents[key], int(key)) for key in keys]


def test_float_labels(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "a.bin").write_bytes(np.asarray([(0.5, 7), (1.5, 8)], [("label", "<f8"), ("data", "<i8")]).tobytes())
    options = {"record_size": 16, "label_size": 8, "label_type": "float"}
    config = DatasetConfig(name="f", base_path=folder, file_wrapper="BinaryFileWrapper", file_wrapper_config=options, watch=False)
    assert storage.client.register_dataset(config).float_labels
    storage.ingest("f")
    batch = next(storage.payloads.fetch("f", np.asarray([1, 0])))
    assert batch.labels.dtype == np.float64
    assert batch.labels.tolist() == [1.5, 0.5]
    assert storage.client.samples_by_key("f", np.asarray([1, 0])).labels.tolist() == [1.5, 0.5]


def test_no_keys_no_batches(numbers: RunningStorage) -> None:
    assert list(numbers.payloads.fetch("numbers", np.empty(0, np.int64))) == []


def test_missing_keys_are_named_or_skipped(numbers: RunningStorage) -> None:
    numbers.client.delete_samples("numbers", np.arange(10, 400))
    keys = np.asarray([5, 10, 999, 300, 5])
    with pytest.raises(NotFoundError, match="10, 300 any more: .*skip"):
        list(numbers.payloads.fetch("numbers", keys))
    check_paired(numbers.payloads.fetch("numbers", keys, on_missing="skip"), [5, 999, 5])
    for on_missing in ("raise", "skip"):
        with pytest.raises(NotFoundError, match="never had samples with the keys 2000, -1: its keys are below 1000"):
            list(numbers.payloads.fetch("numbers", np.asarray([5, 2000, 10, -1]), on_missing))
    check_paired(numbers.payloads.fetch("numbers", np.arange(1000), "skip"), [*range(10), *range(400, 1000)])
    assert list(numbers.payloads.fetch("numbers", np.arange(10, 300), "skip")) == []


def test_an_unknown_dataset_is_an_error_at_once(numbers: RunningStorage) -> None:
    with pytest.raises(NotFoundError, match="no dataset 'letters'"):
        list(numbers.payloads.fetch("letters", np.asarray([0])))


def test_an_error_in_the_middle_of_a_stream_is_an_error(numbers: RunningStorage, tmp_path: Path) -> None:
    (tmp_path / "data" / "5.bin").unlink()
    stream = numbers.payloads.fetch("numbers", np.arange(1000))
    got: list[Payloads] = []
    with pytest.raises(DataError, match=r"vanished: .*5\.bin.*`modyn data problems numbers`"):
        got.extend(batch for batch in stream)
    num_samples = sum(len(batch) for batch in got)
    check_paired(iter(got), list(range(num_samples)))


def test_a_bug_in_the_server_is_an_error_with_its_name(numbers: RunningStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("modyn.storage.flight.server.ChunkReader.read", broken)
    with pytest.raises(ModynError, match="KeyError") as caught:
        list(numbers.payloads.fetch("numbers", np.arange(10)))
    assert caught.value.reason == "INTERNAL"


def test_a_stream_goes_on_after_a_restart_without_loss_or_repetition(numbers: RunningStorage, stack: ExitStack) -> None:
    endpoint = Endpoint(address=f"unix:{numbers.config.run_dir}/second.sock")
    server = PayloadServer(endpoint, numbers.store, SMALL_SERVING)
    keys = np.random.default_rng(3).integers(0, 1000, 1000)
    with PayloadClient(endpoint, limits=replace(SMALL_FETCHING, retry_s=10)) as client:
        got = []
        for number, batch in enumerate(client.fetch("numbers", keys)):
            got.append(batch)
            if number % 40 == 5:
                server.stop()
                server = PayloadServer(endpoint, numbers.store, SMALL_SERVING)
    server.stop()
    check_paired(iter(got), keys.tolist())


def test_a_server_that_stays_away_is_an_error_in_bounded_time(tmp_path: Path) -> None:
    with (
        PayloadClient(Endpoint(address=f"unix:{tmp_path}/none.sock"), limits=replace(SMALL_FETCHING, retry_s=0.3)) as client,
        pytest.raises(UnavailableError, match="cannot be reached"),
    ):
        list(client.fetch("numbers", np.arange(3)))


def test_a_reader_that_stops_early_leaves_the_server_well(numbers: RunningStorage) -> None:
    for _ in range(20):
        stream = numbers.payloads.fetch("numbers", np.arange(1000))
        next(stream)
        stream.close()
    check_paired(numbers.payloads.fetch("numbers", np.arange(1000)), list(range(1000)))


def test_a_request_that_is_too_large_is_refused_and_the_server_goes_on(numbers: RunningStorage) -> None:
    limits = FetchLimits(first_keys=10_000, retry_s=0)
    endpoint = Endpoint(address=f"unix:{numbers.config.run_dir}/small.sock", max_message_bytes=2**16)
    server = PayloadServer(endpoint, numbers.store, SMALL_SERVING)
    try:
        with (
            PayloadClient(Endpoint(address=endpoint.address), limits=limits) as client,
            pytest.raises(InvalidArgumentError, match=r"takes 65536: .* storage.max_message_bytes"),
        ):
            list(client.fetch("numbers", np.zeros(10_000, np.int64)))
        with PayloadClient(endpoint, limits=limits) as client:  # one that knows the bound asks for less at once
            check_paired(client.fetch("numbers", np.arange(10_000) % 1000), [key % 1000 for key in range(10_000)])
    finally:
        server.stop()


def test_a_left_over_socket_is_taken_over_and_a_taken_port_is_told(numbers: RunningStorage, tmp_path: Path) -> None:
    path = numbers.config.run_dir / "left.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = PayloadServer(Endpoint(address=f"unix:{path}"), numbers.store, SMALL_SERVING)
    server.stop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=address):
            PayloadServer(Endpoint(address=address), numbers.store, SMALL_SERVING)


TOKEN = "a secret of this test"


@pytest.fixture
def certificate(tmp_path: Path) -> SecurityConfig:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    return SecurityConfig(tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem", tls_ca=tmp_path / "ca.pem")


def test_token_and_tls(numbers: RunningStorage, certificate: SecurityConfig) -> None:
    secured = certificate.model_copy(update={"token": TOKEN})
    server = PayloadServer(Endpoint(address="127.0.0.1:0", security=secured), numbers.store, SMALL_SERVING)
    try:
        with PayloadClient(Endpoint(address=server.address, security=secured), limits=ONCE) as client:
            check_paired(client.fetch("numbers", np.arange(20)), list(range(20)))
        for security, expected in (
            (certificate, SecurityError),
            (certificate.model_copy(update={"token": TOKEN + "?"}), SecurityError),
            (SecurityConfig(token=TOKEN), UnavailableError),
        ):
            address = server.address
            with PayloadClient(Endpoint(address=address, security=security), limits=ONCE) as client, pytest.raises(expected):
                list(client.fetch("numbers", np.arange(20)))
    finally:
        server.stop()


def test_token_without_tls_on_a_socket(numbers: RunningStorage) -> None:
    endpoint = Endpoint(address=f"unix:{numbers.config.run_dir}/token.sock", security=SecurityConfig(token=TOKEN))
    server = PayloadServer(endpoint, numbers.store, SMALL_SERVING)
    try:
        with PayloadClient(endpoint, limits=ONCE) as client:
            check_paired(client.fetch("numbers", np.arange(5)), list(range(5)))
        with PayloadClient(Endpoint(address=endpoint.address), limits=ONCE) as client, pytest.raises(SecurityError):
            list(client.fetch("numbers", np.arange(5)))
    finally:
        server.stop()


def test_off_loopback_it_refuses_without_tls_and_token(numbers: RunningStorage) -> None:
    with pytest.raises(SecurityError, match="token"):
        PayloadServer(Endpoint(address="0.0.0.0:0"), numbers.store, SMALL_SERVING)
