"""Part of `modyn.Client` that lists, promotes, loads and exports model versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modyn.atomic_write import writing_for_user
from modyn.errors import InvalidArgumentError
from modyn.model_storage.client import StoredModel, StoredModelInfo
from modyn.records import ModelVersion, RunId
from modyn.result_tables import ResultTables, table_of

if TYPE_CHECKING:
    import pandas as pd

    from modyn.preprocessing import Preprocessing


class ModelAccess(ResultTables):
    """Model versions in model storage."""

    def models(self, run_id: str | None = None) -> pd.DataFrame:
        """Return the model versions of one run, or all versions. Columns are the fields of `ModelVersion`, and `model_class`."""
        found = self.model_storage.list(RunId(run_id) if run_id else None)
        table = table_of(ModelVersion, [info.version for info in found])
        table["model_class"] = [info.model_class for info in found]
        return table

    def model(self, model_id: int) -> StoredModelInfo:
        """Return a model version. Raises: NotFoundError."""
        return self.model_storage.describe(model_id)

    def promote(self, run_id: str, model_id: int | None = None, conditions: Sequence[str] = (), reason: str = "") -> int:
        """Promote a version of a run, and return its number. With conditions, the version is promoted only if an evaluation shows that it meets all
        conditions.

        Args: model_id: number of the version; None: the newest. conditions: `METRIC on DATASET >= NUMBER` (or <=, >, <), or `METRIC on DATASET not
        worse than promoted`, with `by NUMBER` for the allowed difference. reason: text for the audit trail, which also has all verdicts.
        Raises: NotFoundError: the run has no versions, or a dataset has no samples. InvalidArgumentError: the version belongs to another run, or a
        condition cannot be parsed. ConflictError: a condition is not met; the message has the values. ConfigError: a metric is wrong, or a number
        in a condition is outside of the metric's range.
        """
        from modyn.serving.versions.promotion_gate import PromotionGate, parse_conditions, version_of

        parsed = parse_conditions(conditions)
        chosen = version_of([info.version for info in self.model_storage.list(RunId(run_id))], run_id, model_id)
        if not parsed:
            self.model_storage.promote(chosen, reason)
            return chosen
        pipeline = self.supervisor.run(run_id).pipeline
        gate = PromotionGate(RunId(run_id), pipeline, parsed, self.model_storage, self.evaluator, self.storage)
        gate.promote(chosen, reason).check()
        return chosen

    def export_model(self, model_id: int, path: Path | str) -> StoredModel:
        """Write a model's weights to `path` atomically, as a safetensors file. Raises: NotFoundError, UnavailableError."""
        with writing_for_user(Path(path)):
            return self.model_storage.get(model_id, Path(path))

    def load_model(self, model_id: int) -> Any:
        """Return the model as a `torch.nn.Module` with its weights, in evaluation mode. Raises: NotFoundError."""
        import tempfile

        from modyn.models.weights import load_model

        with tempfile.TemporaryDirectory() as folder:
            stored = self.export_model(model_id, Path(folder) / "model.safetensors")
            return load_model(stored.model_class, stored.model_config, stored.path, stored.model_definition)

    def preprocessing(self, model_id: int) -> Preprocessing | None:
        """Return the preprocessing that makes the inputs of a model, with the statistics of this version. None: the model has no preprocessing.
        Raises: NotFoundError."""
        import tempfile

        from modyn.models.weights import read_statistics
        from modyn.preprocessing import Preprocessing

        with tempfile.TemporaryDirectory() as folder:
            content = read_statistics(self.export_model(model_id, Path(folder) / "model.safetensors").path)
        return None if content is None else Preprocessing.from_bytes(content)

    def export_program(self, model_id: int, path: Path | str, inputs: Sequence[str], format: str = "torch") -> None:
        """Write a model to `path` as a program. Args: inputs: a text for each input, see `models.export.parse_input`; or only `features`: the inputs
        follow from the model's section `preprocessing`. format: `torch` (`torch.export`) or `onnx`. Raises: InvalidArgumentError."""
        from modyn.models.export import FEATURES, feature_inputs, parse_input
        from modyn.models.onnx_export import exporter

        write = exporter(format)
        if list(inputs) == [FEATURES]:
            if (statistics := self.preprocessing(model_id)) is None:
                raise InvalidArgumentError(
                    f"model {model_id} was trained without the section `preprocessing`; name its inputs by their sizes, such as 1,28,28"
                )
            parsed = feature_inputs(statistics.num_dense, statistics.num_sparse)
        else:
            parsed = [parse_input(text) for text in inputs]
        with writing_for_user(Path(path)):
            write(self.load_model(model_id), parsed, Path(path))
