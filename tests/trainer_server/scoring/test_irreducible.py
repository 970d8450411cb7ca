"""RHO-loss against its definition: what is held out, the irreducible losses, what is chosen by them; and attempts that were ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modyn.config.base import Problem, Severity
from modyn.config.selection_parts import RHO_LOSS_FIRST
from modyn.dataset.order.held_out import Share
from modyn.errors import CancelledError, ConfigError, TrainingError
from modyn.models.weights import build_model
from modyn.records import RunId, TriggerSetInfo
from modyn.trainer_server.check import check
from modyn.trainer_server.downsampling.policies import DOWNSAMPLING
from modyn.trainer_server.loop.seeding import derived_seed, seed_everything
from modyn.trainer_server.request.irreducible_config import irreducible_sections
from modyn.trainer_server.request.records import BatchProgress, ScoringProgress, StageProgress
from modyn.trainer_server.scoring.irreducible import find_losses, write_losses
from tests.support.plugins import installed
from tests.support.training import (
    NUM_CLASSES,
    MemoryData,
    NoModel,
    RecordedReport,
    TrainingRoom,
    features_of,
    small_pipeline,
    train_in_memory,
)

PATH = "selection_strategy.downsampling_config"
NUM = 70


def checked(pipeline: dict[str, Any], report: RecordedReport) -> list[Problem]:
    """Return the problems that `check` finds, without the warning that most of these pipelines cause."""
    return [problem for problem in check(pipeline, report) if problem.message != RHO_LOSS_FIRST]


def test_scores_before_batches_are_warned_of() -> None:
    (problem,) = check(pipeline_of(sample_then_batch=True), RecordedReport())
    assert (problem.path, problem.severity) == (f"{PATH}.sample_then_batch", Severity.WARNING)
    assert problem.message == RHO_LOSS_FIRST
    assert check(pipeline_of(sample_then_batch=False), RecordedReport()) == []


def pipeline_of(training: dict[str, Any] | None = None, selection: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    section = {"strategy": "RHOLoss", "ratio": 40, "sample_then_batch": True, **config}
    options = {"drop_last_batch": False, "epochs_per_trigger": 2, **(training or {})}
    return small_pipeline(
        options, selection_strategy={"name": "CoresetStrategy", "downsampling_config": section, **(selection or {})}
    )


def samples(keys: Any) -> tuple[Tensor, Tensor]:
    data = torch.stack([torch.from_numpy(features_of(int(key))) for key in keys])
    return data, torch.from_numpy(np.asarray(keys) % NUM_CLASSES)


def keys_of(low: int, high: int, size: int = 16) -> list[int]:
    """Keys of a band of percent of the rank by hash, of seed 7, in the order of the trigger set."""
    share = Share(TriggerSetInfo(RunId("memory-0001"), 0, NUM, size, ""), high, held_out=True, seed=7, above=low)
    parts = [np.arange(first, min(first + size, NUM)) for first in range(0, NUM, size)]
    return [int(key) for part in parts for key in part[share.rows(part)]]


def by_hand(model: nn.Module, keys: list[int], epochs: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for i in range(0, len(keys), 8):
            data, labels = samples(keys[i : i + 8])
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(data), labels))
            optimizer.step()


def losses_by_hand(model: nn.Module, keys: list[int]) -> Tensor:
    data, labels = samples(keys)
    with torch.no_grad():
        losses = nn.functional.cross_entropy(model.double()(data.double()), labels, reduction="none")
    model.float()
    return losses


def new_model(pipeline: dict[str, Any], seed: int) -> nn.Module:
    seed_everything(seed)
    return build_model(pipeline["model"]["id"], pipeline["model"]["config"])


@pytest.mark.parametrize("strategy", ["Simple", "Twin"])
def test_it_equals_a_training_by_hand(tmp_path: Path, strategy: str) -> None:
    """Also with samples held out for validation: 10 percent, then 20 for the irreducible-loss model, or the halves of what is left."""
    options: dict[str, Any] = {"holdout_set_ratio": 20} if strategy == "Simple" else {}
    config: dict[str, Any] = {"holdout_set_strategy": strategy, **options, "il_training_config": {"epochs_per_trigger": 3}}
    pipeline = pipeline_of({"validation": {"ratio": 10}}, **config)
    found = train_in_memory(pipeline, MemoryData(NUM), tmp_path)
    bands = [(10, 30), (30, 100)] if strategy == "Simple" else [(10, 55), (55, 100)]
    parts = [keys_of(*band) for band in bands]
    pairs = [(parts[0], parts[1])] if strategy == "Simple" else [(parts[0], parts[1]), (parts[1], parts[0])]
    irreducible: dict[int, float] = {}
    for number, (trained, scored) in enumerate(pairs):
        model = new_model(pipeline, derived_seed(7, 0, 6 + number))
        by_hand(model, trained, 3)
        irreducible |= dict(zip(scored, losses_by_hand(model, scored).tolist(), strict=True))
    candidates = sorted(irreducible)
    assert not set(candidates) & set(keys_of(0, 10))
    model = new_model(pipeline, derived_seed(7, 0, 1))
    size = round(0.4 * len(candidates))
    for _ in range(2):
        scores = losses_by_hand(model, candidates) - torch.tensor([irreducible[key] for key in candidates], dtype=torch.float64)
        by_hand(model, [candidates[i] for i in sorted(scores.argsort(descending=True)[:size].tolist())], 1)
    assert all(torch.allclose(found.weights[name], value, atol=1e-6) for name, value in model.state_dict().items())
    assert found.result["num_samples"] == 2 * size
    assert found.result["downsampling"]["num_candidates"] == 2 * len(candidates)
    assert found.result["seconds"]["irreducible"] > 0
    assert found.result["downsampling"]["weight_quantiles"] == {}
    assert not (tmp_path / "selections" / "memory-0001.0").exists()
    assert not (tmp_path / "irreducible").exists()


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("strategy", ["Simple", "Twin"])
def test_what_is_held_out_is_never_scored_nor_trained_on(tmp_path: Path, strategy: str, first: bool) -> None:
    fetched: list[int] = []
    data = MemoryData(NUM, before_fetch=lambda keys: fetched.extend(keys.tolist()))
    training: dict[str, Any] = {"epochs_per_trigger": 4, "num_prefetched_partitions": 0}
    config: dict[str, Any] = {
        "holdout_set_strategy": strategy,
        "ratio": 100 if first else 50,
        "ratio_max": 101,
        "il_training_config": {"epochs_per_trigger": 1},
    }
    train_in_memory(pipeline_of(training, **config, sample_then_batch=first), data, tmp_path)
    often = [key for key in range(NUM) if fetched.count(key) > 2]
    once = [key for key in range(NUM) if fetched.count(key) == 1]
    if strategy == "Simple":
        assert once == sorted(keys_of(0, 20))  # by its own model, and by nothing else
        assert set(often) == set(range(NUM)) - set(once)
    else:
        assert len(often) == NUM


@pytest.mark.parametrize(
    ("strategy", "first", "seed"),
    [
        pytest.param(strategy, first, seed, marks=pytest.mark.slow if seed or first != (strategy == "Twin") else [])
        for seed in (7, None)
        for strategy in ("Simple", "Twin")
        for first in (False, True)
    ],
)
def test_a_training_that_is_stopped_anywhere_resumes_with_the_same_keys(
    tmp_path: Path, strategy: str, first: bool, seed: int | None
) -> None:
    """Every third or nineteenth look: in the training of a model, in its pass, and in the training itself."""
    checkpoints = {"checkpointing": {"activated": True, "interval": 1}, "shuffle": True, "seed": seed}
    pipeline = pipeline_of(checkpoints, holdout_set_strategy=strategy, sample_then_batch=first)
    whole = train_in_memory(pipeline, MemoryData(NUM), tmp_path / "whole", seed=7)
    for stop_after in range(1, whole.report.looks, 3 if seed else 19):
        room = TrainingRoom(tmp_path / str(stop_after), limits={"report_interval_s": 0})
        with pytest.raises(CancelledError):
            room.train(pipeline, MemoryData(NUM), RecordedReport(stop_after=stop_after), seed=7)
        again = room.train(pipeline, MemoryData(NUM), seed=7)
        assert again.trained.weights_sha256 == whole.trained.weights_sha256
        assert again.result["downsampling"]["class_shares"] == whole.result["downsampling"]["class_shares"]


def test_no_work_of_an_attempt_before_is_made_again(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path, limits={"report_interval_s": 0})
    pipeline = pipeline_of({"checkpointing": {"activated": True, "interval": 1}, "seed": None}, holdout_set_strategy="Twin")
    whole = TrainingRoom(tmp_path / "whole", limits=room.limits).train(pipeline, MemoryData(NUM))
    stages = [stage for stage in whole.report.stages if "irreducible" in stage]
    assert list(dict.fromkeys(stages)) == [
        f"irreducible {what} {number} of 2" if what == "losses" else f"irreducible-loss {what} {number} of 2"
        for number in (1, 2)
        for what in ("model", "losses")
    ]
    assert BatchProgress() in whole.report.messages
    begun = whole.report.messages.index(StageProgress("irreducible losses 1 of 2"))
    scored = [message.samples_scored for message in whole.report.messages[begun:] if isinstance(message, ScoringProgress)]
    assert scored[scored.index(None) - 1] == 35
    with pytest.raises(CancelledError):
        room.train(pipeline, MemoryData(NUM), RecordedReport(stop_after=14 + 10))  # of 5 + 5 looks at 5 batches, and at 5, twice
    again = room.train(pipeline, MemoryData(NUM))
    assert not any("model 1" in stage for stage in again.report.stages)


def test_the_model_is_kept_for_later_triggers_where_that_is_asked_for(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    pipeline = pipeline_of(il_training_config={"use_previous_model": True})
    for trigger_id in (0, 1, 3):
        room.train(pipeline, MemoryData(NUM, trigger_id=trigger_id), trigger_id=trigger_id)
        kept = sorted(path.relative_to(tmp_path / "irreducible") for path in (tmp_path / "irreducible").rglob("*.safetensors"))
        assert kept == [Path(f"memory-0001.{trigger_id}") / "irreducible-0.safetensors"]
    alone = TrainingRoom(tmp_path / "alone")
    found = alone.train(pipeline, MemoryData(NUM, trigger_id=3), trigger_id=3)
    after = room.weights_of(3)
    assert any(not torch.equal(found.weights[name], after[name]) for name in after)


def test_a_trigger_of_the_warm_up_has_no_such_model(tmp_path: Path) -> None:
    found = train_in_memory(pipeline_of(None, {"warmup_triggers": 1}), MemoryData(NUM), tmp_path)
    assert found.result["num_samples"] == 2 * NUM
    assert "irreducible" not in found.result["seconds"]


@pytest.mark.parametrize(("loss", "first"), [("MSELoss", True), ("BCEWithLogitsLoss", False)])
def test_any_loss_of_samples_and_another_model_serve(tmp_path: Path, loss: str, first: bool) -> None:
    il = {"il_model_id": "LogisticRegression", "il_model_config": {"input_size": 6, "num_classes": 1}, "batch_size": 4}
    pipeline = pipeline_of({"optimization_criterion": {"name": loss}}, il_training_config=il, sample_then_batch=first)
    pipeline["model"]["config"]["num_classes"] = 1
    pipeline["data"]["label_transformer_function"] = (
        "def label_transformer_function(label):\n    return (label % 2).float().unsqueeze(-1)"
    )
    assert checked(pipeline, RecordedReport()) == []
    assert train_in_memory(pipeline, MemoryData(NUM), tmp_path).result["num_samples"] > 0


PUBLISHED = {
    "gpus": 1,
    "device": "cpu",
    "dataloader_workers": 1,
    "use_previous_model": False,
    "initial_model": "random",
    "batch_size": 4,
    "epochs_per_trigger": 2,
    "num_prefetched_partitions": 1,
    "parallel_prefetch_requests": 1,
    "shuffle": True,
    "drop_last_batch": False,
    "amp": False,
    "seed": None,
    "record_loss_every": 0,
    "num_samples_to_pass": None,
    "grad_scaler_config": None,
    "lr_scheduler": None,
    "optimizers": [
        {"name": "default", "algorithm": "SGD", "source": "PyTorch", "param_groups": [{"module": "model", "config": {"lr": 0.1}}]}
    ],
    "optimization_criterion": {"name": "CrossEntropyLoss", "config": {"label_smoothing": 0.1}},
    "checkpointing": {"activated": False},
    "il_model_id": "LogisticRegression",
    "il_model_config": {"input_size": 6, "num_classes": 10},
}
"""`il_training_config` as the published system has it: a whole section `training`, and the model."""


def test_pipelines_of_the_published_system_are_accepted(tmp_path: Path) -> None:
    pipeline = pipeline_of(holdout_set_ratio=250, holdout_set_ratio_max=1000, il_training_config=PUBLISHED)
    assert checked(pipeline, RecordedReport()) == []
    outcome = train_in_memory(pipeline, MemoryData(NUM), tmp_path)
    held_out = sum(size * 250 // 1000 for size in (16, 16, 16, 16, 6))
    assert outcome.result["num_samples"] == 2 * round(0.4 * (NUM - held_out))


def test_options_of_the_irreducible_model_are_its_own_and_others_the_trainings() -> None:
    options = {"optimization_criterion": {"name": "MSELoss"}, "shuffle": True, "il_model_id": "MLP", "seed": None}
    training = {
        **small_pipeline({"gradient_clip_norm": 2.0, "validation": {"ratio": 10}, "early_stopping": {"patience": 1}})["training"],
        "epochs_per_trigger": 4,
    }
    downloads, _ = irreducible_sections({"id": "A", "download": True, "freeze": ["x"]}, training, options)
    assert downloads == {"id": "MLP", "download": True}
    model, own = irreducible_sections({"id": "A", "config": {"b": 1}}, training, options)
    assert model == {"id": "MLP"}
    assert own["optimization_criterion"] == {"name": "MSELoss"}
    assert (own["gradient_clip_norm"], own["epochs_per_trigger"], own["drop_last_batch"]) == (2.0, 4, False)
    assert own.keys().isdisjoint({"validation", "early_stopping"})


@pytest.mark.parametrize(
    ("options", "path", "reason"),
    [
        ({"validation": {"ratio": 10}}, "validation", "is trained on all samples that are held out for it"),
        ({"num_samples_to_pass": [5]}, "num_samples_to_pass", "set epochs_per_trigger"),
        ({"initial_model": "pretrained", "initial_model_id": 3}, "initial_model", "begins from scratch"),
        ({"keep_optimizer_state": True, "use_previous_model": True}, "keep_optimizer_state", "keeps its weights alone"),
        ({"on_divergence": "keep_previous"}, "on_divergence", "fails with it"),
        ({"batch_size": 0}, "batch_size", "1"),
        ({"gpus": 2}, "gpus", "not available yet"),
    ],
)
def test_what_an_irreducible_model_cannot_follow_is_refused_with_a_reason(
    options: dict[str, Any], path: str, reason: str
) -> None:
    (problem,) = checked(pipeline_of(il_training_config=options), RecordedReport())
    assert (problem.path, problem.severity) == (f"{PATH}.il_training_config.{path}", Severity.ERROR)
    assert reason in problem.message


def test_what_has_no_effect_on_an_irreducible_model_is_a_warning() -> None:
    options = {"seed": 8, "record_loss_every": 3, "checkpointing": {"path": "/somewhere"}, "device": "cuda:0"}
    found = checked(pipeline_of(il_training_config=options), RecordedReport())
    below = f"{PATH}.il_training_config."
    assert {problem.path.removeprefix(below) for problem in found} == {
        "seed",
        "record_loss_every",
        "checkpointing.path",
        "device",
    }
    assert {problem.severity for problem in found} == {Severity.WARNING}
    assert all("has no effect: " in problem.message for problem in found)


@pytest.mark.parametrize(
    ("config", "path", "message"),
    [
        ({"holdout_set_ratio": 1000, "holdout_set_ratio_max": 1000}, ".holdout_set_ratio", "it must be at most 999"),
        ({"holdout_set_ratio": 0}, ".holdout_set_ratio", "1"),
        ({"holdout_set_ratio": 100}, ".holdout_set_ratio", "99"),
        (
            {"holdout_set_ratio": 30, "holdout_set_strategy": "Twin"},
            "",
            "holdout_set_ratio is 30, but Twin splits the set into halves",
        ),
        ({"il_training_config": {"epochs": 3}}, ".il_training_config.epochs", "epochs_per_trigger"),
        ({"il_training_config": {"il_model_id": "Nothing"}}, ".il_training_config.il_model_id", "Nothing"),
        (
            {"il_training_config": {"il_model_config": {"input_size": 6, "num_classes": 10, "depth": 3}}},
            ".il_training_config.il_model_config.depth",
            "",
        ),
        (
            {"il_training_config": {"optimizers": [{"name": "a", "algorithm": "SGG", "param_groups": [{}]}]}},
            ".il_training_config.optimizers.0.algorithm",
            "SGG",
        ),
        ({"holdout_set_ratio": 90}, ".holdout_set_ratio", "with training.validation.ratio 10, all samples are held out"),
    ],
)
def test_the_check_finds_what_is_wrong(config: dict[str, Any], path: str, message: str) -> None:
    (problem,) = checked(pipeline_of({"validation": {"ratio": 10}}, **config), RecordedReport())
    assert isinstance(problem, Problem)
    assert problem.path == PATH + path
    assert message in problem.message


PLUGIN = """
import numpy as np

from modyn.trainer_server.downsampling.policies.policy import Choice, DownsamplingPolicy
from modyn.trainer_server.downsampling.policies.rho_loss import RHOLossConfig

class Learnt(DownsamplingPolicy):
    Config = RHOLossConfig
    needs_irreducible_losses = True

    def score(self, model, batch):
        return model.losses(batch).new_tensor(self.irreducible(batch.keys.numpy()))

    def choose(self, candidates, size, draw):
        return Choice(np.sort(candidates.scores[:, 0].argsort()[:size]))
"""


def test_a_plug_in_gets_the_losses_that_it_declares(tmp_path: Path) -> None:
    with installed(tmp_path / "package", DOWNSAMPLING, "Learnt", PLUGIN, "Learnt"):
        (problem,) = checked(pipeline_of(strategy="Learnt", il_training_config={"epochs": 3}), RecordedReport())
        assert problem.path == f"{PATH}.il_training_config.epochs"
        found = train_in_memory(pipeline_of(strategy="Learnt"), MemoryData(NUM), tmp_path)
    assert found.result["seconds"]["irreducible"] > 0


def test_a_share_that_never_holds_anything_out_is_refused(tmp_path: Path) -> None:
    message = r"config\.holdout_set_ratio: RHOLoss holds out 0 of the 40 samples of trigger 0 .* of each partition of 16 samples"
    with pytest.raises(ConfigError, match=message):
        train_in_memory(pipeline_of(holdout_set_ratio=3), MemoryData(40), tmp_path)


def test_a_trigger_set_that_holds_out_too_little_trains_nothing_and_says_why(tmp_path: Path) -> None:
    """A quiet day ends no run: later triggers may have more."""
    room = TrainingRoom(tmp_path)
    message = (
        "RHOLoss holds out 7 of the 40 samples of trigger 3 .* less than a batch of 8: raise .*holdout_set_ratio, lower .* warmup"
    )
    for _ in range(2):  # The end is kept, and found by the next attempt.
        with pytest.raises(NoModel, match=message):
            room.train(pipeline_of(), MemoryData(40), trigger_id=3)
    assert room.models.list() == []
    with pytest.raises(NoModel, match="holds out 0 of the 4 samples"):
        room.train(pipeline_of(), MemoryData(4), trigger_id=4)
    with pytest.raises(NoModel, match="that RHOLoss holds out were deleted meanwhile"):
        room.train(pipeline_of(), MemoryData(NUM, deleted=frozenset(keys_of(0, 20))), trigger_id=5)
    assert room.train(pipeline_of(), MemoryData(NUM), trigger_id=6).result["num_batches"]
    with pytest.raises(NoModel, match="do not fill a batch"):
        train_in_memory(pipeline_of({"drop_last_batch": True}, ratio=10), MemoryData(NUM), tmp_path)


def test_a_sample_without_an_irreducible_loss_is_named(tmp_path: Path) -> None:
    path = tmp_path / "irreducible"
    losses = write_losses(path, np.array([5, 1, 9]), np.array([1, 2, 3], np.float32), ["a"])
    assert losses(np.array([9, 1])).tolist() == [3, 2]
    found = find_losses(path, ["a"])
    assert found is not None
    assert found(np.array([5])).tolist() == [1]
    assert find_losses(path, ["b"]) is None
    with pytest.raises(TrainingError, match="sample key 10 has no irreducible loss"):
        found(np.array([1, 10]))
