"""Segments and deleted keys after a power loss at any moment."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.storage.index.segment_file import Segment, SegmentColumns, merge_segments, write_segment
from modyn.storage.index.tombstones import Tombstones
from tests.support.disk_recorder import recorded_disk


def columns(first: int, count: int) -> SegmentColumns:
    """Columns of these keys; none can be shortened."""
    rng = np.random.default_rng(first)
    offsets, lengths, labels = rng.integers(0, 2**62, (3, count))
    return SegmentColumns(rng.integers(0, 2**32, count, np.uint32), offsets, lengths, labels, rng.integers(0, 99, count))


def test_segments_and_what_they_are_merged_to_are_whole(tmp_path: Path) -> None:
    """A segment that may be gone has been replaced by one that is there."""
    names, sizes = ["a.segment", "b.segment"], [60, 40]
    with recorded_disk(tmp_path) as disk:
        for name, first, size in zip(names, [0, 60], sizes, strict=True):
            write_segment(tmp_path / name, first, columns(first, size))
            disk.note(name)
        merge_segments(tmp_path / "merged.segment", [Segment.open(tmp_path / name) for name in names])
        disk.note("merged.segment")
        for name in names:
            (tmp_path / name).unlink()
    expected = [np.concatenate(pair) for pair in zip(*map(content, (columns(0, 60), columns(60, 40))), strict=True)]
    for loss in disk.losses():
        with loss.restored():
            promised = loss.notes if len(loss.notes) < 3 else ["merged.segment"]
            assert all((tmp_path / name).exists() for name in promised)
            for path in tmp_path.glob("*.segment"):
                segment = Segment.open(path)
                segment.verify()
                rows = slice(segment.info.first_key, segment.info.end_key)
                for found, whole in zip(content(segment.columns()), expected, strict=True):
                    assert np.array_equal(found, whole[rows])


def content(of: SegmentColumns) -> list[np.ndarray[tuple[int], np.dtype[np.generic]]]:
    return [of.file_ids, of.offsets, of.lengths, of.labels, of.timestamps]


def check_deleted(path: Path, acknowledged: set[int], attempted: set[int]) -> set[int]:
    deleted = Tombstones.open(path)
    found = set(deleted.keys.between(0, 2**40).tolist())
    assert found in (acknowledged, attempted)
    deleted.announce()
    deleted.add(np.array([77]))
    assert set(Tombstones.open(path).keys.between(0, 2**40).tolist()) == found | {77}
    return found


def test_deleted_keys_stay_deleted(tmp_path: Path) -> None:
    """The first deletion makes the file, the others are appended, with a restart between them."""
    path, additions = tmp_path / "deletions", [[1, 5], [2**33, 2, 3], [9], [4, 6]]
    with recorded_disk(tmp_path) as disk:
        deletions = Tombstones.open(path)
        for number, added in enumerate(additions):
            if number == 2:
                deletions = Tombstones.open(path)
                deletions.announce()
            deletions.add(np.array(added))
            disk.note(number)
    states = [set().union(*additions[:count]) for count in (0, 1, 2, 3, 4, 4)]
    for loss in disk.losses():
        with loss.restored():
            check_deleted(path, states[len(loss.notes)], states[len(loss.notes) + 1])


def test_a_deletion_that_is_repeated_after_a_kill_is_durable(tmp_path: Path) -> None:
    """The next process reads data that a killed process wrote but did not sync. It must not treat this data as durable."""
    killed, step = True, 0
    while killed:
        path = tmp_path / str(step) / "deletions"
        path.parent.mkdir()
        Tombstones.open(path).add(np.array([1]))
        with recorded_disk(path.parent) as disk:
            killed = disk.kill_at(step, partial(Tombstones.open(path).add, np.array([2])))
            deletions = Tombstones.open(path)
            deletions.announce()
            deletions.add(np.array([2]))
            disk.note("deleted")
        for loss in disk.losses():
            if loss.notes:
                with loss.restored():
                    check_deleted(path, {1, 2}, {1, 2})
        step += 1
    assert step > 4


@pytest.mark.slow
@given(sizes=st.lists(st.sampled_from([1, 30, 3000]), min_size=1, max_size=5), random=st.randoms(use_true_random=False))
def test_deletions_stand_one_power_loss_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], random: Random
) -> None:
    """This includes an addition that writes the log again because it has doubled."""
    folder = tmp_path_factory.mktemp("deletions")
    path, deleted = folder / "deletions", set[int]()
    for size in sizes:
        added = np.array([random.randrange(2**40) for _ in range(size)])
        with recorded_disk(folder) as disk:
            tombstones = Tombstones.open(path)
            tombstones.announce()
            tombstones.add(added[: size // 2])
            disk.note("half")
            tombstones.add(added[size // 2 :])
            disk.note("all")
        loss = disk.random_loss(random)
        half, whole = deleted | set(added[: size // 2].tolist()), deleted | set(added.tolist())
        with loss.restored():
            states = [deleted, half, whole, whole]
            deleted = check_deleted(path, states[len(loss.notes)], states[len(loss.notes) + 1]) | {77}
