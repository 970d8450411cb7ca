"""Trainings whose batches a sampler of the cache decides, on samples in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from modyn.dataset.batch import Batch
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.cached.sample_cache import TierInUse
from modyn.dataset.cached.sampler_loader import SamplerLoader, trigger_set_keys
from modyn.dataset.config import DataConfig
from modyn.dataset.order.batch_plan import BatchPosition
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from tests.support.fake_dataset import FakeTriggerSet

NUM_KEYS = 60
KEYS = np.random.default_rng(5).permutation(NUM_KEYS).astype(np.int64)
PARSER = """
def bytes_parser_function(data: memoryview):
    return torch.frombuffer(bytearray(data), dtype=torch.int64)[:1].double()
"""
DATA = DataConfig(
    dataset_id="fake",
    bytes_parser_function=PARSER,
    deterministic_transformations=("lambda x: x * 3",),
    random_transformations=("lambda x: x + torch.rand(1)",),
)


@dataclass(frozen=True)
class GoneInWorkers(CacheSource):
    """A cache whose tier only the process that makes this can open."""

    main: int = field(default_factory=os.getpid)

    def open_managed(self) -> TierInUse | None:
        return super().open_managed() if os.getpid() == self.main else None


class Job:
    """A training that reads some batches at a time, and can be killed."""

    def __init__(
        self,
        cache: CacheSource | None,
        seed: int,
        keys: Any = KEYS,
        size: int = 7,
        workers: int = 1,
        data: DataConfig = DATA,
        epochs: int = 3,
        loader: type[SamplerLoader] = SamplerLoader,
        **options: Any,
    ) -> None:
        self.cache, self.seed, self.size, self.workers, self.data = cache, seed, size, workers, data
        self.epochs, self._kind = epochs, loader
        self.keys = FakeTriggerSet(np.asarray(keys, np.int64), 25, answer_size=4, cache=cache, **options)
        self.served: dict[int, list[int]] = {}
        self.values: list[float] = []
        self.batches: list[Batch] = []
        self.position = BatchPosition()
        self.state: dict[str, Any] | None = None
        self.is_over = False
        self.begin()

    def begin(self, drop_last: bool = False) -> None:
        """Resume after the batches that were read."""
        options = LoadOptions(self.size, drop_last=drop_last, shuffle=True, seed=self.seed, epochs=self.epochs)
        self.dataset = TriggerSetDataset(self.keys.info, self.data, self.keys, options, self.position)
        wanted = trigger_set_keys(self.dataset)
        assert wanted is not None
        self.loader = self._kind(self.dataset, self.cache, wanted, self.workers, resumed=self.state)
        self.running = iter(self.loader)

    def read(self, num_batches: int = 10**9) -> Job:
        for _ in range(num_batches):
            batch = next(self.running, None)
            if batch is None:
                self.is_over = True
                break
            self.batches.append(batch)
            self.served.setdefault(batch.epoch, []).extend(batch.keys.tolist())
            assert isinstance(batch.data, torch.Tensor)
            # The random part of the sample, from [0, 1).
            drawn = batch.data[:, 0] - 3 * batch.keys
            assert ((drawn >= 0) & (drawn < 1)).all()
            assert batch.labels.tolist() == (batch.keys % 10).tolist()
            assert batch.weights.tolist() == (batch.keys / 2).tolist()
            self.values += batch.data[:, 0].tolist()
            self.position = BatchPosition(batch.epoch, batch.index + 1)
        self.state = self.loader.state(self.position)
        return self

    def kill(self) -> Job:
        """Lose all that was not trained on, and begin again: batches that are made ahead are never reported."""
        if self.loader._sampler is not None:
            self.loader._sampler.leave = lambda: np.empty(0, np.int64)  # type: ignore[method-assign]
        self.loader.close()
        self.begin()
        return self

    def check(self, keys: Any = KEYS, is_one_thread: bool = True) -> None:
        """Once it is over: each epoch has served every sample once."""
        assert list(self.served) == list(range(self.epochs))
        self.check_until_now(keys, is_one_thread)
        assert len(self.served[self.epochs - 1]) == len(keys)

    def check_until_now(self, keys: Any = KEYS, is_one_thread: bool = True) -> None:
        """Each epoch has served every sample once, the last one as far as it has come."""
        *complete, last = self.served.values()
        assert all(sorted(of_epoch) == sorted(map(int, keys)) for of_epoch in complete)
        assert len(set(last)) == len(last)
        assert set(last) <= set(map(int, keys))
        # None is served twice. Threads draw from the same generator in turn.
        assert len(set(self.values)) == len(self.values) or not is_one_thread

    @property
    def num_augmented(self) -> int:
        return sum(batch.cached.augmented for batch in self.batches)


def read_in_turn(jobs: Sequence[Job]) -> None:
    """Let each read a batch in turn, until all are over."""
    while not all(job.is_over for job in jobs):
        for job in jobs:
            job.read(1)
