"""The shared state in Redis, for all trainings that reach this Redis. Each decision is one call of a script. In a Cluster, all keys of a state are in
one hash slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from secrets import randbits
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from redis.exceptions import RedisClusterException, RedisError, ResponseError

from modyn.cache.sharing import redis_state_scripts as scripts
from modyn.cache.sharing.state import (
    ENTRY_BYTES,
    MOST_MEMBERS,
    MOST_SLOTS,
    BatchReply,
    BatchRequest,
    KeySetId,
    Member,
    Membership,
    SharePlace,
    ValueEntries,
)
from modyn.cache.tiers.breaker import CircuitBreaker
from modyn.cache.tiers.redis_address import TIMEOUT_S, RedisAddress
from modyn.cache.tiers.redis_deadline import Deadline
from modyn.cache.tiers.tier import IDLE_S
from modyn.errors import ConflictError, CorruptStateError, UnavailableError
from modyn.records import Int64Array

_DAMAGED: Final = ("WRONGTYPE", "ERR", "Error running script", "user_script")
"""First words of the errors of scripts that find invalid data. Other errors of scripts mean that Redis is full, is loading its data, or is not the
primary."""
_PART_BYTES: Final = 1 << 20
"""Largest number of bytes of a key set in one call."""
_WANTED: Final = np.dtype([("age", ">u4"), ("sharers", ">u4")])
_CANDIDATE: Final = np.dtype([("key", ">i8"), ("age", ">u4"), ("keeps", "u1")])
_WORD: Final = np.dtype([("stage", "u1"), ("served", ">u4")])


class RedisState:
    """A `SharedState` in the Redis at a URL; see `RedisTier` for the forms of the URL."""

    def __init__(
        self,
        place: SharePlace,
        url: str,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        """Check the URL without connecting.

        Args: timeout_s: longest wait for a whole answer. clock: returns the time in seconds; default: the clock of Redis. breaker: circuit
            breaker that tiers in the same Redis also use; default: a separate one.
        Raises: ConfigError: the URL is invalid.
        """
        self._breaker, self._timeout_s = breaker or CircuitBreaker(), timeout_s
        self.place = place
        self._address = RedisAddress(url, timeout_s)
        self._clock = clock
        self._client: Any = None
        self._patience = 1.0
        """Multiple of `timeout_s` that the client waits for an answer, see `RedisAddress.connect`."""
        self._lease_ms = int(1000 * place.lease_s)
        self._prefix = f"modyn:sharing:{{{place.namespace.hex()}}}:".encode()
        self._keys = [self._prefix + name for name in (b"state", b"keys", b"words")]
        self._own_set = self._prefix + b"set"

    def join(self, key_set: KeySetId, num_samples: int, is_barred: bool, before: Membership | None) -> Membership:
        """See `SharedState.join`."""
        self._own_set = self._set_name(key_set)
        token = _new_number()
        earlier = (before.incarnation, before.token) if before else (0, 0)
        found = self._eval(
            scripts.JOIN, [self._own_set], self._now_ms(), self._lease_ms, self.place.num_slots(num_samples), self.place.capacity,
            _new_number(), token, *earlier, int(is_barred), key_set.num_bytes, key_set.digest.hex(),
        )  # fmt: skip
        if found is None:
            raise ConflictError(f"{MOST_MEMBERS} jobs share this cache, and no more can: let one end, or use another cache")
        with _understood():
            incarnation, place, *numbers = (int(part) for part in found)
            member = Membership(incarnation, place, token, *numbers)
            if not (
                0 <= place < MOST_MEMBERS
                and 0 < member.capacity <= member.num_slots <= MOST_SLOTS
                and 0 <= member.first <= member.end
            ):
                raise ValueError(
                    f"no ring is of {member.num_slots} slots for {member.capacity} values from {member.first} to {member.end}"
                )
        return member

    def exchange(self, member: Membership, request: BatchRequest) -> BatchReply | None:
        """See `SharedState.exchange`."""
        known = request.known
        wanted = np.empty(len(request.wanted), _WANTED)
        wanted["age"], wanted["sharers"] = known - request.wanted, request.sharers
        candidates = np.empty(len(request.candidates), _CANDIDATE)
        candidates["key"], candidates["keeps"] = request.candidates, request.keeps
        candidates["age"] = np.where(request.believed >= 0, known - request.believed, 0)
        found = self._eval(
            scripts.EXCHANGE, [self._own_set], *member[:3], self._now_ms(), self._lease_ms, known, request.reading,
            request.known_members, request.size, request.num_hits, _ages(request.kept, known), _ages(request.refilled, known),
            _ages(request.dropped, known), wanted.tobytes(), candidates.tobytes(),
        )  # fmt: skip
        if found is None:
            return None
        with _understood():
            numbers, (tail, start, verdicts, choices, refused, evicted, is_behind) = found[:7], found[7:]
            decision, quiet, first, end, num_values, generation, members = numbers
            reply = BatchReply(
                decision, quiet, first, end, num_values, generation, members, _numbers(tail, ">i8"), start, np.frombuffer(verdicts, np.uint8),
                np.frombuffer(choices, np.uint8), known - _numbers(refused, ">u4"), _numbers(evicted, ">i8"), bool(is_behind),
            )  # fmt: skip
            if len(reply.verdicts) != len(request.wanted) or len(reply.choices) != len(request.candidates):
                raise ValueError("the answer does not fit the request")
            return reply

    def leave(self, member: Membership) -> None:
        """See `SharedState.leave`."""
        self._eval(scripts.LEAVE, [], *member[:3])

    def members(self, member: Membership) -> tuple[int, list[Member]] | None:
        """See `SharedState.members`."""
        found = self._eval(scripts.MEMBERS, [], member.incarnation)
        if found is None:
            return None
        with _understood():
            generation, *rows = found
            return generation, [
                Member(place, since, bool(is_barred), KeySetId(bytes.fromhex(digest.decode()), num_bytes))
                for place, since, is_barred, digest, num_bytes in sorted(rows)
            ]

    def entries(self, member: Membership, start: int, stop: int) -> ValueEntries | None:
        """See `SharedState.entries`."""
        first, last = start % member.num_slots, (stop - 1) % member.num_slots + 1
        ranges = [first, last] if first < last else [first, member.num_slots, 0, last]
        num_bytes = (stop - start) * ENTRY_BYTES
        found = self._eval(scripts.ENTRIES, [], member.incarnation, *ranges, num_bytes=num_bytes) if start < stop else [b"", b""]
        if found is None:
            return None
        with _understood():
            words, keys = np.frombuffer(b"".join(found[1::2]), _WORD), _numbers(b"".join(found[::2]), ">i8")
            if not len(words) == len(keys) == stop - start:
                raise ValueError(f"{stop - start} values have {len(keys)} keys and {len(words)} stages")
            return ValueEntries(keys, words["stage"].copy(), words["served"].astype(np.uint32))

    def put_key_set(self, key_set: KeySetId, packed: bytes) -> None:
        """See `SharedState.put_key_set`."""
        name = self._set_name(key_set)
        with self._errors() as (client, deadline):
            is_there = client.strlen(name) == len(packed)
            deadline.check()
            for start in range(0, 0 if is_there else len(packed), _PART_BYTES):
                part = packed[start : start + _PART_BYTES]
                client.setrange(name, start, part)
                deadline.check(len(part))
            client.expire(name, IDLE_S)

    def key_set(self, key_set: KeySetId) -> bytes | None:
        """See `SharedState.key_set`."""
        name = self._set_name(key_set)
        packed = b""
        with self._errors() as (client, deadline):
            for start in range(0, key_set.num_bytes, _PART_BYTES):
                part = client.getrange(name, start, start + _PART_BYTES - 1)
                packed += part
                deadline.check(len(part))
                if not part:  # The stored set is shorter than its id says.
                    break
        return packed if len(packed) == key_set.num_bytes else None

    def reset(self) -> None:
        """See `SharedState.reset`."""
        with self._errors() as (client, _):
            client.unlink(*self._keys)

    def close(self) -> None:
        """See `SharedState.close`."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _eval(self, script: str, more_keys: list[bytes], *arguments: object, num_bytes: int = 0) -> Any:
        names = [*self._keys, *more_keys]
        with self._errors(num_bytes) as (client, _):
            # Each call sends the script's text instead of its digest: the text is small, and a restarted Redis knows no digest.
            return client.eval(script, len(names), *names, *arguments)

    @contextmanager
    def _errors(self, num_bytes: int = 0) -> Iterator[tuple[Any, Deadline]]:
        """Yield the client for calls whose last answer has `num_bytes`, and convert the library's errors."""
        deadline, patience, is_done = Deadline(self._breaker, self._timeout_s, "share"), self._breaker.costs.patience(), False
        if not deadline.has_time or not self._breaker.allows():
            raise UnavailableError("Redis does not share the cache: it was away or slow just now")
        try:
            # A connection keeps its time limit. If the learned patience has changed by more than a factor of 2, connect again.
            if self._client is None or not self._patience / 2 <= patience <= self._patience * 2:
                self._client, self._patience = self._address.connect(patience), patience
                deadline.check()
            yield self._client, deadline
            deadline.check(num_bytes)
            self._breaker.succeeded()
            is_done = True
        except (RedisError, RedisClusterException, OSError) as error:
            if isinstance(error, ResponseError):
                # Redis has answered, so Redis is available.
                self._breaker.succeeded()
            else:
                self.close()  # Nodes may have moved.
                self._breaker.failed()
            # Exhausted memory (OOM) is temporary, and is not damage.
            if isinstance(error, ResponseError) and str(error).startswith(_DAMAGED) and "OOM" not in str(error):
                raise CorruptStateError(f"the state of a shared cache in Redis is damaged: {error}") from error
            raise UnavailableError(f"Redis does not share the cache: {str(error) or type(error).__name__}") from error
        finally:
            deadline.end(is_done=is_done)

    def _set_name(self, key_set: KeySetId) -> bytes:
        return self._prefix + b"set:" + key_set.digest

    def _now_ms(self) -> int | str:
        return "" if self._clock is None else int(1000 * self._clock())


@contextmanager
def _understood() -> Iterator[None]:
    """Raise CorruptStateError if the block cannot read an answer, because another program wrote into the state."""
    try:
        yield
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptStateError(f"the state of a shared cache in Redis is damaged: {error}") from error


def _new_number() -> int:
    return randbits(62) + 1


def _ages(numbers: Int64Array, known: int) -> bytes:
    ages = known - numbers
    return ages[ages < 1 << 32].astype(">u4").tobytes()


def _numbers(content: bytes, kind: str) -> Int64Array:
    found: npt.NDArray[Any] = np.frombuffer(content, kind)
    return found.astype(np.int64)
