"""Data files are compared with checksums of all that is indexed of them: a rewrite that keeps size and time is found, and not trained on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from modyn.config.dataset import DatasetConfig
from modyn.errors import DataError
from modyn.storage.client import ScrubProgress
from modyn.storage.files.local import LocalFiles
from modyn.storage.ingest.file_checks import scrub_files
from modyn.storage.ingest.fingerprints import fingerprint
from modyn.storage.model.file_table import Checksum
from modyn.storage.payloads import LocalPayloads
from modyn.storage.periodic_scrub import PeriodicScrub, ScrubPace
from tests.support.running_storage import (
    RECORD,
    RunningStorage,
    binary_dataset,
    image_dataset,
    rewrite,
    write_image,
    write_records,
)

NUM_ROWS = 1 << 16
BETWEEN = (1 << 16) + (1 << 12) + 200
"""A byte between two blocks of the fingerprint of a file of 1 MB."""
TEXT = [f"{'x' * 100}{number}" for number in range(10_000)]
KINDS: dict[str, tuple[dict[str, object], bytes]] = {
    "bin": ({"file_wrapper": "BinaryFileWrapper", "file_wrapper_config": {"record_size": 16, "label_size": 8, "byteorder": "little"}},
               np.zeros(NUM_ROWS, RECORD).tobytes()),
    "csv": ({"file_wrapper": "CsvFileWrapper", "file_wrapper_config": {"label_index": 0}}, "".join(f"1,{text}\n" for text in TEXT).encode()),
    "jsonl": ({"file_wrapper": "JsonLinesFileWrapper", "file_wrapper_config": {"label_field": "y"}},
             "".join(f'{{"y": 1, "x": "{text}"}}\n' for text in TEXT).encode()),
}  # fmt: skip


@pytest.fixture
def storage(module_storage: RunningStorage) -> RunningStorage:
    """One storage for all tests of the module."""
    return module_storage


def scrubbed(storage: RunningStorage, name: str) -> tuple[list[str], ScrubProgress]:
    """Names of the files that a scrub finds, and its last report."""
    steps: list[ScrubProgress] = []
    found = storage.client.scrub_dataset(name, steps.append)
    return [Path(problem.path).name for problem in found], steps[-1]


def checksum(storage: RunningStorage, name: str, path: str) -> Checksum:
    dataset = storage.store.dataset(name)
    file_id = dataset.files.id_of(path)
    assert file_id is not None
    return dataset.catalogue.checked_file(dataset.row.id, file_id).checksum


def changed(content: bytes, at: int) -> bytes:
    """The content with another byte at `at`, which is still a sample's. Between the blocks of the fingerprint nothing of it is seen."""
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def check_refused(storage: RunningStorage, name: str, local: LocalPayloads, key: int) -> None:
    """The payload server and a reader that has the file open refuse it."""
    reads: list[Callable[[], object]] = [
        lambda: list(storage.payloads.fetch(name, np.array([key]))),
        lambda: local.locate(name, np.array([key])).take(slice(None)),
    ]
    for read in reads:
        with pytest.raises(DataError, match="was changed after it was indexed"):
            read()


@pytest.mark.parametrize("kind", KINDS)
def test_a_byte_that_no_fingerprint_covers_is_found_by_the_second_scrub(
    storage: RunningStorage, tmp_path: Path, kind: str
) -> None:
    options, content = KINDS[kind]
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(content)
    storage.index(DatasetConfig(name=kind, base_path=tmp_path, watch=False, **options))
    storage.client.scrub_dataset(kind)
    whole = fingerprint(LocalFiles(""), str(path), len(content))
    with storage.short_cut(kind) as local:
        assert len(local.locate(kind, np.array([0])).take(slice(None))) == 1
        rewrite(path, changed(content, BETWEEN))
        assert fingerprint(LocalFiles(""), str(path), len(content)) == whole
        assert scrubbed(storage, kind)[0] == [path.name]
        check_refused(storage, kind, local, 0)
        storage.ingest(kind)  # which tries all files that were set aside
        check_refused(storage, kind, local, 0)
        (problem,) = storage.client.problems(kind)
        assert (
            "are not the same any more. Restore the file, or index what it contains now with `modyn data reindex`"
            in problem.reason
        )
        rewrite(path, content)
        storage.ingest(kind)
        assert len(local.locate(kind, np.array([0])).take(slice(None))) == 1
    assert (scrubbed(storage, kind)[0], storage.client.problems(kind)) == ([], [])


@pytest.mark.parametrize("watch", [True, False])
def test_damage_stays_a_problem_until_the_file_is_mended(storage: RunningStorage, tmp_path: Path, watch: bool) -> None:
    """This holds even if no event names the file, and at each scrub."""
    name = f"mended-{watch}"
    paths = [tmp_path / "a.bin", tmp_path / "b.bin"]
    for number, path in enumerate(paths):
        write_records(path, range(NUM_ROWS), 1000 + number)
    storage.index(binary_dataset(tmp_path, name, watch=watch))
    storage.client.scrub_dataset(name)
    content = paths[0].read_bytes()

    def problems() -> list[str]:
        for _ in range(3):
            storage.store._scan(storage.store.dataset(name))
        found = [Path(problem.path).name for problem in storage.client.problems(name)]
        assert storage.client.dataset(name).num_problems == len(found)
        return found

    for mend in ("restore", "touch", "reindex", "remove"):
        assert (problems(), scrubbed(storage, name)[0]) == ([], [])
        rewrite(paths[0], changed(paths[0].read_bytes(), BETWEEN))
        for _ in range(2):
            assert (scrubbed(storage, name)[0], problems()) == (["a.bin"], ["a.bin"]), mend
        if mend in ("restore", "touch"):
            with storage.short_cut(name) as local:
                check_refused(storage, name, local, 0)
            rewrite(paths[0], content)
            if mend == "touch":
                os.utime(paths[0], (2000, 2000))
            assert (scrubbed(storage, name)[0], problems()) == ([], [])
            assert len(storage.payloads_of([0], name)) == 1
        elif mend == "reindex":
            storage.client.forget_file(name, "a.bin")
            storage.ingest(name)
    paths[0].unlink()
    storage.ingest(name)
    assert scrubbed(storage, name)[0] == []
    assert "indexed but gone" in storage.reasons(name)["a.bin"]


@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "periodic"])
def test_a_rewritten_file_of_one_sample_is_found_by_the_second_scrub(
    storage: RunningStorage, tmp_path: Path, by_hand: bool
) -> None:
    name = f"images-{by_hand}"
    for number in range(3):
        write_image(tmp_path, f"{number}", bytes([number]) * 20, number, 5000 + number)
    storage.index(image_dataset(tmp_path, name))

    def scrub() -> None:
        if by_hand:
            storage.client.scrub_dataset(name)
        else:
            PeriodicScrub(storage.store, 3600.0, ScrubPace(factor=0.0)).scrub_all()

    scrub()
    with storage.short_cut(name) as local:
        assert len(local.locate(name, np.arange(3)).take(slice(None))) == 3
        rewrite(tmp_path / "1.png", b"\x01" * 19 + b"\x02")
        scrub()
        assert [Path(problem.path).name for problem in storage.client.problems(name)] == ["1.png"]
        check_refused(storage, name, local, 1)
        storage.ingest(name)
        check_refused(storage, name, local, 1)
        assert len(local.locate(name, np.array([0, 2])).take(slice(None))) == 2, "the others are read on"
        rewrite(tmp_path / "1.png", b"\x01" * 20)
        storage.ingest(name)
        assert len(local.locate(name, np.arange(3)).take(slice(None))) == 3
    found, last = scrubbed(storage, name)
    assert (found, last.files_seen, last.files_compared, last.files_first) == ([], 3, 3, 0)
    assert [step.files_compared for step in storage.store.scrub(name, lambda: False)] == [0], "the listener has left"
    os.utime(tmp_path / "0.png", (1, 1))
    assert scrubbed(storage, name)[1].files_compared == 2, "of another time: the next look at the folder is to judge it"


def test_the_checksum_of_a_file_that_grows_continues(storage: RunningStorage, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_records(path, range(NUM_ROWS), 1000)
    storage.index(binary_dataset(tmp_path, "growing"))
    assert scrubbed(storage, "growing")[1].files_first == 1
    write_records(path, range(NUM_ROWS), 1001, mode="ab")
    found, last = scrubbed(storage, "growing")
    assert (found, last.files_compared, last.files_first) == ([], 1, 0), "up to what is indexed"
    storage.ingest("growing")
    assert checksum(storage, "growing", "a.bin").num_bytes == 1 << 20
    assert scrubbed(storage, "growing")[1].files_first == 0
    assert checksum(storage, "growing", "a.bin").num_bytes == 2 << 20
    whole = path.read_bytes()
    for at in (BETWEEN, (2 << 20) - (1 << 16) - (1 << 12) - 200):
        rewrite(path, changed(whole, at))
        assert scrubbed(storage, "growing")[0] == ["a.bin"], at
        rewrite(path, whole)
        storage.ingest("growing")
        assert scrubbed(storage, "growing")[0] == []
    rewrite(path, changed(whole, BETWEEN))
    write_records(path, range(8), 1002, mode="ab")
    assert scrubbed(storage, "growing")[0] == ["a.bin"], "it grows while it is rewritten"


def test_a_rewrite_that_was_taken_for_a_touch_is_found_by_a_scrub(storage: RunningStorage, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_records(path, range(NUM_ROWS), 1000)
    storage.index(binary_dataset(tmp_path, "touched"))
    storage.client.scrub_dataset("touched")
    path.write_bytes(changed(path.read_bytes(), BETWEEN))
    assert storage.ingest("touched").problems == 0
    assert scrubbed(storage, "touched")[0] == ["a.bin"]


def test_a_file_that_is_taken_again_has_no_checksum_of_before(storage: RunningStorage, tmp_path: Path) -> None:
    for number in range(2):
        write_image(tmp_path, f"{number}", b"before", number, 5000)
    storage.index(image_dataset(tmp_path, "again"))
    storage.client.scrub_dataset("again")
    rewrite(tmp_path / "1.png", b"later!")
    storage.client.forget_file("again", "1.png")
    assert checksum(storage, "again", "1.png") == Checksum()
    storage.ingest("again")
    found, last = scrubbed(storage, "again")
    assert (found, last.files_compared, last.files_first) == ([], 2, 1)
    rewrite(tmp_path / "1.png", b"before")
    assert scrubbed(storage, "again")[0] == ["1.png"]


@pytest.mark.parametrize("is_first", [True, False], ids=["first scrub", "second scrub"])
def test_a_file_that_is_taken_again_while_a_scrub_is_under_way_is_as_it_is_now(
    storage: RunningStorage, tmp_path: Path, is_first: bool
) -> None:
    """Its row is the same again, and its content is another one."""
    name = f"meanwhile-{is_first}"
    for number in range(3):
        write_image(tmp_path, f"{number}", b"before", number, 5000)
    storage.index(image_dataset(tmp_path, name))
    if not is_first:
        storage.client.scrub_dataset(name)
    under_way = scrub_files(storage.store.dataset(name))
    next(under_way)
    for number in (0, 2):  # which was read, and is to be read
        rewrite(tmp_path / f"{number}.png", b"later!")
        assert storage.client.forget_file(name, f"{number}.png").num_samples == 1
    storage.ingest(name)
    assert [file.problem for file in under_way if file.problem] == []
    assert (scrubbed(storage, name)[0], storage.client.problems(name)) == ([], [])
    assert scrubbed(storage, name)[0] == []


def test_a_file_that_cannot_be_read_is_named(storage: RunningStorage, tmp_path: Path) -> None:
    write_records(tmp_path / "a.bin", range(10), 1000)
    write_records(tmp_path / "b.bin", range(10), 1001)
    storage.index(binary_dataset(tmp_path, "unreadable"))
    (tmp_path / "a.bin").unlink()
    (tmp_path / "b.bin").unlink()
    (tmp_path / "b.bin").mkdir()  # No user may read it, root neither.
    (problem,) = storage.client.scrub_dataset("unreadable")
    assert problem.reason.startswith(f"cannot read {tmp_path}/b.bin at byte 0")
