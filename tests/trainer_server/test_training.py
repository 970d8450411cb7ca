"""Trainings in this process on samples in memory: equal, bit for bit, to loops written by hand; and what each option does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modyn.config.base import load_section
from modyn.errors import (
    CancelledError,
    ConfigError,
    DataError,
    InvalidArgumentError,
    NotFoundError,
    TrainingError,
    UnavailableError,
)
from modyn.model_storage.client import ModelHeader, StoredModelInfo
from modyn.models.weights import build_model, save_weights
from modyn.records import ModelVersion, RunId
from modyn.testing.fakes import FakeModelStorage
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.disk.files import clean_up
from modyn.trainer_server.loop.seeding import derived_seed, seed_everything
from modyn.trainer_server.request.config import TrainingConfig
from modyn.trainer_server.request.records import BatchProgress
from modyn.trainer_server.train import TrainingSections, configure_torch, run_training
from modyn.workers import KeptModels
from tests.support.training import (
    NUM_CLASSES,
    NUM_FEATURES,
    MemoryData,
    NoModel,
    Outcome,
    RecordedReport,
    TrainingRoom,
    context_of,
    features_of,
    small_pipeline,
    train_in_memory,
)

Batches = list[tuple[Tensor, Tensor, Tensor]]


def batches_of(keys: list[int], batch_size: int = 8, drop_last: bool = True) -> Batches:
    """Inputs, labels and weights of the samples, as MemoryData has them."""
    cut = [keys[i : i + batch_size] for i in range(0, len(keys), batch_size)]
    return [
        (
            torch.stack([torch.from_numpy(features_of(key)) for key in part]),
            torch.tensor([key % NUM_CLASSES for key in part]),
            torch.tensor([key / 2 for key in part]),
        )
        for part in cut
        if not drop_last or len(part) == batch_size
    ]


def fresh_model(pipeline: dict[str, Any], seed: int = 7, trigger_id: int = 0) -> nn.Module:
    seed_everything(derived_seed(seed, trigger_id, 1))
    model = build_model(pipeline["model"]["id"], pipeline["model"]["config"])
    seed_everything(derived_seed(seed, trigger_id, 2))
    return model


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches) -> list[float]:
    """Make a step of each batch. Return the losses before the steps."""
    losses = []
    for inputs, labels, _weights in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def equal(found: Outcome, model: nn.Module) -> bool:
    expected = model.state_dict()
    return found.weights.keys() == expected.keys() and all(torch.equal(found.weights[name], expected[name]) for name in expected)


def same(one: Outcome, other: Outcome) -> bool:
    return one.trained.weights_sha256 == other.trained.weights_sha256


def test_a_training_equals_a_loop_written_by_hand(tmp_path: Path) -> None:
    pipeline = small_pipeline({"epochs_per_trigger": 3})
    pipeline["model"]["config"]["dropout"] = 0.3
    found = train_in_memory(pipeline, MemoryData(45), tmp_path)

    model = fresh_model(pipeline)
    losses = by_hand(model, torch.optim.SGD(model.parameters(), lr=0.1), 3 * batches_of(list(range(45))))
    assert equal(found, model)
    assert (found.result["num_samples"], found.result["num_batches"], found.result["num_epochs"]) == (120, 15, 3)
    means = [sum(losses[i : i + 5]) / 5 for i in (0, 5, 10)]
    assert found.result["epoch_losses"] == pytest.approx(means)
    assert found.result["loss"] == pytest.approx(means[-1])


def test_several_optimizers_schedules_clipping_and_accumulation_equal_a_loop_written_by_hand(tmp_path: Path) -> None:
    training = {
        "epochs_per_trigger": 4,
        "drop_last_batch": False,
        "gradient_accumulation_steps": 2,
        "gradient_clip_norm": 0.5,
        "optimizers": [
            {"name": "body", "algorithm": "Adam", "param_groups": [{"module": "model.hidden", "config": {"lr": 0.01}}]},
            {
                "name": "head",
                "algorithm": "SGD",
                "param_groups": [
                    {"module": "model.output.weight", "config": {"lr": 0.2, "momentum": 0.9}},
                    {"module": "model.output.bias", "config": {"lr": 0.05}},
                ],
            },
        ],
        "lr_scheduler": {
            "name": "CosineAnnealingLR",
            "step_every": "batch",
            "optimizers": ["head"],
            "config": {"T_max": "MODYN_NUM_BATCHES"},
        },
    }
    found = train_in_memory(small_pipeline(training), MemoryData(35), tmp_path)

    model = fresh_model(small_pipeline())
    assert isinstance(model.hidden, nn.Module)
    assert isinstance(model.output, nn.Linear)
    body = torch.optim.Adam(model.hidden.parameters(), lr=0.01)
    head = torch.optim.SGD(
        [
            {"params": [model.output.weight], "lr": 0.2, "momentum": 0.9},
            {"params": [model.output.bias], "lr": 0.05},
        ]
    )
    batches = batches_of(list(range(35)), drop_last=False)  # five: the last of each epoch is a group of its own
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(head, T_max=4 * 3)
    for _ in range(4):
        for group in (batches[0:2], batches[2:4], batches[4:]):
            for inputs, labels, _weights in group:
                torch.autograd.backward(nn.functional.cross_entropy(model(inputs), labels) / len(group))
            nn.utils.clip_grad_norm_([*model.hidden.parameters(), model.output.weight, model.output.bias], 0.5)
            for optimizer in (body, head):
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()

    assert equal(found, model)
    assert (found.result["num_batches"], found.result["num_steps"]) == (20, 12)
    assert head.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)


def test_mixed_precision_equals_autocast(tmp_path: Path) -> None:
    found = train_in_memory(small_pipeline({"amp": True}), MemoryData(24), tmp_path)
    model = fresh_model(small_pipeline())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels, _ in batches_of(list(range(24))):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        torch.autograd.backward(loss)
        optimizer.step()
    assert equal(found, model)
    assert not same(found, train_in_memory(small_pipeline(), MemoryData(24), tmp_path))


def test_the_same_seed_gives_the_same_weights_after_anything(tmp_path: Path) -> None:
    options = {"shuffle": True, "epochs_per_trigger": 2, "seed": None}
    pipeline = small_pipeline(options)
    pipeline["model"]["config"]["dropout"] = 0.5
    first = train_in_memory(pipeline, MemoryData(), tmp_path, seed=3)
    torch.rand(17)
    again = train_in_memory(pipeline, MemoryData(), tmp_path, seed=3)
    several = train_in_memory(
        small_pipeline({**options, "num_prefetched_partitions": 3, "parallel_prefetch_requests": 2}, model=pipeline["model"]),
        MemoryData(),
        tmp_path,
        seed=3,
    )
    assert same(first, again)
    assert same(first, several)
    assert not same(first, train_in_memory(pipeline, MemoryData(), tmp_path, seed=4))
    assert not same(first, train_in_memory(pipeline, MemoryData(), tmp_path))
    assert not same(
        first,
        train_in_memory(small_pipeline({**options, "shuffle": False}, model=pipeline["model"]), MemoryData(), tmp_path, seed=3),
    )


def test_the_seed_of_the_pipeline_counts_when_the_request_has_none(tmp_path: Path) -> None:
    pipeline = small_pipeline({"shuffle": True})
    assert same(
        train_in_memory(pipeline, MemoryData(), tmp_path),
        train_in_memory(small_pipeline({"shuffle": True, "seed": None}), MemoryData(), tmp_path, seed=7),
    )
    assert torch.are_deterministic_algorithms_enabled()


def test_fine_tuning_starts_from_the_parent_and_from_scratch_does_not(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    first = room.train(small_pipeline())
    second = room.train(small_pipeline(), MemoryData(trigger_id=1), trigger_id=1, parent_model_id=first.trained.model_id)

    model = fresh_model(small_pipeline())
    by_hand(model, torch.optim.SGD(model.parameters(), lr=0.1), 2 * batches_of(list(range(40))))
    assert equal(second, model)
    info = room.models.describe(second.trained.model_id)
    assert (info.version.parent_id, info.model_class) == (first.trained.model_id, "MLP")
    assert info.training_result == dict(second.result)
    assert json.loads(json.dumps(second.result)) == second.result


def test_pretrained_weights_are_where_a_training_without_a_parent_begins(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    given = build_model("MLP", small_pipeline()["model"]["config"])
    save_weights(given, tmp_path / "given.safetensors")
    imported = room.models.put(ModelHeader(RunId(""), 0, "MLP"), tmp_path / "given.safetensors")
    still = [{"name": "default", "algorithm": "SGD", "param_groups": [{"config": {"lr": 0.0}}]}]
    options = {"initial_model": "pretrained", "initial_model_id": imported.model_id, "optimizers": still}
    found = room.train(small_pipeline(options))
    assert equal(found, given)


def test_a_parent_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="the model to start from does not exist: there is no model 9"):
        TrainingRoom(tmp_path).train(small_pipeline(), parent_model_id=9)


def test_a_parent_of_another_architecture_is_an_error(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    parent = room.train(small_pipeline())
    wider = small_pipeline()
    wider["model"]["config"]["hidden_sizes"] = [9]
    with pytest.raises(InvalidArgumentError, match="use the model and model.config they were trained with"):
        room.train(wider, trigger_id=1, parent_model_id=parent.trained.model_id)


def test_an_empty_trigger_set_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="the trigger set is empty"):
        train_in_memory(small_pipeline(), MemoryData(num_keys=0), tmp_path)


@pytest.mark.parametrize(
    ("drop_last", "bound", "batch_sizes"),
    [
        (False, 10, [8, 2]),
        (True, 10, [8]),
        (False, 21, [8, 8, 4, 1]),
        (False, 20, [8, 8, 4]),
        (True, 50, [8] * 6),
        (False, 47, [8, 8, 4, 8, 8, 4, 7]),
    ],
)
def test_a_bound_on_samples_is_kept_exactly(tmp_path: Path, drop_last: bool, bound: int, batch_sizes: list[int]) -> None:
    training = {"num_samples_to_pass": [bound], "drop_last_batch": drop_last, "epochs_per_trigger": 9, "record_loss_every": 1}
    found = train_in_memory(small_pipeline(training), MemoryData(20), tmp_path)
    assert (found.result["num_samples"], found.result["num_batches"]) == (sum(batch_sizes), len(batch_sizes))
    assert len(found.result["losses"]) == len(batch_sizes)

    model = fresh_model(small_pipeline())
    epoch = batches_of(list(range(20)), drop_last=drop_last)
    batches = [(inputs[:size], labels[:size], weights) for size, (inputs, labels, weights) in zip(batch_sizes, cycle(epoch))]
    by_hand(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)
    assert equal(found, model)


def test_later_triggers_than_the_bounds_name_use_the_epochs_and_the_request_goes_first(tmp_path: Path) -> None:
    pipeline = small_pipeline({"num_samples_to_pass": [8, 16], "epochs_per_trigger": 2})
    room = TrainingRoom(tmp_path)
    seen = [room.train(pipeline, MemoryData(trigger_id=i), trigger_id=i).result["num_samples"] for i in range(3)]
    assert seen == [8, 16, 80]
    asked = room.train(pipeline, trigger_id=0, run_id="other", num_samples_to_pass=24)
    assert asked.result["num_samples"] == 24


@pytest.mark.parametrize("step_every", ["batch", "epoch"])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("bound", [None, 50])
def test_schedulers_count_what_really_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_every: str, drop_last: bool, bound: int | None
) -> None:
    made: list[Any] = []
    original = torch.optim.lr_scheduler.LinearLR

    class Recorded(original):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(torch.optim.lr_scheduler, "LinearLR", Recorded)
    total = "MODYN_NUM_BATCHES" if step_every == "batch" else "MODYN_NUM_EPOCHS"
    scheduler = {
        "name": "LinearLR",
        "step_every": step_every,
        "config": {"total_iters": f"{total} * 2 // 2", "start_factor": 1.0, "end_factor": 0.5},
    }
    training = {
        "lr_scheduler": scheduler,
        "drop_last_batch": drop_last,
        "epochs_per_trigger": 3,
        "num_samples_to_pass": None if bound is None else [bound],
    }
    found = train_in_memory(small_pipeline(training), MemoryData(20), tmp_path)
    steps = found.result["num_steps"] if step_every == "batch" else found.result["num_epochs"]
    assert made[0].total_iters == steps == made[0].last_epoch
    assert made[0].get_last_lr() == pytest.approx([0.05])


def test_a_scheduler_without_names_drives_all_optimizers_by_epoch(tmp_path: Path) -> None:
    groups = [[{"module": "model.hidden", "config": {"lr": 0.1}}], [{"module": "model.output", "config": {"lr": 0.3}}]]
    optimizers = [{"name": str(i), "algorithm": "SGD", "param_groups": group} for i, group in enumerate(groups)]
    scheduler = {"name": "ExponentialLR", "config": {"gamma": 0.5}}
    found = train_in_memory(
        small_pipeline({"optimizers": optimizers, "lr_scheduler": scheduler, "epochs_per_trigger": 2}), MemoryData(16), tmp_path
    )
    model = fresh_model(small_pipeline())
    assert isinstance(model.hidden, nn.Module)
    assert isinstance(model.output, nn.Module)
    for rates in ((0.1, 0.3), (0.05, 0.15)):
        for inputs, labels, _ in batches_of(list(range(16))):
            model.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(inputs), labels))
            torch.optim.SGD(model.hidden.parameters(), lr=rates[0]).step()
            torch.optim.SGD(model.output.parameters(), lr=rates[1]).step()
    assert equal(found, model)


def test_a_plateau_is_judged_by_the_mean_loss_of_an_epoch(tmp_path: Path) -> None:
    rate = [{"name": "default", "algorithm": "SGD", "param_groups": [{"config": {"lr": 0.9}}]}]
    scheduler = {"name": "ReduceLROnPlateau", "config": {"patience": 0, "factor": 0.5, "threshold": 0.1}}
    training = {"optimizers": rate, "lr_scheduler": scheduler, "epochs_per_trigger": 12}
    found = train_in_memory(small_pipeline(training), MemoryData(40), tmp_path)

    def judged(by: Callable[[list[float]], float]) -> tuple[nn.Module, float]:
        model = fresh_model(small_pipeline())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=0.1)
        for _ in range(12):
            plateau.step(by(by_hand(model, optimizer, batches_of(list(range(40))))))
        return model, optimizer.param_groups[0]["lr"]

    model, last_rate = judged(lambda losses: sum(losses) / len(losses))
    assert last_rate < 0.9, "no plateau was met"
    assert equal(found, model)
    assert not equal(found, judged(lambda losses: losses[-1])[0])


def test_early_stopping_ends_when_the_loss_no_longer_falls(tmp_path: Path) -> None:
    still = [{"name": "default", "algorithm": "SGD", "param_groups": [{"config": {"lr": 0.0}}]}]
    training = {"epochs_per_trigger": 9, "early_stopping": {"patience": 2}}
    assert train_in_memory(small_pipeline({**training, "optimizers": still}), MemoryData(), tmp_path).result["num_epochs"] == 3
    falling = train_in_memory(small_pipeline(training), MemoryData(), tmp_path)
    assert falling.result["num_epochs"] == 9
    demanding = train_in_memory(
        small_pipeline({**training, "early_stopping": {"patience": 2, "min_delta": 100.0}}), MemoryData(), tmp_path
    )
    assert demanding.result["num_epochs"] == 3


def test_losses_are_kept_every_n_batches(tmp_path: Path) -> None:
    every = train_in_memory(small_pipeline({"record_loss_every": 1, "epochs_per_trigger": 2}), MemoryData(), tmp_path)
    third = train_in_memory(small_pipeline({"record_loss_every": 3, "epochs_per_trigger": 2}), MemoryData(), tmp_path)
    none = train_in_memory(small_pipeline(), MemoryData(), tmp_path)
    assert [batch for batch, _ in every.result["losses"]] == list(range(1, 11))
    assert third.result["losses"] == [entry for entry in every.result["losses"] if entry[0] % 3 == 0]
    assert none.result["losses"] == []


def test_the_state_of_optimizers_stays_with_the_model_if_it_is_kept(tmp_path: Path) -> None:
    adam = [{"name": "default", "algorithm": "Adam", "param_groups": [{"config": {"lr": 0.01}}]}]
    scheduler = {"name": "ExponentialLR", "config": {"gamma": 0.1}}
    pipeline = small_pipeline({"keep_optimizer_state": True, "optimizers": adam, "lr_scheduler": scheduler})
    room = TrainingRoom(tmp_path)
    first = room.train(pipeline)
    elsewhere = TrainingRoom(tmp_path / "another trainer server", room.models)
    elsewhere.folder.mkdir()
    second = elsewhere.train(pipeline, MemoryData(trigger_id=1), trigger_id=1, parent_model_id=first.trained.model_id)

    model = fresh_model(pipeline)
    # Schedulers start again, so both trainings have the rate of the config.
    by_hand(model, torch.optim.Adam(model.parameters(), lr=0.01), 2 * batches_of(list(range(40))))
    assert equal(second, model)
    assert list((tmp_path / "optimizers").iterdir()) == []

    plain = room.train(small_pipeline(), trigger_id=2, parent_model_id=second.trained.model_id)
    with pytest.raises(
        TrainingError, match=r"optimizers of trigger 2 cannot be loaded: no state of optimizers is kept with model 3"
    ):
        room.train(pipeline, trigger_id=3, parent_model_id=plain.trained.model_id)


def test_optimizers_that_a_crash_has_left_are_removed_with_the_next_model(tmp_path: Path) -> None:
    names = {"memory-0001.0.pt", "memory-0001.1.pt", "memory-0001.2.pt", "memory-0001.x.0.pt", "memory-0001.0.0.pt"}
    folder = tmp_path / "optimizers"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    request = TrainingRequest(RunId("memory-0001"), 2, small_pipeline())
    clean_up(tmp_path, request, stored=False)
    assert {path.name for path in folder.iterdir()} == names
    clean_up(tmp_path, request, stored=True)
    assert {path.name for path in folder.iterdir()} == {"memory-0001.x.0.pt", "memory-0001.0.0.pt"}


def test_what_cannot_be_removed_fails_no_training_whose_model_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(path: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system", str(path))

    room = TrainingRoom(tmp_path)
    request = TrainingRequest(RunId("memory-0001"), 0, small_pipeline())
    context = context_of(room.models, MemoryData(), tmp_path)
    with monkeypatch.context() as failing:
        failing.setattr(Path, "unlink", read_only)
        stored = run_training(request, TrainingSections.load(request.pipeline), context, RecordedReport())
        clean_up(tmp_path, request, stored=True)
    assert room.models.find(RunId("memory-0001"), 0) is not None
    assert isinstance(stored, StoredModelInfo)
    assert stored.version.model_id == 1


def test_progress_is_reported_by_time_with_totals(tmp_path: Path) -> None:
    found = TrainingRoom(tmp_path, limits={"report_interval_s": 0.0}).train(small_pipeline())
    first, *others = found.report.messages
    no_work = {"read": 0, "decoded": 0, "augmented": 0, "evicted": 0, "not_asked": 0}
    assert first == BatchProgress(samples_total=40, num_cached={"encoded": 0, "decoded": 0, "augmented": 0}, cache_work=no_work)
    assert [message.samples_seen for message in others] == [8, 16, 24, 32, 40]
    assert all(message.loss > 0 and message.samples_per_s > 0 for message in others)

    seldom = TrainingRoom(tmp_path, limits={"report_interval_s": 3600.0})
    assert len(seldom.train(small_pipeline()).report.messages) == 1


def test_stage_times_cover_the_training(tmp_path: Path) -> None:
    seconds = train_in_memory(small_pipeline(), MemoryData(), tmp_path).result["seconds"]
    assert set(seconds) == {"load", "forward", "backward", "step", "hooks", "store"}
    assert all(value > 0 for value in seconds.values())


def test_a_stop_request_is_noticed_at_the_next_batch(tmp_path: Path) -> None:
    report = RecordedReport(stop_after=2)
    room = TrainingRoom(tmp_path)
    with pytest.raises(CancelledError):
        room.train(small_pipeline(), report=report)
    assert report.looks == 3
    assert room.models.list() == []


@pytest.mark.parametrize("deleted", [frozenset({3}), frozenset(range(32, 40)), frozenset(range(8, 16))])
def test_samples_deleted_after_the_selection_do_not_stop_a_training(tmp_path: Path, deleted: frozenset[int]) -> None:
    scheduler = {"name": "ExponentialLR", "config": {"gamma": 0.5}}
    pipeline = small_pipeline({"epochs_per_trigger": 2, "gradient_accumulation_steps": 3, "lr_scheduler": scheduler})
    found = train_in_memory(pipeline, MemoryData(deleted=deleted), tmp_path)
    assert (found.result["num_samples"], found.result["num_skipped"]) == (2 * (40 - len(deleted)), 2 * len(deleted))
    assert not any(math.isnan(loss) for loss in found.result["epoch_losses"])


@pytest.mark.parametrize("stop_after", [None, 2, 5])
def test_the_result_lists_bad_samples_once_also_those_before_a_checkpoint(tmp_path: Path, stop_after: int | None) -> None:
    """Three in the first batch and a batch of which nothing is left, in two epochs."""
    bad = [1, 3, 6, *range(24, 32)]
    starts = {features_of(key).tobytes()[:4] for key in bad}
    parser = (
        f"def bytes_parser_function(data):\n    if bytes(data[:4]) in {starts!r}:\n        raise ValueError('broken')\n"
        "    return torch.frombuffer(bytearray(data), dtype=torch.float32)"
    )
    data = {"dataset_id": "fake", "bytes_parser_function": parser, "on_bad_sample": "skip"}
    checkpoints = {"activated": True, "interval": 1}
    pipeline = small_pipeline({"epochs_per_trigger": 2, "shuffle": False, "checkpointing": checkpoints}, data=data)
    room = TrainingRoom(tmp_path)
    if stop_after is not None:
        with pytest.raises(CancelledError):
            room.train(pipeline, report=RecordedReport(stop_after))
    found = room.train(pipeline).result
    assert sorted(sample["key"] for sample in found["bad_samples"]) == bad
    assert {sample["place"] for sample in found["bad_samples"]} == {f"named by `modyn data locate fake {key}`" for key in bad}
    assert all("ValueError: broken" in sample["reason"] for sample in found["bad_samples"])


def test_a_result_lists_no_more_bad_samples_than_a_hundred(tmp_path: Path) -> None:
    data = {
        "dataset_id": "fake",
        "record_layout": {"dtype": "float32", "shape": [7]},
        "on_bad_sample": "skip",
        "max_bad_samples": 500,
    }
    room = TrainingRoom(tmp_path)
    with pytest.raises(NoModel, match="left out by data.on_bad_sample") as caught:
        room.train(small_pipeline(data=data), MemoryData(160))
    assert len(caught.value.result["bad_samples"]) == 100


def test_a_group_of_batches_that_lost_its_last_one_steps_without_it(tmp_path: Path) -> None:
    pipeline = small_pipeline({"gradient_accumulation_steps": 2})
    found = train_in_memory(pipeline, MemoryData(deleted=frozenset(range(8, 16))), tmp_path)
    assert found.result["num_steps"] == 3

    model = fresh_model(pipeline)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = batches_of(list(range(40)))
    for group, size in (([0], 2), ([2, 3], 2), ([4], 1)):
        for number in group:
            inputs, labels, _weights = batches[number]
            torch.autograd.backward(nn.functional.cross_entropy(model(inputs), labels) / size)
        optimizer.step()
        optimizer.zero_grad()
    assert equal(found, model)


def test_a_training_ends_with_its_epoch_also_if_the_last_batch_of_it_was_deleted(tmp_path: Path) -> None:
    pipeline = small_pipeline({"epochs_per_trigger": 4, "early_stopping": {"patience": 1, "min_delta": 1e9}})
    found = train_in_memory(pipeline, MemoryData(deleted=frozenset(range(32, 40))), tmp_path)
    assert (found.result["num_epochs"], found.result["num_batches"]) == (2, 8)


def test_a_gpu_that_does_not_answer_after_an_error_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed assertion on a GPU, everything that is asked of it fails."""
    pipeline = small_pipeline()
    pipeline["model"]["config"]["input_size"] = 5

    def gone(tensor: Tensor) -> Tensor:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(Tensor, "cpu", gone)
    with pytest.raises(TrainingError, match=r"batch 0 of epoch 0 .*: RuntimeError: mat1 and mat2 .* and labels int64\[8\]"):
        train_in_memory(pipeline, MemoryData(), tmp_path)


@pytest.mark.parametrize(("device", "chosen"), [("cuda:1", [1]), ("cuda", [0]), ("cpu", [])])
def test_the_gpu_of_a_training_is_the_one_of_its_process(monkeypatch: pytest.MonkeyPatch, device: str, chosen: list[int]) -> None:
    """Or threads of PyTorch that ask for the current one take memory of the first."""
    found: list[int] = []
    monkeypatch.setattr("modyn.trainer_server.train.missing_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    configure_torch(
        load_section(TrainingConfig, {**small_pipeline()["training"], "device": device}, "training"), deterministic=False
    )
    assert found == chosen


def test_a_label_out_of_range_is_named_with_its_key_and_what_to_do(tmp_path: Path) -> None:
    pipeline = small_pipeline()
    pipeline["model"]["config"]["num_classes"] = 9
    said = r"sample 9 .*: the label is 9, and the model has 9 classes \(0 to 8\).*`modyn data delete fake --key 9`.*on_bad_sample: skip"
    with pytest.raises(DataError, match=said):
        train_in_memory(pipeline, MemoryData(), tmp_path)


def test_a_label_out_of_range_of_a_loss_that_is_not_known_is_named_where_it_fails(tmp_path: Path) -> None:
    pipeline = small_pipeline({"optimization_criterion": {"name": "MultiMarginLoss"}})
    pipeline["model"]["config"]["num_classes"] = 9
    said = r"batch 1 of epoch 0 .*: sample key 9 has the label 9, but the model has 9 classes \(0 to 8\).*`modyn data delete`"
    with pytest.raises(DataError, match=said):
        train_in_memory(pipeline, MemoryData(), tmp_path)


def test_labels_out_of_range_are_left_out_and_listed_where_bad_samples_are(tmp_path: Path) -> None:
    pipeline = small_pipeline(
        data={"dataset_id": "fake", "record_layout": {"dtype": "float32", "shape": [6]}, "on_bad_sample": "skip"}
    )
    pipeline["model"]["config"]["num_classes"] = 8
    found = TrainingRoom(tmp_path).train(pipeline).result
    assert [sample["key"] for sample in found["bad_samples"]] == [8, 9, 18, 19, 28, 29, 38, 39]
    assert found["bad_samples"][0]["reason"].startswith(
        "sample 8 of dataset 'fake': the label is 8, and the model has 8 classes (0 to 7)"
    )


def test_one_logit_and_whole_labels_are_explained(tmp_path: Path) -> None:
    pipeline = small_pipeline({"optimization_criterion": {"name": "BCEWithLogitsLoss"}})
    pipeline["model"]["config"]["num_classes"] = 1
    with pytest.raises(
        DataError, match=r"the label is 2, and the loss takes probabilities, from 0 to 1 \(CrossEntropyLoss takes classes\)"
    ):
        train_in_memory(pipeline, MemoryData(), tmp_path)
    pipeline["data"]["label_transformer_function"] = "def label_transformer_function(labels):\n    return labels % 2"
    with pytest.raises(DataError, match=r"one value a sample.*labels\.float\(\)\.unsqueeze\(1\).*CrossEntropyLoss"):
        train_in_memory(pipeline, MemoryData(), tmp_path)


def test_shapes_that_do_not_fit_are_named(tmp_path: Path) -> None:
    pipeline = small_pipeline()
    pipeline["model"]["config"]["input_size"] = 5
    with pytest.raises(TrainingError, match=r"batch 0 of epoch 0 \(sample keys 0, 1, 2, … 7\): RuntimeError: .*float32\[8, 6\]"):
        train_in_memory(pipeline, MemoryData(), tmp_path)


def test_a_cuda_device_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match="PyTorch finds no CUDA device on this machine; use cpu"):
        train_in_memory(small_pipeline({"device": "cuda:0"}), MemoryData(), tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("amp", [False, True])
def test_a_training_on_a_gpu(tmp_path: Path, amp: bool) -> None:
    scaler = {"init_scale": 128.0, "growth_interval": 5} if amp else None
    options = {"device": "cuda:0", "amp": amp, "grad_scaler_config": scaler, "enable_accurate_gpu_measurements": True}
    training = {**options, "gradient_clip_norm": 1.0, "record_loss_every": 1, "epochs_per_trigger": 3}
    on_gpu = train_in_memory(small_pipeline(training), MemoryData(), tmp_path)
    on_cpu = train_in_memory(small_pipeline({"gradient_clip_norm": 1.0, "epochs_per_trigger": 3}), MemoryData(), tmp_path)
    for name, value in on_cpu.weights.items():
        torch.testing.assert_close(on_gpu.weights[name].cpu(), value, rtol=0.1, atol=0.02)


class ReluctantModels(FakeModelStorage):
    """Cannot be reached the first times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def put(
        self, header: ModelHeader, safetensors_path: Path, kept: KeptModels | None = None, optimizers: Path | None = None
    ) -> ModelVersion:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("model storage restarts")
        return super().put(header, safetensors_path, kept, optimizers)


def test_a_finished_training_waits_for_model_storage(tmp_path: Path) -> None:
    found = TrainingRoom(tmp_path, ReluctantModels(2)).train(small_pipeline())
    assert found.trained.model_id == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_model_and_result_are_what_is_put(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    found = room.train(small_pipeline(model_storage={"full_model_strategy": {"name": "SafetensorsFullModel"}}), trigger_id=4)
    stored = room.models.find(RunId("memory-0001"), 4)
    assert stored is not None
    assert stored.version.weights_sha256 == found.trained.weights_sha256
    assert stored.model_config == small_pipeline()["model"]["config"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's compiler uses what PyTorch has deprecated
def test_a_compiled_model_learns_the_same(tmp_path: Path) -> None:
    compiled = train_in_memory(small_pipeline({"compile": True}), MemoryData(), tmp_path)
    plain = train_in_memory(small_pipeline(), MemoryData(), tmp_path)
    assert compiled.weights.keys() == plain.weights.keys()
    for name, value in plain.weights.items():
        torch.testing.assert_close(compiled.weights[name], value)


def one_hot(size: int = NUM_FEATURES) -> Callable[[str], torch.Tensor]:
    """A factory of tokenizers, as `data.tokenizer` names them: a word that is a number becomes a vector."""
    return lambda word: torch.nn.functional.one_hot(torch.tensor(int(word) % size), size).float()


def one_hot_of(word: str) -> torch.Tensor:
    """A tokenizer that is a function of one sample."""
    return one_hot()(word)


class OneHot:
    """A tokenizer that is a class."""

    def __call__(self, word: str) -> torch.Tensor:
        return one_hot_of(word)


def test_a_training_sees_what_the_tokenizer_makes_of_parsed_samples(tmp_path: Path) -> None:
    """However it is named: a factory with or without arguments, a class, or the function itself."""
    text = "def bytes_parser_function(x):\n    return bytes(x).decode()\n"
    vector = f"from {__name__} import one_hot_of\ndef bytes_parser_function(x):\n    return one_hot_of(bytes(x).decode())\n"
    sections = [{"bytes_parser_function": vector}]
    for name in ("one_hot", f"one_hot(size={NUM_FEATURES})", "one_hot_of", "OneHot"):
        sections.append({"bytes_parser_function": text, "tokenizer": f"{__name__}:{name}"})
    found = set()
    for number, section in enumerate(sections):
        folder = tmp_path / str(number)
        folder.mkdir()
        pipeline = small_pipeline(data={"dataset_id": "fake", **section})
        found.add(train_in_memory(pipeline, MemoryData(payload=lambda key: b"%d" % key), folder).trained.weights_sha256)
    assert len(found) == 1
