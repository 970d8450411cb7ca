"""Services of a figure, PostgreSQL included, as real processes that the local stack starts and stops."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modyn.client import Client
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.local.control import PartStatus
from modyn.records import Interval, RunId, RunRegistration, TriggerSetInfo
from modyn.selector.client import SelectorClient

_STREAM_BATCH = 100_000
_RESTART_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class Installation:
    """Running installation. config_file: system file for other processes."""

    config: SystemConfig
    config_file: Path
    client: Client

    def ingest(self, dataset: DatasetConfig, expected: int) -> None:
        """Register and index a dataset. Raises if it does not hold `expected` samples then."""
        self.client.register_dataset(dataset)
        info = self.client.ingest(dataset.name)
        if info.num_samples != expected or info.num_problems:
            raise RuntimeError(
                f"{dataset.name} holds {info.num_samples:,} samples, {expected:,} were written; {info.num_problems} problems"
            )

    def empty_dataset(self) -> str:
        """Register a dataset without samples, for runs that are informed of made-up ones; return its name."""
        folder = self.config_file.parent / "empty"
        folder.mkdir(exist_ok=True)
        config = {"record_size": 2, "label_size": 1}
        dataset = DatasetConfig(
            name="empty", base_path=str(folder), file_wrapper="BinaryFileWrapper", file_wrapper_config=config, watch=False
        )
        self.client.register_dataset(dataset)
        return dataset.name

    def restart(self, service: str) -> None:
        """End a service, which the stack restarts, and wait until it serves."""
        old = self.pid(service)
        os.kill(old, signal.SIGTERM)
        deadline = time.monotonic() + _RESTART_PATIENCE_S
        while (part := self._part(service)).pid in (old, None) or not part.healthy:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{service} did not come back within {_RESTART_PATIENCE_S:.0f} s")
            time.sleep(0.05)

    def pid(self, service: str) -> int:
        pid = self._part(service).pid
        if pid is None:
            raise RuntimeError(f"{service} does not run")
        return pid

    def _part(self, service: str) -> PartStatus:
        return next(part for part in self.client.status().parts if part.name == service)

    def trigger_set(self, run: str, dataset: str, partition_size: int, num_samples: int | None = None) -> TriggerSetInfo:
        """Make all samples of a dataset, or its first ones, the trigger set of a new run, informed in stream order as a supervisor does."""
        strategy = {"name": "NewDataStrategy", "maximum_keys_in_memory": partition_size, "tail_triggers": 0}
        position = 0
        with SelectorClient(self.config.endpoint("selector")) as selector:
            selector.register_run(RunRegistration(RunId(run), dataset, strategy, seed=0))
            for batch in self.client.storage.samples_in_interval(dataset, Interval(), _STREAM_BATCH):
                wanted = batch if num_samples is None else batch.slice(0, num_samples - position)
                selector.inform(RunId(run), position, wanted)
                position += len(wanted)
                if position == num_samples:
                    break
            return selector.trigger(RunId(run), 0, position)


@contextmanager
def installation(folder: Path, **sections: Any) -> Iterator[Installation]:
    """Start a stack with its state below `folder`, and stop it at the end of the block. Args: sections: of the system file."""
    config_file = folder / "modyn.yaml"
    config = SystemConfig(state_dir=folder / "state", **sections)
    config_file.write_text(config.model_dump_json(exclude_defaults=True))  # JSON is YAML
    with Client(config_file, start=True) as client:
        try:
            yield Installation(client.config, config_file, client)
        finally:
            client.down()
