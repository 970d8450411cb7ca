"""Trainings of this process on real storage and selector services, for the figures of downsampling."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmark.data_path.installation import Installation, installation
from modyn.config.dataset import DatasetConfig
from modyn.dataset.connections import DatasetSource
from modyn.model_storage.client import StoredModelInfo
from modyn.records import Interval, ModelVersion, RunId, RunRegistration
from modyn.rpc.logs import configure_logs
from modyn.selector.client import SelectorClient
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.loop.inputs import TrainingContext, TrainingInputs
from modyn.trainer_server.train import TrainingSections, run_training
from modyn.workers import JobConnection, KeptModels

SIDE, CLASSES, DATASET = 16, 10, "images"
RECORD = np.dtype([("label", "<i8"), ("image", "<f4", (1, SIDE, SIDE))])
_IMAGES_PER_FILE, _BATCH = 16_384, 65_536


class NobodyListens(JobConnection):
    """Takes the messages of a training."""

    def __init__(self) -> None:
        self.name, self.device, self.models = "benchmark", "cpu", KeptModels(0)

    def send(self, message: object) -> None:
        """Drop it."""

    @property
    def stopping(self) -> bool:
        """Return False: nothing stops a training."""
        return False


@dataclass
class Trainings:
    """Services with a dataset of small images, and a folder for what trainings keep."""

    services: Installation
    folder: Path
    num_runs: int = 0

    def inputs(self, training: Mapping[str, Any], selection: Mapping[str, Any], model: str) -> TrainingInputs:
        """A training on the trigger set of a new run over all images. Args: training, selection: options of these sections."""
        self.num_runs += 1
        run = RunId(f"run-{self.num_runs:04}")
        strategy = {"name": "CoresetStrategy", "maximum_keys_in_memory": 100_000, **selection}
        with SelectorClient(self.services.config.endpoint("selector")) as selector:
            selector.register_run(
                RunRegistration(
                    run, DATASET, {name: value for name, value in strategy.items() if name != "downsampling_config"}, seed=0
                )
            )
            position = 0
            for batch in self.services.client.storage.samples_in_interval(DATASET, Interval(), _BATCH):
                selector.inform(run, position, batch)
                position += len(batch)
            trigger_set = selector.trigger(run, 0, position)
        request = TrainingRequest(run, 0, _pipeline(training, strategy, model))
        source = DatasetSource(self.services.config, DATASET)

        def put(header: Any, weights: Path, _: Any) -> ModelVersion:
            return ModelVersion(1, run, 0, None, "", weights.stat().st_size, 0.0, "", False)

        context = TrainingContext(lambda *_: trigger_set, _no_model, _no_model, put, source.connect, self.folder)
        sections = TrainingSections.load(request.pipeline)
        return TrainingInputs(request, sections.model, sections.training, sections.data, context, trigger_set)

    def train(self, training: Mapping[str, Any], selection: Mapping[str, Any], model: str) -> Mapping[str, Any]:
        """Train and return the result."""
        inputs = self.inputs(training, selection, model)
        sections = TrainingSections(inputs.model, inputs.config, inputs.data)
        stored = run_training(inputs.request, sections, inputs.context, NobodyListens())
        if not isinstance(stored, StoredModelInfo):
            raise SystemExit(f"nothing was trained: {stored.nothing_trained}")
        return stored.training_result


def seconds(result: Mapping[str, Any]) -> float:
    """Seconds of a training, without those of storing its model."""
    return float(sum(value for stage, value in result["seconds"].items() if stage != "store"))


@contextmanager
def trainings(samples: int) -> Iterator[Trainings]:
    """Start real services with this number of images, and stop them at the end of the block."""
    configure_logs("benchmark", "ERROR")
    with tempfile.TemporaryDirectory(prefix="modyn-selection-") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        random = np.random.default_rng(0)
        for number, first in enumerate(range(0, samples, _IMAGES_PER_FILE)):
            records = np.empty(min(_IMAGES_PER_FILE, samples - first), RECORD)
            records["label"] = random.integers(0, CLASSES, len(records))
            records["image"] = random.normal(size=records["image"].shape) + records["label"][:, None, None, None] / CLASSES
            records.tofile(folder / "data" / f"{number:05d}.bin")
            os.utime(folder / "data" / f"{number:05d}.bin", (number, number))
        layout = {"record_size": RECORD.itemsize, "label_size": 8, "byteorder": "little", "file_extension": ".bin"}
        options: dict[str, Any] = {"file_wrapper": "BinaryFileWrapper", "file_wrapper_config": layout, "watch": False}
        with installation(folder) as services:
            services.ingest(DatasetConfig(name=DATASET, base_path=folder / "data", **options), samples)
            yield Trainings(services, folder / "trainer")


def parser_of(name: str, description: str | None, samples: int) -> argparse.ArgumentParser:
    """The options that these figures share."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmark.selection {name}", description=description)
    parser.add_argument("--samples", type=int, default=samples, help="images in the trigger set")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements of each side, in turn")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    return parser


def _pipeline(training: Mapping[str, Any], selection: Mapping[str, Any], model: str) -> dict[str, Any]:
    config = {
        "num_classes": CLASSES,
        "in_channels": 1,
        **({"small_input": True} if model.startswith("ResNet") else {"image_size": SIDE}),
    }
    sgd = {"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": 0.01}}]}
    shared = {"use_previous_model": False, "seed": 1, "shuffle": True, "drop_last_batch": False}
    return {
        "model": {"id": model, "config": config},
        "data": {"dataset_id": DATASET, "record_layout": {"dtype": "float32", "shape": [1, SIDE, SIDE]}},
        "selection_strategy": selection,
        "training": {**shared, "optimizers": [sgd], "optimization_criterion": {"name": "CrossEntropyLoss"}, **training},
    }


def _no_model(*_: Any) -> Any:
    raise SystemExit("these trainings start from no model")
