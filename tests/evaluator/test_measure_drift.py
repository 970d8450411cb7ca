"""Drift between two windows of a run's stream: for the right samples, each passed once through the model, with the values of the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from modyn.config.base import load_section
from modyn.config.policy import load_policy
from modyn.config.trigger_parts import ComparedData
from modyn.errors import CancelledError, ConfigError, DataError, UserCodeError
from modyn.evaluator.config import DriftDataConfig
from modyn.evaluator.drawn_samples import DrawnSamples, drawn_indices, hashes
from modyn.evaluator.drift import DRIFT_METRICS, Drift, DriftMetric, compare, missing_modules
from modyn.evaluator.drift.kept_sums import KeptSums
from modyn.evaluator.drift.means import MeanDistanceDriftMetric
from modyn.evaluator.evaluate import EvaluationInput
from modyn.evaluator.kept_values import KeptValues
from modyn.evaluator.measure_drift import DriftMemory, measure_within
from modyn.evaluator.records import AtPositions, DriftQuestion, DriftRequest, MeasuredDrift, WindowPair
from modyn.evaluator.session_model import SessionModel
from modyn.evaluator.versions import DataVersion
from modyn.records import Interval, LabelArray, RunId, RunRegistration, SampleBatch, StreamWindow
from modyn.selector.client import SelectorClient
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.fake_storage import FakeStorage
from tests.support.plugins import installed

RUN = RunId("numbers-0001")
SECTION: dict[str, Any] = {"dataset_id": "test", "record_layout": {"dtype": "int64", "shape": [2]}, "batch_size": 4}
MEAN = {"mean": {"id": "MeanDistanceDriftMetric"}}


class Net(nn.Module):
    """A model. For the sample (k, k²), the embedding is (k, k², 7), and the logits are (k, 2k)."""

    def __init__(self, broken: float | None = None) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.broken = broken
        self.last_layer = nn.Linear(3, 2, bias=False)
        with torch.no_grad():
            self.last_layer.weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]]))

    def embedding(self, data: torch.Tensor) -> torch.Tensor:
        self.seen += data[:, 0].tolist()
        return torch.cat([data.float(), torch.full((len(data), 1), self.broken or 7.0)], 1)

    def forward(self, data: torch.Tensor) -> Any:
        return self.last_layer(self.embedding(data))


class Place:
    """Sample k has payload (k, k²), label k % 3 unless labels are given, and position n - 1 - k in the stream of the run."""

    def __init__(self, timestamps: list[int], model: nn.Module | None = None, labels: LabelArray | None = None) -> None:
        self.storage = FakeStorage()
        self.storage.add_dataset("test")
        keys = range(len(timestamps))
        payloads = [np.array([k, k * k], np.int64).tobytes() for k in keys]
        self.storage.add_samples("test", timestamps, [k % 3 for k in keys], payloads)
        self.identity = self.storage.client().dataset("test").identity
        self.selector = FakeSelectorClient()
        strategy = {"name": "NewDataStrategy", "maximum_keys_in_memory": 100, "tail_triggers": 0}
        self.selector.register_run(RunRegistration(RUN, "test", strategy, 1, dataset_identity=self.identity))
        order = np.array(keys[::-1], np.int64)
        self.selector.inform(
            RUN, 0, SampleBatch(order, np.array(timestamps, np.int64)[order], order % 3 if labels is None else labels[order])
        )
        self.memory = DriftMemory(KeptValues(), SessionModel(1, "abc", model or Net()))

    def ask(self, reference: StreamWindow, current: StreamWindow, **options: Any) -> MeasuredDrift:
        progress = options.pop("progress", lambda seen, total: None)
        pairs, limit = options.pop("pairs", ()), options.pop("limit", 2**30)
        asked: dict[str, Any] = {"metrics": MEAN, "model_id": 3} | options
        question = DriftQuestion(reference, current, **asked)
        inputs = EvaluationInput(
            load_section(DriftDataConfig, SECTION, "data"),
            AtPositions(RUN, []),
            self.storage.client(),
            self.storage.payload_client(),
            identity=self.identity,
            keys_per_listing=5,
            progress=progress,
            selector=cast("SelectorClient", self.selector),
        )
        request = DriftRequest(RUN, SECTION, question, pairs=pairs)
        self.answers = measure_within(limit, request, DataVersion(self.identity, "decoding"), inputs, self.memory)
        return self.answers[0]


def values(data: ComparedData, keys: list[int]) -> torch.Tensor:
    rows: dict[ComparedData, Callable[[int], Any]] = {
        ComparedData.EMBEDDINGS: lambda k: [k, k * k, 7],
        ComparedData.PREDICTIONS: lambda k: torch.tensor([k, 2.0 * k]).softmax(0).tolist(),
        ComparedData.PAYLOAD: lambda k: [k, k * k],
        ComparedData.LABELS: lambda k: [k % 3],
    }
    return torch.tensor([rows[data](k) for k in sorted(keys)], dtype=torch.float32)


TIMES = st.one_of(
    st.just(Interval()), st.builds(lambda a, b: Interval(min(a, b), max(a, b)), st.integers(0, 20), st.integers(0, 20))
)


@given(
    timestamps=st.lists(st.integers(0, 20), min_size=1, max_size=25),
    deleted=st.sets(st.integers(0, 24), max_size=4),
    size=st.none() | st.integers(1, 10),
    kind=st.sampled_from(ComparedData),
    data=st.data(),
)
def test_the_samples_of_both_windows_are_compared_and_each_is_passed_once(
    timestamps: list[int], deleted: set[int], *, size: int | None, kind: ComparedData, data: st.DataObject
) -> None:
    n, net = len(timestamps), Net()
    place = Place(timestamps, net)
    place.storage.client().delete_samples("test", np.array(sorted(k for k in deleted if k < n), np.int64))
    positions, made = st.integers(0, n), set[int]()
    windows = st.builds(lambda a, b, times: StreamWindow(min(a, b), max(a, b), times), positions, positions, TIMES)
    for _ in range(3):
        keys: list[list[int]] = []
        both = data.draw(st.tuples(windows, windows))
        for window in both:
            inside = [n - 1 - p for p in range(window.start, window.stop)]
            inside = [k for k in inside if k not in deleted and timestamps[k] in window.times]
            inside.sort(key=lambda k: int(hashes(np.array([k]), 9)[0]))
            keys.append(inside[:size])
        found = place.ask(*both, data=kind, sample_size=size, seed=9)
        assert (found.num_reference, found.num_current) == (len(keys[0]), len(keys[1]))
        if not keys[0] or not keys[1]:
            assert (found.distances, found.num_embedded) == ({}, 0)
            continue
        new = {k for drawn_keys in keys for k in drawn_keys} - made if kind is not ComparedData.LABELS else set()
        made |= new
        assert found.num_embedded == len(new)
        expected = compare(metric("MeanDistanceDriftMetric"), values(kind, keys[0]), values(kind, keys[1]))
        assert found.distances["mean"].distance == pytest.approx(expected.distance, abs=1e-5)
        assert sorted(net.seen) == (sorted(made) if kind.needs_model else [])


def metric(id_: str, **options: Any) -> DriftMetric:
    kind: Any
    kind, config = load_policy(DRIFT_METRICS, {"id": id_, **options}, "id", "metric")
    made: DriftMetric = kind(config, 0)
    return made


def test_every_metric_measures_what_it_measures_alone_and_says_how_long_it_took() -> None:
    place = Place(list(range(48)))
    installed_here = [id_ for id_ in DRIFT_METRICS if not missing_modules(DRIFT_METRICS.get(id_))]
    sections = {id_: {"id": id_} for id_ in installed_here}
    reference, current = StreamWindow(24, 48), StreamWindow(0, 24)
    for kind in ComparedData:
        found = place.ask(reference, current, data=kind, metrics=sections)
        # Payloads are all different, so that no category has enough samples.
        assert list(found.distances) == [
            id_ for id_ in installed_here if kind is not ComparedData.PAYLOAD or not DRIFT_METRICS.get(id_).by_category
        ]
        for id_, measured in found.distances.items():
            expected = compare(metric(id_), values(kind, list(range(24))), values(kind, list(range(24, 48))))
            assert measured.distance == pytest.approx(expected.distance, rel=1e-4, abs=1e-6)
            assert measured.seconds > 0
        for id_ in list(found.distances)[list(ComparedData).index(kind) % 2 :: 2]:  # the next kind of data takes the others
            alone = place.ask(reference, current, data=kind, metrics={id_: {"id": id_}}).distances[id_]
            assert (alone.distance, alone.p_value) == (found.distances[id_].distance, found.distances[id_].p_value)


def test_labels_that_are_not_classes_are_not_counted_as_classes() -> None:
    place = Place(list(range(80)), labels=np.arange(80) / 4)
    asked: dict[str, Any] = {"reference": StreamWindow(0, 40), "current": StreamWindow(40, 80), "data": ComparedData.LABELS}
    with pytest.raises(
        DataError, match=r"'chi' compares labels as classes, and 60 of 80 are not whole numbers, such as .*25: .* KSDriftMetric"
    ):
        place.ask(**asked, metrics={"chi": {"id": "ChiSquaredDriftMetric"}})
    assert place.ask(**asked, metrics={"ks": {"id": "KSDriftMetric"}}).distances["ks"].distance == 1


def test_a_question_with_too_few_samples_has_no_answer_and_passes_none() -> None:
    place = Place([1, 2, 3])
    found = place.ask(StreamWindow(0, 2), StreamWindow(2, 3), metrics={"mmd": {"id": "MMDDriftMetric"}})
    assert found == MeasuredDrift({}, 2, 1)


def test_each_metric_is_measured_that_has_enough_samples() -> None:
    ids = ("MeanDistanceDriftMetric", "MMDDriftMetric", "DomainClassifierDriftMetric")
    asked = {id_: {"id": id_} for id_ in ids}
    place = Place(list(range(24)))
    for size, number in ((1, 1), (2, 2), (9, 2), (10, 3)):
        found = place.ask(StreamWindow(0, 12), StreamWindow(24 - size, 24), metrics=asked)
        assert tuple(found.distances) == ids[:number], size


def test_a_projection_with_too_few_samples_to_learn_from_measures_nothing() -> None:
    place = Place(list(range(6)))
    projection = {"id": "PCAProjection", "num_components": 3}
    assert place.ask(StreamWindow(0, 2), StreamWindow(2, 6), projection=projection) == MeasuredDrift({}, 2, 4)
    assert place.ask(StreamWindow(0, 3), StreamWindow(3, 5), projection=projection).distances


def test_values_are_kept_by_model_and_by_what_is_taken() -> None:
    place, windows = Place(list(range(10))), (StreamWindow(0, 5), StreamWindow(5, 10))
    projection = {"id": "RandomProjection", "num_components": 2}
    changes: list[Mapping[str, Any]] = [
        {},
        {"data": ComparedData.PREDICTIONS},
        {"data": ComparedData.PAYLOAD},
        {"projection": projection},
        {"projection": projection, "seed": 1},
    ]
    for change in changes:
        assert [place.ask(*windows, **change).num_embedded for _ in range(2)] == [10, 0]
    assert place.ask(*windows, projection={"id": "PCAProjection", "num_components": 2}).num_embedded == 0
    place.memory.model = SessionModel(2, "def", Net())
    assert place.ask(*windows).num_embedded == 10
    place.memory.values.trim(0, 0)
    assert place.ask(*windows).num_embedded == 10


@pytest.mark.parametrize("id_", ["RandomProjection", "PCAProjection"])
@pytest.mark.parametrize("kind", [ComparedData.EMBEDDINGS, ComparedData.PAYLOAD])
def test_projected_samples_are_compared(id_: str, kind: ComparedData) -> None:
    place, windows = Place(list(range(30))), (StreamWindow(0, 15), StreamWindow(15, 30))
    asked: dict[str, Any] = {"data": kind, "projection": {"id": id_, "num_components": 2}}
    first, second = (place.ask(*windows, **asked).distances["mean"].distance for _ in range(2))
    assert first == second
    whole = place.ask(*windows, data=kind).distances["mean"].distance
    if id_ == "PCAProjection":  # the third value never changes
        assert first == pytest.approx(whole, rel=1e-4)
    with pytest.raises(ConfigError, match="num_components is 5, but samples have"):
        place.ask(*windows, data=kind, projection={"id": id_, "num_components": 5})


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_embeddings_that_are_not_finite_are_an_error(broken: float) -> None:
    said = "2 of 2 reference samples have embeddings that are not finite .* model 3 has diverged: lower its learning rate"
    with pytest.raises(DataError, match=said):
        Place([1, 2, 3], Net(broken)).ask(StreamWindow(0, 2), StreamWindow(1, 3))


def test_a_model_without_embedding_is_an_error_that_says_so() -> None:
    place, windows = Place([1, 2, 3], Doubled()), (StreamWindow(0, 2), StreamWindow(1, 3))
    with pytest.raises(ConfigError, match="Doubled has no embedding"):
        place.ask(*windows, data=ComparedData.EMBEDDINGS)
    for kind in (ComparedData.PREDICTIONS, ComparedData.PAYLOAD, ComparedData.LABELS):
        assert place.ask(*windows, data=kind).distances, kind


class Doubled(nn.Module):
    """A classifier without nn.Linear."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return 2 * data.float()


def test_a_metric_that_cannot_be_built_is_an_error_that_names_it(tmp_path: Path) -> None:
    source = """
from modyn.config.base import Section
from modyn.evaluator.drift import DriftMetric

class Unfinished(DriftMetric):
    Config = Section
"""
    with (
        installed(tmp_path / "plugin", DRIFT_METRICS, "UnfinishedMetric", source, "Unfinished"),
        pytest.raises(UserCodeError, match=r"drift metric 'far' \(Unfinished\) cannot be built: TypeError: .*compare"),
    ):
        Place([1, 2, 3]).ask(StreamWindow(0, 2), StreamWindow(1, 3), metrics={"far": {"id": "UnfinishedMetric"}})


def test_a_metric_that_raises_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: DriftMetric, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        raise ZeroDivisionError("no variance")

    monkeypatch.setattr(MeanDistanceDriftMetric, "compare", failing)
    with pytest.raises(
        UserCodeError, match=r"drift metric 'mean' \(MeanDistanceDriftMetric\) raised ZeroDivisionError: no variance"
    ):
        Place([1, 2, 3]).ask(StreamWindow(0, 2), StreamWindow(1, 3))


def test_a_cancelled_question_keeps_what_was_made() -> None:
    place, windows = Place(list(range(20))), (StreamWindow(0, 10), StreamWindow(10, 20))

    def stop(seen: int, total: int) -> None:
        if seen >= 8:
            raise CancelledError("stopped")

    with pytest.raises(CancelledError):
        place.ask(*windows, progress=stop)
    assert place.ask(*windows).num_embedded == 12


@given(
    keys=st.lists(st.integers(0, 2**63 - 1), max_size=60, unique=True),
    size=st.integers(1, 70),
    seed=st.integers(-(2**63), 2**63 - 1),
    data=st.data(),
)
def test_what_a_window_draws_each_part_of_it_draws(keys: list[int], size: int, seed: int, data: st.DataObject) -> None:
    def draw(of: list[int]) -> list[int]:
        array = np.array(of, np.int64)
        found = DrawnSamples(array, array // 3, array % 5).drawn(size, seed)
        assert found.positions.tolist() == [k // 3 for k in found.keys.tolist()]
        assert found.labels.tolist() == [k % 5 for k in found.keys.tolist()]
        return [int(key) for key in found.keys]

    whole, part = draw(keys), data.draw(st.lists(st.sampled_from(keys), unique=True)) if keys else []
    assert len(whole) == min(size, len(keys))
    assert whole == draw(data.draw(st.permutations(keys))) == sorted(whole)
    assert set(whole) & set(part) <= set(draw(part))


def test_a_sliding_window_keeps_most_of_what_it_draws_and_draws_evenly() -> None:
    keys = np.arange(11_000)
    first, second = (k[drawn_indices(k, 1000, 5)] for k in (keys[:10_000], keys[1000:]))
    assert len(np.intersect1d(first, second)) > 800
    assert np.histogram(first, 10, (0, 10_000))[0].min() > 60
    assert len(np.unique(hashes(keys, 5))) == len(keys)
    other = keys[drawn_indices(keys, 1000, 6)]
    assert len(np.intersect1d(first, other)) < 200


def test_requests_are_told_apart_in_messages() -> None:
    asked = DriftQuestion(StreamWindow(0, 10), StreamWindow(10, 20, Interval(5, 9)), MEAN, model_id=4)
    assert str(DriftRequest(RUN, SECTION, asked)) == (
        "drift of embeddings of run numbers-0001, model 4, reference [0, 10), current [10, 20) at times [5, 9)"
    )
    without = replace(asked, data=ComparedData.LABELS, model_id=None)
    assert ", model" not in str(DriftRequest(RUN, SECTION, without))


MEASURED_BY_SUMS = {
    "median": {"id": "MMDDriftMetric"},
    "given": {"id": "MMDDriftMetric", "bandwidth": 900.0},
    "energy": {"id": "EnergyDriftMetric"},
    "ks": {"id": "KSDriftMetric"},
}


class Scattered(Net):
    """Embeddings that depend on the key and are neither equal nor in order."""

    def embedding(self, data: torch.Tensor) -> torch.Tensor:
        self.seen += data[:, 0].tolist()
        numbers = data[:, :1].double()
        return torch.cat([(numbers * 12.9898).sin(), (numbers * 78.233).cos(), numbers / 700], 1).float()


def pairs_of(*numbers: tuple[int, int, int, int]) -> tuple[WindowPair, ...]:
    return tuple(WindowPair(StreamWindow(a, b), StreamWindow(c, d)) for a, b, c, d in numbers)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (ComparedData.EMBEDDINGS, None),
        (ComparedData.PAYLOAD, 300),
        *(
            pytest.param(kind, size, marks=pytest.mark.slow)
            for kind, size in [
                (ComparedData.PREDICTIONS, 300),
                (ComparedData.LABELS, None),
                (ComparedData.EMBEDDINGS, 300),
                (ComparedData.PREDICTIONS, None),
                (ComparedData.PAYLOAD, None),
                (ComparedData.LABELS, 300),
            ]
        ),
    ],
)
def test_pairs_that_are_asked_together_have_the_numbers_of_each_alone(kind: ComparedData, size: int | None) -> None:
    """The numbers are equal to the last bit: a simulation asks for pairs together, and a run asks for one pair after the other."""
    place = Place(list(range(1400)), Scattered())
    pairs = pairs_of(*((t - 500, t, max(t, end - 500), end) for end in (900, 1400) for t in (500, 600, 850)))
    options: dict[str, Any] = {"data": kind, "sample_size": size, "metrics": MEASURED_BY_SUMS}
    place.ask(pairs[0].reference, pairs[0].current, pairs=pairs, **options)
    together, asked = place.answers, 0
    for pair, found in zip(pairs, together, strict=True):
        alone = Place(list(range(1400)), Scattered()).ask(pair.reference, pair.current, **options)
        asked += found.num_embedded
        assert (found.num_reference, found.num_current) == (alone.num_reference, alone.num_current)
        for name in MEASURED_BY_SUMS:
            assert found.distances[name].distance == alone.distances[name].distance
    net = cast("Scattered", place.memory.model and place.memory.model.network)
    assert len(net.seen) == len(set(net.seen)) == (asked if kind.needs_model else 0)


def test_a_model_whose_outputs_are_broken_in_a_part_is_said_as_before() -> None:
    class BrokenLater(Scattered):
        def embedding(self, data: torch.Tensor) -> torch.Tensor:
            values = super().embedding(data)
            values[data[:, 0] == 3] = float("nan")
            return values

    place = Place(list(range(1000)), BrokenLater())
    metrics = {"mmd": {"id": "MMDDriftMetric"}}
    assert place.ask(StreamWindow(0, 400), StreamWindow(400, 900), metrics=metrics).distances
    with pytest.raises(DataError, match="1 of 500 current samples have embeddings that are not finite"):
        place.ask(StreamWindow(0, 400), StreamWindow(500, 1000), metrics=metrics)


@pytest.mark.slow
def test_hundreds_of_models_leave_as_much_in_a_session_as_some() -> None:
    """Values within their limit, few tables of those that are not asked for any more, and sums within theirs."""
    place, limit, sizes = Place(list(range(60))), 20 * 60 * 3 * 4, []
    place.memory.sums = KeptSums(limit=40)
    place.memory.values = KeptValues(recent=50)
    for model in range(400):
        place.memory.model = SessionModel(model, f"weights {model}", Net())
        for current in (StreamWindow(20, 40), StreamWindow(30, 60)):
            metrics = {"mmd": {"id": "MMDDriftMetric"}, "energy": {"id": "EnergyDriftMetric"}}
            assert place.ask(StreamWindow(0, 20), current, metrics=metrics, model_id=model, limit=limit).distances
        values = place.memory.values
        assert values.num_bytes <= limit
        sizes.append((values.num_bytes, len(values), len(place.memory.sums)))
    assert max(sizes[-100:]) <= max(sizes[50:150]), "what the first hundred leave, the last hundred do"
    assert max(number for _, number, _ in sizes) <= 21
    assert max(number for _, _, number in sizes) <= 80
