"""Model storage in memory, with the rules of the real one: the same methods, the same errors."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modyn.config.base import Problem
from modyn.errors import ConflictError, NotFoundError
from modyn.model_storage.client import ModelHeader, StoredModel, StoredModelInfo
from modyn.models.weights import weights_sha256
from modyn.records import ModelVersion, RunId
from modyn.registry import Plugin
from modyn.testing.fake_client import FakeClient


class FakeModelStorage(FakeClient):
    """Use in place of a ModelStorageClient. `problems` is what `validate` answers."""

    installed = (Plugin("modyn.model_formats", "SafetensorsFullModel", "in memory", "modyn"),)

    def __init__(self, problems: tuple[Problem, ...] = ()) -> None:
        self.problems = problems
        self._models: dict[int, tuple[StoredModelInfo, bytes]] = {}
        self._next_id = 1
        self._lock = threading.RLock()

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        return [*self.problems] if "model_storage" in pipeline else []

    def put(self, header: ModelHeader, safetensors_path: Path) -> ModelVersion:
        digest, content = weights_sha256(safetensors_path), safetensors_path.read_bytes()
        with self._lock:
            existing = self.find(header.run_id, header.trigger_id) if header.run_id else None
            if existing is not None:
                return existing.version
            version = ModelVersion(
                model_id=self._next_id,
                run_id=header.run_id,
                trigger_id=header.trigger_id,
                parent_id=header.parent_id,
                weights_sha256=digest,
                num_bytes=len(content),
                created_at=time.time(),
                strategy="SafetensorsFullModel",
                promoted=False,
            )
            self._next_id += 1
            info = StoredModelInfo(version, header.model_class, dict(header.model_config), dict(header.training_result))
            self._models[version.model_id] = (info, content)
            return version

    def get(self, model_id: int, into: Path) -> StoredModel:
        info, content = self._found(model_id)
        into.write_bytes(content)
        return StoredModel(info.version, info.model_class, info.model_config, info.training_result, into)

    def describe(self, model_id: int) -> StoredModelInfo:
        return self._found(model_id)[0]

    def find(self, run_id: RunId, trigger_id: int) -> StoredModelInfo | None:
        with self._lock:
            for info, _ in self._models.values():
                if run_id and (info.version.run_id, info.version.trigger_id) == (run_id, trigger_id):
                    return info
        return None

    def list(self, run_id: RunId | None = None) -> list[StoredModelInfo]:
        with self._lock:
            return [info for info, _ in self._models.values() if not run_id or info.version.run_id == run_id]

    def delete(self, model_id: int) -> None:
        with self._lock:
            if self._found(model_id)[0].version.promoted:
                raise ConflictError(f"model {model_id} is promoted; promote another version first")
            del self._models[model_id]

    def promote(self, model_id: int) -> StoredModelInfo:
        with self._lock:
            run_id = self._found(model_id)[0].version.run_id
            for other, (info, content) in self._models.items():
                same_run = bool(run_id) and info.version.run_id == run_id
                if other == model_id or same_run:
                    version = dataclasses.replace(info.version, promoted=other == model_id)
                    self._models[other] = (dataclasses.replace(info, version=version), content)
            return self._models[model_id][0]

    def _found(self, model_id: int) -> tuple[StoredModelInfo, bytes]:
        with self._lock:
            if model_id not in self._models:
                raise NotFoundError(f"there is no model {model_id}; `modyn models ls` lists those that exist")
            return self._models[model_id]
