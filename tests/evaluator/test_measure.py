"""Passes of a model over samples given by intervals, keys or positions: scores, logits and embeddings, each sample once."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import ConfigError, InvalidArgumentError, NotFoundError
from modyn.evaluator.config import load_dataset
from modyn.evaluator.evaluate import EvaluationInput, evaluate, measure
from modyn.evaluator.outputs import KeptOutputs, OutputCache
from modyn.evaluator.records import AtPositions, InIntervals, MeasureRequest, OfKeys, OutputKind, Rows, SampleSource, Score
from modyn.evaluator.wire import measure_request_from_proto, measure_request_to_proto, part_from_proto, parts_to_proto
from modyn.records import Interval, RunId, RunRegistration, SampleBatch, StreamWindow
from modyn.selector.client import SelectorClient
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.fake_storage import FakeStorage

RUN = RunId("numbers-0001")
SECTION: dict[str, Any] = {
    "dataset_id": "test",
    "record_layout": {"dtype": "int64"},
    "batch_size": 4,
    "metrics": [{"name": "Accuracy"}],
}
POINTS = st.integers(-3, 25)
INTERVALS = st.lists(st.builds(lambda a, b: Interval(min(a, b), max(a, b)), POINTS, POINTS), max_size=4, unique=True)
TIMES = st.one_of(st.just(Interval()), st.builds(lambda a, b: Interval(min(a, b), max(a, b)), POINTS, POINTS))
ARRAYS = ["<i8", "<f4", "<f8", "<f2", "|b1"]


def accepting(max_bytes: int) -> Endpoint:
    return Endpoint(address="unix:/unused", max_message_bytes=max_bytes)


class Net(nn.Module):
    """A model. For the sample with payload k, the embedding is (k, k % 3), and the logits are (k, 2 (k % 3))."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.head = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))

    def forward(self, data: torch.Tensor) -> Any:
        numbers = data.reshape(-1)
        self.seen += numbers.tolist()
        found: torch.Tensor = self.head(torch.stack([numbers, numbers % 3], 1).float())
        return found.softmax(1)


class Place:
    """Sample k has payload k, label k % 2 and position n - 1 - k in the stream of the run."""

    def __init__(self, timestamps: list[int], deleted: set[int]) -> None:
        self.storage = FakeStorage()
        self.storage.add_dataset("test")
        keys = range(len(timestamps))
        self.storage.add_samples("test", timestamps, [k % 2 for k in keys], [np.int64(k).tobytes() for k in keys])
        self.identity = self.storage.client().dataset("test").identity
        self.storage.client().delete_samples("test", np.array(sorted(deleted), np.int64))
        self.selector = FakeSelectorClient()
        strategy = {"name": "NewDataStrategy", "maximum_keys_in_memory": 100, "tail_triggers": 0}
        self.selector.register_run(RunRegistration(RUN, "test", strategy, 1, dataset_identity=self.identity))
        order = np.array(keys[::-1], np.int64)
        self.selector.inform(RUN, 0, SampleBatch(order, np.array(timestamps, np.int64)[order], order % 2))

    def inputs(self, source: SampleSource, kept: KeptOutputs | None = None, **options: Any) -> EvaluationInput:
        storage, selector = self.storage.client(), cast("SelectorClient", self.selector)
        dataset = load_dataset(SECTION)
        options = {"keys_per_listing": 5, "identity": self.identity, "selector": selector, "kept": kept, **options}
        return EvaluationInput(dataset, source, storage, self.storage.payload_client(), **options)


def rows_of(model: nn.Module, inputs: EvaluationInput, kind: OutputKind) -> Rows:
    nothing = np.empty(0, np.int64)
    return Rows.concatenate(list(measure(model, inputs, kind))) or Rows(nothing, nothing, nothing, nothing)


@given(
    timestamps=st.lists(st.integers(0, 20), min_size=1, max_size=25),
    deleted=st.sets(st.integers(0, 24), max_size=5),
    data=st.data(),
)
def test_each_sample_of_a_source_is_passed_once(
    tmp_path_factory: pytest.TempPathFactory, timestamps: list[int], deleted: set[int], data: st.DataObject
) -> None:
    n = len(timestamps)
    deleted = {k for k in deleted if k < n}
    place, model = Place(timestamps, deleted), Net()
    folder = tmp_path_factory.mktemp("kept")
    cache = OutputCache(folder / "outputs", 2**20)
    cache.prepare()
    passed: set[int] = set()
    kind = data.draw(st.sampled_from([OutputKind.LOGITS, OutputKind.EMBEDDINGS]))
    keys, positions = st.integers(0, n - 1), st.integers(0, n)
    for _ in range(2):
        source: SampleSource = data.draw(
            st.one_of(
                st.builds(InIntervals, INTERVALS),
                st.builds(lambda found: OfKeys(np.array(found, np.int64)), st.lists(keys, max_size=12)),
                st.builds(
                    lambda windows: AtPositions(RUN, windows),
                    st.lists(
                        st.builds(lambda a, b, times: StreamWindow(min(a, b), max(a, b), times), positions, positions, TIMES),
                        max_size=4,
                    ),
                ),
            )
        )
        match source:
            case InIntervals(intervals):
                expected = {k for k, t in enumerate(timestamps) if any(t in interval for interval in intervals)}
            case OfKeys(found):
                expected = set(found.tolist())
            case AtPositions(_, windows):
                expected = {
                    n - 1 - position
                    for window in windows
                    for position in range(window.start, window.stop)
                    if timestamps[n - 1 - position] in window.times
                }
        wanted = sorted(expected - deleted)
        kept = KeptOutputs(cache, "model", Path(mkdtemp(dir=folder)))
        rows = rows_of(model, place.inputs(source, kept), kind)
        assert rows.keys.tolist() == wanted
        assert rows.timestamps.tolist() == [timestamps[k] for k in wanted]
        assert rows.labels.tolist() == [k % 2 for k in wanted]
        factor = 2 if kind is OutputKind.LOGITS else 1
        assert rows.outputs.tolist() == [[k, factor * (k % 3)] for k in wanted]
        passed |= set(wanted)
        assert sorted(model.seen) == sorted(passed), "a sample whose output was kept is not passed again"
        if not isinstance(source, InIntervals):
            (score,) = evaluate(Net(), place.inputs(source))
            right = sum((k < 2 * (k % 3)) == k % 2 for k in wanted)
            assert (score.num_samples, score.num_listed) == (len(wanted), len(wanted))
            assert score.value == (pytest.approx(right / len(wanted)) if wanted else None)


def test_a_sample_that_there_is_not_is_refused() -> None:
    place = Place([1, 2, 3], set())
    with pytest.raises(NotFoundError):
        rows_of(Net(), place.inputs(OfKeys(np.array([1, 7]))), OutputKind.LOGITS)
    with pytest.raises(InvalidArgumentError, match="run numbers-0001 has 3 samples, but positions up to 5 were requested"):
        rows_of(Net(), place.inputs(AtPositions(RUN, [StreamWindow(0, 5)])), OutputKind.LOGITS)
    with pytest.raises(NotFoundError):
        rows_of(Net(), place.inputs(AtPositions(RunId("other-0001"), [StreamWindow(0, 1)])), OutputKind.LOGITS)


def test_outcomes_are_made_of_kept_logits(tmp_path: Path) -> None:
    place, model = Place([1, 2, 3, 4], set()), Net()
    cache = OutputCache(tmp_path / "outputs", 2**20)
    cache.prepare()
    for kind, keys in ((OutputKind.LOGITS, [1, 2]), (OutputKind.OUTCOMES, [0, 1, 2, 3])):
        kept = KeptOutputs(cache, "model", Path(mkdtemp(dir=tmp_path)))
        rows = rows_of(model, place.inputs(OfKeys(np.array(keys)), kept), kind)
    assert sorted(model.seen) == [0, 1, 2, 3]
    logits = np.array([[k, 2 * (k % 3)] for k in range(4)], np.float64)
    assert rows.outputs[:, 0].tolist() == [float(logits[k].argmax() != k % 2) for k in range(4)]
    assert np.allclose(rows.outputs[:, 1], [np.log(np.exp(logits[k]).sum()) - logits[k, k % 2] for k in range(4)], atol=1e-5)
    assert np.allclose(rows.outputs[:, 2], (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).max(1))


def test_keys_of_another_registration_are_refused() -> None:
    place = Place([1, 2, 3], set())
    place.storage.add_dataset("test")
    place.storage.add_samples("test", [1, 2, 3])
    for source in (OfKeys(np.array([1])), InIntervals([Interval()])):
        with pytest.raises(NotFoundError, match="another was registered under its name"):
            rows_of(Net(), place.inputs(source), OutputKind.EMBEDDINGS)
    now = place.storage.client().dataset("test").identity
    with pytest.raises(InvalidArgumentError, match="as it was registered then"):
        rows_of(Net(), place.inputs(AtPositions(RUN, [StreamWindow(0, 1)]), identity=now), OutputKind.EMBEDDINGS)


def test_a_model_without_a_last_layer_has_logits_and_no_embeddings() -> None:
    place, model = Place([1, 2, 3], set()), nn.Unflatten(0, (-1, 1))
    rows = rows_of(model, place.inputs(OfKeys(np.array([1]))), OutputKind.LOGITS)
    assert rows.outputs.shape[0] == 1
    with pytest.raises(ConfigError, match="Unflatten has no embedding"):
        rows_of(model, place.inputs(OfKeys(np.array([1]))), OutputKind.EMBEDDINGS)


@given(
    keys=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30),
    dtype=st.sampled_from(ARRAYS),
    width=st.integers(0, 3),
    max_bytes=st.integers(4097, 6000),
)
def test_rows_survive_the_wire_in_parts_that_fit(keys: list[int], dtype: str, width: int, max_bytes: int) -> None:
    array = np.array(keys, np.int64)
    rows = Rows(array, array[::-1].copy(), (array % 2).astype(dtype), np.repeat(array[:, None] % 7, width, 1).astype(dtype))
    parts = list(parts_to_proto(rows, accepting(max_bytes)))
    assert all(part.ByteSize() <= max_bytes or len(part.rows.keys) == 8 for part in parts)
    decoded = [part_from_proto(part) for part in parts]
    for name in Rows._fields:
        joined = np.concatenate([getattr(part, name) for part in decoded])
        assert joined.dtype == getattr(rows, name).dtype
        assert np.array_equal(joined, getattr(rows, name))


def test_requests_and_scores_survive_the_wire() -> None:
    sources: list[SampleSource] = [
        InIntervals([Interval(1, 2), Interval()]),
        AtPositions(RUN, [StreamWindow(0, 5), StreamWindow(7, 9, Interval(-3, 2**40))]),
        OfKeys(np.array([3, -1, 2**62])),
    ]
    for source in sources:
        asked = MeasureRequest(RUN, 4, SECTION, source, OutputKind.EMBEDDINGS, "cuda:1", {"enabled": True}, "5eed")
        found = measure_request_from_proto(measure_request_to_proto(asked))
        if isinstance(source, OfKeys):
            assert isinstance(found.source, OfKeys)
            assert np.array_equal(found.source.keys, source.keys)
        else:
            assert found == asked
    score = Score(Interval(0, 9), "Accuracy", None, "undefined", 3, 4)
    (message,) = parts_to_proto(score, accepting(5000))
    assert part_from_proto(message) == score


@pytest.mark.parametrize("field", ["source", "kind"])
def test_a_request_without_samples_or_kind_is_refused(field: str) -> None:
    message = measure_request_to_proto(MeasureRequest(RUN, 4, SECTION, OfKeys(np.array([1]))))
    message.ClearField(field)
    with pytest.raises(InvalidArgumentError, match="names no"):
        measure_request_from_proto(message)


def test_an_array_that_does_not_have_its_shape_is_refused() -> None:
    (message,) = parts_to_proto(Rows(*(np.arange(2) for _ in range(4))), accepting(5000))
    message.rows.outputs.shape[0] = 3
    with pytest.raises(InvalidArgumentError, match="are not an array of <i8 of shape"):
        part_from_proto(message)
