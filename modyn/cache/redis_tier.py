"""A tier in Redis, shared by all processes that reach it. Redis may be a Cluster.

A namespace is one hash, of sample keys to buffers, in which `used` counts its bytes; the tier is a hash of its budget and its namespaces. What is
used is thus lost together with the samples that use it: by FLUSHALL, by eviction, or when the keys expire after IDLE_S without a call. Scripts
keep and drop samples, so that the count is right whichever process is killed when. In a Cluster, each of NUM_SHARDS parts of the keys has a hash
slot, and an equal part of the budget. Buffers are written by a transaction beside the scripts, not through them.

While Redis is away, slow or out of memory, nothing is found and nothing kept. The library retries nothing, each answer has TIMEOUT_S, and the
first failure opens a circuit breaker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from redis import RedisCluster
from redis.exceptions import OutOfMemoryError, RedisClusterException, RedisError, ResponseError

from modyn.cache import redis_scripts
from modyn.cache.breaker import CircuitBreaker
from modyn.cache.keys import sample_keys
from modyn.cache.redis_address import SEND_BYTES, TIMEOUT_S, RedisAddress
from modyn.cache.redis_deadline import Deadline
from modyn.cache.redis_scripts import OVERHEAD_BYTES
from modyn.cache.tier import IDLE_S, Buffer, StoredTier, TierCounts, TierPlace, TierUsage, WritableBuffer
from modyn.errors import ConfigError
from modyn.records import BoolArray, Int64Array
from modyn.rpc.logs import get_logger

CALL_BYTES: Final = 2 << 20
"""Of samples in one call, which others wait for meanwhile."""
TRIED_BYTES: Final = 256 << 10
"""As above, of the first samples of a batch: their sending is bounded by piece, and by nothing together."""
CALL_SAMPLES: Final = 512
HOLDS_SAMPLES: Final = 4096
"""That are looked up, and not read, in one call: fewer than Lua's unpacking allows for."""
MAX_SAMPLE_BYTES: Final = 64 << 20
"""A larger one is not kept: it would not pass within TIMEOUT_S."""
NUM_SHARDS: Final = 16
"""Of a tier in a Cluster."""


@dataclass(frozen=True, slots=True)
class _Shard:
    """A part of a tier, in one hash slot of a Cluster."""

    tier: bytes
    namespace: bytes
    budget: int

    @staticmethod
    def split(place: TierPlace, num_shards: int) -> list[_Shard]:
        tiers = [f"modyn:cache:{{{place.name}.{i}}}".encode() for i in range(num_shards)]
        return [_Shard(tier, tier + b":" + place.namespace, place.budget_bytes // num_shards) for tier in tiers]


class _Connection(NamedTuple):
    """Of a tier, once it is known what kind of server it is."""

    client: Any
    """Typed as Any: the library's types allow for answers of its asynchronous clients."""
    shards: list[_Shard]
    patience: float = 1.0
    """How many times `timeout_s` the client waits for an answer, see `RedisAddress.connect`."""

    def eval(self, script: str, shard: _Shard, *arguments: object) -> Any:
        # The text each time, not its digest: it is small, and a Redis that was restarted knows no digest.
        return self.client.eval(script, 2, shard.tier, shard.namespace, *arguments)

    def eval_all(self, script: str, deadline: Deadline) -> list[Any]:
        answers = []
        for shard in self.shards:
            answers.append(self.eval(script, shard))
            deadline.check()
        return answers

    def write(self, shard: _Shard, namespace: bytes, names: Sequence[bytes], buffers: Sequence[WritableBuffer]) -> list[int]:
        """Put samples into a part of the tier, and count them. Returns: 1 for each that was kept, 0 for others. In one transaction: a process that is
        killed meanwhile has changed nothing, and others see nothing of it before its end."""
        # Each view is sent by itself: small ones are copied instead.
        small = (buffer if len(buffer) > SEND_BYTES else bytes(buffer) for buffer in buffers)
        fields = [part for pair in zip(names, small, strict=True) for part in pair]
        places = (2, shard.tier, shard.namespace)
        transaction = self.client.pipeline(transaction=True)
        transaction.execute_command("EVAL", redis_scripts.REPLACE, *places, *names)
        transaction.execute_command("HSET", shard.namespace, *fields)
        transaction.execute_command("EVAL", redis_scripts.CHARGE, *places, shard.budget, namespace, *names)
        kept: list[int] | Exception = transaction.execute(raise_on_error=False)[-1]
        if isinstance(kept, Exception):
            raise kept
        return kept

    def memory(self) -> list[dict[str, Any]]:
        """What each node that keeps samples says of its memory."""
        if isinstance(self.client, RedisCluster):
            return [self.client.info("memory", target_nodes=node) for node in self.client.get_primaries()]  # type: ignore[no-untyped-call]
        return [self.client.info("memory")]

    def by_shard(self, keys: Int64Array) -> Iterator[tuple[_Shard, Int64Array]]:
        """Each part of the tier with the positions of its keys."""
        for i, shard in enumerate(self.shards):
            yield shard, np.flatnonzero(keys % len(self.shards) == i)


class RedisTier:
    """A `CacheTier` in the Redis at a URL: redis://, rediss:// (TLS) or unix://, with a password or not, or a node of a Cluster."""

    def __init__(self, url: str, place: TierPlace, breaker: CircuitBreaker | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """Connects to nothing yet. Args: timeout_s: for a whole answer. Raises: ConfigError: it is no such URL."""
        self._address, self._timeout_s = RedisAddress(url, timeout_s), timeout_s
        self._place = place
        self._breaker = breaker or CircuitBreaker()
        self._keeping = CircuitBreaker(self._breaker.slow.clock, first_pause_s=2.0)
        """Whether it takes samples: open while its memory is full, or others have divided it anew."""
        self._counts = TierCounts()
        self._log = get_logger("cache").bind(tier=place.name)
        self._has_refused = False
        """It is logged once."""
        self._not_asked = 0
        """See `CacheTier.take_not_asked`. Threads may lose some of each other's."""
        self._evicts = False
        """As above."""
        self._connection: _Connection | None = None
        """Read once a call: other threads may replace it."""
        self._sample_bytes = CALL_BYTES
        """Of one sample, as last seen: how many are asked for at once. Threads may overwrite each other's."""

    def charge(self, num_bytes: int) -> int:
        """As `CacheTier.charge`."""
        return num_bytes + OVERHEAD_BYTES

    def open(self) -> None:
        """As `CacheTier.open`. A Redis that is away is no error: it gets the budget when it is there."""
        budgets: list[tuple[_Shard, int]] = []
        memory: list[dict[str, Any]] = []

        def claim(connection: _Connection, deadline: Deadline) -> None:
            memory.extend(connection.memory())
            deadline.check()
            if _room(memory) < self._place.budget_bytes:
                return  # The budget must not hold for others.
            for shard in connection.shards:
                budgets.append((shard, int(connection.eval(redis_scripts.CLAIM, shard, shard.budget))))
                deadline.check()

        self._try(claim)
        if (room := _room(memory)) < self._place.budget_bytes:
            raise ConfigError(
                f"the tier '{self._place.name}' has a budget of {self._place.budget_bytes:,} bytes, but the Redis at {self._address.where} "
                f"may hold {room:,} (`maxmemory`): give the cache less, or that Redis more than all budgets together"
            )
        policies = {str(node.get("maxmemory_policy", "noeviction")) for node in memory} - {"noeviction"}
        if policies and not self._evicts:
            self._evicts = True
            self._log.warning(
                "cache_may_be_evicted",
                redis=self._address.where,
                maxmemory_policy=", ".join(sorted(policies)),
                advice="set `maxmemory-policy noeviction`: what this Redis evicts, it loses of all samples of a dataset at once",
            )
        for shard, budget in budgets:
            if budget != shard.budget:
                raise self._place.conflict(f"the Redis at {self._address.where}", budget * len(budgets))

    def room(self) -> float:
        """Bytes that the Redis may hold, of all that is in it; infinite: it has no limit, or is away."""
        memory: list[dict[str, Any]] = []
        self._try(lambda connection, _: memory.extend(connection.memory()))
        return _room(memory)

    def get(self, keys: Int64Array) -> list[Buffer | None]:
        """As `CacheTier.get`."""
        buffers: list[Buffer | None] = [None] * len(keys)
        is_asked = self._try(lambda connection, deadline: self._get(connection, keys, buffers, deadline), "get")
        if not is_asked:
            self._not_asked += buffers.count(None)
        self._counts.found(buffers)
        return buffers

    def holds(self, keys: Int64Array) -> BoolArray:
        """As `CacheTier.holds`."""
        held = np.zeros(len(keys), np.bool_)
        if not self._try(lambda connection, deadline: _look_up(connection, keys, held, deadline), "holds"):
            held[:] = False
        return held

    def put(self, keys: Int64Array, buffers: Sequence[WritableBuffer]) -> BoolArray:
        """As `CacheTier.put`."""
        kept = np.zeros(len(keys), np.bool_)
        # What has refused samples is not sent any for a while: they would be sent in vain.
        if self._keeping.allows() and self._try(
            lambda connection, deadline: self._put(connection, keys, buffers, kept, deadline), "put"
        ):
            self._keeping.succeeded()
        self._counts.kept(kept)
        return kept

    def drop(self, keys: Int64Array) -> bool:
        """As `CacheTier.drop`."""
        return self._try(lambda connection, deadline: _drop(connection, keys, deadline), "drop")

    def take_not_asked(self) -> int:
        """See `CacheTier.take_not_asked`."""
        not_asked, self._not_asked = self._not_asked, 0
        return not_asked

    def usage(self) -> TierUsage:
        """As `CacheTier.usage`."""
        counted: list[tuple[int, int]] = []
        self._try(lambda connection, deadline: counted.extend(connection.eval_all(redis_scripts.COUNT, deadline)))
        return self._counts.usage(bool(counted), sum(used for used, _ in counted), sum(num for _, num in counted))

    def stored(self) -> StoredTier | None:
        """As `CacheTier.stored`."""
        parts: list[Any] = []
        self._try(lambda connection, deadline: parts.extend(connection.eval_all(redis_scripts.STORED, deadline)))
        known = [part for part in parts if part[0]]
        if not known:
            return None
        # Each part of a tier in a Cluster has an equal budget; one that was not written to since others expired has none.
        budget = int(known[0][0]) * len(parts)
        used_bytes, num_samples, *evicted = (sum(int(part[i]) for part in known) for i in range(1, 5))
        num_namespaces = len({name for part in known for name in part[5:]})
        return StoredTier(self._place.name, budget, used_bytes, num_samples, num_namespaces, *evicted)

    def clear(self) -> None:
        """As `CacheTier.clear`."""
        self._try(lambda connection, deadline: connection.eval_all(redis_scripts.CLEAR, deadline))

    def close(self) -> None:
        """As `CacheTier.close`."""
        connection, self._connection = self._connection, None
        if connection:
            connection.client.close()

    def _get(self, connection: _Connection, keys: Int64Array, buffers: list[Buffer | None], deadline: Deadline) -> None:
        """Fill `buffers`, as far as it gets."""
        for shard, rows in connection.by_shard(keys):
            start = 0
            while start < len(rows):
                some = rows[start : start + max(1, min(CALL_SAMPLES, CALL_BYTES // self._sample_bytes))]
                pipeline = connection.client.pipeline(transaction=False)
                pipeline.execute_command("HMGET", shard.namespace, *sample_keys(keys[some]))
                for name in (shard.tier, shard.namespace):
                    pipeline.expire(name, IDLE_S)
                found = pipeline.execute()[0]
                for row, buffer in zip(some.tolist(), found, strict=True):
                    buffers[row] = buffer
                sizes = [len(buffer) for buffer in found if buffer is not None]
                self._note_sizes(sizes)
                start += len(some)
                deadline.check(sum(sizes))

    def _put(
        self, connection: _Connection, keys: Int64Array, buffers: Sequence[WritableBuffer], kept: BoolArray, deadline: Deadline
    ) -> None:
        """Fill `kept`, as far as it gets."""
        self._note_sizes(list(map(len, buffers)))
        for shard, rows in connection.by_shard(keys):
            small = np.array([row for row in rows.tolist() if len(buffers[row]) <= MAX_SAMPLE_BYTES], np.int64)
            for start in range(0, len(small), CALL_SAMPLES):
                some = small[start : start + CALL_SAMPLES]
                names = sample_keys(keys[some])
                sizes = [part for row, name in zip(some.tolist(), names, strict=True) for part in (name, len(buffers[row]))]
                fits = np.array(connection.eval(redis_scripts.ASK, shard, shard.budget, *sizes), np.bool_)
                for run in _runs(some[fits], buffers, deadline):
                    deadline.check()
                    kept[run] = connection.write(
                        shard, self._place.namespace, sample_keys(keys[run]), [buffers[row] for row in run]
                    )
                    deadline.check(sum(len(buffers[row]) for row in run.tolist()))

    def _try(self, call: Callable[[_Connection, Deadline], object], kind: str = "other") -> bool:
        """Call `call` unless Redis is away. Returns whether it has done all. Raises nothing where Redis goes away meanwhile, or does not take what it
        is given."""
        deadline, is_done = Deadline(self._breaker, self._timeout_s, kind), False
        if not deadline.has_time or not self._breaker.allows():
            return False
        try:
            call(self._connected(), deadline)
            deadline.check()
            is_done = True
        except (RedisError, RedisClusterException, OSError) as error:
            if not _is_refusal(error):
                if self._breaker.failed():
                    self._log.warning("cache_away", reason=str(error) or type(error).__name__)
                if self._connection and isinstance(self._connection.client, RedisCluster):
                    self._connection = None  # Its nodes may have moved.
                return False
            self._keeping.failed()
            if not self._has_refused:
                self._has_refused = True
                self._log.warning("cache_does_not_keep", reason=str(error), budget_bytes=self._place.budget_bytes)
        except (ValueError, TypeError, IndexError) as error:
            # The value has another type than the scripts write. Another program wrote it, and has to clear it.
            if self._breaker.failed():
                self._log.warning(
                    "cache_away", reason=f"what it holds is not of this cache ({error}): `modyn cache clear` removes it"
                )
            return False
        finally:
            deadline.end(is_done=is_done)
        if self._breaker.succeeded():
            self._log.info("cache_back")
        return is_done

    def _connected(self) -> _Connection:
        """Connect, unless it is, and waits about as long as it should now. Two threads may do so at once; the last one's stays."""
        connection, patience = self._connection, self._breaker.costs.patience()
        if connection is None or not connection.patience / 2 <= patience <= connection.patience * 2:
            client = self._address.connect(patience)
            shards = _Shard.split(self._place, NUM_SHARDS if isinstance(client, RedisCluster) else 1)
            connection = self._connection = _Connection(client, shards, patience)
        return connection

    def _note_sizes(self, sizes: Sequence[int]) -> None:
        if sizes:
            self._sample_bytes = max(1, sum(sizes) // len(sizes))
        elif self._sample_bytes > CALL_BYTES // CALL_SAMPLES:
            self._sample_bytes //= 2  # Nothing was found: look for more at once.


def _room(memory: Sequence[dict[str, Any]]) -> float:
    """Bytes that all nodes may hold together; infinite: one of them has no limit, or none was asked."""
    limits = [int(node.get("maxmemory", 0)) for node in memory]
    return sum(limits) if limits and all(limits) else float("inf")


def _look_up(connection: _Connection, keys: Int64Array, held: BoolArray, deadline: Deadline) -> None:
    """Fill `held`, as far as it gets."""
    for shard, rows in connection.by_shard(keys):
        for start in range(0, len(rows), HOLDS_SAMPLES):
            some = rows[start : start + HOLDS_SAMPLES]
            held[some] = np.frombuffer(connection.eval(redis_scripts.HOLDS, shard, *sample_keys(keys[some])), np.uint8) == ord(
                "1"
            )
            deadline.check()
    if deadline.is_slow:
        held[:] = False  # It is not counted on: samples that it holds would be found too late, or not.


def _drop(connection: _Connection, keys: Int64Array, deadline: Deadline) -> None:
    for shard, rows in connection.by_shard(keys):
        for start in range(0, len(rows), CALL_SAMPLES):
            connection.eval(redis_scripts.DROP, shard, *sample_keys(keys[rows[start : start + CALL_SAMPLES]]))
            deadline.check()


def _is_refusal(error: Exception) -> bool:
    """Whether Redis answers and keeps nothing: its memory is full, or another owner has given the tier another budget."""
    is_full = isinstance(error, OutOfMemoryError) or "OOM" in str(error)  # Redis 6 writes it into the error of the script.
    return isinstance(error, ResponseError) and (is_full or str(error).startswith("BUDGET"))


def _runs(rows: Int64Array, buffers: Sequence[WritableBuffer], deadline: Deadline) -> Iterator[Int64Array]:
    """`rows` in runs whose buffers have about CALL_BYTES at most; or TRIED_BYTES, while it is slow, and as long as that is not known."""
    start = size = 0
    limit = TRIED_BYTES
    for stop, row in enumerate(rows.tolist()):
        if stop > start and size + len(buffers[row]) > limit:
            yield rows[start:stop]
            start, size = stop, 0
            limit = TRIED_BYTES if deadline.is_slow else CALL_BYTES
        size += len(buffers[row])
    if start < len(rows):
        yield rows[start:]
