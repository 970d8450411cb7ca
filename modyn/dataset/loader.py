"""Loads a dataset in threads of this process, or in DataLoader workers if Python code runs for each sample. `OnlineDataset` finds a dataset by run
and trigger."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any, Self

from torch.utils.data import IterableDataset, get_worker_info

from modyn.config.base import load_section
from modyn.config.system import SystemConfig, load_system_config
from modyn.dataset.bad_samples import BadSampleList
from modyn.dataset.batch import Batch
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetSource
from modyn.dataset.preparation_clock import NO_TIMES
from modyn.dataset.processes import ProcessLimits, batches_of_processes
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.errors import ConfigError, InvalidArgumentError, ModynError
from modyn.records import RunId
from modyn.selector.client import SelectorClient


class BatchLoader:
    """The batches of a dataset, in the order of its plan, without empty ones. Use it as a context manager, or call `close`.

    If no Python code runs for each sample, workers are threads of this process: reading and copying release the GIL. Otherwise a single worker is a
    thread, and several workers are processes (forkserver) with equal shares. The batches are the same for any number of workers. Workers live for one
    iteration over all epochs.

    Args: pin_memory: whether batches are in page-locked memory.

    num_skipped: number of bad or deleted samples that the running iteration, or the last one, left out. bad_samples: the bad samples, each once; more
    than `data.max_bad_samples` over all workers are an error. times: preparation times, summed over all workers.
    """

    def __init__(self, dataset: TriggerSetDataset, num_workers: int = 1, pin_memory: bool = False) -> None:
        self._dataset = dataset
        self._num_workers = num_workers
        self._pin_memory = pin_memory
        self._running: Generator[Batch, None, None] | None = None
        self.num_skipped = 0
        self.times = NO_TIMES
        self.bad_samples = BadSampleList(dataset.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        """Start the workers at the dataset's position. An iteration that still runs is closed."""
        self.close()
        self.num_skipped = 0
        self.times = NO_TIMES
        self.bad_samples = BadSampleList(self._dataset.data)
        # Threads are enough unless Python code runs for each sample.
        processes = self._num_workers > 1 and self._dataset.data.runs_per_sample
        self._running = self._in_processes() if processes else self._in_threads()
        return self._running

    def __len__(self) -> int:
        """Number of batches of an iteration, empty ones included."""
        return len(self._dataset)

    def close(self) -> None:
        """End the threads and processes of the running iteration."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def _in_threads(self) -> Generator[Batch, None, None]:
        with closing(self._dataset.serve(max(1, self._num_workers), pin_memory=self._pin_memory)) as batches:
            yield from self._count_batches(batches)

    def _in_processes(self) -> Generator[Batch, None, None]:
        def make(limits: ProcessLimits) -> _WorkerDataset:
            return _WorkerDataset(self._dataset, limits)

        with closing(batches_of_processes(make, self._num_workers, self._pin_memory)) as batches:
            yield from self._count_batches(batches)

    def _count_batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.num_skipped += batch.num_skipped
            self.times = self.times.plus(batch.times)
            self.bad_samples.add(batch.bad)
            if len(batch):
                yield batch


class OnlineDataset(TriggerSetDataset):
    """Serves the samples that trigger `trigger` of run `run` selected, as batches of tensors:

        for batch in OnlineDataset("digits-0007", 3, batch_size=1024):
            model(batch.data)

    Args: data: how bytes become tensors; by default the `data` section of the run's pipeline, whose code then runs in this process. workers: number
    of threads, or of processes if code runs for each sample. system: the services; by default those of the system file that MODYN_CONFIG names, or of
    the state folder `.modyn`. The other arguments are as in the `training` section, except that no sample is left out by default.
    Raises: NotFoundError: the run or trigger is unknown. InvalidArgumentError: an option is out of range. ConfigError: `data` is wrong, or is
    neither given nor registered with the run.

    Samples deleted after the selection are left out. `Batch.num_skipped` counts these samples in a batch, and `num_skipped` of the dataset counts
    these samples in the running iteration. A batch whose samples were all deleted is left out, but your own DataLoader (batch_size=None) gets an
    empty batch.

    `set_epoch(e)` serves exactly epoch e. `seek(state)` resumes after the batch of `state(batch)`, in any process.
    """

    def __init__(
        self,
        run: str,
        trigger: int,
        data: DataConfig | Mapping[str, Any] | None = None,
        *,
        batch_size: int = 256,
        drop_last: bool = False,
        shuffle: bool = False,
        seed: int | None = None,
        epochs: int = 1,
        workers: int = 1,
        num_prefetched_partitions: int = 1,
        parallel_prefetch_requests: int = 1,
        system: SystemConfig | None = None,
    ) -> None:
        options = LoadOptions(batch_size, drop_last, shuffle, seed, epochs, num_prefetched_partitions, parallel_prefetch_requests)
        if workers < 0:
            raise InvalidArgumentError(f"workers is {workers}; it must be at least 0, and 0 means the same as 1")
        system = system or load_system_config()
        # Only the description of the set is needed here. Workers connect on their own.
        with SelectorClient(system.endpoint("selector")) as selector:
            trigger_set = selector.trigger_set(RunId(run), trigger)
            section = selector.data_section(RunId(run)) if data is None else data
        if section is None:
            raise ConfigError(f"run '{run}' was registered without its `data` section; give it as the argument `data`")
        config = section if isinstance(section, DataConfig) else load_section(DataConfig, section, "data")
        source = DatasetSource(system, config.dataset_id, parallel_prefetch_requests)
        super().__init__(trigger_set, config, source.connect, options)
        self._workers = workers
        self.num_skipped = 0

    def __iter__(self) -> Iterator[Batch]:
        # A worker process of the user's own DataLoader starts no further workers.
        if get_worker_info() is not None:
            yield from super().__iter__()
        else:
            self.num_skipped = 0
            with BatchLoader(self, self._workers) as loader:
                for batch in loader:
                    self.num_skipped = loader.num_skipped
                    yield batch
            self.num_skipped = loader.num_skipped


class _WorkerDataset(IterableDataset[Batch | ModynError]):
    """The dataset in a worker process."""

    def __init__(self, dataset: TriggerSetDataset, limits: ProcessLimits) -> None:
        super().__init__()
        self._dataset = dataset
        self._limits = limits

    def __iter__(self) -> Iterator[Batch | ModynError]:
        try:
            self._limits.impose()
            yield from self._dataset
        except ModynError as error:
            # Yielded as a value: the DataLoader would replace the message of a raised error by a traceback, and lose its sample key.
            yield error
