"""What proactive training costs and what it comes to, against periodic retraining and online updates alone (the paper's scenarios).

The prequential error of all: each sample is tested by the model that would have answered it, before anything was trained on it. For periodic
retraining that is the evaluation of the active model between two triggers. Training seconds are those of the trainer, without the initial model.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmark.evidence.proactive_streams import STREAMS, OnlineStream
from benchmark.line_chart import line_chart
from benchmark.machine import REPORTS, dated, write_report
from modyn.client import Client
from modyn.config.system import SystemConfig
from modyn.supervisor.client import RunState

NUM_SAMPLES: Final = 1_000_000
INITIAL, RETRAININGS, VERSIONS = 0.1, 18, 90
"""The share of the stream of the initial model, the retrainings of the rest, and the versions of those that learn online."""
BATCH: Final = 512
INITIAL_EPOCHS: Final = 2

WHOLE_HISTORY: Final = {"name": "NewDataStrategy", "maximum_keys_in_memory": 100_000}


@dataclass(frozen=True)
class Outcome:
    """One run. curve: (samples tested, cumulated error), and seconds: of training, both behind the initial model."""

    stream: str
    scenario: str
    seed: int
    num_samples: int
    error: float
    train_s: float
    batches_s: float
    total_s: float
    num_triggers: int
    num_trained: int
    curve: list[tuple[int, float]]


def scenarios(num_samples: int) -> dict[str, dict[str, Any]]:
    """The sections `trigger`, `online` and `training` of each, by name."""
    initial = round(num_samples * INITIAL)
    every = (num_samples - initial) // RETRAININGS
    version = {"id": "DataAmountTrigger", "num_samples": (num_samples - initial) // VERSIONS}
    once, again = {"id": "InitialTrigger", "num_samples": initial}, {"id": "DataAmountTrigger", "num_samples": every}
    updates = {"trigger": version, "step_samples": BATCH // 8}
    steps = {"trigger": version, "step_samples": BATCH // 2, "history_samples": BATCH // 2}
    return {
        "A: online updates": {"trigger": once, "online": updates},
        "B: retraining, cold": {"trigger": again, "training": {"use_previous_model": False}},
        "B: retraining, warm": {"trigger": again, "training": {"use_previous_model": True}},
        "C: proactive, uniform": {"trigger": once, "online": {**steps, "history": {"strategy": "Uniform"}}},
        "C: proactive, time-weighted": {
            "trigger": once,
            "online": {**steps, "history": {"strategy": "TimeWeighted", "half_life": "5d"}},
        },
    }


def pipeline_of(stream: OnlineStream, dataset: str, seed: int, sections: dict[str, Any]) -> dict[str, Any]:
    """The pipeline of a scenario."""
    optimizer = {"algorithm": "Adagrad", "param_groups": [{"module": "model", "config": {"lr": stream.learning_rate}}]}
    whole: dict[str, Any] = {
        "pipeline": {"name": stream.name},
        "model": stream.model,
        "data": {"dataset_id": dataset, **stream.data},
        "trigger": sections["trigger"],
        "selection_strategy": WHOLE_HISTORY,
        "training": {
            "use_previous_model": False,
            "drop_last_batch": False,
            "shuffle": True,
            "seed": seed,
            "batch_size": BATCH,
            "epochs_per_trigger": INITIAL_EPOCHS,
            "optimizers": [{"name": "default", **optimizer}],
            "optimization_criterion": {"name": stream.criterion},
            **sections.get("training", {}),
        },
    }
    if "online" in sections:
        return {**whole, "online": sections["online"]}
    between = {"type": "BetweenTwoTriggersEvalStrategy"}
    handler = {
        "name": "between",
        "execution_time": "after_pipeline",
        "models": "active",
        "datasets": [dataset],
        "strategy": between,
    }
    evaluated = {"dataset_id": dataset, **stream.data, "batch_size": 4096, "metrics": [stream.metric]}
    return {**whole, "evaluation": {"datasets": [evaluated], "handlers": [handler]}}


def run_proactive(
    names: Sequence[str],
    seeds: int,
    only: Sequence[str],
    *,
    report: bool,
    kept: Path | None = None,
    num_samples: int = NUM_SAMPLES,
    at_once: int = 1,
) -> None:
    """Run all scenarios on the streams, print a table, and write a report.

    Args: only: names of scenarios; none: all. kept: folder with the outcomes of runs that are done, to which others are added; None: there are none.
    at_once: seeds that run side by side, each on a stack of its own.
    """
    for name in names:
        with tempfile.TemporaryDirectory(prefix="modyn-evidence-") as folder, ProcessPoolExecutor(at_once) as pool:
            runs = [pool.submit(_outcomes, name, seed, tuple(only), num_samples, kept or Path(folder)) for seed in range(seeds)]
            outcomes = [outcome for run in runs for outcome in run.result()]
        print(table := table_of(outcomes), flush=True)
        if report:
            _write(name, outcomes, table, seeds, num_samples, at_once)


def _outcomes(name: str, seed: int, only: Sequence[str], num_samples: int, kept: Path) -> list[Outcome]:
    """The outcomes of all scenarios of a stream and seed, on a stack of their own."""
    stream, file = STREAMS[name], kept / f"{name}-{seed}.jsonl"
    kept.mkdir(parents=True, exist_ok=True)
    known = [Outcome(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    found = {one.scenario: one for one in known if one.num_samples == num_samples}
    wanted = {name: sections for name, sections in scenarios(num_samples).items() if not only or name in only}
    if missing := {name: sections for name, sections in wanted.items() if name not in found}:
        with (
            tempfile.TemporaryDirectory(prefix="modyn-evidence-") as made,
            file.open("a") as kept_file,
            Client(SystemConfig(state_dir=Path(made) / "state"), start=True) as client,
        ):
            try:
                dataset = stream.register(client, Path(made) / "data", seed, num_samples)
                for scenario, sections in missing.items():
                    path = Path(made) / "pipeline.yaml"
                    path.write_text(json.dumps(pipeline_of(stream, dataset, seed, sections)))  # JSON is YAML
                    found[scenario] = _run(client, stream, path, scenario, seed, num_samples)
                    kept_file.write(json.dumps(asdict(found[scenario])) + "\n")
                    kept_file.flush()
            finally:
                client.down()
    return [found[scenario] for scenario in wanted]


def _run(client: Client, stream: OnlineStream, path: Path, name: str, seed: int, num_samples: int) -> Outcome:
    started = time.monotonic()
    run = client.wait(client.run(path, final_trigger=True).run_id)
    total_s = time.monotonic() - started
    if run.state is not RunState.FINISHED:
        raise SystemExit(f"{stream.name}, {name}, seed {seed}: {run.run_id} is {run.state}: {run.error}")
    records = client.supervisor.triggers(run.run_id)
    curve = _curve(client, stream, run.run_id)
    outcome = Outcome(
        stream=stream.name,
        scenario=name,
        seed=seed,
        num_samples=num_samples,
        error=curve[-1][1],
        train_s=sum(record.seconds.get("train", 0.0) for record in records[1:]),
        batches_s=sum(record.batches_s or 0.0 for record in records[1:]),
        total_s=total_s,
        num_triggers=len(records),
        num_trained=sum(record.num_trained or 0 for record in records[1:]),
        curve=curve,
    )
    print(
        f"{stream.name} seed {seed} {name}: error {outcome.error:.4f}, training {outcome.train_s:.1f} s, {total_s:.0f} s in all",
        flush=True,
    )
    return outcome


def _curve(client: Client, stream: OnlineStream, run_id: str) -> list[tuple[int, float]]:
    tested = client.prequential(run_id)
    if len(tested):
        measure = "cumulated_error" if tested["cumulated_error"].notna().any() else "cumulated_loss"
        rows = np.unique(np.linspace(0, len(tested) - 1, 200).astype(int))
        return [(int(tested["tested"].iloc[row]), float(tested[measure].iloc[row])) for row in rows]
    cells = client.results(run_id).evaluations.dropna(subset="value").sort_values("start")
    counts = cells["num_samples"].cumsum()
    sums = (cells["value"].map(stream.error) * cells["num_samples"]).cumsum()
    return [(int(count), float(error)) for count, error in zip(counts, sums / counts, strict=True)]


def table_of(outcomes: Sequence[Outcome]) -> str:
    base = {o.seed: o for o in outcomes if o.scenario.startswith("C")}
    lines = [
        "| scenario | cumulated error | training, s | of that with batches, s | samples trained on | training time, C uniform = 1 |",
        "|---|---|---|---|---|---|",
    ]
    uniform = {o.seed: o.train_s for o in outcomes if o.scenario == "C: proactive, uniform"} or {
        s: o.train_s for s, o in base.items()
    }
    for scenario in dict.fromkeys(o.scenario for o in outcomes):
        runs = [o for o in outcomes if o.scenario == scenario]
        errors = [o.error for o in runs]
        ratios = [o.train_s / uniform[o.seed] for o in runs if o.seed in uniform]
        lines.append(
            f"| {scenario} | {statistics.median(errors):.4f} ({min(errors):.4f}–{max(errors):.4f}) | "
            f"{statistics.median(o.train_s for o in runs):.1f} | {statistics.median(o.batches_s for o in runs):.1f} | "
            f"{statistics.median(o.num_trained for o in runs):,.0f} | {statistics.median(ratios) if ratios else float('nan'):.2f} |"
        )
    return "\n".join(lines)


def _write(stream: str, outcomes: Sequence[Outcome], table: str, seeds: int, num_samples: int, at_once: int) -> None:
    name = f"evidence-proactive-{stream}"
    command = f"python -m benchmark.evidence proactive --stream {stream} --seeds {seeds} --samples {num_samples} --report"
    command += f" --at-once {at_once}" if at_once > 1 else ""
    curves = {o.scenario: o.curve for o in outcomes if o.seed == 0}
    (REPORTS / f"{dated(name)}.svg").write_text(
        line_chart(f"Cumulated prequential error on {stream}, seed 0", ("samples tested", "error"), curves)
    )
    (REPORTS / f"{dated(name)}.json").write_text(json.dumps([asdict(o) for o in outcomes]) + "\n")
    initial = round(num_samples * INITIAL)
    body = (
        f"{num_samples:,} samples, of which the first {initial:,} train the initial model ({INITIAL_EPOCHS} epochs). Then: A, steps on "
        f"{BATCH // 8} new samples each; B, {RETRAININGS} retrainings on all samples so far, {INITIAL_EPOCHS} epochs; C, steps on {BATCH // 2} "
        f"new and {BATCH // 2} drawn samples. A and C store {VERSIONS} versions. Median over {seeds} seeds of data and training "
        f"(least–most).\n\n{table}\n\n"
        f"![Cumulated prequential error]({dated(name)}.svg)"
    )
    print(f"report: {write_report(name, command, body)}")
