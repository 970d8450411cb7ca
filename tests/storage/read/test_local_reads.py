"""The short cut reads what Flight reads, and is taken only where it is proven that both see the same files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.system import SystemConfig
from modyn.errors import ConfigError, CorruptStateError, DataError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.records import Int64Array
from modyn.storage.client import StorageClient
from modyn.storage.files.local import open_filesystem
from modyn.storage.model.samples import Payloads
from modyn.storage.payloads import LocalPayloads, OnMissing, PayloadClient, ShortCut, open_payloads
from modyn.storage.read.locality import ShortCutOffer
from tests.support.running_storage import (
    RunningStorage,
    binary_dataset,
    image_dataset,
    running_storage,
    start_storage,
    write_image,
    write_records,
)

Sample = tuple[int, int, bytes]


def samples_of(batches: Iterator[Payloads]) -> list[Sample]:
    """(key, label, payload) of all batches."""
    return [
        (int(key), int(batch.labels[i]), bytes(batch.payload(i)))
        for batch in batches
        for i, key in enumerate(batch.keys.tolist())
    ]


def samples(
    payloads: LocalPayloads | PayloadClient, keys: list[int] | Int64Array, on_missing: OnMissing = "raise"
) -> list[Sample]:
    """Return the samples that are read by key from dataset "numbers", whichever way."""
    asked = np.asarray(keys, np.int64)
    if isinstance(payloads, PayloadClient):
        return samples_of(payloads.fetch("numbers", asked, on_missing))
    return samples_of(iter([payloads.locate("numbers", asked, on_missing).take(slice(None))]))


def record(key: int) -> Sample:
    return key, key % 10, (1_000_000 + key).to_bytes(8, "little")


@pytest.fixture
def local(numbers: RunningStorage) -> Iterator[LocalPayloads]:
    with numbers.short_cut() as payloads:
        yield payloads


def open_numbers(storage: RunningStorage, short_cut: ShortCut) -> LocalPayloads | PayloadClient:
    return open_payloads(storage.config.endpoint("storage"), storage.config.flight_endpoints, "numbers", short_cut)


# The same as Flight and as the files themselves


@given(
    keys=st.lists(st.integers(-5, 1010), max_size=80),
    deleted=st.lists(st.integers(0, 999), max_size=3),
    on_missing=st.sampled_from(["raise", "skip"]),
)
def test_short_cut_flight_and_brute_force_agree(
    numbers: RunningStorage, local: LocalPayloads, keys: list[int], deleted: list[int], on_missing: OnMissing
) -> None:
    numbers.client.delete_samples("numbers", np.asarray(deleted, np.int64))
    gone = set(np.flatnonzero(numbers.store.dataset("numbers").snapshot().missing(np.arange(1000))).tolist())
    assert gone >= set(deleted)
    known = [key for key in keys if 0 <= key < 1000]
    present = [key for key in known if key not in gone]
    for payloads in (local, numbers.payloads):
        if len(known) < len(keys):
            with pytest.raises(NotFoundError, match="never had samples"):
                samples(payloads, keys, on_missing)
        elif len(present) < len(keys) and on_missing == "raise":
            with pytest.raises(NotFoundError, match="they were deleted"):
                samples(payloads, keys)
        else:
            assert samples(payloads, keys, on_missing) == [record(key) for key in present]


@given(
    keys=st.lists(st.integers(0, 59), min_size=1, max_size=40), rows=st.lists(st.integers(0, 10_000), max_size=40), cut=st.data()
)
def test_rows_of_located_samples_are_taken_in_any_order(
    images: LocalPayloads, keys: list[int], rows: list[int], cut: st.DataObject
) -> None:
    located = images.locate("images", np.asarray(keys, np.int64))
    assert located.keys.tolist() == keys
    assert located.where.tolist() == list(range(len(keys)))
    rows = [row % len(keys) for row in rows]
    assert samples_of(iter([located.take(np.asarray(rows, np.int64))])) == [image(keys[row]) for row in rows]
    start = cut.draw(st.integers(0, len(keys)))
    stop = cut.draw(st.integers(start, len(keys)))
    assert samples_of(iter([located.take(slice(start, stop))])) == [image(key) for key in keys[start:stop]]


def image(key: int) -> Sample:
    return key, key, bytes([key]) * (1 + key * key % 97)


@pytest.fixture
def images(storage: RunningStorage, tmp_path: Path) -> Iterator[LocalPayloads]:
    """60 files of one sample each and of many lengths."""
    for key in range(60):
        write_image(tmp_path / "i", f"{key:02}", image(key)[2], key, 1000)
    storage.index(image_dataset(tmp_path / "i"))
    with storage.short_cut("images") as payloads:
        yield payloads


def test_where_tells_which_keys_are_there(numbers: RunningStorage, local: LocalPayloads) -> None:
    numbers.client.delete_samples("numbers", np.asarray([7, 9]))
    located = local.locate("numbers", np.asarray([9, 5, 5, 7, 3]), "skip")
    assert located.keys.tolist() == [5, 5, 3]
    assert located.where.tolist() == [1, 2, 4]
    assert located.entries.labels.tolist() == [5, 5, 3]
    with pytest.raises(NotFoundError, match="9, 7 any more"):
        local.locate("numbers", np.asarray([9, 5, 7]))


# What changes while it is read


def test_new_samples_deletions_and_altered_files_are_seen_at_the_next_request(
    numbers: RunningStorage, local: LocalPayloads, tmp_path: Path
) -> None:
    located = local.locate("numbers", np.arange(1000))
    write_records(tmp_path / "data" / "new.bin", range(1_001_000, 1_001_100), 2000)
    numbers.ingest()
    assert samples(local, [1099, 0]) == [record(1099), record(0)]

    numbers.client.delete_samples("numbers", np.asarray([0]))
    with pytest.raises(NotFoundError, match="the keys 0 any more:"):
        samples(local, [1099, 0])

    write_records(tmp_path / "data" / "3.bin", range(100), 3000)
    numbers.ingest()
    with pytest.raises(DataError, match=r"3\.bin was changed .* the sample with key 300 at byte 8 of it"):
        samples(local, [1, 300])
    with pytest.raises(DataError, match=r"3\.bin was changed"):  # also what was located before
        located.take(np.asarray([5, 305]))
    with pytest.raises(DataError, match=r"3\.bin was changed"):  # also where no byte is wanted
        located.without_bytes(slice(300, 310))
    assert located.without_bytes(slice(5, 7)).labels.tolist() == [5, 6]
    assert samples_of(iter([located.take(np.asarray([5]))])) == [record(5)]


def test_segments_that_are_merged_meanwhile(numbers: RunningStorage, local: LocalPayloads, tmp_path: Path) -> None:
    located = local.locate("numbers", np.arange(1000))
    for i in range(20):  # enough commits to become one segment
        write_records(tmp_path / "data" / f"m{i:02}.bin", range(1_001_000 + i, 1_001_001 + i), 2000 + i)
        numbers.ingest()
    assert len(local.snapshot().index.segments) < 15
    assert samples(local, np.arange(1020)) == [record(key) for key in range(1020)]
    assert samples_of(iter([located.take(slice(None))])) == [record(key) for key in range(1000)]


def test_reading_continues_without_storage_and_after_its_restart(
    quick_config: SystemConfig, stack: ExitStack, tmp_path: Path
) -> None:
    write_records(tmp_path / "data" / "0.bin", range(1_000_000, 1_000_100), 1000)
    with running_storage(quick_config) as storage:
        storage.index(binary_dataset(tmp_path / "data"))
        local = stack.enter_context(storage.short_cut())
        located = local.locate("numbers", np.arange(100))
    assert samples(local, np.arange(100)) == [record(key) for key in range(100)]
    again = start_storage(quick_config, stack)
    again.client.delete_samples("numbers", np.asarray([4]))
    assert samples(local, np.arange(6), "skip") == [record(key) for key in (0, 1, 2, 3, 5)]
    assert samples_of(iter([located.take(slice(90, 100))])) == [record(key) for key in range(90, 100)]
    with again.short_cut() as fresh:
        assert samples(fresh, [3]) == [record(3)]


def test_storage_that_was_moved_is_found_again_by_a_new_proof(
    make_config: Callable[..., SystemConfig], quick_config: SystemConfig, stack: ExitStack, tmp_path: Path
) -> None:
    write_records(tmp_path / "data" / "0.bin", range(1_000_000, 1_000_100), 1000)
    with running_storage(quick_config) as storage:
        storage.index(binary_dataset(tmp_path / "data"))
        local = stack.enter_context(storage.short_cut())
    shutil.move(quick_config.service_dir("storage"), tmp_path / "moved" / "storage")
    moved = make_config(
        state_dir=tmp_path / "moved",
        storage={
            "address": quick_config.endpoint("storage").address,
            "flight_address": quick_config.endpoint("flight").address,
        },
    )
    start_storage(moved, stack)
    assert samples(local, [7]) == [record(7)]
    assert local.snapshot().paths[0].startswith(str(tmp_path / "data"))


def test_a_deleted_dataset_is_not_read_any_more(numbers: RunningStorage, local: LocalPayloads, tmp_path: Path) -> None:
    located = local.locate("numbers", np.arange(10))
    identity = numbers.client.dataset("numbers").identity
    numbers.client.delete_dataset("numbers")
    for read in (lambda: local.locate("numbers", np.arange(3)), lambda: located.take(slice(0, 3))):
        with pytest.raises(NotFoundError, match="no dataset 'numbers'"):
            read()
    numbers.client.register_dataset(binary_dataset(tmp_path / "data"))
    numbers.ingest()
    with pytest.raises(NotFoundError, match="another was registered under its name"):
        samples(local, np.arange(3))
    with numbers.short_cut() as fresh:
        assert samples(fresh, [3]) == [record(3)]
        with pytest.raises(NotFoundError, match=f"identity {identity}, that of the present one is {fresh.snapshot().identity}"):
            fresh.locate("numbers", np.arange(3), "skip", identity)


# Which way is taken


def test_auto_takes_the_short_cut_where_it_is_proven(numbers: RunningStorage) -> None:
    for short_cut in ("auto", "on"):
        with open_numbers(numbers, short_cut) as payloads:
            assert isinstance(payloads, LocalPayloads)
            assert samples(payloads, [3]) == [record(3)]
            with pytest.raises(InvalidArgumentError, match="'numbers', not of 'letters'"):
                payloads.locate("letters", np.asarray([3]))


def test_off_does_not_even_ask(numbers: RunningStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> ShortCutOffer:
        raise AssertionError("storage was asked")

    monkeypatch.setattr(StorageClient, "offer_short_cut", asked)
    with open_numbers(numbers, "off") as payloads:
        assert isinstance(payloads, PayloadClient)
        assert samples(payloads, [3]) == [record(3)]


def tampered(offer: ShortCutOffer, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShortCutOffer:
    """The offer when what it is about is not what storage sees."""
    nonce, data = Path(os.fsdecode(offer.folder)) / "nonce", Path(os.fsdecode(offer.files[-1].path))
    match how:
        case "elsewhere":
            return replace(offer, kernel="another")
        case "unreadable nonce":
            nonce.unlink()
        case "other nonce":
            nonce.write_bytes(b"x" * 64)
        case "other folder":
            return replace(offer, folder=os.fsencode(tmp_path))
        case "copied data":  # the same bytes with the same times, as on another mount
            shutil.copy2(data, tmp_path / "copy")
            (tmp_path / "copy").replace(data)
        case "absent data":
            data.unlink()
        case "unreadable data":
            monkeypatch.setattr("os.access", lambda *_: False)  # root may read anything
        case "silent server":
            raise UnavailableError("storage cannot be reached")
    return offer


BROKEN = {
    "elsewhere": "another machine",
    "unreadable nonce": "cannot be read here",
    "other nonce": "not the folder in which storage wrote its nonce",
    "other folder": "cannot be read here",
    "copied data": "another file here than where storage runs",
    "absent data": "cannot be found here",
    "unreadable data": "may not be read here",
    "silent server": "cannot be reached",
}


@pytest.fixture
def all_logs() -> Iterator[None]:
    """Everything is logged, as in a service; a script that configures nothing gets warnings only."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(0))
    yield
    structlog.configure(**before)


@pytest.mark.parametrize(("how", "reason"), BROKEN.items())
def test_without_proof_it_is_flight_or_an_error_never_a_guess(
    numbers: RunningStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    reason: str,
    capsys: pytest.CaptureFixture[str],
    all_logs: None,
) -> None:
    real = StorageClient.offer_short_cut

    def offer(client: StorageClient, name: str) -> ShortCutOffer:
        return tampered(real(client, name), how, tmp_path, monkeypatch)

    monkeypatch.setattr(StorageClient, "offer_short_cut", offer)
    with open_numbers(numbers, "auto") as payloads:
        assert isinstance(payloads, PayloadClient)
        assert samples(payloads, [3]) == [record(3)]
    assert reason in capsys.readouterr().err
    with pytest.raises((ConfigError, UnavailableError), match=f"{reason}.*storage.short_cut is on: run the workers"):
        open_numbers(numbers, "on")


@pytest.mark.parametrize("short_cut", ["auto", "on"])
def test_what_flight_would_not_mend_is_raised_as_it_is(numbers: RunningStorage, short_cut: ShortCut) -> None:
    with pytest.raises(NotFoundError, match="no dataset 'letters'") as caught:
        open_payloads(numbers.config.endpoint("storage"), numbers.config.flight_endpoints, "letters", short_cut)
    assert "short_cut" not in caught.value.message
    (numbers.store.dataset("numbers").folder / "index.json").write_text("{")
    with pytest.raises(CorruptStateError, match=r"index\.json is damaged .*restart storage, which writes it again$"):
        open_numbers(numbers, short_cut)


def test_storage_whose_short_cut_is_off_offers_none(
    make_config: Callable[..., SystemConfig], quick_config: SystemConfig, stack: ExitStack, tmp_path: Path
) -> None:
    storage = start_storage(make_config(state_dir=quick_config.state_dir, storage={"short_cut": "off"}), stack)
    storage.client.register_dataset(binary_dataset(tmp_path / "data"))
    with pytest.raises(ConfigError, match="short_cut is off where storage runs"):
        storage.short_cut()


def test_files_that_are_not_on_this_machine_are_not_offered(numbers: RunningStorage) -> None:
    numbers.store.dataset("numbers").filesystem = open_filesystem("s3://bucket/numbers")
    with pytest.raises(ConfigError, match="not a folder of this machine"):
        numbers.short_cut()
    with open_numbers(numbers, "auto") as payloads:
        assert isinstance(payloads, PayloadClient)


def test_the_nonce_is_for_storage_alone_and_new_after_a_restart(
    quick_config: SystemConfig, stack: ExitStack, tmp_path: Path
) -> None:
    nonces = []
    for _ in range(2):
        with running_storage(quick_config) as storage:
            storage.client.register_dataset(binary_dataset(tmp_path / "data"))
            offers = [storage.client.offer_short_cut("numbers") for _ in range(3)]
            assert len({offer.nonce for offer in offers}) == 1
            path = Path(os.fsdecode(offers[0].folder)) / "nonce"
            assert path.read_bytes() == offers[0].nonce
            assert path.stat().st_mode & 0o777 == 0o600
            assert [found.name for found in path.parent.glob("nonce*")] == ["nonce"]
            nonces.append(offers[0].nonce)
    assert nonces[0] != nonces[1]
