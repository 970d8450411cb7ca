"""`modyn simulate`: simulate many trigger policies on one stream, without training."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modyn.atomic_write import make_folder
from modyn.cli.context import Json, connect, say
from modyn.cli.views.output import print_json, print_table

_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""A spreadsheet runs a text as a formula if the text begins with one of these characters."""

if TYPE_CHECKING:
    import pandas as pd

    from modyn.supervisor.simulation.run_simulation import SimulationProgress

_PROGRESS_EVERY_S = 5.0


def simulate(
    file: Annotated[
        Path,
        typer.Argument(
            help="File with trigger sections by name under `policies:`; a list of values makes a grid. With --dataset, a section `data:` says how "
            "samples are decoded.",
            show_default=False,
        ),
    ],
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Simulate on the samples of this dataset.", show_default=False)
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            help="Simulate on the stream of this run; its models, training times and evaluations are the reference.",
            show_default=False,
        ),
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="With --dataset: only samples from this time on.", show_default=False)
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="With --dataset: only samples before this time.", show_default=False)
    ] = None,
    model: Annotated[
        int | None,
        typer.Option(
            "--model",
            help="Model version with which policies look at data. With --dataset, samples are decoded as in the run of this version.",
            show_default=False,
        ),
    ] = None,
    seconds_per_sample: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds of training for each sample, instead of the value from the run.", show_default=False),
    ] = None,
    seconds_per_trigger: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds of training for each trigger, in addition to those for its samples.", show_default=False
        ),
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(min=0, help="Price of an hour of training; adds the price of each policy's trainings.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the results.", file_okay=False, show_default=False),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write an HTML page with charts to this file.", dir_okay=False, show_default=False),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: Json = False,
) -> None:
    """Simulate trigger policies on a stream. Show when each policy would have triggered, at which cost, and how good its models may have been.

    No model is trained. Accuracy is estimated from the evaluation matrix of --run.
    """
    from modyn.supervisor.simulation.run_simulation import load_policies

    if csv and json:
        raise typer.BadParameter("give only one of --csv and --json", param_hint="--csv")
    policies = load_policies(file)  # A typo is reported before any service is started.
    if out is not None:
        make_folder(out.absolute())  # An unwritable folder is reported now, not after hours of simulation.
    progress = _Progress()
    try:
        with connect(start=True) as client:
            table = client.simulate(
                policies,
                dataset=dataset,
                run_id=run,
                from_timestamp=from_,
                to_timestamp=to,
                model_id=model,
                seconds_per_sample=seconds_per_sample,
                seconds_per_trigger=seconds_per_trigger,
                price_per_hour=price_per_hour,
                progress=progress.show,
            )
            _write(table, f"run {run}" if run else f"dataset {dataset}", out, html)
    except KeyboardInterrupt:
        say(f"interrupted after {progress.newest}" if progress.newest else "interrupted before any sample was simulated")
        raise
    if json:
        print_json(table)
    elif csv:
        typer.echo(_without_formulas(_flat(table)).to_csv(index=False), nl=False)
    else:
        print_simulation(table)
    if failed := table["policy"][table["failed"] != ""].to_list():
        say(f"{len(failed)} of {len(table)} policies failed: {', '.join(failed)}")
        raise typer.Exit(1)


def print_simulation(table: pd.DataFrame) -> None:
    """Print one row for each policy. Args: table: from `Client.simulate`."""
    from modyn.analysis.simulation import ESTIMATE

    estimates = [column for column in map(str, table) if column.startswith(ESTIMATE)]
    scored = [column.replace(ESTIMATE, "scored ", 1) for column in estimates]
    estimates = [column for pair in zip(estimates, scored, strict=True) for column in pair]
    price = ["price"] if "price" in table else []
    columns = ["policy", "triggers", "checks", "samples_trained", "training_s", *price, *estimates]
    titles = ["policy", "triggers", "checks", "samples trained", "training s", *price, *estimates, "mean waiting"]
    rows = [[*(row[column] for column in columns), _days(row["mean_waiting_s"])] for row in table.to_dict("records")]
    more = {}
    if "pareto" in table:
        more["pareto"] = ["yes" if chosen else "" for chosen in table["pareto"]]
    if (table["failed"] != "").any():
        more["failed"] = table["failed"].to_list()
    print_table([*titles, *more], [[*row, *last] for row, *last in zip(rows, *more.values(), strict=True)])
    if estimates:
        say("estimated: at each interval with the run's nearest model before the policy's newest trigger")
    for note in table.attrs.get("notes", ()):
        say(note)


def _write(table: pd.DataFrame, title: str, out: Path | None, html: Path | None) -> None:
    """Write the results as files. Raises OSError that names the file."""
    from modyn.analysis.simulation_report import write_simulation_report

    if out is not None:
        _without_formulas(_flat(table)).to_csv(out / "policies.csv", index=False)
        triggers = table[["policy", "positions", "times"]].explode(["positions", "times"]).dropna()
        triggers = triggers.rename(columns={"positions": "position", "times": "time"})
        _without_formulas(triggers).to_csv(out / "triggers.csv", index=False)
        write_simulation_report(table, title, out / "simulation.html")
        say(f"results: {out / 'policies.csv'}, triggers.csv, simulation.html")
    if html is not None:
        say(f"page: {write_simulation_report(table, title, html)}")


def _without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table for a CSV file. A text that a spreadsheet would run as a formula gets an apostrophe as prefix."""

    def shown(value: object) -> object:
        return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_SIGNS) else value

    return table.map(shown).rename(columns=shown)


def _flat(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with each list as a text of its numbers, separated by spaces."""
    lists = {name: table[name].map(lambda values: " ".join(map(str, values))) for name in ("positions", "times")}
    return table.assign(**lists)


def _days(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


class _Progress:
    """Shows the progress. On a terminal, the progress is one line that is overwritten."""

    def __init__(self) -> None:
        self.newest = ""
        self._live = sys.stderr.isatty()
        self._printed_at = -_PROGRESS_EVERY_S

    def show(self, progress: SimulationProgress) -> None:
        """Show the progress of the simulation."""
        left = "" if progress.seconds_left is None else f", {progress.seconds_left:.0f} s left"
        left += f"; {progress.num_asks} questions about data of the next samples" if progress.num_asks else ""
        self.newest = f"{progress.num_samples:,} of {progress.total_samples:,} samples through {progress.num_policies:,} policies"
        ended = progress.num_samples >= progress.total_samples
        if self._live:
            sys.stderr.write(f"\r\x1b[K{self.newest}{left}" + ("\n" if ended else ""))
            sys.stderr.flush()
        elif ended or time.monotonic() - self._printed_at >= _PROGRESS_EVERY_S:
            self._printed_at = time.monotonic()
            say(f"{self.newest}{left}")
