"""Accuracy and cost of trigger policies on streams whose changes are known."""

from __future__ import annotations

import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.evidence.policies import policies_of
from benchmark.evidence.scatter import Point, scatter
from benchmark.evidence.streams import FIRST, TRIGGER_STREAMS, YEAR, Stream
from benchmark.machine import REPORTS, dated, write_report
from modyn.analysis.results import composite_scores, series_cells
from modyn.analysis.simulation import ESTIMATE
from modyn.client import Client
from modyn.config.system import SystemConfig
from modyn.supervisor.client import RunState

REFERENCE = "every 0.5 y"
"""The policy whose run the others are simulated on: it has a model from each time at which another may fire, but for amounts of data."""


@dataclass(frozen=True)
class Outcome:
    """One run. accuracies: of the active model, by year; None before there is one."""

    stream: str
    policy: str
    seed: int
    triggers: list[int]
    """Years at which it triggered, from 0."""
    accuracies: list[float | None]
    train_s: float
    check_s: float
    num_checks: int
    total_s: float
    simulated_triggers: int
    """Number of triggers by `modyn simulate` on the run of the reference policy."""
    estimated_accuracy: float
    """Mean accuracy by the same, over the years that have an estimate."""


def run_streams(names: Sequence[str], seeds: int, only: Sequence[str], *, report: bool, kept: Path | None = None) -> None:
    """Run all policies on all streams, print a table, and write a report.

    Args: only: names of policies; none: all. kept: folder with the outcomes of runs that are done, to which others are added; the policy that
        others are simulated on is run again for these. None: there are none.
    """
    for name in names:
        with tempfile.TemporaryDirectory(prefix="modyn-evidence-") as folder:
            outcomes = _outcomes(TRIGGER_STREAMS[name], seeds, only, Path(folder), (kept or Path(folder)) / f"{name}.jsonl")
        print(table := _table(outcomes), flush=True)
        if report:
            _write(TRIGGER_STREAMS[name], outcomes, table, seeds, only)


def _outcomes(stream: Stream, seeds: int, only: Sequence[str], folder: Path, kept: Path) -> list[Outcome]:
    """The outcomes of all runs: those in the file `kept`, and of the others, which are appended to it. Args: folder: for data and state."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    known = [Outcome(**json.loads(line)) for line in kept.read_text().splitlines()] if kept.exists() else []
    outcomes = {(one.seed, one.policy): one for one in known}
    names = [name for name in policies_of(stream, "") if not only or name in (REFERENCE, *only)]
    missing = {seed: [name for name in names if (seed, name) not in outcomes] for seed in range(seeds)}
    with kept.open("a") as file, Client(SystemConfig(state_dir=folder / "state"), start=True) as client:
        try:
            for seed, wanted in missing.items():
                for outcome in _of_seed(client, stream, folder / "data", seed, [REFERENCE, *wanted]) if wanted else ():
                    if (seed, outcome.policy) not in outcomes:
                        outcomes[seed, outcome.policy] = outcome
                        file.write(json.dumps(asdict(outcome)) + "\n")
                file.flush()
        finally:
            client.down()
    return [outcomes[seed, name] for seed in range(seeds) for name in names]


def _of_seed(client: Client, stream: Stream, folder: Path, seed: int, wanted: Sequence[str]) -> list[Outcome]:
    train, test = stream.register(client, folder, seed)
    sections = {name: s for name, s in policies_of(stream, train).items() if name in wanted}
    runs, seconds = dict[str, str](), dict[str, float]()
    for name, section in sections.items():
        models = "matrix" if name == REFERENCE else "active"
        path = folder / "pipeline.yaml"
        path.write_text(json.dumps(pipeline_of(stream, section, (train, test), seed, models)))  # JSON is YAML
        started = time.monotonic()
        run = client.wait(client.run(path).run_id)
        if run.state is not RunState.FINISHED:
            raise SystemExit(f"{stream.name}, {name}, seed {seed}: {run.run_id} is {run.state}: {run.error}")
        runs[name], seconds[name] = run.run_id, time.monotonic() - started
        print(f"{stream.name} seed {seed} {name}: {run.num_triggers} triggers, {seconds[name]:.0f} s", flush=True)
    # One by one: together, they are compared over the years that all of them have in common.
    tables = [client.simulate({name: section}, run_id=runs[REFERENCE]) for name, section in sections.items()]
    simulated = pd.concat([table.set_index("policy") for table in tables])
    (estimate,) = (column for column in simulated.columns if column.startswith(ESTIMATE))
    counts, estimates = simulated["triggers"].to_dict(), simulated[estimate].to_dict()
    return [
        _outcome(client, stream, run_id)(
            policy=name,
            seed=seed,
            total_s=seconds[name],
            simulated_triggers=counts[name],
            estimated_accuracy=estimates[name],
        )
        for name, run_id in runs.items()
    ]


def _outcome(client: Client, stream: Stream, run_id: str) -> Callable[..., Outcome]:
    """Return the outcome that the run itself reports."""
    results = client.results(run_id)
    ((_, cells),) = series_cells(results.evaluations)
    scored = composite_scores(cells, results.triggers, "active").dropna(subset="value")
    values = dict(zip(((scored["start"] - FIRST) // YEAR).tolist(), scored["value"].tolist(), strict=True))
    checks = client.supervisor.checks(run_id)
    records = client.supervisor.triggers(run_id)
    return partial(
        Outcome,
        stream=stream.name,
        triggers=[(record.fired_at_timestamp - FIRST) // YEAR for record in records],
        accuracies=[values.get(year) for year in range(stream.years)],
        train_s=sum(record.seconds.get("train", 0.0) for record in records),
        check_s=sum(check.seconds for check in checks),
        num_checks=len(checks),
    )


def mean_accuracies(outcomes: Sequence[Outcome]) -> dict[tuple[str, int], float]:
    """(policy, seed) → mean accuracy of the active model over the years in which each of all runs has one (SIGMOD'25, section 7.2)."""
    common = [year for year in range(len(outcomes[0].accuracies)) if all(o.accuracies[year] is not None for o in outcomes)]
    return {(o.policy, o.seed): statistics.fmean(o.accuracies[year] or 0.0 for year in common) for o in outcomes}


def _table(outcomes: Sequence[Outcome]) -> str:
    accuracy = mean_accuracies(outcomes)
    lines = [
        "| policy | triggers | accuracy of the active model, % | training, s | checks | checks, s | simulated triggers | estimate - real, points |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for policy in dict.fromkeys(o.policy for o in outcomes):
        runs = [o for o in outcomes if o.policy == policy]
        values = [100 * accuracy[policy, o.seed] for o in runs]
        counts = [len(o.triggers) for o in runs]
        lines.append(
            f"| {policy} | {statistics.fmean(counts):.1f} ({min(counts)}–{max(counts)}) | {statistics.fmean(values):.2f} "
            f"({min(values):.2f}–{max(values):.2f}) | {statistics.fmean(o.train_s for o in runs):.1f} | "
            f"{statistics.fmean(o.num_checks for o in runs):.0f} | {statistics.fmean(o.check_s for o in runs):.2f} | "
            f"{statistics.fmean(o.simulated_triggers for o in runs):.1f} | {100 * statistics.fmean(map(_error_of_estimate, runs)):+.2f} |"
        )
    return "\n".join(lines)


def _error_of_estimate(outcome: Outcome) -> float:
    """Return the simulation's estimate minus the run's own mean accuracy, over the years in which the run has one."""
    return outcome.estimated_accuracy - statistics.fmean(value for value in outcome.accuracies if value is not None)


def _write(stream: Stream, outcomes: Sequence[Outcome], table: str, seeds: int, only: Sequence[str]) -> None:
    accuracy = mean_accuracies(outcomes)
    points = {}
    for policy in dict.fromkeys(o.policy for o in outcomes):
        values = [accuracy[policy, o.seed] for o in outcomes if o.policy == policy]
        counts = [len(o.triggers) for o in outcomes if o.policy == policy]
        points[policy] = Point(statistics.fmean(counts), statistics.fmean(values), (max(values) - min(values)) / 2)
    name, command = report_of("triggers", stream.name, seeds, only)
    axes = ("triggers", "mean accuracy of the active model, %")
    (REPORTS / f"{dated(name)}.svg").write_text(scatter(f"Trigger policies on {stream.name}, {seeds} seeds", axes, points))
    (REPORTS / f"{dated(name)}.json").write_text(json.dumps([asdict(o) for o in outcomes]) + "\n")
    changes = "; ".join(f"year {year}: {what}" for year, what in sorted(stream.changes.items()))
    body = (
        f"{stream.years} years of {stream.train_a_year:,} training and {stream.test_a_year:,} test samples. Changes: {changes}. Mean over "
        f"{seeds} seeds of data and training (least–most). The accuracy is that of the currently active model on the test samples of each year "
        f"in which every run has one. The last two columns are those of `modyn simulate` on the run of '{REFERENCE}', without training: its "
        f"triggers, and its estimate less the accuracy of the policy's own run, over all years in which that has a model.\n\n{table}"
        f"\n\n![Accuracy against triggers]({dated(name)}.svg)"
    )
    print(f"report: {write_report(name, command, body)}")


def report_of(kind: str, stream: str, seeds: int, only: Sequence[str]) -> tuple[str, str]:
    """The name of a report, and the command that writes it. Args: only: names of the policies it is about; none: all.

    >>> report_of("triggers", "digits", 3, ["latency cost"])[0]
    'evidence-triggers-digits-latency-cost'
    """
    name = "-".join(["evidence", kind, stream, *(re.sub(r"[^\w.]+", "-", policy) for policy in only)])
    policies = "".join(f' --policy "{policy}"' for policy in only)
    return name, f"python -m benchmark.evidence {kind} --stream {stream} --seeds {seeds}{policies} --report"


def pipeline_of(stream: Stream, trigger: dict[str, Any], datasets: tuple[str, str], seed: int, models: str) -> dict[str, Any]:
    """The pipeline that a policy is part of: fine-tuning on the samples since the last trigger, scores for each year.

    Args: datasets: to train and to test on. models: which are evaluated, `active` or the `matrix` of all.
    """
    train, test = datasets
    evaluated = {"dataset_id": test, **stream.data, "batch_size": 512, "metrics": [{"name": "Accuracy"}]}
    years = {
        "type": "SlicingEvalStrategy",
        "eval_every": YEAR,
        "eval_start_from": FIRST,
        "eval_end_at": FIRST + stream.years * YEAR,
    }
    handler = {"name": "yearly", "execution_time": "after_pipeline", "models": models, "datasets": [test], "strategy": years}
    return {
        "pipeline": {"name": stream.name},
        "model": stream.model,
        "data": {"dataset_id": train, **stream.data},
        "trigger": trigger,
        "selection_strategy": {"name": "NewDataStrategy", "maximum_keys_in_memory": 100_000, "tail_triggers": 0},
        "training": {
            "use_previous_model": True,
            "drop_last_batch": False,
            "shuffle": True,
            "seed": seed,
            "optimization_criterion": {"name": "CrossEntropyLoss"},
            **stream.training,
        },
        "evaluation": {"datasets": [evaluated], "handlers": [handler]},
    }
