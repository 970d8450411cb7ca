"""Checkpoints, finished trainings and states of optimizers after a power loss at any moment: whole, or not there; never another's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from modyn.atomic_write import make_folder, write_atomically
from modyn.models.weights import save_weights, weights_sha256
from modyn.records import KeysAndWeights, RunId, TriggerSetInfo
from modyn.trainer_server.disk.chosen_set import ChosenRows, find_chosen_set, write_chosen_set
from modyn.trainer_server.disk.files import find_finished, keep_finished, keep_without_model, remove_run
from modyn.trainer_server.disk.row_log import RowLog
from modyn.trainer_server.disk.state_file import read_state_file, write_state_file
from modyn.trainer_server.loop.checkpoint import VERSION, load_checkpoint
from tests.support.disk_recorder import recorded_disk

IDENTITY = {"run": "r", "trigger": 3}


def state(number: int) -> dict[str, Any]:
    state = {"version": VERSION, "identity": IDENTITY, "seed": 1, "progress": {}, "order": None}
    return {**state, "number": number, "weights": torch.full((700,), float(number))}


def test_a_checkpoint_is_the_newest_or_the_one_that_was_being_written(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "r.3.checkpoint"
    with recorded_disk(tmp_path) as disk:
        for number in range(3):
            write_state_file(path, state(number))
            disk.note(number)
    for loss in disk.losses():
        with loss.restored():
            found = load_checkpoint(path, IDENTITY)
            if path.exists():
                read_state_file(path)
            number = -1 if found is None else found.state["number"]
            assert number in (len(loss.notes) - 1, len(loss.notes))
            assert found is None or torch.equal(found.state["weights"], state(number)["weights"])


def test_an_optimizer_state_in_the_place_of_an_older_one_is_one_of_them(tmp_path: Path) -> None:
    """Written as `keep_optimizers` does: what an attempt left is removed first."""
    path = tmp_path / "optimizers" / "r.3.pt"
    with recorded_disk(tmp_path) as disk:
        for number in range(2):
            path.unlink(missing_ok=True)
            write_state_file(path, state(number), "training.keep_optimizer_state")
            disk.note(number)
    for loss in disk.losses():
        with loss.restored():
            found = read_state_file(path)["number"] if path.exists() else None
            assert found in ([None, 0], [None, 0, 1], [1])[len(loss.notes)]


def test_files_of_a_removed_run_do_not_come_back(tmp_path: Path) -> None:
    """Its journal goes after them: nothing would remove them again."""
    paths = [tmp_path / name for name in ("checkpoints/r.3.checkpoint", "optimizers/r.3.pt", "finished/.r.3.json.partial")]
    others = [tmp_path / "optimizers" / name for name in ("r.3.5.pt", "r.3.x.3.pt", "r.x.3.pt")]
    with recorded_disk(tmp_path) as disk:
        for path in [*paths, *others]:
            make_folder(path.parent)
            write_atomically(path, [b"content"])
        remove_run(tmp_path, "r")
        disk.note("removed")
    num_noted = 0
    for loss in disk.losses():
        if loss.notes:
            num_noted += 1
            with loss.restored():
                assert sorted(tmp_path.glob("*/*")) == others
    assert num_noted


def test_a_finished_training_is_whole_or_made_again(tmp_path: Path) -> None:
    """Two attempts of one training, whose weights differ, and one that makes no model: a result comes with the weights that it belongs to."""
    torch.manual_seed(0)
    weights, models = tmp_path / "finished" / "r.3.safetensors", [nn.Linear(30, 20), nn.Linear(30, 20)]
    digests = []
    with recorded_disk(tmp_path, native=["*.partial"]) as disk:
        for number, model in enumerate(models):
            keep_finished(weights, partial(save_weights, model), {"attempt": number}, IDENTITY)
            disk.note(number)
            digests.append(weights_sha256(weights))
        keep_without_model(weights, {"attempt": 2}, IDENTITY)
        disk.note(2)
    seen = set()
    for loss in disk.losses():
        with loss.restored():
            found = find_finished(weights, IDENTITY)
            seen.add(None if found is None else found["attempt"])
            if loss.log and loss.log[-1].startswith("note"):
                assert found == {"attempt": len(loss.notes) - 1}
            elif loss.notes:
                # While the next attempt takes its place, it may be neither: then the training is made again.
                assert found is None or found["attempt"] in (len(loss.notes) - 1, len(loss.notes))
            if found is not None and found["attempt"] < 2:
                assert weights_sha256(weights) == digests[found["attempt"]]
            assert find_finished(weights, {**IDENTITY, "trigger": 4}) is None
    assert seen == {None, 0, 1, 2}


def test_the_end_of_steps_that_did_not_wait_for_the_disk_is_whole_or_made_again(tmp_path: Path) -> None:
    """Weights, states of optimizers and record reach the disk in any order, or not at all: what is found belongs together."""
    torch.manual_seed(0)
    weights, optimizers, models = tmp_path / "finished" / "r.3.safetensors", tmp_path / "optimizers" / "r.3.pt", []
    with recorded_disk(tmp_path, native=["*.partial"]) as disk:
        for number in range(2):
            models.append(nn.Linear(30, 20))
            optimizers.unlink(missing_ok=True)
            write_state_file(optimizers, state(number), durable=False)
            save = partial(save_weights, models[-1])
            keep_finished(weights, save, {"attempt": number}, IDENTITY, optimizers, durable=False)
            assert find_finished(weights, IDENTITY, optimizers) == {"attempt": number}
            disk.note(number)
    num_found = 0
    for loss in disk.losses():
        with loss.restored():
            found = find_finished(weights, IDENTITY, optimizers)
            if found is not None:
                num_found += 1
                assert read_state_file(optimizers)["number"] == found["attempt"]
                assert torch.equal(load_file(weights)["weight"], models[found["attempt"]].weight)
            assert find_finished(weights, IDENTITY) is None
    assert num_found


def test_scores_that_count_are_there(tmp_path: Path) -> None:
    path = tmp_path / "selections" / "r.3" / "0.scores"
    dtype = np.dtype([("key", "<i8"), ("scores", "<f4", (1,))])
    log = RowLog(path, 7)
    kept = [(0, 0)]
    with recorded_disk(tmp_path) as disk:
        log.open()
        for number in range(3):
            rows = np.empty(5, dtype)
            rows["key"] = np.arange(5) + 5 * number
            rows["scores"] = rows["key"].reshape(-1, 1)
            log.append(rows)
            log.commit(number + 1)
            kept.append((log.num_rows, log.crc32))
            disk.note(number)
    for loss in disk.losses():
        with loss.restored():
            if loss.notes:  # As a training resumes: with what its checkpoint says, which it wrote after the commit.
                resumed = RowLog(path, 7)
                resumed.resume(*kept[len(loss.notes)], dtype.itemsize)
                assert resumed.read(dtype)["key"].tolist() == list(range(5 * len(loss.notes)))
            found = RowLog(path, 7)
            found.open()
            assert found.position in (len(loss.notes), len(loss.notes) + 1)
            assert found.read(dtype)["scores"].reshape(-1).tolist() == list(range(5 * found.position))


def test_chosen_samples_are_there_or_are_chosen_again(tmp_path: Path) -> None:
    path = tmp_path / "selections" / "r.3" / "0.chosen"
    info, chosen = TriggerSetInfo(RunId("r"), 3, 9, 4, ""), KeysAndWeights(np.arange(9), np.ones(9, np.float32))
    with recorded_disk(tmp_path) as disk:
        write_chosen_set(path, info, ChosenRows(chosen, None), {"identity": 1, "notes": {}})
        disk.note("written")
    for loss in disk.losses():
        with loss.restored():
            assert find_chosen_set(path, info, 1) is not None or not loss.notes
