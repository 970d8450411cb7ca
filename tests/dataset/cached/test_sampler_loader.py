"""Trainings with batches that a cache sampler decides: each epoch serves every sample once, unchanged, even if others die or values are lost."""

from __future__ import annotations

import fcntl
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from modyn.cache.keys import TierName
from modyn.cache.plan.performance_model import values_in_step
from modyn.cache.sample_numbers import NO_SAMPLES
from modyn.cache.sharing.served_batch import SharedBatch
from modyn.cache.sharing.shared_job import SharedJob
from modyn.cache.tiers.memory_tier import MemoryTier
from modyn.cache.tiers.tier import TierPlace
from modyn.config.cache import SamplerName, managed_tier
from modyn.dataset.batch import NO_WORK, CacheWork
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.cached.sampler_loader import PIECE, PROBED, SamplerLoader, trigger_set_keys
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients
from modyn.dataset.order.batch_plan import BatchPosition
from modyn.dataset.reader import BATCHES_AHEAD
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.errors import NotFoundError
from modyn.records import Int64Array
from modyn.testing.waiting import PATIENCE_S, at_rest, eventually
from tests.dataset.cached.test_sample_cache import ROWS_OF_BATCHES
from tests.support.fake_dataset import FakeTriggerSet, StuckPayloadClient
from tests.support.sampled_jobs import DATA, KEYS, NUM_KEYS, GoneInWorkers, Job, read_in_turn

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

LARGE = 1 << 22
NOT_DRAWN = DATA.model_copy(update={"random_transformations": ()})
BOTH_WAYS = pytest.mark.parametrize("short_cut", [False, True])


@contextmanager
def no_thread_is_left() -> Iterator[None]:
    """Assert that no thread is left; threads of queues end shortly after the queues are closed."""
    before = set(threading.enumerate())
    yield
    eventually(
        lambda: set(threading.enumerate()) <= before, lambda: [thread.name for thread in set(threading.enumerate()) - before]
    )


def source(folder: Path, sampler: SamplerName = "coordinated", **budgets: int) -> CacheSource:
    places: dict[TierName, TierPlace] = {
        name: TierPlace(name, name.encode().ljust(12), budget)  # type: ignore[misc]
        for name, budget in ({managed_tier(sampler) or "augmented": LARGE} | budgets).items()
    }
    return CacheSource("memory", str(folder), places, sampler=sampler)


@pytest.mark.parametrize(
    ("num_jobs", "short_cut"),
    [(1, True), (2, False), (4, True), *(pytest.param(num, num == 2, marks=pytest.mark.slow) for num in (1, 2, 4))],
)
def test_jobs_in_step_prepare_each_sample_once(num_jobs: int, short_cut: bool, tmp_path: Path) -> None:
    cache = source(tmp_path)
    jobs = [Job(cache, seed, short_cut=short_cut) for seed in range(num_jobs)]
    read_in_turn(jobs)
    for job in jobs:
        job.check()
    hits = sum(job.num_augmented for job in jobs) / (3 * NUM_KEYS * num_jobs)
    assert hits >= 0.8 * (num_jobs - 1) / num_jobs
    assert hits <= (num_jobs - 1) / num_jobs
    others = {tuple(job.batches[0].keys.tolist()) for job in jobs}
    assert len(others) == num_jobs


@pytest.mark.parametrize(("jobs", "room", "is_told"), [(2, 0.95, True), (2, 1.05, False), (4, 1.05, True), (1, 0.95, True)])
def test_little_room_to_share_is_told_once(jobs: int, room: float, is_told: bool, tmp_path: Path) -> None:
    """`room`: as a part of what two trainings in step need. One that says no number is to share with another at least."""
    needed = values_in_step(NUM_KEYS, 2, 7)
    value_bytes = MemoryTier(TierPlace("augmented", bytes(12), 0), tmp_path).charge(200)
    cache = replace(source(tmp_path, augmented=round(room * needed * value_bytes)), jobs=jobs)
    with capture_logs() as lines:
        Job(cache, 1).read().check()
    told = [line for line in lines if line["event"] == "cache_has_little_room_to_share"]
    assert len(told) == is_told
    for line in told:
        assert line["log_level"] == "warning"
        found = f"there is room for {line['capacity']} augmented samples, and {max(2, jobs)} trainings in step need it for "
        assert found + str(values_in_step(NUM_KEYS, max(2, jobs), 7)) in line["reason"]
        assert "larger `size`" in line["reason"]


@BOTH_WAYS
@given(data=st.data())
@settings(max_examples=settings().max_examples // 2)
def test_each_epoch_serves_each_sample_once(
    short_cut: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Jobs with different batch sizes, samples and speeds die and resume; values and state are lost; samples are deleted."""
    folder = tmp_path_factory.mktemp("cache")
    budgets = data.draw(
        st.fixed_dictionaries(
            {"augmented": st.sampled_from([0, 60_000, LARGE])}, optional={"decoded": st.just(LARGE), "encoded": st.just(LARGE)}
        )
    )
    cache = source(folder, "coordinated", **budgets)
    deleted = data.draw(st.frozensets(st.integers(0, NUM_KEYS - 1), max_size=10))
    subsets = data.draw(st.lists(st.sets(st.integers(0, NUM_KEYS - 1), min_size=12), min_size=1, max_size=3))
    keys = [sorted({*subset, NUM_KEYS - 1}) for subset in subsets]
    # Where nothing is drawn, a thread also decodes ahead of use.
    code = data.draw(st.sampled_from([DATA, NOT_DRAWN]))
    jobs = [
        Job(cache, seed, own, data.draw(st.integers(2, 20)), data=code, short_cut=short_cut, deleted=deleted)
        for seed, own in enumerate(keys)
    ]
    while running := [job for job in jobs if not job.is_over]:
        job = data.draw(st.sampled_from(running))
        match data.draw(st.sampled_from(["read", "read", "read", "kill", "close", "lose values", "lose state"])):
            case "read":
                job.read(data.draw(st.integers(1, 6)))
            case "kill":
                job.kill()
            case "close":
                job.loader.close()
                job.begin()
            case "lose values":
                MemoryTier(TierPlace("augmented", bytes(12), 0), folder).clear()
            case "lose state":
                shutil.rmtree(folder / "sharing", ignore_errors=True)
    for job, own in zip(jobs, keys, strict=True):
        job.check([key for key in own if key not in deleted], is_one_thread=code == DATA)
    shutil.rmtree(folder, ignore_errors=True)


@BOTH_WAYS
@pytest.mark.parametrize(("data", "ahead"), [(DATA, 0), (NOT_DRAWN, BATCHES_AHEAD)], ids=["drawn", "not drawn"])
def test_batches_are_made_ahead_where_nothing_is_drawn(data: DataConfig, ahead: int, short_cut: bool, tmp_path: Path) -> None:
    read: list[int] = []
    job = Job(source(tmp_path), 1, data=data, short_cut=short_cut, before_fetch=lambda keys: read.extend(keys.tolist()))
    with no_thread_is_left():
        for number in range(1, 4):
            job.read(1)
            # To see how large a value is, samples are read before the first batch; others are read once.
            expected = PROBED + (number + ahead) * job.size
            assert at_rest(lambda: len(read), expected, rest_s=0.2) == expected
        job.loader.close()


@BOTH_WAYS
@pytest.mark.parametrize("data", [DATA, NOT_DRAWN], ids=["drawn", "not drawn"])
def test_an_error_comes_in_its_turn(data: DataConfig, short_cut: bool, tmp_path: Path) -> None:
    """The batches before the error are trained on. A training that resumes at the error serves the remaining samples once."""
    is_broken, num_read = threading.Event(), 0

    def fetch(keys: Any) -> None:
        nonlocal num_read
        num_read += len(keys)
        if is_broken.is_set() and num_read > PROBED + 5 * 7:
            raise NotFoundError("the disk is gone")

    job = Job(source(tmp_path), 1, data=data, short_cut=short_cut, before_fetch=fetch)
    is_broken.set()
    with no_thread_is_left(), pytest.raises(NotFoundError, match="the disk is gone"):
        for _ in range(9):
            job.read(1)
    assert len(job.batches) == 5
    is_broken.clear()
    job.kill().read()
    job.check(is_one_thread=data == DATA)


def test_closing_ends_what_waits_for_storage() -> None:
    """Such a batch is made ahead, and nothing uses it."""
    keys = FakeTriggerSet(KEYS, 25)
    options = LoadOptions(20, drop_last=False, shuffle=True, seed=1)
    wanted = trigger_set_keys(TriggerSetDataset(keys.info, NOT_DRAWN, keys, options))
    assert wanted is not None
    _, second, _ = SamplerLoader(TriggerSetDataset(keys.info, NOT_DRAWN, keys, options), None, wanted)
    client = StuckPayloadClient(keys.storage(), stuck_key=int(second.keys[0]))
    dataset = TriggerSetDataset(keys.info, NOT_DRAWN, lambda: DatasetClients(keys().selector, client), options)
    with no_thread_is_left(), SamplerLoader(dataset, None, wanted) as loader:
        next(iter(loader))
        assert client.started.wait(PATIENCE_S)
    assert client.called_off.is_set()


def test_what_makes_no_whole_batch_is_left_out(tmp_path: Path) -> None:
    job = Job(source(tmp_path), 1)
    job.loader.close()
    job.begin(drop_last=True)
    job.read(20)
    job.loader.close()
    job.begin(drop_last=True)
    job.read()
    assert [len(of_epoch) for of_epoch in job.served.values()] == [56, 56, 56]
    assert all(max(Counter(of_epoch).values()) == 1 for of_epoch in job.served.values())
    assert {len(batch) for batch in job.batches} == {7}


def test_without_a_cache_a_training_resumes_where_it_was(tmp_path: Path) -> None:
    job = Job(source(tmp_path), 1).read(11)
    shutil.rmtree(tmp_path)
    job.cache = job.keys.cache = None
    job.kill().read()
    job.check()


def test_by_processes(tmp_path: Path) -> None:
    cache = source(tmp_path)
    jobs = [Job(cache, seed, workers=2) for seed in range(2)]
    read_in_turn(jobs)
    for job in jobs:
        job.check()
        assert job.num_augmented > 0


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[SharedBatch]:
    """What samplers decide from now on."""
    found: list[SharedBatch] = []
    next_batch = SharedJob.next_batch

    def noted(job: SharedJob, size: int) -> SharedBatch:
        found.append(next_batch(job, size))
        return found[-1]

    monkeypatch.setattr(SharedJob, "next_batch", noted)
    return found


@BOTH_WAYS
@pytest.mark.parametrize("num_jobs", [1, 2])
def test_each_hit_finds_its_value_and_values_are_dropped(
    num_jobs: int, short_cut: bool, tmp_path: Path, decided: list[SharedBatch]
) -> None:
    """The test uses one thread. One batch may both serve a sample and prepare it again."""
    cache = source(tmp_path, "opportunistic", augmented=100_000)
    jobs = [Job(cache, seed, short_cut=short_cut) for seed in range(num_jobs)]
    read_in_turn(jobs)
    for job in jobs:
        job.check()
    assert sum(job.num_augmented for job in jobs) == sum(int(batch.hits.sum()) for batch in decided) > 0
    assert sum(len(batch.evicted) for batch in decided) > 0


class Crossing:
    """Trainings of which others make batches while one waits for storage: it has read its hits by then, and has dropped nothing yet."""

    def __init__(self, cache: CacheSource, num_jobs: int = 3, epochs: int = 3) -> None:
        self.turns: Iterator[int] = repeat(-1)
        """Which one of those that do nothing makes a batch now: by its place among them; none where there are fewer."""
        self._reading = set[int]()
        self.jobs: list[Job] = []
        for seed in range(num_jobs):
            job = Job(cache, seed, short_cut=True, epochs=epochs, before_fetch=lambda _, of=seed: self._cross())
            self.jobs.append(job)

    def _cross(self) -> None:
        turn, idle = next(self.turns), self._idle()
        if 0 <= turn < len(idle):
            self.read(idle[turn])

    def _idle(self) -> list[int]:
        return [seed for seed, job in enumerate(self.jobs) if seed not in self._reading and not job.is_over]

    def read(self, seed: int) -> None:
        """Let one training make a batch."""
        self._reading.add(seed)
        self.jobs[seed].read(1)
        self._reading.remove(seed)

    def run(self) -> None:
        """Let all trainings continue to their end, the first trainings first."""
        while idle := self._idle():
            self.read(idle[0])
        for job in self.jobs:
            job.check()


@pytest.mark.parametrize("lead", [3, pytest.param(6, marks=pytest.mark.slow)])
def test_a_value_that_is_dropped_later_is_not_taken_for_the_next_one(lead: int, tmp_path: Path) -> None:
    """The first training waits for storage, and is to drop a value then; the second one is to prepare the sample again, and waits too; the third one,
    which has been served the old value, is to be served the new one."""
    crossing = Crossing(source(tmp_path, "opportunistic", augmented=100_000), epochs=6)
    for _ in range(lead):
        crossing.read(2)
    crossing.turns = repeat(0)
    crossing.run()
    assert sum(job.num_augmented for job in crossing.jobs) > 0


@given(data=st.data())
@settings(max_examples=settings().max_examples // 2)
def test_a_training_is_served_a_value_at_most_once(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """This holds for any order in which batches are decided, made and reported, if trainings are killed, and if others hold the tier, so that
    nothing is dropped."""
    folder = tmp_path_factory.mktemp("cache")
    samplers: list[SamplerName] = ["opportunistic", "coordinated"]
    sampler = data.draw(st.sampled_from(samplers))
    crossing = Crossing(source(folder, sampler, augmented=data.draw(st.sampled_from([40_000, 100_000, LARGE]))))
    for seed, lead in enumerate(data.draw(st.tuples(*[st.integers(0, 9)] * 3))):
        for _ in range(lead):
            crossing.read(seed)
    # Drawn before: storage is asked in other threads.
    crossing.turns = chain(data.draw(st.lists(st.integers(0, 3), min_size=40, max_size=40)), repeat(0))
    for _ in range(data.draw(st.integers(0, 4))):
        seed = data.draw(st.integers(0, 2))
        match data.draw(st.sampled_from(["read", "kill", "hold"])):
            case "read":
                crossing.read(seed)
            case "kill":
                crossing.jobs[seed].kill()
            case "hold" if (lock := folder / "augmented" / "budget").exists():
                with open(lock, "a+b") as held:
                    fcntl.flock(held, fcntl.LOCK_EX)
                    crossing.read(seed)
    crossing.run()
    shutil.rmtree(folder)


@pytest.mark.parametrize(("workers", "data"), [(1, NOT_DRAWN), (2, DATA)], ids=["thread", "processes"])
def test_refills_in_the_background_are_counted(
    workers: int, data: DataConfig, tmp_path: Path, decided: list[SharedBatch]
) -> None:
    cache = source(tmp_path, "opportunistic", augmented=100_000)
    with no_thread_is_left():
        jobs = [Job(cache, seed, workers=workers, data=data, short_cut=True) for seed in range(2)]
        read_in_turn(jobs)
    for job in jobs:
        job.check(is_one_thread=data == DATA)
    work = reduce(CacheWork.plus, [batch.work for job in jobs for batch in job.batches], NO_WORK)
    # What is left when the last batches are made is left out.
    assert work.read == work.decoded == work.augmented
    assert 2 * PROBED < work.read <= 2 * PROBED + sum(len(batch.refilled) for batch in decided)
    assert sum(job.num_augmented for job in jobs) > 0


def test_batches_do_not_wait_for_refills(tmp_path: Path) -> None:
    """The first batch leaves all other samples to the background, in chunks that are larger than a batch."""
    gate, sizes = threading.Event(), list[int]()

    def fetch(keys: Any) -> None:
        sizes.append(len(keys))
        # The first samples show how large a value is.
        if len(sizes) > 1 and len(keys) > 7:
            assert gate.wait(PATIENCE_S)

    job = Job(source(tmp_path, "opportunistic"), 1, data=NOT_DRAWN, short_cut=True, before_fetch=fetch)
    with no_thread_is_left():
        job.read(2)
        gate.set()
        job.read(3)
        job.loader.close()
        job.begin()
        job.read()
    job.check(is_one_thread=False)
    assert PIECE in sizes[1:]


@BOTH_WAYS
def test_refills_with_batches_are_counted(short_cut: bool, tmp_path: Path) -> None:
    """Reads for batches, reads in the background, and reads before the first batch, to see how large a value is."""
    cache = source(tmp_path, "opportunistic", augmented=100_000)
    asked: list[list[int]] = [[], []]
    jobs = [
        Job(cache, seed, short_cut=short_cut, before_fetch=lambda keys, of=asked[seed]: of.extend(keys.tolist()))
        for seed in range(2)
    ]
    read_in_turn(jobs)
    for job, read in zip(jobs, asked, strict=True):
        work = reduce(CacheWork.plus, [batch.work for batch in job.batches], NO_WORK)
        assert work.read == work.decoded == work.augmented > 0
        counted = work.read + 3 * NUM_KEYS - job.num_augmented
        # Over Flight a value may come back into the tier between asking whether it is there and reading it.
        assert len(read) == counted if short_cut else counted <= len(read) <= counted + NUM_KEYS
        assert work.evicted > 0
    stored = MemoryTier(cache.places["augmented"], tmp_path).stored()
    assert stored is not None
    assert stored.num_evicted > 0


def test_only_augmenting_counts_for_refills_that_are_cached_decoded(tmp_path: Path) -> None:
    cache = source(tmp_path, "opportunistic", augmented=100_000, decoded=LARGE)
    job = Job(cache, 1, short_cut=True).read()
    refills = [batch.work for batch in job.batches if batch.epoch == 2 and batch.work.augmented]
    assert refills
    assert all((work.read, work.decoded) == (0, 0) for work in refills)


def test_refills_are_reported_lost_where_no_tier_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: list[SharedBatch]
) -> None:
    """Otherwise, the state would wait for the lost values until the training leaves."""
    lost: set[int] = set()
    report_made = SharedJob.report_made

    def noted(job: SharedJob, number: int, kept: Int64Array = NO_SAMPLES, missing: Int64Array = NO_SAMPLES) -> None:
        lost.update(missing.tolist())
        assert not len(kept)
        report_made(job, number, kept, missing)

    monkeypatch.setattr(SharedJob, "report_made", noted)
    whole = source(tmp_path, "opportunistic")
    cache = GoneInWorkers(whole.store, whole.address, whole.places, sampler=whole.sampler)
    job = Job(cache, 1, workers=2, epochs=1).read()
    job.check()
    assert job.num_augmented == 0
    first = next(set(batch.refilled.tolist()) for batch in decided if len(batch.refilled))
    assert first <= lost


def test_what_was_decided_epochs_ahead_is_served_again(tmp_path: Path) -> None:
    """If an epoch has few batches, processes make batches of later epochs while the first epoch is trained on."""
    keys = KEYS[:9]
    job = Job(source(tmp_path), 1, keys, size=5, workers=2)
    while not job.is_over:
        job.read(1)
        if not job.is_over and job.position in (BatchPosition(0, 1), BatchPosition(1, 2)):
            job.kill()
    job.check(keys)


def test_other_trainings_leave_augmented_samples_alone(tmp_path: Path) -> None:
    """One in the order of its plan, and its passes without random transformations, which others must not be served."""
    cache = source(tmp_path, decoded=LARGE)
    static = replace(cache, sampler="static")
    jobs = [Job(cache, seed) for seed in range(2)]
    while not all(job.is_over for job in jobs):
        for job in jobs:
            job.read(3)
        keys = FakeTriggerSet(KEYS, 25, cache=static)
        options = LoadOptions(7, drop_last=False, shuffle=True, seed=3, training=False)
        batches = list(TriggerSetDataset(keys.info, DATA, keys, options).serve())
        assert not any(batch.cached.augmented for batch in batches)
    for job in jobs:
        job.check()
        assert job.num_augmented > 0
        assert not any((batch.data[:, 0] == 3 * batch.keys).any() for batch in job.batches)  # type: ignore[call-overload, index]


def test_samples_of_which_nothing_decoded_can_be_kept_are_shared(tmp_path: Path) -> None:
    data = ROWS_OF_BATCHES.model_copy(
        update={
            "deterministic_transformations": ("lambda x: (3 * x).double()",),
            "random_transformations": ("lambda x: x + torch.rand(1)",),
        }
    )
    jobs = [Job(source(tmp_path), seed, data=data) for seed in range(2)]
    read_in_turn(jobs)
    for job in jobs:
        job.check()
        assert job.num_augmented > 0


def test_nothing_is_left_of_trainings_that_have_ended_early(tmp_path: Path) -> None:
    cache = source(tmp_path)
    jobs = [Job(cache, seed, workers=2) for seed in range(2)]
    for job in jobs:
        job.read(3)
    for job in jobs:
        job.loader.close()
    stored = MemoryTier(cache.places["augmented"], tmp_path).stored()
    assert stored is not None
    known = {key for job in jobs for batch in job.batches for key in batch.keys.tolist()}
    assert stored.num_samples <= len(known)


def test_a_trigger_set_with_a_repeated_sample_has_no_sampler(tmp_path: Path) -> None:
    keys = FakeTriggerSet(np.array([1, 2, 1]), 25)
    assert trigger_set_keys(TriggerSetDataset(keys.info, DATA, keys, LoadOptions(2))) is None
