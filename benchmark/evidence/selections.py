"""Accuracy of models that were trained on a share of the samples, chosen by selection policies, on streams whose changes are known."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from benchmark.evidence.scatter import Point, scatter
from benchmark.evidence.streams import FIRST, SELECTION_STREAMS, YEAR, Stream
from benchmark.evidence.triggers import pipeline_of, report_of
from benchmark.machine import REPORTS, dated, write_report
from modyn.analysis.results import composite_scores, series_cells
from modyn.client import Client
from modyn.config.system import SystemConfig
from modyn.supervisor.client import RunState

FULL: Final = "full data"
RATIOS: Final = {"50 %": (1, 2), "25 %": (1, 4), "12.5 %": (1, 8)}
"""Name → the share of the samples as (ratio, ratio_max)."""
PARTS: Final = {"before": range(3), "in": range(3, 6), "after": range(6, 9)}
"""Years before, in and after the shift of a stream that has one."""


@dataclass(frozen=True)
class Outcome:
    """One run. accuracies: by year, of the model that was trained on it, None without one. trained: samples, all epochs."""

    stream: str
    policy: str
    ratio: str
    seed: int
    accuracies: list[float | None]
    trained: int
    train_s: float


def policies() -> dict[str, dict[str, Any]]:
    """Name → section `downsampling_config`, or `presampling_config` where its strategy is one of these, without the ratio."""
    gradmatch = {"strategy": "GradMatch", "sample_then_batch": True, "period": 5}
    return {
        "Random": {"presampling": {"strategy": "Random"}},
        "class-balanced": {"presampling": {"strategy": "LabelBalanced"}},
        "Loss": {"strategy": "Loss"},
        "DLIS": {"strategy": "GradNorm"},
        "Loss before batches": {"strategy": "Loss", "sample_then_batch": True},
        "Loss before batches, no uniform share": {"strategy": "Loss", "sample_then_batch": True, "uniform_share": 0},
        "DLIS before batches": {"strategy": "GradNorm", "sample_then_batch": True},
        "margin": {"strategy": "Uncertainty", "score_metric": "Margin"},
        "entropy": {"strategy": "Uncertainty", "score_metric": "Entropy"},
        "RS2": {"strategy": "RS2", "with_replacement": False, "sample_then_batch": True},
        "RHO-loss": {"strategy": "RHOLoss", "holdout_set_strategy": "Simple", "holdout_set_ratio": 20},
        "CRAIG": {"strategy": "Craig", "sample_then_batch": True, "period": 5},
        "GradMatch": gradmatch,
        "GradMatch per class by outputs": {**gradmatch, "full_grad_approximation": "LastLayer"},
        "GradMatch of all classes at once": {**gradmatch, "balance": False},
        "GradMatch by outputs": {**gradmatch, "full_grad_approximation": "LastLayer", "balance": False},
    }


def selection_of(policy: str, ratio: str) -> dict[str, Any]:
    """The section `selection_strategy` of a policy that keeps a share of the samples since the last trigger."""
    shared = {"name": "CoresetStrategy", "maximum_keys_in_memory": 100_000, "tail_triggers": 0}
    if policy == FULL:
        return shared
    options = policies()[policy]
    share = dict(zip(("ratio", "ratio_max"), RATIOS[ratio], strict=True))
    if "presampling" in options:
        return {**shared, "presampling_config": {**options["presampling"], **share}}
    return {**shared, "downsampling_config": {**options, **share}}


def run_selections(names: Sequence[str], seeds: int, only: Sequence[str], *, report: bool, kept: Path | None = None) -> None:
    """Run all policies with all shares on all streams, print a table, and write a report.

    Args: only: names of policies; none: all. kept: folder with the outcomes of runs that are done; None: there are none.
    """
    shares = [(FULL, "100 %"), *((policy, ratio) for policy in policies() if not only or policy in only for ratio in RATIOS)]
    for name in names:
        with tempfile.TemporaryDirectory(prefix="modyn-evidence-") as folder:
            outcomes = _outcomes(SELECTION_STREAMS[name], seeds, shares, Path(folder), (kept or Path(folder)) / f"{name}.jsonl")
        print(table := table_of(SELECTION_STREAMS[name], outcomes), flush=True)
        if report:
            _write(SELECTION_STREAMS[name], outcomes, table, seeds, only)


def _outcomes(stream: Stream, seeds: int, shares: Sequence[tuple[str, str]], folder: Path, kept: Path) -> list[Outcome]:
    """The outcomes of all runs: those in the file `kept`, and of the others, which are appended to it. Args: folder: for data and state."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    known = [Outcome(**json.loads(line)) for line in kept.read_text().splitlines()] if kept.exists() else []
    outcomes = {(one.seed, one.policy, one.ratio): one for one in known}
    wanted = [(seed, *share) for seed in range(seeds) for share in shares]
    with kept.open("a") as file, Client(SystemConfig(state_dir=folder / "state"), start=True) as client:
        try:
            for seed, missing in groupby((run for run in wanted if run not in outcomes), key=itemgetter(0)):
                datasets = stream.register(client, folder / "data", seed)
                for _, policy, ratio in missing:
                    outcome = _run(client, stream, folder, datasets, seed, policy, ratio)
                    outcomes[seed, policy, ratio] = outcome
                    file.write(json.dumps(asdict(outcome)) + "\n")
                    file.flush()
        finally:
            client.down()
    return [outcomes[run] for run in wanted]


def _run(client: Client, stream: Stream, folder: Path, datasets: tuple[str, str], seed: int, policy: str, ratio: str) -> Outcome:
    section = pipeline_of(stream, {"id": "TimeTrigger", "every": YEAR}, datasets, seed, "matrix")
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps({**section, "selection_strategy": selection_of(policy, ratio)}))  # JSON is YAML
    started = time.monotonic()
    run = client.wait(client.run(path).run_id)
    if run.state is not RunState.FINISHED:
        raise SystemExit(f"{stream.name}, {policy} {ratio}, seed {seed}: {run.run_id} is {run.state}: {run.error}")
    results = client.results(run.run_id)
    ((_, cells),) = series_cells(results.evaluations)
    scored = composite_scores(cells, results.triggers, "trained").dropna(subset="value")
    values = dict(zip(((scored["start"] - FIRST) // YEAR).tolist(), scored["value"].tolist(), strict=True))
    records = client.supervisor.triggers(run.run_id)
    print(f"{stream.name} seed {seed} {policy} {ratio}: {time.monotonic() - started:.0f} s", flush=True)
    return Outcome(
        stream.name,
        policy,
        ratio,
        seed,
        [values.get(year) for year in range(stream.years)],
        sum(record.num_trained or 0 for record in records),
        sum(record.seconds.get("train", 0.0) for record in records),
    )


def accuracy_in(outcome: Outcome, years: range) -> float:
    """Mean accuracy over years, in percent; those without a model are left out."""
    known = [value for year in years if (value := outcome.accuracies[year]) is not None]
    return 100 * statistics.fmean(known)


def table_of(stream: Stream, outcomes: Sequence[Outcome]) -> str:
    """The outcomes by policy and share; also before, in and after the shift where something changes after the first year."""
    parts = PARTS if any(stream.changes) else {}
    accuracies = [f"{name}, %" for name in (*parts, "all")]
    lines = [f"| policy | share | {' | '.join(accuracies)} | samples trained | training, s |"]
    lines.append("|---|---|" + "---|" * (len(accuracies) + 2))
    for policy, ratio in dict.fromkeys((o.policy, o.ratio) for o in outcomes):
        runs = [o for o in outcomes if (o.policy, o.ratio) == (policy, ratio)]
        spreads = [_spread([accuracy_in(o, years) for o in runs]) for years in (*parts.values(), range(len(runs[0].accuracies)))]
        trained = statistics.fmean(o.trained for o in runs)
        seconds = statistics.median(o.train_s for o in runs)
        lines.append(f"| {policy} | {ratio} | {' | '.join(spreads)} | {trained:,.0f} | {seconds:.1f} |")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def _write(stream: Stream, outcomes: Sequence[Outcome], table: str, seeds: int, only: Sequence[str]) -> None:
    points = {}
    for policy, ratio in dict.fromkeys((o.policy, o.ratio) for o in outcomes):
        runs = [o for o in outcomes if (o.policy, o.ratio) == (policy, ratio)]
        values = [accuracy_in(o, range(len(o.accuracies))) for o in runs]
        trained = statistics.fmean(o.trained for o in runs)
        points[f"{policy} {ratio}"] = Point(trained, statistics.fmean(values), (max(values) - min(values)) / 2)
    name, command = report_of("selection", stream.name, seeds, only)
    axes = ("samples trained on, all epochs", "mean accuracy, %")
    (REPORTS / f"{dated(name)}.svg").write_text(scatter(f"Selection policies on {stream.name}, {seeds} seeds", axes, points))
    (REPORTS / f"{dated(name)}.json").write_text(json.dumps([asdict(o) for o in outcomes]) + "\n")
    changes = "; ".join(f"year {year}: {what}" for year, what in sorted(stream.changes.items()))
    body = (
        f"{stream.years} years of {stream.train_a_year:,} training and {stream.test_a_year:,} test samples, a training a year on its samples, "
        f"from the model before. Changes: {changes}. Mean over {seeds} seeds of data and training (least–most). The accuracy is that of the "
        f"currently trained model on the test samples of each year.\n\n{table}\n\n![Accuracy against samples]({dated(name)}.svg)"
    )
    print(f"report: {write_report(name, command, body)}")
