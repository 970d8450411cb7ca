"""`modyn cache plan` says what a training of the same pipeline uses."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from modyn.cache.plan.measuring import StoreRates
from modyn.cache.plan.profile import profile_path, write_profile
from modyn.cache.tiers.stores import clear_memory
from modyn.config.cache import CacheConfig
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.dataset.cached import pipeline_cache
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.state_folders import shared_folder
from modyn.storage.client import DatasetInfo
from modyn.testing.stack import tiny_pipeline, tiny_training
from modyn.trainer_server.cache_plan.cache_planning import CacheForecast, load_profiled, read_forecast
from tests.support.cache_profiles import PROFILE

pytestmark = pytest.mark.usefixtures("all_logs")

MB = 10**6
NUM_SAMPLES = 200
INFO = DatasetInfo(
    DatasetConfig(name="photos", base_path="/photos", file_wrapper="SingleSampleFileWrapper"),
    PROFILE.dataset_identity, NUM_SAMPLES, 1, 0, NUM_SAMPLES, None, None, 0, False,
)  # fmt: skip


class Installation:
    """A state folder with a profile of a pipeline, and a Redis that does not answer."""

    def __init__(
        self, folder: Path, redis_url: str | None, redis_bytes_per_s: float, jobs: int = 1, seed: int | None = None
    ) -> None:
        text = tiny_pipeline("photos", training=tiny_training(shuffle=True, seed=seed), cache={"size": "16MB", "jobs": jobs})
        self.pipeline = load_profiled(text, "p.yaml")
        self.config = SystemConfig(state_dir=folder, redis_url=redis_url, cache=CacheConfig())
        stores = {"memory": StoreRates(2e9, 1e8), "redis": StoreRates(2e9, redis_bytes_per_s)}
        # The cache limits, so that rates are those of the stores.
        profile = replace(
            PROFILE, data_digest=self.pipeline.data_digest, num_samples=NUM_SAMPLES, stores=stores, storage_bytes_per_s=1e7,
            augmented_bytes=1e5, decode_and_augment_samples_per_s=100.0, augment_samples_per_s=1e9,
        )  # fmt: skip
        write_profile(profile_path(folder, "photos", profile.data_digest), profile)

    def forecast(self, size: int | None = None) -> CacheForecast:
        return read_forecast(self.config, self.pipeline, size, None, None)

    def used(self) -> tuple[str | None, dict[str, int], str]:
        """Store, budgets and reason by the log of a training."""
        settings, training = self.config.cache.overridden(self.pipeline.cache), self.pipeline.training
        with capture_logs() as logs:
            pipeline_cache.training_cache(self.config, settings, self.pipeline.data, INFO, training.order)
        clear_memory(shared_folder(self.config.state_dir))
        (line,) = [line for line in logs if line["event"] == "cache"]
        return line["store"], line.get("budgets", {}), line["reason"]


@pytest.mark.parametrize(
    ("redis_bytes_per_s", "shared", "jobs", "seed", "store"),
    [
        (1.02e8, 64 * MB, 1, None, "memory"),
        (2e8, 64 * MB, 1, None, "redis"),
        (1e8, 31 * MB, 1, None, "redis"),
        (1e6, 31 * MB, 1, None, None),
        (1e8, 64 * MB, 4, None, "memory"),
        (1e8, 64 * MB, 4, 1, "memory"),
    ],
    ids=["about as fast", "faster", "more than half of shared memory", "too slow", "side by side", "with a seed"],
)
def test_a_plan_is_what_a_training_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_bytes_per_s: float, shared: int, jobs: int, seed: int | None,
    store: str | None,
) -> None:  # fmt: skip
    monkeypatch.setattr(pipeline_cache, "shared_memory_bytes", lambda: shared)
    with socket.socket() as held:  # Bound, and nothing listens.
        held.bind(("127.0.0.1", 0))
        made = Installation(tmp_path, f"redis://127.0.0.1:{held.getsockname()[1]}", redis_bytes_per_s, jobs, seed)
        used, budgets, reason = made.used()
    forecast = made.forecast()
    plan = forecast.plan
    assert used == plan.cache == store
    assert reason == plan.reason
    split = {} if plan.split is None else {name: getattr(plan.split, name) for name in ("encoded", "decoded", "augmented")}
    assert budgets == {name: 16 * MB * percent // 100 for name, percent in split.items() if percent}
    assert ("augmented" in budgets) is (jobs > 1 and seed is None)
    assert any("but prepare no augmented samples" in note for note in forecast.notes) is (seed is not None)


def test_a_cache_that_a_training_would_not_get_is_not_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_cache, "shared_memory_bytes", lambda: 31 * MB)
    made = Installation(tmp_path, None, 1e8)
    monkeypatch.setattr(SystemConfig, "resolved_redis_url", lambda _: None)
    with pytest.raises(
        InvalidArgumentError, match=r"16,000,000 bytes is more than half of the shared memory .*there is no Redis"
    ):
        made.forecast()
    assert made.forecast(15 * MB).plan.cache == "memory"
    made.config = made.config.model_copy(update={"cache": CacheConfig(store="memory")})
    with pytest.raises(ConfigError, match="can hold 31,000,000: give `size` less"):
        made.forecast(32 * MB)
