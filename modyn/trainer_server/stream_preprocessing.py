"""Preprocessing in front of the model that is trained: statistics come from the samples as they pass. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
import torch

from modyn.dataset.batch import Batch
from modyn.dataset.features import columns_at, learned, learned_of_new, naming_samples, transformed, transformed_rows
from modyn.errors import ConfigError
from modyn.model_storage.client import StoredModel
from modyn.models.weights import read_statistics
from modyn.preprocessing import Preprocessing, StatisticsSnapshot
from modyn.preprocessing.input_guard import input_shares
from modyn.preprocessing.section import preprocessing_of, section_of, with_statistics_of
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.loop import Training, stopped
from modyn.trainer_server.new_samples import NewSamples, new_samples
from modyn.trainer_server.preprocessing_check import NOT_CHOSEN
from modyn.trainer_server.scoring_pass import candidate_passes
from modyn.workers import JobConnection


class StreamPreprocessing:
    """What is between the columns of a batch and the model of a training. Called in the order in which batches are trained on, by the loop alone.

    Rule: a batch of the first epoch updates the statistics and is transformed then; of a step of proactive training, its new samples update them, and
    then all of it is transformed; everything else is transformed by the statistics as they are.
    """

    def __init__(self, statistics: Preprocessing, *, learns: bool = True, new: NewSamples | None = None) -> None:
        """Args: learns: whether batches of the first epoch update the statistics. new: of a training of steps; None: it is none."""
        self.statistics = statistics
        self._learns, self._new = learns, new
        self._counts_before = statistics.input_counts()
        """What was counted of inputs before this training, less what it has looked at without an update."""
        self._accepted: dict[str, float] = {}
        """By column, how far outside of its range a number was that counts as usual, in widths; where the range itself does not learn."""

    def prepared(self, batch: Batch) -> Batch:
        """The batch as it is trained on. Raises: DataError: a value cannot be a feature; names the sample."""
        if self._learns and batch.epoch == 0:
            if self._new is None or len(rows := self._new.first_seen(batch.keys.numpy())) == len(batch):
                return learned(batch, self.statistics)  # In one pass, with the same result.
            return learned_of_new(batch, self.statistics, rows)
        self.look(batch)
        return transformed(batch, self.statistics)

    def look(self, batch: Batch) -> None:
        """Count the new samples of a step as inputs, by the statistics as they are. Raises: as `prepared`."""
        if not self._counts_before or self._new is None or batch.columns is None:
            return
        if len(rows := self._new.first_seen(batch.keys.numpy())):
            with naming_samples(batch, self.statistics):
                for name, counts in self.statistics.looked_at(columns_at(batch, self.statistics, rows)).items():
                    self._counts_before[name] = self._counts_before[name] - counts

    def transformed(self, batch: Batch) -> Batch:
        """The batch by the statistics as they are, for what is not trained on. Raises: as `prepared`."""
        return transformed(batch, self.statistics)

    def transformed_rows(self, batch: Batch, snapshot: StatisticsSnapshot | None) -> tuple[Batch, torch.Tensor]:
        """As `transformed`, by the statistics of a snapshot or as they are, the samples whose values can be features; and their rows, int64 (k,)."""
        return transformed_rows(batch, self.statistics if snapshot is None else snapshot.statistics)

    def has_extremes(self, batch: Batch) -> bool:
        """Whether a number lies outside of the range of all before, and of what was accepted, by more than its width. Changes nothing."""
        return any(far > 1 + 2 * self._accepted.get(name, 0.0) for name, far in self._extremes(batch).items())

    def accept_extremes(self, batch: Batch) -> None:
        """Let what is extreme in a batch count as usual from now on; for ranges that learn it has, when the batch was prepared."""
        if not self._learns:
            self._accepted |= {name: max(far, self._accepted.get(name, 0.0)) for name, far in self._extremes(batch).items()}

    def _extremes(self, batch: Batch) -> dict[str, float]:
        return {} if batch.columns is None else self.statistics.extremes(batch.columns)

    def input_counts(self) -> dict[str, Int64Array]:
        """What InputGuards have counted in this training, by column: int64 (3,), as of `InputGuard.counts`."""
        return {name: counts - self._counts_before[name] for name, counts in self.statistics.input_counts().items()}

    def snapshot(self) -> StatisticsSnapshot:
        """The statistics as they are: a copy."""
        return self.statistics.snapshot()

    def go_back(self, snapshot: StatisticsSnapshot) -> None:
        """Bring the statistics back to what `snapshot` returned; samples that came since do not come as new ones again, and stay
        counted as inputs."""
        self._restore(snapshot, self.input_counts())

    def _restore(self, snapshot: StatisticsSnapshot, counted: Mapping[str, Int64Array]) -> None:
        self.statistics = Preprocessing.from_snapshot(snapshot)
        self._counts_before = {name: counts - counted[name] for name, counts in self.statistics.input_counts().items()}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "statistics": bytes_tensor(self.statistics.to_bytes()),
            "inputs": {name: counts.tolist() for name, counts in self.input_counts().items()},
            "new": None if self._new is None else self._new.state(),
            "accepted": self._accepted,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._restore(
            snapshot_of_tensor(state["statistics"]), {name: np.array(counts) for name, counts in state["inputs"].items()}
        )
        self._accepted = dict(state["accepted"])
        if self._new is not None:
            self._new.load_state(state["new"])


def bytes_tensor(content: bytes) -> torch.Tensor:
    """Bytes as a checkpoint keeps them, uint8 (n,)."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def snapshot_of_tensor(content: torch.Tensor) -> StatisticsSnapshot:
    """Statistics that a checkpoint has kept. Args: content: as of `bytes_tensor`. Raises: CorruptStateError."""
    return StatisticsSnapshot.from_bytes(content.numpy().tobytes())


def build_preprocessing(
    inputs: TrainingInputs, parent: StoredModel | None, keys: Int64Array | None
) -> StreamPreprocessing | None:
    """The preprocessing of a training, with the statistics of the model that it starts from; None: the pipeline has no such section.

    Args: keys: of the trigger set of a training of steps, in its order; None: it is none.
    Raises: ConfigError: the section is wrong, does not fit the parent, or does not go together with what else is asked for.
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
    if inputs.downsampling is not None:
        raise ConfigError(f"selection_strategy.downsampling_config: {inputs.downsampling.strategy} {NOT_CHOSEN}")
    if parent is not None:
        statistics = with_statistics_of(statistics, content, f"model {parent.version.model_id}")
    if (online := inputs.online) is None or keys is None:
        return StreamPreprocessing(statistics, learns=section.statistics == "while_training")
    return StreamPreprocessing(statistics, learns=online.statistics, new=new_samples(keys, online))


def statistics_of(training: Training) -> bytes | None:
    """The statistics that belong to the model of a training as it is now; None: it has none."""
    found = training.preprocessing
    return found.statistics.to_bytes() if isinstance(found, StreamPreprocessing) else None


def preprocessing_result(training: Training) -> dict[str, Any]:
    """What the result of a training has under `preprocessing`: `rows` that the statistics have counted, and numbers of features; as `over_bound`, by
    component and column, shares of all values so far that are in no vocabulary though there is one; and where there is an InputGuard `inputs`: by
    column the rows of this training, and shares of them that are missing or unlike all before; what of it is `unusual`."""
    found = training.preprocessing
    if not isinstance(found, StreamPreprocessing):
        return {}
    made = found.statistics
    result: dict[str, Any] = {"rows": made.num_rows, "dense_features": made.num_dense, "sparse_features": made.num_sparse}
    if over_bound := made.over_bound():
        result["over_bound"] = over_bound
    if not (counts := found.input_counts()):
        return {"preprocessing": result}
    inputs = {name: input_shares(of_column)._asdict() for name, of_column in counts.items()}
    return {"preprocessing": {**result, "inputs": inputs, "unusual": made.unusual_inputs(counts)}}


def learn_before(inputs: TrainingInputs, preprocessing: StreamPreprocessing, connection: JobConnection) -> None:
    """Update the statistics with all samples that can be trained on, by one pass, where the section says so. For a training at its beginning.

    Args: connection: asked after each batch whether the training is to stop. Raises: CancelledError: it is. DataError: as an update.
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
