"""A trigger set of a run as batches, by the names of both: for notebooks and scripts, which know no endpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from torch.utils.data import get_worker_info

from modyn.config.base import load_section
from modyn.config.system import SystemConfig, load_system_config
from modyn.dataset.batch import Batch
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetConnector
from modyn.dataset.loader import BatchLoader
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.records import RunId
from modyn.selector.client import SelectorClient


class OnlineDataset(TriggerSetDataset):
    """The samples that trigger `trigger` of run `run` selected, as batches of tensors:

    for batch in OnlineDataset("digits-0007", 3, batch_size=1024):
        model(batch.data)

    data: how bytes become tensors; by default the `data` section of the run's pipeline, whose code then runs here. workers: threads, or
    processes where that code runs for each sample. system: the services; by default those of the system file that MODYN_CONFIG names, or of
    the state folder `.modyn`. The other arguments are as in the `training` section, except that no sample is left out by default.
    A batch whose samples were all deleted is left out; with a DataLoader of your own (batch_size=None) it comes, empty.
    Raises NotFoundError for an unknown run or trigger, InvalidArgumentError for options out of range.

    `set_epoch(e)` makes it serve exactly that epoch, as samplers of PyTorch do; `state(batch)` and `resume` go on in another process.
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
        with SelectorClient(system.endpoint("selector")) as selector:
            trigger_set = selector.trigger_set(RunId(run), trigger)
            section = selector.data_section(RunId(run)) if data is None else data
        if section is None:
            raise ConfigError(f"run '{run}' was registered without its `data` section; give it as the argument `data`")
        config = section if isinstance(section, DataConfig) else load_section(DataConfig, section, "data")
        connect = DatasetConnector.of(system, config.dataset_id, streams=parallel_prefetch_requests)
        super().__init__(trigger_set, config, connect, options)
        self._workers = workers

    def __iter__(self) -> Iterator[Batch]:
        if get_worker_info() is not None:
            yield from super().__iter__()
        else:
            with closing(BatchLoader(self, self._workers)) as loader:
                yield from loader
