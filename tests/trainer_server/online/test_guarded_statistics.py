"""Steps that are undone together with the statistics of preprocessing that belong to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modyn.errors import CancelledError
from modyn.model_storage.client import ModelHeader
from modyn.models.calls import forward
from modyn.models.weights import build_model, read_statistics
from modyn.preprocessing import Preprocessing
from modyn.records import RunId
from tests.support.column_samples import DENSE, ColumnData, column_pipeline
from tests.support.training import NoModel, RecordedReport, TrainingRoom

POISON = 50
NEW, DRAWN, FIRST, END = 4, 2, 40, 72
ONLINE: dict[str, Any] = {
    "trigger": {"id": "DataAmountTrigger", "num_samples": 40},
    "step_samples": NEW,
    "history_samples": DRAWN,
    "rollback": {"every": 2, "window": 40, "factor": 1.2},
}
CHECKED = {**DENSE, "components": [{"id": "InputGuard", "warm_up_rows": 20}, *DENSE["components"]]}
OPTIMIZER = {"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": 0.1}}]}


def row(key: int, poison: Mapping[int, float]) -> dict[str, Any]:
    """Columns by which the label, key % 10, can be learned; the poison in place of one number of its samples."""
    value = float(key % 10)
    return {"age": poison.get(key, value), "income": (value - 4.5) ** 2, "site": "a"}


def columns(keys: range, poison: Mapping[int, float]) -> dict[str, Any]:
    rows = [row(key, poison) for key in keys]
    texts = np.array([each["site"] for each in rows], object)
    return {"age": np.array([each["age"] for each in rows]), "income": np.array([each["income"] for each in rows]), "site": texts}


def data(keys: tuple[int, ...], poison: Mapping[int, float], trigger_id: int = 1) -> ColumnData:
    return ColumnData(len(keys), keys=keys, trigger_id=trigger_id, payload=lambda key: json.dumps(row(key, poison)).encode())


def pipeline(online: Mapping[str, Any], checkpointing: Mapping[str, Any]) -> dict[str, Any]:
    training = {"epochs_per_trigger": 75, "optimizers": [OPTIMIZER], "checkpointing": checkpointing}
    return column_pipeline(DENSE, training, online=online)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> TrainingRoom:
    room = TrainingRoom(tmp_path_factory.mktemp("learned"))
    room.train(pipeline(ONLINE, {"activated": False}), data(tuple(range(FIRST)), {}, 0))
    return room


@pytest.fixture(scope="module")
def learned_checked(tmp_path_factory: pytest.TempPathFactory) -> TrainingRoom:
    room = TrainingRoom(tmp_path_factory.mktemp("checked"))
    room.train(
        column_pipeline(CHECKED, {"epochs_per_trigger": 75, "optimizers": [OPTIMIZER]}, online=ONLINE),
        data(tuple(range(FIRST)), {}, 0),
    )
    return room


def adopted(learned: TrainingRoom, room: TrainingRoom) -> int:
    """Put the one version of `learned` into another room; return its number there."""
    (info,) = learned.models.list()
    stored = learned.models.get(info.version.model_id, room.folder / "learned.safetensors")
    header = ModelHeader(RunId("another-run"), 0, info.model_class, info.model_config, info.training_result)
    return room.models.put(header, stored.path).model_id


class Guarded:
    """A version that has learned the labels, and steps that start from it over samples of which some are poison."""

    def __init__(self, learned: TrainingRoom, folder: Path, poison: Mapping[int, float], **online: Any) -> None:
        """Args: learned: with that version alone."""
        folder.mkdir(exist_ok=True)
        self.room, self.poison, self.online = TrainingRoom(folder), poison, {**ONLINE, **online}
        self.pipeline = pipeline(self.online, {"activated": True, "interval": 1})
        self.parent = adopted(learned, self.room)

    def steps(self, stop_after: int | None = None) -> tuple[Mapping[str, Any], int | None]:
        """The result of the steps and the version that they made; None: none. stop_after: looks, a step each, after which they are interrupted."""
        drawn = self.online["history_samples"]
        keys = tuple(
            key for new in range(FIRST, END, NEW) for key in (*range(new, new + NEW), *range(new - FIRST, new - FIRST + drawn))
        )
        given: dict[str, Any] = {"trigger_id": 1, "parent_model_id": self.parent, "online": True}
        if stop_after is not None:
            with pytest.raises(CancelledError):
                self.room.train(self.pipeline, data(keys, self.poison), RecordedReport(stop_after), **given)
        try:
            found = self.room.train(self.pipeline, data(keys, self.poison), **given)
        except NoModel as ended:
            return ended.result, None
        return found.result, found.trained.model_id

    def statistics(self, model_id: int) -> Preprocessing:
        path = self.room.folder / "read.safetensors"
        self.room.models.get(model_id, path)
        return Preprocessing.from_bytes(read_statistics(path) or b"")

    def updates(self) -> list[range]:
        """The samples that are new in each step."""
        size = self.online.get("update_samples", NEW)
        on_drawn = [range(0)] if size < NEW else []
        return [
            each
            for new in range(FIRST, END, NEW)
            for each in (*(range(at, at + size) for at in range(new, new + NEW, size)), *on_drawn)
        ]


@pytest.fixture(scope="module")
def alone(request: pytest.FixtureRequest, learned: TrainingRoom, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Steps with poison that nothing interrupts, their result and the version that they made."""
    guarded = Guarded(learned, tmp_path_factory.mktemp("alone"), {POISON: 1e100}, **request.param)
    return guarded, *guarded.steps()


@pytest.mark.parametrize(
    ("alone", "stop_after"),
    [
        pytest.param(online, stop_after, marks=[] if stop_after in gate else pytest.mark.slow)
        for online, gate in (({}, (2, 3, 5)), ({"update_samples": 2}, (4,)))
        for stop_after in (2, 3, 4, 5)
    ],
    indirect=["alone"],
)
def test_statistics_are_those_of_the_steps_that_are_kept(
    alone: tuple[Guarded, Any, int | None], stop_after: int, learned: TrainingRoom, tmp_path: Path
) -> None:
    """Also where the training is interrupted, before, between and after the poison and the check that undoes its steps."""
    whole, expected, other_id = alone
    guarded = Guarded(learned, tmp_path, {POISON: 1e100}, **whole.online)
    result, model_id = guarded.steps(stop_after)
    assert model_id is not None
    assert other_id is not None
    assert repr(result["step_guard"]) == repr(expected["step_guard"])
    hashes = [each.room.models.describe(made).version.weights_sha256 for each, made in ((guarded, model_id), (whole, other_id))]
    assert hashes[0] == hashes[1]

    (undone,) = result["step_guard"]["rollbacks"]
    by_hand = guarded.statistics(guarded.parent)
    for number, keys in enumerate(guarded.updates(), 1):
        assert (POISON not in keys) or undone["to_step"] < number <= undone["step"]
        if keys and not undone["to_step"] < number <= undone["step"]:
            by_hand.update(columns(keys, guarded.poison))
    np.testing.assert_equal(guarded.statistics(model_id).state(), by_hand.state())


@pytest.mark.parametrize("stop_after", [2, 6, *(pytest.param(stop, marks=pytest.mark.slow) for stop in (3, 4))])
def test_what_is_left_out_is_tested_by_the_statistics_of_the_version_before(
    stop_after: int, learned: TrainingRoom, tmp_path: Path
) -> None:
    guarded = Guarded(learned, tmp_path, {POISON: 1e100, POISON + 10: 1e100})
    result, model_id = guarded.steps(stop_after)
    assert model_id is None
    assert result["step_guard"]["left_out"]
    last = result["step_guard"]["rollbacks"][1]["step"]
    rest = range(FIRST + last * NEW, END)
    assert len(rest) >= NEW
    network = build_model(guarded.pipeline["model"]["id"], guarded.pipeline["model"]["config"]).eval()
    network.load_state_dict(guarded.room.weights_of(guarded.parent))
    features = guarded.statistics(guarded.parent).transform(columns(rest, guarded.poison)).to_torch()
    with torch.inference_mode():
        output = forward(network, features)
    losses = nn.functional.cross_entropy(output, torch.tensor([key % 10 for key in rest]), reduction="none")
    expected = [float(losses[at : at + NEW].sum()) for at in range(0, len(rest), NEW)]
    assert result["prequential"]["loss"][last:] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("value", [1e6, 1e30, 1e100])
def test_statistics_that_one_value_spoils_are_undone(value: float, learned: TrainingRoom, tmp_path: Path) -> None:
    """By the snapshot's own statistics its loss is as before; by those since, both would err alike."""
    result, _ = Guarded(learned, tmp_path, {POISON: value}, history_samples=0).steps()
    undone = result["step_guard"]["rollbacks"][0]
    assert undone["snapshot_loss"] < (undone["running"] + undone["compared_loss"]) / 2
    assert result["preprocessing"]["rows"] < END, "those of the undone steps are not counted"


@pytest.mark.parametrize(
    ("values", "undone", "stop_after"),
    [
        pytest.param(values, undone, stop_after, marks=[] if stop_after in gate else pytest.mark.slow)
        for values, undone, gate in (
            ({POISON: 1e30}, [3], (None, 3)),
            ({POISON: 1e30, POISON + 9: 1e30, POISON + 17: 1e30}, [3, 5, 7], (2, 5)),
        )
        for stop_after in (None, 2, 3, 5)
    ],
)
def test_of_values_far_outside_of_all_before_their_steps_are_undone(
    values: dict[int, float], undone: list[int], stop_after: int | None, learned_checked: TrainingRoom, tmp_path: Path
) -> None:
    """A snapshot is taken right before such a step, which is checked by itself; however many there are, all other steps are kept."""
    online = {**ONLINE, "history_samples": 0, "rollback": {"every": 100, "window": 40, "factor": 1.2}}
    training = {"epochs_per_trigger": 75, "optimizers": [OPTIMIZER], "checkpointing": {"activated": True, "interval": 1}}
    room, checked = TrainingRoom(tmp_path), column_pipeline(CHECKED, training, online=online)
    given: dict[str, Any] = {"trigger_id": 1, "parent_model_id": adopted(learned_checked, room), "online": True}
    samples = data(tuple(range(FIRST, END)), values)
    if stop_after is not None:
        with pytest.raises(CancelledError):
            room.train(checked, samples, RecordedReport(stop_after), **given)
    found = room.train(checked, samples, **given).result
    rollbacks = found["step_guard"]["rollbacks"]
    assert [each["step"] for each in rollbacks] == undone
    assert all(each["alone"] for each in rollbacks)
    assert found["preprocessing"]["rows"] == END - NEW * len(undone)
    assert found["step_guard"]["snapshots"] == len(undone) + (NEW * undone[-1] < END - FIRST), (
        "one before each step, one at the end"
    )


@pytest.mark.parametrize("rows_too_large", [1, 2])
def test_statistics_are_decoded_once_for_a_comparison(
    rows_too_large: int, learned: TrainingRoom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many batches are compared, and samples among them whose values are no features: with large vocabularies it takes long."""
    decoded, load_state = [], Preprocessing.load_state

    def counted(preprocessing: Preprocessing, state: Mapping[str, Any]) -> None:
        decoded.append(state)
        load_state(preprocessing, state)

    guarded = Guarded(learned, tmp_path, {POISON + row: 1e100 for row in range(rows_too_large)}, update_samples=2)
    monkeypatch.setattr(Preprocessing, "load_state", counted)
    guard = guarded.steps()[0]["step_guard"]
    assert len(guard["rollbacks"]) == 1
    # Two for the version before; then one for each comparison, and one for the statistics that come back.
    assert len(decoded) == 2 + len(guard["rollbacks"]) + guard["data_jumps"] + 1


@pytest.mark.parametrize("stop_after", [None, 3])
def test_a_level_that_was_accepted_is_not_a_risk_where_ranges_do_not_learn(stop_after: int | None, tmp_path: Path) -> None:
    """With `online.statistics: false` the range stays that of the retraining: each step would be checked by itself for ever."""
    section = {**DENSE, "components": [{"id": "InputGuard", "warm_up_rows": 20}, *DENSE["components"]]}
    online = {**ONLINE, "statistics": False, "history_samples": 0, "rollback": {"every": 100, "window": 40}}
    still = {**OPTIMIZER, "param_groups": [{"module": "model", "config": {"lr": 0.0}}]}
    training = {"epochs_per_trigger": 1, "optimizers": [still], "checkpointing": {"activated": True, "interval": 1}}
    room, checked = TrainingRoom(tmp_path), column_pipeline(section, training, online=online)
    parent = room.train(checked, data(tuple(range(FIRST)), {}, 0)).trained.model_id
    given: dict[str, Any] = {"trigger_id": 1, "parent_model_id": parent, "online": True}
    samples = data(tuple(range(FIRST, END)), {key: 1000.0 + key % 10 for key in range(FIRST, END)})
    if stop_after is not None:
        with pytest.raises(CancelledError):
            room.train(checked, samples, RecordedReport(stop_after), **given)
    guard = room.train(checked, samples, **given).result["step_guard"]
    assert (guard["rollbacks"], guard["snapshots"]) == ([], 2), "after the first step, and at the end"
