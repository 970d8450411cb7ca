"""What a worker process does for one job: fetch the model, evaluate it, send the scores back."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Final

from modyn.evaluator.config import load_dataset
from modyn.evaluator.evaluate import evaluate
from modyn.evaluator.outputs import KeptOutputs
from modyn.evaluator.score import Score
from modyn.evaluator.work import Work
from modyn.model_storage.client import ModelStorageClient
from modyn.models.build import build_model
from modyn.models.weights import load_weights
from modyn.storage.client import StorageClient
from modyn.workers import Report

PROGRESS_EVERY_S: Final = 0.3


def run(work: Work, report: Report) -> list[Score]:
    """Progress messages are (samples seen, samples in all). Raises CancelledError when the job is asked to stop."""
    last = 0.0

    def progress(seen: int, total: int) -> None:
        nonlocal last
        report.check()
        if time.monotonic() - last >= PROGRESS_EVERY_S or seen == total:
            last = time.monotonic()
            report.send((seen, total))

    dataset = load_dataset(work.dataset)
    with ModelStorageClient(work.model_storage) as models:
        stored = models.get(work.model_id, work.scratch / "model.safetensors")
    model = build_model(stored.model_class, stored.model_config)
    load_weights(model, stored.path)
    kept = KeptOutputs(work.room, _name(work, stored.path), work.scratch) if work.room else None
    report.check()
    with StorageClient(work.payloads.storage) as storage, work.payloads.open() as payloads:
        return evaluate(model, dataset, work.intervals, storage, payloads, device=work.device, progress=progress, kept=kept)


def _name(work: Work, weights: Path) -> str:
    """Of the outputs of this model for samples that are decoded in this way. A model of the same id in another database is another model."""
    with weights.open("rb") as file:
        of_weights = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{work.model_id}-{hashlib.sha256(f'{of_weights} {work.decoding}'.encode()).hexdigest()[:32]}"
