"""Decisions and results of a run, without names and times that differ between runs: two runs are equal if their outcomes are equal.

expected = outcome(client, undisturbed.run_id)
assert differences(expected, outcome(client, run.run_id)) == []
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from modyn.client import Client
from modyn.evaluator.client import EvaluationResult
from modyn.supervisor.client import Run, RunEvent, RunState, SelectStep, StepState, TrainStep, TriggerRecord


@dataclass(frozen=True, slots=True)
class TriggerOutcome:
    """One trigger: where it fired, what was selected, what came out of the training. `parent` is the trigger that made the parent model;
    -1: a model of another run."""

    trigger_id: int
    position: int
    first_timestamp: int
    last_timestamp: int
    fired_at_timestamp: int
    state: str
    num_keys: int | None
    keys_checksum: str | None
    parent: int | None
    weights_sha256: str | None
    num_batches: int | None
    loss: float | None


@dataclass(frozen=True, slots=True, order=True)
class EvaluationOutcome:
    """One cell of the evaluation matrix."""

    handler: str
    dataset: str
    trigger_id: int
    start: int
    end: int
    anchor: int
    metric: str
    value: float | None
    num_samples: int
    note: str


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Everything about a run that a repetition with the same seed has to have in common with it."""

    state: RunState
    message: str
    num_samples: int
    samples_trained: int
    triggers: tuple[TriggerOutcome, ...]
    evaluations: tuple[EvaluationOutcome, ...]
    """Sorted, with duplicates."""

    @property
    def decisions(self) -> tuple[tuple[Any, ...], ...]:
        """When the run triggered and on which keys, without what training made of them."""
        return tuple((t.trigger_id, t.position, t.fired_at_timestamp, t.num_keys, t.keys_checksum) for t in self.triggers)

    @property
    def weights(self) -> tuple[str | None, ...]:
        return tuple(trigger.weights_sha256 for trigger in self.triggers)


def outcome(client: Client, run_id: str) -> RunOutcome:
    """The outcome of a run as the services report it."""
    supervisor = client.supervisor
    run = supervisor.run(run_id)
    return outcome_of(run, supervisor.triggers(run_id), client.evaluator.results(run.run_id))


def outcome_of(run: Run, triggers: Sequence[TriggerRecord], results: Iterable[EvaluationResult]) -> RunOutcome:
    made_by = {trigger.model_id: trigger.trigger_id for trigger in triggers if trigger.model_id is not None}
    return RunOutcome(
        state=run.state,
        message=run.message,
        num_samples=run.num_samples,
        samples_trained=run.samples_trained,
        triggers=tuple(
            TriggerOutcome(
                trigger_id=t.trigger_id,
                position=t.position,
                first_timestamp=t.first_timestamp,
                last_timestamp=t.last_timestamp,
                fired_at_timestamp=t.fired_at_timestamp,
                state=str(t.state),
                num_keys=t.num_keys,
                keys_checksum=t.keys_checksum,
                parent=None if t.parent_model_id is None else made_by.get(t.parent_model_id, -1),
                weights_sha256=t.weights_sha256,
                num_batches=t.training_result.counts.num_batches if t.training_result.has_ended else None,
                loss=t.training_result.losses.loss,
            )
            for t in triggers
        ),
        evaluations=tuple(
            sorted(
                EvaluationOutcome(
                    r.handler,
                    r.dataset,
                    r.trigger_id,
                    r.interval.start,
                    r.interval.end,
                    r.interval.anchor,
                    r.metric,
                    r.value,
                    r.num_samples,
                    r.note,
                )
                for r in results
            )
        ),
    )


def differences(expected: RunOutcome, found: RunOutcome) -> list[str]:
    """Return a line for each difference, for the message of a failing test; empty: the outcomes are equal."""
    different = [
        f"{name}: expected {getattr(expected, name)!r}, found {getattr(found, name)!r}"
        for name in ("state", "message", "num_samples", "samples_trained")
        if getattr(expected, name) != getattr(found, name)
    ]
    if len(expected.triggers) != len(found.triggers):
        different.append(f"expected {len(expected.triggers)} triggers, found {len(found.triggers)}")
    for wanted, got in zip(expected.triggers, found.triggers, strict=False):
        different += [
            f"trigger {wanted.trigger_id}: {field.name}: expected {getattr(wanted, field.name)!r}, found {getattr(got, field.name)!r}"
            for field in fields(TriggerOutcome)
            if getattr(wanted, field.name) != getattr(got, field.name)
        ]
    missing = Counter(expected.evaluations) - Counter(found.evaluations)
    extra = Counter(found.evaluations) - Counter(expected.evaluations)
    different += [f"missing: {cell}" for cell in missing.elements()]
    different += [f"not expected: {cell}" for cell in extra.elements()]
    return different


def broken_promises(events: Sequence[RunEvent], num_triggers: int) -> list[str]:
    """Return what a journal must never hold, even if services were killed: gaps, a trigger that fired twice or never, a step that ended
    twice. `events`: all that are kept of one run at rest."""
    broken = []
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        broken.append(f"events are numbered {[event.seq for event in events]}")
    fired = [event.trigger_id for event in events if event.kind == "trigger_fired"]
    if fired != list(range(num_triggers)):
        broken.append(f"triggers fired: {fired}, expected 0 to {num_triggers - 1}")
    ended = Counter(
        (event.trigger_id, event.detail.step)
        for event in events
        if isinstance(event.detail, SelectStep | TrainStep) and event.detail.state is StepState.FINISHED
    )
    broken += [f"step {step} finished {count} times" for step, count in ended.items() if count > 1]
    for step in ("select", "train"):
        finished = [trigger_id for trigger_id, name, *_ in ended if name == step]
        if finished != list(range(num_triggers)):
            broken.append(f"{step} finished for triggers {finished}, expected 0 to {num_triggers - 1}")
    return broken
