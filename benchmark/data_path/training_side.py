"""Our side as a training process: a trigger set through OnlineDataset and BatchLoader, as the trainer's worker uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmark.data_path.figure import Side
from benchmark.data_path.installation import Installation
from benchmark.data_path.side_process import SideProcesses, serve
from modyn.records import TriggerSetInfo


def training_side(
    processes: SideProcesses,
    services: Installation,
    trigger_set: TriggerSetInfo,
    data: Mapping[str, Any],
    workers: int,
    **options: Any,
) -> Side:
    """One epoch over `trigger_set`. data: as the `data` section of a pipeline. options: those of LoadOptions."""
    task = {
        "config_file": str(services.config_file),
        "run_id": trigger_set.run_id,
        "samples": trigger_set.num_keys,
        "data": dict(data),
        "workers": workers,
        "options": {"drop_last": False, "seed": 0, **options},
    }
    return processes.side("modyn", __name__, task)


def prepare(task: dict[str, Any]) -> Callable[[], Iterable[Any]]:
    import torch

    from modyn.config.base import load_section
    from modyn.config.system import load_system_config
    from modyn.dataset.config import DataConfig
    from modyn.dataset.loader import BatchLoader
    from modyn.dataset.online_dataset import LoadOptions, OnlineDataset, ServiceClients
    from modyn.selector.client import SelectorClient

    torch.set_num_threads(1)
    config = load_system_config(Path(task["config_file"]))
    with SelectorClient(config.endpoint("selector")) as selector:
        trigger_set = selector.trigger_set(task["run_id"], 0)
    data = load_section(DataConfig, task["data"], "data")
    connect = ServiceClients(config.endpoint("selector"), config.endpoint("flight"))
    dataset = OnlineDataset(trigger_set, data, connect, LoadOptions(**task["options"]))

    def start() -> Iterable[Any]:
        with BatchLoader(dataset, task["workers"]) as loader:
            yield from loader

    return start


if __name__ == "__main__":
    serve(prepare)
