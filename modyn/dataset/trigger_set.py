"""Loads a trigger set as batches of tensors, for any number of epochs. Partitions are prefetched, the order is shuffled by a seed, and a stream can
resume at any position.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from modyn.dataset.batch import Batch
from modyn.dataset.chunks import ReadLimits, ReadOptions
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients, KeySource
from modyn.dataset.order.batch_plan import BatchPosition, PartitionRead, Plan, augmentation_seed
from modyn.dataset.order.held_out import Share
from modyn.dataset.reader import BatchReader
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError
from modyn.models.classes import LabelClasses
from modyn.records import KeysAndWeights, TriggerSetInfo

STATE_VERSION = 4
"""Version of the states that `state` returns. Other versions are refused."""

_POSITION_FIELDS = tuple(field.name for field in fields(BatchPosition))
"""Fields of a state that form the position. The batches depend on all other fields."""
_LEAST = {"batch_size": 1, "seed": 0, "epochs": 0, "num_prefetched_partitions": 0, "parallel_prefetch_requests": 1}
"""Smallest value of each option."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options for serving a trigger set; names and defaults as in the `training` section. seed: None: each object draws another order.

    Raises: InvalidArgumentError: a number is too small. The bounds are the same for the local and the Flight flow.
    """

    batch_size: int
    drop_last: bool = True
    shuffle: bool = False
    seed: int | None = None
    epochs: int = 1
    num_prefetched_partitions: int = 1
    parallel_prefetch_requests: int = 1
    limits: ReadLimits = ReadLimits()  # noqa: RUF009  (frozen)
    training: bool = True
    """Whether random transformations are applied; held-out samples never get any."""
    classes: LabelClasses | None = None
    """Allowed labels after label_transformer_function. A sample with another label is bad. None: labels are not checked."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidArgumentError(f"{name} is {value}; it must be at least {least}")


class TriggerSetDataset(IterableDataset[Batch]):
    """The batches of `epochs` epochs over one trigger set, in order. `Batch.epoch` and `Batch.index` identify a batch.

    The batches are the same for any number of workers, threads or processes (see modyn.dataset.order.batch_plan). Clients and threads live as
    long as one iteration over all epochs. Iterate with `modyn.dataset.loader.BatchLoader`, or with a DataLoader of batch_size=None.

    Args: connect: makes the clients inside the process that iterates; must be picklable for DataLoader workers. share: serve only this share of the
        trigger set; a held-out share gets no random transformations. None: serve all samples.
    """

    def __init__(
        self,
        trigger_set: TriggerSetInfo,
        data: DataConfig,
        connect: Callable[[], DatasetClients],
        options: LoadOptions,
        position: BatchPosition = BatchPosition(),  # noqa: B008  (frozen)
        share: Share | None = None,
    ) -> None:
        super().__init__()
        self.trigger_set = trigger_set
        self.share = share
        self.data = data
        self.options = options
        self.plan = Plan(
            num_keys=share.num_keys if share else trigger_set.num_keys,
            partition_size=share.partition_size if share else trigger_set.partition_size,
            batch_size=options.batch_size,
            drop_last=options.drop_last,
            shuffle=options.shuffle,
            # Drawn once here, so that all workers agree.
            seed=options.seed if options.seed is not None else secrets.randbits(62),
            trigger_id=trigger_set.trigger_id,
        )
        self.connect = connect
        self.seek(position)

    @property
    def num_batches(self) -> int:
        """Number of batches of one epoch."""
        return self.plan.num_batches

    def __len__(self) -> int:
        """Number of batches that the next iteration serves, for `len` of a DataLoader. The iteration serves fewer batches only if all samples of a
        batch were deleted.
        """
        return self._end * self.num_batches - self.plan.batches_before(self._position)

    @property
    def end_epoch(self) -> int:
        """The first epoch that the next iteration does not serve."""
        return self._end

    @property
    def position(self) -> BatchPosition:
        """Start of the next iteration. An iteration does not change this position; `state` returns the position after a batch."""
        return self._position

    def seek(self, to: BatchPosition | Mapping[str, Any]) -> None:
        """Make iterations begin at a position. Earlier samples are not read. `BatchPosition(epoch, one_epoch=True)` serves exactly this epoch, in its
        own order.

        Args: to: a position, or a state that `state` returned in any process. A dataset without a seed takes the seed of the state; the number of
        workers and `epochs` may differ.
        Raises: InvalidArgumentError: the position is after the end, or not within an epoch. For a state: ConflictError: the trigger set or the
        options
            would give other batches; the message names the difference. CorruptStateError: `to` is not a state of this version.
        """
        position, plan = (to, self.plan) if isinstance(to, BatchPosition) else self._saved(to)
        end = position.epoch + 1 if position.one_epoch else self.options.epochs
        plan.check_position(position, end)
        self._position, self._end, self.plan = position, end, plan

    def set_epoch(self, epoch: int) -> None:
        """Serve exactly this epoch next, in its own order. PyTorch's samplers have a method of this name, which loops may call."""
        self.seek(BatchPosition(epoch, one_epoch=True))

    def state(self, after: Batch | None = None) -> dict[str, Any]:
        """Return the state after the batch `after`, from which another process resumes with `seek`. The state contains numbers and text, for JSON and
        `torch.save`. Without a batch, return the state at the beginning of the next iteration."""
        position = self._position if after is None else replace(self._position, epoch=after.epoch, batch=after.index + 1)
        return {
            "version": STATE_VERSION,
            **asdict(position),
            "run_id": str(self.trigger_set.run_id),
            "keys_checksum": self.trigger_set.keys_checksum,
            **asdict(self.plan),
        }

    def _saved(self, state: Mapping[str, Any]) -> tuple[BatchPosition, Plan]:
        """Return the position of a saved state, and the plan with the seed of the state."""
        here = self.state()
        _check_state(state, here)
        # The batches depend on the seed. Therefore, a dataset without its own seed takes the seed of the state.
        plan = self.plan if self.options.seed is not None else replace(self.plan, seed=state["seed"])
        here["seed"] = plan.seed
        differences = [
            f"{name} is {value!r} here and {state[name]!r} in the state"
            for name, value in here.items()
            if name not in _POSITION_FIELDS and value != state[name]
        ]
        if differences:
            raise ConflictError(f"the state does not fit this dataset: {'; '.join(differences)}")
        return BatchPosition(**{name: state[name] for name in _POSITION_FIELDS}), plan

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        # A worker process decodes in the thread that iterates. Nothing else in the process draws random numbers that decoding could disturb.
        return self.serve() if info is None else self._serve(info.id, info.num_workers, num_threads=0)

    def serve(self, num_threads: int = 1, *, pin_memory: bool = False) -> Generator[Batch, None, None]:
        """Yield all batches, which `num_threads` threads of this process make. If decoding may draw random numbers, the caller's thread makes the
        batches.

        Args: pin_memory: batches are in page-locked memory.
        """
        return self._serve(0, 1, num_threads=0 if self.data.may_draw else num_threads, pin_memory=pin_memory)

    def read_options(self, pin_memory: bool) -> ReadOptions:
        """Return the options for reading the samples. Args: pin_memory: whether batches are in page-locked memory."""
        return ReadOptions(
            # Held-out samples measure the model, so they stay as they are.
            training=self.options.training and (self.share is None or not self.share.held_out),
            shuffled=self.options.shuffle,
            ahead=self.options.num_prefetched_partitions,
            requests=self.options.parallel_prefetch_requests,
            identity=self.trigger_set.dataset_identity,
            seed_of=partial(augmentation_seed, self.plan.seed, self.plan.trigger_id) if self.data.runs_code else None,
            pin_memory=pin_memory,
            limits=self.options.limits,
            classes=self.options.classes,
        )

    def _serve(
        self, worker: int, num_workers: int, *, num_threads: int, pin_memory: bool = False
    ) -> Generator[Batch, None, None]:
        plan, options = self.plan, self.read_options(pin_memory)
        reads = plan.reads(self._end, plan.batches_before(self._position), worker, num_workers)
        clients = self.connect()
        try:
            keys_of = partial(keys_of_partition, clients.selector, self.trigger_set, self.share)
            reader = BatchReader(reads, keys_of, clients.payloads, self.data, options, cache=clients.cache)
            yield from reader.batches(num_threads)
        finally:
            # The reader has ended its threads by now, so that none of them uses a closed client.
            clients.close()


def keys_of_partition(
    selector: KeySource, trigger_set: TriggerSetInfo, share: Share | None, read: PartitionRead
) -> KeysAndWeights:
    """Return keys and weights of the whole partition of a read, or of a share of it, from the selector.

    Raises: ConflictError: the trigger set has changed since, or the partition does not match the plan.
    """
    run_id, trigger_id, size = trigger_set.run_id, trigger_set.trigger_id, trigger_set.partition_size
    whole = selector.keys(run_id, trigger_id, read.partition, keys_checksum=trigger_set.keys_checksum)
    expected = min(size, trigger_set.num_keys - read.partition * size)
    if len(whole) != expected:
        raise ConflictError(
            f"partition {read.partition} of trigger {trigger_id} of run {run_id} holds {len(whole)} keys, "
            f"not {expected}: the trigger set was replaced while it was read; start the training again"
        )
    if share is None:
        return whole
    rows = share.rows(whole.keys)
    return KeysAndWeights(whole.keys[rows], whole.weights[rows])


def mean_weight(selector: KeySource, trigger_set: TriggerSetInfo) -> float:
    """Return the mean weight of a trigger set, read from the selector partition by partition. Raises ConflictError if the trigger set has changed."""
    run_id, trigger_id, checksum = trigger_set.run_id, trigger_set.trigger_id, trigger_set.keys_checksum
    partitions = (
        selector.keys(run_id, trigger_id, partition, keys_checksum=checksum) for partition in range(trigger_set.num_partitions)
    )
    return sum(float(held.weights.sum(dtype=np.float64)) for held in partitions) / trigger_set.num_keys


def _check_state(state: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Check a saved state. Raises CorruptStateError if a field is negative, or its type differs from the type in `here`."""
    if state.get("version") != STATE_VERSION:
        raise CorruptStateError(
            f"the state that was saved has version {state.get('version')!r}, this Modyn reads version {STATE_VERSION}; start the training again"
        )
    for name, own in here.items():
        value = state.get(name)
        # The type must match exactly, because True is an int too.
        if type(value) is not type(own) or (isinstance(value, int) and value < 0):
            raise CorruptStateError(f"{name} is {value!r} in the state of a dataset; start the training again")
