"""What holds for all samplers, whatever jobs do, and what each promises, by a reference that keeps plain sets and dictionaries."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.cache.samplers import SAMPLERS, CacheJob, Sampler, Serving, Shade
from modyn.errors import ConflictError, InvalidArgumentError

EXACT = sorted(SAMPLERS.keys() - {"shade"})
KINDS = [(name, augmented) for name in EXACT for augmented in (False, True) if not (augmented and SAMPLERS[name].serves_again)]


class Reference:
    """The cache as it must be after each batch, and checks of each batch against it."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.served_to: dict[int, list[int]] = {}
        """Of each cached sample, the seeds of the jobs that its value was served to."""
        self.trains_on: dict[int, set[int]] = {}
        self.left: dict[int, set[int]] = {}
        """By seed, what its epoch has still to serve."""
        self.recent: OrderedDict[int, None] = OrderedDict()
        self.epochs: dict[int, int] = {}

    def join(self, trigger_set: set[int], seed: int, resumed: Any = None) -> CacheJob:
        job = self.sampler.join(np.array(sorted(trigger_set)), seed, resumed)
        self.trains_on[seed] = trigger_set
        if resumed is None:
            self.left[seed], self.epochs[seed] = set(trigger_set), 0
        elif self.sampler.augmented:
            for sample in self.served_to.keys() & trigger_set:
                self.served_to[sample].append(seed)
        self.check()
        return job

    def leave(self, job: CacheJob) -> None:
        self.sampler.leave(job)
        del self.trains_on[job.seed]
        for served in self.served_to.values():
            if job.seed in served:
                served.remove(job.seed)
        self.check()

    def sharers(self, sample: int) -> int:
        return sum(sample in trigger_set for trigger_set in self.trains_on.values())

    def usable(self, seed: int) -> set[int]:
        """Cached samples that may be hits of a job."""
        barred = {sample for sample, served in self.served_to.items() if self.sampler.augmented and seed in served}
        return (self.served_to.keys() & self.left[seed]) - barred

    def serve(self, job: CacheJob, size: int) -> Serving:
        seed = job.seed
        cached = set(self.served_to)
        batch = self.sampler.next_batch(job, size)
        if not self.left[seed] and len(batch.samples):
            self.left[seed] = set(self.trains_on[seed])
            self.epochs[seed] += 1
        usable = self.usable(seed)
        samples, hits = batch.samples.tolist(), set(batch.samples[batch.hits].tolist())
        assert len(set(samples)) == len(samples)
        assert set(samples) <= self.left[seed]
        assert hits <= usable
        assert batch.num_prepared == len(samples) - len(hits) + len(batch.refilled)
        self.left[seed] -= set(samples)
        for sample in batch.samples[batch.hits].tolist():
            self.served_to[sample].append(seed)
            self.recent.move_to_end(sample)
        for sample in batch.evicted.tolist():
            del self.served_to[sample]
            self.recent.pop(sample)
        assert set(batch.admitted.tolist()) <= set(samples) - hits - (cached - set(batch.evicted.tolist()))
        assert not set(batch.refilled.tolist()) & cached
        for sample in batch.admitted.tolist():
            self.served_to[sample] = [seed]
            self.recent[sample] = None
        for sample in batch.refilled.tolist():
            self.served_to[sample] = []
            self.recent[sample] = None
        self.check()
        return batch

    def check(self) -> None:
        values = self.sampler.values
        if self.sampler.expected is not None:
            # What is dropped when jobs join or leave stands in no batch.
            dropped = self.served_to.keys() - set(values.samples.tolist())
            assert all(len(self.served_to[sample]) >= self.sampler.expected[sample] for sample in dropped)
            for sample in dropped:
                del self.served_to[sample]
                del self.recent[sample]
        assert set(values.samples.tolist()) == self.served_to.keys()
        assert len(values) == len(self.served_to) <= values.capacity
        assert values.sharers.tolist() == [self.sharers(sample) for sample in range(self.sampler.num_samples)]
        if self.sampler.augmented:
            assert {sample: int(values.servings[values.slot_of[sample]]) for sample in self.served_to} == {
                sample: len(served) for sample, served in self.served_to.items()
            }


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, list[set[int]], list[tuple[str, int, int]]]:
    """Samples, capacity, trigger sets by seed, and what happens: (event, seed, batch size)."""
    num_samples = draw(st.integers(1, 24))
    trigger_sets = draw(st.lists(st.sets(st.integers(0, num_samples - 1), min_size=1), min_size=1, max_size=4))
    if draw(st.booleans()):
        trigger_sets = [set(range(num_samples))] * len(trigger_sets)
    event = st.sampled_from(["serve"] * 12 + ["join", "join", "leave", "resume"])
    events = st.tuples(event, st.integers(0, len(trigger_sets) - 1), st.integers(1, 12))
    return num_samples, draw(st.integers(0, num_samples)), trigger_sets, draw(st.lists(events, max_size=40))


def play(reference: Reference, trigger_sets: list[set[int]], events: list[tuple[str, int, int]]) -> list[Serving]:
    """Let the jobs do what the events say; a job joins before it is served, and one that resumes left before."""
    jobs: dict[int, CacheJob] = {}
    batches = []
    for event, seed, size in events:
        if seed not in jobs:
            jobs[seed] = reference.join(trigger_sets[seed], seed)
        elif event == "leave":
            reference.leave(jobs.pop(seed))
        elif event == "resume":
            state = jobs[seed].state_dict()
            reference.leave(jobs[seed])
            jobs[seed] = reference.join(trigger_sets[seed], seed, state)
        if event == "serve":
            batches.append(reference.serve(jobs[seed], size))
    # All go on to the ends of their epochs, in turn: no sample is left out, and no job waits for ever.
    ends = {seed: reference.epochs[seed] + 1 for seed in jobs if reference.left[seed]}
    for _ in range(200):
        if all(reference.epochs[seed] >= end or not reference.left[seed] for seed, end in ends.items()):
            return batches
        batches += [reference.serve(job, 3) for job in jobs.values()]
    raise AssertionError(f"samples are never served: {reference.left}")


@pytest.mark.parametrize(("name", "augmented"), KINDS)
@given(histories())
def test_each_epoch_serves_each_sample_once_whatever_jobs_do(
    name: str, augmented: bool, history: tuple[int, int, list[set[int]], list[tuple[str, int, int]]]
) -> None:
    num_samples, capacity, trigger_sets, events = history
    play(Reference(SAMPLERS[name](num_samples, capacity, 0, augmented)), trigger_sets, events)


@pytest.mark.parametrize(("name", "augmented"), KINDS)
@given(histories())
def test_the_same_seeds_give_the_same_batches(
    name: str, augmented: bool, history: tuple[int, int, list[set[int]], list[tuple[str, int, int]]]
) -> None:
    num_samples, capacity, trigger_sets, events = history
    first, second = (play(Reference(SAMPLERS[name](num_samples, capacity, 5, augmented)), trigger_sets, events) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert [np.asarray(part).tolist() for part in one] == [np.asarray(part).tolist() for part in other]


class Watched(Reference):
    """Checks besides, of what one sampler promises."""

    def serve(self, job: CacheJob, size: int) -> Serving:
        left = self.left[job.seed] or self.trains_on[job.seed]
        size_here = min(size, len(left))
        recent, served = list(self.recent), {sample: list(jobs) for sample, jobs in self.served_to.items()}
        barred = {sample for sample, jobs in served.items() if self.sampler.augmented and job.seed in jobs}
        had = len((served.keys() & left) - barred)
        room = self.sampler.values.num_free
        batch = super().serve(job, size)
        self.promise(job, size_here, batch, had, served, recent, room)
        return batch

    def promise(
        self, job: CacheJob, size: int, batch: Serving, had: int, served: dict[int, list[int]], recent: list[int], room: int
    ) -> None:
        """Args: had: usable samples before. served: jobs by cached sample, before. recent: cached samples by last use. room: free slots."""
        name = next(name for name, kind in SAMPLERS.items() if type(self.sampler) is kind)
        hits, missed = batch.samples[batch.hits].tolist(), batch.samples[~batch.hits].tolist()
        evicted, admitted = set(batch.evicted.tolist()), set(batch.admitted.tolist())
        spent = {sample for sample in hits if len(served[sample]) + 1 >= self.sharers(sample)}
        assert len(batch.samples) == size
        if name == "none":
            assert not hits
            assert not admitted
        elif name == "static":
            assert not evicted
            assert len(admitted) == min(room, len(missed))
        elif name in ("lru", "quiver"):
            assert len(admitted) == min(len(missed), self.sampler.values.capacity)
            unused = [sample for sample in recent if sample not in hits] + hits
            assert evicted == set(unused[: max(0, len(admitted) - room)])
        elif name == "opportunistic":
            assert len(hits) == min(size, had)
            assert evicted == spent
            uncached = self.sharing() - served.keys()
            assert len(batch.refilled) == min(room + len(evicted), len(uncached))
        elif name == "coordinated":
            shared = {sample for sample in missed if sample not in served and self.sharers(sample) > 1}
            if (
                all(trigger_set == self.sharing() for trigger_set in self.trains_on.values())
                and self.sampler.values.capacity <= 16
            ):
                assert len(hits) >= min(had, int(size * (1 - 1 / len(self.trains_on)) - 1e-6))
            assert spent <= evicted
            assert admitted <= shared
            assert len(admitted) == min(len(shared), self.sampler.values.capacity, room + len(evicted))
            assert len(evicted - spent) <= max(0, len(shared) - room - len(spent))
            # Others than those that were served to all make room only for the job's own share.
            assert len(evicted - spent) <= size
            assert len(admitted) >= min(len(shared), self.sampler.values.capacity, room + len(spent))

    def sharing(self) -> set[int]:
        return set().union(*self.trains_on.values())


@pytest.mark.parametrize(("name", "augmented"), [kind for kind in KINDS if kind[0] != "shared_loader"])
@given(histories())
def test_each_sampler_keeps_its_rule(
    name: str, augmented: bool, history: tuple[int, int, list[set[int]], list[tuple[str, int, int]]]
) -> None:
    num_samples, capacity, trigger_sets, events = history
    # One size of batch for all, so that a look at the slots covers a cache this small.
    events = [(event, seed, max(3, size)) for event, seed, size in events]
    play(Watched(SAMPLERS[name](num_samples, capacity, 0, augmented)), trigger_sets, events)


def test_a_cache_is_empty_when_all_jobs_have_left() -> None:
    for name in ("coordinated", "opportunistic", "shared_loader"):
        sampler = SAMPLERS[name](100, 50, 0, augmented=True)
        jobs = [sampler.join(np.arange(100), seed) for seed in range(3)]
        for job in jobs[:2]:
            sampler.next_batch(job, 10)
        assert len(sampler.values)
        for job in jobs:
            sampler.leave(job)
        assert len(sampler.values) == 0


def test_jobs_share_what_both_train_on_and_keep_nothing_else() -> None:
    sampler = SAMPLERS["coordinated"](1000, 300, 0, augmented=True)
    jobs = [sampler.join(np.arange(600), 1), sampler.join(np.arange(400, 1000), 2)]
    batches = [sampler.next_batch(job, 10) for _ in range(60) for job in jobs]
    assert {sample for batch in batches for sample in batch.admitted.tolist()} <= set(range(400, 600))
    assert 150 < sum(int(batch.hits.sum()) for batch in batches) <= 200


def test_a_shared_loader_makes_fast_jobs_wait_and_late_ones_begin_with_the_next_pass() -> None:
    sampler = SAMPLERS["shared_loader"](100, 30, 0, augmented=True)
    fast, slow = (sampler.join(np.arange(100), seed) for seed in (1, 2))
    ahead = [sampler.next_batch(fast, 10).samples for _ in range(4)]
    assert [len(samples) for samples in ahead] == [10, 10, 10, 0]
    late = sampler.join(np.arange(100), 3)
    assert len(sampler.next_batch(late, 10).samples) == 0
    assert np.array_equal(np.concatenate([sampler.next_batch(slow, 10).samples for _ in range(3)]), np.concatenate(ahead))
    sampler.leave(slow)
    while fast.num_left:
        sampler.next_batch(fast, 10)
    assert len(sampler.next_batch(late, 10).samples) == 10


def test_shade_draws_important_samples_more_often_and_keeps_them() -> None:
    sampler = Shade(1000, 200)
    job = sampler.join(np.arange(1000), 0)
    sampler.rank(np.arange(1000.0))
    batches = [sampler.next_batch(job, 50) for _ in range(200)]
    served = np.concatenate([batch.samples for batch in batches])
    assert job.epoch == 9
    assert np.mean(served >= 500) == pytest.approx(0.75, abs=0.02)
    assert set(sampler.values.samples.tolist()) <= set(range(800, 1000))
    last = np.concatenate([batch.hits for batch in batches[100:]])
    assert last.mean() == pytest.approx(0.36, abs=0.03)
    sampler.rank(-np.arange(1000.0))
    assert len(sampler.values) == 0


def test_shade_learns_losses() -> None:
    """Samples that no job trains on take no room; unknown and infinite losses count as the mean of the known ones."""
    sampler = Shade(128, 20)
    job = sampler.join(np.arange(100), 0)
    while len(sampler.values) < 20:
        sampler.next_batch(job, 10)
    before = set(sampler.values.samples.tolist())
    samples = np.arange(98)
    dropped = sampler.learn(samples, samples.astype(np.float32))
    assert set(dropped.tolist()) == before - set(range(78, 98))
    while len(sampler.values) < 20:
        sampler.next_batch(job, 10)
    assert set(sampler.values.samples.tolist()) == set(range(78, 98))
    assert len(sampler.learn(np.arange(100), np.full(100, np.nan, np.float32))) == 0
    dropped = sampler.learn(np.array([97]), np.array([-1], np.float32))
    assert dropped.tolist() == [97]


@pytest.mark.parametrize("trigger_set", [[], [1, 1], [-1], [10]])
def test_a_trigger_set_that_is_none_is_refused(trigger_set: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match="no trigger set"):
        SAMPLERS["coordinated"](10, 5).join(np.array(trigger_set, np.int64), 0)


@pytest.mark.parametrize("name", [name for name, kind in SAMPLERS.items() if kind.serves_again])
def test_samplers_that_serve_values_again_refuse_augmented_ones(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="decoded values"):
        SAMPLERS[name](10, 5, augmented=True)


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least 0"):
        SAMPLERS["none"](10, -1)
    with pytest.raises(InvalidArgumentError, match="at least 0"):
        SAMPLERS["none"](-1, 0)
    for sampler in (kind(10, 5) for kind in SAMPLERS.values()):
        job = sampler.join(np.arange(10), 0)
        with pytest.raises(InvalidArgumentError, match="at least 1"):
            sampler.next_batch(job, 0)
        sampler.leave(job)
        with pytest.raises(InvalidArgumentError, match="has joined"):
            sampler.next_batch(job, 1)


def test_a_cache_has_places_for_64_jobs() -> None:
    sampler = SAMPLERS["coordinated"](10, 5)
    for seed in range(64):
        sampler.join(np.arange(10), seed)
    with pytest.raises(ConflictError, match="64 jobs"):
        sampler.join(np.arange(10), 64)
