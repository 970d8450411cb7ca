"""Measure how fast a pipeline's model trains on samples in memory. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

import torch

from modyn.cache.plan.measuring import Clock
from modyn.dataset.batch import Batch
from modyn.models.named import model_definition
from modyn.models.weights import build_model
from modyn.trainer_server.cache_plan.profiled_pipeline import ProfiledPipeline
from modyn.trainer_server.loop.components import build_components, freeze
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.loop.loop import Training
from modyn.trainer_server.request.training_plan import TrainingPlan

FIRST_SAMPLES: Final = 2
"""Number of samples in the first batch: the smallest number that BatchNorm accepts."""
GROWTH: Final = 4
"""Factor by which batches grow, up to the size in the pipeline, as long as two larger batches fit into the remaining time."""


class TrainingRate(NamedTuple):
    """The measured rate, and the batch size of the measurement, which is below the pipeline's size if full batches take too long."""

    samples_per_s: float
    batch_size: int
    num_samples: int
    """Number of samples that the rate is measured with."""


@contextmanager
def pytorch_threads(num: int) -> Iterator[None]:
    """Set the number of PyTorch's threads within the block, as trainings do. On busy processors, additional threads only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def training_rate(pipeline: ProfiledPipeline, batch: Batch, seconds: float, clock: Clock) -> TrainingRate:
    """Measure samples/s of the training loop with a fresh model: copies to the device, forward, backward, steps. Waits for the device after each
    batch.

    Args: batch: samples that are repeated to fill batches.
    Raises: ConfigError: the model or its optimizers cannot be built. TrainingError, DataError: the model or the loss does not fit the samples.
    """
    end = clock() + seconds
    # Compiling may take longer than the whole measurement.
    config = pipeline.training.model_copy(update={"compile": False})
    named = pipeline.model
    definition = model_definition(named.id, pipeline.definition, download=named.download)
    model = build_model(named.id, named.config, definition).to(config.device)
    freeze(model, named.freeze)
    # The schedulers need a number of batches. This number is larger than the time allows.
    plan = TrainingPlan(2**20 * config.batch_size, config.batch_size, accumulation=config.gradient_accumulation_steps)
    training = Training(build_components(model, config, plan, Criterion(config.optimization_criterion)), plan, hooks=())
    size, ended = min(FIRST_SAMPLES, config.batch_size), list[float]()

    def repeated(num_samples: int) -> Batch:
        return batch.take(torch.arange(num_samples) % len(batch), torch.ones(num_samples))

    def on_device(samples: Batch, index: int) -> Batch:
        return replace(samples.to(config.device), index=index)

    def looked_at() -> float:
        if config.on_gpu:
            torch.cuda.synchronize()
        return clock()

    def batches() -> Iterator[Batch]:
        nonlocal size
        numbers = iter(range(plan.num_batches))
        yield on_device(repeated(size), next(numbers))
        while True:
            started = looked_at()
            yield on_device(repeated(size), next(numbers))
            now, larger = looked_at(), min(GROWTH * size, config.batch_size)
            if larger == size or 2 * (now - started) * larger / size > end - now:
                break
            size = larger
        # The last batch of this size was the warm-up, and does not count. At least one batch is measured. No batch begins that would end too late.
        whole = repeated(size)
        ended.append(looked_at())
        for index in numbers:
            yield on_device(whole, index)
            ended.append(looked_at())
            if 2 * ended[-1] - ended[-2] > end:
                return

    training.run(batches())
    num_samples = size * (len(ended) - 1)
    return TrainingRate(num_samples / max(ended[-1] - ended[0], 1e-9), size, num_samples)
