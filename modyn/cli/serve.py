"""`modyn serve`: predictions over the versions of a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from functools import partial
from typing import Annotated
from uuid import uuid4

import typer

from modyn.cli.context import connect, say


def _waiting(conditions: Sequence[str]) -> str:
    return "waiting for a version that is promoted" if conditions else "waiting for its first version"


def serve(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run whose versions are served.")],
    name: Annotated[str | None, typer.Option("--name", help="Name of the model in requests. Default: the run.")] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on. Default: serving.host of the system file.")
    ] = None,
    http_port: Annotated[int | None, typer.Option("--http-port", min=0, max=65535, help="Port of HTTP; 0: any free one.")] = None,
    grpc_port: Annotated[int | None, typer.Option("--grpc-port", min=0, max=65535, help="Port of gRPC; 0: any free one.")] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="An input of the model: the sizes of one sample, such as 1,28,28 or tokens=128:int64. Again for each further one.",
        ),
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option("--follow", help="`promoted`, or the newest version while none is (default); `newest`: each one at once."),
    ] = None,
    canary: Annotated[
        float | None, typer.Option("--canary", help="Share of requests that a version newer than the promoted one answers.")
    ] = None,
    pinned: Annotated[
        list[int] | None,
        typer.Option(
            "--pin", min=0, help="A model that answers requests which name it as the version. Again for each further one."
        ),
    ] = None,
    observations: Annotated[
        str | None,
        typer.Option(
            "--observations",
            help="Dataset of records (`modyn data register NAME --records`) that takes the labels which clients POST to /observations.",
        ),
    ] = None,
    promote_if: Annotated[
        list[str] | None,
        typer.Option(
            "--promote-if",
            metavar="CONDITION",
            help="Promote each new version that meets 'Accuracy on DATASET >= 0.9', or 'Accuracy on DATASET not worse than promoted'. Again for "
            "each further condition: all must hold.",
        ),
    ] = None,
    shadow: Annotated[
        bool | None,
        typer.Option("--shadow/--no-shadow", help="Send a version newer than the promoted one copies, and count differences."),
    ] = None,
) -> None:
    """Serve predictions of a run's promoted version (or the newest) by the Open Inference Protocol, over HTTP and gRPC, until Ctrl-C.

    `modyn models promote` and `rollback` take effect within a second, without an interruption. Options go before the section `serving` of the
    run's pipeline.
    """
    from modyn.config.base import load_section
    from modyn.config.preprocessing import with_columns
    from modyn.config.serving import ServedRun, ServingConfig
    from modyn.records import RunId
    from modyn.rpc.logs import configure_logs
    from modyn.serving.process import RunServer
    from modyn.serving.record_log import StorageObservationLog, check_readable
    from modyn.storage.client import StorageClient
    from modyn.supervisor.client import SupervisorClient

    options = {
        "name": name,
        "inputs": inputs or None,
        "follow": follow,
        "canary_share": canary,
        "pinned": pinned or None,
        "observations": observations,
        "promote_if": promote_if or None,
        "shadow": shadow,
    }
    with connect() as client:
        pipeline = client.show(run).pipeline  # NotFoundError has the nearest name
        pipeline = with_columns(pipeline)
        section, columns = pipeline.get("serving") or {}, pipeline.get("preprocessing")
        config = client.config
    served = load_section(
        ServedRun, {**section, **{key: value for key, value in options.items() if value is not None}}, "serving"
    )
    check_readable(pipeline, served.observations)
    storage = None if served.observations is None else StorageClient(config.endpoint("storage"))
    log = None
    if storage is not None and served.observations is not None:
        log = StorageObservationLog(storage, served.observations, columns=columns is not None)
    given = {"host": host, "http_port": http_port, "grpc_port": grpc_port}
    changed = {key: value for key, value in given.items() if value is not None}
    serving = load_section(ServingConfig, {**config.serving.model_dump(), **changed}, "serving")
    config = config.model_copy(update={"serving": serving})
    configure_logs("serving", serving.log_level)
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    # Trigger policies of the run may go by the load of its servers.
    supervisor, server_id = SupervisorClient(config.endpoint("supervisor"), wait_s=0.0), uuid4().hex
    report = partial(supervisor.report_load, run, server_id)
    server = RunServer(config, RunId(run), served, log, pipeline, report)
    try:
        version = f"version {server.plan.serving} serves" if server.plan.serving else _waiting(served.promote_if)
        say(f"model '{server.model}' of run {run}: {version}")
        say(f"  http     {server.addresses.http}/v2/models/{server.model}")
        say(f"  grpc     {server.addresses.grpc}")
        if served.observations is not None:
            if columns is not None and columns.get("format") == "csv":
                say("  note     observations are stored as JSON objects, which pipelines with preprocessing.format: json read")
            say(f"  labels   {server.addresses.http}/observations go to dataset '{served.observations}'")
        say(f"  metrics  {server.addresses.metrics}")
        asked.wait()  # Until a signal asks for the end.
        say("ending: requests that run are answered")
    finally:
        server.close()
        supervisor.close()
        if storage is not None:
            storage.close()
