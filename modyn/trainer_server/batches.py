"""The batches that a training trains on, from what is loaded to what the loop is given. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from typing import Self

from modyn.config.base import load_section
from modyn.dataset.batch import BadSample, Batch, bounded, joined, on_device
from modyn.dataset.config import DataConfig
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.plan import BatchPosition
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.trainer_server.batch_then_sample import BatchThenSample
from modyn.trainer_server.downsampling.policy import Draw
from modyn.trainer_server.downsampling_record import DownsamplingRecord
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.loop import Training


class TrainingBatches:
    """The batches of one training, on its device. Use as a context manager, which ends what loads them."""

    def __init__(self, inputs: TrainingInputs, training: Training, seed: int) -> None:
        """Args: seed: of this training, for the order of its samples and the choices among them."""
        self._inputs = inputs
        self._training = training
        self._seed = seed
        self._loaders: list[BatchLoader] = []
        self._stack = ExitStack()
        self.num_alone = 0
        """Samples that were left out because each was alone in its epoch and BatchNorm needs two."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def num_skipped(self) -> int:
        """Samples that were left out: deleted since the selection, bad or alone."""
        return sum(loader.num_skipped for loader in self._loaders) + self.num_alone

    @property
    def bad_samples(self) -> Iterator[BadSample]:
        """Those of them that are bad."""
        return chain.from_iterable(loader.bad_samples for loader in self._loaders)

    def start(self, position: BatchPosition, num_seen: int) -> Iterator[Batch]:
        """The batches behind `position`; loading begins at once, and nothing is scored before the first is asked for.

        Args: num_seen: samples that were trained on before.
        """
        policy = self._inputs.downsampling
        if policy is None:
            return self._load(position, self._training.plan.num_samples - num_seen)
        record = next(hook for hook in self._training.hooks if isinstance(hook, DownsamplingRecord))
        draw = partial(Draw, self._seed, self._inputs.request.trigger_id)
        choose = BatchThenSample(policy, self._training, draw, record, self._inputs.uses_weights)
        return choose(self._load(position, None))

    def _load(self, position: BatchPosition, num_samples: int | None) -> Iterator[Batch]:
        """The batches of the trigger set behind `position`, of which the first is there. Args: num_samples: that they are cut to."""
        inputs, plan = self._inputs, self._training.plan
        dataset = build_dataset(inputs, self._seed, position)
        loader = self._stack.enter_context(
            BatchLoader(dataset, inputs.config.dataloader_workers, pin_memory=inputs.config.on_gpu)
        )
        self._loaders.append(loader)
        wanted = iter(loader)
        if num_samples is not None:
            wanted = bounded(wanted, num_samples)
        if plan.join_single:
            wanted = joined(wanted, plan.batches_in, self._leave_out)
        batches = on_device(wanted, inputs.config.device)
        return chain(list(islice(batches, 1)), batches)

    def _leave_out(self, _: Batch) -> None:
        self.num_alone += 1


def build_dataset(inputs: TrainingInputs, seed: int, position: BatchPosition) -> TriggerSetDataset:
    """The batches of the trigger set behind `position`."""
    config, plan = inputs.config, inputs.plan
    options = LoadOptions(
        batch_size=plan.loaded_per_batch,
        drop_last=config.drop_last_batch,
        shuffle=config.shuffle,
        seed=seed,
        epochs=plan.num_epochs,
        num_prefetched_partitions=config.num_prefetched_partitions,
        parallel_prefetch_requests=config.parallel_prefetch_requests,
    )
    data = load_section(DataConfig, inputs.request.pipeline["data"], "data")
    return TriggerSetDataset(inputs.trigger_set, data, inputs.context.connect, options, position, inputs.trained)
