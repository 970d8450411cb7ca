"""A trigger set as batches of tensors, for any number of epochs: prefetched by partition, shuffled by seed, resumable by position."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from modyn.dataset.batch import Batch
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients, Keys
from modyn.dataset.order.plan import Plan, Position, Unit, augmentation_seed
from modyn.dataset.reader import BatchReader, ReadOptions
from modyn.dataset.state import DatasetState
from modyn.errors import ConflictError, InvalidArgumentError
from modyn.records import KeysAndWeights, TriggerSetInfo


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a trigger set is served; names and defaults as in the `training` section. seed None: another order at each construction.
    Raises InvalidArgumentError for numbers that are too small, whichever way payloads come."""

    batch_size: int
    drop_last: bool = True
    shuffle: bool = False
    seed: int | None = None
    epochs: int = 1
    num_prefetched_partitions: int = 1
    parallel_prefetch_requests: int = 1

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidArgumentError(f"{name} is {value}; it must be at least {least}")


_LEAST = {"batch_size": 1, "seed": 0, "epochs": 0, "num_prefetched_partitions": 0, "parallel_prefetch_requests": 1}


class TriggerSetDataset(IterableDataset[Batch]):
    """The batches of `epochs` epochs over one trigger set, one after the other: `Batch.epoch` and `Batch.index` say which.

    connect: makes the clients, inside the process that iterates; must be picklable if DataLoader workers are used.
    The batches are the same for any number of workers, threads or processes (see modyn.dataset.order.plan). Clients and threads live as long
    as one iteration over all epochs. Iterate with `modyn.dataset.loader.BatchLoader`, or with a DataLoader of batch_size=None.
    """

    def __init__(
        self,
        trigger_set: TriggerSetInfo,
        data: DataConfig,
        connect: Callable[[], DatasetClients],
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
        self._go(position, one_epoch=False)

    @property
    def num_batches(self) -> int:
        """Batches of one epoch."""
        return self.plan.num_batches

    def __len__(self) -> int:
        """Batches that an iteration from here on serves, as `len` of a DataLoader; fewer only where all samples of one were deleted."""
        return self._end * self.num_batches - self._number

    @property
    def position(self) -> Position:
        """Where the next iteration begins. Iterating does not move it: see `state`."""
        return self._position

    def set_epoch(self, epoch: int) -> None:
        """From now on an iteration serves exactly epoch `epoch`, in its own order, whatever `epochs` is; `seek` ends that.
        Raises InvalidArgumentError if it is negative."""
        self._go(Position(epoch), one_epoch=True)

    def seek(self, position: Position) -> None:
        """From now on an iteration starts at `position` and ends with the last of `epochs` epochs: exactly what has been consumed there is
        skipped, without being read. Raises InvalidArgumentError for a position behind the end, or that no epoch has."""
        self._go(position, one_epoch=False)

    def state(self, after: Batch | None = None) -> dict[str, Any]:
        """What to keep once the batch `after` has been consumed, so that another process goes on behind it with `resume`: numbers and text.
        Without a batch: the beginning of the next iteration."""
        position = self._position if after is None else Position(after.epoch, after.index + 1)
        return self._state(position).to_dict()

    def resume(self, state: Mapping[str, Any]) -> None:
        """From now on an iteration serves what is missing behind `state`, which was taken by `state` here or elsewhere. Without a seed of
        its own the dataset takes that of the state; workers and `epochs` may be others.

        Raises ConflictError, which names what differs, if the trigger set or the options would give other batches; CorruptStateError for
        what is no such state; InvalidArgumentError if `epochs` is now too small for it.
        """
        kept = DatasetState.from_dict(state)
        plan = self.plan if self.options.seed is not None else replace(self.plan, seed=kept.seed)
        if differences := replace(self._state(self._position), seed=plan.seed).differences(kept):
            raise ConflictError(f"the state does not fit this dataset: {'; '.join(differences)}")
        self._go(Position(kept.epoch, kept.batch), kept.one_epoch)
        self.plan = plan

    def _go(self, position: Position, one_epoch: bool) -> None:
        end = position.epoch + 1 if one_epoch else self.options.epochs
        inside = position.epoch >= 0 and 0 <= position.batch <= self.num_batches
        if not inside or position > Position(end):
            raise InvalidArgumentError(
                f"there is no position of {position.batch} batches in epoch {position.epoch}: epochs count from 0, "
                f"{self.num_batches} batches make one, and the last batch served is of epoch {end - 1}"
            )
        self._position, self._one_epoch, self._end = position, one_epoch, end

    def _state(self, position: Position) -> DatasetState:
        found, plan = self.trigger_set, self.plan
        return DatasetState(
            epoch=position.epoch,
            batch=position.batch,
            one_epoch=self._one_epoch,
            run_id=str(found.run_id),
            trigger_id=found.trigger_id,
            num_keys=found.num_keys,
            keys_checksum=found.keys_checksum,
            partition_size=plan.partition_size,
            batch_size=plan.batch_size,
            drop_last=plan.drop_last,
            shuffle=plan.shuffle,
            seed=plan.seed,
        )

    @property
    def _number(self) -> int:
        """Batches before the position, counted over all epochs."""
        return self._position.epoch * self.num_batches + self._position.batch

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
                self.plan.units(self._end, self._number, worker, num_workers),
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
        """Raises ConflictError if the trigger set is another one by now, or the partition not what the plan was made for."""
        run_id, trigger_id = self.trigger_set.run_id, self.trigger_set.trigger_id
        whole = self.selector.keys(run_id, trigger_id, unit.partition, keys_checksum=self.trigger_set.keys_checksum)
        if len(whole) != self.plan.partition_length(unit.partition):
            raise ConflictError(
                f"partition {unit.partition} of trigger {trigger_id} of run {run_id} holds {len(whole)} keys, "
                f"not {self.plan.partition_length(unit.partition)}: the trigger set was replaced while it was read; start the training anew"
            )
        return whole
