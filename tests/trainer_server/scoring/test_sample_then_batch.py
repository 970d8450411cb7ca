"""Sample-then-batch: one pass, one choice, the same dataset code; what a kill leaves is gone on with."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modyn.dataset.trigger_set import TriggerSetDataset
from modyn.errors import CancelledError, TrainingError
from modyn.models.weights import build_model
from modyn.records import KeysAndWeights, RunId, TriggerSetInfo
from modyn.trainer_server.disk.chosen_set import ChosenRows, ChosenSource, find_chosen_set, read_chosen_set, write_chosen_set
from modyn.trainer_server.disk.row_log import RowLog
from modyn.trainer_server.downsampling.policies.policy import Draw
from modyn.trainer_server.downsampling.policies.sampling import sample_by_scores
from modyn.trainer_server.loop.seeding import derived_seed, seed_everything
from modyn.trainer_server.request.records import ScoringProgress
from modyn.trainer_server.scoring.scoring_pass import ScoredRows
from tests.support.training import (
    NUM_CLASSES,
    MemoryData,
    NoModel,
    Outcome,
    RecordedReport,
    TrainingRoom,
    features_of,
    small_pipeline,
    train_in_memory,
)

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

LOSS = {"strategy": "Loss", "ratio": 50, "sample_then_batch": True}
RS2 = {"strategy": "RS2", "ratio": 50, "sample_then_batch": True}
CHECKPOINTS = {"activated": True, "interval": 1000}


def pipeline_of(config: dict[str, Any], training: dict[str, Any] | None = None, **selection: Any) -> dict[str, Any]:
    section = {"name": "CoresetStrategy", "maximum_keys_in_memory": 16, "downsampling_config": config, **selection}
    return small_pipeline({"drop_last_batch": False, **(training or {})}, selection_strategy=section)


def samples(keys: Any) -> tuple[Tensor, Tensor]:
    return torch.stack([torch.from_numpy(features_of(int(key))) for key in keys]), torch.from_numpy(
        np.asarray(keys) % NUM_CLASSES
    )


@pytest.mark.parametrize("period", [0, 1, 2])
def test_it_equals_a_loop_by_hand(tmp_path: Path, period: int) -> None:
    pipeline = pipeline_of({**LOSS, "period": period}, {"epochs_per_trigger": 3})
    found = train_in_memory(pipeline, MemoryData(45), tmp_path)
    seed_everything(derived_seed(7, 0, 1))
    model = build_model(pipeline["model"]["id"], pipeline["model"]["config"])
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none")
    inputs, labels = samples(range(45))
    positions, weights = np.array([]), np.array([])
    for epoch in range(3):
        if epoch % (period or 3) == 0:
            with torch.no_grad():
                scores = torch.cat([loss(model(inputs[i : i + 8]), labels[i : i + 8]) for i in range(0, 45, 8)])
            positions, weights = sample_by_scores(scores.numpy(), 23, Draw(7, 0, epoch // (period or 3)).generator(), 0.1)
        for i in range(0, 23, 8):
            rows = positions[i : i + 8]
            optimizer.zero_grad()
            losses = loss(model(inputs[rows]), labels[rows])
            torch.autograd.backward(torch.dot(losses, torch.from_numpy(weights[i : i + 8])) / len(rows))
            optimizer.step()
    assert all(torch.allclose(found.weights[name], value, atol=1e-6) for name, value in model.state_dict().items())
    record = found.result["downsampling"]
    selections = {0: 1, 1: 3, 2: 2}[period]
    assert record["mode"] == "sample_then_batch"
    assert (record["num_selections"], record["num_candidates"], record["num_chosen"]) == (
        selections,
        45 * selections,
        23 * selections,
    )
    assert record["effective_epochs"] == pytest.approx(69 / 45)
    assert (found.result["num_samples"], found.result["num_batches"], found.result["num_epochs"]) == (69, 9, 3)
    assert found.report.batches[0].samples_total == 69
    assert not (tmp_path / "selections" / "memory-0001.0").exists()


def test_progress_of_the_pass_is_reported(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path, limits={"report_interval_s": 0})
    messages = room.train(pipeline_of(LOSS), MemoryData(45)).report.messages
    scored = [message.samples_scored for message in messages if isinstance(message, ScoringProgress) and message.samples_to_score]
    assert scored == [8, 16, 24, 32, 40, 45, 45]
    assert ScoringProgress() in messages


@pytest.mark.parametrize(("period", "stages"), [(1, ["selection 1 of 2", "", "selection 2 of 2", ""]), (0, ["selection", ""])])
def test_the_stage_of_a_selection_is_reported_until_it_is_over(tmp_path: Path, period: int, stages: list[str]) -> None:
    room = TrainingRoom(tmp_path, limits={"report_interval_s": 0})
    assert room.train(pipeline_of({**LOSS, "period": period}, {"epochs_per_trigger": 2}), MemoryData(45)).report.stages == stages


def counted(num_keys: int, **fields: Any) -> tuple[MemoryData, list[int]]:
    fetched: list[int] = []
    return MemoryData(num_keys, before_fetch=lambda keys: fetched.extend(keys.tolist()), **fields), fetched


STOPS = (1, 3, 6, 8, 10, 13, 17)


@pytest.fixture(scope="module")
def dropped_out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Outcome]:
    """A pipeline with dropout and this number of workers, and an undisturbed training of it."""
    options = {
        "epochs_per_trigger": 2,
        "checkpointing": CHECKPOINTS,
        "dataloader_workers": request.param,
        "shuffle": True,
        "seed": 7,
    }
    pipeline = pipeline_of(LOSS, options)
    pipeline["model"]["config"]["dropout"] = 0.3
    torch.set_num_threads(1)
    whole = train_in_memory(pipeline, MemoryData(45), tmp_path_factory.mktemp("whole"))
    torch.use_deterministic_algorithms(False)
    return pipeline, whole


@pytest.mark.parametrize(
    ("dropped_out", "looks"),
    [
        pytest.param(workers, looks, marks=[] if number % 2 == workers - 1 else pytest.mark.slow)
        for workers in (1, 2)
        for number, looks in enumerate(STOPS)
    ],
    indirect=["dropped_out"],
)
def test_a_training_that_is_stopped_anywhere_resumes_with_the_same_keys(
    dropped_out: tuple[dict[str, Any], Outcome], looks: int, tmp_path: Path
) -> None:
    """Each look is a batch that is scored or trained on: 6 and 3 an epoch. In the gate one worker and two take turns."""
    pipeline, whole = dropped_out
    room = TrainingRoom(tmp_path, limits={"report_interval_s": 0})
    with pytest.raises(CancelledError):
        room.train(pipeline, MemoryData(45), RecordedReport(stop_after=looks))
    again = room.train(pipeline, MemoryData(45))
    assert again.trained.weights_sha256 == whole.trained.weights_sha256
    for name in ("num_candidates", "num_chosen", "num_selections", "class_shares", "weight_quantiles"):
        assert again.result["downsampling"][name] == whole.result["downsampling"][name]


def test_a_pass_that_was_stopped_resumes_after_what_is_scored(tmp_path: Path) -> None:
    pipeline, room = pipeline_of(LOSS, {"checkpointing": CHECKPOINTS}), TrainingRoom(tmp_path)
    with pytest.raises(CancelledError):
        room.train(pipeline, MemoryData(45), RecordedReport(stop_after=3))
    report = RecordedReport()
    room.train(pipeline, MemoryData(45), report)
    scored = [
        message.samples_scored for message in report.messages if isinstance(message, ScoringProgress) and message.samples_to_score
    ]
    assert scored[-1] == 45
    data, fetched = counted(45)
    with pytest.raises(CancelledError):
        TrainingRoom(tmp_path / "other").train(pipeline, MemoryData(45), RecordedReport(stop_after=3))
    TrainingRoom(tmp_path / "other").train(pipeline, data)
    assert 0 not in fetched[: fetched.index(44)]  # the first four batches are not read again for the pass


def test_scores_under_another_model_do_not_count(tmp_path: Path) -> None:
    pipeline, room = pipeline_of(LOSS), TrainingRoom(tmp_path)
    with pytest.raises(CancelledError):
        room.train(pipeline, MemoryData(45), RecordedReport(stop_after=3), seed=1)
    found = room.train(pipeline, MemoryData(45), seed=2)
    other = train_in_memory(pipeline, MemoryData(45), tmp_path / "other", seed=2)
    assert found.trained.weights_sha256 == other.trained.weights_sha256


@pytest.mark.slow
@pytest.mark.parametrize("uses_weights", [False, True])
@pytest.mark.parametrize("strategy", [{"strategy": "Loss"}, {"strategy": "GradNorm"}])
def test_the_gradient_of_all_candidates_is_estimated_without_bias(
    tmp_path: Path, strategy: dict[str, Any], uses_weights: bool
) -> None:
    """One step of SGD with lr 1 moves the weights by the gradient: over many seeds of the draw, its mean is that of all candidates."""

    def options(lr: float, batch_size: int, seed: int) -> dict[str, Any]:
        sgd = [{"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": lr}}]}]
        weighted = {
            "name": "CrossEntropyLoss",
            "config": {"ignore_index": 3, "weight": [1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 2.0, 3.0, 4.0, 5.0]},
        }
        return {"optimization_criterion": weighted, "optimizers": sgd, "batch_size": batch_size, "seed": seed}

    room = TrainingRoom(tmp_path)
    start = room.train(small_pipeline(options(1e-3, 20, 1)), MemoryData(20)).stored.version.model_id

    def moved(config: dict[str, Any], seed: int, batch_size: int) -> Tensor:
        pipeline = pipeline_of(config, options(1.0, batch_size, seed), uses_weights=uses_weights)
        found = room.train(pipeline, MemoryData(20), parent_model_id=start, trigger_id=1, run_id=f"memory-{seed:04}")
        before = room.weights_of(start)
        return torch.cat([(found.weights[name] - before[name]).flatten() for name in before])

    whole = moved({"strategy": "No"}, 1, 20)
    config = {**strategy, "ratio": 25, "sample_then_batch": True}
    estimates = torch.stack([moved(config, seed, 5) for seed in range(2, 152)]).double()
    deviations = (estimates.mean(0) - whole) / (estimates.std(0) / len(estimates) ** 0.5).clamp_min(1e-6)
    assert float(deviations.square().mean()) < 1.6
    assert float(deviations.abs().max()) < 5


def test_rs2_reads_only_what_it_trains_on(tmp_path: Path) -> None:
    data, fetched = counted(48)
    pipeline = pipeline_of(RS2, {"epochs_per_trigger": 4, "num_prefetched_partitions": 0})
    found = train_in_memory(pipeline, data, tmp_path)
    record = found.result["downsampling"]
    assert (record["num_selections"], record["num_chosen"]) == (4, 96)
    # Of what was trained on: no choice reads labels.
    assert record["class_shares"] == {"before": {}, "after": {str(c): (5 if c < 8 else 4) / 48 for c in range(NUM_CLASSES)}}
    assert sorted(fetched) == sorted([*range(48)] * 2)  # without replacement: twice everything
    for first, second in pairwise([fetched[i : i + 24] for i in range(0, 96, 24)][::2]):
        assert first != second


def test_classes_of_rs2_are_counted_on_after_a_stop(tmp_path: Path) -> None:
    pipeline = pipeline_of(RS2, {"epochs_per_trigger": 2, "checkpointing": CHECKPOINTS})
    whole = train_in_memory(pipeline, MemoryData(45), tmp_path / "whole")
    room = TrainingRoom(tmp_path / "stopped", limits={"report_interval_s": 0})
    with pytest.raises(CancelledError):
        room.train(pipeline, MemoryData(45), RecordedReport(stop_after=2))
    again = room.train(pipeline, MemoryData(45))
    assert again.result["downsampling"]["class_shares"] == whole.result["downsampling"]["class_shares"]
    assert sum(whole.result["downsampling"]["class_shares"]["after"].values()) == pytest.approx(1)


@pytest.mark.parametrize("transformer", [None, "def label_transformer_function(labels):\n    return labels // 5"])
def test_the_record_says_whether_its_classes_are_the_labels_of_the_stream(tmp_path: Path, transformer: str | None) -> None:
    pipeline = pipeline_of(LOSS)
    pipeline["data"] = {**pipeline["data"], "label_transformer_function": transformer}
    record = train_in_memory(pipeline, MemoryData(45), tmp_path).result["downsampling"]
    assert record["transforms_labels"] is (transformer is not None)
    assert set(record["class_shares"]["before"]) == ({"0", "1"} if transformer else set(map(str, range(NUM_CLASSES))))


def test_samples_that_are_held_out_are_never_chosen(tmp_path: Path) -> None:
    data, fetched = counted(40)
    options = {"validation": {"ratio": 25}, "epochs_per_trigger": 1, "num_prefetched_partitions": 0}
    found = train_in_memory(pipeline_of(RS2, options), data, tmp_path)
    assert found.result["num_samples"] == 15
    held_out = [key for key in range(40) if fetched.count(key)]
    assert len(held_out) == 15 + 10
    assert len(found.result["validation_losses"]) == 1
    assert train_in_memory(pipeline_of(LOSS, options), MemoryData(40), tmp_path).result["num_samples"] == 15


def test_samples_that_are_deleted_meanwhile_are_not_chosen(tmp_path: Path) -> None:
    data = MemoryData(45, deleted=frozenset(range(8, 40)))
    found = train_in_memory(pipeline_of(LOSS), data, tmp_path)
    assert found.result["num_samples"] == 13
    assert found.result["downsampling"]["num_candidates"] == 13
    with pytest.raises(NoModel, match="all samples of the trigger set were deleted meanwhile"):
        train_in_memory(pipeline_of(LOSS), MemoryData(45, deleted=frozenset(range(45))), tmp_path, trigger_id=1)


def test_early_stopping_and_the_bound_on_samples_count_what_is_trained_on(tmp_path: Path) -> None:
    found = train_in_memory(pipeline_of(LOSS), MemoryData(45), tmp_path, num_samples_to_pass=50)
    assert (found.result["num_samples"], found.result["num_epochs"], found.result["downsampling"]["num_selections"]) == (50, 3, 3)
    stopping = {"early_stopping": {"patience": 1, "min_delta": 1e9}, "epochs_per_trigger": 5}
    found = train_in_memory(pipeline_of(LOSS, stopping), MemoryData(45), tmp_path, trigger_id=1)
    assert (found.result["num_epochs"], found.result["downsampling"]["num_selections"]) == (2, 2)


def test_random_transformations_are_not_applied_to_what_is_scored(tmp_path: Path) -> None:
    data = {**small_pipeline()["data"], "random_transformations": ["lambda x: x + torch.randn(()) * 1e6"]}
    pipeline = pipeline_of(LOSS)
    pipeline["data"] = data
    pipeline["training"]["optimizers"][0]["param_groups"][0]["config"]["lr"] = 0.0
    pipeline["training"]["gradient_clip_norm"] = 1.0
    plain = train_in_memory(pipeline_of(LOSS, {"optimizers": pipeline["training"]["optimizers"]}), MemoryData(45), tmp_path)
    noisy = train_in_memory(pipeline, MemoryData(45), tmp_path, trigger_id=0, run_id="memory-0002")
    assert noisy.result["downsampling"]["weight_quantiles"] == plain.result["downsampling"]["weight_quantiles"]


def rows(count: int, start: int = 0) -> ScoredRows:
    keys = np.arange(start, start + count)
    ones = np.ones(count, np.float32)
    return ScoredRows(keys, keys % 3, ones, ones, np.stack((keys, keys + 0.5), 1).astype(np.float32))


def opened(path: Path, identity: int = 5) -> RowLog:
    log = RowLog(path, identity)
    log.open()
    return log


def test_a_log_of_scores_holds_what_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "0.scores"
    log = opened(path)
    log.append(rows(3).pack())
    log.append(rows(2, 3).pack())
    log.commit(2)
    log.append(rows(4, 5).pack())
    log = opened(path)
    assert (log.position, log.num_rows) == (2, 5)
    log.append(rows(1, 5).pack())
    log.commit(3)
    found = ScoredRows.read(log)
    assert found.keys.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.scores.tolist() == [[key, key + 0.5] for key in range(6)]
    other = opened(path, identity=6)
    assert (other.position, other.num_rows, len(ScoredRows.read(other))) == (0, 0, 0)


@pytest.mark.parametrize("at", [0, 4100, 9000, -1])
def test_a_damaged_log_of_scores_is_begun_again(tmp_path: Path, at: int) -> None:
    path = tmp_path / "0.scores"
    log = opened(path)
    log.append(rows(3).pack())
    log.commit(1)
    log.commit(2)
    content = bytearray(path.read_bytes())
    content[at if at < 9000 else 8192 + 20 + 8 * 7] ^= 1
    path.write_bytes(content)
    log = opened(path)
    assert log.num_rows in (0, 3)
    assert log.num_rows == 0 or ScoredRows.read(log).scores.tolist() == rows(3).scores.tolist()


def test_a_disk_that_refuses_scores_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("")
    with pytest.raises(TrainingError, match="cannot write the scores .*; free space there and resume the run"):
        opened(tmp_path / "folder" / "0.scores")


def test_a_chosen_set_is_found_again_by_its_identity(tmp_path: Path) -> None:
    info = TriggerSetInfo(RunId("memory-0001"), 0, 100, 2, "of all", "dataset")
    chosen = KeysAndWeights(np.array([5, 7, 9]), np.array([1, 2, 3], np.float32))
    path = tmp_path / "chosen"
    scores = np.array([0.5, 0.25, 4], np.float32)
    written = write_chosen_set(path, info, ChosenRows(chosen, scores), {"identity": [1], "notes": {"a": 1}})
    assert read_chosen_set(path).scores_of(np.array([9, 5])).tolist() == [4, 0.5]
    found = find_chosen_set(path, info, [1])
    assert found == written
    assert (written.info.num_keys, written.info.partition_size, written.info.dataset_identity) == (3, 2, "dataset")
    assert find_chosen_set(path, info, [2]) is None
    keys = ChosenSource(path, MemoryData(10))().selector
    assert keys.keys(RunId("memory-0001"), 0, 1, written.info.keys_checksum).keys.tolist() == [9]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert find_chosen_set(path, info, [1]) is None
    assert find_chosen_set(tmp_path / "none", info, [1]) is None


def test_a_chosen_set_is_served_by_the_dataset(tmp_path: Path) -> None:
    from modyn.config.base import load_section
    from modyn.dataset.config import DataConfig
    from modyn.dataset.trigger_set import LoadOptions

    info = TriggerSetInfo(RunId("memory-0001"), 0, 40, 2, "of all")
    chosen = write_chosen_set(
        tmp_path / "chosen",
        info,
        ChosenRows(KeysAndWeights(np.array([5, 7, 9]), np.array([1, 2, 3], np.float32)), None),
        {"identity": [], "notes": {}},
    )
    assert np.isnan(read_chosen_set(chosen.path).scores_of(np.array([7]))).all()
    data = load_section(DataConfig, small_pipeline()["data"], "data")
    dataset = TriggerSetDataset(
        chosen.info, data, ChosenSource(chosen.path, MemoryData(40)), LoadOptions(2, drop_last=False, seed=0)
    )
    batches = list(dataset.serve())
    assert [batch.keys.tolist() for batch in batches] == [[5, 7], [9]]
    assert [batch.weights.tolist() for batch in batches] == [[1, 2], [3]]
