"""`modyn models`: model versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modyn.cli.context import Json, connect, say
from modyn.cli.views.output import clock, print_fields, print_json, print_table, size

if TYPE_CHECKING:
    from modyn.records import ModelVersion

app = typer.Typer(no_args_is_help=True)

ModelIdArgument = Annotated[
    int, typer.Argument(metavar="MODEL", help="Number of the model version; `modyn models ls` lists them.")
]


@app.command("ls")
def list_models(run: Annotated[str | None, typer.Argument(help="Only versions of this run.")] = None, json: Json = False) -> None:
    """List model versions."""
    from modyn.records import RunId

    with connect() as client:
        found = client.model_storage.list(RunId(run) if run else None)
    if json:
        return print_json(found)
    return print_table(
        ["model", "run", "trigger", "parent", "class", "size", "stored", "created", "weights (SHA-256)", ""],
        [
            [
                str(m.version.model_id), m.version.run_id or "imported", str(m.version.trigger_id), str(m.version.parent_id or "–"), m.model_class,
                size(m.version.num_bytes), _stored(m.version), clock(m.version.created_at), m.version.weights_sha256[:12],
                "promoted" if m.version.promoted else "",
            ]
            for m in found
        ],
        empty="no models yet",
    )  # fmt: skip


@app.command()
def show(model: ModelIdArgument, json: Json = False) -> None:
    """Show a model version and the result of its training."""
    from modyn.models.names import text_sha256

    with connect() as client:
        found = client.model(model)
    if json:
        return print_json(found)
    version = found.version
    return print_fields(
        {
            "model": str(version.model_id), "run": version.run_id or "imported", "trigger": str(version.trigger_id),
            "parent": str(version.parent_id or "–"), "class": found.model_class,
            **({"class sha256": text_sha256(found.model_definition)} if found.model_definition else {}),
            "config": str(found.model_config), "format": version.strategy,
            "stored": _stored(version), "size": _cost(version.num_bytes, version.encode_s),
            "size if stored whole": _cost(version.full_bytes, version.full_encode_s),
            "weights sha256": version.weights_sha256, "created": clock(version.created_at),
            **{f"training {key}": str(value) for key, value in found.training_result.items()},
        }
    )  # fmt: skip


def _stored(version: ModelVersion) -> str:
    return "whole" if version.base_id is None else f"difference to {version.base_id}"


def _cost(num_bytes: int, seconds: float) -> str:
    return f"{size(num_bytes)}, encoded in {seconds:.2f} s"


@app.command("rm")
def remove(
    models: Annotated[list[int], typer.Argument(metavar="MODEL…", help="Numbers of model versions.", show_default=False)],
    even_promoted: Annotated[bool, typer.Option("--even-promoted", help="Also remove a promoted version.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove model versions permanently. A version that a run needs in order to continue cannot be removed."""
    with connect() as client:
        if not yes:
            typer.confirm(f"Remove model {', '.join(map(str, models))}?", abort=True)
        for model in sorted(models, reverse=True):  # Earlier versions do not need later versions.
            client.supervisor.remove_model(model, even_promoted=even_promoted)
            say(f"removed model {model}")


@app.command()
def export(
    model: ModelIdArgument,
    path: Annotated[
        Path | None, typer.Argument(help="File to write. Default: model-<number>.safetensors, .pt2 or .onnx here.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="Write a program for torch.export.load instead of weights. Value: an input of the model as the sizes of one sample, such as 1,28,28 "
            "or tokens=128:int64; repeat the option for each further input. Or `features`: the inputs follow from the section `preprocessing`.",
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format", help="Format of a program: `torch`, or `onnx` (needs the extra `onnx` of modyn).", show_default=False
        ),
    ] = "torch",
) -> None:
    """Write a model's weights to a safetensors file, and its class and configuration to a JSON file next to it.

    With --input, write a program instead. The program takes batches of any size, and runs with PyTorch alone, or with --format onnx in ONNX runtimes.
    """
    import json as json_module

    if format not in ("torch", "onnx"):
        raise typer.BadParameter(f"{format!r} is neither torch nor onnx", param_hint="--format")
    if format == "onnx" and not inputs:
        raise typer.BadParameter(
            "name the inputs of the model, for example --input 1,28,28 or --input features", param_hint="--format onnx"
        )
    target = path or Path(f"model-{model}.{'onnx' if format == 'onnx' else 'pt2' if inputs else 'safetensors'}")
    if target.suffix == ".json":
        raise typer.BadParameter(
            f"{target} is the name for the JSON file with the model's class; give another name", param_hint="PATH"
        )
    if target.exists() and not force:
        raise typer.BadParameter(f"{target} exists; give another name or --force", param_hint="PATH")
    with connect() as client:
        if inputs:
            client.export_program(model, target, inputs, format)
            say(f"wrote {target}")
            return
        stored = client.export_model(model, target)
    about = target.with_suffix(".json")
    described: dict[str, object] = {"id": stored.model_class, "config": stored.model_config}
    if stored.model_definition:  # the source of the class, or the config.json of transformers
        described["definition"] = stored.model_definition
    about.write_text(json_module.dumps({"model": described}, indent=2) + "\n")
    say(f"wrote {target} and {about}")


RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run of the versions.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Reason, for the audit trail.")]


@app.command()
def promote(
    run: RunArgument,
    model: Annotated[
        int | None, typer.Argument(metavar="[MODEL]", help="Number of the version. Default: the newest of the run.")
    ] = None,
    conditions: Annotated[
        list[str] | None,
        typer.Option(
            "--if",
            metavar="CONDITION",
            help="Evaluate the version first, and promote it only if it meets this condition: 'Accuracy on DATASET >= 0.9', or 'Accuracy on DATASET "
            "not worse than promoted' (which may end with 'by 0.01'). For the newest day only, write 'on DATASET over 1d'. Repeat the option for "
            "each further condition; all must hold.",
        ),
    ] = None,
    reason: ReasonOption = "",
) -> None:
    """Promote a version. Servers of the run use the version after their next poll (`serving.poll_interval_s`). With --if, an evaluation decides."""
    with connect() as client:
        chosen = client.promote(run, model, conditions or (), reason)
    say(f"model {chosen} is promoted")


@app.command()
def rollback(run: RunArgument, reason: ReasonOption = "") -> None:
    """Promote the previously promoted version again. If repeated, the command goes back one more promotion each time."""
    from modyn.records import RunId

    with connect() as client:
        found = client.model_storage.rollback(RunId(run), reason)
    say(f"model {found.version.model_id} is promoted again")


@app.command()
def promotions(run: RunArgument, json: Json = False) -> None:
    """List the promotions and the refused promotions of a run: time, author, reason, scores, and the previously promoted version."""
    from modyn.records import RunId

    with connect() as client:
        found = client.model_storage.promotions(RunId(run))
    if json:
        return print_json(found)
    return print_table(
        ["when", "what", "model", "before", "by", "reason", "conditions"],
        [
            [
                clock(p.made_at),
                p.action,
                str(p.model_id),
                str(p.before_id or "–"),
                p.made_by,
                p.reason,
                "; ".join(map(str, p.verdicts)),
            ]
            for p in found
        ],
        empty="nothing was promoted yet",
    )
