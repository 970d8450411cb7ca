"""Run a training in this process, on samples in memory and with model storage in memory: for tests of what takes part in a training.

outcome = train_in_memory(small_pipeline({"batch_size": 8}), MemoryData(num_keys=100), tmp_path)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from modyn.dataset.connections import DatasetClients
from modyn.model_storage.client import StoredModelInfo
from modyn.models.weights import load_weights
from modyn.records import FeedbackHeader, FeedbackRows, Int64Array, ModelVersion, RunId, TriggerSetInfo
from modyn.testing.fakes import FakeModelStorage
from modyn.trainer_server.client import TrainingRequest, TrainingResult
from modyn.trainer_server.loop.inputs import TrainingContext
from modyn.trainer_server.request.records import BatchProgress, StageProgress
from modyn.trainer_server.train import TrainingSections, run_training
from modyn.workers import JobConnection, KeptModels
from tests.support.fake_dataset import FakeTriggerSet

NUM_FEATURES, NUM_CLASSES = 6, 10


class RecordedReport(JobConnection):
    """Keeps what a job sends in `messages`. With `stop_after`, the job is asked to stop at that many looks for a request."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.name = "training in memory"
        self.device = "cuda:0"
        self.models = KeptModels(0)
        self.messages: list[Any] = []
        self.looks = 0
        self._stop_after = stop_after

    def send(self, message: object) -> None:
        self.messages.append(message)

    @property
    def batches(self) -> list[BatchProgress]:
        return [message for message in self.messages if isinstance(message, BatchProgress)]

    @property
    def stages(self) -> list[str]:
        return [message.stage for message in self.messages if isinstance(message, StageProgress)]

    @property
    def stopping(self) -> bool:
        self.looks += 1
        return self._stop_after is not None and self.looks > self._stop_after


@dataclass(frozen=True)
class MemoryData:
    """A trigger set of `num_keys` samples: key k has NUM_FEATURES float32 drawn from k, label k % NUM_CLASSES, weight k / 2."""

    num_keys: int = 40
    partition_size: int = 16
    deleted: frozenset[int] = frozenset()
    trigger_id: int = 0
    before_fetch: Any = None
    feedback: tuple[str, ...] = ()
    payload: Callable[[int], bytes] | None = None
    """None: `payload_of`."""

    def trigger_set(self, run_id: RunId, trigger_id: int) -> TriggerSetInfo:
        checksum = f"checksum of {self.num_keys}"
        return TriggerSetInfo(run_id, trigger_id, self.num_keys, self.partition_size, checksum, feedback=self.feedback)

    def __call__(self) -> DatasetClients:
        keys: Int64Array = np.arange(self.num_keys, dtype=np.int64)
        return FakeTriggerSet(
            keys,
            self.partition_size,
            self.deleted,
            self.payload or payload_of,
            before_fetch=self.before_fetch,
            trigger_id=self.trigger_id,
        )()


@dataclass
class Outcome:
    """Results of a training."""

    stored: StoredModelInfo
    weights: dict[str, Tensor]
    report: RecordedReport

    @property
    def trained(self) -> ModelVersion:
        return self.stored.version

    @property
    def result(self) -> Mapping[str, Any]:
        return self.stored.training_result


def context_of(models: FakeModelStorage, data: MemoryData, folder: Path, **limits: Any) -> TrainingContext:
    """What a training reaches, in memory. Args: limits: other fields of the context."""
    return TrainingContext(
        trigger_set=data.trigger_set,
        get_model=models.get,
        get_optimizers=models.get_optimizers,
        put_model=lambda header, weights, optimizers: models.put(header, weights, None, optimizers),
        connect=data,
        folder=folder,
        **limits,
    )


class NoModel(Exception):
    """A training that trained nothing."""

    def __init__(self, result: TrainingResult) -> None:
        super().__init__(result.nothing_trained)
        self.result = result.to_mapping()


@dataclass
class TrainingRoom:
    """Model storage and folder that several trainings share."""

    folder: Path
    models: FakeModelStorage = field(default_factory=FakeModelStorage)
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `TrainingContext`, such as limits in seconds."""
    feedback: list[tuple[FeedbackHeader, FeedbackRows]] = field(default_factory=list)
    """Scores of trainings, in the order in which they were sent."""

    def put_feedback(self, header: FeedbackHeader, rows: Callable[[], Iterable[FeedbackRows]]) -> FeedbackHeader:
        parts = list(rows())
        scores = {name: np.concatenate([part.scores[name] for part in parts]) for name in header.widths}
        keys, epochs = (np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "epochs"))
        self.feedback.append((header, FeedbackRows(keys, epochs, scores)))
        return header

    def train(
        self,
        pipeline: Mapping[str, Any],
        data: MemoryData | None = None,
        report: RecordedReport | None = None,
        *,
        trigger_id: int = 0,
        parent_model_id: int | None = None,
        num_samples_to_pass: int | None = None,
        seed: int | None = None,
        run_id: str = "memory-0001",
        **asked: Any,
    ) -> Outcome:
        """Raises what the training raises. NoModel: it ended well without a model. Args: asked: other fields of the request."""
        data, report = data or MemoryData(), report or RecordedReport()
        request = TrainingRequest(RunId(run_id), trigger_id, pipeline, parent_model_id, num_samples_to_pass, seed, **asked)
        context = context_of(self.models, data, self.folder, **{"put_feedback": self.put_feedback, **self.limits})
        stored = run_training(request, TrainingSections.load(request.pipeline), context, report)
        if isinstance(stored, TrainingResult):
            raise NoModel(stored)
        return Outcome(stored, self.weights_of(stored.version.model_id), report)

    def weights_of(self, model_id: int) -> dict[str, Tensor]:
        from modyn.models.weights import build_model

        path = self.folder / "read.safetensors"
        stored = self.models.get(model_id, path)
        random_state = torch.get_rng_state()
        model = build_model(stored.model_class, stored.model_config, stored.model_definition)
        torch.set_rng_state(random_state)
        load_weights(model, path)
        path.unlink()
        return model.state_dict()


def train_in_memory(pipeline: Mapping[str, Any], data: MemoryData, folder: Path, **request: Any) -> Outcome:
    """Run one training with its own model storage and folder."""
    return TrainingRoom(folder).train(pipeline, data, **request)


def small_pipeline(training: Mapping[str, Any] | None = None, **sections: Mapping[str, Any]) -> dict[str, Any]:
    """A pipeline's sections for the trainer: SGD on a small MLP, seeded; `training` changes options, `sections` replaces sections."""
    return {
        "model": {
            "id": "MLP",
            "config": {"input_size": NUM_FEATURES, "hidden_sizes": [8], "num_classes": NUM_CLASSES},
        },
        "data": {"dataset_id": "fake", "record_layout": {"dtype": "float32", "shape": [NUM_FEATURES]}},
        "selection_strategy": {"name": "NewDataStrategy", "maximum_keys_in_memory": 16},
        "training": {
            "batch_size": 8,
            "use_previous_model": True,
            "seed": 7,
            "optimizers": [
                {"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": 0.1}}]},
            ],
            "optimization_criterion": {"name": "CrossEntropyLoss"},
            **(training or {}),
        },
        **sections,
    }


def payload_of(key: int) -> bytes:
    return features_of(key).tobytes()


def features_of(key: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The sample's inputs: float32 (NUM_FEATURES,)."""
    return np.random.default_rng(key).standard_normal(NUM_FEATURES).astype(np.float32)
