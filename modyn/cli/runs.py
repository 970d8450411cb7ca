"""`modyn run`, `ps`, `watch`, `show`, `stop`, `resume`, `finish`, `rm`, `evaluate`, `report`: runs of pipelines."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modyn.cli.context import Json, connect, say, services_run, system_config
from modyn.cli.serve import serve
from modyn.cli.views.output import print_json
from modyn.cli.views.run_tables import print_checks, print_run, print_runs, print_score_summary, print_scores, show_results
from modyn.cli.views.selection_tables import print_selections

if TYPE_CHECKING:
    from modyn.client import Client


RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run; `modyn ps` lists them.", show_default=False)]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Return immediately; `modyn watch RUN` follows the run later.")]


def run(
    file: Annotated[Path, typer.Argument(help="Pipeline file.", show_default=False)],
    production: Annotated[
        bool, typer.Option("--production/--experiment", help="Follow live data, or replay existing data (the default).")
    ] = False,
    from_: Annotated[
        str | None, typer.Option("--from", help="Use only samples from this time on: a date, or seconds since 1970.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", help="Use only samples before this time.")] = None,
    max_triggers: Annotated[int | None, typer.Option(min=1, help="End after this number of triggers.")] = None,
    final_trigger: Annotated[
        bool, typer.Option("--final-trigger", help="Train on the remaining samples when the stream ends.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set a value for this run: PATH=VALUE, e.g. training.batch_size=64. Repeatable; the run keeps the values.",
        ),
    ] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", help="A word by which `modyn ps --tag` finds the run; repeatable.")
    ] = None,
    detach: Detach = False,
    report_file: Annotated[
        Path | None, typer.Option("--report", help="Write the HTML report here when the run has ended.")
    ] = None,
    served: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Serve predictions of the run until Ctrl-C, like `modyn serve RUN`, instead of watching the run; it continues.",
        ),
    ] = False,
) -> None:
    """Run a pipeline and watch it. Services start automatically. Ctrl-C asks whether to detach; a second Ctrl-C stops the run."""
    from modyn.config.arguments import timestamp
    from modyn.config.overrides import override, read_pipeline
    from modyn.config.pipeline import load_pipeline
    from modyn.models.names import with_sources

    if served:
        _check_serving(detach, report_file)
    if report_file is not None:
        _check_report(report_file)
    mode = "production" if production else "experiment"
    start, end = timestamp("--from", from_), timestamp("--to", to)
    if not services_run():
        # A typo is reported before any service is started.
        load_pipeline(with_sources(override(read_pipeline(file), str(file), settings or ()), str(file)), str(file))
    with connect(start=True) as client:
        submitted = client.run(
            file,
            mode,
            from_timestamp=start,
            to_timestamp=end,
            max_triggers=max_triggers,
            final_trigger=final_trigger,
            settings=settings or (),
            tags=tags or (),
        )
        say(f"run {submitted.run_id} is submitted in {mode} mode")
        if submitted.message and detach:  # Followers see the message as an event.
            say(submitted.message)
        if detach:
            typer.echo(submitted.run_id)
            return
        if not served:
            _follow_to_the_end(client, submitted.run_id, report_file)
            return
    say(f"`modyn watch {submitted.run_id}` follows the run")
    serve([submitted.run_id])


def _check_serving(detach: bool, report_file: Path | None) -> None:
    """Raise an error if the options or addresses do not allow serving. The command calls this function before it starts anything."""
    from modyn.errors import InvalidArgumentError
    from modyn.serving import check_installed
    from modyn.serving.addresses import check_addresses

    if detach or report_file is not None:
        option = "--detach" if detach else "--report"
        raise InvalidArgumentError(
            f"with --serve the command serves until Ctrl-C: leave {option} out, or leave --serve out and use `modyn serve RUN` afterwards"
        )
    check_installed()
    check_addresses(system_config())


def ps(
    pipeline: Annotated[
        list[str] | None, typer.Option("--pipeline", "-p", help="Only runs of this pipeline; repeatable.")
    ] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="Only runs in this state, e.g. training; repeatable.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", "-t", help="Only runs with this tag. Repeatable; a run then needs all of these tags."),
    ] = None,
    json: Json = False,
) -> None:
    """List all runs, or the runs of some pipelines, states or tags."""
    from modyn.supervisor.client import RunState

    for name in state or ():
        if name not in list(RunState):
            raise typer.BadParameter(f"'{name}' is not a state; allowed are {', '.join(RunState)}", param_hint="--state")
    with connect() as client:
        found = client.supervisor.runs()
    found = [
        run
        for run in found
        if (not pipeline or run.pipeline_name in pipeline)
        and (not state or run.state in state)
        and set(tag or ()).issubset(run.tags)
    ]
    if json:
        return print_json(
            [{name: value for name, value in asdict(run).items() if name not in ("yaml", "pipeline")} for run in found]
        )
    return print_runs(found)


def watch(
    run: RunArgument,
    last: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of earlier events to show. Default: 1000; with --json, all stored ones.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Watch a run until it ends. Ctrl-C stops the view, but never the run. With --json, each line is one event."""
    with connect() as client:
        client.show(run)
        if json:
            for event in client.watch(run, newest=last):
                print_json(event, indent=None)
            return
        _follow_to_the_end(client, run, may_stop=False, newest=last)


def show(
    run: RunArgument,
    checks: Annotated[
        bool,
        typer.Option(
            "--checks",
            help="Show the checks in which the trigger policy looked at data: measurements, thresholds, and decisions.",
        ),
    ] = False,
    selections: Annotated[
        bool,
        typer.Option(
            "--selections",
            help="Show candidates and choices of the triggers: counts, class shares, ages, weights, and downsampling.",
        ),
    ] = False,
    scores: Annotated[
        bool, typer.Option("--scores", help="Show scores of samples in the trainings, such as the loss; see `keep_scores`.")
    ] = False,
    trigger: Annotated[
        int | None, typer.Option(min=0, help="With --scores: show each sample of this trigger.", show_default=False)
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="With --checks: number of newest checks to show.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Show state, triggers and evaluation matrix of a run; or the checks of its trigger policy, its selections, or scores of samples."""
    if checks + selections + scores > 1:
        raise typer.BadParameter("give only one of them", param_hint="--checks, --selections, --scores")
    if last is not None and not checks:
        raise typer.BadParameter("it needs --checks", param_hint="--last")
    if trigger is not None and not scores:
        raise typer.BadParameter("it needs --scores", param_hint="--trigger")
    with connect() as client:
        if scores and json:
            return print_json(client.feedback(run, trigger))
        if scores:
            return print_score_summary(client, run) if trigger is None else print_scores(client, run, trigger)
        if checks:
            found = client.supervisor.checks(run)[-(last or 0) :]
            return print_json(found) if json else print_checks(found)
        if selections:
            from modyn.analysis.selections import selection_tables

            tables = selection_tables(client.supervisor, client.selector, run)
            return print_json(tables) if json else print_selections(tables)
        if not json:
            print_run(client.show(run), client.supervisor.serving(run))
            return show_results(client, run)
        from modyn.analysis.results import scores as pipeline_scores

        results, serving = client.results(run), client.supervisor.serving(run)
    return print_json(
        {
            "run": results.run,
            "serving": serving,
            "triggers": results.triggers,
            "evaluations": results.evaluations,
            "scores": pipeline_scores(results.triggers, results.evaluations, results.handlers),
        }
    )


def stop(run: RunArgument) -> None:
    """Stop a run cleanly. `modyn resume` continues it."""
    with connect() as client:
        say(f"{run} is {client.stop(run).state}")


def resume(run: RunArgument, detach: Detach = False) -> None:
    """Continue a run that was stopped, interrupted or failed. Finished steps are not repeated."""
    with connect(start=True) as client:
        message = client.resume(run).message
        say(f"{run} continues")
        if message:
            say(message)
        if not detach:
            _follow_to_the_end(client, run)


def finish(run: RunArgument, detach: Detach = False) -> None:
    """Finish a run: the run stops reading samples and makes its final evaluations."""
    with connect(start=True) as client:
        client.finish(run)
        say(f"{run} finishes")
        if not detach:
            _follow_to_the_end(client, run, may_stop=False)


def rm(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="Names of runs that have ended.", show_default=False)],
    even_promoted: Annotated[bool, typer.Option("--even-promoted", help="Also remove a run with a promoted model.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Permanently remove runs: their journals, trigger sets, models, results and logs. An interrupted removal can be repeated."""
    with connect() as client:
        for run in runs:
            found = client.show(run)
            if not yes:
                about = f"{run} ({found.pipeline_name}, {found.state}, {found.num_triggers} triggers) with its models and results"
                typer.confirm(f"Remove {about}?", abort=True)
            client.remove(run, even_promoted=even_promoted)
            say(f"removed {run}")


def evaluate(
    run: RunArgument,
    handler: Annotated[
        list[str] | None,
        typer.Option(
            "--handler",
            help="Only this evaluation handler; repeatable. Or a file with handlers or a section `evaluation`, which replaces that of the run. "
            "Default: all manual handlers, and failed evaluations.",
        ),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option("--dataset", help="Evaluate on this dataset instead of the datasets of the handler; repeatable."),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="Compute this metric instead of the metrics of the dataset; repeatable.")
    ] = None,
    cancel: Annotated[
        int | None,
        typer.Option(
            "--cancel", metavar="NUMBER", help="Request no evaluation, but cancel the requested evaluations with this number."
        ),
    ] = None,
) -> None:
    """Evaluate the models of a run. The run may have any state, and the state does not change. Exit code 1 if an evaluation fails."""
    from modyn.cli.follow import follow
    from modyn.records import JobState

    if cancel is not None:
        if handler or dataset or metric:
            raise typer.BadParameter("takes no other option: it requests no evaluations", param_hint="--cancel")
        with connect() as client:
            say(f"evaluations {cancel} of {run} are {client.supervisor.cancel_evaluation(run, cancel).state}")
        return
    with connect(start=True) as client:
        request = client.evaluate(run, handler or [], datasets=dataset or [], metrics=metric or [])
        if not follow(client, run, may_stop=False, evaluation=request):
            say(
                f"detached; evaluations {request.number} of {run} continue; `modyn evaluate {run} --cancel {request.number}` cancels them"
            )
            return
        show_results(client, run)
        ended = client.supervisor.evaluation(run, request.number)
        if ended.state is not JobState.FINISHED:
            say(f"evaluations {ended.number} {f'failed: {ended.error}' if ended.error else f'are {ended.state}'}")
            raise typer.Exit(1)


def report(
    run: RunArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: modyn-report-RUN.html here.")
    ] = None,
) -> None:
    """Write the HTML report of a run: evaluation matrix, composite accuracy, checks of the trigger policy, prequential error, served predictions,
    models, triggers, and time of each stage."""
    with connect() as client:
        typer.echo(client.report(run, output))


def _check_report(report_file: Path) -> None:
    """Raise an error if the report cannot be written. The command makes this check before the run, because it writes the report after the run."""
    import modyn.analysis  # noqa: F401  (fails if a package is not installed, and names it)

    folder = report_file.absolute().parent
    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {report_file.parent}; create it first", param_hint="--report")
    if not os.access(report_file if report_file.exists() else folder, os.W_OK):
        message = f"this user cannot write {report_file}; name another folder (in a container: set MODYN_CLI_UID in .env to your user id)"
        raise typer.BadParameter(message, param_hint="--report")


def _follow_to_the_end(
    client: Client, run_id: str, report_file: Path | None = None, *, may_stop: bool = True, newest: int | None = None
) -> None:
    """Watch a run, then print its results. Exit code 1 if the run failed or was interrupted, 3 if the run was stopped."""
    from modyn.cli.follow import follow
    from modyn.supervisor.client import RunState

    if not follow(client, run_id, may_stop=may_stop, newest=newest):
        say(f"detached; the run continues. `modyn watch {run_id}` follows it again, `modyn stop {run_id}` stops it")
        return
    ended = client.show(run_id)
    print_run(ended, client.supervisor.serving(run_id))
    show_results(client, run_id)
    if report_file is not None:
        say(f"report: {client.report(run_id, report_file)}")
    if ended.state is not RunState.FINISHED:
        raise typer.Exit(3 if ended.state is RunState.STOPPED else 1)
