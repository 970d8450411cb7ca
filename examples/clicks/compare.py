"""Run all scenarios of this folder on the same clicks, one after the other, and compare them in a table and a page with pictures.

    python -m examples.clicks.compare [--rows 30000] [--only proactive] [--folder clicks-demo]

The program starts the services, and stops them at the end. The error of a day is the error of the model that was in use when the day began. Training
seconds are measured by the trainer and include the training of the initial model.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from examples.clicks.make_data import make_clicks
from modyn.analysis.charts.figure import Figure, dates
from modyn.analysis.page import html_table, page, section
from modyn.client import Client
from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.supervisor.client import RunState

HERE: Final = Path(__file__).parent
SCENARIOS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "A: updates": ("updates", ()),
    "A: updates, statistics of the initial model": ("updates", ("online.statistics=false",)),
    "B: retraining, cold": ("retraining", ()),
    "B: retraining, warm": ("retraining", ("training.use_previous_model=true",)),
    "B: retraining, cold, a pass for statistics first": ("retraining", ("preprocessing.statistics=before_training",)),
    "C: proactive": ("proactive", ()),
    "C: proactive, statistics of the initial model": ("proactive", ("online.statistics=false",)),
    "mixed, by accuracy": ("mixed", ()),
    "mixed, by drift": ("mixed_drift", ()),
}
"""Name of the scenario → name of the pipeline file and values for `--set`."""
INITIAL: Final = {
    "updates": "trigger.num_samples",
    "proactive": "trigger.num_samples",
    "mixed": "trigger.warmup_policy.num_samples",
    "mixed_drift": "trigger.warmup_policy.num_samples",
}
"""Pipeline → option with the number of clicks for the initial model: the clicks of the first six days. Errors count from the seventh day on."""


@dataclass(frozen=True)
class Outcome:
    """The result of a scenario. days: a row for each day, with `start`, `num_samples` and `error`. work: a row for each trigger, with `fired_at` and
    `train_s`, the seconds of all trainings so far."""

    days: pd.DataFrame
    work: pd.DataFrame
    num_versions: int
    num_retrainings: int
    """Number of versions that retrainings made, including the initial model."""

    @property
    def error(self) -> float:
        """Share of wrong predictions over all evaluated days."""
        return float((self.days["error"] * self.days["num_samples"]).sum() / self.days["num_samples"].sum())

    @property
    def train_s(self) -> float:
        """Seconds of all trainings."""
        return float(self.work["train_s"].iloc[-1])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument(
        "--only", action="append", choices=sorted({name for name, _ in SCENARIOS.values()}), help="pipelines; default: all"
    )
    parser.add_argument("--folder", type=Path, default=Path("clicks-demo"), help="where clicks, state and page go")
    options = parser.parse_args(arguments)
    folder: Path = options.folder.absolute()
    print(f"{make_clicks(folder / 'clicks', options.rows):,} clicks in {folder / 'clicks'}", flush=True)
    outcomes = {}
    with Client(SystemConfig(state_dir=folder / "state"), start=True) as client:
        try:
            register(client, folder / "clicks")
            for name, (pipeline, settings) in SCENARIOS.items():
                if not options.only or pipeline in options.only:
                    initial = [f"{INITIAL[pipeline]}={options.rows // 10}"] if pipeline in INITIAL else []
                    outcomes[name] = measured(client, HERE / f"{pipeline}.yaml", [*settings, *initial])
                    print(f"{name}: {described(outcomes[name])}", flush=True)
        finally:
            client.down()
    path = folder / "scenarios.html"
    path.write_text(page("Clicks: scenarios of continuous training", parts(outcomes)))
    print(f"pictures: {path}")


def described(outcome: Outcome) -> str:
    """Return an outcome as one line of text."""
    versions = f"{outcome.num_versions} versions, {outcome.num_retrainings} of them not of steps"
    return f"error {outcome.error:.4f}, {outcome.train_s:.1f} s of training, {versions}"


def register(client: Client, folder: Path) -> None:
    """Register the clicks as a dataset, and wait until storage has indexed all clicks."""
    format_ = {"file_wrapper": "JsonLinesFileWrapper", "file_wrapper_config": {"label_field": "click"}}
    client.register_dataset(DatasetConfig(name="clicks", base_path=folder, timestamp_source="field:time", watch=False, **format_))
    client.ingest("clicks")


def measured(client: Client, pipeline: Path, settings: Sequence[str]) -> Outcome:
    """Run a pipeline and wait until the run ends. Raises SystemExit if the run is not finished."""
    run = client.wait(client.run(pipeline, settings=settings).run_id)
    if run.state is not RunState.FINISHED:
        raise SystemExit(f"{pipeline.name}: run {run.run_id} is {run.state.value}: {run.error}")
    results = client.results(run.run_id)
    days = results.evaluations.dropna(subset="value").sort_values("start")
    work = results.triggers[["fired_at", "train_s"]].copy()
    work["train_s"] = work["train_s"].fillna(0).cumsum()
    versions = results.triggers[results.triggers["model_id"].notna()]
    return Outcome(days.assign(error=1 - days["value"]), work, len(versions), int((~versions["online"]).sum()))


def parts(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return the sections of the page: heading, table and pictures."""
    rows = [[name, f"{o.error:.4f}", f"{o.train_s:.1f}", o.num_versions, o.num_retrainings] for name, o in outcomes.items()]
    errors = {name: (o.days["start"], o.days["error"].rolling(3, min_periods=1).mean()) for name, o in outcomes.items()}
    seconds = {name: (o.work["fired_at"], o.work["train_s"]) for name, o in outcomes.items()}
    return [
        "<h1>Clicks: scenarios of continuous training</h1>",
        html_table(["scenario", "error", "training, s", "versions", "not of steps"], rows),
        section("Error", "Of the model in use at the begin of each day, mean of three days.", lines(errors, "error")),
        section("Training", "Seconds of the trainer so far.", lines(seconds, "seconds")),
    ]


def lines(series: Mapping[str, tuple[pd.Series[Any], pd.Series[Any]]], title: str) -> Figure:
    """Return a figure with one line for each scenario over stream time."""
    traces = [
        {"type": "scatter", "mode": "lines", "name": name, "x": dates(times), "y": values.tolist()}
        for name, (times, values) in series.items()
    ]
    return Figure(traces, {"height": 360, "yaxis": {"title": {"text": title}}, "legend": {"orientation": "v"}})


if __name__ == "__main__":
    main()
