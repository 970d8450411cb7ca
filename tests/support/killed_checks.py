"""A run whose processes are killed while its trigger policy makes checks, compared with one that is left alone."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

import pytest

from modyn.client import Client
from modyn.supervisor.client import CheckRecord, RunState
from modyn.testing.stack import RunningStack
from tests.support.drifting_data import drifting_dataset, drifting_pipeline
from tests.support.killed_stack import WORKERS, KilledStack

STRIKES: Final = (
    ("trigger_fired", 1, "supervisor"),
    ("check", 3, WORKERS),
    ("check", 5, "evaluator"),
    ("check", 8, "supervisor"),
)
"""In this order: from which event of a kind on, counted from 1, what is killed; `WORKERS`: those of the evaluator."""
DIFFERING: Final = (
    *("embedded_samples", "forecast_training_s", "regret.threshold"),
    *("since_s", "since_s.threshold", "last_training_s", "prediction_latency_s"),
)
"""Evidence that may differ: what was embedded again, and seconds of trainings."""
DATASET: Final = "drifting"


def drifting_stack(stack: RunningStack, client: Client) -> KilledStack:
    """The stack, which must resume its runs by itself, with the dataset of `drifting_data` in it."""
    drifting_dataset(stack, DATASET)
    return KilledStack(stack, client)


def run_with_kills(killed: KilledStack, trigger: dict[str, object], **sections: object) -> int:
    """Run a pipeline with this `trigger` section, and others, undisturbed and with the kills of `STRIKES`: checks, evidence and triggers must be
    the same.

    Args: killed: of `drifting_stack`. Returns: how many workers were killed.
    """
    text = drifting_pipeline(DATASET, trigger, **sections)
    quiet = killed.stack.run(text)
    assert quiet.state is RunState.FINISHED, quiet.error
    checks = killed.client.supervisor.checks(quiet.run_id)
    assert len(checks) > 5

    path = killed.stack.folder / "killed.yaml"
    path.write_text(text)
    run_id = killed.client.run(path).run_id
    num_workers = _strike(killed, run_id)
    broken = killed.client.wait(run_id)
    assert broken.state is RunState.FINISHED, broken.error
    again = killed.client.supervisor.checks(run_id)
    assert [_verdict(check) for check in again] == [_verdict(check) for check in checks]
    for check, other in zip(checks, again, strict=True):
        assert _numbers(other) == pytest.approx(_numbers(check), rel=1e-4, abs=1e-5), check.position
    positions = [[trigger.position for trigger in killed.client.supervisor.triggers(run)] for run in (quiet.run_id, run_id)]
    assert positions[0] == positions[1]
    assert set(positions[0]) >= {check.position for check in checks if check.fires}
    return num_workers


def _strike(killed: KilledStack, run_id: str) -> int:
    """Watch the run to its end, and kill. Returns the number of workers that were killed alone."""
    strikes, seen, num_workers = deque(STRIKES), Counter[str](), 0
    for event in killed.client.watch(run_id):
        seen[event.kind] += 1
        if not strikes or event.kind != strikes[0][0] or seen[event.kind] < strikes[0][1]:
            continue
        _, _, name = strikes.popleft()
        if name == WORKERS:
            num_workers += killed.kill_workers("evaluator")
        else:
            killed.kill(name)
    assert len(strikes) <= 1, "kills that came too late"
    return num_workers


def _verdict(check: CheckRecord) -> tuple[int, bool, bool]:
    return check.position, check.online, check.fires


def _numbers(check: CheckRecord) -> dict[str, float]:
    """The evidence without seconds and what else may differ."""
    names = {name: name.rpartition("/")[2] for name in check.numbers}
    return {name: check.numbers[name] for name, own in names.items() if own not in DIFFERING and not own.endswith(".seconds")}
