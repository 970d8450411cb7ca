"""One pass that scores samples and keeps the scores in a file, so that a killed pass resumes. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Final

import numpy as np
from torch import Tensor

from modyn.dataset.batch import Batch, on_device
from modyn.dataset.order.held_out import Share
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.records import Float32Array, Int64Array
from modyn.rpc.logs import get_logger
from modyn.trainer_server.disk.row_log import RowLog, Rows
from modyn.trainer_server.downsampling.policies.policy import Candidates
from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel
from modyn.trainer_server.loop.epoch_passes import EpochPasses
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.loop.loop import Explaining, stopped
from modyn.trainer_server.request.records import ScoringProgress
from modyn.workers import JobConnection

_HELD_BATCHES: Final = 1000
"""Largest number of batches whose scores are buffered on the device."""
_REPORTS_A_COMMIT: Final = 10
"""Number of report intervals between two commits. A commit waits for the device and the disk. A killed pass repeats at most the work since the last
commit.
"""

_COLUMNS: Final = [("keys", "<i8"), ("labels", "<i8"), ("weights", "<f4"), ("counts", "<f4")]


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRows:
    """Scored candidates. keys, labels: int64 (n,). weights: weights of the trigger set, float32 (n,). counts: `Criterion.counts`, float32 (n,).
    scores: float32 (n, f)."""

    keys: Int64Array
    labels: Int64Array
    weights: Float32Array
    counts: Float32Array
    scores: Float32Array

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def candidates(self) -> Candidates:
        """The candidates in the form for policies."""
        usable = self.counts > 0
        return Candidates(self.scores, self.labels, self.keys, None if usable.all() else usable)

    def pack(self) -> Rows:
        """Return the rows in the form for `RowLog`."""
        packed = np.empty(len(self), [*_COLUMNS, ("scores", "<f4", self.scores.shape[1:])])
        for name in packed.dtype.names or ():
            packed[name] = getattr(self, name)
        return packed

    @classmethod
    def unpack(cls, packed: Rows) -> ScoredRows:
        """Return packed rows as columns. The scores are a view, so that scores of a log stay in the mapped file."""
        keys, labels, weights, counts = (np.ascontiguousarray(packed[name]) for name, _ in _COLUMNS)
        return cls(keys, labels, weights, counts, packed["scores"])

    @classmethod
    def read(cls, log: RowLog) -> ScoredRows:
        """Read all rows of a log."""
        width = max(0, log.row_bytes - np.dtype(_COLUMNS).itemsize) // 4
        return cls.unpack(log.read([*_COLUMNS, ("scores", "<f4", (width,))]))


def candidate_passes(inputs: TrainingInputs, share: Share | None, number: int, *, randomly: bool = False) -> EpochPasses:
    """Return passes over a share of the trigger set, in the order of the set. Args: share: None for all samples. number: number of passes. randomly:
    whether random transformations are applied."""
    config = inputs.config
    options = LoadOptions(
        batch_size=config.batch_size,
        drop_last=False,
        seed=0,
        epochs=number,
        num_prefetched_partitions=config.num_prefetched_partitions,
        parallel_prefetch_requests=config.parallel_prefetch_requests,
        training=randomly,
        classes=inputs.classes,
    )
    data = inputs.data
    dataset = TriggerSetDataset(inputs.trigger_set, data, inputs.context.connect, options, share=share)
    return EpochPasses(dataset, config.dataloader_workers, pin_memory=config.on_gpu)


@dataclass(frozen=True)
class ScoringPass:
    """Scores the samples of a pass. score: returns the scores of a batch, float32 (n, f). check: raises an error for unusable scores. num_samples:
    number of samples of the pass. as_trained: see `ScoringModel.scoring`. with_features: see `Training`."""

    inputs: TrainingInputs
    connection: JobConnection
    score: Callable[[ScoringModel, Batch], Tensor]
    check: Callable[[ScoredRows], None]
    num_samples: int
    as_trained: bool = False
    with_features: Callable[[Batch], Batch] = lambda batch: batch

    def run(self, model: ScoringModel, passes: EpochPasses, epoch: int, log: RowLog) -> None:
        """Score the samples that are not in `log` yet, and append their rows to `log`. The log's position is the number of batches read.

        Raises CancelledError on the service's request to stop.
        """
        interval, num_held = self.inputs.context.report_interval_s, 0
        reported = committed = perf_counter()
        held: list[tuple[Batch, Tensor, Tensor, Tensor]] = []
        if log.position:
            get_logger("training").info("scoring_resumed", batches=log.position, of=passes.num_batches)
        if log.position >= passes.num_batches:
            return
        with model.scoring(as_trained=self.as_trained):
            for loaded in on_device(passes.batches(epoch, log.position), self.inputs.config.device):
                with Explaining(loaded, model.network, "a pass that scores"):
                    batch = self.with_features(loaded)
                    scores = model.mean_over_draws(partial(self.score, model, batch))
                    found = model.classes_and_counts(batch)
                # The scores replace the data of the batch, because the data would take memory.
                held.append((replace(batch, data=scores), *found, scores))
                num_held += len(batch)
                # The next attempt continues after the scores in the log.
                if self.connection.stopping:
                    self._keep(held, log, batch.index + 1)
                    raise stopped()
                now = perf_counter()
                # `_keep` waits for the device and the disk, and is therefore called for many batches together.
                if len(held) >= _HELD_BATCHES or now - committed >= _REPORTS_A_COMMIT * interval:
                    self._keep(held, log, batch.index + 1)
                    committed, num_held = perf_counter(), 0
                if now - reported >= interval:
                    self._report(log.num_rows + num_held)
                    reported = now
            self._keep(held, log, passes.num_batches)
            self._report(log.num_rows)
        self.connection.send(ScoringProgress())

    def _keep(self, held: list[tuple[Batch, Tensor, Tensor, Tensor]], log: RowLog, num_batches: int) -> None:
        """Move the scores from the device to the log. The scores are durable on return."""
        if held:
            packed = [
                ScoredRows(*(tensor.cpu().numpy() for tensor in (batch.keys, labels, batch.weights, counts, scores))).pack()
                for batch, labels, counts, scores in held
            ]
            held.clear()
            rows = np.concatenate(packed)
            self.check(ScoredRows.unpack(rows))
            log.append(rows)
        log.commit(num_batches)

    def _report(self, num_scored: int) -> None:
        """Report the number of scored samples."""
        self.connection.send(ScoringProgress(num_scored, self.num_samples))
