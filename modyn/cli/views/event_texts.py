"""Texts of a run's events: trainings, steps of proactive training, and prediction servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from modyn.cli.views.output import clock, printable

if TYPE_CHECKING:
    from modyn.supervisor.client import ServingStatus, TrainStep, TriggerProgress

SHOWN_S: Final = 5.0
"""Seconds for which the report of a server is shown. Servers report once a second, so a server with an older report has stopped."""


def kind_of(*, online: bool) -> str:
    """Return the kind of work of a trigger. Args: online: see `TriggerRecord`."""
    return "steps" if online else "training"


def tested_text(step: TrainStep) -> str:
    """Format the test results of an ended training of steps; empty: no sample was tested.

    >>> from modyn.supervisor.client import StepState, TrainStep
    >>> tested_text(TrainStep(StepState.FINISHED, tested=1200, prequential_error=0.25, rollbacks=1))
    'prequential error 0.2500 over 1,200 samples, rolled back once'
    """
    measures = (("error", step.prequential_error), ("loss", step.prequential_loss))
    for name, mean in measures:
        if mean is not None:
            rollbacks = {0: "", 1: ", rolled back once"}.get(step.rollbacks, f", rolled back {step.rollbacks} times")
            return f"prequential {name} {mean:.4f} over {step.tested:,} samples{rollbacks}"
    return ""


def serving_text(status: ServingStatus) -> str:
    """Format the versions that answer requests, and the rate and latency of requests; empty: there are no servers.

    >>> from modyn.supervisor.client import ServedVersion, ServingStatus
    >>> serving_text(ServingStatus(1240.4, 0.0042, 1, (ServedVersion(18, "canary", 0.0),)))
    'no version yet; canary 18; 1,240 requests/s, p99 4.2 ms'
    >>> serving_text(ServingStatus(num_servers=2)), serving_text(ServingStatus())
    ('no version yet; no requests; 2 servers', '')
    """
    if not status.num_servers:
        return ""
    of_role: dict[str, list[str]] = {"serving": [], "canary": [], "shadow": []}
    for version in status.versions:
        since = f" since {clock(version.since)}" if version.role == "serving" else ""
        of_role[version.role].append(f"{version.model_id}{since}")
    serving = of_role.pop("serving")
    parts = [f"version {' and '.join(serving)}" if serving else "no version yet"]
    parts += [f"{role} {' and '.join(names)}" for role, names in of_role.items() if names]
    rate, p99_ms = status.rate, 1000 * status.p99_s
    parts.append(f"{rate:,.{0 if rate >= 10 else 1}f} requests/s, p99 {p99_ms:.3g} ms" if rate else "no requests")
    parts += [f"{status.num_servers} servers"] if status.num_servers > 1 else []
    return "; ".join(parts)


def doing(training: TriggerProgress, *, with_samples: bool = False) -> list[str]:
    """Format the present work of a training, and its progress. The first part names the stage, if there is one."""
    from modyn.records import JobState  # Imported late, since `--help` must not import NumPy.

    if training.state is JobState.QUEUED:
        return ["queued, all workers are busy"]
    if training.samples_to_score:
        parts = [f"scoring {training.samples_scored:,} of {training.samples_to_score:,} candidates"]
    else:
        speed = "starting" if training.samples_per_s is None else f"{training.samples_per_s:,.0f} samples/s"
        loss = "no loss yet" if training.loss is None else f"loss {training.loss:.4f}"
        parts = [*([f"{training.samples_seen:,} samples"] if with_samples else []), speed, loss]
    return [f"{printable(training.stage)}: {parts[0]}", *parts[1:]] if training.stage else parts


def learned_text(step: TrainStep) -> str:
    """Format the number of skipped steps and the number of ignored labels of an ended training; empty: both numbers are 0.

    >>> from modyn.supervisor.client import StepState, TrainStep
    >>> learned_text(TrainStep(StepState.FINISHED, skipped_steps=5, num_steps=8, ignored_labels=3, num_labels=1200))
    '5 of 8 steps skipped, 3 of 1,200 labels ignored'
    """
    counted = ((step.skipped_steps, step.num_steps, "steps skipped"), (step.ignored_labels, step.num_labels, "labels ignored"))
    return ", ".join(f"{some:,} of {of:,} {what}" for some, of, what in counted if some)
