"""The model that a session of the evaluator was asked about last, as it was built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torch import nn

from modyn.model_storage.client import ModelStorageClient
from modyn.models.weights import build_model, load_weights
from modyn.workers import JobConnection

_NAME: Final = "model"


@dataclass(frozen=True, slots=True)
class SessionModel:
    """A network with its weights, and their hash. A version of a model never changes, so that its id says whether it is the one."""

    model_id: int
    weights_sha256: str
    network: nn.Module

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
        connection.memory[_NAME] = found = cls(model_id, stored.version.weights_sha256, network)
        return found
