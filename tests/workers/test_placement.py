"""Placement as a pure function: for all sessions, its choice is allowed, and no other is better."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.workers.placement import CONTEXT_BYTES, Occupant, Placement, place

GPU = 80 << 30
DEVICES = st.sampled_from(["cpu", "cuda:0", "cuda:1"])
KEYS = st.sampled_from(["a", "b", None])
OCCUPANTS = st.lists(
    st.builds(Occupant, KEYS, DEVICES, st.booleans(), st.integers(0, GPU), st.integers(0, 100)),
    max_size=6,
)
WANTED = st.sampled_from(["cpu", "cuda", "cuda:0", "cuda:1"])


@given(KEYS, WANTED, OCCUPANTS, st.integers(1, 6))
def test_what_is_chosen_is_allowed(key: str | None, device: str, occupants: list[Occupant], max_workers: int) -> None:
    gpus = [GPU, GPU]
    found = place(key, device, occupants, max_workers, gpus)
    assert found == place(key, device, list(occupants), max_workers, gpus)
    assert found.device in (["cuda:0", "cuda:1"] if device == "cuda" else [device])
    if found.reuse is not None:
        reused = occupants[found.reuse]
        assert not reused.busy
        assert (reused.key, reused.device) == (key, found.device)
        assert key is not None
        assert found.reuse not in found.end
    assert not any(occupants[i].busy for i in found.end)
    staying = [occupant for i, occupant in enumerate(occupants) if i not in found.end]
    running = sum(occupant.busy for occupant in occupants)
    assert len(staying) + (found.reuse is None) <= max(max_workers, running + 1)


@given(KEYS, OCCUPANTS)
def test_no_other_gpu_has_fewer_jobs(key: str | None, occupants: list[Occupant]) -> None:
    found = place(key, "cuda", occupants, 6, [GPU, GPU])

    def running(device: str) -> int:
        return sum(occupant.busy for occupant in occupants if occupant.device == device)

    assert running(found.device) == min(running("cuda:0"), running("cuda:1"))


@given(KEYS, OCCUPANTS)
def test_half_of_the_gpu_is_free_or_nothing_idle_is_left_on_it(key: str | None, occupants: list[Occupant]) -> None:
    found = place(key, "cuda:0", occupants, 6, [GPU, GPU])
    staying = [o for i, o in enumerate(occupants) if i not in found.end and i != found.reuse and o.device == "cuda:0"]
    held = sum(CONTEXT_BYTES + occupant.device_bytes for occupant in staying)
    assert 2 * held <= GPU or all(occupant.busy for occupant in staying)


@pytest.mark.parametrize(
    ("occupants", "found"),
    [
        ([], Placement("cuda:0")),
        ([Occupant("b", "cuda:0", busy=False, device_bytes=1 << 30)], Placement("cuda:1")),
        ([Occupant("a", "cuda:1", busy=False, device_bytes=GPU)], Placement("cuda:1", 0)),
        (
            [Occupant("b", "cuda:0", busy=True), Occupant("b", "cuda:1", busy=False, device_bytes=GPU)],
            Placement("cuda:1", end=(1,)),
        ),
    ],
)
def test_a_gpu_is_chosen_by_jobs_session_and_memory(occupants: list[Occupant], found: Placement) -> None:
    assert place("a", "cuda", occupants, 4, [GPU, GPU]) == found


def test_without_a_gpu_the_first_is_named_and_the_worker_refuses_it() -> None:
    assert place("a", "cuda", [], 1) == Placement("cuda:0")


def test_the_least_recently_used_session_makes_space() -> None:
    idle = [Occupant("a", "cpu", busy=False, used=2), Occupant("b", "cpu", busy=False, used=1)]
    assert place("c", "cpu", idle, 2) == Placement("cpu", end=(1,))
    assert place("b", "cpu", idle, 2) == Placement("cpu", 1)
