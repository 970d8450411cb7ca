"""The cache on this machine that follows from the `cache` sections of a pipeline and the system file."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from modyn.cache.plan.profile import profile_path, section_digest, write_profile
from modyn.cache.tiers.stores import clear_memory, clear_redis, memory_usage
from modyn.config.cache import CacheConfig
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.dataset.cached.pipeline_cache import cache_problems, evaluation_cache, machine_memory_bytes
from modyn.dataset.config import DataConfig
from modyn.errors import ConfigError, ConflictError
from modyn.evaluator.config import load_dataset
from modyn.state_folders import shared_folder
from modyn.storage.client import DatasetInfo
from modyn.testing.waiting import eventually
from tests.support.cache_profiles import PROFILE, training_cache_of
from tests.support.running_redis import running_redis

DATA = {
    "dataset_id": "images",
    "bytes_parser_function": "def bytes_parser_function(data):\n    return torch.tensor(len(data))",
    "deterministic_transformations": ["lambda x: x + 1"],
}
LAYOUT = {"dataset_id": "images", "record_layout": {"dtype": "uint8"}}
EVALUATED = load_dataset({**DATA, "batch_size": 8, "metrics": [{"name": "Accuracy"}]})


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    clear_memory(shared_folder(tmp_path))


def system(tmp_path: Path, **cache: Any) -> SystemConfig:
    return SystemConfig(state_dir=tmp_path, cache=CacheConfig.model_validate(cache))


def info(num_deleted: int = 0, identity: str = "first") -> DatasetInfo:
    config = DatasetConfig(name="images", base_path="/images", file_wrapper="SingleSampleFileWrapper")
    return DatasetInfo(config, identity, 10, 1, 0, 10, None, None, num_deleted, False)


def test_without_a_size_there_is_no_cache(tmp_path: Path) -> None:
    assert training_cache_of(system(tmp_path), {"data": DATA}, info()) is None
    assert cache_problems(system(tmp_path), {"data": DATA}) == []


def test_the_pipeline_goes_before_the_system_file(tmp_path: Path) -> None:
    config = system(tmp_path, size="1MB", split="50-50-0", store="memory")
    source = training_cache_of(config, {"data": DATA}, info())
    assert source is not None
    assert {name: place.budget_bytes for name, place in source.places.items()} == {"encoded": 500_000, "decoded": 500_000}
    clear_memory(shared_folder(tmp_path))
    assert source.jobs == 1
    source = training_cache_of(config, {"data": DATA, "cache": {"size": "2MB", "jobs": 2}}, info())
    assert source is not None
    assert source.jobs == 2
    assert {name: place.budget_bytes for name, place in source.places.items()} == {"encoded": 10**6, "decoded": 10**6}


def test_trainings_share_one_division_of_the_cache(tmp_path: Path) -> None:
    """This holds for any split that each would choose. A training that requests another split or size is refused while the cache is used."""
    unlike = {**DATA, "dataset_id": "others", "deterministic_transformations": []}

    def budgets(data: dict[str, Any], **cache: Any) -> dict[str, int]:
        source = training_cache_of(system(tmp_path, store="memory"), {"data": data, "cache": cache}, info())
        assert source is not None
        return {name: place.budget_bytes for name, place in source.places.items()}

    assert budgets(DATA, size="3MB", split="40-60-0") == {"encoded": 1_200_000, "decoded": 1_800_000}
    assert budgets(unlike, size="3MB") == {"encoded": 1_200_000, "decoded": 1_800_000}
    assert budgets(LAYOUT, size="3MB", split="40-60-0") == {"encoded": 1_200_000}
    for other in ({"size": "3MB", "split": "100-0-0"}, {"size": "4MB"}):
        with pytest.raises(ConflictError, match="has a budget of 1,200,000 bytes, and this one wants"):
            budgets(DATA, **other)
    clear_memory(shared_folder(tmp_path))
    assert budgets(DATA, size="4MB") == {"decoded": 4_000_000}
    with pytest.raises(ConflictError, match="has a budget of 0 bytes"):
        budgets(DATA, size="4MB", split="100-0-0")


def test_two_system_files_with_other_budgets_for_one_redis_are_refused_by_name(tmp_path: Path) -> None:
    """The second one is refused, with its own size or split, until the cache of the first one is cleared."""
    with running_redis() as server:

        def begin(name: str, size: str, split: str = "40-60-0") -> dict[str, int]:
            cache = CacheConfig.model_validate({"size": size, "split": split, "store": "redis"})
            config = SystemConfig(state_dir=tmp_path / name, redis_url=server.url, cache=cache)
            source = training_cache_of(config, {"data": DATA}, info())
            assert source is not None
            return {name: place.budget_bytes for name, place in source.places.items()}

        first = {"encoded": 1_200_000, "decoded": 1_800_000}

        def refusal(size: str, split: str) -> str:
            """Hits of the second one, while the first one's cache is in use. On a machine that is busy, an answer of Redis may come too late, and the
            budget is not known there yet."""
            clear_redis(server.url)
            assert begin("first", "3MB") == first
            try:
                begin("second", size, split)
            except ConflictError as error:
                return error.message
            return ""

        for size, split, theirs in (("4MB", "40-60-0", "1,600,000"), ("3MB", "50-50-0", "1,500,000")):
            told = eventually(partial(refusal, size, split))
            assert (
                f"the tier 'encoded' in the Redis at {server.url.removeprefix('unix://')} has a budget of 1,200,000 bytes" in told
            )
            assert f"this one wants {theirs}: give both the same size and split, or wait until the other has ended" in told
            assert begin("second", "3MB") == first
        clear_redis(server.url)
        assert begin("second", "4MB") == {"encoded": 1_600_000, "decoded": 2_400_000}


def test_samples_of_other_code_another_dataset_or_a_time_before_a_deletion_are_never_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def namespaces(data: dict[str, Any] = DATA, **of_dataset: Any) -> tuple[bytes, bytes]:
        source = training_cache_of(system(tmp_path, size="1MB", split="50-50-0"), {"data": data}, info(**of_dataset))
        assert source is not None
        return source.places["encoded"].namespace, source.places["decoded"].namespace

    (tmp_path / "my_parser_of_caches.py").write_text("def parse(data): return 1")
    monkeypatch.syspath_prepend(tmp_path)
    first = namespaces()
    assert namespaces({**DATA, "random_transformations": ["lambda x: x"], "label_transformer_function": None}) == first
    for other in (namespaces(num_deleted=1), namespaces(identity="second")):
        assert other[0] != first[0]
        assert other[1] != first[1]
    changed = namespaces({**DATA, "deterministic_transformations": ["lambda x: x + 2"]})
    assert changed[0] == first[0]
    assert changed[1] != first[1]
    imported = {**DATA, "bytes_parser_function": "my_parser_of_caches:parse"}
    before = namespaces(imported)
    (tmp_path / "my_parser_of_caches.py").write_text("def parse(data): return 2  # corrected")
    assert namespaces(imported)[1] != before[1]


@pytest.mark.parametrize(
    ("cache", "found"),
    [
        ({"size": "2 gigs"}, "cache.size: '2 gigs' is not a size"),
        ({"sise": "2GB"}, "cache.sise: there is no such key, did you mean 'size'"),
        ({"split": "auto"}, "cache.size: is required"),
        ({"size": "1MB", "store": "disk"}, "cache.store"),
        ({"size": "1MB", "store": "redis"}, "none runs"),
        ({"size": machine_memory_bytes() + 1, "store": "memory"}, "this machine has"),
        ({"size": "1MB", "split": "0-100-0"}, "warning: cache.split: there is nothing decoded to keep"),
        ({"size": "1MB", "split": "100-0-0"}, None),
        (
            {"size": "1MB", "split": "100-0-0", "jobs": 2},
            "warning: cache.jobs: 2 trainings are to share samples, and this trainer server runs 1",
        ),
        (
            {"size": "1MB", "split": "50-0-50", "sampler": "coordinated"},
            "cache.sampler: 'coordinated' chooses the order of samples",
        ),
    ],
    ids=[
        "no size",
        "misspelt",
        "size missing",
        "no store",
        "no redis",
        "more than memory",
        "nothing decoded",
        "right",
        "jobs",
        "no shuffle",
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, cache: dict[str, Any], found: str | None) -> None:
    problems = [str(problem) for problem in cache_problems(system(tmp_path), {"data": LAYOUT, "cache": cache})]
    assert len(problems) == (found is not None)
    assert (found or "") in "".join(problems)


@pytest.mark.parametrize("sampler", ["lru", "quiver", "shade", "shared_loader"])
def test_a_removed_sampler_is_refused(tmp_path: Path, sampler: str) -> None:
    pipeline = {"data": DATA, "cache": {"size": "1MB", "sampler": sampler}, "training": {"shuffle": True}}
    said = f"the sampler '{sampler}' served comparisons only, and is no longer a part of pipelines: write auto, coordinated, opportunistic or static"
    (problem,) = cache_problems(system(tmp_path), pipeline)
    assert problem.path == "cache.sampler"
    assert said in problem.message
    with pytest.raises(ConfigError, match=re.escape(said)):
        training_cache_of(system(tmp_path), pipeline, info())


def test_a_compression_whose_package_is_missing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4", None)  # as where it is not installed
    config = system(tmp_path, size="1MB", compression="lz4")
    said = "compression lz4 needs the package lz4, which is not installed: pip install 'modyn[lz4]', or write zstd"
    # On another machine it may be there.
    assert [str(problem) for problem in cache_problems(config, {"data": DATA})] == [f"warning: cache: {said}"]
    with pytest.raises(ConfigError, match=re.escape(said)):
        training_cache_of(config, {"data": DATA}, info())


def test_a_cache_that_cannot_be_here_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none runs"):
        training_cache_of(system(tmp_path, size="1MB", store="redis"), {"data": DATA}, info())


def test_the_password_of_redis_is_not_shown(tmp_path: Path) -> None:
    config = SystemConfig(state_dir=tmp_path, redis_url="redis://:hush@host/0", cache=CacheConfig(size=10**6, store="redis"))
    source = training_cache_of(config, {"data": DATA}, info())
    assert source is not None
    assert source.address == config.redis_url
    assert "hush" not in repr(source)


def test_an_evaluation_finds_the_samples_of_trainings(tmp_path: Path) -> None:
    """This includes samples decoded for validation, but no samples of another decoding or from before a deletion."""
    config = system(tmp_path, size="1MB", split="50-50-0", store="memory")
    trained = training_cache_of(config, {"data": {**DATA, "random_transformations": ["lambda x: x + torch.rand(1)"]}}, info())
    assert evaluation_cache(config, {}, EVALUATED, info) == trained
    for later in (info(num_deleted=1), info(identity="second")):
        source = evaluation_cache(config, {}, EVALUATED, lambda later=later: later)  # type: ignore[misc]
        assert source is not None
        assert trained is not None
        assert not {place.namespace for place in source.places.values()} & {place.namespace for place in trained.places.values()}


@pytest.mark.parametrize("cache", [{"size": "4MB"}, {"size": "3MB", "split": "100-0-0"}, {"size": "1MB", "split": "0-100-0"}])
def test_an_evaluation_takes_the_division_that_there_is(tmp_path: Path, cache: dict[str, Any]) -> None:
    """It ignores its own settings, whether the division is in use or not. A later training is not refused."""
    config = system(tmp_path, store="memory")
    trained = training_cache_of(config, {"data": DATA, "cache": {"size": "3MB", "split": "40-60-0"}}, info())
    before = {tier.name: tier.budget_bytes for tier in memory_usage(shared_folder(tmp_path)).tiers}
    for file in shared_folder(tmp_path).rglob("*"):
        os.utime(file, (0, 0))  # not in use any more
    source = evaluation_cache(config, cache, EVALUATED, info)
    assert source is not None
    source.open().close()
    assert source == trained
    assert {tier.name: tier.budget_bytes for tier in memory_usage(shared_folder(tmp_path)).tiers} == before
    assert training_cache_of(config, {"data": DATA, "cache": {"size": "3MB", "split": "40-60-0"}}, info()) == trained


def test_an_evaluation_divides_what_is_not_divided_as_a_training_would(tmp_path: Path) -> None:
    source = evaluation_cache(system(tmp_path, store="memory"), {"size": "2MB"}, EVALUATED, info)
    assert source is not None
    assert {name: place.budget_bytes for name, place in source.places.items()} == {"decoded": 2_000_000}
    assert training_cache_of(system(tmp_path, store="memory"), {"data": DATA, "cache": {"size": "2MB"}}, info()) == source


def test_an_evaluation_with_a_profile_of_its_data_follows_it(tmp_path: Path) -> None:
    """A profile belongs to a section `data`, without the settings for the evaluation of models."""
    data = DataConfig.model_validate(DATA)
    of_profile = replace(info(), num_samples=PROFILE.num_samples)
    profile = replace(PROFILE, dataset="images", dataset_identity="first")
    write_profile(profile_path(tmp_path, "images", section_digest(data.model_dump(mode="json"))), profile)
    config = system(tmp_path, size="2MB", store="memory")
    assert training_cache_of(config, {"data": DATA}, of_profile) is None, "so small a cache does not pay"
    assert evaluation_cache(config, {}, EVALUATED, info) is None


@pytest.mark.parametrize(
    "cache", [{"size": "1MB", "store": "redis"}, {"size": machine_memory_bytes() + 1, "store": "memory"}, {"size": "2 gigs"}]
)
def test_an_evaluation_continues_without_a_cache_that_cannot_be(tmp_path: Path, cache: dict[str, Any]) -> None:
    assert evaluation_cache(system(tmp_path), cache, EVALUATED, info) is None


def test_an_evaluation_claims_nothing_of_a_redis_that_is_away(tmp_path: Path) -> None:
    config = SystemConfig(state_dir=tmp_path, redis_url=f"unix://{tmp_path}/none", cache=CacheConfig(size=10**6, store="redis"))
    assert evaluation_cache(config, {}, EVALUATED, info) is None


def test_an_evaluation_without_a_cache_asks_for_nothing(tmp_path: Path) -> None:
    def asked() -> DatasetInfo:
        raise AssertionError

    assert evaluation_cache(system(tmp_path), {}, EVALUATED, asked) is None
