"""The scores of samples that a training keeps for the selection: right, complete, in order, also after it was killed or failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modyn.errors import ConfigError, CorruptStateError, ModynError, UnavailableError
from modyn.models.calls import score
from modyn.models.weights import build_model
from modyn.records import FeedbackRows
from modyn.trainer_server.disk.row_log import RowLog
from modyn.trainer_server.scoring.sample_scores import Sketch, feedback_rows, read_feedback, score_width
from tests.support.training import NUM_CLASSES, MemoryData, RecordedReport, TrainingRoom, payload_of, small_pipeline

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

EPOCHS = 3


def pipeline(**training: Any) -> dict[str, Any]:
    return small_pipeline({"epochs_per_trigger": EPOCHS, "batch_size": 8, "drop_last_batch": False, "shuffle": True, **training})


def scores_of(room: TrainingRoom) -> FeedbackRows:
    """Return the scores that the only training has sent."""
    ((header, rows),) = room.feedback
    assert header.num_rows == len(rows)
    assert {name: values.shape[1] for name, values in rows.scores.items()} == dict(header.widths)
    return rows


def data(*feedback: str, num_keys: int = 37) -> MemoryData:
    return MemoryData(num_keys=num_keys, feedback=feedback)


def test_each_trained_sample_is_scored_once_in_each_epoch_in_the_order_of_the_training(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    outcome = room.train(pipeline(), data("loss"), trigger_id=4)
    rows = scores_of(room)
    assert room.feedback[0][0].trigger_id == 4
    for epoch in range(EPOCHS):
        assert sorted(rows.keys[rows.epochs == epoch].tolist()) == list(range(37))
    assert rows.epochs.tolist() == sorted(rows.epochs.tolist())
    # The mean of a batch's losses is its loss: those of the last epoch are in the result.
    last = rows.scores["loss"][rows.epochs == EPOCHS - 1, 0]
    batches = [last[first : first + 8].mean() for first in range(0, 37, 8)]
    assert np.mean(batches) == pytest.approx(outcome.result["epoch_losses"][-1], rel=1e-5)


def test_losses_are_those_before_the_first_step(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    groups = [{"module": "model", "config": {"lr": 0.0}}]
    steady = pipeline(epochs_per_trigger=1, optimizers=[{"name": "default", "algorithm": "SGD", "param_groups": groups}])
    outcome = room.train(steady, data("loss"))
    rows = scores_of(room)
    model = build_model(steady["model"]["id"], steady["model"]["config"])
    model.load_state_dict(outcome.weights)
    inputs = torch.stack([torch.frombuffer(bytearray(payload_of(int(key))), dtype=torch.float32) for key in rows.keys])
    expected = nn.functional.cross_entropy(model(inputs), torch.from_numpy(rows.keys % NUM_CLASSES), reduction="none")
    assert rows.scores["loss"][:, 0] == pytest.approx(expected.detach().numpy(), rel=1e-5)


def test_the_decrease_is_the_mean_loss_of_the_batch_less_that_of_the_next(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    room.train(pipeline(), data("loss", "loss_decrease", num_keys=32))
    rows = scores_of(room)
    means = rows.scores["loss"][:, 0].reshape(-1, 8).mean(1)
    decrease = rows.scores["loss_decrease"][:, 0].reshape(-1, 8)
    assert np.isnan(decrease[-1]).all()
    assert decrease[:-1] == pytest.approx(np.repeat((means[:-1] - means[1:])[:, None], 8, axis=1), abs=1e-5)


def test_gradients_come_from_the_last_epoch_alone(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    room.train(pipeline(), data("gradient_16"))
    rows = scores_of(room)
    assert set(rows.epochs.tolist()) == {EPOCHS - 1}
    assert sorted(rows.keys.tolist()) == list(range(37))
    assert rows.scores["gradient_16"].shape == (37, 16)
    assert np.isfinite(rows.scores["gradient_16"]).all()
    assert np.abs(rows.scores["gradient_16"]).max() > 0


def test_scoring_changes_no_training(tmp_path: Path) -> None:
    plain = TrainingRoom(tmp_path / "plain").train(pipeline(), data())
    scored = TrainingRoom(tmp_path / "scored").train(pipeline(), data("loss", "gradient_8", "loss_decrease"))
    for name, value in plain.weights.items():
        assert torch.equal(value, scored.weights[name]), name
    assert "feedback" not in plain.result


def test_projected_gradients_keep_inner_products_in_the_mean() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4))
    found = score(model, torch.randn(12, 5), torch.randint(4, (12,)), nn.CrossEntropyLoss(reduction="none"))
    weights, biases = found.last_layer_gradients()
    gradients = torch.cat([weights.flatten(1), biases], 1)
    projected = Sketch(4096, found)(found)
    exact, estimated = gradients @ gradients.T, projected @ projected.T
    lengths = gradients.norm(dim=1)
    assert ((exact - estimated).abs() / (lengths[:, None] * lengths)).max() < 0.12


@pytest.mark.parametrize("kept", ["loss", "loss_decrease", "gradient_8"])
def test_a_resumed_training_has_the_same_scores(tmp_path: Path, kept: str) -> None:
    checkpointed = pipeline(checkpointing={"activated": True, "interval": 2})
    whole = TrainingRoom(tmp_path / "whole")
    whole.train(checkpointed, data("loss", kept))
    cut = TrainingRoom(tmp_path / "cut")
    for stop_after in (3, 5):
        with pytest.raises(ModynError, match="stopped"):
            cut.train(checkpointed, data("loss", kept), RecordedReport(stop_after))
    assert cut.feedback == []
    cut.train(checkpointed, data("loss", kept))
    expected, found = scores_of(whole), scores_of(cut)
    assert expected.keys.tolist() == found.keys.tolist()
    assert expected.epochs.tolist() == found.epochs.tolist()
    for name, values in expected.scores.items():
        assert np.array_equal(values, found.scores[name], equal_nan=True), name


def test_rows_after_a_checkpoint_are_dropped_and_lost_ones_cost_no_training(tmp_path: Path) -> None:
    checkpointed = pipeline(checkpointing={"activated": True, "interval": 2})
    room = TrainingRoom(tmp_path)
    with pytest.raises(ModynError, match="stopped"):
        room.train(checkpointed, data("loss"), RecordedReport(7))
    (path,) = (tmp_path / "feedback").iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    outcome = room.train(checkpointed, data("loss"))
    assert 0 < len(scores_of(room)) < EPOCHS * 37
    assert outcome.result["num_samples"] == EPOCHS * 37


def test_scores_that_could_not_be_sent_are_sent_by_the_next_attempt_without_training(tmp_path: Path) -> None:
    def unreachable(*_: object) -> None:
        raise UnavailableError("the selector cannot be reached")

    room = TrainingRoom(tmp_path, limits={"put_feedback": unreachable, "put_limit_s": 0.0})
    with pytest.raises(UnavailableError):
        room.train(pipeline(), data("loss"))
    assert len(room.models.list()) == 0
    room.limits = {}
    room.train(pipeline(), data("loss"))
    ((header, rows),) = room.feedback
    assert len(rows) == EPOCHS * 37
    room.limits = {"put_feedback": unreachable}
    again = TrainingRoom(tmp_path / "again")
    again.train(pipeline(), data("loss"))
    assert again.feedback[0][0].attempt > header.attempt


def test_nothing_is_left_in_the_folder_once_the_model_is_stored(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    room.train(pipeline(), data("loss"))
    assert list((tmp_path / "feedback").iterdir()) == []


def test_regression_is_scored(tmp_path: Path) -> None:
    regression = pipeline(optimization_criterion={"name": "MSELoss"})
    regression["model"]["config"]["num_classes"] = 1
    regression["data"]["label_transformer_function"] = (
        "def label_transformer_function(labels):\n    return labels.float().unsqueeze(-1) / 10"
    )
    room = TrainingRoom(tmp_path)
    room.train(regression, data("loss", "gradient_4"))
    assert np.isfinite(scores_of(room).scores["loss"]).all()


@pytest.mark.parametrize("name", ["los", "gradient_0", "gradient_x", "gradient_12345", "downsampling_weight", ""])
def test_a_score_that_the_trainer_does_not_know_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="there are loss, loss_decrease and gradient_N"):
        score_width(name)
    with pytest.raises(ConfigError, match="the selection asks trainings"):
        TrainingRoom(tmp_path).train(pipeline(), data(name))


def test_a_log_of_scores_is_as_the_checkpoint_says_or_refused(tmp_path: Path) -> None:
    log, widths = RowLog(tmp_path / "f" / "a.scores"), {"loss": 1, "gradient_2": 2}
    log.begin()
    log.append(feedback_rows(np.arange(3), np.zeros(3, np.int64), np.arange(9, dtype=np.float32).reshape(3, 3)))
    kept = log.num_rows, log.crc32
    log.append(feedback_rows(np.arange(2), np.ones(2, np.int64), np.zeros((2, 3), np.float32)))
    log.commit()
    other = RowLog(log.path)
    other.resume(*kept, log.row_bytes)
    (rows,) = read_feedback(other, widths)
    assert rows.keys.tolist() == [0, 1, 2]
    assert rows.scores["loss"].tolist() == [[0], [3], [6]]
    assert rows.scores["gradient_2"].tolist() == [[1, 2], [4, 5], [7, 8]]
    for broken in ((6, kept[1]), (3, kept[1] ^ 1), (2, kept[1])):
        with pytest.raises(CorruptStateError, match=r"file of scores .*a\.scores is damaged"):
            RowLog(log.path).resume(*broken, log.row_bytes)
    with pytest.raises(CorruptStateError, match=r"a\.gone is damaged: it is missing or empty"):
        RowLog(tmp_path / "a.gone").resume(*kept, log.row_bytes)
    other.append(feedback_rows(np.array([7]), np.ones(1, np.int64), np.zeros((1, 3), np.float32)))
    other.commit()
    assert [rows.keys.tolist() for rows in read_feedback(other, widths)] == [[0, 1, 2, 7]]


@pytest.mark.parametrize(("strategy", "sample_then_batch"), [("Loss", False), ("Loss", True), ("RS2", True)])
def test_with_downsampling_the_trained_samples_are_scored(tmp_path: Path, strategy: str, sample_then_batch: bool) -> None:
    chosen = {"strategy": strategy, "ratio": 50, "sample_then_batch": sample_then_batch}
    section = {"name": "CoresetStrategy", "maximum_keys_in_memory": 16, "downsampling_config": chosen}
    room = TrainingRoom(tmp_path)
    outcome = room.train({**pipeline(), "selection_strategy": section}, data("loss", "gradient_4", num_keys=64))
    rows = scores_of(room)
    assert len(rows) == outcome.result["num_samples"] == EPOCHS * 32
    for epoch in range(EPOCHS):
        keys = rows.keys[rows.epochs == epoch]
        assert len(set(keys.tolist())) == len(keys) == 32
    assert np.isfinite(rows.scores["loss"]).all()


@pytest.mark.parametrize(
    "training",
    [{"amp": True}, {"dataloader_workers": 2}, {"gradient_accumulation_steps": 2}, {"early_stopping": {"patience": 1}}],
)
def test_options_of_the_training_keep_the_scores(tmp_path: Path, training: dict[str, Any]) -> None:
    room = TrainingRoom(tmp_path)
    outcome = room.train(pipeline(**training), data("loss", "loss_decrease", "gradient_4"))
    rows = scores_of(room)
    assert len(rows) == outcome.result["num_samples"]
    last = rows.epochs == rows.epochs.max()
    assert np.isfinite(rows.scores["loss"]).all()
    assert np.isfinite(rows.scores["gradient_4"][last]).all()
