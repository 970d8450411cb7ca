"""The batches of a training, from loading to the loop. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial, reduce
from itertools import chain, islice
from typing import Any, Self

from modyn.dataset.batch import BadSample, Batch, bounded, joined, on_device
from modyn.dataset.cached.sampler_loader import SamplerLoader, trigger_set_keys
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.batch_plan import BatchPosition
from modyn.dataset.preparation_clock import NO_TIMES, PreparationTimes
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.rpc.logs import get_logger
from modyn.trainer_server.disk.chosen_set import ChosenSamples, ChosenSource
from modyn.trainer_server.downsampling.policies.policy import Draw
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.loop.loop import Training
from modyn.trainer_server.loop.seeding import undisturbed
from modyn.trainer_server.scoring.batch_then_sample import BatchThenSample
from modyn.trainer_server.scoring.sample_then_batch import SampleThenBatch
from modyn.workers import JobConnection


class TrainingBatches:
    """The batches of one training, on its device. A context manager: its exit stops the loaders."""

    def __init__(self, inputs: TrainingInputs, training: Training, seed: int, connection: JobConnection) -> None:
        """Args: seed: seed of this training, for the order and the choice of its samples. connection: reports progress and receives requests to
        stop."""
        self._inputs = inputs
        self._training = training
        self._seed = seed
        self._connection = connection
        self._loaders: list[BatchLoader] = []
        self._stack = ExitStack()
        self._order: Mapping[str, Any] | None = None
        self.num_alone = 0
        """Number of samples left out because each is the only sample of its epoch. BatchNorm needs two samples."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def num_skipped(self) -> int:
        """Number of samples left out: deleted since the selection, bad or alone."""
        return sum(loader.num_skipped for loader in self._loaders) + self.num_alone

    @property
    def bad_samples(self) -> Iterator[BadSample]:
        """The bad samples that were left out."""
        return chain.from_iterable(loader.bad_samples for loader in self._loaders)

    @property
    def times(self) -> PreparationTimes:
        """Preparation times of the samples, over all workers."""
        return reduce(PreparationTimes.plus, (loader.times for loader in self._loaders), NO_TIMES)

    def start(self, position: BatchPosition, num_seen: int, order: Mapping[str, Any] | None = None) -> Iterator[Batch]:
        """Return the batches after `position`. Loading begins immediately; scoring begins with the first request for a batch.

        Args: num_seen: number of samples that earlier steps trained on. order: state of the sample order, from the checkpoint.
        """
        self._order = order
        policy = self._inputs.downsampling
        if policy is None:
            dataset = build_dataset(self._inputs, self._seed, position)
            return self._loaded(dataset, self._training.plan.num_samples - num_seen)
        draw = partial(Draw, self._seed, self._inputs.request.trigger_id)
        if policy.config.sample_then_batch:
            selections = SampleThenBatch(self._inputs, policy, self._training, draw, self._connection)
            self._stack.callback(selections.close)
            return self._of_selections(selections, position)
        choose = BatchThenSample(policy, self._training, draw, self._inputs.uses_weights)
        return choose(self._loaded(build_dataset(self._inputs, self._seed, position), None, "cpu"))

    def _of_selections(self, selections: SampleThenBatch, position: BatchPosition) -> Iterator[Batch]:
        """Yield the batches of each period's chosen samples, after `position`. Each period is loaded after the training on all earlier periods."""
        training, period = self._training, selections.period
        for number in range(position.epoch // period, -(-training.plan.num_epochs // period)):
            training.end_epochs_before(number * period)
            if training.finished:
                return
            chosen = selections.chosen(number)
            begin = max(position, BatchPosition(number * period))
            dataset = build_dataset(
                self._inputs, self._seed, begin, chosen, epochs=min((number + 1) * period, training.plan.num_epochs)
            )
            # The start of a loader draws random numbers, more with more workers. The draws must not change the random numbers of the training.
            with undisturbed():
                batches = self._loaded(dataset, training.plan.num_samples - training.progress.samples)
            training.clock.lap("load")
            yield from batches
            self._loaders[-1].close()

    def _loaded(self, dataset: TriggerSetDataset, num_samples: int | None, device: str | None = None) -> Iterator[Batch]:
        """Return the batches of a dataset; the first batch is already loaded. Args: num_samples: limit on the number of samples. device: device of
        the batches; None for the device of the training."""
        config, plan = self._inputs.config, self._training.plan
        loader = self._stack.enter_context(self._loader(dataset))
        self._loaders.append(loader)
        wanted: Iterator[Batch] = iter(loader)
        if num_samples is not None:
            wanted = bounded(wanted, num_samples)
        if plan.join_single:
            wanted = joined(wanted, plan.batches_in, self._leave_out)
        batches = on_device(wanted, device or config.device)
        return chain(list(islice(batches, 1)), batches)

    def _loader(self, dataset: TriggerSetDataset) -> BatchLoader:
        """Return the loader of a dataset. If the cache has a sampler, the sampler decides the order of a whole trigger set."""
        config, cache = self._inputs.config, self._inputs.context.cache
        # A resumed training uses the sampler only if the training began with the sampler, which the state in the checkpoint shows.
        begins = dataset.position == BatchPosition()
        samples = cache is not None and cache.managed is not None if begins else self._order is not None
        # Online steps use the order of the stream. The cache must not change this order.
        if samples and dataset.trigger_set == self._inputs.trigger_set and not self._inputs.request.online:
            if (wanted := trigger_set_keys(dataset)) is not None:
                loader = SamplerLoader(dataset, cache, wanted, config.dataloader_workers, config.on_gpu, self._order)
                self._training.order_state = loader.state
                return loader
            get_logger("training").warning("cache_sampler_not_used", reason="a sample is twice in the trigger set")
        return BatchLoader(dataset, config.dataloader_workers, pin_memory=config.on_gpu)

    def _leave_out(self, _: Batch) -> None:
        self.num_alone += 1


def build_dataset(
    inputs: TrainingInputs, seed: int, position: BatchPosition, chosen: ChosenSamples | None = None, epochs: int | None = None
) -> TriggerSetDataset:
    """Return a dataset of the trigger set after `position`. Args: chosen: samples to use; None for all. epochs: number of epochs; None for all."""
    config, plan = inputs.config, inputs.plan
    options = LoadOptions(
        batch_size=plan.loaded_per_batch,
        drop_last=plan.drops_last,
        shuffle=config.shuffle,
        seed=seed,
        epochs=plan.num_epochs if epochs is None else epochs,
        num_prefetched_partitions=config.num_prefetched_partitions,
        parallel_prefetch_requests=config.parallel_prefetch_requests,
        training=not inputs.request.tests_only,
        classes=inputs.classes,
    )
    data = inputs.data
    if chosen is None:
        return TriggerSetDataset(inputs.trigger_set, data, inputs.connect, options, position, inputs.trained)
    return TriggerSetDataset(chosen.info, data, ChosenSource(chosen.path, inputs.context.connect), options, position)
