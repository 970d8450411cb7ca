"""The batches that a training trains on, from what is loaded to what the loop is given. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial, reduce
from itertools import chain, islice
from typing import Any, Self

from modyn.dataset.batch import BadSample, Batch, bounded, joined, on_device
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.plan import BatchPosition
from modyn.dataset.preparation_clock import NO_TIMES, PreparationTimes
from modyn.dataset.sampler_loader import SamplerLoader, trigger_set_keys
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.rpc.logs import get_logger
from modyn.trainer_server.batch_then_sample import BatchThenSample
from modyn.trainer_server.checkpoint import undisturbed
from modyn.trainer_server.chosen_set import ChosenSamples, ChosenSource
from modyn.trainer_server.downsampling.policy import Draw
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.loop import Training
from modyn.trainer_server.sample_then_batch import SampleThenBatch
from modyn.workers import JobConnection


class TrainingBatches:
    """The batches of one training, on its device. Use as a context manager, which ends what loads them."""

    def __init__(self, inputs: TrainingInputs, training: Training, seed: int, connection: JobConnection) -> None:
        """Args: seed: of this training, for the order of its samples and the choices among them. connection: receives progress and requests to
        stop."""
        self._inputs = inputs
        self._training = training
        self._seed = seed
        self._connection = connection
        self._loaders: list[BatchLoader] = []
        self._stack = ExitStack()
        self._order: Mapping[str, Any] | None = None
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

    @property
    def times(self) -> PreparationTimes:
        """What preparing the samples took, over all workers."""
        return reduce(PreparationTimes.plus, (loader.times for loader in self._loaders), NO_TIMES)

    def start(self, position: BatchPosition, num_seen: int, order: Mapping[str, Any] | None = None) -> Iterator[Batch]:
        """The batches behind `position`; loading begins at once, and nothing is scored before the first is asked for.

        Args: num_seen: samples that were trained on before. order: what the checkpoint keeps of the order of samples.
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
        """The batches of what is chosen for each period, behind `position`. Nothing of a period is loaded before all before it is trained on."""
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
            with undisturbed():
                batches = self._loaded(dataset, training.plan.num_samples - training.progress.samples)
            training.clock.lap("load")
            yield from batches
            self._loaders[-1].close()

    def _loaded(self, dataset: TriggerSetDataset, num_samples: int | None, device: str | None = None) -> Iterator[Batch]:
        """The batches of a dataset, of which the first is there. Args: num_samples: that they are cut to. device: where they are; None: on that
        of the training."""
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
        """What loads a dataset: where it is the whole trigger set, in an order that the sampler of its cache decides, if there is one."""
        config, cache = self._inputs.config, self._inputs.context.cache
        begins = dataset.position == BatchPosition()
        samples = cache is not None and cache.managed is not None if begins else self._order is not None
        # Steps come in the order of the stream, whatever the cache holds.
        if samples and dataset.trigger_set == self._inputs.trigger_set and not self._inputs.request.online:
            if (wanted := trigger_set_keys(dataset)) is not None:
                loader = SamplerLoader(dataset, cache, wanted, config.dataloader_workers, config.on_gpu, self._order)
                self._training.order_state = loader.state
                self._training.rank_samples = loader.rank if loader.needs_losses else None
                return loader
            get_logger("training").warning("cache_sampler_not_used", reason="a sample is twice in the trigger set")
        return BatchLoader(dataset, config.dataloader_workers, pin_memory=config.on_gpu)

    def _leave_out(self, _: Batch) -> None:
        self.num_alone += 1


def build_dataset(
    inputs: TrainingInputs, seed: int, position: BatchPosition, chosen: ChosenSamples | None = None, epochs: int | None = None
) -> TriggerSetDataset:
    """The batches of the trigger set behind `position`. Args: chosen: serve what was chosen of it. epochs: end with these; None: with all."""
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
