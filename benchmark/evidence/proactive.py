"""Cost and error of proactive training, compared with periodic retraining and with online updates alone (the paper's scenarios).

All scenarios begin with the same initial model, whose cost is spared, and all are tested on exactly the samples after it, each before anything was
trained on it. By which model differs:

- B (periodic retraining): by the version that was trained on all samples up to the last retraining, as a server has it; that a retraining takes time
  delays nothing. It is the evaluation of the active model between two retrainings. None stands at the end of the stream, where nothing is tested.
- A and C (steps): by the weights between the steps, with all steps before that of the sample, since the test is the pass of the step
  itself. A server has these weights after the last of these steps, as the next version. So the errors of A and C are a little lower than those of the
  versions that would have been served.

Training seconds are those of the trainer: the start of each training, payloads, tests, steps and storing the version; selection (history sampling,
trigger sets) is a column of its own.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmark.evidence.proactive_streams import PART_S, PARTS, STREAMS, OnlineStream, position_of, timestamp_of
from benchmark.line_chart import Line, line_chart
from benchmark.machine import REPORTS, dated, write_report
from modyn.client import Client
from modyn.config.system import SystemConfig
from modyn.supervisor.client import RunState
from modyn.supervisor.journal.records import TriggerRecord

NUM_SAMPLES: Final = 1_000_000
INITIAL_PARTS, PARTS_BETWEEN, VERSIONS = 10, 5, 90
"""The parts of the stream of the initial model, those between two retrainings, and the versions of those that learn online."""
RETRAININGS: Final = (PARTS - INITIAL_PARTS) // PARTS_BETWEEN - 1
"""Number of retrainings after the initial model; each is followed by tests, so there is none at the end of the stream."""
BATCH: Final = 512
INITIAL_EPOCHS: Final = 2

WHOLE_HISTORY: Final = {"name": "NewDataStrategy", "maximum_keys_in_memory": 100_000}


@dataclass(frozen=True)
class Outcome:
    """One run; all but `total_s` is about the samples after the initial model.

    num_tested: samples that `error` is over. num_trainings: retrainings, or step batches. num_trained: samples that these were trained on, each
    epoch. curve: (samples tested, cumulated error). cost: (cumulated seconds of training, cumulated error until then), after each training.
    """

    stream: str
    scenario: str
    seed: int
    num_samples: int
    num_tested: int
    error: float
    select_s: float
    train_s: float
    batches_s: float
    total_s: float
    num_trainings: int
    num_trained: int
    curve: list[tuple[int, float]]
    cost: list[tuple[float, float]]


def scenarios(num_samples: int) -> dict[str, dict[str, Any]]:
    """The sections `trigger`, `online` and `training` of each, by name."""
    initial = position_of(INITIAL_PARTS, num_samples)
    version = {"id": "DataAmountTrigger", "num_samples": (num_samples - initial) // VERSIONS}
    once = {"id": "InitialTrigger", "num_samples": initial}
    # Periods end at the initial model, and each PARTS_BETWEEN after it; the last one ends with the stream, and so does not fire.
    begin = timestamp_of(INITIAL_PARTS - PARTS_BETWEEN)
    again = {"id": "TimeTrigger", "every": PARTS_BETWEEN * PART_S, "start_timestamp": begin}
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
    if stream.preprocessing is not None:
        whole["preprocessing"] = stream.preprocessing
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
    at_once: runs that go side by side, each on a stack of its own: those of a seed one after the other, unless there are fewer seeds.
    Raises: SystemExit: a scenario is unknown.
    """
    known = list(scenarios(num_samples))
    if unknown := [scenario for scenario in only if scenario not in known]:
        raise SystemExit(f"there is no scenario {unknown[0]!r}; known are {', '.join(map(repr, known))}")
    chosen = [scenario for scenario in known if not only or scenario in only]
    for name in names:
        with tempfile.TemporaryDirectory(prefix="modyn-evidence-") as folder, ProcessPoolExecutor(at_once) as pool:
            runs = [
                pool.submit(_outcomes, name, *part, num_samples, kept or Path(folder))
                for part in parts_of(seeds, chosen, at_once)
            ]
            outcomes = [outcome for run in runs for outcome in run.result()]
        check_tested(outcomes, num_samples)
        print(table_of(outcomes), flush=True)
        if report:
            print(f"report: {write_scenarios(name, outcomes, seeds, num_samples, at_once)}")


def parts_of(seeds: int, chosen: Sequence[str], at_once: int) -> list[tuple[int, tuple[str, ...]]]:
    """Seeds with the scenarios that run one after the other on one stack: all of them, or one where more go side by side than there are seeds."""
    if at_once <= seeds:
        return [(seed, tuple(chosen)) for seed in range(seeds)]
    return [(seed, (scenario,)) for seed in range(seeds) for scenario in chosen]


def check_tested(outcomes: Sequence[Outcome], num_samples: int) -> None:
    """Raise SystemExit if a scenario was tested on other samples than those after the initial model."""
    expected = num_samples - position_of(INITIAL_PARTS, num_samples)
    for one in outcomes:
        if one.num_tested != expected:
            raise SystemExit(
                f"{one.stream}, {one.scenario}, seed {one.seed}: {one.num_tested:,} samples were tested, not {expected:,}"
            )


def _outcomes(name: str, seed: int, chosen: Sequence[str], num_samples: int, kept: Path) -> list[Outcome]:
    """The outcomes of some scenarios of a stream and seed, on a stack of their own."""
    stream, file = STREAMS[name], kept / f"{name}-{seed}.jsonl"
    kept.mkdir(parents=True, exist_ok=True)
    found = {one.scenario: one for one in known_outcomes(file) if one.num_samples == num_samples}
    missing = {name: sections for name, sections in scenarios(num_samples).items() if name in chosen and name not in found}
    if missing:
        with (
            tempfile.TemporaryDirectory(prefix="modyn-evidence-") as made,
            # Without a buffer, so that a line is one write: other processes may append to this file too.
            file.open("ab", buffering=0) as kept_file,
            Client(SystemConfig(state_dir=Path(made) / "state"), start=True) as client,
        ):
            try:
                dataset = stream.register(client, Path(made) / "data", seed, num_samples)
                for scenario, sections in missing.items():
                    path = Path(made) / "pipeline.yaml"
                    path.write_text(json.dumps(pipeline_of(stream, dataset, seed, sections)))  # JSON is YAML
                    found[scenario] = _run(client, stream, path, scenario, seed, num_samples)
                    kept_file.write((json.dumps(asdict(found[scenario])) + "\n").encode())
            finally:
                client.down()
    return [found[scenario] for scenario in chosen]


def known_outcomes(file: Path) -> list[Outcome]:
    """The outcomes that are kept in a file. Those of an older version of this program, with other fields, are none: they measured something else."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    names = {field.name for field in fields(Outcome)}
    return [Outcome(**line) for line in lines if line.keys() == names]


def _run(client: Client, stream: OnlineStream, path: Path, name: str, seed: int, num_samples: int) -> Outcome:
    started, is_online = time.monotonic(), not name.startswith("B")
    # Steps over the last samples of the stream test them. A retraining there would test nothing.
    run = client.wait(client.run(path, final_trigger=is_online).run_id)
    total_s = time.monotonic() - started
    if run.state is not RunState.FINISHED:
        raise SystemExit(f"{stream.name}, {name}, seed {seed}: {run.run_id} is {run.state}: {run.error}")
    _, *records = client.supervisor.triggers(run.run_id)
    tested = _tested_steps(client, run.run_id) if is_online else _tested_step_batches(client, stream, run.run_id)
    rows = np.unique(np.linspace(0, len(tested) - 1, 200).astype(int))
    outcome = Outcome(
        stream=stream.name,
        scenario=name,
        seed=seed,
        num_samples=num_samples,
        num_tested=tested[-1].num,
        error=tested[-1].error,
        select_s=sum(record.seconds.get("select", 0.0) for record in records),
        train_s=sum(_train_s(record) for record in records),
        batches_s=sum(record.batches_s or 0.0 for record in records),
        total_s=total_s,
        num_trainings=len(records),
        num_trained=sum(record.num_trained or 0 for record in records),
        curve=[(tested[row].num, tested[row].error) for row in rows],
        cost=cost_of(records, tested),
    )
    print(
        f"{stream.name} seed {seed} {name}: error {outcome.error:.4f}, training {outcome.train_s:.1f} s, {total_s:.0f} s in all",
        flush=True,
    )
    return outcome


@dataclass(frozen=True)
class ErrorSoFar:
    """How far the tests were. num: samples so far, error: the mean over them, trigger_id: of the training that comes after them, or that they are
    a part of; None: none comes."""

    num: int
    error: float
    trigger_id: int | None


def _tested_steps(client: Client, run_id: str) -> list[ErrorSoFar]:
    table = client.prequential(run_id)
    measure = "cumulated_error" if table["cumulated_error"].notna().any() else "cumulated_loss"
    columns = zip(table["tested"], table[measure], table["trigger_id"], strict=True)
    return [ErrorSoFar(int(num), float(error), int(trigger_id)) for num, error, trigger_id in columns]


def _tested_step_batches(client: Client, stream: OnlineStream, run_id: str) -> list[ErrorSoFar]:
    cells = client.results(run_id).evaluations.dropna(subset="value").sort_values("start")
    counts = cells["num_samples"].cumsum()
    errors = (cells["value"].map(stream.error) * cells["num_samples"]).cumsum() / counts
    next_cells = [*range(1, len(cells)), None]
    return [ErrorSoFar(int(num), float(error), after) for num, error, after in zip(counts, errors, next_cells, strict=True)]


def cost_of(records: Sequence[TriggerRecord], tested: Sequence[ErrorSoFar]) -> list[tuple[float, float]]:
    """Return (cumulated seconds of training, cumulated error) after each training, over all tests until then; at the end over all."""
    errors = {found.trigger_id: found.error for found in tested}
    seconds = np.cumsum([_train_s(record) for record in records]).tolist()
    points = [(second, errors[record.trigger_id]) for second, record in zip(seconds, records, strict=True)]
    return [*points, (seconds[-1], tested[-1].error)]


def _train_s(record: TriggerRecord) -> float:
    return record.seconds.get("train", 0.0)


def table_of(outcomes: Sequence[Outcome]) -> str:
    base = {o.seed: o for o in outcomes if o.scenario.startswith("C")}
    lines = [
        "| scenario | cumulated error | trainings | samples trained on | training, s | of that with batches, s | selection in addition, s | "
        "training time, C uniform = 1 |",
        "|---|---|---|---|---|---|---|---|",
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
            f"{statistics.median(o.num_trainings for o in runs):g} | {statistics.median(o.num_trained for o in runs):,.0f} | "
            f"{statistics.median(o.train_s for o in runs):.1f} | {statistics.median(o.batches_s for o in runs):.1f} | "
            f"{statistics.median(o.select_s for o in runs):.1f} | {statistics.median(ratios) if ratios else float('nan'):.2f} |"
        )
    return "\n".join(lines)


def write_scenarios(
    stream: str, outcomes: Sequence[Outcome], seeds: int, num_samples: int, at_once: int = 1, folder: Path = REPORTS
) -> Path:
    """Write the report of a stream with its pictures and outcomes, and return where it is."""
    name = f"evidence-proactive-{stream}"
    command = f"python -m benchmark.evidence proactive --stream {stream} --seeds {seeds} --samples {num_samples} --report"
    command += f" --at-once {at_once}" if at_once > 1 else ""
    first = [o for o in outcomes if o.seed == 0]
    pictures: dict[str, tuple[str, Mapping[str, Line]]] = {
        "": ("samples tested", {o.scenario: o.curve for o in first}),
        "-cost": ("seconds of training so far", {o.scenario: o.cost for o in first}),
    }
    for suffix, (axis, lines) in pictures.items():
        picture = line_chart(f"Cumulated prequential error on {stream}, seed 0", (axis, "error"), lines)
        (folder / f"{dated(name)}{suffix}.svg").write_text(picture)
    (folder / f"{dated(name)}.json").write_text(json.dumps([asdict(o) for o in outcomes]) + "\n")
    body = (
        f"{_explained(num_samples)} Median over {seeds} seeds of data and training (least–most).\n\n{table_of(outcomes)}\n\n"
        f"![Cumulated prequential error over samples]({dated(name)}.svg)\n\n"
        f"![Cumulated prequential error over seconds of training]({dated(name)}-cost.svg)"
    )
    return write_report(name, command, body, folder)


def _explained(num_samples: int) -> str:
    initial = position_of(INITIAL_PARTS, num_samples)
    return (
        f"{num_samples:,} samples, of which the first {initial:,} train the initial model of all scenarios ({INITIAL_EPOCHS} epochs; it is "
        f"counted nowhere below). Each scenario is tested on the other {num_samples - initial:,}. A: steps on {BATCH // 8} new samples each. "
        f"B: {RETRAININGS} retrainings on all samples so far, {INITIAL_EPOCHS} epochs, each of which is followed by tests. C: steps on "
        f"{BATCH // 2} new and {BATCH // 2} drawn samples. A and C store {VERSIONS} versions, the last one at the end of the stream. B is "
        "tested by the version that a server has, A and C by the weights within a step batch (`benchmark/evidence/proactive.py`). "
        "Trainings: retrainings, or step batches. Training: seconds of the trainer, with start, payloads, tests and storing; selection: "
        "history sampling and trigger sets."
    )
