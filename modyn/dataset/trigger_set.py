"""A trigger set as batches of tensors, for any number of epochs: prefetched by partition, shuffled by seed, resumable by position."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from torch.utils.data import IterableDataset, get_worker_info

from modyn.dataset.batch import Batch, Position
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import Clients, Keys
from modyn.dataset.plan import Plan, Unit, augmentation_seed
from modyn.dataset.reader import BatchReader, ReadOptions
from modyn.errors import ConflictError
from modyn.records import KeysAndWeights, TriggerSetInfo


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a trigger set is served; names and defaults as in the `training` section. seed None: another order at each construction."""

    batch_size: int
    drop_last: bool = True
    shuffle: bool = False
    seed: int | None = None
    epochs: int = 1
    num_prefetched_partitions: int = 1
    parallel_prefetch_requests: int = 1


class TriggerSetDataset(IterableDataset[Batch]):
    """The batches of `epochs` epochs over one trigger set, one after the other: `Batch.epoch` and `Batch.index` say which.

    connect: makes the clients, inside the process that iterates; must be picklable if DataLoader workers are used.
    The batches are the same for any number of workers, threads or processes (see modyn.dataset.plan). Clients and threads live as long as
    one iteration over all epochs. Iterate with `modyn.dataset.loader.BatchLoader`, or with a DataLoader of batch_size=None.
    """

    def __init__(
        self,
        trigger_set: TriggerSetInfo,
        data: DataConfig,
        connect: Callable[[], Clients],
        options: LoadOptions,
        position: Position = Position(),  # noqa: B008  (frozen)
    ) -> None:
        super().__init__()
        self.trigger_set = trigger_set
        self.data = data
        self.options = options
        self.plan = Plan(
            num_keys=trigger_set.num_keys,
            partition_size=trigger_set.partition_size,
            batch_size=options.batch_size,
            drop_last=options.drop_last,
            shuffle=options.shuffle,
            # Drawn here, once, so that all workers agree.
            seed=options.seed if options.seed is not None else secrets.randbits(62),
            trigger_id=trigger_set.trigger_id,
        )
        self._connect = connect
        self._position = position

    @property
    def num_batches(self) -> int:
        """Batches of one epoch."""
        return self.plan.num_batches

    def set_epoch(self, epoch: int) -> None:
        """The next iteration starts with epoch `epoch`."""
        self.seek(Position(epoch))

    def seek(self, position: Position) -> None:
        """The next iteration starts at `position`: exactly what has been consumed there is skipped, without being read."""
        self._position = position

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        # A worker process has its own thread to decode with, and nobody else's random numbers to disturb.
        return self.serve() if info is None else self._serve(info.id, info.num_workers, num_threads=0)

    def serve(self, num_threads: int = 1, *, pin_memory: bool = False) -> Generator[Batch, None, None]:
        """All batches, made by so many threads of this process, or by the caller's own where decoding draws random numbers."""
        return self._serve(0, 1, num_threads=0 if self.data.may_draw else num_threads, pin_memory=pin_memory)

    def _serve(
        self, worker: int, num_workers: int, *, num_threads: int, pin_memory: bool = False
    ) -> Generator[Batch, None, None]:
        first = self._position.epoch * self.num_batches + self._position.batch
        options = ReadOptions(
            training=True,
            shuffled=self.options.shuffle,
            ahead=self.options.num_prefetched_partitions,
            requests=self.options.parallel_prefetch_requests,
            seed_of=self._seed_of if self.data.may_draw else None,
            pin_memory=pin_memory,
        )
        clients = self._connect()
        try:
            reader = BatchReader(
                self.plan.units(self.options.epochs, first, worker, num_workers),
                TriggerSetKeys(self.trigger_set, self.plan, clients.selector),
                clients.payloads,
                self.data,
                options,
            )
            yield from reader.batches(num_threads)
        finally:
            clients.close()

    def _seed_of(self, epoch: int, index: int) -> int:
        return augmentation_seed(self.plan.seed, self.plan.trigger_id, epoch, index)


@dataclass(frozen=True, slots=True)
class TriggerSetKeys:
    """Keys of a trigger set's partitions, from the selector."""

    trigger_set: TriggerSetInfo
    plan: Plan
    selector: Keys

    def keys_of(self, unit: Unit) -> KeysAndWeights:
        """Raises ConflictError if the partition is not what the plan was made for."""
        run_id, trigger_id = self.trigger_set.run_id, self.trigger_set.trigger_id
        whole = self.selector.keys(run_id, trigger_id, unit.partition)
        if len(whole) != self.plan.partition_length(unit.partition):
            raise ConflictError(
                f"partition {unit.partition} of trigger {trigger_id} of run {run_id} holds {len(whole)} keys, "
                f"not {self.plan.partition_length(unit.partition)}: the trigger set was replaced while it was read; start the training anew"
            )
        return KeysAndWeights(whole.keys[unit.rows], whole.weights[unit.rows])
