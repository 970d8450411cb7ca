"""Kept outputs of models after a power loss at any moment: outputs may be lost, but no output is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from modyn.evaluator.outputs import KeptOutputs, OutputCache, read_rows
from modyn.evaluator.records import Rows
from tests.support.disk_recorder import recorded_disk


def rows(keys: list[int]) -> Rows:
    array = np.array(keys, np.int64)
    return Rows(array, array * 10, array % 2, np.repeat(array[:, None], 40, 1).astype(np.float32))


def test_kept_outputs_are_right_or_lost(tmp_path: Path) -> None:
    """The last of three jobs removes the outputs of the first to make space."""
    cache, jobs = OutputCache(tmp_path / "outputs", 6000), [list(range(10)), list(range(10, 20)), list(range(5, 15))]
    with recorded_disk(tmp_path) as disk:
        cache.prepare()
        for number, keys in enumerate(jobs):
            scratch = tmp_path / f"scratch-{number}"
            scratch.mkdir()
            job = KeptOutputs(cache, f"{number}-abc", scratch)
            job.add(rows(keys))
            job.publish()
            disk.note(number)
    most = 0
    for loss in disk.losses():
        with loss.restored():
            cache.prepare()
            found = [read_rows(path) for path in cache.folder.glob("*.outputs")]
            for kept in found:
                expected = rows(kept.keys.tolist())
                assert kept.keys.tolist() in jobs
                assert all(np.array_equal(a, b) for a, b in zip(kept, expected, strict=True))
            assert sum(path.stat().st_size for path in cache.folder.glob("*.outputs")) <= cache.limit
            most = max(most, len(found))
    assert most == 2
