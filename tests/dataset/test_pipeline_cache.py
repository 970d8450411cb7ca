"""What the sections `cache` of a pipeline and of the system file come to on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modyn.cache.stores import clear_memory
from modyn.config.cache import CacheConfig
from modyn.config.system import DatasetConfig, SystemConfig
from modyn.dataset.pipeline_cache import cache_problems, machine_memory_bytes, training_cache
from modyn.errors import ConfigError, ConflictError
from modyn.state_folders import shared_folder
from modyn.storage.client import DatasetInfo

DATA = {
    "dataset_id": "images",
    "bytes_parser_function": "def bytes_parser_function(data):\n    return torch.tensor(len(data))",
    "deterministic_transformations": ["lambda x: x + 1"],
}
LAYOUT = {"dataset_id": "images", "record_layout": {"dtype": "uint8"}}


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    clear_memory(shared_folder(tmp_path))


def system(tmp_path: Path, **cache: Any) -> SystemConfig:
    return SystemConfig(state_dir=tmp_path, cache=CacheConfig.model_validate(cache))


def info(num_deleted: int = 0, identity: str = "first") -> DatasetInfo:
    config = DatasetConfig(name="images", base_path="/images", file_wrapper="SingleSampleFileWrapper")
    return DatasetInfo(config, identity, 10, 1, 0, 10, None, None, num_deleted, False)


def test_no_size_is_no_cache(tmp_path: Path) -> None:
    assert training_cache(system(tmp_path), {"data": DATA}, info()) is None
    assert cache_problems(system(tmp_path), {"data": DATA}) == []


def test_the_pipeline_goes_before_the_system_file(tmp_path: Path) -> None:
    config = system(tmp_path, size="1MB", split="50-50-0", store="memory")
    source = training_cache(config, {"data": DATA}, info())
    assert source is not None
    assert {name: place.budget_bytes for name, place in source.places.items()} == {"encoded": 500_000, "decoded": 500_000}
    clear_memory(shared_folder(tmp_path))
    source = training_cache(config, {"data": DATA, "cache": {"size": "2MB"}}, info())
    assert source is not None
    assert {name: place.budget_bytes for name, place in source.places.items()} == {"encoded": 10**6, "decoded": 10**6}


def test_trainings_share_one_division_of_the_cache(tmp_path: Path) -> None:
    """Whatever split each would have chosen; one that asks for another, or another size, is refused while the cache is used."""
    unlike = {**DATA, "dataset_id": "others", "deterministic_transformations": []}

    def budgets(data: dict[str, Any], **cache: Any) -> dict[str, int]:
        source = training_cache(system(tmp_path, store="memory"), {"data": data, "cache": cache}, info())
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


def test_samples_of_other_code_another_dataset_or_a_time_before_a_deletion_are_never_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def namespaces(data: dict[str, Any] = DATA, **of_dataset: Any) -> tuple[bytes, bytes]:
        source = training_cache(system(tmp_path, size="1MB", split="50-50-0"), {"data": data}, info(**of_dataset))
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
    ],
    ids=["no size", "misspelt", "size missing", "no store", "no redis", "more than memory", "nothing decoded", "right"],
)
def test_what_is_wrong_is_said(tmp_path: Path, cache: dict[str, Any], found: str | None) -> None:
    problems = [str(problem) for problem in cache_problems(system(tmp_path), {"data": LAYOUT, "cache": cache})]
    assert len(problems) == (found is not None)
    assert (found or "") in "".join(problems)


def test_a_cache_that_cannot_be_here_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none runs"):
        training_cache(system(tmp_path, size="1MB", store="redis"), {"data": DATA}, info())


def test_the_password_of_redis_is_not_shown(tmp_path: Path) -> None:
    config = SystemConfig(state_dir=tmp_path, redis_url="redis://:hush@host/0", cache=CacheConfig(size=10**6, store="redis"))
    source = training_cache(config, {"data": DATA}, info())
    assert source is not None
    assert source.address == config.redis_url
    assert "hush" not in repr(source)
