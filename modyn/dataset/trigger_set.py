"""A trigger set as batches of tensors, for any number of epochs: prefetched by partition, shuffled by seed, resumable by position."""

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
from modyn.dataset.order.held_out import Share
from modyn.dataset.order.plan import BatchPosition, PartitionRead, Plan, augmentation_seed
from modyn.dataset.reader import BatchReader
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError
from modyn.models.classes import LabelClasses
from modyn.records import KeysAndWeights, TriggerSetInfo

STATE_VERSION = 4

_POSITION_FIELDS = tuple(field.name for field in fields(BatchPosition))
"""Fields of a state that are the position; on all others the batches depend."""
_LEAST = {"batch_size": 1, "seed": 0, "epochs": 0, "num_prefetched_partitions": 0, "parallel_prefetch_requests": 1}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a trigger set is served; names and defaults as in the `training` section. seed None: another order at each construction.

    Raises: InvalidArgumentError: a number is too small, for the local as for the Flight flow.
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
    """Whether random transformations are applied; never to samples that are held out."""
    classes: LabelClasses | None = None
    """That labels are, after label_transformer_function; another label is a bad sample. None: labels are not looked at."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidArgumentError(f"{name} is {value}; it must be at least {least}")


class TriggerSetDataset(IterableDataset[Batch]):
    """The batches of `epochs` epochs over one trigger set, one after the other: `Batch.epoch` and `Batch.index` say which.

    The batches are the same for any number of workers, threads or processes (see modyn.dataset.order.plan). Clients and threads live as
    long as one iteration over all epochs. Iterate with `modyn.dataset.loader.BatchLoader`, or with a DataLoader of batch_size=None.

    Args: connect: makes the clients, inside the process that iterates; must be picklable if DataLoader workers are used.
        share: serve only this share of the trigger set, one that is held out without random transformations; None: all of it.
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
            # Drawn here, once, so that all workers agree.
            seed=options.seed if options.seed is not None else secrets.randbits(62),
            trigger_id=trigger_set.trigger_id,
        )
        self.connect = connect
        self.seek(position)

    @property
    def num_batches(self) -> int:
        """Batches of one epoch."""
        return self.plan.num_batches

    def __len__(self) -> int:
        """Batches that an iteration from here on serves, as `len` of a DataLoader; fewer only where all samples of one were deleted."""
        return self._end * self.num_batches - self.plan.batches_before(self._position)

    @property
    def end_epoch(self) -> int:
        """The epoch before which the next iteration ends."""
        return self._end

    @property
    def position(self) -> BatchPosition:
        """Where the next iteration begins. Iterating does not move it: see `state`."""
        return self._position

    def seek(self, to: BatchPosition | Mapping[str, Any]) -> None:
        """Make iterations begin at a position: what comes before is not read. `BatchPosition(epoch, one_epoch=True)` serves exactly that epoch, in
        its own order.

        Args: to: also a state that `state` returned here or in another process. Without a seed of its own the dataset takes that of the
            state; workers and `epochs` may be others.
        Raises: InvalidArgumentError: the position is behind the end, or none that an epoch has. Of states: ConflictError: the trigger set
            or the options would give other batches; names what differs. CorruptStateError: this is no state of this version.
        """
        position, plan = (to, self.plan) if isinstance(to, BatchPosition) else self._saved(to)
        end = position.epoch + 1 if position.one_epoch else self.options.epochs
        plan.check_position(position, end)
        self._position, self._end, self.plan = position, end, plan

    def set_epoch(self, epoch: int) -> None:
        """Serve exactly this epoch next, in its own order: `seek` by the name that PyTorch's samplers and the loops made for them use."""
        self.seek(BatchPosition(epoch, one_epoch=True))

    def state(self, after: Batch | None = None) -> dict[str, Any]:
        """What to keep once the batch `after` has been consumed, so that another process goes on behind it with `seek`: numbers and text,
        fit for JSON and for `torch.save`. Without a batch: the beginning of the next iteration."""
        position = self._position if after is None else replace(self._position, epoch=after.epoch, batch=after.index + 1)
        return {
            "version": STATE_VERSION,
            **asdict(position),
            "run_id": str(self.trigger_set.run_id),
            "keys_checksum": self.trigger_set.keys_checksum,
            **asdict(self.plan),
        }

    def _saved(self, state: Mapping[str, Any]) -> tuple[BatchPosition, Plan]:
        """The position of a saved state, and the plan with its seed."""
        here = self.state()
        _check_state(state, here)
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
        # A worker process decodes with its own thread: nothing else there draws random numbers that decoding could disturb.
        return self.serve() if info is None else self._serve(info.id, info.num_workers, num_threads=0)

    def serve(self, num_threads: int = 1, *, pin_memory: bool = False) -> Generator[Batch, None, None]:
        """All batches, made by `num_threads` threads of this process, or by the caller's own where decoding may draw random numbers.

        Args: pin_memory: batches are in page-locked memory.
        """
        return self._serve(0, 1, num_threads=0 if self.data.may_draw else num_threads, pin_memory=pin_memory)

    def read_options(self, pin_memory: bool) -> ReadOptions:
        """How its samples are read. Args: pin_memory: batches are in page-locked memory."""
        return ReadOptions(
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
            # The reader has ended its threads by then: none of them uses a client that is closed.
            clients.close()


def keys_of_partition(
    selector: KeySource, trigger_set: TriggerSetInfo, share: Share | None, read: PartitionRead
) -> KeysAndWeights:
    """Keys and weights of the whole partition of a read, or of a share of it, from the selector.

    Raises: ConflictError: the trigger set is another one by now, or the partition not what the plan was made for.
    """
    run_id, trigger_id, size = trigger_set.run_id, trigger_set.trigger_id, trigger_set.partition_size
    whole = selector.keys(run_id, trigger_id, read.partition, keys_checksum=trigger_set.keys_checksum)
    expected = min(size, trigger_set.num_keys - read.partition * size)
    if len(whole) != expected:
        raise ConflictError(
            f"partition {read.partition} of trigger {trigger_id} of run {run_id} holds {len(whole)} keys, "
            f"not {expected}: the trigger set was replaced while it was read; start the training anew"
        )
    if share is None:
        return whole
    rows = share.rows(whole.keys)
    return KeysAndWeights(whole.keys[rows], whole.weights[rows])


def mean_weight(selector: KeySource, trigger_set: TriggerSetInfo) -> float:
    """The mean of the weights of a whole trigger set, read from the selector partition by partition. Raises ConflictError: it is another one
    by now."""
    run_id, trigger_id, checksum = trigger_set.run_id, trigger_set.trigger_id, trigger_set.keys_checksum
    partitions = (
        selector.keys(run_id, trigger_id, partition, keys_checksum=checksum) for partition in range(trigger_set.num_partitions)
    )
    return sum(float(held.weights.sum(dtype=np.float64)) for held in partitions) / trigger_set.num_keys


def _check_state(state: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Check a saved state. Raises CorruptStateError if a field is negative or not of the type that it has `here`."""
    if state.get("version") != STATE_VERSION:
        raise CorruptStateError(
            f"the state that was saved has version {state.get('version')!r}, this Modyn reads version {STATE_VERSION}; start the training anew"
        )
    for name, own in here.items():
        value = state.get(name)
        # Exactly this type: True is an int too.
        if type(value) is not type(own) or (isinstance(value, int) and value < 0):
            raise CorruptStateError(f"{name} is {value!r} in the state of a dataset; start the training anew")
