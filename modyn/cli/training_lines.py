"""What a training does now, as texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.cli.output import printable
from modyn.records import JobState


def counts(training: Mapping[str, Any]) -> tuple[str, str]:
    """The names of what is counted now, and of how many there are of it. Args: training: as `EventKind.TRAINING_PROGRESS` documents."""
    return ("samples_scored", "samples_to_score") if training.get("samples_to_score") else ("samples_seen", "samples_total")


def doing(training: Mapping[str, Any], *, with_samples: bool = False) -> list[str]:
    """What a training does now, and how far it is. The first part names the stage, where there is one."""
    if training.get("state") == JobState.QUEUED:
        return ["queued, all workers are busy"]
    if of := training.get("samples_to_score"):
        parts = [f"scoring {training['samples_scored']:,} of {of:,} candidates"]
    else:
        parts = [*([f"{training['samples_seen']:,} samples"] if with_samples else []), _speed(training), _loss(training)]
    stage = training.get("stage")
    return [f"{printable(stage)}: {parts[0]}", *parts[1:]] if stage else parts


def learned_text(detail: Mapping[str, Any]) -> str:
    """What a training skipped and ignored; empty: nothing. Args: detail: of its end, as `EventKind.STEP` documents.

    >>> learned_text({"skipped_steps": 5, "num_steps": 8, "ignored_labels": 3, "num_labels": 1200})
    '5 of 8 steps skipped, 3 of 1,200 labels ignored'
    """
    counted = (("skipped_steps", "num_steps", "steps skipped"), ("ignored_labels", "num_labels", "labels ignored"))
    return ", ".join(f"{detail[some]:,} of {detail[of]:,} {what}" for some, of, what in counted if detail.get(some))


def _speed(training: Mapping[str, Any]) -> str:
    speed = training.get("samples_per_s")
    return "starting" if speed is None else f"{speed:,.0f} samples/s"


def _loss(training: Mapping[str, Any]) -> str:
    loss = training.get("loss")
    return "no loss yet" if loss is None else f"loss {loss:.4f}"
