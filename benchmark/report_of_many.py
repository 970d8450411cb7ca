"""Report of a run with many models: seconds to make it, and its size.

    python -m benchmark.report_of_many [--models 400] [--intervals 400] [--report]

Tables and pages are real, results are invented: every model on every interval. `--intervals 1` with `--models 10000` is a run of ten thousand
triggers, each evaluated where it is active. What is measured leaves out the import of pandas.
"""

from __future__ import annotations

import argparse
import time

from benchmark.machine import write_report
from modyn.analysis.report import render
from modyn.analysis.results import RunResults, evaluations_table, triggers_table
from modyn.evaluator.client import EvaluationResult
from modyn.records import EvalInterval, RunId
from modyn.supervisor.client import Run, RunMode, RunState, TriggerRecord, TriggerState
from modyn.trainer_server.client import TrainingResult

DAY = 86_400
RUN = RunId("many-0001")


def invented_results(models: int, intervals: int) -> RunResults:
    """Return the results of a run with a model a day, each evaluated on `intervals` days: on all, or on those after its own data."""
    triggers = [
        TriggerRecord(
            trigger_id=i,
            position=100 * (i + 1),
            first_timestamp=i * DAY,
            last_timestamp=(i + 1) * DAY - 1,
            fired_at_timestamp=(i + 1) * DAY - 1,
            state=TriggerState.TRAINED,
            started_at=float(i),
            finished_at=i + 0.5,
            num_keys=100,
            model_id=i + 1,
            weights_sha256="ab" * 32,
            training_result=TrainingResult.from_mapping({"loss": 1 / (i + 1), "num_samples": 100}),
            seconds={"select": 0.1, "train": 0.3, "store": 0.05, "evaluate": 0.2, "total": 0.65},
        )
        for i in range(models)
    ]
    found = [
        EvaluationResult(
            RUN, t, t + 1, "h", "d", EvalInterval(i * DAY, (i + 1) * DAY, i * DAY + 1), "Accuracy", (t + i) % 7 / 7, "", 9
        )
        for t in range(models)
        for i in (range(intervals) if intervals >= models else range(t + 1, t + 1 + intervals))
    ]
    run = Run(
        RUN, "many", RunMode.EXPERIMENT, RunState.FINISHED, submitted_at=0.0, finished_at=float(models), num_triggers=models
    )
    return RunResults(run, triggers_table(triggers), evaluations_table(found))


def main() -> None:
    """Measure, print, and write a report if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=400)
    parser.add_argument("--intervals", type=int, default=400)
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    render(invented_results(2, 2))
    started = time.perf_counter()
    results = invented_results(options.models, options.intervals)
    tables_s = time.perf_counter() - started
    started = time.perf_counter()
    page = render(results)
    text = (
        f"{options.models:,} models, {len(results.evaluations):,} scores: tables {tables_s:.2f} s, page {time.perf_counter() - started:.2f} s, "
        f"{len(page) / 2**20:.1f} MiB, of it 1.4 MiB of plotly"
    )
    print(text)
    if options.report:
        command = f"python -m benchmark.report_of_many --models {options.models} --intervals {options.intervals}"
        print(f"report: {write_report('report-of-many', command, text)}")


if __name__ == "__main__":
    main()
