"""Run of many triggers with a fake trainer: do journal, memory and time of a trigger grow during the run?

    python -m benchmark.many_triggers [--triggers 10000] [--evaluation] [--drift] [--report]

The supervisor's executor and journal are real, on a PostgreSQL of its own; the other services are fakes in memory that answer at once, so
that what is measured is the supervisor. With `--evaluation`, each model is evaluated around its own data and on the time until the next trigger,
so that the intervals depend on the triggers, by two fakes at once during the run. With `--drift`, each trigger
is fired by a drift check, whose distance a fake gives: what a check costs the supervisor is its question, its
evidence and the policy's state. The last line is the time of the last hundred triggers as a ratio to that of the
first hundred; where other programs work on the machine, the processor time of this process says more.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from sqlalchemy import event

from benchmark.machine import write_report
from modyn.config.system import SupervisorConfig, SystemConfig
from modyn.db.engine import Database, open_database
from modyn.evaluator.client import DriftDistance, DriftRequest, MeasuredDrift
from modyn.local.databases import PostgresServer
from modyn.rpc.retry import CancellationToken
from modyn.supervisor.client import RunMode, RunOptions, RunState
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.journal.records import NewRun
from modyn.supervisor.run.executor import RunExecutor
from modyn.testing.services import InMemoryServices, pipeline_yaml
from modyn.trainer_server.client import TrainingRequest

HUNDRED = 100
TRIGGERS_PER_BATCH = 50
"""A divisor of a hundred, so that each hundred triggers commit as many batches."""
RESULT: Mapping[str, Any] = {
    "num_samples": 1,
    "loss": 0.5,
    "epoch_losses": [0.5],
    "losses": [[batch, 0.5] for batch in range(1, 21)],
    "seconds": {"forward": 0.1},
}
EVALUATION: Mapping[str, Any] = {
    "after_training_evaluation_workers": 2,
    "datasets": [{"dataset_id": "train", "metrics": [{"name": "Accuracy"}]}],
    "handlers": [
        {"name": name, "execution_time": "after_training", "models": "active", "datasets": ["train"], "strategy": strategy}
        for name, strategy in (
            ("around", {"type": "OffsetEvalStrategy", "offsets": ["-1d", "0d"]}),
            ("until", {"type": "BetweenTwoTriggersEvalStrategy"}),
        )
    ],
}
AMOUNT: Mapping[str, Any] = {"id": "DataAmountTrigger", "num_samples": 1}
DRIFT: Mapping[str, Any] = {
    "id": "DataDriftTrigger",
    "evaluation_interval_data_points": 1,
    "windowing_strategy": {"id": "TimeWindowingStrategy", "limit_ref": "1h", "limit_cur": "1h", "allow_overlap": True},
    "metrics": {
        "static": {"id": "MMDDriftMetric", "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": 0.5}},
        "dynamic": {"id": "KSDriftMetric", "decision_criterion": {"id": "DynamicQuantileThresholdCriterion", "window_size": 500}},
    },
    "aggregation_strategy": {"id": "AtLeastN", "n": 1},
}
"""Checks after each sample, and fires by its first metric."""


def drifted(request: DriftRequest) -> MeasuredDrift:
    """Return a distance above every threshold, for any two windows."""
    windows = (request.question.reference, request.question.current)
    return MeasuredDrift(dict.fromkeys(request.question.metrics, DriftDistance(1.0)), *(w.stop - w.start for w in windows))


@dataclass(frozen=True, slots=True)
class Mark:
    """Resources that a run had used when a training began."""

    seconds: float
    processor_s: float
    """Processor seconds of this process, without PostgreSQL."""
    statements: int
    """Number of SQL statements."""
    resident_bytes: int
    """Memory of this process in bytes."""
    held_bytes: int = 0
    """Bytes of it that the fakes hold of triggers and models so far; 0: not measured."""

    @property
    def own_bytes(self) -> int:
        """Memory without what the fakes hold."""
        return self.resident_bytes - self.held_bytes


def run_triggers(
    database: Database,
    folder: Path,
    triggers: int,
    evaluation: Mapping[str, Any] | None = None,
    trigger: Mapping[str, Any] = AMOUNT,
) -> tuple[str, list[Mark]]:
    """Run a pipeline of this number of triggers to its end; return its run id, and a mark at each of its trainings.

    Args: evaluation: that section of the pipeline, on the dataset `train`. trigger: that section; it fires after each sample.
    """
    marks: list[Mark] = []
    statements = 0

    def count(*_: object) -> None:
        nonlocal statements
        statements += 1

    def train(request: TrainingRequest) -> tuple[int, str, Mapping[str, Any]]:
        number = len(marks)
        # Outside of the hundreds that are timed: before each begins, and after it has ended.
        held = held_bytes(services) if number in (0, triggers - HUNDRED - 1) else 0
        mark = Mark(time.perf_counter(), time.process_time(), statements, resident_bytes(), held)
        if number in (HUNDRED, triggers - 1):
            mark = replace(mark, held_bytes=held_bytes(services))
        marks.append(mark)
        return request.trigger_id + 1, "", RESULT

    services = InMemoryServices(folder)
    services.trainer_server.train = train
    services.evaluator.drift = drifted
    services.storage.add_dataset("train")
    services.storage.add_samples("train", np.arange(triggers))
    yaml = pipeline_yaml(trigger=trigger, evaluation=evaluation)
    journal, options = Journal(database), RunOptions(RunMode.EXPERIMENT)
    run_id = journal.create(NewRun(options, "Many", yaml, "many.yaml", {}, selection_seed=1)).run_id
    config = SupervisorConfig(stream_batch_size=TRIGGERS_PER_BATCH)
    event.listen(database.engine, "before_cursor_execute", count)
    try:
        with database.session() as session:
            # What is measured is the supervisor, not the disk.
            session.connection().exec_driver_sql("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
        database.engine.dispose()
        of_run = journal.claim(run_id)
        executor = RunExecutor(journal.snapshot(run_id), of_run, services.clients(), EventHub(), config, CancellationToken())
        of_run.end(RunState.FINISHED, message=executor.execute())
    finally:
        event.remove(database.engine, "before_cursor_execute", count)
    return run_id, marks


def resident_bytes() -> int:
    """Return the memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def held_bytes(services: InMemoryServices) -> int:
    """Return the size of what the fakes hold: records of triggers, models, questions and samples."""
    fakes = (services.storage, services.selector, services.model_storage, services.trainer_server, services.evaluator)
    seen, total, left = set[int](), 0, list[object](fakes)
    while left:
        found = left.pop()
        if id(found) in seen or isinstance(found, type | FunctionType | MethodType | ModuleType):
            continue
        seen.add(id(found))
        # What the allocator adds to each is not counted.
        total += sys.getsizeof(found)
        left += gc.get_referents(found)
    return total


@dataclass(frozen=True, slots=True)
class Hundred:
    """Resources that a hundred triggers used."""

    seconds: float
    processor_s: float
    statements: int
    own_bytes: int
    """Growth of the process's memory, without what the fakes hold."""

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, {self.processor_s:.2f} s of processor time, {self.statements} SQL statements"


def compare(marks: list[Mark]) -> tuple[Hundred, Hundred, float]:
    """Return the first and the last hundred triggers, and the bytes of memory a trigger after the first hundred, without what the fakes hold."""
    first, last = (
        Hundred(
            end.seconds - begin.seconds,
            end.processor_s - begin.processor_s,
            end.statements - begin.statements,
            end.own_bytes - begin.own_bytes,
        )
        for begin, end in ((marks[0], marks[HUNDRED]), (marks[-HUNDRED - 1], marks[-1]))
    )
    return first, last, (marks[-1].own_bytes - marks[HUNDRED].own_bytes) / max(len(marks) - 1 - HUNDRED, 1)


def main() -> None:
    """Measure, print, and write a report if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=10_000)
    parser.add_argument("--evaluation", action="store_true", help="evaluate each model on intervals that depend on the triggers")
    parser.add_argument("--drift", action="store_true", help="fire each trigger by a drift check")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modyn-many-") as name:
        folder = Path(name)
        server = PostgresServer(folder / "postgres")
        server.start()
        try:
            config = SystemConfig(state_dir=folder / "state", database_url=server.url)
            database = open_database(config, "supervisor", "modyn.supervisor.migrations")
            try:
                evaluation, trigger = EVALUATION if options.evaluation else None, DRIFT if options.drift else AMOUNT
                _, marks = run_triggers(database, folder, options.triggers, evaluation, trigger)
            finally:
                database.close()
        finally:
            server.stop()
    first, last, grown = compare(marks)
    ratio = f"ratio: {last.seconds / first.seconds:.2f}, of processor time {last.processor_s / first.processor_s:.2f}"
    text = (
        f"{options.triggers:,} triggers in {marks[-1].seconds - marks[0].seconds:.1f} s\n"
        f"first hundred: {first}\n"
        f"last hundred:  {last}\n"
        f"memory of the process without what the fakes hold: {grown:,.0f} bytes a trigger after the first hundred; "
        f"first hundred {first.own_bytes / HUNDRED:,.0f}, last hundred {last.own_bytes / HUNDRED:,.0f} bytes a trigger\n"
        f"the fakes hold {(marks[-1].held_bytes - marks[HUNDRED].held_bytes) / max(len(marks) - 1 - HUNDRED, 1):,.0f} bytes a trigger"
    )
    print(text)
    if options.report:
        command = f"python -m benchmark.many_triggers --triggers {options.triggers}{' --evaluation' * options.evaluation}{' --drift' * options.drift}"
        name = "many-triggers" + "-evaluated" * options.evaluation + "-by-drift" * options.drift
        body = f"```\n{text}\n{ratio}\n```"
        print(f"report: {write_report(name, command, body)}")
    print(ratio)


if __name__ == "__main__":
    main()
