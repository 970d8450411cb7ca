"""The supervisor in memory, with its states and events but without services: runs go through a script at once, or step by step as a test asks."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from modyn.config.base import Problem, refuse
from modyn.config.yaml_source import load_yaml
from modyn.errors import ConflictError, NotFoundError
from modyn.records import RunId
from modyn.registry import Plugin
from modyn.supervisor.client import PROGRESS, EventKind, Run, RunEvent, RunMode, RunOptions, TriggerRecord
from modyn.supervisor.states import RunState, TriggerState, check_transition
from modyn.testing.fake_client import FakeClient

SAMPLES_PER_TRIGGER = 100


class FakeSupervisor(FakeClient):
    """Has the methods of SupervisorClient.

    A run fires `num_triggers` triggers (at most its max_triggers), evaluates each model, and finishes, all within
    `submit`; with `hold` it stays in `streaming` after that, until `finish`, `fail` or `stop`. `problems` is what `validate` answers.
    """

    installed = (Plugin("modyn.triggers", "DataAmountTrigger", "in memory", "modyn"),)

    def __init__(self, problems: Sequence[Problem] = (), num_triggers: int = 2, hold: bool = False) -> None:
        self.problems = list(problems)
        self.num_triggers = num_triggers
        self.hold = hold
        self._changed = threading.Condition(threading.RLock())
        self._runs: dict[str, Run] = {}
        self._events: dict[str, list[RunEvent]] = {}
        self._triggers: dict[str, list[TriggerRecord]] = {}

    def validate(self, yaml: str, file_name: str) -> list[Problem]:
        load_yaml(yaml, file_name)
        return list(self.problems)

    def submit(self, yaml: str, file_name: str, options: RunOptions) -> Run:
        pipeline = dict(load_yaml(yaml, file_name).data)
        refuse(self.problems)
        name = str(pipeline.get("pipeline", {}).get("name", "pipeline"))
        with self._changed:
            run_id = RunId(f"{name}-{len(self._runs) + 1:04d}")
            num_triggers = self.num_triggers if options.max_triggers is None else min(self.num_triggers, options.max_triggers)
            self._runs[run_id] = Run(
                run_id=run_id,
                pipeline_name=name,
                mode=options.mode,
                state=RunState.SUBMITTED,
                submitted_at=time.time(),
                total_samples=num_triggers * SAMPLES_PER_TRIGGER if options.mode is RunMode.EXPERIMENT else None,
                from_timestamp=options.from_timestamp,
                to_timestamp=options.to_timestamp,
                max_triggers=options.max_triggers,
                yaml=yaml,
                pipeline=pipeline,
            )
            self._events[run_id], self._triggers[run_id] = [], []
            self.emit(run_id, EventKind.RUN_STATE, {"state": str(RunState.SUBMITTED)})
            self._become(run_id, RunState.STREAMING)
            for trigger_id in range(num_triggers):
                self._play_trigger(run_id, trigger_id)
            if not self.hold:
                self.finish(run_id)
            return self._runs[run_id]

    def runs(self) -> list[Run]:
        with self._changed:
            return list(self._runs.values())

    def run(self, run_id: str) -> Run:
        with self._changed:
            if run_id not in self._runs:
                raise NotFoundError(f"there is no run '{run_id}'; `modyn ps` lists those that exist")
            return self._runs[run_id]

    def watch(self, run_id: str, after_seq: int = 0) -> Iterator[RunEvent]:
        self.run(run_id)
        position = 0
        while True:
            with self._changed:
                while len(self._events[run_id]) <= position and not self._runs[run_id].is_terminal:
                    self._changed.wait()
                new = self._events[run_id][position:]
                at_rest = self._runs[run_id].is_terminal
            position += len(new)
            yield from (event for event in new if event.seq > after_seq or event.seq == 0)
            if at_rest:
                return

    def stop(self, run_id: str) -> Run:
        with self._changed:
            if not self.run(run_id).is_terminal:
                self._become(run_id, RunState.STOPPING)
                self._become(run_id, RunState.STOPPED)
            return self._runs[run_id]

    def resume(self, run_id: str) -> Run:
        with self._changed:
            run = self.run(run_id)
            if run.state is RunState.FINISHED:
                raise ConflictError(f"run {run_id} is finished; there is nothing to resume")
            if run.is_terminal:
                self._become(run_id, RunState.SUBMITTED)
                self._become(run_id, RunState.STREAMING)
                self.finish(run_id)
            return self._runs[run_id]

    def evaluate(self, run_id: str, handlers: Sequence[str] = ()) -> Run:
        with self._changed:
            self._become(run_id, RunState.SUBMITTED)
            self._become(run_id, RunState.EVALUATING)
            self._become(run_id, RunState.FINISHED)
            return self._runs[run_id]

    def triggers(self, run_id: str) -> list[TriggerRecord]:
        self.run(run_id)
        return list(self._triggers[run_id])

    def emit(self, run_id: str, kind: EventKind, detail: dict[str, Any], trigger_id: int | None = None) -> None:
        """Send an event to the watchers."""
        with self._changed:
            events = self._events[run_id]
            seq = 0 if kind in PROGRESS else 1 + max((event.seq for event in events), default=0)
            events.append(RunEvent(seq, time.time(), kind, trigger_id, detail))
            self._changed.notify_all()

    def finish(self, run_id: str) -> None:
        """Lets a held run end well."""
        self._become(run_id, RunState.EVALUATING)
        self._become(run_id, RunState.FINISHED)

    def fail(self, run_id: str, error: str, reason: str = "TRAINING") -> None:
        """Lets a held run fail."""
        with self._changed:
            self._runs[run_id] = dataclasses.replace(self._runs[run_id], error=error, error_reason=reason)
            self._become(run_id, RunState.FAILED, error=error, error_reason=reason)

    def _become(self, run_id: str, to: RunState, **detail: str) -> None:
        with self._changed:
            run = self.run(run_id)
            check_transition(run_id, run.state, to)
            run = dataclasses.replace(run, state=to)
            self._runs[run_id] = dataclasses.replace(run, finished_at=time.time() if run.is_terminal else None)
            self.emit(run_id, EventKind.RUN_STATE, {"state": str(to), **detail})

    def _play_trigger(self, run_id: RunId, trigger_id: int) -> None:
        position = (trigger_id + 1) * SAMPLES_PER_TRIGGER
        first, last, now = position - SAMPLES_PER_TRIGGER, position - 1, time.time()
        run = self._runs[run_id]
        counts = {"num_samples": position, "total_samples": run.total_samples or 0, "timestamp": last}
        self.emit(run_id, EventKind.STREAM_PROGRESS, counts)
        fired = {"position": position, "first_timestamp": first, "last_timestamp": last, "fired_at_timestamp": last}
        self.emit(run_id, EventKind.TRIGGER_FIRED, {**fired, "num_samples": SAMPLES_PER_TRIGGER}, trigger_id)
        self._become(run_id, RunState.SELECTING)
        self._step(run_id, trigger_id, "select", num_keys=SAMPLES_PER_TRIGGER, seconds=0.01)
        self._become(run_id, RunState.TRAINING)
        progress = {
            "samples_seen": 50,
            "samples_total": SAMPLES_PER_TRIGGER,
            "batches_seen": 5,
            "loss": 0.5,
            "samples_per_s": 1e3,
        }
        self.emit(run_id, EventKind.TRAINING_PROGRESS, progress, trigger_id)
        self._step(run_id, trigger_id, "train", model_id=trigger_id + 1, seconds=0.1, loss=0.4)
        self._become(run_id, RunState.STREAMING)
        self._step(run_id, trigger_id, "evaluate", handler="slices", dataset="test", seconds=0.1)
        self._triggers[run_id].append(
            TriggerRecord(
                trigger_id=trigger_id,
                position=position,
                first_timestamp=first,
                last_timestamp=last,
                fired_at_timestamp=last,
                state=TriggerState.TRAINED,
                started_at=now,
                finished_at=now,
                num_keys=SAMPLES_PER_TRIGGER,
                keys_checksum=f"{trigger_id:064x}",
                model_id=trigger_id + 1,
                parent_model_id=trigger_id or None,
                weights_sha256=f"{trigger_id + 1:064x}",
                training_result={"num_samples": SAMPLES_PER_TRIGGER, "num_batches": 10, "num_epochs": 1, "loss": 0.4},
                seconds={"select": 0.01, "train": 0.1, "store": 0.01, "evaluate": 0.1, "total": 0.22},
            )
        )
        self._runs[run_id] = dataclasses.replace(
            self._runs[run_id],
            num_samples=position,
            num_triggers=trigger_id + 1,
            samples_trained=self._runs[run_id].samples_trained + SAMPLES_PER_TRIGGER,
        )

    def _step(self, run_id: str, trigger_id: int, step: str, **found: Any) -> None:
        self.emit(run_id, EventKind.STEP, {"step": step, "state": "started"}, trigger_id)
        self.emit(run_id, EventKind.STEP, {"step": step, "state": "finished", **found}, trigger_id)
