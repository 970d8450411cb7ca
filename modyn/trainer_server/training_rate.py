"""How fast a pipeline's model trains on samples that are there already. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

import torch

from modyn.cache.measuring import Clock
from modyn.dataset.batch import Batch
from modyn.models.weights import build_model
from modyn.trainer_server.components import build_components
from modyn.trainer_server.criterion import Criterion
from modyn.trainer_server.loop import Training
from modyn.trainer_server.profiled_pipeline import ProfiledPipeline
from modyn.trainer_server.training_plan import TrainingPlan

FIRST_SAMPLES: Final = 2
"""Samples of the first batch: the fewest that BatchNorm takes."""
GROWTH: Final = 4
"""Batches become so many times as large, up to that of the pipeline, while two of them fit into the time."""


class TrainingRate(NamedTuple):
    """What was measured, and in batches of which size: that of the pipeline, or smaller where that would take too long."""

    samples_per_s: float
    batch_size: int
    num_samples: int
    """Samples that the rate is measured with."""


@contextmanager
def pytorch_threads(num: int) -> Iterator[None]:
    """PyTorch has so many threads within the block, as in trainings: on processors that are busy, more of them wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def training_rate(pipeline: ProfiledPipeline, batch: Batch, seconds: float, clock: Clock) -> TrainingRate:
    """Samples/s of the training loop with a fresh model: copies to the device, forward, backward, steps. Waits for the device after each batch.

    Args: batch: samples that are repeated to batches.
    Raises: ConfigError: the model or its optimizers cannot be made. TrainingError, DataError: they do not fit the samples.
    """
    end = clock() + seconds
    # Compiling may take longer than all of the measurement.
    config = pipeline.training.model_copy(update={"compile": False})
    model = build_model(pipeline.model.id, pipeline.model.config).to(config.device)
    # Schedulers are made for so many batches: more than time allows.
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
        # The last one of this size has warmed up, at least one counts, and none begins that would end too late.
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
