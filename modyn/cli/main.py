"""The command line `modyn`. Each command imports its modules when the command runs, so that `--help` is fast."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from modyn.cli import cache, data, models, pipelines, runs, serve, services, simulate

app = typer.Typer(
    name="modyn",
    help="Decide when to retrain and on which samples, and measure the benefit.\n\nStart with: modyn check pipeline.yaml, then modyn run "
    "pipeline.yaml. The services start automatically.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(
    data.app,
    name="data",
    help="Datasets: register, change, ingest, reindex, append, label, ls, show, delete, scrub, rebuild, locate, problems.",
)
app.add_typer(models.app, name="models", help="Model versions: ls, show, rm, export, promote, rollback, promotions.")
app.add_typer(cache.app, name="cache", help="The cache of prepared samples: profile, plan, status, clear.")
for command in (
    *(
        runs.run,
        runs.ps,
        runs.watch,
        runs.show,
        runs.stop,
        runs.resume,
        runs.finish,
        runs.rm,
        runs.evaluate,
        runs.report,
        simulate.simulate,
        serve.serve,
    ),
    *(
        pipelines.check,
        pipelines.schema,
        pipelines.explain,
        pipelines.plugins,
        services.up,
        services.down,
        services.status,
        services.logs,
    ),
):
    app.command()(command)


def print_version(wanted: bool) -> None:
    """Print the version and exit if `--version` is given."""
    if wanted:
        from modyn import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="System configuration file. Default: $MODYN_CONFIG, else built-in defaults.", dir_okay=False
        ),
    ] = None,
    state_dir: Annotated[
        str,
        typer.Option(
            "--state-dir",
            metavar="DIRECTORY",
            help="Folder for all state of the services. Default: state_dir of the system file, else .modyn in the current folder.",
            show_default=False,
        ),
    ] = "",
    _: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    """Set the options that every command shares, before the command runs."""
    # Services are separate processes, which get these options as environment variables.
    for name, path in (("MODYN_CONFIG", config), ("MODYN_STATE_DIR", state_dir)):
        if path:  # A shell passes an empty path for an empty variable. The empty path would mean the current folder.
            os.environ[name] = str(Path(path).absolute())


@functools.cache
def command_line() -> Callable[[], object]:
    """Return the Click command that contains all commands. Typer needs 0.1 s to build the command, so a process builds the command only once."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line. Exit codes: 0 success, 1 an error (which is printed), 2 wrong usage, 3 the run was stopped, 130 interrupted."""
    from modyn.errors import ModynError

    try:
        command_line()()
    except ModynError as error:
        sys.stderr.write(f"error: {error.message}\n")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of the output has closed the pipe (`modyn ps | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'input or output'}: {error.strerror or error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
