"""Run a trigger policy over a stream as a run does, and check the rules that every policy must obey."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from modyn.records import SampleBatch
from modyn.supervisor.triggers.base import Check, CheckContext, CheckRecord, Trigger, TriggerOutcome, next_position
from modyn.supervisor.triggers.measures.label_clock import LabelClock, LateBatch
from modyn.supervisor.triggers.measures.questions import NO_EVIDENCE, EvidenceSource
from modyn.testing.fake_evidence import FakeEvidence

T = TypeVar("T")


def require(holds: bool, message: str) -> None:
    """Raise AssertionError with `message` unless the condition holds."""
    if not holds:
        raise AssertionError(message)


def decide(
    trigger: Trigger,
    batches: Sequence[SampleBatch],
    where: str = "a policy",
    before: Sequence[CheckRecord] = (),
    *,
    position: int = 0,
    pending: int = 0,
    verdicts: Sequence[CheckRecord] = (),
    source: EvidenceSource = NO_EVIDENCE,
    asks_twice: bool = True,
) -> list[CheckRecord]:
    """Return all checks of a policy over a stream, in the order of a run.

    Labels have the delay of the policy, unless the batches define a delay.

    Args: where: name of policy and stream in messages. before: earlier checks, with which the result begins. position: position of the first
    sample in the stream. pending: number of labels since the last trigger of `before`. verdicts: verdicts of a journal; a verdict with evidence
    replaces the policy's answer. source: object that answers the policy's questions. asks_twice: ask each question twice, and check that the
    policy's state does not change and both answers are equal. These checks take two thirds of the time.
    """
    ask = partial(_ask_twice, trigger, where) if asks_twice else _ask_once
    records, journalled = list(before), {record.position: record for record in verdicts if record.evidence}
    fired = [record.position for record in before if record.fires]
    clock = LabelClock(trigger.label_delay)
    if isinstance(source, FakeEvidence):
        source.label_delay = trigger.label_delay
    for given in batches:
        is_late = trigger.label_delay and len(given) and not isinstance(given, LateBatch)
        batch = clock.take(position, given) if is_late else given
        copies = [column.copy() for column in (batch.keys, batch.timestamps, batch.labels)]
        decided, observed = max((records[-1].position if records else 0) - position, -1), 0
        while (at := ask("next_check", partial(next_position, trigger, batch, decided))) is not None:
            require(position + at > 0, f"{where}: checks before the first sample")
            trigger.observe(batch.slice(observed, at))
            pending += len(batch.slice(observed, at).labelled)
            observed = decided = at
            context = CheckContext(position + at, pending, source)
            ask("questions", partial(trigger.questions, context))
            record = journalled.get(context.position) or _record(context, ask("check", partial(trigger.check, context)))
            trigger.checked(record)
            records.append(record)
            if record.fires:
                _train(trigger, len(fired), record.position, pending)
                fired.append(record.position)
                pending = 0
        trigger.observe(batch.slice(observed, len(batch)))
        pending += len(batch.slice(observed, len(batch)).labelled)
        position += len(batch)
        for column, copy in zip((batch.keys, batch.timestamps, batch.labels), copies, strict=True):
            require(np.array_equal(column, copy), f"{where}: changes the samples that it is given")
    return records


def _record(context: CheckContext, check: Check) -> CheckRecord:
    record = CheckRecord(context.position, check.fires, check.evidence)
    record = CheckRecord.from_mapping(json.loads(json.dumps(record.to_mapping())))
    return replace(record, memory=json.loads(json.dumps(check.memory)))


def _train(trigger: Trigger, number: int, position: int, num_new: int) -> None:
    """Report a trigger and its model to the policy, as a run does."""
    fired = TriggerOutcome(number, position, first_timestamp=0, last_timestamp=position, num_new=num_new)
    trigger.triggered(fired)
    seconds = {"select": 0.5, "train": 1.0, "store": 0.25, "total": 1.5}
    trigger.ended(replace(fired, model_id=number + 1, num_keys=position, num_trained=2 * position, seconds=seconds))


def _ask_once(name: str, ask: Callable[[], T]) -> T:
    return ask()


def _ask_twice(trigger: Trigger, where: str, name: str, ask: Callable[[], T]) -> T:
    """Ask a question twice, and check that the state does not change and both answers are equal."""
    state = json.dumps(trigger.state())
    answer = ask()
    require(json.dumps(trigger.state()) == state, f"{where}: {name} changes its state")
    require(ask() == answer, f"{where}: {name}, asked again, answers otherwise")
    return answer
