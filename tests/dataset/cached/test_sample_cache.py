"""A cache changes only the speed of batches."""

from __future__ import annotations

import fcntl
import io
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from structlog.testing import capture_logs

from modyn.cache.keys import TierName
from modyn.cache.sample_codec import Compression
from modyn.cache.tiers.memory_tier import ACCOUNT, LOCK, MemoryTier
from modyn.cache.tiers.tier import TierPlace
from modyn.dataset.batch import Batch, CachedCounts
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.cached.sample_cache import RETRIED, TierInUse
from modyn.dataset.chunks import ReadLimits
from modyn.dataset.config import DataConfig
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.errors import UserCodeError
from tests.support.fake_dataset import FakeTriggerSet, int64_payload
from tests.support.sampled_jobs import DATA, KEYS, PARSER

BATCH_PARSER = """
def batch_parser_function(data, offsets):
    return torch.from_numpy(data.copy()).view(torch.int64).view(len(offsets) - 1, -1)
"""
WHOLE_BATCHES = DataConfig(dataset_id="fake", batch_parser_function=BATCH_PARSER)
ROWS_OF_BATCHES = WHOLE_BATCHES.model_copy(update={"deterministic_transformations": ("lambda x: x + 1",)})
LARGE = 1 << 24
ROOT = Path(__file__).parents[3]


def source(folder: Path, budgets: dict[TierName, int], compression: Compression = "none") -> CacheSource:
    places = {name: TierPlace(name, name.encode().ljust(12), budget) for name, budget in budgets.items()}
    return CacheSource("memory", str(folder), places, compression)


def batches(
    data: DataConfig = DATA, *, short_cut: bool, cache: CacheSource | None = None, epochs: int = 2, **options: Any
) -> list[Batch]:
    keys = FakeTriggerSet(KEYS, 25, answer_size=4, short_cut=short_cut, cache=cache, **options)
    return list(
        TriggerSetDataset(keys.info, data, keys, LoadOptions(7, drop_last=False, shuffle=True, seed=3, epochs=epochs)).serve()
    )


def content(served: list[Batch]) -> list[list[list[float]]]:
    return [[batch.keys.tolist(), batch.data.tolist(), batch.labels.tolist(), batch.weights.tolist()] for batch in served]  # type: ignore[union-attr]


def counted(served: list[Batch]) -> CachedCounts:
    return CachedCounts(*(sum(column) for column in zip(*(batch.cached for batch in served), strict=True)))


BOTH_WAYS = pytest.mark.parametrize("short_cut", [False, True])


@pytest.mark.parametrize(
    ("data", "short_cut"),
    [
        pytest.param(DATA, False, id="parser-flight"),
        pytest.param(DATA, True, id="parser-local"),
        pytest.param(ROWS_OF_BATCHES, False, id="rows of batches-flight"),
        pytest.param(ROWS_OF_BATCHES, True, id="rows of batches-local", marks=pytest.mark.slow),
        pytest.param(WHOLE_BATCHES, False, id="whole batches-flight", marks=pytest.mark.slow),
        pytest.param(WHOLE_BATCHES, True, id="whole batches-local"),
    ],
)
@given(
    budgets=st.dictionaries(st.sampled_from(["encoded", "decoded"]), st.sampled_from([0, 60_000, LARGE]), min_size=1),
    deleted=st.frozensets(st.integers(0, 59), max_size=20),
)
@settings(max_examples=4)
def test_batches_are_the_same_with_and_without_a_cache(
    tmp_path_factory: pytest.TempPathFactory,
    data: DataConfig,
    short_cut: bool,
    budgets: dict[TierName, int],
    deleted: frozenset[int],
) -> None:
    """This holds for a cache of any size, and if samples are deleted between two trainings while their values are still in the cache."""
    cache = source(tmp_path_factory.mktemp("cache"), budgets)
    expected = content(batches(data, short_cut=short_cut))
    assert content(batches(data, short_cut=short_cut, cache=cache)) == expected
    assert content(batches(data, short_cut=short_cut, cache=cache)) == expected
    expected = content(batches(data, short_cut=short_cut, deleted=deleted))
    assert content(batches(data, short_cut=short_cut, deleted=deleted, cache=cache)) == expected


COMPRESSIBLE = DATA.model_copy(update={"bytes_parser_function": PARSER.replace("[:1]", "")})


def files(folder: Path) -> list[Path]:
    """Return the files of the cached samples."""
    return [path for path in (folder / "cache").glob("*/*/*") if path.name != ACCOUNT]


@pytest.mark.parametrize(("short_cut", "compression"), [(False, "zstd"), (True, "lz4")])
@given(
    tiers=st.sets(st.sampled_from(["encoded", "decoded"]), min_size=1),
    repeats=st.integers(0, 200),
    deleted=st.frozensets(st.integers(0, 59), max_size=20),
)
@settings(max_examples=3)
def test_batches_are_the_same_with_a_compressed_cache(
    tmp_path_factory: pytest.TempPathFactory,
    short_cut: bool,
    compression: Compression,
    tiers: set[TierName],
    repeats: int,
    deleted: frozenset[int],
) -> None:
    """This holds even if a training with other settings filled the cache without compression."""
    folder = tmp_path_factory.mktemp("compressed")
    budgets: dict[TierName, int] = dict.fromkeys(tiers, LARGE)
    cache, plain = source(folder / "cache", budgets, compression), source(folder / "cache", budgets)
    options: dict[str, Any] = {"short_cut": short_cut, "payload": lambda key: int64_payload(key) * (1 + repeats)}
    expected = content(batches(COMPRESSIBLE, **options))
    assert content(batches(COMPRESSIBLE, cache=cache, **options)) == expected
    for other in (plain, cache):
        served = batches(COMPRESSIBLE, cache=other, **options)
        assert content(served) == expected
        assert sum(counted(served)) == 120, "each comes from one of the tiers"
    if repeats > 100:
        assert sum(path.stat().st_size for path in files(folder)) < 60 * len(tiers) * 8 * repeats
    expected = content(batches(COMPRESSIBLE, deleted=deleted, **options))
    assert content(batches(COMPRESSIBLE, deleted=deleted, cache=cache, **options)) == expected
    shutil.rmtree(folder)


WITHOUT_LZ4 = """
import sys
from pathlib import Path

sys.modules["lz4"] = None  # as where it is not installed

from modyn.errors import ConfigError
from tests.dataset.cached.test_sample_cache import COMPRESSIBLE, LARGE, batches, content, counted, repeated, source

folder = Path(sys.argv[1])
for short_cut in (False, True):
    try:
        batches(short_cut=short_cut, cache=source(folder / "none", {"decoded": LARGE}, "lz4"))
    except ConfigError as error:
        print(error.message)
    for tier in ("encoded", "decoded"):
        options = {"short_cut": short_cut, "payload": repeated, "epochs": 1}
        cache = source(folder / f"{tier}-{short_cut}", {tier: LARGE}, "zstd")
        expected = content(batches(COMPRESSIBLE, **options))
        for _ in range(2):
            served = batches(COMPRESSIBLE, cache=cache, **options)
            print(content(served) == expected, sum(counted(served)))
"""


def repeated(key: int) -> bytes:
    return int64_payload(key) * 200


def test_without_a_library_that_others_compress_with(tmp_path: Path) -> None:
    """By name it is refused; values of a process that has it, on the same machine, count as missing, and are kept again."""
    tiers: tuple[TierName, ...] = ("encoded", "decoded")
    for short_cut in (False, True):
        for tier in tiers:
            cache = source(tmp_path / f"{tier}-{short_cut}", {tier: LARGE}, "lz4")
            options: dict[str, Any] = {"short_cut": short_cut, "payload": repeated, "cache": cache, "epochs": 1}
            batches(COMPRESSIBLE, **options)
            assert sum(counted(batches(COMPRESSIBLE, **options))) == 60
    command = [sys.executable, "-c", WITHOUT_LZ4, str(tmp_path)]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    refused = [line for line in lines if "lz4" in line]
    assert len(refused) == 2
    assert all("needs the package lz4, which is not installed: pip install 'modyn[lz4]'" in line for line in refused)
    assert [line for line in lines if "lz4" not in line] == ["True 0", "True 60"] * 4


@BOTH_WAYS
@pytest.mark.parametrize(("budget", "is_told"), [(3 * 5120, True), (7 * 5120, False), (LARGE, False)])
def test_a_cache_that_is_smaller_than_a_batch_is_warned_of_once(
    tmp_path: Path, short_cut: bool, budget: int, is_told: bool
) -> None:
    """Batches have seven samples, and each takes a page of memory and what the kernel keeps of a file."""
    expected = content(batches(short_cut=short_cut))
    with capture_logs() as lines:
        served = batches(short_cut=short_cut, cache=source(tmp_path / "cache", {"decoded": budget}))
    assert content(served) == expected
    told = [line for line in lines if line["event"] == "cache_is_smaller_than_a_batch"]
    assert len(told) == is_told
    for line in told:
        assert (line["tier"], line["budget_bytes"], line["log_level"]) == ("decoded", budget, "warning")
        assert line["reason"] == "7 samples take 35,840 bytes, more than all of the tier: give the cache a larger size"


@BOTH_WAYS
def test_what_is_cached_is_neither_read_nor_decoded_again(tmp_path: Path, short_cut: bool) -> None:
    asked: list[int] = []
    cache = source(tmp_path / "cache", {"decoded": LARGE})
    options: dict[str, Any] = {"short_cut": short_cut, "cache": cache, "before_fetch": lambda keys: asked.extend(keys.tolist())}
    first = batches(epochs=1, **options)
    assert sorted(asked) == sorted(KEYS)
    assert counted(first) == CachedCounts()
    asked.clear()
    second = batches(epochs=1, **options)
    assert asked == []
    assert counted(second) == CachedCounts(decoded=60)
    broken = PARSER.replace("return", "raise ValueError(1) #")
    assert content(batches(DATA.model_copy(update={"bytes_parser_function": broken}), epochs=1, **options)) == content(second)


@BOTH_WAYS
def test_encoded_samples_are_decoded_again(tmp_path: Path, short_cut: bool) -> None:
    asked: list[int] = []
    cache = source(tmp_path / "cache", {"encoded": LARGE})
    for times in range(2):
        served = batches(
            WHOLE_BATCHES, short_cut=short_cut, cache=cache, epochs=1, before_fetch=lambda keys: asked.extend(keys.tolist())
        )
        assert counted(served) == CachedCounts(encoded=60 * times)
    assert sorted(asked) == sorted(KEYS)


@pytest.mark.parametrize(
    ("short_cut", "tier", "harm"),
    [
        pytest.param(way, tier, harm, marks=[] if (number + way + (tier == "decoded")) % 2 else pytest.mark.slow)
        for number, harm in enumerate(("lost", "damaged", "empty"))
        for tier in ("encoded", "decoded")
        for way in (False, True)
    ],
)
def test_what_the_cache_loses_is_read(tmp_path: Path, short_cut: bool, tier: TierName, harm: str) -> None:
    """This includes losses between the check for a sample, which is made in advance, and its use."""
    folder = tmp_path / "cache"
    cache = source(folder, {tier: LARGE})
    expected = content(batches(short_cut=short_cut))
    batches(short_cut=short_cut, cache=cache)

    def hurt() -> None:
        files = sorted(path for path in next((folder / tier).glob("*/")).iterdir() if path.name != "account")
        for path in files[::3]:
            if harm == "lost":
                path.unlink()
            else:
                path.write_bytes(b"" if harm == "empty" else path.read_bytes()[:-3] + b"abc")

    hurt()
    assert content(batches(short_cut=short_cut, cache=cache)) == expected
    held = MemoryTier.holds

    def holds_and_loses(self: MemoryTier, keys: Any) -> Any:
        answer = held(self, keys)
        shutil.rmtree(folder, ignore_errors=True)
        return answer

    class Forgetful(MemoryTier):
        holds = holds_and_loses

    assert content(batches(short_cut=short_cut, cache=_Opened(cache, Forgetful))) == expected


class _Opened(CacheSource):
    """Opens tiers of another class."""

    def __init__(self, like: CacheSource, kind: Callable[[TierPlace, Path], MemoryTier]) -> None:
        for name in ("store", "address", "places", "compression", "sampler", "jobs"):
            object.__setattr__(self, name, getattr(like, name))
        object.__setattr__(self, "_kind", kind)

    def tier(self, place: TierPlace, _: object = None) -> MemoryTier:
        return self._kind(place, Path(self.address))  # type: ignore[attr-defined,no-any-return]


@BOTH_WAYS
def test_samples_that_are_deleted_while_they_are_read_drop_out(tmp_path: Path, short_cut: bool) -> None:
    cache = source(tmp_path / "cache", {"decoded": LARGE})
    batches(short_cut=short_cut, cache=cache)
    deleted = frozenset(range(0, 60, 4))
    served = batches(short_cut=short_cut, cache=cache, deleted=deleted, epochs=1)
    assert sorted(torch.cat([batch.keys for batch in served]).tolist()) == sorted(set(KEYS.tolist()) - deleted)
    assert sum(batch.num_skipped for batch in served) == len(deleted)


@BOTH_WAYS
def test_bad_samples_are_left_out_as_without_a_cache(tmp_path: Path, short_cut: bool) -> None:
    data = DATA.model_copy(
        update={
            "on_bad_sample": "skip",
            "deterministic_transformations": ("lambda x: x if int(x) % 7 else {}['bad']",),
        }
    )
    cache = source(tmp_path / "cache", {"decoded": LARGE, "encoded": LARGE})
    expected = batches(data, short_cut=short_cut)
    for _ in range(2):
        served = batches(data, short_cut=short_cut, cache=cache)
        assert content(served) == content(expected)
        assert [batch.bad for batch in served] == [batch.bad for batch in expected]


def test_a_parser_that_returns_other_shapes_is_named(tmp_path: Path) -> None:
    cache = source(tmp_path / "cache", {"decoded": LARGE})
    batches(short_cut=True, cache=cache, epochs=1)
    (tmp_path / "cache/decoded").joinpath(b"decoded".ljust(12).hex(), "7").unlink()
    other = PARSER.replace("[:1]", "[[0, 0]]")
    with pytest.raises(UserCodeError, match=r"sample 7 of dataset 'fake' was decoded to a Tensor of shape \[2\]"):
        batches(DATA.model_copy(update={"bytes_parser_function": other}), short_cut=True, cache=cache, epochs=1)


@BOTH_WAYS
@pytest.mark.parametrize("tiers", [("decoded",), ("decoded", "encoded")], ids="-".join)
def test_sparse_samples_are_decoded_each_time_and_told_of_once(
    tmp_path: Path, short_cut: bool, tiers: tuple[TierName, ...]
) -> None:
    """Batches are the same. The encoded samples may still be cached."""
    sparse = DATA.model_copy(
        update={
            "bytes_parser_function": PARSER.replace(".double()", ".double().to_sparse()"),
            "random_transformations": ("lambda x: x.to_dense() + torch.rand(1)",),
        }
    )
    cache = source(tmp_path / "cache", dict.fromkeys(tiers, LARGE))
    expected = content(batches(sparse, short_cut=short_cut))
    for number in range(2):
        with capture_logs() as lines:
            served = batches(sparse, short_cut=short_cut, cache=cache)
        assert content(served) == expected
        if number:
            assert counted(served) == CachedCounts(encoded=120 * ("encoded" in tiers))
        (told,) = [line for line in lines if line["event"] == "cache_cannot_keep_sample"]
        assert (told["tier"], told["log_level"]) == ("decoded", "warning")
        assert told["key"] in KEYS
        assert told["reason"] == (
            "the sample is a sparse tensor (torch.sparse_coo); the cache cannot keep it: parser and transformations must return "
            "dense tensors on the CPU, arrays of numbers, images of PIL, numbers, or tuples or dicts of such, or `split` must give that "
            "form no part"
        )


@BOTH_WAYS
def test_a_sample_that_only_keeping_would_fail_on_is_left_to_the_pipeline(tmp_path: Path, short_cut: bool) -> None:
    """An image that is cut off: nothing fails before its pixels are used."""
    data = DataConfig(
        dataset_id="fake",
        bytes_parser_function="def bytes_parser_function(data):\n    return Image.open(io.BytesIO(data))",
        random_transformations=("lambda image: torch.from_numpy(np.array(image))",),
        on_bad_sample="skip",
    )
    file = io.BytesIO()
    Image.new("L", (50, 50)).save(file, "JPEG")
    whole = file.getvalue()
    options: dict[str, Any] = {"short_cut": short_cut, "payload": lambda key: whole[:-30] if key == 7 else whole}
    expected = batches(data, **options)
    assert [bad.key for batch in expected for bad in batch.bad] == [7, 7]
    served = batches(data, cache=source(tmp_path / "cache", {"decoded": LARGE}), **options)
    assert content(served) == content(expected)
    assert [batch.bad for batch in served] == [batch.bad for batch in expected]


def test_empty_and_lost_samples_say_nothing_of_the_size_of_others(tmp_path: Path) -> None:
    """Over Flight samples are fetched in slices of bounded size, cut by the size of those that came before."""
    data = DATA.model_copy(
        update={"bytes_parser_function": "def bytes_parser_function(data):\n    return torch.tensor([len(data)])"}
    )
    limits = ReadLimits(fetch_samples=1000, fetch_bytes=50_000, first_fetch=5)

    def largest(cache: CacheSource | None) -> int:
        asked: list[int] = []
        keys = FakeTriggerSet(
            np.arange(200),
            200,
            payload=lambda key: bytes(10_000 if key % 5 else 0),
            before_fetch=lambda keys: asked.append(len(keys)),
            cache=cache,
        )
        list(TriggerSetDataset(keys.info, data, keys, LoadOptions(7, drop_last=False, epochs=2, limits=limits)).serve())
        return max(asked)

    cache = source(tmp_path / "cache", {"encoded": 600_000, "decoded": 200_000})
    for _ in range(2):
        assert largest(cache) <= 2 * largest(None)


def test_a_fetch_of_empty_samples_alone_does_not_enlarge_the_next_one(tmp_path: Path) -> None:
    """The first fetches find all their other samples in the cache."""
    data = DATA.model_copy(
        update={"bytes_parser_function": "def bytes_parser_function(data):\n    return torch.tensor([len(data)])"}
    )
    cache, asked = source(tmp_path / "cache", {"encoded": LARGE}), list[int]()
    for sample_keys in (np.flatnonzero(np.arange(40) % 5), np.arange(200)):
        asked.clear()
        keys = FakeTriggerSet(
            sample_keys,
            len(sample_keys),
            payload=lambda key: bytes(10_000 if key % 5 else 0),
            before_fetch=lambda keys: asked.append(len(keys)),
            cache=cache,
        )
        limits = ReadLimits(fetch_samples=1000, fetch_bytes=50_000, first_fetch=5)
        list(TriggerSetDataset(keys.info, data, keys, LoadOptions(7, drop_last=False, limits=limits)).serve())
    assert max(asked) <= 5


@pytest.mark.parametrize(
    "drawing",
    [
        {"bytes_parser_function": PARSER.replace("return", "torch.rand(1); return")},
        {"deterministic_transformations": ("lambda x: x + torch.rand(1)",)},
        {
            "bytes_parser_function": PARSER.replace("data: memoryview", "data, generator").replace(
                "return", "torch.rand(1, generator=generator); return"
            )
        },
        {"bytes_parser_function": PARSER.replace("return", "__import__('os').urandom(1); return")},
        {"bytes_parser_function": "tests.support.drawing_parser:parse"},
    ],
    ids=["parser", "transformation", "generator", "of the system", "imported"],
)
def test_what_draws_is_not_kept_decoded(tmp_path: Path, drawing: dict[str, Any]) -> None:
    data = DATA.model_copy(update=drawing)
    cache = source(tmp_path / "cache", {"decoded": LARGE})
    assert not data.keeps_decoded
    for _ in range(2):
        assert counted(batches(data, short_cut=True, cache=cache)) == CachedCounts()


def test_samples_of_no_bytes_are_samples(tmp_path: Path) -> None:
    """Over Flight, cached samples also arrive without bytes."""
    data = DATA.model_copy(
        update={"bytes_parser_function": "def bytes_parser_function(data):\n    return torch.tensor([len(data)])"}
    )
    cache = source(tmp_path / "cache", {"encoded": LARGE})
    options: dict[str, Any] = {"short_cut": False, "payload": lambda key: b"" if key % 2 else int64_payload(key)}
    for _ in range(2):
        assert content(batches(data, cache=cache, **options)) == content(batches(data, **options))


def test_a_tier_that_others_have_given_another_budget_is_left_out(tmp_path: Path) -> None:
    """A training that runs continues; one that begins is told, see `training_cache`."""
    expected = content(batches(short_cut=True, cache=source(tmp_path / "cache", {"decoded": LARGE})))
    served = batches(short_cut=True, cache=source(tmp_path / "cache", {"decoded": LARGE - 1}))
    assert content(served) == expected
    assert counted(served) == CachedCounts()


def test_images_of_pil_are_kept_before_random_transformations(tmp_path: Path) -> None:
    parser = """
from PIL import Image
from structlog.testing import capture_logs

def bytes_parser_function(data):
    return Image.frombytes("L", (4, 2), bytes(data))
"""
    data = DataConfig(
        dataset_id="fake",
        bytes_parser_function=parser,
        deterministic_transformations=("lambda image: image.resize((8, 8))",),
        random_transformations=("lambda image: torch.from_numpy(np.array(image)) + torch.rand(1)",),
    )
    cache = source(tmp_path / "cache", {"decoded": LARGE})
    first, second = (batches(data, short_cut=True, cache=cache, epochs=1) for _ in range(2))
    assert content(first) == content(second)
    assert counted(second) == CachedCounts(decoded=60)


def opened(folder: Path) -> TierInUse:
    places: dict[TierName, TierPlace] = {"augmented": TierPlace("augmented", b"augmented".ljust(12), LARGE)}
    tier = CacheSource("memory", str(folder), places, sampler="coordinated").open_managed()
    assert tier is not None
    tier.put(KEYS[:3], [torch.tensor(key) for key in KEYS[:3]], np.zeros(3, np.int64))
    return tier


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Let another process hold the lock of the tier within the block."""
    with (folder / "augmented" / LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_sample_that_could_not_be_dropped_and_is_filled_again_stays(tmp_path: Path) -> None:
    tier, new = opened(tmp_path), np.ones(1, np.int64)
    with held(tmp_path):
        tier.drop(KEYS[:3])
    tier.put(KEYS[:1], [torch.tensor(7)], new)
    tier.forget_drops(KEYS[1:2])  # filled by another process
    tier.drop(KEYS[:0])
    assert tier.holds(KEYS[:3]).tolist() == [True, True, False]
    assert tier.get(KEYS[:1], new) == [torch.tensor(7)]


def test_a_batch_tries_a_bounded_number_of_drops_again(tmp_path: Path) -> None:
    tier, many = opened(tmp_path), np.arange(10_000, 10_000 + 2 * RETRIED)
    with held(tmp_path):
        tier.drop(many)
        tier.drop(KEYS[:3])
    held_by_drops = [tier.holds(KEYS[:3]).all()]
    for _ in range(3):
        tier.drop(KEYS[:0])
        held_by_drops.append(tier.holds(KEYS[:3]).all())
    assert held_by_drops == [True, True, True, False]
