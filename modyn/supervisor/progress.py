"""What the events that report progress say."""

from __future__ import annotations

from typing import Any

from modyn.trainer_server.client import TrainingStatus


def training_progress(status: TrainingStatus) -> dict[str, Any]:
    """The detail of `EventKind.TRAINING_PROGRESS`."""
    scoring = {"samples_scored": status.samples_scored, "samples_to_score": status.samples_to_score}
    return {
        "state": str(status.state),
        "samples_seen": status.samples_seen,
        "samples_total": status.samples_total or 0,
        "batches_seen": status.batches_seen,
        "loss": status.loss,
        "samples_per_s": status.samples_per_s,
        **({"stage": status.stage} if status.stage else {}),
        **(scoring if status.samples_to_score else {}),
    }
