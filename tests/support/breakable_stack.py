"""A running stack whose processes are killed, with datasets of `keyed_samples` and trigger sets over them.

stack = BreakableStack(running_stack)
stack.samples("digits", num_keys=60_000, num_files=6)
with stack.unattended():        # what is killed stays away
    stack.kill("replica-1")
stack.wait_for("replica-1")
"""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from modyn.config.system import SystemConfig
from modyn.local.service_process import is_alive
from modyn.records import Int64Array, Interval, RunId, RunRegistration, SampleBatch
from modyn.rpc.channel import is_serving
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.testing.stack import RunningStack
from modyn.testing.waiting import eventually
from tests.support.keyed_samples import WORDS, keyed_data, keyed_dataset, labels_of, write_keyed_file
from tests.support.keyed_weights import NAME

Way = Literal["on", "off"]
"""storage.short_cut: on, or over Flight."""


@dataclass
class BreakableStack:
    stack: RunningStack
    _killed: dict[str, int] = field(default_factory=dict)

    # Data

    def folder(self, dataset: str) -> Path:
        return self.stack.folder / "data" / dataset

    def samples(self, dataset: str, num_keys: int, num_files: int, *, payload_bytes: int = 8 * WORDS) -> Path:
        """Register and index keys [0, num_keys) in equal files 0.bin, 1.bin, … Returns their folder."""
        folder = self.folder(dataset)
        for number, keys in enumerate(np.array_split(np.arange(num_keys), num_files)):
            bounds = range(int(keys[0]), int(keys[-1]) + 1)
            write_keyed_file(folder / f"{number}.bin", bounds, 1000 + number, payload_bytes=payload_bytes)
        with self.storage() as storage:
            storage.register_dataset(keyed_dataset(dataset, folder, payload_bytes))
            list(storage.ingest(dataset))
        return folder

    def trigger(
        self, run: str, dataset: str, *, trigger: int = 0, partition: int = 5_000, extra: Sequence[int] = ()
    ) -> Int64Array:
        """Inform the selector of new samples of the dataset, and of the keys `extra`, and trigger. Returns the keys
        of the trigger set: all of the run."""
        strategy = {"name": NAME, "maximum_keys_in_memory": partition}
        parts = [np.empty(0, np.int64)]
        with self.selector() as selector, self.storage() as storage:
            selector.register_run(RunRegistration(RunId(run), dataset, strategy, 7, keyed_data(dataset)))
            held = 0
            for batch in storage.samples_in_interval(dataset, Interval(), 50_000):
                held = selector.inform(RunId(run), sum(map(len, parts)), batch)
                parts.append(batch.keys)
            if extra:
                keys = np.asarray(extra, np.int64)
                held = selector.inform(RunId(run), held, SampleBatch(keys, np.zeros_like(keys), labels_of(keys)))
                parts.append(keys)
            selector.trigger(RunId(run), trigger, held)
        return np.concatenate(parts)

    def storage(self) -> StorageClient:
        return StorageClient(self.stack.config.endpoint("storage"))

    def selector(self) -> SelectorClient:
        return SelectorClient(self.stack.config.endpoint("selector"))

    def system(self, way: Way, *, replicas: bool = False) -> SystemConfig:
        """Return the configuration of a reader that goes this way; over Flight, to storage alone or also to its replicas."""
        config = self.stack.config
        update = {"short_cut": way, "replicas": config.storage.replicas if replicas else 0}
        return config.model_copy(update={"storage": config.storage.model_copy(update=update)})

    def served_bytes(self, service: str, dataset: str) -> int:
        """Return the payload bytes of a dataset that a process has read since its start."""
        url = (self.stack.config.service_dir(service) / "metrics_url").read_text().strip()
        with urllib.request.urlopen(url) as reply:
            found = re.search(rf'^modyn_storage_payload_bytes_total{{dataset="{dataset}"}} (\S+)$', reply.read().decode(), re.M)
        return int(float(found[1])) if found else 0

    # Processes

    def pid(self, name: str) -> int | None:
        with self.stack.client() as client:
            return next((part.pid for part in client.status().parts if part.name == name), None)

    def kill(self, name: str) -> None:
        """`kill -9`, and wait until it is dead. Unless the stack is `unattended`, it restarts the part."""
        pid = self.pid(name)
        assert pid is not None, f"{name} does not run"
        self._killed[name] = pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_alive(pid))

    def wait_for(self, *names: str) -> None:
        """Wait until these killed parts are back."""
        for name in names:
            eventually(lambda name=name: self._is_back(name), f"{name} was not started again")  # type: ignore[misc]

    def _is_back(self, name: str) -> bool:
        return self.pid(name) not in (None, self._killed[name]) and is_serving(self.stack.config.endpoint(name))

    @contextmanager
    def unattended(self) -> Iterator[None]:
        """Keep the stack from restarting what dies inside the block."""
        with self.stack.client() as client:
            pid = client.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
