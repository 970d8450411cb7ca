"""Chosen samples of a training with scores and weights, as the selector receives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modyn.errors import CancelledError
from modyn.models.weights import build_model
from modyn.records import DOWNSAMPLING_SCORE, DOWNSAMPLING_WEIGHT, FeedbackRows
from modyn.trainer_server.downsampling.policies.policy import Draw
from modyn.trainer_server.downsampling.policies.sampling import sample_by_scores
from modyn.trainer_server.loop.seeding import derived_seed, seed_everything
from tests.support.training import NUM_CLASSES, MemoryData, RecordedReport, TrainingRoom, features_of, small_pipeline

LOSS = {"strategy": "Loss", "ratio": 50}
RS2 = {"strategy": "RS2", "ratio": 50, "with_replacement": True}
CHECKPOINTS = {"activated": True, "interval": 1000}


def pipeline_of(config: dict[str, Any], **training: Any) -> dict[str, Any]:
    section = {"name": "CoresetStrategy", "maximum_keys_in_memory": 16, "downsampling_config": config}
    return small_pipeline({"drop_last_batch": False, **training}, selection_strategy=section)


def sent(room: TrainingRoom) -> FeedbackRows:
    ((header, rows),) = room.feedback
    assert header.num_rows == len(rows)
    return rows


def test_the_last_selection_is_kept_with_its_scores_and_weights(tmp_path: Path) -> None:
    """The training has one selection, by the losses of the model that it begins with."""
    room = TrainingRoom(tmp_path)
    pipeline = pipeline_of({**LOSS, "sample_then_batch": True, "period": 0}, epochs_per_trigger=2)
    room.train(pipeline, MemoryData(45))
    seed_everything(derived_seed(7, 0, 1))
    model = build_model(pipeline["model"]["id"], pipeline["model"]["config"])
    inputs = torch.stack([torch.from_numpy(features_of(key)) for key in range(45)])
    with torch.no_grad():
        losses = nn.CrossEntropyLoss(reduction="none")(model(inputs), torch.arange(45) % NUM_CLASSES).numpy()
    positions, weights = sample_by_scores(losses, 23, Draw(7, 0, 0).generator(), 0.1)
    rows = sent(room)
    assert rows.keys.tolist() == positions.tolist()
    assert set(rows.epochs.tolist()) == {0}
    assert rows.scores[DOWNSAMPLING_SCORE][:, 0] == pytest.approx(losses[positions], abs=1e-6)
    assert rows.scores[DOWNSAMPLING_WEIGHT][:, 0] == pytest.approx(weights, abs=1e-6)
    assert not list(tmp_path.glob("feedback/*"))


@pytest.mark.parametrize("period", [1, 2])
def test_of_several_selections_the_last_one_is_kept(tmp_path: Path, period: int) -> None:
    room, fetched = TrainingRoom(tmp_path), list[int]()
    data = MemoryData(48, before_fetch=lambda keys: fetched.extend(keys.tolist()))
    config = {**RS2, "sample_then_batch": True, "period": period}
    room.train(pipeline_of(config, epochs_per_trigger=4, num_prefetched_partitions=0), data)
    rows = sent(room)
    assert sorted(rows.keys.tolist()) == sorted(fetched[-24:])
    assert set(rows.epochs.tolist()) == {4 - period}
    assert np.isnan(rows.scores[DOWNSAMPLING_SCORE]).all()
    assert set(rows.scores[DOWNSAMPLING_WEIGHT][:, 0].tolist()) == {1.0}


@pytest.mark.parametrize("sample_then_batch", [False, True])
def test_with_scores_of_samples_each_row_has_those_of_its_choice(tmp_path: Path, sample_then_batch: bool) -> None:
    """The score of a choice by losses is the loss under the same model: of every batch, or of the first one after the pass."""
    room = TrainingRoom(tmp_path)
    config = {**LOSS, "sample_then_batch": sample_then_batch}
    found = room.train(pipeline_of(config, epochs_per_trigger=3), MemoryData(45, feedback=("loss",)))
    rows = sent(room)
    assert len(rows) == found.result["num_samples"] == 69
    same = np.ones(69, np.bool_) if not sample_then_batch else np.arange(69) % 23 < 8
    loss, score, weight = (rows.scores[name][:, 0] for name in ("loss", DOWNSAMPLING_SCORE, DOWNSAMPLING_WEIGHT))
    # The rest of an epoch is chosen as a whole, without a score.
    assert score[same][~np.isnan(score[same])] == pytest.approx(loss[same][~np.isnan(score[same])], abs=1e-6)
    assert np.isnan(score).mean() < 0.2
    assert np.isfinite(weight).all()
    assert len(set(weight.tolist())) > 10
    if sample_then_batch:
        assert np.abs(score - loss)[~same].max() > 1e-3


@pytest.mark.parametrize("feedback", [(), ("loss",)])
@pytest.mark.parametrize("sample_then_batch", [False, True])
def test_a_training_that_was_stopped_sends_the_same(tmp_path: Path, sample_then_batch: bool, feedback: tuple[str, ...]) -> None:
    pipeline = pipeline_of({**LOSS, "sample_then_batch": sample_then_batch}, epochs_per_trigger=2, checkpointing=CHECKPOINTS)
    data, whole = MemoryData(45, feedback=feedback), TrainingRoom(tmp_path / "whole")
    whole.train(pipeline, data)
    room = TrainingRoom(tmp_path / "stopped", limits={"report_interval_s": 0})
    with pytest.raises(CancelledError):
        room.train(pipeline, data, RecordedReport(stop_after=5))
    room.train(pipeline, data)
    if not sample_then_batch and not feedback:
        assert room.feedback == whole.feedback == []
        return
    expected, found = sent(whole), sent(room)
    assert expected.keys.tolist() == found.keys.tolist()
    for name, values in expected.scores.items():
        np.testing.assert_array_equal(values, found.scores[name])


def test_a_chosen_set_that_is_lost_costs_no_training(tmp_path: Path) -> None:
    room, fetched = TrainingRoom(tmp_path), list[int]()

    def lose(keys: Any) -> None:
        fetched.extend(keys.tolist())
        if len(fetched) > 45:  # after the pass
            for path in tmp_path.glob("selections/*/*.chosen"):
                path.unlink()

    config = {**LOSS, "sample_then_batch": True, "period": 0}
    found = room.train(pipeline_of(config, epochs_per_trigger=2, num_prefetched_partitions=0), MemoryData(45, before_fetch=lose))
    assert room.feedback == []
    assert "feedback" not in found.result
    assert found.result["num_samples"] == 46
