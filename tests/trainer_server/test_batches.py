"""Trainings of batches that were cut or joined: not more samples than the bound, and no batch of one where BatchNorm needs two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modyn.config.base import Severity
from modyn.errors import CancelledError
from modyn.models import MODELS
from modyn.models.weights import build_model
from modyn.supervisor.triggers import with_defaults
from modyn.trainer_server.check import _embedding_place, check
from modyn.trainer_server.loop.components import has_batch_norm
from modyn.trainer_server.loop.seeding import derived_seed, seed_everything
from modyn.trainer_server.request.training_plan import TrainingPlan
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

NORMED = """
import torch
from modyn.config.base import Section


class Normed(torch.nn.Sequential):
    Config = Section

    def __init__(self, config):
        super().__init__(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
"""


def test_a_bound_leaves_no_pass_of_one_sample() -> None:
    plan = TrainingPlan(num_keys=64, batch_size=32, max_samples=65, join_single=True)
    assert (plan.num_samples, plan.num_batches) == (64, 2)


def test_what_computes_over_a_batch() -> None:
    assert has_batch_norm(build_model("ResNet18", {"num_classes": 2}))
    assert not has_batch_norm(build_model("MLP", {"input_size": 2, "num_classes": 2}))
    assert not has_batch_norm(nn.GroupNorm(1, 2))


def normed(**options: Any) -> dict[str, Any]:
    return small_pipeline({"drop_last_batch": False, "epochs_per_trigger": 2, **options}, model={"id": "Normed"})


@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("bound", [None, 42])
def test_a_last_batch_of_one_is_trained_with_the_one_before_it(tmp_path: Path, accumulation: int, bound: int | None) -> None:
    bounds = None if bound is None else [bound]
    with installed(tmp_path / "plugin", MODELS, "Normed", NORMED, "Normed"):
        options = {"gradient_accumulation_steps": accumulation, "num_samples_to_pass": bounds}
        found = train_in_memory(normed(**options), MemoryData(33), tmp_path)
        seed_everything(derived_seed(7, 0, 1))
        model = build_model("Normed", {}).train()
    rows = torch.stack([torch.from_numpy(features_of(key)) for key in range(33)])
    labels = torch.arange(33) % NUM_CLASSES
    whole = [(0, 8), (8, 16), (16, 24), (24, 33)]
    epochs = [whole, whole if bound is None else [(0, 9)]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in epochs:
        for first in range(0, len(epoch), accumulation):
            group = epoch[first : first + accumulation]
            optimizer.zero_grad()
            for start, stop in group:
                loss = nn.functional.cross_entropy(model(rows[start:stop]), labels[start:stop])
                torch.autograd.backward(loss / len(group))
            optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found.weights[name], value)
    assert found.result["num_samples"] == (66 if bound is None else bound)
    assert found.result["num_batches"] == sum(map(len, epochs))


@pytest.mark.parametrize("stops", [(2, 4, 7), pytest.param((3, 5, 6, 8), marks=pytest.mark.slow)])
def test_a_training_whose_batches_were_joined_resumes_as_an_undisturbed_one(tmp_path: Path, stops: tuple[int, ...]) -> None:
    # Batches of 8, of which deletions leave one sample: the second, the third, and the last.
    data = MemoryData(41, deleted=frozenset([*range(8, 15), *range(17, 24)]))
    pipeline = normed(epochs_per_trigger=3, checkpointing={"activated": True, "interval": 1}, shuffle=False)
    with installed(tmp_path / "plugin", MODELS, "Normed", NORMED, "Normed"):
        undisturbed = TrainingRoom(tmp_path / "undisturbed").train(pipeline, data)
        for after in stops:
            room = TrainingRoom(tmp_path / f"stopped after {after}")
            with pytest.raises(CancelledError):
                room.train(pipeline, data, RecordedReport(stop_after=after - 1))
            resumed = room.train(pipeline, data)
            assert resumed.trained.weights_sha256 == undisturbed.trained.weights_sha256, after
            assert resumed.result["num_samples"] == 3 * 27


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize(
    ("num_keys", "options"),
    [(1, {}), (9, {}), (8, {"drop_last_batch": True}), (17, {}), (17, {"gradient_accumulation_steps": 2})],
)
def test_one_sample_that_is_left_alone_is_trained_only_where_no_layer_needs_two(
    tmp_path: Path, num_keys: int, options: dict[str, Any], joins: bool
) -> None:
    data = MemoryData(num_keys, deleted=frozenset(range(num_keys - 1)))
    pipeline = normed(**options, checkpointing={"activated": True, "interval": 1})
    if not joins:
        pipeline["model"] = small_pipeline()["model"]
    with installed(tmp_path / "plugin", MODELS, "Normed", NORMED, "Normed"):
        if not joins:
            assert train_in_memory(pipeline, data, tmp_path).result["num_samples"] == 2
            return
        room = TrainingRoom(tmp_path)
        for _ in range(2):  # and again, as after a lost answer
            with pytest.raises(NoModel, match="one sample is left, BatchNorm needs two"):
                room.train(pipeline, data)


def test_samples_that_are_left_alone_are_counted(tmp_path: Path) -> None:
    """The first batch of two passes over 16 samples is trained, then all samples but one are deleted: each pass has that one."""
    pipeline = normed(checkpointing={"activated": True, "interval": 1}, shuffle=False)
    with installed(tmp_path / "plugin", MODELS, "Normed", NORMED, "Normed"):
        room = TrainingRoom(tmp_path)
        with pytest.raises(CancelledError):
            room.train(pipeline, MemoryData(16), RecordedReport(stop_after=0))
        found = room.train(pipeline, MemoryData(16, deleted=frozenset(range(15))))
    assert (found.result["num_samples"], found.result["num_skipped"]) == (8, 24)


def test_a_batch_size_of_one_is_refused_where_it_cannot_work(tmp_path: Path) -> None:
    with installed(tmp_path / "plugin", MODELS, "Normed", NORMED, "Normed"):
        note, problem = check(normed(batch_size=1), RecordedReport())
        assert check(normed(batch_size=2), RecordedReport()) == [note]
    assert problem.path == "training.batch_size"
    assert "'Normed' has BatchNorm1d, which has no variance over a batch of 1" in problem.message
    assert (note.path, note.severity) == ("model.id", Severity.WARNING)
    assert "'Normed' offers no `last_layer`: embeddings are the input of the last nn.Linear, '3'" in note.message


CONVOLUTION = """
import torch
from modyn.config.base import Section


class Convolution(torch.nn.Sequential):
    Config = Section

    def __init__(self, config):
        super().__init__(torch.nn.Unflatten(1, (1, 6)), torch.nn.Conv1d(1, 10, 6), torch.nn.Flatten())
"""
COMPARED = {"id": "DataDriftTrigger", "metrics": {}}


@pytest.mark.parametrize(
    ("trigger", "path"),
    [
        ({"id": "AutoDrift"}, "trigger.on"),
        (COMPARED | {"on": "embeddings"}, "trigger.on"),
        ({"id": "EnsembleTrigger", "subtriggers": {"a": {"id": "TimeTrigger"}, "b": COMPARED}}, "trigger.subtriggers.b.on"),
        ({"id": "StreamDetectorTrigger", "on": "distance", "distance": {"metric": {}}}, "trigger.distance.on"),
        ({"id": "OfAnotherPackage", "inner": {"windowing_strategy": {}}}, "trigger.inner.on"),
        (COMPARED | {"on": "payload"}, ""),
        ({"id": "DataAmountTrigger"}, ""),
    ],
)
def test_a_model_without_embeddings_is_refused_where_they_are_compared(tmp_path: Path, trigger: Any, path: str) -> None:
    with installed(tmp_path / "plugin", MODELS, "Convolution", CONVOLUTION, "Convolution"):
        found = check(normed() | {"model": {"id": "Convolution"}, "trigger": with_defaults(trigger)}, RecordedReport())
    assert [problem.path for problem in found] == [path] * bool(path)
    assert all("'Convolution' has none: it has no nn.Linear" in problem.message for problem in found)


@pytest.mark.parametrize(
    ("sizes", "paths"),
    [
        ({"step_samples": 1}, ["online.step_samples"]),
        ({"step_samples": 4, "update_samples": 1, "history_samples": 2}, ["online.update_samples"]),
        ({"step_samples": 4, "update_samples": 2, "history_samples": 1}, ["online.history_samples"]),
        ({"step_samples": 1, "history_samples": 1}, []),
    ],
)
def test_steps_of_one_sample_are_refused_where_they_cannot_work(sizes: dict[str, int], paths: list[str], tmp_path: Path) -> None:
    online = {"trigger": {"id": "DataAmountTrigger", "num_samples": 8}, **sizes}
    with installed(tmp_path / "plugin", MODELS, "Normed", NORMED, "Normed"):
        found = check({**normed(), "online": online}, RecordedReport())
    assert [problem.path for problem in found if "has BatchNorm1d" in problem.message] == paths


def test_embeddings_of_online_triggers_are_looked_for_too() -> None:
    drift = with_defaults({"id": "DataDriftTrigger", "on": "embeddings"})
    amount = {"id": "DataAmountTrigger", "num_samples": 8}
    assert _embedding_place({"trigger": amount, "online": {"trigger": drift}}) == "online.trigger.on"
    assert _embedding_place({"trigger": drift, "online": {"trigger": drift}}) == "trigger.on"
    assert _embedding_place({"trigger": amount}) == _embedding_place({"trigger": amount, "online": {"trigger": amount}}) == ""
