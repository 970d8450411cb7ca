"""Measurements for the performance model of the cache, with a fake storage and a clock that advances at each reading."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from modyn.cache.plan.measuring import MeasuredPart
from modyn.cache.sample_codec import SampleCodec
from modyn.dataset.bad_samples import BadSamples
from modyn.dataset.connections import PayloadReader
from modyn.dataset.decode import BatchPipeline
from modyn.errors import ConfigError, DataError, InvalidArgumentError, TrainingError, UserCodeError
from modyn.storage.client import DatasetInfo
from modyn.storage.payloads import Payloads
from modyn.testing.fake_storage import FakePayloadClient, FakeStorage
from modyn.testing.stack import NUM_FEATURES, TINY_PARSER, tiny_pipeline, tiny_training
from modyn.trainer_server.cache_plan.cache_planning import forecast_notes
from modyn.trainer_server.cache_plan.cache_profile import (
    SHARES,
    measure_profile,
    prepare,
    read_storage,
)
from modyn.trainer_server.cache_plan.preparation_rate import decode_samples, preparation_rate, rows_of
from modyn.trainer_server.cache_plan.profiled_pipeline import ProfiledPipeline, load_profiled
from modyn.trainer_server.cache_plan.store_rates import ReadingWorkers
from tests.support.fake_dataset import FakeLocalPayloads
from tests.support.step_clock import StepClock

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

BATCH_PARSER = """\
def batch_parser_function(data, offsets):
    return {"x": torch.from_numpy(data.copy()).view(torch.float32).view(-1, 4)}
"""


@dataclass
class FakeSource:
    """Samples of four features each, labels 0 to 2."""

    payloads: list[bytes]
    short_cut: bool = True
    deleted: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.storage = FakeStorage()
        self.storage.add_dataset("numbers")
        labels = [key % 3 for key in range(len(self.payloads))]
        self.storage.add_samples("numbers", range(len(self.payloads)), labels, self.payloads)
        self.storage.client().delete_samples("numbers", np.array(self.deleted, np.int64))

    def open_payloads(self) -> PayloadReader:
        return FakeLocalPayloads(self.storage) if self.short_cut else FakePayloadClient(self.storage, 7)

    @property
    def info(self) -> DatasetInfo:
        return self.storage.client().dataset("numbers")


def numbers(num_samples: int = 50) -> list[bytes]:
    return [np.arange(key, key + NUM_FEATURES, dtype=np.float32).tobytes() for key in range(num_samples)]


def pipeline(training: dict[str, Any] | None = None, **data: Any) -> ProfiledPipeline:
    section = {"dataset_id": "numbers", **(data or {"bytes_parser_function": TINY_PARSER})}
    return load_profiled(tiny_pipeline("numbers", data=section, training=tiny_training(**(training or {}))), "p.yaml")


LAYOUT = {"record_layout": {"dtype": "<f4", "shape": [NUM_FEATURES]}}


@pytest.mark.parametrize("short_cut", [True, False])
@pytest.mark.parametrize("data", [{"bytes_parser_function": TINY_PARSER}, LAYOUT], ids=["parser", "layout"])
def test_every_parameter_is_measured_within_its_seconds(data: dict[str, Any], short_cut: bool, tmp_path: Path) -> None:
    source, clock, begun = FakeSource(numbers(), short_cut, deleted=(3,)), StepClock(), list[MeasuredPart]()
    more: dict[str, Any] = {
        "deterministic_transformations": ["torch.Tensor.double"],
        "random_transformations": ["torch.Tensor.float"],
    }
    profile = measure_profile(
        source,
        pipeline(**data, **more),
        source.info,
        seconds=3,
        clock=clock,
        progress=begun.append,
        stores={"memory": str(tmp_path / "shared")},
    )
    assert [part.name for part in begun] == list(SHARES)
    assert clock() < 3.5, "but for a piece of each part"
    assert (profile.dataset, profile.dataset_identity, profile.num_samples) == ("numbers", source.info.identity, 49)
    codec = SampleCodec()
    sizes = [len(codec.encode(torch.zeros(NUM_FEATURES, dtype=dtype))) for dtype in (torch.float64, torch.float32)]
    assert [profile.encoded_bytes, profile.decoded_bytes, profile.augmented_bytes] == [16, *sizes]
    rates = (
        profile.storage_bytes_per_s, profile.decode_and_augment_samples_per_s, profile.augment_samples_per_s,
        profile.accelerator_samples_per_s, profile.stores["memory"].read_bytes_per_s, profile.stores["memory"].write_bytes_per_s,
    )  # fmt: skip
    assert all(0 < rate < float("inf") for rate in rates)
    assert ("short cut" if short_cut else "over Flight") in profile.notes[0]
    assert any("trains on the CPU" in note for note in profile.notes)
    assert profile.workload.dataset.decoded_inflation == sizes[0] / 16


def test_samples_are_read_once_each() -> None:
    source = FakeSource(numbers(25))
    asked: list[int] = []
    source.storage.before_fetch = lambda keys: asked.extend(keys.tolist())
    read = read_storage(source.open_payloads(), source.info, 4, 3, 60, StepClock())
    assert sorted(asked) == list(range(25))
    assert asked != sorted(asked)
    assert (read.whole_dataset, read.mean_bytes) == (True, 16)
    larger = FakeSource(numbers(500))
    few = read_storage(larger.open_payloads(), larger.info, 4, 1, 0.02, StepClock())
    assert not few.whole_dataset


def test_images_are_as_large_as_their_pixels() -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 6)).save(file, "PNG")
    parser = "def bytes_parser_function(data):\n    return Image.open(io.BytesIO(data)).convert('RGB')\n"
    to_row = "lambda image: torch.from_numpy(np.asarray(image, np.float32)).flatten()[:4]"
    source = FakeSource([file.getvalue()] * 20)
    sections = pipeline(bytes_parser_function=parser, transformations=[to_row])
    profile = measure_profile(source, sections, source.info, seconds=1, clock=StepClock())
    sizes = [len(SampleCodec().encode(value)) for value in (Image.new("RGB", (8, 6)), torch.zeros(4))]
    assert [profile.decoded_bytes, profile.augmented_bytes] == sizes


def test_bad_samples_are_left_out_or_end_it_as_the_pipeline_says() -> None:
    parser = TINY_PARSER.replace("    return", "    if bytes(data[:1]) == b'!': raise ValueError('odd')\n    return")
    source = FakeSource([*numbers(10), b"!" * 16])
    skipping = pipeline(bytes_parser_function=parser, on_bad_sample="skip")
    assert measure_profile(source, skipping, source.info, seconds=1, clock=StepClock()).num_measured == 10
    with pytest.raises(UserCodeError, match="sample 10 of dataset 'numbers'.*odd"):
        measure_profile(source, pipeline(bytes_parser_function=parser), source.info, seconds=9, clock=StepClock())
    only_bad = FakeSource([b"!" * 16])
    with pytest.raises(DataError, match="none of 1 samples of dataset 'numbers' could be decoded"):
        measure_profile(only_bad, skipping, only_bad.info, seconds=1, clock=StepClock())


def test_what_no_cache_can_keep_is_noted(tmp_path: Path) -> None:
    """The store is measured with encoded samples then."""
    parser = "def bytes_parser_function(data):\n    return [bytes(data).decode('latin1')]\n"
    sections = pipeline(bytes_parser_function=parser, transformations=["lambda found: torch.zeros(4)"])
    source, stores = FakeSource(numbers()), {"memory": str(tmp_path / "shared")}
    profile = measure_profile(source, sections, source.info, seconds=1, clock=StepClock(), stores=stores)  # type: ignore[arg-type]
    assert profile.decoded_bytes is None
    assert profile.augmented_bytes == len(SampleCodec().encode(torch.zeros(4)))
    assert any(note.startswith("No tier can keep decoded samples, others can be kept: ") for note in profile.notes)
    assert profile.stores["memory"].read_bytes_per_s > 0
    assert not profile.workload.dataset.keeps_decoded


def test_a_dataset_without_samples_and_a_missing_device_are_told_at_once() -> None:
    empty = FakeSource([])
    with pytest.raises(InvalidArgumentError, match="'numbers' has no samples.*modyn data ingest numbers"):
        measure_profile(empty, pipeline(), empty.info)
    source = FakeSource(numbers())
    with pytest.raises(ConfigError, match=r"training.device: 'cuda:999' does not exist"):
        measure_profile(source, pipeline({"device": "cuda:999"}), source.info)


def test_a_model_that_does_not_take_the_samples_is_told() -> None:
    source = FakeSource([sample * 2 for sample in numbers()])
    with pytest.raises(TrainingError, match="shapes cannot be multiplied"):
        measure_profile(source, pipeline(), source.info, seconds=1, clock=StepClock())


def test_schedulers_accumulation_and_batch_norm_do_not_prevent_a_profile() -> None:
    training = {
        "gradient_accumulation_steps": 3,
        "lr_scheduler": {
            "name": "OneCycleLR",
            "step_every": "batch",
            "config": {"max_lr": 0.1, "total_steps": "MODYN_NUM_BATCHES"},
        },
        "batch_size": 64,
        "amp": True,
    }
    source = FakeSource(numbers(3))
    profile = measure_profile(source, pipeline(training), source.info, seconds=1, clock=StepClock())
    assert profile.accelerator_samples_per_s > 0
    assert profile.training == "LogisticRegression on cpu, batches of 64"


def test_a_model_that_is_slow_is_trained_in_smaller_batches() -> None:
    source = FakeSource(numbers())
    slow = measure_profile(source, pipeline({"batch_size": 64}), source.info, seconds=0.01, clock=StepClock())
    assert any(note.startswith("The model was trained in batches of 2 in place of 64: ") for note in slow.notes)
    assert slow.accelerator_samples_per_s == pytest.approx(2 / 0.01)


def test_what_was_measured_with_few_samples_is_said_by_the_profile_and_by_each_plan() -> None:
    """Decoding and training, each in batches far below that of the pipeline."""
    source, section = FakeSource(numbers()), pipeline({"batch_size": 64})
    slow = measure_profile(source, section, source.info, seconds=0.01, clock=StepClock())
    (decoded, trained) = slow.too_little
    assert "samples were decoded, and 64 would be enough" in decoded
    assert "The model was trained on 2 samples in batches of 2, where a training takes 64" in trained
    assert "--seconds N" in trained
    assert set(slow.too_little) <= set(forecast_notes(slow, section, 1, shares=False))


def test_the_first_sample_is_decoded_alone_and_counts_in_no_rate() -> None:
    """A parser that takes seconds is called for no more samples than there is time for."""
    pieces = prepare(pipeline({"batch_size": 64}), _payloads(numbers(100)), BadSamples(pipeline().data, None), 9, StepClock())  # type: ignore[arg-type]
    assert min(map(len, pieces.pieces)) > 1
    slow = prepare(pipeline({"batch_size": 64}), _payloads(numbers(100)), BadSamples(pipeline().data, None), 0, StepClock())  # type: ignore[arg-type]
    assert slow.num_samples == 1


def test_threads_of_pytorch_are_as_before() -> None:
    source, before = FakeSource(numbers()), torch.get_num_threads()
    measure_profile(source, pipeline(), source.info, seconds=1, clock=StepClock(), torch_threads=before + 1)
    assert torch.get_num_threads() == before


def test_samples_of_batch_parsers_are_rows() -> None:
    assert [int(row) for row in rows_of(torch.arange(3))] == [0, 1, 2]
    assert [tuple(map(int, row)) for row in rows_of((torch.arange(2), torch.ones(2)))] == [(0, 1), (1, 1)]
    data = pipeline(batch_parser_function=BATCH_PARSER).data
    samples = _payloads(numbers(3))
    decoded = decode_samples(BatchPipeline(data, training=True), data, samples)
    assert [sample["x"].tolist() for sample in decoded] == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]


def _payloads(samples: list[bytes]) -> Payloads:
    keys, size = np.arange(len(samples)), len(samples[0])
    return Payloads(keys, keys % 3, np.frombuffer(b"".join(samples), np.uint8), np.arange(len(samples) + 1) * size, size)


@pytest.mark.parametrize("from_decoded", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_processes_decode_where_python_runs_for_each_sample(from_decoded: bool) -> None:
    data, pieces = pipeline().data, [_payloads(numbers(8))]
    rate, times = preparation_rate(
        data, pieces, ReadingWorkers(2, data.runs_per_sample), 0, StepClock(), from_decoded=from_decoded
    )
    assert rate > 0
    assert (times.num_decoded > 0) == (times.decode_s > 0) == (not from_decoded)
    assert times.num_augmented == times.num_decoded
    wrong = replace_parser(data, "raise ValueError('no')")
    with pytest.raises(UserCodeError, match="ValueError: no"):
        preparation_rate(wrong, pieces, ReadingWorkers(2, data.runs_per_sample), 0, StepClock(), from_decoded=from_decoded)


def test_processes_import_nothing_of_trainings() -> None:
    """Else each would take a part of the time that it measures."""
    there = replace_parser(
        pipeline().data, "import sys\n    raise ValueError('modyn.trainer_server.cache_plan.training_rate' in sys.modules)"
    )
    with pytest.raises(UserCodeError, match="ValueError: False"):
        preparation_rate(there, [_payloads(numbers(8))], ReadingWorkers(2, True), 0, StepClock())


def replace_parser(data: Any, body: str) -> Any:
    return data.model_copy(update={"bytes_parser_function": f"def bytes_parser_function(data):\n    {body}\n"})


def test_the_sections_are_checked_with_their_lines(tmp_path: Path) -> None:
    text = tiny_pipeline("numbers", training=tiny_training(batch_size=0), data={"dataset_id": "numbers"})
    with pytest.raises(ConfigError) as caught:
        load_profiled(text, "p.yaml")
    assert "training.batch_size: 0 is wrong" in caught.value.message
    assert (
        "exactly one of decode, bytes_parser_function, batch_parser_function and record_layout is needed" in caught.value.message
    )
    assert all(line.startswith("p.yaml:") for line in caught.value.message.splitlines())
    unknown = yaml.safe_load(tiny_pipeline("numbers")) | {"model": {"id": "NoSuchModel"}}
    with pytest.raises(ConfigError, match=r"p.yaml:\d+: model.id: .*NoSuchModel"):
        load_profiled(yaml.safe_dump(unknown), "p.yaml")


def test_profiles_are_kept_by_the_section_data_alone() -> None:
    one = pipeline()
    assert pipeline({"batch_size": 99}).data_digest == one.data_digest
    assert replace(one, data=replace_parser(one.data, "return torch.zeros(4)")).data_digest != one.data_digest
