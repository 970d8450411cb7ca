"""A run of many triggers of a fake trainer: whether journal, memory and time of a trigger stay what they were at its start.

    python -m benchmark.many_triggers [--triggers 10000] [--report]

The supervisor's executor and journal are real, on a PostgreSQL of its own; the other services are fakes in memory that answer at once, so
that what is measured is the supervisor. The last line is the time of the last hundred triggers as a ratio to that of the first hundred.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import event

from benchmark.machine import write_report
from modyn.config.system import SupervisorConfig, SystemConfig
from modyn.db.engine import Database, open_database
from modyn.local.databases import PostgresServer
from modyn.rpc.retry import CancellationToken
from modyn.supervisor.client import RunMode, RunOptions, RunState
from modyn.supervisor.events import EventHub
from modyn.supervisor.executor import RunExecutor
from modyn.supervisor.journal import Journal
from modyn.supervisor.records import NewRun
from modyn.testing.services import InMemoryServices, pipeline_yaml
from modyn.trainer_server.client import TrainingRequest

HUNDRED = 100
TRIGGERS_PER_BATCH = 50
"""A divisor of a hundred, so that each hundred triggers commit as many batches."""
RESULT: Mapping[str, Any] = {
    "num_samples": 1,
    "loss": 0.5,
    "epoch_losses": [0.5],
    "losses": [0.5] * 20,
    "seconds": {"forward": 0.1},
}


@dataclass(frozen=True, slots=True)
class Mark:
    """What a run had used when a training began."""

    seconds: float
    statements: int
    """Of SQL."""
    resident_bytes: int
    """Of this process."""


def run_triggers(database: Database, folder: Path, triggers: int) -> tuple[str, list[Mark]]:
    """Run a pipeline of so many triggers to its end; return its run id, and a mark at each of its trainings."""
    marks: list[Mark] = []
    statements = 0

    def count(*_: object) -> None:
        nonlocal statements
        statements += 1

    def train(request: TrainingRequest) -> tuple[int, str, Mapping[str, Any]]:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        marks.append(Mark(time.perf_counter(), statements, resident))
        return request.trigger_id + 1, "", RESULT

    services = InMemoryServices(folder)
    services.trainer_server.train = train
    services.storage.add_dataset("train")
    services.storage.add_samples("train", np.arange(triggers))
    yaml = pipeline_yaml(trigger={"id": "DataAmountTrigger", "num_samples": 1})
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


def compare(marks: list[Mark]) -> tuple[tuple[float, float], tuple[int, int], float]:
    """Seconds and SQL statements of the first and of the last hundred triggers, and bytes of memory a trigger between them."""
    first, last = (marks[0], marks[HUNDRED]), (marks[-HUNDRED - 1], marks[-1])
    seconds = (first[1].seconds - first[0].seconds, last[1].seconds - last[0].seconds)
    statements = (first[1].statements - first[0].statements, last[1].statements - last[0].statements)
    between = max(len(marks) - 2 * HUNDRED, 1)
    return seconds, statements, (last[1].resident_bytes - first[1].resident_bytes) / between


def main() -> None:
    """Measure, print, and write a report if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triggers", type=int, default=10_000)
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
                _, marks = run_triggers(database, folder, options.triggers)
            finally:
                database.close()
        finally:
            server.stop()
    seconds, statements, grown = compare(marks)
    text = (
        f"{options.triggers:,} triggers in {marks[-1].seconds - marks[0].seconds:.1f} s\n"
        f"first hundred: {seconds[0]:.2f} s, {statements[0]} SQL statements\n"
        f"last hundred:  {seconds[1]:.2f} s, {statements[1]} SQL statements\n"
        f"memory of the process: {grown:,.0f} bytes a trigger, fakes included"
    )
    print(text)
    if options.report:
        command = f"python -m benchmark.many_triggers --triggers {options.triggers}"
        body = f"{text}\n\nratio: {seconds[1] / seconds[0]:.2f}"
        print(f"report: {write_report('many-triggers', command, body)}")
    print(f"ratio: {seconds[1] / seconds[0]:.2f}")


if __name__ == "__main__":
    main()
