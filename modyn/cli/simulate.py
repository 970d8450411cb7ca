"""`modyn simulate`: what many trigger policies would have done on one stream, without training."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from modyn.cli.context import Json, connect, say
from modyn.cli.output import print_json, print_table

_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""First characters of texts that a spreadsheet runs as formulas."""

if TYPE_CHECKING:
    import pandas as pd

    from modyn.supervisor.simulation import SimulationProgress

_PROGRESS_EVERY_S = 5.0


def simulate(
    file: Annotated[
        Path,
        typer.Argument(
            help="File of policies: `policies:` with a trigger section by name each; lists are grids. With --dataset also `data:`, how samples are "
            "decoded.",
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
            help="Simulate on what this run has received; its models, training times and evaluations are the reference.",
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
            help="Policies look at data by this model version; with --dataset decoded as in its run.",
            show_default=False,
        ),
    ] = None,
    seconds_per_sample: Annotated[
        float | None, typer.Option(min=0, help="Training time, in place of the run's.", show_default=False)
    ] = None,
    seconds_per_trigger: Annotated[
        float | None, typer.Option(min=0, help="Training time beside that of the samples.", show_default=False)
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Of training: adds the price of each policy's trainings.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder for the results, and for going on after an interruption.", file_okay=False, show_default=False
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write an HTML page with pictures here.", dir_okay=False, show_default=False)
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: Json = False,
) -> None:
    """Simulate trigger policies on a stream: when each would have triggered, what it would have cost, how good its models may have been.

    Nothing is trained. Accuracy is estimated by the evaluation matrix of --run.
    """
    from modyn.supervisor.simulation import load_policies

    if csv and json:
        raise typer.BadParameter("give one of --csv and --json", param_hint="--csv")
    policies = load_policies(file)  # A typo is reported before any service is started.
    progress = _Progress()
    try:
        with connect(start=True) as client, _interrupts_go_to(progress.interrupt):
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
                out=out,
                progress=progress.show,
            )
            _write(table, f"run {run}" if run else f"dataset {dataset}", out, html)
    except KeyboardInterrupt:
        again = f"the same command goes on from what is saved in {out}" if out else "with --out DIR it could go on later"
        say(f"interrupted after {progress.newest}; {again}")
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
    """Print one row a policy. Args: table: of `Client.simulate`."""
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
        say("estimated: at each interval by the run's model that is the nearest earlier one to the policy's newest trigger")
    for note in table.attrs.get("notes", ()):
        say(note)


def _write(table: pd.DataFrame, title: str, out: Path | None, html: Path | None) -> None:
    """Write the results as files; what cannot be written is an OSError, which names it."""
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
    """The table for a CSV file: a text that a spreadsheet would run as a formula gets an apostrophe in front, by which it is text there."""

    def shown(value: object) -> object:
        return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_SIGNS) else value

    return table.map(shown).rename(columns=shown)


def _flat(table: pd.DataFrame) -> pd.DataFrame:
    """With what is a list as text, numbers with a space between them."""
    lists = {name: table[name].map(lambda values: " ".join(map(str, values))) for name in ("positions", "times")}
    return table.assign(**lists)


def _days(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


@contextmanager
def _interrupts_go_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Progress:
    """Shows the progress, in one line that is written over on a terminal. The first Ctrl-C ends the simulation between two pieces of the stream,
    so that all of it is saved; a second one at once."""

    def __init__(self) -> None:
        self.newest = "nothing was simulated yet"
        self._live = sys.stderr.isatty()
        self._printed_at = -_PROGRESS_EVERY_S
        self._interrupted = False

    def interrupt(self, *_: object) -> None:
        """Handle a Ctrl-C. Raises KeyboardInterrupt: it is the second."""
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True
        if self._live:
            sys.stderr.write("\n")
        say("ending once all policies have decided on the same samples; Ctrl-C again ends at once")

    def show(self, progress: SimulationProgress) -> None:
        """Show how far it is. Raises KeyboardInterrupt: Ctrl-C was pressed."""
        left = "" if progress.seconds_left is None else f", {progress.seconds_left:.0f} s left"
        left += f"; looked at data of the next ones {progress.asks_on} times" if progress.asks_on else ""
        self.newest = f"{progress.num_samples:,} of {progress.total_samples:,} samples through {progress.num_policies:,} policies"
        ended = progress.num_samples >= progress.total_samples
        if self._live:
            sys.stderr.write(f"\r\x1b[K{self.newest}{left}" + ("\n" if ended or self._interrupted else ""))
            sys.stderr.flush()
        elif ended or time.monotonic() - self._printed_at >= _PROGRESS_EVERY_S:
            self._printed_at = time.monotonic()
            say(f"{self.newest}{left}")
        if self._interrupted and not progress.asks_on:
            raise KeyboardInterrupt
