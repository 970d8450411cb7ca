"""The evaluation loop: one forward pass per sample, metrics equal to separate evaluations of each interval, and notes if samples are missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from modyn.errors import CancelledError, ConfigError, InvalidArgumentError, ModynError, NotFoundError, UserCodeError
from modyn.evaluator.config import EvaluationDatasetConfig, load_dataset
from modyn.evaluator.evaluate import EvaluationInput, _evaluating, evaluate, members
from modyn.evaluator.outputs import KeptOutputs, OutputCache
from modyn.evaluator.records import InIntervals, Score
from modyn.evaluator.samples import union
from modyn.records import Interval, SampleBatch
from modyn.testing.fake_storage import FakeStorage

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

SECTION: dict[str, Any] = {
    "dataset_id": "test",
    "record_layout": {"dtype": "int64"},
    "batch_size": 4,
    "metrics": [{"name": "Accuracy"}],
}
INTERVALS = st.lists(
    st.builds(lambda a, b: Interval(min(a, b), max(a, b)), st.integers(-3, 25), st.integers(-3, 25)), max_size=6, unique=True
)


class Counting(nn.Module):
    """Predicts class 1 for payloads divisible by 3, otherwise 0; records every sample that passes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.seen += data.reshape(-1).tolist()
        right = (data.reshape(-1) % 3 == 0).float()
        return torch.stack([1 - right, right], 1)


@pytest.fixture(autouse=True)
def tidy() -> Any:
    torch.set_num_threads(1)
    yield
    assert not [t.name for t in threading.enumerate() if t.name.startswith(("prefetch", "decode"))]


def storage(timestamps: list[int], deleted: tuple[int, ...] = ()) -> FakeStorage:
    """Sample k has payload int64 k and label k % 2."""
    fake = FakeStorage()
    fake.add_dataset("test")
    keys = range(len(timestamps))
    fake.add_samples("test", timestamps, [k % 2 for k in keys], [np.int64(k).tobytes() for k in keys])
    fake.client().delete_samples("test", np.array(deleted, np.int64))
    return fake


def scores(fake: FakeStorage, intervals: list[Interval], model: nn.Module | None = None, **changes: Any) -> list[Score]:
    return evaluate_on(fake, model or Counting(), load_dataset(SECTION | changes), intervals)


def evaluate_on(
    fake: FakeStorage, model: nn.Module, dataset: EvaluationDatasetConfig, intervals: list[Interval], **options: Any
) -> list[Score]:
    return evaluate(model, EvaluationInput(dataset, InIntervals(intervals), fake.client(), fake.payload_client(), **options))


@given(INTERVALS, st.lists(st.integers(-4, 26), max_size=30))
def test_union_holds_the_same_times(intervals: list[Interval], times: list[int]) -> None:
    merged = union(intervals)
    assert all(a.end < b.start for a, b in pairwise(merged))
    assert all(i.start < i.end for i in merged)
    for time in times:
        assert (time in _Any(intervals)) == (time in _Any(merged))
    found = {(n, p) for n, inside in members(intervals, np.array(times, np.int64)) for p in inside.tolist()}
    assert found == {(n, p) for n, i in enumerate(intervals) for p, t in enumerate(times) if t in i}


class _Any:
    def __init__(self, intervals: list[Interval]) -> None:
        self.intervals = intervals

    def __contains__(self, time: int) -> bool:
        return any(time in interval for interval in self.intervals)


@given(
    timestamps=st.lists(st.integers(0, 20), max_size=25),
    intervals=INTERVALS,
    batch_size=st.integers(1, 9),
    workers=st.integers(1, 3),
    deleted=st.sets(st.integers(0, 24), max_size=4),
)
def test_overlapping_intervals_pass_each_sample_once_and_score_as_if_alone(
    timestamps: list[int], intervals: list[Interval], batch_size: int, *, workers: int, deleted: set[int]
) -> None:
    gone = tuple(sorted(k for k in deleted if k < len(timestamps)))
    fake, model = storage(timestamps, gone), Counting()
    found = scores(fake, intervals, model, batch_size=batch_size, dataloader_workers=workers)
    left = [k for k in range(len(timestamps)) if k not in gone]
    assert sorted(model.seen) == [k for k in left if timestamps[k] in _Any(intervals)]
    assert [score.interval for score in found] == intervals
    for score in found:
        keys = [k for k in left if timestamps[k] in score.interval]
        right = sum((k % 3 == 0) == (k % 2) for k in keys)
        assert score.num_samples == score.num_listed == len(keys)
        assert score.value == (pytest.approx(right / len(keys)) if keys else None)
        assert bool(score.note) == (not keys)


def test_a_key_that_is_listed_twice_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(inputs: EvaluationInput) -> Iterator[SampleBatch]:
        yield from 2 * [SampleBatch(np.array([1, 2]), np.array([1, 2]), np.array([1, 0]))]

    monkeypatch.setattr(EvaluationInput, "list_samples", twice)
    with pytest.raises(ModynError, match="storage returned key 1, which was not requested, or listed it twice"):
        scores(storage([0, 1, 2]), [Interval()])


def test_infinite_bounds_and_an_empty_interval() -> None:
    everything, nothing = scores(storage([5, 6, 7]), [Interval(), Interval(50, 60)])
    assert everything.num_samples == 3
    assert everything.value == pytest.approx(1 / 3)
    assert (nothing.value, nothing.note) == (None, "undefined: the interval has no samples")


def test_samples_deleted_meanwhile_are_told() -> None:
    fake = storage(list(range(10)))

    def before_fetch(_: object) -> None:
        fake.before_fetch = None
        fake.client().delete_samples("test", np.array([2, 3, 4]))

    fake.before_fetch = before_fetch
    first, second = scores(fake, [Interval(0, 5), Interval(4, 10)])
    assert (first.num_samples, first.num_listed) == (2, 5)
    assert first.note == "3 of 5 samples were not evaluated: deleted meanwhile, or left out by on_bad_sample"
    assert (second.num_samples, second.note) == (
        5,
        "1 of 6 samples were not evaluated: deleted meanwhile, or left out by on_bad_sample",
    )


def test_the_intervals_of_an_evaluation_share_the_bound_of_a_metric_that_keeps_all() -> None:
    """Each interval holds eight samples of 24 bytes."""
    curve = {"name": "AUROC", "config": {"task": "multiclass", "num_classes": 2}, "max_bytes": 8 * 16 + 8 * 8}
    fake = storage(list(range(16)))
    assert len(scores(fake, [Interval(0, 8)], metrics=[curve])) == 1
    with pytest.raises(InvalidArgumentError, match="max_bytes is 192"):
        scores(fake, [Interval(0, 8), Interval(8, 16)], metrics=[curve])


def test_many_samples_over_several_listings() -> None:
    model = Counting()
    dataset = load_dataset(SECTION | {"batch_size": 16, "dataloader_workers": 3})
    times = np.random.default_rng(0).integers(0, 100, 300).tolist()
    fake = storage(times, (3, 50))
    intervals = [Interval(0, 40), Interval(20, 60), Interval(80, 90)]
    found = evaluate_on(fake, model, dataset, intervals, keys_per_listing=7)
    assert len(model.seen) == len(set(model.seen)) == sum(t < 60 or 80 <= t < 90 for k, t in enumerate(times) if k not in (3, 50))
    assert [s.num_samples for s in found] == [
        sum(a <= t < b for k, t in enumerate(times) if k not in (3, 50)) for a, b in [(0, 40), (20, 60), (80, 90)]
    ]


def test_each_metric_sees_the_output_through_its_own_transformer() -> None:
    flip = "def evaluation_transformer_function(model_output):\n    return 1 - model_output\n"
    metrics = [
        {"name": "Accuracy"},
        {"name": "Accuracy", "label": "flipped", "evaluation_transformer_function": flip},
        {"name": "F1Score", "num_classes": 2, "evaluation_transformer_function": flip},
    ]
    plain, flipped, f1 = scores(storage(list(range(12))), [Interval(0, 12)], metrics=metrics)
    assert (plain.metric, flipped.metric, f1.metric) == ("Accuracy", "flipped", "F1Score")
    assert plain.value is not None
    assert flipped.value == pytest.approx(1 - plain.value)


def test_random_transformations_are_left_out_and_others_are_repeatable() -> None:
    model = Counting()
    scores(storage([1, 2, 3]), [Interval()], model, random_transformations=["lambda x: x + 100"])
    assert sorted(model.seen) == [0, 1, 2]
    drawing = {"transformations": ["lambda x: torch.randint(0, 1000, (1,))"]}
    first, second = Counting(), Counting()
    scores(storage([1, 2, 3]), [Interval()], first, **drawing)
    scores(storage([1, 2, 3]), [Interval()], second, **drawing)
    assert first.seen == second.seen


def test_the_model_is_in_evaluation_mode_without_gradients() -> None:
    class Checking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.train()

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            assert not self.training
            out = data.reshape(-1, 1).float() * self.weight
            assert not out.requires_grad
            return torch.cat([out, -out], 1)

    assert scores(storage([1, 2]), [Interval()], Checking())[0].num_samples == 2


def test_inputs_by_position_and_by_name() -> None:
    class Two(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.stack([a, b], 1)

    by_name = "def bytes_parser_function(x):\n    return {'b': torch.tensor(0.0), 'a': torch.tensor(1.0)}\n"
    by_position = "def bytes_parser_function(x):\n    return torch.tensor(1.0), torch.tensor(0.0)\n"
    for source in (by_name, by_position):
        (score,) = scores(storage([1, 2, 3]), [Interval()], Two(), record_layout=None, bytes_parser_function=source)
        assert score.value == pytest.approx(2 / 3)


def test_errors_name_what_failed() -> None:
    with pytest.raises(UserCodeError, match="one row for each sample: the model returned a tensor of shape"):
        scores(storage([1, 2, 3]), [Interval()], nn.Flatten(0), batch_size=2, record_layout={"dtype": "int32", "shape": [2]})
    broken = [
        {"name": "Accuracy", "evaluation_transformer_function": "def evaluation_transformer_function(o):\n    return o.x\n"}
    ]
    with pytest.raises(
        UserCodeError, match=r"evaluation_transformer_function failed for the model's output for 3 samples .* at line 2"
    ):
        scores(storage([1, 2, 3]), [Interval()], metrics=broken)
    with pytest.raises(NotFoundError, match="no dataset 'other'"):
        scores(storage([1]), [Interval()], dataset_id="other")


def test_a_device_that_is_not_there() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    fake = storage([1])
    dataset = EvaluationDatasetConfig.model_validate(SECTION)
    with pytest.raises(ConfigError, match="finds no CUDA device"):
        evaluate_on(fake, Counting(), dataset, [Interval()], device="cuda:0")


@pytest.mark.gpu
def test_an_evaluation_on_a_gpu_has_the_same_scores() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    fake = FakeStorage()
    fake.add_dataset("test")
    rows = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    fake.add_samples("test", list(range(100)), [k % 2 for k in range(100)], [row.tobytes() for row in rows])
    metrics: list[dict[str, Any]] = [{"name": "Accuracy"}, {"name": "F1Score", "num_classes": 2}, {"name": "RocAuc"}]
    metrics.append({"name": "CohenKappa", "config": {"task": "multiclass", "num_classes": 2}})
    layout = {"dtype": "float32", "shape": [4]}
    dataset = load_dataset({**SECTION, "record_layout": layout, "batch_size": 7, "metrics": metrics})
    intervals = [Interval(0, 50), Interval(30, 90)]
    on_cpu, on_gpu = (evaluate_on(fake, model, dataset, intervals, device=device) for device in ("cpu", "cuda:0"))
    assert [(score.metric, score.num_samples) for score in on_gpu] == [(score.metric, score.num_samples) for score in on_cpu]
    assert [score.value for score in on_gpu] == pytest.approx([score.value for score in on_cpu], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(("device", "chosen"), [("cuda:1", [1]), ("cpu", [])])
def test_the_gpu_of_an_evaluation_is_the_one_of_its_process(
    monkeypatch: pytest.MonkeyPatch, device: str, chosen: list[int]
) -> None:
    found: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    model = Counting()
    monkeypatch.setattr(model, "to", lambda device: model)
    with _evaluating(model, device):
        assert found == chosen


def test_progress_is_told_and_can_end_it() -> None:
    told: list[tuple[int, int]] = []
    fake = storage(list(range(10)))
    dataset = load_dataset(SECTION)
    evaluate_on(fake, Counting(), dataset, [Interval(0, 9)], progress=lambda *m: told.append(m))
    assert told == [(4, 9), (8, 9), (9, 9)]

    def stop(seen: int, total: int) -> None:
        raise CancelledError("stopped on request")

    with pytest.raises(CancelledError):
        evaluate_on(fake, Counting(), dataset, [Interval()], progress=stop)


def kept_in(folder: Path, limit: int = 2**20) -> KeptOutputs:
    """Give the kept outputs of a model as a job finds them at its start."""
    room = OutputCache(folder / "outputs", limit)
    room.prepare()
    return KeptOutputs(room, "model", Path(mkdtemp(dir=folder)))


@given(
    timestamps=st.lists(st.integers(0, 20), max_size=25),
    requests=st.lists(INTERVALS, max_size=4),
    batch_size=st.integers(1, 9),
    deleted=st.sets(st.integers(0, 24), max_size=4),
)
def test_one_forward_pass_a_sample_over_all_requests(
    tmp_path_factory: pytest.TempPathFactory,
    timestamps: list[int],
    requests: list[list[Interval]],
    batch_size: int,
    deleted: set[int],
) -> None:
    folder = tmp_path_factory.mktemp("kept")
    fake, model = storage(timestamps), Counting()
    dataset = load_dataset(SECTION | {"batch_size": batch_size})
    gone = [k for k in deleted if k < len(timestamps)]
    for number, intervals in enumerate(requests):
        if number == 2:
            fake.client().delete_samples("test", np.array(gone, np.int64))
        found = evaluate_on(fake, model, dataset, intervals, kept=kept_in(folder))
        assert found == evaluate_on(fake, Counting(), dataset, intervals)
    asked = [
        {k for k, t in enumerate(timestamps) if t in _Any(intervals) and not (number >= 2 and k in gone)}
        for number, intervals in enumerate(requests)
    ]
    assert sorted(model.seen) == sorted(set().union(*asked))


def test_kept_outputs_of_samples_deleted_meanwhile_are_told(tmp_path: Path) -> None:
    fake, dataset, model = storage(list(range(10))), load_dataset(SECTION), Counting()
    evaluate_on(fake, model, dataset, [Interval(0, 6)], kept=kept_in(tmp_path))

    def before_fetch(_: object) -> None:
        fake.before_fetch = None
        fake.client().delete_samples("test", np.array([2, 3, 8]))

    fake.before_fetch = before_fetch
    (score,) = evaluate_on(fake, model, dataset, [Interval()], kept=kept_in(tmp_path))
    assert (score.num_samples, score.num_listed) == (7, 10)
    assert sorted(model.seen) == [0, 1, 2, 3, 4, 5, 6, 7, 9]


def test_an_evaluation_that_fails_or_gives_no_plain_tensor_keeps_nothing(tmp_path: Path) -> None:
    class Named(Counting):
        def forward(self, data: torch.Tensor) -> Any:
            return {"scores": super().forward(data)}

    def stop(seen: int, total: int) -> None:
        raise CancelledError("stopped on request")

    fake = storage(list(range(10)))
    with pytest.raises(CancelledError):
        evaluate_on(fake, Counting(), load_dataset(SECTION), [Interval()], kept=kept_in(tmp_path), progress=stop)
    pick = "def evaluation_transformer_function(model_output):\n    return model_output['scores']\n"
    dataset = load_dataset(SECTION | {"metrics": [{"name": "Accuracy", "evaluation_transformer_function": pick}]})
    model = Named()
    for _ in range(2):
        kept = kept_in(tmp_path)
        assert not kept
        evaluate_on(fake, model, dataset, [Interval()], kept=kept)
    assert len(model.seen) == 20
