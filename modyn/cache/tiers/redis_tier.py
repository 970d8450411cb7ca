"""A tier in Redis, shared by all processes that reach it. Redis may be a Cluster.

A namespace is one hash that maps sample keys to buffers, and the field `used` to the number of bytes. Therefore FLUSHALL, eviction, and expiry
after IDLE_S without a call remove samples together with this number. The tier is another hash, with the budget and the namespaces. Scripts add and
drop samples, so the numbers stay right even if a process is killed. The buffers themselves are written by a transaction, not by a script. In a
Cluster, the keys are divided into NUM_SHARDS shards, and each shard has its own hash slot and an equal part of the budget.

While Redis is unavailable, slow or out of memory, no sample is found or kept. The library does not repeat calls, an answer may take at most
TIMEOUT_S, and the first failure opens a circuit breaker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from redis import RedisCluster
from redis.exceptions import OutOfMemoryError, RedisClusterException, RedisError, ResponseError

from modyn.cache.keys import sample_keys
from modyn.cache.tiers import redis_tier_scripts as scripts
from modyn.cache.tiers.breaker import CircuitBreaker
from modyn.cache.tiers.redis_address import SEND_BYTES, TIMEOUT_S, RedisAddress
from modyn.cache.tiers.redis_deadline import Deadline
from modyn.cache.tiers.redis_tier_scripts import OVERHEAD_BYTES
from modyn.cache.tiers.tier import IDLE_S, Buffer, StoredTier, TierCounts, TierPlace, TierUsage, WritableBuffer
from modyn.errors import ConfigError
from modyn.records import BoolArray, Int64Array
from modyn.rpc.logs import get_logger

CALL_BYTES: Final = 2 << 20
"""Largest number of bytes of samples in one call. Redis makes other calls wait until this call ends."""
TRIED_BYTES: Final = 256 << 10
"""Largest number of bytes of samples in the first call of a batch. The first call is small, because the time to send each piece is bounded, but the
time to send all pieces is not."""
CALL_SAMPLES: Final = 512
"""Largest number of samples in one call."""
HOLDS_SAMPLES: Final = 4096
"""Largest number of samples in one call of `holds`. The number is below the largest number of values that Lua can unpack."""
MAX_SAMPLE_BYTES: Final = 64 << 20
"""Largest size of a buffer in bytes. A larger buffer could not be sent within TIMEOUT_S."""
NUM_SHARDS: Final = 16
"""Number of shards of a tier in a Cluster."""


@dataclass(frozen=True, slots=True)
class _Shard:
    """A shard of a tier, in one hash slot of a Cluster."""

    tier: bytes
    namespace: bytes
    budget: int

    @staticmethod
    def split(place: TierPlace, num_shards: int) -> list[_Shard]:
        tiers = [f"modyn:cache:{{{place.name}.{i}}}".encode() for i in range(num_shards)]
        return [_Shard(tier, tier + b":" + place.namespace, place.budget_bytes // num_shards) for tier in tiers]


class _Connection(NamedTuple):
    """Connection of a tier to a single Redis or to a Cluster."""

    client: Any
    """Client of Redis. Its type is Any, because the library's types include the answers of its asynchronous clients."""
    shards: list[_Shard]
    patience: float = 1.0
    """Multiple of `timeout_s` that the client waits for an answer, see `RedisAddress.connect`."""

    def eval(self, script: str, shard: _Shard, *arguments: object) -> Any:
        # Each call sends the script's text instead of its digest: the text is small, and a restarted Redis knows no digest.
        return self.client.eval(script, 2, shard.tier, shard.namespace, *arguments)

    def eval_all(self, script: str, deadline: Deadline) -> list[Any]:
        answers = []
        for shard in self.shards:
            answers.append(self.eval(script, shard))
            deadline.check()
        return answers

    def write(self, shard: _Shard, namespace: bytes, names: Sequence[bytes], buffers: Sequence[WritableBuffer]) -> list[int]:
        """Put samples into a shard, and count them. Returns: 1 for each kept sample, 0 for others. All changes are one transaction: if the process is
        killed, nothing changes, and other processes see only the end result."""
        # redis-py sends each view separately, so small views are copied to be sent together.
        small = (buffer if len(buffer) > SEND_BYTES else bytes(buffer) for buffer in buffers)
        fields = [part for pair in zip(names, small, strict=True) for part in pair]
        places = (2, shard.tier, shard.namespace)
        transaction = self.client.pipeline(transaction=True)
        transaction.execute_command("EVAL", scripts.REPLACE, *places, *names)
        transaction.execute_command("HSET", shard.namespace, *fields)
        transaction.execute_command("EVAL", scripts.CHARGE, *places, shard.budget, namespace, *names)
        kept: list[int] | Exception = transaction.execute(raise_on_error=False)[-1]
        if isinstance(kept, Exception):
            raise kept
        return kept

    def memory(self) -> list[dict[str, Any]]:
        """Return the memory statistics of each node that stores samples."""
        if isinstance(self.client, RedisCluster):
            return [self.client.info("memory", target_nodes=node) for node in self.client.get_primaries()]  # type: ignore[no-untyped-call]
        return [self.client.info("memory")]

    def by_shard(self, keys: Int64Array) -> Iterator[tuple[_Shard, Int64Array]]:
        """Yield each shard, with the positions in `keys` of its keys."""
        for i, shard in enumerate(self.shards):
            yield shard, np.flatnonzero(keys % len(self.shards) == i)


class RedisTier:
    """A `CacheTier` in the Redis at a URL: redis://, rediss:// (TLS) or unix://, with or without a password, or a node of a Cluster."""

    def __init__(self, url: str, place: TierPlace, breaker: CircuitBreaker | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """Check the URL without connecting. Args: timeout_s: seconds for a whole answer. Raises: ConfigError: the URL is invalid."""
        self._address, self._timeout_s = RedisAddress(url, timeout_s), timeout_s
        self._place = place
        self._breaker = breaker or CircuitBreaker()
        self._keeping = CircuitBreaker(self._breaker.slow.clock, first_pause_s=2.0)
        """Breaker for writes. It opens when the memory of Redis is full, or when other processes have changed the budgets."""
        self._counts = TierCounts()
        self._log = get_logger("cache").bind(tier=place.name)
        self._has_refused = False
        """Whether a refusal was logged. Only the first refusal is logged."""
        self._not_asked = 0
        """See `CacheTier.take_not_asked`. No lock protects the number, so concurrent threads may lose counts."""
        self._evicts = False
        """Whether the server may evict samples. This is logged once."""
        self._connection: _Connection | None = None
        """The connection; None: not connected. Each call reads this field once, because other threads may replace the connection."""
        self._sample_bytes = CALL_BYTES
        """Mean size in bytes of the samples of the last call, which determines how many samples one call requests. Threads may overwrite each other's
        value."""

    def charge(self, num_bytes: int) -> int:
        """See `CacheTier.charge`."""
        return num_bytes + OVERHEAD_BYTES

    def open(self) -> None:
        """See `CacheTier.open`. An unavailable Redis is not an error; Redis gets the budget when it answers again."""
        budgets: list[tuple[_Shard, int]] = []
        memory: list[dict[str, Any]] = []

        def claim(connection: _Connection, deadline: Deadline) -> None:
            memory.extend(connection.memory())
            deadline.check()
            if _room(memory) < self._place.budget_bytes:
                return  # `open` refuses this budget below, so other processes must not find it.
            for shard in connection.shards:
                budgets.append((shard, int(connection.eval(scripts.CLAIM, shard, shard.budget))))
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
                advice="set `maxmemory-policy noeviction`: this Redis evicts all samples of a dataset at once",
            )
        for shard, budget in budgets:
            if budget != shard.budget:
                raise self._place.conflict(f"the Redis at {self._address.where}", budget * len(budgets))

    def room(self) -> float:
        """Return the memory limit of the Redis in bytes; infinite: the Redis has no limit, or is unavailable."""
        memory: list[dict[str, Any]] = []
        self._try(lambda connection, _: memory.extend(connection.memory()))
        return _room(memory)

    def get(self, keys: Int64Array) -> list[Buffer | None]:
        """See `CacheTier.get`."""
        buffers: list[Buffer | None] = [None] * len(keys)
        is_asked = self._try(lambda connection, deadline: self._get(connection, keys, buffers, deadline), "get")
        if not is_asked:
            self._not_asked += buffers.count(None)
        self._counts.count_hits(buffers)
        return buffers

    def holds(self, keys: Int64Array) -> BoolArray:
        """See `CacheTier.holds`."""
        held = np.zeros(len(keys), np.bool_)
        if not self._try(lambda connection, deadline: _look_up(connection, keys, held, deadline), "holds"):
            held[:] = False
        return held

    def put(self, keys: Int64Array, buffers: Sequence[WritableBuffer]) -> BoolArray:
        """See `CacheTier.put`."""
        kept = np.zeros(len(keys), np.bool_)
        # After a refusal, no samples are sent for a while, because Redis would refuse them too.
        if self._keeping.allows() and self._try(
            lambda connection, deadline: self._put(connection, keys, buffers, kept, deadline), "put"
        ):
            self._keeping.succeeded()
        self._counts.count_not_kept(kept)
        return kept

    def drop(self, keys: Int64Array) -> bool:
        """See `CacheTier.drop`."""
        return self._try(lambda connection, deadline: _drop(connection, keys, deadline), "drop")

    def take_not_asked(self) -> int:
        """See `CacheTier.take_not_asked`."""
        not_asked, self._not_asked = self._not_asked, 0
        return not_asked

    def usage(self) -> TierUsage:
        """See `CacheTier.usage`."""
        counted: list[tuple[int, int]] = []
        self._try(lambda connection, deadline: counted.extend(connection.eval_all(scripts.COUNT, deadline)))
        return self._counts.usage(bool(counted), sum(used for used, _ in counted), sum(num for _, num in counted))

    def stored(self) -> StoredTier | None:
        """See `CacheTier.stored`."""
        parts: list[Any] = []
        self._try(lambda connection, deadline: parts.extend(connection.eval_all(scripts.STORED, deadline)))
        known = [part for part in parts if part[0]]
        if not known:
            return None
        # All shards have the same budget. A shard that expired and was not written again has no budget.
        budget = int(known[0][0]) * len(parts)
        used_bytes, num_samples, *evicted = (sum(int(part[i]) for part in known) for i in range(1, 5))
        num_namespaces = len({name for part in known for name in part[5:]})
        return StoredTier(self._place.name, budget, used_bytes, num_samples, num_namespaces, *evicted)

    def clear(self) -> None:
        """See `CacheTier.clear`."""
        self._try(lambda connection, deadline: connection.eval_all(scripts.CLEAR, deadline))

    def close(self) -> None:
        """See `CacheTier.close`."""
        connection, self._connection = self._connection, None
        if connection:
            connection.client.close()

    def _get(self, connection: _Connection, keys: Int64Array, buffers: list[Buffer | None], deadline: Deadline) -> None:
        """Fill `buffers`. After an error, the remaining entries are None."""
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
        """Fill `kept`. After an error, the remaining entries are False."""
        self._note_sizes(list(map(len, buffers)))
        for shard, rows in connection.by_shard(keys):
            small = np.array([row for row in rows.tolist() if len(buffers[row]) <= MAX_SAMPLE_BYTES], np.int64)
            for start in range(0, len(small), CALL_SAMPLES):
                some = small[start : start + CALL_SAMPLES]
                names = sample_keys(keys[some])
                sizes = [part for row, name in zip(some.tolist(), names, strict=True) for part in (name, len(buffers[row]))]
                fits = np.array(connection.eval(scripts.ASK, shard, shard.budget, *sizes), np.bool_)
                for run in _runs(some[fits], buffers, deadline):
                    deadline.check()
                    kept[run] = connection.write(
                        shard, self._place.namespace, sample_keys(keys[run]), [buffers[row] for row in run]
                    )
                    deadline.check(sum(len(buffers[row]) for row in run.tolist()))

    def _try(self, call: Callable[[_Connection, Deadline], object], kind: str = "other") -> bool:
        """Call `call` unless Redis is unavailable. Returns whether the whole call was done. If Redis becomes unavailable or refuses samples, no error
        is raised."""
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
            # Redis has answered, so a refusal does not open the breaker of reads.
            self._keeping.failed()
            if not self._has_refused:
                self._has_refused = True
                self._log.warning("cache_does_not_keep", reason=str(error), budget_bytes=self._place.budget_bytes)
        except (ValueError, TypeError, IndexError) as error:
            # Another program wrote a value of another type into a key of the cache.
            if self._breaker.failed():
                self._log.warning(
                    "cache_away", reason=f"another program has changed the cache ({error}): `modyn cache clear` removes it"
                )
            return False
        finally:
            deadline.end(is_done=is_done)
        if self._breaker.succeeded():
            self._log.info("cache_back")
        return is_done

    def _connected(self) -> _Connection:
        """Return a connection whose patience fits the recent costs. Open a new connection if needed. If two threads connect at once, the last
        connection stays."""
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
            self._sample_bytes //= 2  # No sample was found, so the next call looks up more samples.


def _room(memory: Sequence[dict[str, Any]]) -> float:
    """Return the sum of the memory limits of all nodes; infinite: a node has no limit, or no node was asked."""
    limits = [int(node.get("maxmemory", 0)) for node in memory]
    return sum(limits) if limits and all(limits) else float("inf")


def _look_up(connection: _Connection, keys: Int64Array, held: BoolArray, deadline: Deadline) -> None:
    """Fill `held`. After an error, the remaining entries are False."""
    for shard, rows in connection.by_shard(keys):
        for start in range(0, len(rows), HOLDS_SAMPLES):
            some = rows[start : start + HOLDS_SAMPLES]
            held[some] = np.frombuffer(connection.eval(scripts.HOLDS, shard, *sample_keys(keys[some])), np.uint8) == ord("1")
            deadline.check()
    if deadline.is_slow:
        held[:] = False  # A slow Redis counts as empty: its samples would be found too late, or not at all.


def _drop(connection: _Connection, keys: Int64Array, deadline: Deadline) -> None:
    for shard, rows in connection.by_shard(keys):
        for start in range(0, len(rows), CALL_SAMPLES):
            connection.eval(scripts.DROP, shard, *sample_keys(keys[rows[start : start + CALL_SAMPLES]]))
            deadline.check()


def _is_refusal(error: Exception) -> bool:
    """Whether Redis refuses to keep samples: its memory is full, or another owner has changed the tier's budget."""
    is_full = isinstance(error, OutOfMemoryError) or "OOM" in str(error)  # Redis 6 writes OOM into the error of the script.
    return isinstance(error, ResponseError) and (is_full or str(error).startswith("BUDGET"))


def _runs(rows: Int64Array, buffers: Sequence[WritableBuffer], deadline: Deadline) -> Iterator[Int64Array]:
    """Divide `rows` into runs of at most about CALL_BYTES. While Redis is slow or its speed is unknown, runs have at most TRIED_BYTES."""
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
