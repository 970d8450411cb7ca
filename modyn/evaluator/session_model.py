"""The last model that a worker session of the evaluator used, with the built network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torch import nn

from modyn.errors import ConfigError
from modyn.evaluator.config import EvaluationDatasetConfig
from modyn.model_storage.client import ModelStorageClient
from modyn.models.weights import build_model, load_weights, read_statistics
from modyn.preprocessing import Preprocessing
from modyn.workers import JobConnection

_NAME: Final = "model"


@dataclass(frozen=True, slots=True)
class SessionModel:
    """A network with its weights, the hash of the weights, and the statistics of the preprocessing (None without preprocessing). A model version
    never changes, so that the id identifies the model.
    """

    model_id: int
    weights_sha256: str
    network: nn.Module
    statistics: Preprocessing | None = None

    @classmethod
    def of(cls, model_id: int, models: ModelStorageClient, folder: Path, connection: JobConnection) -> SessionModel:
        """Return the model with this id. If the last model of the session has another id, the new model replaces it. A check of a trigger policy
        therefore rarely builds a model.

        Args: folder: temporary folder for the weights. Raises: see `ModelStorageClient.get` and `build_model`.
        """
        last: SessionModel | None = connection.memory.get(_NAME)
        if last is not None and last.model_id == model_id:
            return last
        last = None
        # The old model is dropped first, so that two models are not in memory at the same time.
        connection.memory.pop(_NAME, None)
        stored = models.get(model_id, folder / "model.safetensors", connection.models)
        network = build_model(stored.model_class, stored.model_config, stored.model_definition)
        load_weights(network, stored.path)
        content = read_statistics(stored.path)
        statistics = None if content is None else Preprocessing.from_bytes(content)
        connection.memory[_NAME] = found = cls(model_id, stored.version.weights_sha256, network, statistics)
        return found

    def preprocessing(self, dataset: EvaluationDatasetConfig) -> Preprocessing | None:
        """Return the preprocessing that makes the inputs of the model from samples of a dataset; the caller must not change the preprocessing. None
        if samples are decoded to inputs directly.

        Raises: ConfigError: only the model or only the dataset has the section `preprocessing`.
        """
        if (self.statistics is None) == (dataset.preprocessing is None):
            return self.statistics
        if self.statistics is None:
            raise ConfigError(
                f"preprocessing: model {self.model_id} has no statistics, but the features of dataset '{dataset.dataset_id}' need them; choose "
                "a model that was trained with the section `preprocessing`"
            )
        raise ConfigError(
            f"preprocessing: model {self.model_id} takes features of columns, and samples of dataset '{dataset.dataset_id}' are decoded to tensors; "
            "evaluate it with the section `preprocessing` that it was trained with"
        )
