"""One pass that scores samples and keeps what it finds in a file, so that a pass that was killed goes on. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Final

from torch import Tensor

from modyn.dataset.batch import Batch, on_device
from modyn.dataset.order.held_out import Share
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.rpc.logs import get_logger
from modyn.trainer_server.downsampling.scoring import ScoringModel
from modyn.trainer_server.epoch_passes import EpochPasses
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.loop import Explaining, stopped
from modyn.trainer_server.score_file import ScoredRows, ScoreFile, joined_rows
from modyn.workers import JobConnection

_HELD_BATCHES: Final = 1000
"""Batches whose scores are on the device at once."""
_REPORTS_A_COMMIT: Final = 10
"""Intervals of reports between two commits, which wait for the device and the disk: what a killed pass makes again, at most."""


def candidate_passes(inputs: TrainingInputs, share: Share | None, number: int, *, randomly: bool = False) -> EpochPasses:
    """Passes over a share of the trigger set, in its order. Args: share: None: all. number: of passes. randomly: with random transformations."""
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
    """Scores the samples of a pass. score: scores a batch, float32 (n, f). check: raises where scores cannot be used. num_samples: of the pass.
    as_trained: as of `ScoringModel.scoring`."""

    inputs: TrainingInputs
    connection: JobConnection
    score: Callable[[ScoringModel, Batch], Tensor]
    check: Callable[[ScoredRows], None]
    num_samples: int
    as_trained: bool = False

    def run(self, model: ScoringModel, passes: EpochPasses, epoch: int, file: ScoreFile) -> None:
        """Score all samples that `file` does not hold yet, and append them. Raises CancelledError once the service asks to stop."""
        interval, num_held = self.inputs.context.report_interval_s, 0
        reported = committed = perf_counter()
        held: list[tuple[Batch, Tensor, Tensor, Tensor]] = []
        if file.num_batches:
            get_logger("training").info("scoring_resumed", batches=file.num_batches, of=passes.num_batches)
        if file.num_batches >= passes.num_batches:
            return
        with model.scoring(as_trained=self.as_trained):
            for batch in on_device(passes.batches(epoch, file.num_batches), self.inputs.config.device):
                with Explaining(batch, model.network, "a pass that scores"):
                    scores = model.mean_over_draws(partial(self.score, model, batch))
                    found = model.classes_and_counts(batch)
                # Without the data, which would take memory.
                held.append((replace(batch, data=scores), *found, scores))
                num_held += len(batch)
                if self.connection.stopping:
                    self._keep(held, file, batch.index + 1)
                    raise stopped()
                now = perf_counter()
                if len(held) >= _HELD_BATCHES or now - committed >= _REPORTS_A_COMMIT * interval:
                    self._keep(held, file, batch.index + 1)
                    committed, num_held = perf_counter(), 0
                if now - reported >= interval:
                    self._report(file.num_rows + num_held)
                    reported = now
            self._keep(held, file, passes.num_batches)
            self._report(file.num_rows)
        self.connection.send({"samples_scored": None, "samples_to_score": None})

    def _keep(self, held: list[tuple[Batch, Tensor, Tensor, Tensor]], file: ScoreFile, num_batches: int) -> None:
        """Move the scores to the file, durably."""
        if held:
            rows = joined_rows(
                [
                    ScoredRows(*(tensor.cpu().numpy() for tensor in (batch.keys, labels, batch.weights, counts, scores)))
                    for batch, labels, counts, scores in held
                ]
            )
            held.clear()
            self.check(rows)
            file.append(rows)
        file.commit(num_batches)

    def _report(self, num_scored: int) -> None:
        """Report how far the pass is."""
        self.connection.send({"samples_scored": num_scored, "samples_to_score": self.num_samples})
