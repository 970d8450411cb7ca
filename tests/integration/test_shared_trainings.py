"""Trainings of one machine that prepare samples for each other, while their workers are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from modyn.config.dataset import DatasetConfig
from modyn.local.control import status_file
from modyn.supervisor.client import RunState
from modyn.testing.stack import RunningStack, tiny_pipeline, tiny_training
from modyn.testing.waiting import eventually
from tests.support.counting_model import NAME, NUM_CLASSES
from tests.support.killed_stack import children

NUM_SAMPLES, EPOCHS = 200, 40
PARSER = """
import torch

def bytes_parser_function(data: memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.int64).double()
"""


def kill_a_worker(stack: RunningStack) -> bool:
    """Returns whether there was one."""
    parts = json.loads(status_file(stack.config).read_text())["parts"]
    server = next(part["pid"] for part in parts if part["name"] == "trainer_server")
    workers = [worker for helper in children(server) for worker in children(helper)]
    for worker in workers[-1:]:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    return bool(workers)


def test_trainings_that_share_samples_lose_and_repeat_none_when_they_are_killed(
    running_stack: RunningStack, tmp_path: Path
) -> None:
    """Each trains on every sample once an epoch, as the model itself counts, however often a worker is killed with what it has prepared."""
    stack, numbers = running_stack, np.arange(NUM_SAMPLES)
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers" / "0.bin").write_bytes(np.stack([numbers % NUM_CLASSES, numbers], axis=1).astype("<i8").tobytes())
    layout = {"record_size": 16, "label_size": 8, "byteorder": "little"}
    with stack.client() as client:
        client.register_dataset(
            DatasetConfig(
                name="shared-trainings",
                base_path=tmp_path / "numbers",
                file_wrapper="BinaryFileWrapper",
                file_wrapper_config=layout,
                watch=False,
            )
        )
        client.ingest("shared-trainings")
    text = tiny_pipeline(
        "shared-trainings",
        model={"id": NAME, "config": {"num_samples": NUM_SAMPLES}},
        data={
            "dataset_id": "shared-trainings",
            "bytes_parser_function": PARSER,
            "random_transformations": ["lambda x: x + torch.rand(1)"],
        },
        trigger={"id": "DataAmountTrigger", "num_samples": NUM_SAMPLES},
        training=tiny_training(
            shuffle=True, seed=None, epochs_per_trigger=EPOCHS, checkpointing={"activated": True, "interval": 5}
        ),
        cache={"size": "3MB", "store": "memory", "jobs": 2, "split": "0-0-100"},
    )
    logs = stack.config.log_dir / "runs"
    earlier = len(list(logs.glob("*/training-*.log")))
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(stack.run, text) for _ in range(2)]
        eventually(lambda: len(list(logs.glob("*/training-*.log"))) == earlier + len(running), "two trainings")
        for _ in range(3):
            eventually(lambda: kill_a_worker(stack))
            time.sleep(1)
        ended = [run.result() for run in running]
    num_shared = num_resumed = 0
    with stack.client() as client:
        for run in ended:
            assert run.state is RunState.FINISHED, run.error
            (model,) = client.models(run.run_id)["model_id"]
            file = tmp_path / f"{model}.safetensors"
            client.export_model(int(model), file)
            assert load_file(file)["served"].tolist() == NUM_SAMPLES * [EPOCHS]
            num_shared += client.model(int(model)).training_result["num_cached"]["augmented"]
            log = (logs / str(run.run_id) / "training-0.log").read_text()
            num_resumed += sum(json.loads(line).get("event") == "resumed" for line in log.splitlines())
    assert num_shared > 0
    assert num_resumed > 0
