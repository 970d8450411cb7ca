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


def _speed(training: Mapping[str, Any]) -> str:
    speed = training.get("samples_per_s")
    return "starting" if speed is None else f"{speed:,.0f} samples/s"


def _loss(training: Mapping[str, Any]) -> str:
    loss = training.get("loss")
    return "no loss yet" if loss is None else f"loss {loss:.4f}"
