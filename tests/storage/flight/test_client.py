"""Payloads over Flight: each with its own key, in the order asked."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import (
    DataError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
    SecurityError,
    UnavailableError,
)
from modyn.storage.flight.client import FetchLimits, PayloadClient
from modyn.testing.waiting import PATIENCE_S
from tests.support.certificates import issue
from tests.support.running_storage import ONCE, SMALL_FETCHING, RunningStorage, files_dataset, image_dataset, write_image
from tests.support.watched_reads import StartServer, keys_of


def test_payloads_are_paired_with_their_keys(numbers: RunningStorage) -> None:
    keys = np.random.default_rng(1).integers(0, 1000, 2000)
    chunks = list(numbers.payloads.fetch("numbers", keys))
    assert keys_of(chunks) == keys.tolist()
    assert max(chunk.data.nbytes for chunk in chunks) <= 80
    assert {chunk.record_size for chunk in chunks} == {8}


def test_labels_come_without_payloads_and_without_reading(numbers: RunningStorage, tmp_path: Path) -> None:
    """Labels come in the order asked, without deleted samples. A file that is gone is no error here."""
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
        assert keys_of(client.fetch("numbers", np.asarray(keys, np.int64), "skip")) == present
        if len(present) == len(keys):
            assert keys_of(client.fetch("numbers", np.asarray(keys, np.int64))) == keys
        else:
            with pytest.raises(NotFoundError):
                list(client.fetch("numbers", np.asarray(keys, np.int64)))

    check()


def test_no_stream_is_left_when_a_fetch_is_done(numbers: RunningStorage, stack: ExitStack) -> None:
    """A stream also ends if another stream has just requested the last keys."""
    client = stack.enter_context(PayloadClient(numbers.config.endpoint("flight"), 4, SMALL_FETCHING))
    before = set(threading.enumerate())
    for count in range(1, 120, 3):
        list(client.fetch("numbers", np.arange(count * 8)))
    for thread in set(threading.enumerate()) - before:
        if thread.name == "payloads":
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread.name


def test_payloads_of_many_lengths(storage: RunningStorage, tmp_path: Path) -> None:
    contents = [bytes([i]) * (1 + i * i % 200) for i in range(100)]
    for i, content in enumerate(contents):
        write_image(tmp_path / "d", f"{i:03}", content, i, 1000)
    storage.index(image_dataset(tmp_path / "d"))
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
    config = files_dataset(folder, options, "BinaryFileWrapper", name="f")
    assert storage.client.register_dataset(config).float_labels
    storage.ingest("f")
    batch = next(storage.payloads.fetch("f", np.asarray([1, 0])))
    assert batch.labels.dtype == np.float64
    assert batch.labels.tolist() == [1.5, 0.5]
    assert storage.client.samples_by_key("f", np.asarray([1, 0])).labels.tolist() == [1.5, 0.5]


def test_missing_keys_are_named_or_skipped(numbers: RunningStorage) -> None:
    numbers.client.delete_samples("numbers", np.arange(10, 400))
    keys = np.asarray([5, 10, 999, 300, 5])
    with pytest.raises(NotFoundError, match="10, 300 any more: .*skip"):
        list(numbers.payloads.fetch("numbers", keys))
    assert keys_of(numbers.payloads.fetch("numbers", keys, on_missing="skip")) == [5, 999, 5]
    for on_missing in ("raise", "skip"):
        with pytest.raises(NotFoundError, match="never had samples with the keys 2000, -1: its keys are below 1000"):
            list(numbers.payloads.fetch("numbers", np.asarray([5, 2000, 10, -1]), on_missing))
    assert keys_of(numbers.payloads.fetch("numbers", np.arange(1000), "skip")) == [*range(10), *range(400, 1000)]
    assert list(numbers.payloads.fetch("numbers", np.arange(10, 300), "skip")) == []


def test_a_bug_in_the_server_is_an_error_with_its_name(numbers: RunningStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("modyn.storage.flight.server.ChunkReader.read", broken)
    with pytest.raises(ModynError, match="KeyError") as caught:
        list(numbers.payloads.fetch("numbers", np.arange(10)))
    assert caught.value.reason == "INTERNAL"


def test_a_request_that_is_too_large_is_refused_and_the_server_continues(numbers: RunningStorage, serve: StartServer) -> None:
    limits = FetchLimits(first_keys=10_000, retry_s=0)
    endpoint = serve(endpoint=Endpoint(address=f"unix:{numbers.config.run_dir}/small.sock", max_message_bytes=2**16))
    with (
        PayloadClient(Endpoint(address=endpoint.address), limits=limits) as client,
        pytest.raises(InvalidArgumentError, match=r"takes 65536: .* storage.max_message_bytes"),
    ):
        list(client.fetch("numbers", np.zeros(10_000, np.int64)))
    with PayloadClient(endpoint, limits=limits) as client:  # one that knows the bound asks for less at once
        assert keys_of(client.fetch("numbers", np.arange(10_000) % 1000)) == [key % 1000 for key in range(10_000)]


def test_a_left_over_socket_is_taken_over_and_a_taken_port_is_told(numbers: RunningStorage, serve: StartServer) -> None:
    path = numbers.config.run_dir / "left.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    serve(endpoint=Endpoint(address=f"unix:{path}"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=address):
            serve(endpoint=Endpoint(address=address))


TOKEN = "a secret of this test"


@pytest.fixture
def certificate(tmp_path: Path) -> SecurityConfig:
    return issue(tmp_path)


def test_token_and_tls(numbers: RunningStorage, serve: StartServer, certificate: SecurityConfig) -> None:
    secured = certificate.model_copy(update={"token": TOKEN})
    endpoint = serve(endpoint=Endpoint(address="127.0.0.1:0", security=secured))
    with PayloadClient(endpoint, limits=ONCE) as client:
        assert keys_of(client.fetch("numbers", np.arange(20))) == list(range(20))
    for security, expected in (
        (certificate, SecurityError),
        (certificate.model_copy(update={"token": TOKEN + "?"}), SecurityError),
        (SecurityConfig(token=TOKEN), UnavailableError),
    ):
        other = endpoint.model_copy(update={"security": security})
        with PayloadClient(other, limits=ONCE) as client, pytest.raises(expected):
            list(client.fetch("numbers", np.arange(20)))


def test_token_without_tls_on_a_socket(numbers: RunningStorage, serve: StartServer) -> None:
    address = f"unix:{numbers.config.run_dir}/token.sock"
    endpoint = serve(endpoint=Endpoint(address=address, security=SecurityConfig(token=TOKEN)))
    with PayloadClient(endpoint, limits=ONCE) as client:
        assert keys_of(client.fetch("numbers", np.arange(5))) == list(range(5))
    with PayloadClient(Endpoint(address=address), limits=ONCE) as client, pytest.raises(SecurityError):
        list(client.fetch("numbers", np.arange(5)))


def test_off_loopback_it_refuses_without_tls_and_token(serve: StartServer) -> None:
    with pytest.raises(SecurityError, match="token"):
        serve(endpoint=Endpoint(address="0.0.0.0:0"))
