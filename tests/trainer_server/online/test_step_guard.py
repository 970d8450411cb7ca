"""Steps that are undone when the error jumps: against plain PyTorch, and after interruptions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from modyn.errors import CancelledError
from modyn.models.weights import build_model
from modyn.trainer_server.online.step_guard import FadedMean
from tests.support.training import NUM_CLASSES, NUM_FEATURES, MemoryData, NoModel, RecordedReport, TrainingRoom
from tests.trainer_server.online.test_online_trainings import STEP, online_pipeline

NUM_KEYS, EVERY = 80, 4
NOW_AND_THEN: dict[str, Any] = {"activated": True, "interval": 150}
FEW_CHECKS: dict[str, Any] = {"rollback": {"every": 1000, "window": 40}}
ROLLBACK: dict[str, Any] = {"rollback": {"every": EVERY, "window": 40}}


def features(key: int, shift: int = 10**9, spoilt: frozenset[int] = frozenset(), outlier: int = -1) -> Tensor:
    """What a label of the key looks like; something else from `shift` on; no number where `spoilt`; far off, and the other way, for `outlier`."""
    drawn = np.random.default_rng(key).standard_normal(NUM_FEATURES).astype(np.float32) / 10
    drawn[key % NUM_CLASSES % NUM_FEATURES] += 1 if key < shift else -3
    drawn *= -1e8 if key == outlier else 1
    return torch.full((NUM_FEATURES,), torch.nan) if key in spoilt else torch.from_numpy(drawn)


def data(trigger_id: int, **meant: Any) -> MemoryData:
    return MemoryData(NUM_KEYS, trigger_id=trigger_id, payload=lambda key: features(key, **meant).numpy().tobytes())


class Guarded:
    """A parent model, and what becomes of steps that start from it."""

    def __init__(self, folder: Path, epochs: int = 1) -> None:
        self.room, self.pipeline = TrainingRoom(folder), online_pipeline(0.1)
        self.parent = self.room.train(online_pipeline(0.3, epochs_per_trigger=epochs), data(0)).trained.model_id

    def steps(self, pipeline: dict[str, Any], number: int = 1, report: RecordedReport | None = None, **meant: Any) -> Any:
        """The result of the training, and its weights, or those of the parent if it made no model."""
        try:
            found = self.room.train(
                pipeline, data(number, **meant), report, trigger_id=number, parent_model_id=self.parent, online=True
            )
        except NoModel as ended:
            return ended.result, None
        return found.result, found.weights

    def expected(self, undone: set[int], lr: float = 0.1, **meant: Any) -> tuple[dict[str, Tensor], list[float]]:
        """Weights after all steps but those that are undone, and the loss of the samples of each step before it, by PyTorch alone."""
        model = build_model("MLP", self.pipeline["model"]["config"])
        model.load_state_dict(self.room.weights_of(self.parent))
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=lr), []
        for step in range(NUM_KEYS // STEP):
            if step in undone:
                losses.append(math.nan)
                continue
            keys = range(step * STEP, (step + 1) * STEP)
            output = model(torch.stack([features(key, **meant) for key in keys]))
            each = nn.functional.cross_entropy(output, torch.tensor([key % NUM_CLASSES for key in keys]), reduction="none")
            losses.append(float(each.detach().sum()))
            optimizer.zero_grad()
            each.mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return model.state_dict(), losses


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_steps_resume_from_the_snapshot(tmp_path: Path) -> None:
    guarded, spoilt = Guarded(tmp_path), frozenset(range(22, 24))
    result, weights = guarded.steps(online_pipeline(0.1, ROLLBACK), spoilt=spoilt)
    # Step 5 (from 0) has the spoilt samples; it is found when the steps 4 to 7 are checked.
    expected, losses = guarded.expected({4, 5, 6, 7}, spoilt=spoilt)
    assert weights is not None
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-7)
    guard = result["step_guard"]
    assert [(each["step"], each["to_step"]) for each in guard["rollbacks"]] == [(8, 4)]
    assert (guard["left_out"], guard["snapshots"], guard["data_jumps"]) == (False, 4, 0)
    # All were tested, and the count of steps continues.
    assert result["prequential"]["num"] == [STEP] * 20
    assert result["num_steps"] == 20
    tested = result["prequential"]["loss"]
    assert [step for step, loss in enumerate(tested) if not math.isfinite(loss)] == [5, 6, 7]
    assert result["prequential"]["errors"][6] == STEP
    known = [step for step in range(20) if step not in (4, 5, 6, 7)]
    assert [tested[step] for step in known] == pytest.approx([losses[step] for step in known], rel=1e-4)
    assert math.isfinite(result["loss"])


def test_at_the_second_jump_all_steps_are_left_out(tmp_path: Path) -> None:
    guarded, spoilt = Guarded(tmp_path), frozenset([22, 50])
    result, weights = guarded.steps(online_pipeline(0.1, ROLLBACK), spoilt=spoilt)
    assert weights is None
    assert result["step_guard"]["left_out"]
    assert [(each["step"], each["to_step"]) for each in result["step_guard"]["rollbacks"]] == [(8, 4), (16, 12)]
    assert "the error jumped after step 8" in result["nothing_trained"]
    # The version before is asked about the rest, in evaluation mode.
    model = build_model("MLP", guarded.pipeline["model"]["config"])
    model.load_state_dict(guarded.room.weights_of(guarded.parent))
    rest = range(64, 80)
    each = nn.functional.cross_entropy(
        model(torch.stack([features(key) for key in rest])), torch.tensor([key % NUM_CLASSES for key in rest]), reduction="none"
    ).detach()
    expected = [float(each[at : at + STEP].sum()) for at in range(0, 16, STEP)]
    assert result["prequential"]["loss"][16:] == pytest.approx(expected, rel=1e-5)
    assert result["num_tested"] == NUM_KEYS
    assert guarded.steps(online_pipeline(0.1, ROLLBACK), 2)[1] is not None


def test_steps_that_diverge_from_the_first_on_are_left_out(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)
    result, weights = guarded.steps(online_pipeline(1e20, ROLLBACK))
    assert weights is None
    assert [each["to_step"] for each in result["step_guard"]["rollbacks"]] == [0, 0]
    assert result["prequential"]["num"] == [STEP] * 20


def test_a_jump_of_finite_losses_is_found(tmp_path: Path) -> None:
    """The rate is so large that the loss grows, and no number overflows."""
    guarded = Guarded(tmp_path)
    unguarded = guarded.steps(online_pipeline(60.0), 3)[0]
    assert all(map(math.isfinite, unguarded["prequential"]["loss"]))
    guarded = Guarded(tmp_path / "other")
    result, weights = guarded.steps(online_pipeline(60.0, ROLLBACK))
    assert weights is None
    assert len(result["step_guard"]["rollbacks"]) == 2
    # The version before, with about log(10) a sample, is asked about the rest.
    assert max(result["prequential"]["loss"][8:]) < 3 * STEP < max(unguarded["prequential"]["loss"][8:])


def test_a_last_step_that_diverges_makes_no_version(tmp_path: Path) -> None:
    """After the last test, and fewer than `every` steps after the snapshot."""
    guarded = Guarded(tmp_path)
    result, weights = guarded.steps(online_pipeline(0.1, {"rollback": {"every": 6}}), spoilt=frozenset([79]))
    expected, _ = guarded.expected({18, 19}, spoilt=frozenset([79]))
    assert weights is not None
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-7)
    assert [(each["step"], each["to_step"]) for each in result["step_guard"]["rollbacks"]] == [(20, 18)]


def test_data_that_changes_is_not_a_reason_for_a_rollback(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, epochs=60)
    rollback = {"rollback": {"every": EVERY, "window": 40}}
    result, weights = guarded.steps(online_pipeline(0.1, rollback), shift=40)
    assert result["step_guard"]["rollbacks"] == []
    assert result["step_guard"]["data_jumps"] >= 1
    expected, _ = guarded.expected(set(), shift=40)
    assert weights is not None
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-7)


def test_an_outlier_that_spoils_no_weight_does_not_change_the_level_of_the_error(tmp_path: Path) -> None:
    found, _ = Guarded(tmp_path, epochs=40).steps(online_pipeline(0.0, ROLLBACK), outlier=22)
    guard, losses = found["step_guard"], sorted(found["prequential"]["loss"])
    assert (guard["rollbacks"], guard["data_jumps"]) == ([], 1)
    assert losses[-1] > 1e6 > losses[-2]
    assert guard["running"]["total"] / guard["running"]["weight"] <= losses[-2]


def test_what_is_not_undone_is_as_without_a_guard(tmp_path: Path) -> None:
    one, other = Guarded(tmp_path / "one"), Guarded(tmp_path / "other")
    result, weights = one.steps(online_pipeline(0.1, ROLLBACK))
    plain, unguarded = other.steps(online_pipeline(0.1))
    assert same(weights, unguarded)
    assert result["prequential"] == plain["prequential"]
    assert result["loss"] == plain["loss"]
    # The next steps resume from the mean.
    mean = FadedMean(40)
    for num, total in zip(result["prequential"]["num"], result["prequential"]["loss"], strict=True):
        mean.add(num, total)
    assert result["step_guard"]["running"] == mean.state()


@pytest.mark.parametrize(("outlier", "stop_after"), [(1, None), (1200, 301), pytest.param(1200, None, marks=pytest.mark.slow)])
def test_a_step_on_numbers_far_outside_of_all_before_is_undone_alone(
    outlier: int, stop_after: int | None, tmp_path: Path
) -> None:
    """Once the ranges of 1,000 samples are known; the snapshot right before it keeps all other steps."""
    room, pipeline = TrainingRoom(tmp_path), online_pipeline(0.1, FEW_CHECKS, checkpointing=NOW_AND_THEN)
    parent = room.train(online_pipeline(0.3), data(0)).trained.model_id
    given: dict[str, Any] = {"trigger_id": 1, "parent_model_id": parent, "online": True}
    samples = MemoryData(1300, trigger_id=1, payload=lambda key: features(key, outlier=outlier).numpy().tobytes())
    if stop_after is not None:
        with pytest.raises(CancelledError):
            room.train(pipeline, samples, RecordedReport(stop_after), **given)
    try:
        found = room.train(pipeline, samples, **given).result
    except NoModel as ended:
        found = ended.result
    undone = [(each["step"], each["to_step"], each["alone"]) for each in found["step_guard"]["rollbacks"]]
    assert undone == ([(1200 // STEP + 1, 1200 // STEP, True)] if outlier == 1200 else [(1300 // STEP, 0, False)])


CHECKPOINTED = online_pipeline(0.1, ROLLBACK, checkpointing={"activated": True, "interval": 3})


@pytest.fixture(scope="module")
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Spoilt keys, and the result and weights of an undisturbed training with them."""
    spoilt = frozenset[int](request.param)
    return spoilt, *Guarded(tmp_path_factory.mktemp("undisturbed")).steps(CHECKPOINTED, spoilt=spoilt)


@pytest.mark.parametrize(
    ("undisturbed", "stop_after"),
    [
        pytest.param(spoilt, stop_after, marks=[] if stop_after in of_gate else pytest.mark.slow)
        for spoilt, of_gate in (((22,), (3, 6)), ((22, 50), (8, 14)), ((), (17,)))
        for stop_after in (3, 6, 8, 14, 17)
    ],
    indirect=["undisturbed"],
)
def test_a_training_that_was_interrupted_decides_the_same(undisturbed: Any, tmp_path: Path, stop_after: int) -> None:
    spoilt, expected, weights = undisturbed
    stopped = Guarded(tmp_path)
    with pytest.raises(CancelledError):
        stopped.steps(CHECKPOINTED, report=RecordedReport(stop_after), spoilt=spoilt)
    result, found = stopped.steps(CHECKPOINTED, spoilt=spoilt)
    for name in ("prequential", "step_guard"):
        assert repr(result[name]) == repr(expected[name])  # NaN is not equal to itself.
    assert (found is None) == (weights is None)
    assert found is None or same(found, weights)


@given(parts=st.lists(st.tuples(st.integers(1, 9), st.floats(-5, 5)), min_size=1, max_size=20), window=st.integers(2, 50))
def test_a_faded_mean_is_the_sum_of_weights(parts: list[tuple[int, float]], window: int) -> None:
    mean, later = FadedMean(window), 0
    total = weight = 0.0
    for num, added in parts:
        mean.add(num, added)
    for num, added in reversed(parts):
        kept = (1 - 1 / window) ** later
        total, weight, later = total + added * kept, weight + num * kept, later + num
    assert mean.value == pytest.approx(total / weight, abs=1e-9)
    assert FadedMean(window, mean.state()).value == mean.value
    assert not mean.is_jump(mean.value, 1.5)
    assert mean.is_jump(mean.value + abs(mean.value) + 1e-6, 2.0)
