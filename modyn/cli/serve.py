"""`modyn serve`: serve predictions of the model versions of runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from modyn.cli.context import connect, say

if TYPE_CHECKING:
    from modyn.records import RunId, ServingLoad, VersionUse
    from modyn.serving.run_server import RunServer
    from modyn.serving.served_model import ServedModel


def serve(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]RUN",
            help="Runs whose versions are served; NAME is the model's name in requests, by default the name of the run.",
        ),
    ],
    name: Annotated[str | None, typer.Option("--name", help="Name of the model in requests, if one run is served.")] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on. Default: serving.host of the system file.")
    ] = None,
    http_port: Annotated[int | None, typer.Option("--http-port", min=0, max=65535, help="Port of HTTP; 0: any free one.")] = None,
    grpc_port: Annotated[int | None, typer.Option("--grpc-port", min=0, max=65535, help="Port of gRPC; 0: any free one.")] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="An input of the model: the sizes of one sample, such as 1,28,28 or tokens=128:int64. Repeat it for each further input.",
        ),
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option(
            "--follow",
            help="Version that serves. `promoted` (default): the promoted one, or the newest until one is promoted; `newest`: each new version "
            "immediately.",
        ),
    ] = None,
    canary: Annotated[
        float | None, typer.Option("--canary", help="Share of requests that a version newer than the promoted one answers.")
    ] = None,
    pinned: Annotated[
        list[int] | None,
        typer.Option(
            "--pin", min=0, help="Number of a model that stays loaded for requests that name it as the version. Repeatable."
        ),
    ] = None,
    observations: Annotated[
        str | None,
        typer.Option(
            "--observations",
            help="Dataset of records (see `modyn data register NAME --records`) for the labels that clients POST to /observations.",
        ),
    ] = None,
    promote_if: Annotated[
        list[str] | None,
        typer.Option(
            "--promote-if",
            metavar="CONDITION",
            help="Promote each new version that meets a condition such as 'Accuracy on DATASET >= 0.9' or 'Accuracy on DATASET not worse than "
            "promoted'. Repeat the option for each further condition; all must hold.",
        ),
    ] = None,
    shadow: Annotated[
        bool | None,
        typer.Option(
            "--shadow/--no-shadow",
            help="Send copies of requests to a version newer than the promoted one, and count differences.",
        ),
    ] = None,
) -> None:
    """Serve predictions of the promoted (or newest) versions of runs by the Open Inference Protocol over HTTP and gRPC until Ctrl-C.

    `modyn models promote` and `rollback` take effect at the next poll (`serving.poll_interval_s`), without interruption. Options override the
    section `serving` of a run's pipeline. Several runs are served at the same addresses: each run is a model with its own name, and `--follow`,
    `--canary` and `--shadow` apply to all models.
    """
    from modyn.config.base import load_section
    from modyn.config.serving import ServingConfig
    from modyn.rpc.logs import configure_logs
    from modyn.serving import check_installed

    check_installed()
    from modyn.serving.served_model import served_model
    from modyn.state_folders import keep_private
    from modyn.supervisor.client import SupervisorClient

    of_one: dict[str, Any] = {"name": name, "inputs": inputs or None, "pinned": pinned or None}
    of_one |= {"observations": observations, "promote_if": promote_if or None}
    if len(runs) > 1:
        _refuse_for_several(of_one)
    options = {**of_one, "follow": follow, "canary_share": canary, "shadow": shadow}
    with connect() as client:
        models = []
        for text in runs:
            alias, _, run = text.rpartition("=")
            pipeline = client.show(run).pipeline  # NotFoundError suggests the nearest name.
            models.append(served_model(run, pipeline, {**options, "name": name or alias or None}))
        config = client.config
    given = {"host": host, "http_port": http_port, "grpc_port": grpc_port}
    changed = {key: value for key, value in given.items() if value is not None}
    serving = load_section(ServingConfig, {**config.serving.model_dump(), **changed}, "serving")
    config = config.model_copy(update={"serving": serving})
    say(f"loading PyTorch and the versions of {', '.join(model.run_id for model in models)}, which takes some seconds")
    from modyn.serving.run_server import RunServer, answer_without_pauses

    keep_private()  # the write-ahead log of labels contains inputs of clients
    configure_logs("serving", serving.log_level)
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    with SupervisorClient(config.endpoint("supervisor"), wait_s=0.0) as supervisor:
        server_id = uuid4().hex

        def report(run_id: RunId, load: ServingLoad, versions: Sequence[VersionUse]) -> None:
            """Report the load to the supervisor, for trigger policies that use it."""
            supervisor.report_load(run_id, server_id, load, versions)

        answer_without_pauses()
        server = RunServer(config, models, report)
        try:
            _say_addresses(server, models)
            asked.wait()  # Set by the signal handlers.
            say("stopping: running requests are answered")
        finally:
            server.close()


def _refuse_for_several(of_one: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError if an option for one model is given for several models. Args: of_one: values of the options for one model, by
    pipeline field; None: the option is not given.
    """
    from modyn.errors import InvalidArgumentError

    for field, value in of_one.items():
        if value is not None:
            option = {"inputs": "--input", "pinned": "--pin", "promote_if": "--promote-if"}.get(field, f"--{field}")
            write = "write NAME=RUN, " if field == "name" else ""
            raise InvalidArgumentError(
                f"{option} describes one model, but several runs are served: {write}set serving.{field} in their pipelines, or serve them separately"
            )


def _say_addresses(server: RunServer, models: Sequence[ServedModel]) -> None:
    for model in models:
        version, settings, url = server.plans[model.name].serving, model.settings, server.addresses.http
        awaited = "a promoted version" if settings.promote_if else "its first version"
        say(f"model '{model.name}' of run {model.run_id}: {f'version {version} serves' if version else f'waiting for {awaited}'}")
        say(f"  http     {url}/v2/models/{model.name}")
        if settings.observations is not None:
            if model.columns is not None and model.columns.get("format") == "csv":
                say("  note     observations are stored as JSON objects, which pipelines with preprocessing.format: json read")
            say(f"  labels   {url}/observations go to dataset '{settings.observations}'")
    if len(models) > 1:
        say("all models")
    say(f"  grpc     {server.addresses.grpc}")
    say(f"  metrics  {server.addresses.metrics}")
