"""A training through the real services: samples from storage, keys from the selector, the model into model storage."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig, load_system_config
from modyn.errors import DataError, UserCodeError
from modyn.model_storage.client import ModelStorageClient
from modyn.records import Interval, JobState, RunId, RunRegistration
from modyn.rpc.channel import is_serving
from modyn.rpc.logs import get_logger
from modyn.rpc.server import ServiceContext, start_server
from modyn.selector.client import SelectorClient
from modyn.state_folders import prepare_run_dir
from modyn.storage.client import StorageClient
from modyn.testing.stack import clean_environment
from modyn.testing.waiting import eventually
from modyn.trainer_server.client import TrainerServerClient, TrainingJob, TrainingRequest, TrainingResult, TrainingStatus
from modyn.trainer_server.service import PRELOAD
from tests.support.running_storage import start_storage
from tests.support.training import NUM_FEATURES, small_pipeline
from tests.support.worker_imports import new_fork_server

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

RUN = RunId("numbers-0001")
RECORD = np.dtype([("label", "<i8"), ("features", "<f4", (NUM_FEATURES,))])
NUM_SAMPLES = 100


@pytest.fixture
def config(make_config: Callable[..., SystemConfig], tmp_path: Path) -> Iterator[SystemConfig]:
    """Storage with a dataset, selector, model storage and trainer server, all in this process."""
    config = make_config()
    prepare_run_dir(config.run_dir)
    with ExitStack() as stack:
        running = start_storage(config, stack)
        for name in ("selector", "model_storage", "trainer_server"):
            context = ServiceContext(name, config, get_logger(name))
            registrations = import_module(f"modyn.{name}.service").build(context)
            server = start_server(name, config.endpoint(name), registrations)
            stack.callback(context.shut_down)
            stack.callback(server.stop, 0.1)
        write_samples(tmp_path / "data" / "numbers.bin")
        options = {"record_size": RECORD.itemsize, "label_size": 8, "byteorder": "little"}
        running.client.register_dataset(
            DatasetConfig(
                name="numbers",
                base_path=tmp_path / "data",
                file_wrapper="BinaryFileWrapper",
                file_wrapper_config=options,
                watch=False,
            )
        )
        assert running.ingest().samples_indexed == NUM_SAMPLES
        with closing(SelectorClient(config.endpoint("selector"))) as selector:
            select_all(running.client, selector)
        yield config


def write_samples(path: Path) -> None:
    records = np.zeros(NUM_SAMPLES, RECORD)
    records["label"] = np.arange(NUM_SAMPLES) % 10
    records["features"] = np.random.default_rng(1).standard_normal((NUM_SAMPLES, NUM_FEATURES)).astype(np.float32)
    path.parent.mkdir()
    path.write_bytes(records.tobytes())


def select_all(storage: StorageClient, selector: SelectorClient) -> None:
    strategy = {"name": "NewDataStrategy", "maximum_keys_in_memory": 30, "storage_backend": "local", "tail_triggers": None}
    selector.register_run(RunRegistration(RUN, "numbers", strategy, 7))
    position = 0
    for batch in storage.samples_in_interval("numbers", Interval(), 1000):
        selector.inform(RUN, position, batch)
        position += len(batch)
    selector.trigger(RUN, 0, position)


def pipeline(**sections: Any) -> dict[str, Any]:
    data = {"dataset_id": "numbers", "record_layout": {"dtype": "<f4", "shape": [NUM_FEATURES]}}
    training = {"epochs_per_trigger": 2, "shuffle": True, "drop_last_batch": False}
    return small_pipeline(training, **{"data": data, **sections})


def trained(config: SystemConfig, pipeline: dict[str, Any]) -> TrainingStatus:
    with closing(TrainerServerClient(config.endpoint("trainer_server"))) as trainer:
        trainer.start(TrainingRequest(RUN, 0, pipeline))
        *_, status = trainer.watch(RUN, 0)
        return status


def test_a_training_ends_with_its_model_in_model_storage(config: SystemConfig, tmp_path: Path) -> None:
    status = trained(config, pipeline())
    assert status.state is JobState.FINISHED, status.error
    assert status.samples_seen == 2 * NUM_SAMPLES
    with closing(ModelStorageClient(config.endpoint("model_storage"))) as models:
        found = models.find(RUN, 0)
        assert found is not None
        assert found.version.model_id == status.model_id
        assert TrainingResult.from_mapping(found.training_result) == status.result
        first = found.version.weights_sha256
        models.delete(found.version.model_id)
        again = trained(config, pipeline())  # its model is gone, so it is trained again
        assert again.model_id != status.model_id
        assert again.model_id is not None
        assert models.describe(again.model_id).version.weights_sha256 == first
    log = config.log_dir / "runs" / RUN / "training-0.log"
    assert '"run_id": "numbers-0001"' in log.read_text()
    assert list((config.service_dir("trainer_server")).glob("*.safetensors")) == []


def test_a_session_reads_what_is_stored_by_now(config: SystemConfig) -> None:
    first = trained(config, pipeline())
    assert first.result.counts.num_skipped == 0
    with closing(StorageClient(config.endpoint("storage"))) as storage:
        storage.delete_samples("numbers", np.array([3, 5]))
    with closing(ModelStorageClient(config.endpoint("model_storage"))) as models:
        assert first.model_id is not None
        models.delete(first.model_id)
    again = trained(config, pipeline())
    assert (again.result.counts.num_skipped, again.result.counts.num_samples) == (2 * 2, 2 * (NUM_SAMPLES - 2))


def test_a_parser_that_raises_fails_the_training_and_is_named(config: SystemConfig) -> None:
    parser = "def bytes_parser_function(data):\n    raise ValueError('no such thing')\n"
    status = trained(config, pipeline(data={"dataset_id": "numbers", "bytes_parser_function": parser}))
    assert status.state is JobState.FAILED
    assert type(status.to_error()) is UserCodeError
    for told in ("run numbers-0001, trigger 0, worker", "bytes_parser_function", "no such thing", "training-0.log"):
        assert told in status.error


SECRETS = {
    "MODYN_DATABASE_URL": "postgresql://modyn:SECRET-of-database@localhost/modyn",
    "MODYN_REDIS_URL": "redis://:SECRET-of-redis@localhost/0",
    "POSTGRES_PASSWORD": "SECRET-of-postgres",
    "AWS_SECRET_ACCESS_KEY": "SECRET-of-bucket",
}
CURIOUS_PARSER = """
def bytes_parser_function(data):
    import gc, os
    from pathlib import Path
    from modyn.config.system import SystemConfig
    seen = [*os.environ.items(), Path("/proc/self/environ").read_text()]
    seen += [held.model_dump_json() for held in gc.get_objects() if isinstance(held, SystemConfig)]
    raise ValueError(f"OMP {os.environ['OMP_NUM_THREADS']}, HF {os.environ['HF_HOME']}, secret {'SECRET' in repr(seen)}")
"""


@pytest.fixture
def own_process(config: SystemConfig, tmp_path: Path) -> Iterator[SystemConfig]:
    """The trainer server as a process with passwords in its environment; the other services are those of `config`."""
    named = {name: config.endpoint(name).address for name in ("storage", "selector", "model_storage")}
    sections: dict[str, Any] = {name: {"address": address} for name, address in named.items()}
    sections["storage"]["flight_address"] = config.endpoint("flight").address
    sections["trainer_server"] = {"worker_environment": ["HF_*"]}
    file = tmp_path / "modyn.yaml"
    file.write_text(yaml.safe_dump({"state_dir": str(tmp_path / "trainer"), **sections}))
    other = load_system_config(file)
    command = [sys.executable, "-m", "modyn.rpc", "trainer_server", "--config", str(file)]
    environment = clean_environment({**SECRETS, "OMP_NUM_THREADS": "1", "HF_HOME": "/models"})
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        eventually(lambda: is_serving(other.endpoint("trainer_server")))
        yield other
        process.terminate()


@pytest.mark.slow
def test_user_code_sees_no_password_of_its_service(own_process: SystemConfig) -> None:
    data = {"dataset_id": "numbers", "bytes_parser_function": CURIOUS_PARSER}
    status = trained(own_process, pipeline(data=data))
    assert "OMP 1, HF /models, secret False" in status.error


def test_a_label_out_of_range_fails_the_training_and_is_named(config: SystemConfig) -> None:
    model = {"id": "LogisticRegression", "config": {"input_size": NUM_FEATURES, "num_classes": 3}}
    status = trained(config, pipeline(model=model))
    assert status.state is JobState.FAILED
    assert type(status.to_error()) is DataError
    assert "the model has 3 classes" in status.error


def test_a_training_worker_imports_nothing_after_the_fork(config: SystemConfig, tmp_path: Path) -> None:
    parser = "def bytes_parser_function(data):\n    return torch.frombuffer(bytearray(data), dtype=torch.float32)\n"
    model = {"id": "MLP", "config": {"input_size": NUM_FEATURES, "num_classes": 10}}
    training = {
        "optimizers": [{"name": "default", "algorithm": "AdamW", "param_groups": [{"module": "model", "config": {"lr": 0.1}}]}],
        "lr_scheduler": {"name": "CosineAnnealingLR", "step_every": "batch", "config": {"T_max": "MODYN_NUM_BATCHES"}},
        "checkpointing": {"activated": True, "interval": 1},
        "keep_optimizer_state": True,
        "gradient_clip_norm": 1.0,
        "amp": True,
    }
    with new_fork_server(PRELOAD) as imports:
        for trigger_id, data in enumerate([{}, {"bytes_parser_function": parser}]):
            sections = pipeline(model=model, **({"data": {"dataset_id": "numbers", **data}} if data else {}))
            sections["training"] |= training if trigger_id else {}
            request = TrainingJob(TrainingRequest(RUN, 0, sections), config)
            assert imports("modyn.trainer_server.train:train", request, tmp_path / "log") == []
