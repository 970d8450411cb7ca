"""Our side of a training process: trigger sets through OnlineDataset, by the BatchLoader that the trainer uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmark.data_path.figure import Measured, Side
from benchmark.data_path.installation import Installation
from benchmark.data_path.resident import MIB, Watched, watching
from benchmark.data_path.side_process import Arrange, SideProcess, SideProcesses, Start, serve
from modyn.records import TriggerSetInfo
from modyn.workers.fork_server import ENVIRONMENT

ShortCut = Literal["auto", "on", "off"]


class TrainingProcess:
    """Training process of one installation, with the given short cut and the environment of a worker."""

    def __init__(self, processes: SideProcesses, services: Installation, short_cut: ShortCut = "auto") -> None:
        task = {"config_file": str(services.config_file), "short_cut": short_cut}
        self._process: SideProcess = processes.open(__name__, task, environment=ENVIRONMENT)
        # Storage keeps maps of the data that it served; this process lets go of its own after each run.
        self._fresh = partial(services.restart, "storage")

    def side(
        self, trigger_set: TriggerSetInfo, data: Mapping[str, Any], workers: int, *, check: bool = True, **options: Any
    ) -> Side:
        """One epoch over `trigger_set`. data: as the `data` section of a pipeline. options: those of OnlineDataset."""
        options = {"drop_last": False, "seed": 0, **options}
        side = self._process.side(
            "modyn",
            trigger_set.num_keys,
            shuffled=options.get("shuffle", False),
            check=check,
            run_id=trigger_set.run_id,
            data=dict(data),
            workers=workers,
            options=options,
        )
        return replace(side, fresh=self._fresh)

    def memory_of(self, epoch: Side) -> Side:
        """`epoch`, a side of this process, with another value: MiB that the process and its workers take beyond what they had when they were
        first seen, which of the process itself is right before its first run."""
        seen: dict[int, int] = {}

        def run(ready: Callable[[], None]) -> Measured:
            with ExitStack() as stack:
                watched: list[Watched] = []

                def begin() -> None:
                    watched.append(stack.enter_context(watching(self._process.pid, seen)))
                    ready()

                epoch.run(begin)
            seen.update(watched[0].before)
            details = {"idle, MiB": seen[self._process.pid] / MIB, "worker processes so far": len(seen) - 1.0}
            return Measured(watched[0].grown / MIB, details)

        return Side(f"{epoch.name}, memory", run)


def prepare(task: dict[str, Any]) -> Arrange:
    import torch

    from modyn.config.system import load_system_config
    from modyn.dataset import OnlineDataset

    torch.set_num_threads(1)
    if task["short_cut"] != "auto":
        os.environ["MODYN_STORAGE__SHORT_CUT"] = task["short_cut"]
    config = load_system_config(Path(task["config_file"]))

    def arrange(run: dict[str, Any]) -> Start:
        dataset = OnlineDataset(run["run_id"], 0, run["data"], workers=run["workers"], system=config, **run["options"])
        return lambda: dataset

    return arrange


if __name__ == "__main__":
    serve(prepare)
