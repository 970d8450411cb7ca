"""A real embedded stack for tests: PostgreSQL, Redis and all six services as processes, and small data for runs of one or two seconds.

pytest_plugins = ["modyn.testing.stack"]

def test_it(running_stack):
    running_stack.tiny_dataset("numbers")
    run = running_stack.run(tiny_pipeline("numbers"))
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from modyn.atomic_write import write_atomically
from modyn.client import Client
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig, load_system_config
from modyn.local.databases import PostgresServer
from modyn.supervisor.client import Run
from modyn.testing.command_line import run_command
from modyn.testing.databases import LentDatabases, administer, own_database
from modyn.testing.waiting import PATIENCE_S

DAY = 86_400
NUM_FEATURES, NUM_CLASSES = 4, 3
RECORD = np.dtype([("label", "<i8"), ("features", "<f4", (NUM_FEATURES,))])

TINY_PARSER = """\
import torch

def bytes_parser_function(data: memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.float32)
"""


@dataclass(frozen=True)
class RunningStack:
    """One embedded installation. config_file: file of the installation for `modyn --config`. folder: folder for files of tests."""

    folder: Path
    config_file: Path
    config: SystemConfig
    plug_ins: Path | None = None
    """Folder with installed packages, which the stack's services find in addition to the packages of this environment."""

    def up(self) -> None:
        """Start the parts that are not running, as `modyn up` does."""
        with self.client() as client, pytest.MonkeyPatch.context() as patch:
            if self.plug_ins is not None:
                patch.setenv("PYTHONPATH", str(self.plug_ins), prepend=os.pathsep)
            client.up()

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that a user would type."""
        return [sys.executable, "-m", "modyn.cli.main", "--config", str(self.config_file), *arguments]

    def modyn(
        self,
        *arguments: object,
        process: bool = False,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of `modyn` without a terminal. The method does not check the exit code.

        Args: arguments: the words after `modyn`. process: run the command in its own process, as a user does, which takes half a second longer. cwd:
        working folder; None: `folder`. environment: variables in addition to `clean_environment`.
        """
        texts, folder, variables = list(map(str, arguments)), cwd or self.folder, clean_environment(environment)
        if not process:
            return run_command(["--config", str(self.config_file), *texts], folder, variables)
        return subprocess.run(
            self.command(*texts),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
            cwd=folder,
            env=variables,
            check=False,
        )

    def client(self) -> Client:
        """Return a new client of this stack. The caller closes it."""
        return Client(self.config_file, wait_s=PATIENCE_S)

    def tiny_dataset(self, name: str, num_samples: int = 100, num_files: int = 2, **options: object) -> Path:
        """Register and index a dataset with files of `write_tiny_files`, and return the folder of its files.

        Args: options: fields of `DatasetConfig` that replace fields of `tiny_dataset_config`.
        """
        folder = self.folder / "data" / name
        write_tiny_files(folder, num_samples, num_files)
        with self.client() as client:
            client.register_dataset(tiny_dataset_config(name, folder, **options))
            client.ingest(name)
        return folder

    def pipeline_file(self, dataset: str, **sections: object) -> Path:
        """Write `tiny_pipeline(dataset, **sections)` to a new file, and return its path."""
        handle, path = tempfile.mkstemp(suffix=".yaml", prefix="pipeline-", dir=self.folder)
        with os.fdopen(handle, "w") as file:
            file.write(tiny_pipeline(dataset, **sections))
        return Path(path)

    def run(self, pipeline: str | Path, **options: Any) -> Run:
        """Run a pipeline to its end, and return the run in its final state.

        Args: pipeline: text of a pipeline, or path of its file. options: see `Client.run`.
        """
        path = pipeline if isinstance(pipeline, Path) else self.folder / "pipeline.yaml"
        if isinstance(pipeline, str):
            write_atomically(path, [pipeline.encode()])  # Several threads may run the same pipeline.
        with self.client() as client:
            return client.wait(client.run(path, **options).run_id)


def write_tiny_files(folder: Path, num_samples: int = 100, num_files: int = 2, first_day: int = 0, seed: int = 0) -> None:
    """Write binary files of equal size, one for each day. The modification time of a file is noon of its day. The label can be computed from the
    features.

    Args: num_samples: number of samples in all files together. first_day: day of the first file, counted from 1970-01-01. seed: number that, together
    with `first_day`, determines the content.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng([seed, first_day])
    for day, share in enumerate(np.array_split(np.arange(num_samples), num_files), first_day):
        records = np.zeros(len(share), RECORD)
        records["label"] = random.integers(0, NUM_CLASSES, len(share))
        records["features"] = np.eye(NUM_FEATURES, dtype=np.float32)[records["label"]]
        records["features"] += random.normal(0, 0.1, records["features"].shape)
        path = folder / f"day-{day:04d}.bin"
        path.write_bytes(records.tobytes())
        os.utime(path, (day * DAY + DAY // 2,) * 2)


def tiny_dataset_config(name: str, folder: Path, **options: object) -> DatasetConfig:
    """Return the configuration of a dataset with the files of `write_tiny_files` in `folder`. Args: options: further fields; by default, the folder
    is not watched."""
    layout = {"record_size": RECORD.itemsize, "label_size": 8, "byteorder": "little"}
    fields: dict[str, Any] = {"file_wrapper_config": layout, "watch": False, **options}
    return DatasetConfig(name=name, base_path=folder, file_wrapper="BinaryFileWrapper", **fields)


def tiny_pipeline(dataset: str, **sections: object) -> str:
    """Return a pipeline for `write_tiny_files`: a trigger every 50 samples, logistic regression, no evaluation.

    Args: sections: sections that replace sections of the pipeline; None removes a section.
    """
    pipeline: dict[str, object] = {
        "pipeline": {"name": "tiny"},
        "model": {"id": "LogisticRegression", "config": {"input_size": NUM_FEATURES, "num_classes": NUM_CLASSES}},
        "data": {"dataset_id": dataset, "bytes_parser_function": TINY_PARSER},
        "trigger": {"id": "DataAmountTrigger", "num_samples": 50},
        "selection_strategy": {"name": "NewDataStrategy", "maximum_keys_in_memory": 1000, "tail_triggers": 0},
        "training": tiny_training(),
    }
    return yaml.safe_dump({name: value for name, value in {**pipeline, **sections}.items() if value is not None}, sort_keys=False)


def tiny_training(**options: object) -> dict[str, object]:
    """Return a section `training` for trainings that take milliseconds. Args: options: options that replace options of the section."""
    return {
        "use_previous_model": True,
        "batch_size": 10,
        "seed": 1,
        "optimizers": [
            {"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": 0.5}}]},
        ],
        "optimization_criterion": {"name": "CrossEntropyLoss"},
        **options,
    }


def tiny_evaluation(
    dataset: str, *, handler: str = "daily", days: int = 2, execution_time: str = "after_training"
) -> dict[str, object]:
    """Return a section `evaluation` for the accuracy of every model on each of the first `days` days of a dataset, from 1970-01-01 on.

    Args: handler: name of the handler. execution_time: see the pipeline format.
    """
    return {
        "datasets": [
            {
                "dataset_id": dataset,
                "bytes_parser_function": TINY_PARSER,
                "batch_size": 64,
                "metrics": [{"name": "Accuracy", "topn": 1}],
            }
        ],
        "handlers": [
            {
                "name": handler,
                "execution_time": execution_time,
                "models": "matrix",
                "datasets": [dataset],
                "strategy": {"type": "SlicingEvalStrategy", "eval_every": "1d", "eval_start_from": 0, "eval_end_at": days * DAY},
            }
        ],
    }


@contextmanager
def stack_on(
    folder: Path,
    *,
    start: bool = True,
    plug_ins: Path | None = None,
    storage: Mapping[str, object] | None = None,
    **sections: object,
) -> Iterator[RunningStack]:
    """Make an installation with its state below `folder`, and stop it after the `with` block.

    Storage polls watched folders ten times per second, and a file counts as complete after a tenth of a second.

    Args: start: start the services before the block. plug_ins: see `RunningStack`. storage, sections: sections of the system file.
    """
    storage = {"poll_interval_s": 0.1, "settle_s": 0.1, **(storage or {})}
    values: dict[str, Any] = {"state_dir": str(folder / "state"), "storage": storage, **sections}
    config_file = folder / "modyn.yaml"
    config_file.write_text(yaml.safe_dump(values))
    stack = RunningStack(folder, config_file, load_system_config(config_file), plug_ins)
    with stack.client() as client:
        try:
            if start:
                stack.up()
            yield stack
        finally:
            client.down()


def clean_environment(
    more: Mapping[str, str] | None = None, *, without: Sequence[str] = ("MODYN_CONFIG", "MODYN_STATE_DIR")
) -> dict[str, str]:
    """Return the environment of this process without variables that name another installation, and with wide terminal lines.

    Args: more: variables to add or replace. without: names to leave out.
    """
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return {**kept, "COLUMNS": "200", "NO_COLOR": "1", **(more or {})}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One real PostgreSQL for the session (one for each xdist worker). The server does not sync to disk, because no test cuts the power."""
    with tempfile.TemporaryDirectory(prefix="modyn-pg-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder))
        server.start()
        administer(server, "ALTER SYSTEM SET fsync = off", "ALTER SYSTEM SET full_page_writes = off", "SELECT pg_reload_conf()")
        yield server
        server.stop()


@pytest.fixture(scope="session")
def lent_databases(postgres_server: PostgresServer) -> LentDatabases:
    """Databases with the schemas of all services. Tests use these databases one after the other."""
    return LentDatabases(postgres_server)


@pytest.fixture
def postgres_url(lent_databases: LentDatabases) -> Iterator[str]:
    """A database for one test, with the schemas of all services and no rows."""
    with lent_databases.lend() as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database for one test, without schemas of Modyn."""
    with own_database(postgres_server) as url:
        yield url


@pytest.fixture
def make_config(tmp_path: Path, postgres_url: str) -> Callable[..., SystemConfig]:
    """Return a function that makes a system configuration with an empty state folder and a database without rows. Keyword arguments are sections."""

    def make(**sections: object) -> SystemConfig:
        return SystemConfig(**{"state_dir": tmp_path / "state", "database_url": postgres_url, **sections})  # type: ignore[arg-type]

    return make


@pytest.fixture
def system_config(make_config: Callable[..., SystemConfig]) -> SystemConfig:
    """Make a system configuration with defaults, an empty state folder and a database without rows."""
    return make_config()


@pytest.fixture(scope="session")
def stack_options() -> dict[str, Any]:
    """Arguments of `stack_on` for `running_stack`. A conftest may override these arguments, for example with packages for its tests."""
    return {}


@pytest.fixture(scope="session")
def running_stack(stack_options: dict[str, Any]) -> Iterator[RunningStack]:
    """All services with embedded databases as real processes. There is one stack for the session (one for each xdist worker).

    Tests share the stack. A test must use its own dataset names, stop the runs that it starts, and leave every service running.
    """
    with (
        tempfile.TemporaryDirectory(prefix="modyn-", ignore_cleanup_errors=True) as folder,
        stack_on(Path(folder), **stack_options) as stack,
    ):
        yield stack
