"""A training at one of the samplers for comparison, in a folder that it cannot always use."""

from __future__ import annotations

import fcntl
from pathlib import Path

import numpy as np
import pytest

from modyn.cache.sharing.compared_job import ComparedJob
from modyn.config.cache import COMPARED

KEYS = np.arange(60) * 7


@pytest.mark.parametrize("name", sorted(set(COMPARED) - {"shade"}))
@pytest.mark.parametrize("away", [0, 2, 5], ids=["first batch", "within an epoch", "last batch of an epoch"])
def test_each_epoch_serves_every_sample_once_though_the_folder_is_held_for_a_batch(tmp_path: Path, name: str, away: int) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    job = ComparedJob(folder, name, 20, KEYS, 0, augmented=True)
    served = []
    for number in range(18):
        with (folder / "lock").open("wb") as lock:
            if number == away:
                fcntl.flock(lock, fcntl.LOCK_EX)
            served.append(job.next_batch(10).keys)
    for epoch in range(3):
        assert sorted(np.concatenate(served[6 * epoch : 6 * epoch + 6]).tolist()) == KEYS.tolist()
