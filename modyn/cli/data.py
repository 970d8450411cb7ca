"""`modyn data`: datasets."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from modyn.cli.chosen_table import SHOWN_SAMPLES, show_chosen
from modyn.cli.context import Json, connect, say
from modyn.cli.data_label import label
from modyn.cli.data_scrub import scrub
from modyn.cli.ingest_progress import say_what_is_indexed, shown_progress
from modyn.cli.output import counted, date, print_fields, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modyn.storage.client import DatasetInfo
    from modyn.supervisor.records import Run

app = typer.Typer(no_args_is_help=True)

SHOWN_KEYS: Final = 10
"""Keys of records whose content differs that are printed."""

Name = Annotated[str, typer.Argument(help="Name of the dataset.", show_default=False)]


@app.command()
def register(
    name: Name,
    folder: Annotated[
        str | None,
        typer.Argument(
            help="Folder of the files, searched recursively, or s3://, gs:// or az://BUCKET/PREFIX.", show_default=False
        ),
    ] = None,
    records: Annotated[
        bool,
        typer.Option("--records", help="In place of a folder: a dataset of records that are appended, see `modyn data append`."),
    ] = False,
    wrapper: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="File format: SingleSampleFileWrapper, BinaryFileWrapper, CsvFileWrapper, JsonLinesFileWrapper, ParquetFileWrapper, "
            "TarFileWrapper, or one of a plug-in. Default: SingleSampleFileWrapper.",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="Option of the format as NAME=VALUE, e.g. -o file_extension=.png. Repeatable."),
    ] = None,
    timestamp_source: Annotated[
        str,
        typer.Option(
            help="Where a sample's time stands: '' (modification time of its file), name:REGEX (group 1 in the file's name), "
            "column:N (of a CSV row), column:NAME (of a Parquet or CSV row), field:OFFSET[:SIZE] (of a binary record), field:NAME (of a JSON "
            "object)."
        ),
    ] = "",
    watch: Annotated[bool, typer.Option(help="Index new files as they appear.")] = True,
    ingest_now: Annotated[bool, typer.Option("--ingest/--no-ingest", help="Index the files that are there now.")] = True,
) -> None:
    """Register a folder of files as a dataset. Repeating it changes nothing.

    Options that formats need, for example (docs/datasets.md lists all options of each):

    \b
    SingleSampleFileWrapper  -o file_extension=.png -o label_file_extension=.label
    BinaryFileWrapper        -o record_size=160 -o label_size=4
    CsvFileWrapper           -o label_index=0
    JsonLinesFileWrapper     -o label_field=label
    ParquetFileWrapper       -o 'payload_columns=\\[image]' -o label_column=label
    TarFileWrapper           -o payload_extension=jpg -o label_extension=cls

    With --records there are two options: -o label_type=float for labels that are fractions, and -o timestamp_format=s for times that count seconds
    from 0, where 2013 or 20130131 is no date.
    """
    from modyn.config.base import load_section
    from modyn.config.buckets import RECORDS, is_url
    from modyn.config.dataset import DatasetConfig

    if records == (folder is not None):
        raise typer.BadParameter("name the folder of the files, or give --records, and not both")
    if records:
        if wrapper or timestamp_source:
            raise typer.BadParameter(
                "a dataset of records has neither --format nor --timestamp-source: each record brings its time with it"
            )
        config = {"name": name, "base_path": RECORDS, "file_wrapper_config": dict(_option(text) for text in option or [])}
        with connect(start=True) as client:
            client.register_dataset(load_section(DatasetConfig, config))
        return say(f"registered {name}; `modyn data append {name} FILE.jsonl` or `Client.append_records` appends records")
    assert folder is not None
    fields = {
        "name": name,
        "base_path": folder if is_url(folder) or not folder else str(Path(folder).absolute()),
        "file_wrapper": wrapper or "SingleSampleFileWrapper",
        "file_wrapper_config": dict(_option(text) for text in option or []),
        "timestamp_source": timestamp_source,
        "watch": watch,
    }
    with connect(start=True) as client:
        client.register_dataset(load_section(DatasetConfig, fields))
    if ingest_now:
        return ingest(name)
    return say(f"registered {name}; `modyn data ingest {name}` indexes its files")


@app.command()
def append(
    name: Name,
    file: Annotated[Path, typer.Argument(help="File of JSON lines, one record each.", show_default=False)],
    json: Json = False,
) -> None:
    """Append records to a dataset of records. Repeating it appends only what is missing: of all records with one key the first one counts.

    A line: {"key": "ID", "label": 1, "features": {"x": 0.5}}. "payload" (text) or "payload_base64" (bytes) may take the place of
    "features", which are stored as compact JSON. "timestamp" gives seconds since 1970, or ISO 8601; without it the time of arrival counts.
    Without "label": `modyn data label`.
    """
    from rich.console import Console
    from rich.status import Status

    from modyn.cli.record_lines import read_calls

    counts = {"appended": 0, "duplicates": 0, "differing": 0}
    differing: list[str] = []
    with connect(start=True) as client, Status("reading", console=Console(stderr=True)) as shown:
        client.append_records(name, [])  # A file is not read for a dataset that takes no records.
        timestamp_format = client.dataset(name).config.file_wrapper_config.get("timestamp_format", "")
        for records in read_calls(file, timestamp_format):
            answers = client.append_records(name, records)
            counts["appended"] += sum(not answer.is_duplicate for answer in answers)
            counts["duplicates"] += sum(answer.is_duplicate for answer in answers)
            others = [record.key for record, answer in zip(records, answers, strict=True) if answer.differs]
            counts["differing"] += len(others)
            differing += others[: SHOWN_KEYS - len(differing)]
            shown.update(f"{counts['appended']:,} records appended, {counts['duplicates']:,} were there")
    if json:
        return print_json({**counts, "differing_keys": differing})
    say(f"{name}: {counts['appended']:,} records appended, {counts['duplicates']:,} were there")
    if differing:
        say(f"{counts['differing']:,} of those have another content there, which stays; keys: {', '.join(differing)}")
    return None


app.command()(label)


@app.command()
def change(
    name: Name,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Option of the format as NAME=VALUE; the others stay. Repeatable.")
    ] = None,
    timestamp_source: Annotated[
        str | None, typer.Option(help="Where a sample's time stands, as in `modyn data register`.")
    ] = None,
    watch: Annotated[bool | None, typer.Option("--watch/--no-watch", help="Index new files as they appear.")] = None,
) -> None:
    """Give a dataset other options, for what is indexed from now on. Samples stay as they are; files that were set aside are tried again."""
    from modyn.config.base import load_section
    from modyn.config.dataset import DatasetConfig

    with connect(start=True) as client:
        known = client.dataset(name).config.model_dump()
        known["file_wrapper_config"] |= dict(_option(text) for text in option or [])
        asked = {"timestamp_source": timestamp_source, "watch": watch}
        changed = load_section(DatasetConfig, known | {key: value for key, value in asked.items() if value is not None})
        client.change_dataset(changed)
    say(f"changed {name}; `modyn data ingest {name}` indexes what its options allow now")


@app.command()
def ingest(name: Name) -> None:
    """Index the new files of a dataset now, with progress. Exit code 1 if all were set aside, so that the dataset has no samples."""
    with connect(start=True) as client, shown_progress() as progress:
        info = client.ingest(name, progress)
        problems = client.storage.problems(name) if info.num_problems == 1 and not info.num_files else []
    say_what_is_indexed(info, problems)


@app.command()
def reindex(
    name: Name,
    file: Annotated[str, typer.Argument(help="Path of the data file, full or below the dataset's folder.", show_default=False)],
) -> None:
    """Take a data file again that was corrected after it was indexed: its samples are deleted, and what it holds now is added under new keys. Runs
    that are under way train no more on the old samples; those in production mode get the new ones. Runs that have made models get an event about the
    deletion. A file that is missing, or cannot be used as it is now, is refused before anything is deleted."""
    with connect(start=True) as client, shown_progress() as progress:
        done, info = client.reindex(name, file, progress), client.dataset(name)
        paths = (file, os.path.join(info.config.base_path, file))
        wrong = [problem.reason for problem in client.storage.problems(name) if problem.path in paths]
    say(f"{file}: {done.num_deleted:,} samples were deleted, and what the file holds now has new keys")
    if wrong:
        say(f"not all of the file could be taken, {counted(len(wrong), 'problem')}; the newest: {wrong[0]}")
    say_what_is_indexed(info)
    if done.told:
        say(f"models or scores of {', '.join(done.told)} may rest on the deleted samples; an event of each run says so")


@app.command("ls")
def list_datasets(json: Json = False) -> None:
    """List the datasets."""
    with connect() as client:
        datasets = client.storage.list_datasets()
    if json:
        return print_json([_fields(info) for info in datasets])
    return print_table(
        ["dataset", "samples", "files", "problems", "first", "last", "format"],
        [
            [
                d.name,
                d.num_samples,
                d.num_files,
                d.num_problems,
                date(d.min_timestamp),
                date(d.max_timestamp),
                d.config.file_wrapper,
            ]
            for d in datasets
        ],
        empty="no datasets; `modyn data register NAME FOLDER` adds one",
    )


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(help="Name of a dataset.", show_default=False)] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="List what the training of a trigger of this run chose.", show_default=False)
    ] = None,
    trigger: Annotated[int | None, typer.Option(min=0, help="With --run: which trigger.", show_default=False)] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="With --run: only the first so many samples; 1,000, or all as JSON.", show_default=False),
    ] = None,
    whole_set: Annotated[
        bool, typer.Option("--all", help="With --run: also samples of its trigger set that the training did not choose.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a dataset: its registration, counts and times; or the samples that a training chose, with their scores, see `keep_scores`."""
    if (name is None) == (run is None) or (run is None) != (trigger is None):
        raise typer.BadParameter("name a dataset, or --run and --trigger")
    with connect() as client:
        if run is not None and trigger is not None:
            from modyn.analysis.chosen_samples import chosen_samples, training_result_of

            result, most = training_result_of(client.supervisor, run, trigger), limit or (None if json else SHOWN_SAMPLES)
            return show_chosen(
                chosen_samples(client.selector, client.storage, run, trigger, result, most, whole_set=whole_set), json=json
            )
        assert name is not None
        fields = _fields(client.dataset(name))
    if json:
        return print_json(fields)
    first, last, schema = (fields.pop(field) for field in ("min_timestamp", "max_timestamp", "schema"))
    shown = {**fields, "first": date(first), "last": date(last)}
    return print_fields(shown | (schema.described() if schema else {}))


@app.command()
def delete(
    name: Name,
    keys: Annotated[list[int] | None, typer.Option("--key", help="Delete only this sample; repeatable.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a dataset's index, or single samples from it, permanently. Data files are never touched, but records that were appended are deleted
    with their dataset."""
    from modyn.errors import UnavailableError

    with connect() as client:
        of_records = any(info.name == name and info.config.holds_records for info in client.storage.list_datasets())
        whole, costs = f"{name} and all records in it" if of_records else f"the index of {name}", ""
        what = f"{len(keys)} samples of {name}" if keys else whole
        if not keys:
            try:
                costs = cost_of_deletion(name, client.supervisor.runs(with_pipelines=True))
            except UnavailableError as error:
                costs = f"which runs read {name} is not known: {error.message}"
        if costs:
            say(costs)
        if not yes:
            typer.confirm(f"Delete {what}?", abort=True)
        if keys:
            say(f"deleted {client.delete_samples(name, keys)} samples")
        else:
            client.delete_dataset(name)
            say(f"deleted {whole}" if of_records else f"deleted {whole}; its files are unchanged")


def cost_of_deletion(name: str, runs: Sequence[Run]) -> str:
    """What becomes of those of `runs` that may be resumed once the dataset is deleted, for the user to decide; empty: there are none.

    Raises: ConflictError: runs that are under way read it.
    """
    from modyn.errors import ConflictError
    from modyn.supervisor.states import RunState

    unfinished = [run for run in runs if name in run.datasets and run.state is not RunState.FINISHED]
    if active := [run.run_id for run in unfinished if not run.is_terminal]:
        raise ConflictError(
            f"dataset '{name}' is read by {', '.join(active)}; stop them first (`modyn stop RUN`), or wait for their end"
        )
    training = [run.run_id for run in unfinished if (run.pipeline.get("data") or {}).get("dataset_id") == name]
    evaluating = [run.run_id for run in unfinished if run.run_id not in training]
    costs = []
    if training:
        costs.append(f"{', '.join(training)} cannot be resumed then")
    if evaluating:
        costs.append(f"{', '.join(evaluating)} can be resumed and train on, but evaluations on {name} fail then")
    return f"{'; '.join(costs)}: a dataset that is registered under the name {name} later is another one" if costs else ""


app.command()(scrub)


@app.command()
def rebuild(name: Name) -> None:
    """Take what a restored, older database lacks of a dataset from its index, so that it can be ingested again."""
    with connect(start=True) as client:
        info = client.storage.rebuild_dataset(name)
    say(f"{name}: {info.num_samples:,} samples in {info.num_files:,} files, as in its index; `modyn data ingest {name}` goes on")


@app.command()
def locate(
    name: Name, keys: Annotated[list[int], typer.Argument(help="Keys of samples.", show_default=False)], json: Json = False
) -> None:
    """Show in which file, and where in it, samples lie. Keys are those of error messages."""
    import numpy as np

    with connect() as client:
        found = client.storage.locate(name, np.array(keys, np.int64))
    if json:
        return print_json(found)
    return print_table(
        ["key", "file", "offset", "bytes", "label", "time"],
        [[p.key, p.path, p.offset, p.num_bytes, str(p.label), date(p.timestamp)] for p in found],
    )


@app.command()
def problems(name: Name, json: Json = False) -> None:
    """List files that were set aside, skipped rows and damaged files of the index: equal reasons once, with some values; with --json each one."""
    from modyn.cli.problem_groups import problem_rows

    with connect() as client:
        found, info = client.storage.problems(name), client.dataset(name)
    if json:
        return print_json(found)
    if (total := info.num_problems + info.num_skipped) > len(found):
        say(f"the newest {len(found):,} of {total:,} problems")
    return print_table(["count", "file", "reason", "found"], problem_rows(found), empty="no problems")


def _option(text: str) -> tuple[str, Any]:
    import yaml

    key, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"'{text}' is not NAME=VALUE")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError:
        return key, value


def _fields(info: DatasetInfo) -> dict[str, Any]:
    counts = {field.name: getattr(info, field.name) for field in dataclasses.fields(info) if field.name != "config"}
    return {**info.config.model_dump(mode="json"), **counts}
