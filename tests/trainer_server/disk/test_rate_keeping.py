"""The measurements of a training are stored for the next training, which divides its cache by them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from modyn.cache.plan.measured_rates import MeasuredRates, rates_path, read_rates, write_rates
from modyn.cache.plan.profile import CacheProfile, profile_path, section_digest, write_profile
from modyn.cache.served_counts import ServedCounts
from modyn.cache.tiers.stores import clear_memory
from modyn.config.cache import CacheConfig
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.dataset.config import DataConfig
from modyn.dataset.preparation_clock import PreparationTimes
from modyn.state_folders import shared_folder
from modyn.storage.client import DatasetInfo
from modyn.trainer_server.disk.rate_keeping import LEAST_SAMPLES, keep_rates, rates_of, seconds_saved
from tests.support.cache_profiles import PROFILE, training_cache_of
from tests.support.training import MemoryData, TrainingRoom, small_pipeline

pytestmark = pytest.mark.usefixtures("all_logs")

DATA = {
    "dataset_id": "photos",
    "bytes_parser_function": "def bytes_parser_function(data):\n    return torch.tensor(len(data))",
}
SECTION = DataConfig.model_validate(DATA)
DIGEST = section_digest(SECTION.model_dump(mode="json"))
MANY = PreparationTimes(10.0, 1000, 150_000_000, 6.0, 1000, 2.0, 2000)
"""15 MB/s, 150 KB, 6 ms and 1 ms a sample."""


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    clear_memory(shared_folder(tmp_path))


@pytest.fixture
def profile(tmp_path: Path) -> CacheProfile:
    found = replace(PROFILE, data_digest=DIGEST, dataset_identity="first")
    write_profile(profile_path(tmp_path, "photos", DIGEST), found)
    return found


def kept(tmp_path: Path) -> MeasuredRates | None:
    return read_rates(rates_path(profile_path(tmp_path, "photos", DIGEST)))


def test_rates_are_those_of_one_worker_where_there_were_samples_enough() -> None:
    assert rates_of(MANY, 3.0) == MeasuredRates(3.0, 150_000, 15e6, 0.006, 0.001)
    few = PreparationTimes(10.0, LEAST_SAMPLES - 1, 5000, 6.0, LEAST_SAMPLES - 1, 2.0, LEAST_SAMPLES)
    assert rates_of(few, 3.0) == MeasuredRates(3.0, augment_s=2 / LEAST_SAMPLES)


def test_a_training_keeps_what_it_measured_next_to_the_profile(tmp_path: Path, profile: CacheProfile) -> None:
    config = SystemConfig(state_dir=tmp_path)
    keep_rates(config, SECTION, "another registration", MANY)
    assert kept(tmp_path) is None
    keep_rates(config, SECTION, "first", MANY)
    first = MeasuredRates(profile.measured_at, 150_000, 15e6, 0.006, 0.001)
    assert kept(tmp_path) == first
    cached = PreparationTimes(augment_s=4.0, num_augmented=2000)
    keep_rates(config, SECTION, "first", cached)
    assert kept(tmp_path) == replace(first, augment_s=0.002)
    rates_path(profile_path(tmp_path, "photos", DIGEST)).write_text("{}")
    keep_rates(config, SECTION, "first", cached)
    assert kept(tmp_path) == MeasuredRates(profile.measured_at, augment_s=0.002)


def test_without_a_profile_or_a_place_nothing_is_kept_and_nothing_fails(tmp_path: Path) -> None:
    config = SystemConfig(state_dir=tmp_path)
    keep_rates(config, SECTION, "first", MANY)
    assert not (tmp_path / "cache").exists()
    path = profile_path(tmp_path, "photos", DIGEST)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with capture_logs() as logs:
        keep_rates(config, SECTION, "first", MANY)
    assert [line["event"] for line in logs] == ["cache_rates_not_kept"]


def test_saved_seconds_are_estimated_where_this_registration_was_measured(tmp_path: Path, profile: CacheProfile) -> None:
    config, counts = SystemConfig(state_dir=tmp_path), ServedCounts(20, 10, 70, 0)
    assert seconds_saved(config, SECTION, "first", counts) == counts.seconds_saved(profile)
    assert seconds_saved(config, SECTION, "another registration", counts) is None
    assert seconds_saved(SystemConfig(state_dir=tmp_path / "other"), SECTION, "first", counts) is None


def test_a_training_measures_all_its_samples(tmp_path: Path) -> None:
    found: list[tuple[str, PreparationTimes]] = []
    room = TrainingRoom(tmp_path, limits={"keep_times": lambda *measured: found.append(measured)})
    room.train(small_pipeline({"epochs_per_trigger": 3, "drop_last_batch": False}), MemoryData(40))
    ((_, times),) = found
    assert (times.num_decoded, times.num_augmented) == (120, 0)
    assert times.decode_s > 0


def chosen(tmp_path: Path, num_samples: int = PROFILE.num_samples, **cache: Any) -> dict[str, Any]:
    """The line of the log of a training that chooses its cache."""
    dataset = DatasetConfig(name="photos", base_path="/photos", file_wrapper="SingleSampleFileWrapper")
    info = DatasetInfo(dataset, "first", num_samples, 1, 0, num_samples, None, None, 0, False)
    config = SystemConfig(state_dir=tmp_path, cache=CacheConfig.model_validate({"size": "10MB", "store": "memory", **cache}))
    with capture_logs() as logs:
        training_cache_of(config, {"data": DATA}, info)
    (line,) = [dict(line) for line in logs if line["event"] == "cache"]
    clear_memory(shared_folder(tmp_path))
    return line


def test_a_plan_follows_what_was_measured_and_says_so(tmp_path: Path, profile: CacheProfile) -> None:
    """By the profile storage limits. Storage that is a hundred times as fast makes a cache useless."""
    path = rates_path(profile_path(tmp_path, "photos", DIGEST))
    roomy = {"size": "4MB"}
    before = chosen(tmp_path, 100, **roomy)
    assert before["changed"] == {"num_samples": {"planned": 123_000.0, "measured": 100.0}}
    assert before["store"] == "memory"
    write_rates(path, MeasuredRates(profile.measured_at, read_bytes_per_s=100 * profile.worker_read_bytes_per_s))
    fast = chosen(tmp_path, 100, **roomy)
    assert fast["changed"]["storage_bytes_per_s"] == pytest.approx({"planned": 25e6, "measured": 25e8})
    assert fast["reason"] != before["reason"]
    write_rates(path, MeasuredRates(profile.measured_at, read_bytes_per_s=1.1 * profile.worker_read_bytes_per_s))
    assert "changed" not in chosen(tmp_path)
    path.write_text("damaged")
    assert "changed" not in chosen(tmp_path)


def test_a_split_that_a_pipeline_names_is_not_planned_again(tmp_path: Path, profile: CacheProfile) -> None:
    assert "changed" not in chosen(tmp_path, 100, split="50-50-0")
