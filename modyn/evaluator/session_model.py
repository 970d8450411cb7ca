"""The model that a session of the evaluator was asked about last, as it was built."""

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
    """A network with its weights, their hash, and the statistics that make its inputs, if it has some. A version of a model never changes, so that
    its id says whether it is the one."""

    model_id: int
    weights_sha256: str
    network: nn.Module
    statistics: Preprocessing | None = None

    @classmethod
    def of(cls, model_id: int, models: ModelStorageClient, folder: Path, connection: JobConnection) -> SessionModel:
        """The model of this id: the last one of the session, or built now in its place. So a check of a trigger policy builds none.

        Args: folder: where its weights are put meanwhile. Raises: as `ModelStorageClient.get` and `build_model`.
        """
        last: SessionModel | None = connection.memory.get(_NAME)
        if last is not None and last.model_id == model_id:
            return last
        last = None
        connection.memory.pop(_NAME, None)  # two need not be in memory at once
        stored = models.get(model_id, folder / "model.safetensors", connection.models)
        network = build_model(stored.model_class, stored.model_config)
        load_weights(network, stored.path)
        content = read_statistics(stored.path)
        statistics = None if content is None else Preprocessing.from_bytes(content)
        connection.memory[_NAME] = found = cls(model_id, stored.version.weights_sha256, network, statistics)
        return found

    def preprocessing(self, dataset: EvaluationDatasetConfig) -> Preprocessing | None:
        """What makes the inputs of the model from samples of a dataset; None: they are decoded to these. Nothing of it is to be changed.

        Raises: ConfigError: either the model or the dataset is of a pipeline with the section `preprocessing`, and the other is not.
        """
        if (self.statistics is None) == (dataset.preprocessing is None):
            return self.statistics
        if self.statistics is None:
            raise ConfigError(
                f"preprocessing: model {self.model_id} has no statistics, which the features of dataset '{dataset.dataset_id}' are made by; choose "
                "a model that was trained with the section `preprocessing`"
            )
        raise ConfigError(
            f"preprocessing: model {self.model_id} takes features of columns, and samples of dataset '{dataset.dataset_id}' are decoded to tensors; "
            "evaluate it with the section `preprocessing` that it was trained with"
        )
