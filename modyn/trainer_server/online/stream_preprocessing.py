"""Preprocessing of the model's inputs, with statistics from the samples of the stream. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
import torch

from modyn.config.preprocessing import PREPROCESSING
from modyn.dataset.batch import Batch
from modyn.dataset.batch_preprocessing import (
    columns_at,
    learn_batch,
    learn_rows,
    naming_samples,
    transform_batch,
    transform_usable_rows,
)
from modyn.errors import ConfigError
from modyn.model_storage.client import StoredModel
from modyn.models.weights import read_statistics
from modyn.preprocessing import Preprocessing, StatisticsSnapshot
from modyn.preprocessing.components.input_guard import input_shares
from modyn.preprocessing.section import preprocessing_of, section_of, with_statistics_of
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.loop.loop import Training, stopped
from modyn.trainer_server.online.new_samples import NewSamples, new_samples
from modyn.trainer_server.request.preprocessing_check import why_not_chosen
from modyn.trainer_server.result import ColumnInputs, PreprocessingResult
from modyn.trainer_server.scoring.scoring_pass import candidate_passes
from modyn.workers import JobConnection


class StreamPreprocessing:
    """Converts the columns of a batch to the model's inputs. Only the loop calls this object, in the order in which batches are trained on.

    A batch of the first epoch updates the statistics, and is then transformed. In a step of proactive training, only the new samples update the
    statistics; then the whole batch is transformed. All other batches are transformed by the current statistics.
    """

    def __init__(self, statistics: Preprocessing, *, learns: bool = True, new: NewSamples | None = None) -> None:
        """Args: learns: whether batches of the first epoch update the statistics. new: new samples of an online training; None in a retraining."""
        self.statistics = statistics
        self._learns, self._new = learns, new
        self._counts_before = statistics.input_counts()
        """Counts of inputs before this training. Inputs that `look` has counted are subtracted, so that `input_counts` includes these inputs."""
        self._accepted: dict[str, float] = {}
        """By column: largest accepted distance of a number from the column's range, in widths of the range; empty if the ranges learn."""

    def prepared(self, batch: Batch) -> Batch:
        """Convert a batch for training to the model's inputs. Raises: DataError, with the sample: a value cannot be a feature."""
        if self._learns and batch.epoch == 0:
            if self._new is None or len(rows := self._new.first_seen(batch.keys.numpy())) == len(batch):
                return learn_batch(batch, self.statistics)  # Updates and transforms in one pass, with the same result.
            return learn_rows(batch, self.statistics, rows)
        self.look(batch)
        return transform_batch(batch, self.statistics)

    def look(self, batch: Batch) -> None:
        """Count the new samples of a step as inputs, with the current statistics. Raises: see `prepared`."""
        if not self._counts_before or self._new is None or batch.columns is None:
            return
        if len(rows := self._new.first_seen(batch.keys.numpy())):
            with naming_samples(batch, self.statistics):
                for name, counts in self.statistics.looked_at(columns_at(batch, self.statistics, rows)).items():
                    self._counts_before[name] = self._counts_before[name] - counts

    def transformed(self, batch: Batch) -> Batch:
        """Transform a batch that is not trained on, with the current statistics. Raises: see `prepared`."""
        return transform_batch(batch, self.statistics)

    def transformed_rows(self, batch: Batch, snapshot: StatisticsSnapshot | None) -> tuple[Batch, torch.Tensor]:
        """Transform the samples whose values can be features, with the statistics of a snapshot or the current statistics. Also return the rows of
        these samples, int64 (k,).
        """
        return transform_usable_rows(batch, self.statistics if snapshot is None else snapshot.statistics)

    def has_extremes(self, batch: Batch) -> bool:
        """Return whether a number is outside of its column's range and of the accepted numbers by more than the range's width. Changes nothing."""
        return any(far > 1 + 2 * self._accepted.get(name, 0.0) for name, far in self._extremes(batch).items())

    def accept_extremes(self, batch: Batch) -> None:
        """Count the extreme values of a batch as usual values from now on. Ranges that learn already include the values of a prepared batch."""
        if not self._learns:
            self._accepted |= {name: max(far, self._accepted.get(name, 0.0)) for name, far in self._extremes(batch).items()}

    def _extremes(self, batch: Batch) -> dict[str, float]:
        return {} if batch.columns is None else self.statistics.extremes(batch.columns)

    def input_counts(self) -> dict[str, Int64Array]:
        """Return the counts of InputGuards in this training, by column: int64 (3,), see `InputGuard.counts`."""
        return {name: counts - self._counts_before[name] for name, counts in self.statistics.input_counts().items()}

    def snapshot(self) -> StatisticsSnapshot:
        """Return a copy of the current statistics."""
        return self.statistics.snapshot()

    def go_back(self, snapshot: StatisticsSnapshot) -> None:
        """Restore the statistics of a `snapshot`. Samples since the snapshot do not count as new again, and remain counted as
        inputs.
        """
        self._restore(snapshot, self.input_counts())

    def _restore(self, snapshot: StatisticsSnapshot, counted: Mapping[str, Int64Array]) -> None:
        self.statistics = Preprocessing.from_snapshot(snapshot)
        self._counts_before = {name: counts - counted[name] for name, counts in self.statistics.input_counts().items()}

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "statistics": bytes_tensor(self.statistics.to_bytes()),
            "inputs": {name: counts.tolist() for name, counts in self.input_counts().items()},
            "new": None if self._new is None else self._new.state(),
            "accepted": self._accepted,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state`."""
        self._restore(
            snapshot_of_tensor(state["statistics"]), {name: np.array(counts) for name, counts in state["inputs"].items()}
        )
        self._accepted = dict(state["accepted"])
        if self._new is not None:
            self._new.load_state(state["new"])


def bytes_tensor(content: bytes) -> torch.Tensor:
    """Encode bytes for a checkpoint, as uint8 (n,)."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def snapshot_of_tensor(content: torch.Tensor) -> StatisticsSnapshot:
    """Decode the statistics from a checkpoint. Args: content: see `bytes_tensor`. Raises: CorruptStateError."""
    return StatisticsSnapshot.from_bytes(content.numpy().tobytes())


def build_preprocessing(
    inputs: TrainingInputs, parent: StoredModel | None, keys: Int64Array | None
) -> StreamPreprocessing | None:
    """Build the preprocessing of a training, with the statistics of the model from which the training starts. Return None if the pipeline has no
    section `preprocessing`.

    Args: keys: keys of the trigger set of an online training, in the order of the set; None in a retraining.
    Raises: ConfigError: the section is wrong, does not fit the parent, or excludes another option of the pipeline.
    """
    section, statistics = section_of(inputs.request.pipeline), preprocessing_of(inputs.request.pipeline)
    content = None if parent is None else read_statistics(parent.path)
    if section is None or statistics is None:
        if parent is not None and content is not None:
            raise ConfigError(
                f"preprocessing: is missing, and model {parent.version.model_id}, which the training starts from, was trained with it; write the "
                "section as it was, or train from scratch"
            )
        return None
    if inputs.downsampling is not None and (
        why := why_not_chosen(inputs.downsampling, inputs.request.pipeline[PREPROCESSING], statistics)
    ):
        raise ConfigError(f"selection_strategy.downsampling_config: {why}")
    if parent is not None:
        statistics = with_statistics_of(statistics, content, f"model {parent.version.model_id}")
    if (online := inputs.online) is None or keys is None:
        return StreamPreprocessing(statistics, learns=section.statistics == "while_training")
    return StreamPreprocessing(statistics, learns=online.statistics, new=new_samples(keys, online))


def statistics_of(training: Training) -> bytes | None:
    """Return the current statistics of a training's model; None if the model has no statistics."""
    found = training.preprocessing
    return found.statistics.to_bytes() if isinstance(found, StreamPreprocessing) else None


def preprocessing_result(training: Training) -> PreprocessingResult | None:
    """Return the statistics and the InputGuard's findings on the inputs, or None if the training has no preprocessing with statistics."""
    found = training.preprocessing
    if not isinstance(found, StreamPreprocessing):
        return None
    made, counts = found.statistics, found.input_counts()
    return PreprocessingResult(
        made.num_rows,
        made.num_dense,
        made.num_sparse,
        made.over_bound() or None,
        {name: ColumnInputs(*input_shares(of_column)) for name, of_column in counts.items()} if counts else None,
        tuple(made.unusual_inputs(counts)) if counts else None,
    )


def learn_before(inputs: TrainingInputs, preprocessing: StreamPreprocessing, connection: JobConnection) -> None:
    """Update the statistics with all samples of the training in one pass, if the section asks for this. Call at the beginning of a training.

    Args: connection: checked after each batch for a request to stop. Raises: CancelledError: the service asks to stop. DataError: a value cannot be a
    feature.
    """
    section = section_of(inputs.request.pipeline)
    if section is None or section.statistics != "before_training" or inputs.request.online:
        return
    with closing(candidate_passes(inputs, inputs.trained, 1)) as passes:
        for batch in passes.batches(0):
            with naming_samples(batch, preprocessing.statistics):
                preprocessing.statistics.update(batch.columns)
            if connection.stopping:
                raise stopped()
    get_logger("training").info("statistics_before_training", rows=preprocessing.statistics.num_rows)
