"""The rule of the shared state, on arrays: the reply to an exchange, and the changes by an exchange. `redis_state_scripts.py` is the same rule in
Lua.

This module has no I/O and no clock: the caller owns the arrays and provides the time.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.ma  # The first call of `np.unique` would import this module for 0.1 s, under the lock of the state.
import numpy.typing as npt

from modyn.cache.sample_numbers import among
from modyn.cache.sharing.state import (
    GONE,
    IS_ADMITTED,
    IS_GONE,
    IS_HELD,
    IS_LEAVING,
    IS_LEFT,
    IS_PENDING,
    IS_SERVED,
    IS_SERVED_LAST,
    IS_TAKEN,
    IS_UNSEEN,
    LEAVING,
    MOST_BEHIND,
    MOST_MEMBERS,
    MOST_STEPS,
    NOTHING_READ,
    PENDING,
    READY,
    BatchReply,
    BatchRequest,
    KeySetId,
    Member,
    Membership,
    UInt8Array,
    UInt32Array,
    ValueEntries,
)
from modyn.errors import ConflictError
from modyn.records import BoolArray, Int64Array

HEADER: Final = np.dtype(
    [
        (name, np.int64)
        for name in ("incarnation", "num_slots", "capacity", "first", "end", "count", "decisions", "generation", "next_place")
    ]
)
MEMBER: Final = np.dtype(
    [
        ("token", np.int64), ("seen_ms", np.int64), ("reading", np.int64), ("since", np.int64), ("is_barred", np.int64),
        ("digest", np.uint8, 16), ("num_bytes", np.int64),
    ]
)  # fmt: skip
"""Record of the job at a place. The place is free if the token is 0. All numbers have 8 bytes."""

StructArray = npt.NDArray[Any]


class ValueRing:
    """A state in arrays that the caller owns. The object keeps no copy.

    Args: header: (1,) of HEADER. members: (MOST_MEMBERS,) of MEMBER. stages, served, keys: (num_slots,), the values by slot.
    """

    def __init__(
        self, header: StructArray, members: StructArray, stages: UInt8Array, served: UInt32Array, keys: Int64Array
    ) -> None:
        self._header, self._members = header[0], members
        self._stages, self._served, self._keys = stages, served, keys

    @staticmethod
    def in_memory(num_slots: int) -> ValueRing:
        """Return a state in new arrays. Call `begin` before other methods."""
        return ValueRing(
            np.zeros(1, HEADER), np.zeros(MOST_MEMBERS, MEMBER), np.zeros(num_slots, np.uint8),
            np.zeros(num_slots, np.uint32), np.zeros(num_slots, np.int64),
        )  # fmt: skip

    @property
    def incarnation(self) -> int:
        """Number of the state; 0: the state has never begun."""
        return int(self._header["incarnation"])

    @property
    def is_consistent(self) -> bool:
        """Whether the numbers of the state are consistent."""
        first, end, count, capacity = (int(self._header[name]) for name in ("first", "end", "count", "capacity"))
        num_slots = len(self._stages)
        fits = int(self._header["num_slots"]) == num_slots and 0 < capacity <= num_slots
        return fits and 0 <= first <= end <= first + num_slots and 0 <= count <= min(capacity, end - first)

    def begin(self, incarnation: int, capacity: int) -> None:
        """Remove all values and jobs."""
        for name in HEADER.names or ():
            self._header[name] = 0
        self._header["incarnation"], self._header["num_slots"] = incarnation, len(self._stages)
        self._header["capacity"] = min(capacity, len(self._stages))
        self._members[:] = np.zeros((), MEMBER)

    def join(self, token: int, before: int, key_set: KeySetId, is_barred: bool, now_ms: int, lease_ms: int) -> Membership:
        """Assign a job to the free place that was assigned longest ago.

        Args: before: token of the job's earlier session, which ends; 0: none.
        Raises: ConflictError: all places are taken.
        """
        self._expel(now_ms, lease_ms)
        header, members = self._header, self._members
        if before:
            members["token"][members["token"] == before] = 0
        # A place is reused as late as possible, because masks of older values may still contain the bit of its earlier job.
        places = (int(header["next_place"]) + np.arange(MOST_MEMBERS)) % MOST_MEMBERS
        free = places[members["token"][places] == 0]
        if not len(free):
            raise ConflictError(f"{MOST_MEMBERS} jobs share this cache, and no more can: let one end, or use another cache")
        place = int(free[0])
        header["next_place"] = (place + 1) % MOST_MEMBERS
        header["generation"] += 1
        digest = np.frombuffer(key_set.digest, np.uint8)
        members[place] = (token, now_ms, NOTHING_READ, header["end"], is_barred, digest, key_set.num_bytes)
        return Membership(
            int(header["incarnation"]), place, token, len(self._stages), int(header["capacity"]),
            int(header["first"]), int(header["end"]), int(header["generation"]),
        )  # fmt: skip

    def leave(self, member: Membership) -> None:
        """Free the place of a job, if the job still has a place."""
        if self._has(member):
            self._members["token"][member.place] = 0
            self._header["generation"] += 1

    def members(self) -> tuple[int, list[Member]]:
        """Return the generation, and the jobs that have places."""
        found = [
            Member(place, int(row["since"]), bool(row["is_barred"]), KeySetId(row["digest"].tobytes(), int(row["num_bytes"])))
            for place, row in enumerate(self._members)
            if row["token"]
        ]
        return int(self._header["generation"]), found

    def entries(self, start: int, stop: int) -> ValueEntries:
        """Return values by number."""
        slots = np.arange(start, stop) % len(self._stages)
        return ValueEntries(self._keys[slots], self._stages[slots], self._served[slots])

    def exchange(self, member: Membership, request: BatchRequest, now_ms: int, lease_ms: int) -> BatchReply | None:
        """See `SharedState.exchange`."""
        if not self._has(member):
            return None
        header, members = self._header, self._members
        members["seen_ms"][member.place] = now_ms
        self._expel(now_ms, lease_ms)
        header["decisions"] += 1
        decision = int(header["decisions"])
        members["reading"][member.place] = request.reading
        if request.reading < 0:
            members["reading"][member.place] = decision if request.size else NOTHING_READ
        first, end = int(header["first"]), int(header["end"])
        refused = self._report(request)
        start = min(max(request.known, first), end)
        is_behind = end - start > MOST_BEHIND
        verdicts = np.full(len(request.wanted), IS_UNSEEN, np.uint8)
        choices = np.full(len(request.candidates), IS_LEFT, np.uint8)
        tail = evicted = self._keys[:0]
        if not is_behind:
            tail = self._keys[np.arange(start, end) % len(self._keys)]
            self._choose(request, start, tail, verdicts, choices)
            self._serve(member, request, verdicts)
            evicted = self._admit(member, request, choices)
        is_member = members["token"] != 0
        return BatchReply(
            decision, min(decision, int(members["reading"][is_member].min())), int(header["first"]), int(header["end"]), int(header["count"]),
            int(header["generation"]), self._live, tail, start, verdicts, choices, refused, evicted, is_behind,
        )  # fmt: skip

    @property
    def _live(self) -> int:
        return int(np.packbits(self._members["token"] != 0, bitorder="little").view("<u4")[0])

    def _has(self, member: Membership) -> bool:
        is_same = int(self._header["incarnation"]) == member.incarnation
        return is_same and int(self._members["token"][member.place]) == member.token

    def _expel(self, now_ms: int, lease_ms: int) -> None:
        is_late = (self._members["token"] != 0) & (self._members["seen_ms"] < now_ms - lease_ms)
        if is_late.any():
            self._members["token"][is_late] = 0
            self._header["generation"] += 1

    def _report(self, request: BatchRequest) -> Int64Array:
        """Apply the reports of values. Returns the numbers of values in the tier that the state no longer lists."""
        first, num_slots = int(self._header["first"]), len(self._stages)
        refused = []
        for numbers, is_refilled in ((request.kept, False), (request.refilled, True)):
            there = (numbers >= first) & (self._stages[numbers % num_slots] != GONE)
            slots = numbers[there] % num_slots
            new = slots[self._stages[slots] == PENDING]
            self._stages[new] = READY
            if is_refilled:
                self._served[new] = 0  # Until this report, the mask was the bit of the preparing job.
            refused.append(numbers[~there])
        self._remove(request.dropped[request.dropped >= first] % num_slots)
        return np.concatenate(refused)

    def _remove(self, slots: Int64Array) -> None:
        slots = np.unique(slots)
        slots = slots[self._stages[slots] != GONE]
        self._stages[slots] = GONE
        self._header["count"] -= len(slots)

    def _stages_of(self, numbers: Int64Array) -> tuple[UInt8Array, BoolArray]:
        """Return the stage of each value, and whether the value is lost because the job that should prepare it is no longer active. The stage of a
        lost value is GONE too."""
        slots = numbers % len(self._stages)
        stages = np.where(numbers >= int(self._header["first"]), self._stages[slots], np.uint8(GONE))
        # A value in preparation has one bit, that of the preparing job. `frexp` finds its position.
        owners = self._served[slots]
        places = np.clip(np.frexp(owners.astype(np.float64))[1] - 1, 0, MOST_MEMBERS - 1)
        counts = (owners & np.uint32(self._live) != 0) & (numbers >= self._members["since"][places])
        is_lost = (stages == PENDING) & ~counts
        return np.where(is_lost, np.uint8(GONE), stages), is_lost

    def _choose(self, request: BatchRequest, start: int, tail: Int64Array, verdicts: UInt8Array, choices: UInt8Array) -> None:
        """Fill `verdicts` and `choices`. Examine wanted values first, then candidates. If these are too few, examine more wanted values."""
        stages, is_lost = self._stages_of(request.wanted)
        ready = np.cumsum(stages == READY) - (stages == READY)
        """Number of ready values before each value."""
        num_hits = min(request.num_hits, request.size)
        num_served = min(int(np.count_nonzero(stages == READY)), num_hits)

        of_candidates, is_lost_candidate = self._stages_of(request.believed)
        in_tail = tail[self._stages[np.arange(start, start + len(tail)) % len(self._stages)] != GONE]
        held = (of_candidates != GONE) | among(request.candidates, in_tail)
        before = np.cumsum(~held) - ~held
        looked = before < request.size - num_served
        taken = looked & ~held
        choices[looked] = IS_HELD
        choices[taken] = IS_TAKEN
        choices[taken & request.keeps] = IS_ADMITTED

        looked_values = ready < max(num_hits, request.size - int(np.count_nonzero(taken)))
        names = np.array([IS_GONE, IS_PENDING, IS_SERVED, IS_LEAVING], np.uint8)
        verdicts[looked_values] = names[np.minimum(stages[looked_values], LEAVING)]
        lost = [request.wanted[looked_values & is_lost], request.believed[looked & is_lost_candidate]]
        self._remove(np.concatenate(lost) % len(self._stages))

    def _serve(self, member: Membership, request: BatchRequest, verdicts: UInt8Array) -> None:
        at = np.flatnonzero(verdicts == IS_SERVED)
        slots = request.wanted[at] % len(self._stages)
        served = self._served[slots] | np.uint32(1 << member.place)
        self._served[slots] = served
        live = self._live
        needed = (request.sharers[at] | np.uint32(live & ~request.known_members)) & np.uint32(live)
        is_last = needed & ~served == 0
        verdicts[at[is_last]] = IS_SERVED_LAST
        self._stages[slots[is_last]] = LEAVING

    def _admit(self, member: Membership, request: BatchRequest, choices: UInt8Array) -> Int64Array:
        """Assign numbers to the candidates that are kept, as far as there is room. Returns the keys of the oldest values, which are removed to make
        room."""
        header, num_slots = self._header, len(self._stages)
        first, end, count, capacity = (int(header[name]) for name in ("first", "end", "count", "capacity"))
        at = np.flatnonzero(choices == IS_ADMITTED)
        num_new = min(len(at), capacity)
        evicted = self._keys[:0]
        # Remove the oldest values until there is room, but examine at most MOST_STEPS slots.
        if count + num_new > capacity or end + num_new - first > num_slots:
            oldest = np.arange(first, min(end, first + MOST_STEPS)) % num_slots
            is_there = self._stages[oldest] != GONE
            steps = np.arange(1, len(oldest) + 1)
            enough = (count - np.cumsum(is_there) + num_new <= capacity) & (end + num_new - first - steps <= num_slots)
            num_steps = int(np.argmax(enough)) + 1 if enough.any() else len(oldest)
            evicted = self._keys[oldest[:num_steps][is_there[:num_steps]]]
            first, count = first + num_steps, count - len(evicted)
        num_new = min(num_new, capacity - count, num_slots - (end - first))
        # There is no room for the other values: the job prepares these samples for itself.
        choices[at[num_new:]] = IS_TAKEN
        slots = np.arange(end, end + num_new) % num_slots
        self._keys[slots] = request.candidates[at[:num_new]]
        self._stages[slots] = PENDING
        self._served[slots] = np.uint32(1 << member.place)
        header["first"], header["end"], header["count"] = first, end + num_new, count + num_new
        return evicted
