"""A bit that flips or bytes that are cut in any file of an index: found when it is opened, named by a scrub, never served, never the end."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.errors import CorruptStateError, UnavailableError
from modyn.records import Interval
from tests.support.running_storage import (
    RunningStorage,
    binary_dataset,
    flip,
    image_dataset,
    published_by,
    running_storage,
    start_storage,
    write_image,
    write_records,
)

COLUMNS = ("file_ids", "offsets", "lengths", "labels", "timestamps", "time_order")


def make_dataset(storage: RunningStorage, data: Path) -> Path:
    """Images of several sizes and labels, whose times are not in the order of their keys; two are deleted."""
    random = np.random.default_rng(3)
    for number in range(3):
        for i in range(12):
            payload, label = bytes(int(random.integers(1, 90))), int(random.integers(10**6))
            write_image(data, f"{number}-{i:02}-{random.integers(100)}", payload, label, 5000 + number)
        storage.index(image_dataset(data, timestamp_source=r"name:-(\d+)\."))
    storage.client.delete_samples("images", np.asarray([3, 30]))
    return storage.store.dataset("images").folder


def make_touched(storage: RunningStorage, data: Path) -> Path:
    """Records in files of which one has another time than when it was indexed, with the same content."""
    for number in range(3):
        write_records(data / f"{number}.bin", range(10), 1000 + number)
    storage.index(binary_dataset(data, "images"))
    os.utime(data / "1.bin", (9000, 9000))
    storage.ingest("images")
    return storage.store.dataset("images").folder


def flip_column(path: Path, name: str) -> None:
    """Flip a bit in the middle of a column of a file of columns (`modyn.columnar`)."""
    content = path.read_bytes()
    _, _, _, position, size = struct.unpack_from("<8sIIQQ", content)
    column = json.loads(content[position : position + size])["columns"][name]
    values = int(np.prod(column["shape"])) * np.dtype(column["dtype"]).itemsize
    flip(path, column["offset"] + values // 2)


def largest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.stat().st_size)


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    **{f"flip in {name}": ("*.segment", lambda path, name=name: flip_column(path, name)) for name in COLUMNS},  # type: ignore[misc]
    "cut segment": ("*.segment", lambda path: os.truncate(path, path.stat().st_size - 9)),
    "flip in names": ("*.names", lambda path: flip_column(path, "text")),
    "flip in sizes": ("*.names", lambda path: flip_column(path, "sizes")),
    "cut names": ("*.names", lambda path: os.truncate(path, 100)),
    "lost names": ("*.names", Path.unlink),
    "flip in stamps": ("*.stamps", lambda path: flip_column(path, "stamps")),
    "flip in deletions": ("deletions", lambda path: flip(path, path.stat().st_size - 9)),
    "cut deletions": ("deletions", lambda path: os.truncate(path, 50)),
    "lost deletions": ("deletions", Path.unlink),
    "flip in index": ("index.json", lambda path: flip(path, path.read_bytes().index(b'"version": ') + 11)),
    "cut index": ("index.json", lambda path: os.truncate(path, 60)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_when_a_file_is_opened_and_named_by_a_scrub(
    quick_config: SystemConfig, stack: ExitStack, tmp_path: Path, damage: str
) -> None:
    with running_storage(quick_config) as storage:
        folder = (make_touched if "stamps" in damage else make_dataset)(storage, tmp_path / "data")
        assert storage.client.scrub_dataset("images") == []
        pattern, harm = DAMAGES[damage]
        damaged = largest(folder, pattern)
        harm(damaged)
        (problem,) = storage.client.scrub_dataset("images")
        assert problem.path == str(damaged)
        assert str(damaged) in problem.reason
        # A replica may see an older file of deletions: only storage and a scrub know that it is lost.
        with pytest.raises(UnavailableError if damage == "lost deletions" else CorruptStateError, match=damaged.name):
            list(published_by(quick_config).snapshot("images").samples_from(0, 99))


def first_of(read: Callable[..., Iterator[object]], *arguments: object) -> object:
    return next(read(*arguments))


@pytest.mark.parametrize("replaced", [False, True], ids=["mended in place", "restored from a backup"])
def test_no_reader_serves_a_segment_that_is_known_to_be_damaged(storage: RunningStorage, tmp_path: Path, replaced: bool) -> None:
    make_dataset(storage, tmp_path / "data")
    reader = published_by(storage.config)
    whole = reader.snapshot("images")  # the segments are mapped now
    segment = whole.index.segments[1]
    of_segment, others = np.arange(segment.info.first_key, segment.info.end_key), np.arange(3)
    before, content = whole.samples_by_key(of_segment), segment.path.read_bytes()
    flip(segment.path, 64)
    (problem,) = storage.client.scrub_dataset("images")
    for snapshot in (reader.snapshot("images"), storage.store.dataset("images").snapshot()):
        assert len(snapshot.samples_by_key(others)) == 3
        in_segment = Interval(segment.info.min_timestamp, segment.info.max_timestamp + 1)
        reads: list[Callable[[], object]] = [
            partial(snapshot.samples_by_key, of_segment[1:2]),
            partial(snapshot.places, of_segment[:1]),
            partial(snapshot.index.entries, of_segment),
            partial(first_of, snapshot.samples_from, 12, 9),
            partial(first_of, snapshot.samples_in_interval, in_segment, 9),
            partial(snapshot.count, in_segment),
        ]
        for read in reads:
            with pytest.raises(
                CorruptStateError, match=rf"the samples with the keys 12 to 23 are not read: .*{segment.path.name}"
            ):
                read()
    if replaced:
        segment.path.unlink()
    with segment.path.open("wb" if replaced else "r+b") as file:
        file.write(content)
    assert storage.client.scrub_dataset("images") == []
    assert Path(problem.path).name == segment.path.name
    assert np.array_equal(reader.snapshot("images").samples_by_key(of_segment).labels, before.labels)


@pytest.mark.parametrize(
    "damage", [name for name, (pattern, _) in DAMAGES.items() if pattern in ("*.names", "*.stamps", "index.json")]
)
def test_what_storage_can_write_again_a_restart_does(
    quick_config: SystemConfig, stack: ExitStack, tmp_path: Path, damage: str
) -> None:
    """The errors that name these files say so."""
    keys = np.arange(25, dtype=np.int64)
    with running_storage(quick_config) as storage:
        folder = (make_touched if "stamps" in damage else make_dataset)(storage, tmp_path / "data")
        before = storage.client.locate("images", keys[4:])
    pattern, harm = DAMAGES[damage]
    harm(largest(folder, pattern))
    storage = start_storage(quick_config, stack)
    assert storage.client.scrub_dataset("images") == []
    assert storage.client.locate("images", keys[4:]) == before


def test_a_replica_that_sees_deletions_later_than_the_index_leaves_its_answer_to_another_server(
    storage: RunningStorage, quick_config: SystemConfig, tmp_path: Path
) -> None:
    deletions = make_dataset(storage, tmp_path / "data") / "deletions"
    older = deletions.read_bytes()
    storage.client.delete_samples("images", np.asarray([4]))
    write_image(tmp_path / "data", "3-00-1", b"x", 1, 5003)
    storage.ingest("images")
    newest = deletions.read_bytes()
    deletions.write_bytes(older)
    replica = published_by(quick_config)
    with pytest.raises(UnavailableError, match="deletions is older here than storage's, .*but 3 or more were deleted"):
        replica.snapshot("images")
    deletions.write_bytes(newest)
    assert replica.snapshot("images").missing(np.arange(5)).tolist() == [False, False, False, True, True]


def test_storage_refuses_deletions_that_are_lost_or_older(quick_config: SystemConfig, stack: ExitStack, tmp_path: Path) -> None:
    with running_storage(quick_config) as storage:
        deletions = make_dataset(storage, tmp_path / "data") / "deletions"
        older = deletions.read_bytes()
        storage.client.delete_samples("images", np.asarray([4]))
        write_image(tmp_path / "data", "3-00-1", b"x", 1, 5003)
        storage.ingest("images")
    newest = deletions.read_bytes()
    for damage in (deletions.unlink, lambda: deletions.write_bytes(older)):
        damage()
        with ExitStack() as second, pytest.raises(CorruptStateError, match="deletions is damaged: .*but 3 or more were deleted"):
            start_storage(quick_config, second).client.dataset("images")
    deletions.write_bytes(newest)
    assert start_storage(quick_config, stack).client.dataset("images").num_deleted == 3


def test_a_segment_that_is_cut_while_it_is_mapped_is_an_error(storage: RunningStorage, tmp_path: Path) -> None:
    """Touching its map raises SIGBUS, which would end the process."""
    random = np.random.default_rng(4)
    records = np.zeros(40_000, [("label", "<i8"), ("data", "<i8")])
    records["label"] = random.integers(0, 2**62, len(records))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "0.bin").write_bytes(records.tobytes())
    storage.index(binary_dataset(tmp_path / "d"))
    index = storage.store.snapshot("numbers").index
    os.truncate(index.segments[0].path, 4096)
    labels = index.segments[0].labels
    for touch in (
        lambda: storage.client.samples_by_key("numbers", np.asarray([39_999])),
        lambda: storage.data_of([39_999]),
        lambda: labels.at(39_999),
        lambda: labels.take(np.asarray([39_999])),
        lambda: labels.slice(0, 40_000),
    ):
        with pytest.raises(CorruptStateError, match="was cut after it was opened; `modyn data scrub` names it"):
            touch()
    assert [problem.path for problem in storage.client.scrub_dataset("numbers")] == [str(index.segments[0].path)]
