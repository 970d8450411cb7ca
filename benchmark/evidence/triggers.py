"""How good and how costly trigger policies are on streams whose changes are known."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmark.evidence.policies import policies_of
from benchmark.evidence.scatter import Point, scatter
from benchmark.evidence.streams import FIRST, STREAMS, YEAR, Stream
from benchmark.machine import REPORTS, dated, write_report
from modyn.analysis.results import composite_scores, series_cells
from modyn.client import Client
from modyn.config.system import SystemConfig
from modyn.supervisor.client import RunState


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


def run_streams(names: Sequence[str], seeds: int, only: Sequence[str], *, report: bool) -> None:
    """Run all policies on all streams, print a table, and write a report. Args: only: names of policies; none: all."""
    for name in names:
        outcomes = list[Outcome]()
        with (
            tempfile.TemporaryDirectory(prefix="modyn-evidence-") as folder,
            Client(SystemConfig(state_dir=Path(folder) / "state"), start=True) as client,
        ):
            try:
                for seed in range(seeds):
                    outcomes += _of_seed(client, STREAMS[name], Path(folder) / "data", seed, only)
            finally:
                client.down()
        print(table := _table(outcomes), flush=True)
        if report:
            _write(STREAMS[name], outcomes, table, seeds)


def _of_seed(client: Client, stream: Stream, folder: Path, seed: int, only: Sequence[str]) -> list[Outcome]:
    train, test = stream.register(client, folder, seed)
    found = []
    for name, section in policies_of(stream, train).items():
        if only and name not in only:
            continue
        path = folder / "pipeline.yaml"
        path.write_text(json.dumps(pipeline_of(stream, section, train, test, seed)))  # JSON is YAML
        started = time.monotonic()
        run = client.wait(client.run(path).run_id)
        if run.state is not RunState.FINISHED:
            raise SystemExit(f"{stream.name}, {name}, seed {seed}: {run.run_id} is {run.state}: {run.error}")
        found.append(_outcome(client, stream, name, seed, run.run_id, time.monotonic() - started))
        last = found[-1]
        print(f"{stream.name} seed {seed} {name}: {len(last.triggers)} triggers, {last.total_s:.0f} s", flush=True)
    return found


def _outcome(client: Client, stream: Stream, policy: str, seed: int, run_id: str, seconds: float) -> Outcome:
    results = client.results(run_id)
    ((_, cells),) = series_cells(results.evaluations)
    active = composite_scores(cells, results.triggers, "active")
    scored = active.dropna(subset="value")
    values = dict(zip(((scored["start"] - FIRST) // YEAR).tolist(), scored["value"].tolist(), strict=True))
    checks = client.supervisor.checks(run_id)
    records = client.supervisor.triggers(run_id)
    return Outcome(
        stream=stream.name,
        policy=policy,
        seed=seed,
        triggers=[(record.fired_at_timestamp - FIRST) // YEAR for record in records],
        accuracies=[values.get(year) for year in range(stream.years)],
        train_s=sum(record.seconds.get("train", 0.0) for record in records),
        check_s=sum(check.seconds for check in checks),
        num_checks=len(checks),
        total_s=seconds,
    )


def mean_accuracies(outcomes: Sequence[Outcome]) -> dict[tuple[str, int], float]:
    """(policy, seed) → mean accuracy of the active model over the years in which each of all runs has one (SIGMOD'25, section 7.2)."""
    common = [year for year in range(len(outcomes[0].accuracies)) if all(o.accuracies[year] is not None for o in outcomes)]
    return {(o.policy, o.seed): statistics.fmean(o.accuracies[year] or 0.0 for year in common) for o in outcomes}


def _table(outcomes: Sequence[Outcome]) -> str:
    accuracy = mean_accuracies(outcomes)
    lines = [
        "| policy | triggers | accuracy of the active model, % | training, s | checks | checks, s |",
        "|---|---|---|---|---|---|",
    ]
    for policy in dict.fromkeys(o.policy for o in outcomes):
        runs = [o for o in outcomes if o.policy == policy]
        values = [100 * accuracy[policy, o.seed] for o in runs]
        counts = [len(o.triggers) for o in runs]
        lines.append(
            f"| {policy} | {statistics.fmean(counts):.1f} ({min(counts)}–{max(counts)}) | {statistics.fmean(values):.2f} "
            f"({min(values):.2f}–{max(values):.2f}) | {statistics.fmean(o.train_s for o in runs):.1f} | "
            f"{statistics.fmean(o.num_checks for o in runs):.0f} | {statistics.fmean(o.check_s for o in runs):.2f} |"
        )
    return "\n".join(lines)


def _write(stream: Stream, outcomes: Sequence[Outcome], table: str, seeds: int) -> None:
    accuracy = mean_accuracies(outcomes)
    points = {}
    for policy in dict.fromkeys(o.policy for o in outcomes):
        values = [accuracy[policy, o.seed] for o in outcomes if o.policy == policy]
        counts = [len(o.triggers) for o in outcomes if o.policy == policy]
        points[policy] = Point(statistics.fmean(counts), statistics.fmean(values), (max(values) - min(values)) / 2)
    name = f"evidence-triggers-{stream.name}"
    axes = ("triggers", "mean accuracy of the active model, %")
    (REPORTS / f"{dated(name)}.svg").write_text(scatter(f"Trigger policies on {stream.name}, {seeds} seeds", axes, points))
    (REPORTS / f"{dated(name)}.json").write_text(json.dumps([asdict(o) for o in outcomes]) + "\n")
    changes = "; ".join(f"year {year}: {what}" for year, what in sorted(stream.changes.items()))
    body = (
        f"{stream.years} years of {stream.train_a_year:,} training and {stream.test_a_year:,} test samples. Changes: {changes}. Mean over "
        f"{seeds} seeds of data and training (least–most). The accuracy is that of the currently active model on the test samples of each year "
        f"in which every run has one.\n\n{table}\n\n![Accuracy against triggers]({dated(name)}.svg)"
    )
    command = f"python -m benchmark.evidence triggers --stream {stream.name} --seeds {seeds} --report"
    print(f"report: {write_report(name, command, body)}")


def pipeline_of(stream: Stream, trigger: dict[str, Any], train: str, test: str, seed: int) -> dict[str, Any]:
    """The pipeline that a policy is part of: fine-tuning on the samples since the last trigger, a score of the active model for each year."""
    evaluated = {"dataset_id": test, **stream.data, "batch_size": 512, "metrics": [{"name": "Accuracy"}]}
    years = {
        "type": "SlicingEvalStrategy",
        "eval_every": YEAR,
        "eval_start_from": FIRST,
        "eval_end_at": FIRST + stream.years * YEAR,
    }
    handler = {"name": "yearly", "execution_time": "after_pipeline", "models": "active", "datasets": [test], "strategy": years}
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
