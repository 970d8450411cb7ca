"""Texts of a run's events: trainings, steps of proactive training, and prediction servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.cli.views.output import clock, printable

MEASURES = ("error", "loss")
SHOWN_S: Final = 5.0
"""Seconds for which the report of a server is shown. Servers report once a second, so a server with an older report has stopped."""


def kind_of(detail: Mapping[str, Any]) -> str:
    """Return the kind of work of a trigger. Args: detail: see `EventKind.TRIGGER_FIRED`.

    >>> kind_of({"online": True}), kind_of({})
    ('steps', 'training')
    """
    return "steps" if detail.get("online") else "training"


def tested_text(detail: Mapping[str, Any]) -> str:
    """Format the test results of a training of steps; empty: no sample was tested. Args: detail: detail of the training's last event (see
    `EventKind.STEP`).

    >>> tested_text({"tested": 1200, "prequential_error": 0.25, "rollbacks": 1})
    'prequential error 0.2500 over 1,200 samples, rolled back once'
    """
    found = [f"prequential {name} {detail[f'prequential_{name}']:.4f}" for name in MEASURES if f"prequential_{name}" in detail]
    if not found:
        return ""
    rollbacks = {0: "", 1: ", rolled back once"}.get(number := detail.get("rollbacks", 0), f", rolled back {number} times")
    return f"{found[0]} over {detail['tested']:,} samples{rollbacks}"


def serving_text(status: Mapping[str, Any]) -> str:
    """Format the versions that answer requests, and the rate and latency of requests; empty: there are no servers. Args: status: fields of
    `ServingStatus`.

    >>> serving_text({"num_servers": 1, "versions": [{"role": "canary", "model_id": 18, "since": 0}], "rate": 1240.4, "p99_s": 0.0042})
    'no version yet; canary 18; 1,240 requests/s, p99 4.2 ms'
    >>> serving_text({"num_servers": 2, "versions": [], "rate": 0.0, "p99_s": 0.0})
    'no version yet; no requests; 2 servers'
    >>> serving_text({"num_servers": 0})
    ''
    """
    if not status["num_servers"]:
        return ""
    of_role: dict[str, list[str]] = {"serving": [], "canary": [], "shadow": []}
    for version in status["versions"]:
        since = f" since {clock(version['since'])}" if version["role"] == "serving" else ""
        of_role[version["role"]].append(f"{version['model_id']}{since}")
    serving = of_role.pop("serving")
    parts = [f"version {' and '.join(serving)}" if serving else "no version yet"]
    parts += [f"{role} {' and '.join(names)}" for role, names in of_role.items() if names]
    rate, p99_ms = status["rate"], 1000 * status["p99_s"]
    parts.append(f"{rate:,.{0 if rate >= 10 else 1}f} requests/s, p99 {p99_ms:.3g} ms" if rate else "no requests")
    parts += [f"{status['num_servers']} servers"] if status["num_servers"] > 1 else []
    return "; ".join(parts)


def counts(training: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of two fields: the number of processed samples of a training, and their total. Args: training: see
    `EventKind.TRAINING_PROGRESS`."""
    return ("samples_scored", "samples_to_score") if training.get("samples_to_score") else ("samples_seen", "samples_total")


def doing(training: Mapping[str, Any], *, with_samples: bool = False) -> list[str]:
    """Format the present work of a training, and its progress. The first part names the stage, if there is one."""
    from modyn.records import JobState  # Imported late, since `--help` must not import NumPy.

    if training.get("state") == JobState.QUEUED:
        return ["queued, all workers are busy"]
    if of := training.get("samples_to_score"):
        parts = [f"scoring {training['samples_scored']:,} of {of:,} candidates"]
    else:
        parts = [*([f"{training['samples_seen']:,} samples"] if with_samples else []), _speed(training), _loss(training)]
    stage = training.get("stage")
    return [f"{printable(stage)}: {parts[0]}", *parts[1:]] if stage else parts


def learned_text(detail: Mapping[str, Any]) -> str:
    """Format the number of skipped steps and the number of ignored labels of a training; empty: both numbers are 0. Args: detail: detail of the
    training's last event (see `EventKind.STEP`).

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
