"""`modyn data`: datasets."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from modyn.cli.context import Json, connect, say
from modyn.cli.views.dataset_views import SHOWN_SAMPLES, say_what_is_indexed, show_chosen, shown_progress
from modyn.cli.views.output import counted, date, print_fields, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modyn.storage.client import DatasetInfo, ScrubProgress
    from modyn.supervisor.journal.records import Run

app = typer.Typer(no_args_is_help=True)

SHOWN_KEYS: Final = 10
"""Largest number of keys of differing records that are printed."""

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
        typer.Option("--records", help="Register a dataset of records instead of a folder; `modyn data append` adds records."),
    ] = False,
    wrapper: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="File format: image_folder, SingleSampleFileWrapper, BinaryFileWrapper, CsvFileWrapper, JsonLinesFileWrapper, ParquetFileWrapper, "
            "TarFileWrapper, or one of a plug-in. Default: what the files look like.",
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
            help="Source of a sample's time: '' (modification time of its file), name:REGEX (group 1 in the file's name), "
            "column:N (of a CSV row), column:NAME (of a Parquet or CSV row), field:OFFSET[:SIZE] (of a binary record), field:NAME (of a JSON "
            "object)."
        ),
    ] = "",
    watch: Annotated[bool, typer.Option(help="Index new files as they appear.")] = True,
    ingest_now: Annotated[bool, typer.Option("--ingest/--no-ingest", help="Index the present files now.")] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what the folder holds, and how it would be registered.")
    ] = False,
) -> None:
    """Register a folder of files as a dataset. If repeated, the command changes nothing.

    Without --format, the command looks at the beginnings of the files in a folder of this machine, says what it found, and chooses format, label and
    time. If there is more than one choice, it lists the commands. Options that are given replace its choices.

    Examples of the options that formats need (docs/reference/formats.md lists all options):

    \b
    image_folder             -o times=times.csv
    SingleSampleFileWrapper  -o file_extension=.png -o label_file_extension=.label
    BinaryFileWrapper        -o record_size=160 -o label_size=4
    CsvFileWrapper           -o label_index=0
    JsonLinesFileWrapper     -o label_field=label
    ParquetFileWrapper       -o 'payload_columns=\\[image]' -o label_column=label
    TarFileWrapper           -o payload_extension=jpg -o label_extension=cls

    With --records there are two options: -o label_type=float for fractional labels, and -o timestamp_format=s if all numbers are seconds, so that
    2013 and 20130131 are not read as dates.
    """
    from modyn.config.base import load_section
    from modyn.config.dataset import DatasetConfig
    from modyn.config.system_sections.buckets import RECORDS, is_url

    if dry_run and (records or wrapper):
        raise typer.BadParameter("--dry-run looks at a folder, to choose its format; leave out --records and --format")
    if records == (folder is not None):
        raise typer.BadParameter("name the folder of the files, or give --records, but not both")
    if records:
        if wrapper or timestamp_source:
            raise typer.BadParameter(
                "a dataset of records takes neither --format nor --timestamp-source: each record has its own time"
            )
        config = {"name": name, "base_path": RECORDS, "file_wrapper_config": dict(_option(text) for text in option or [])}
        with connect(start=True) as client:
            client.register_dataset(load_section(DatasetConfig, config))
        return say(f"registered {name}; `modyn data append {name} FILE.jsonl` or `Client.append_records` appends records")
    assert folder is not None
    options = dict(_option(text) for text in option or [])
    fields = {
        "name": name,
        "base_path": folder if is_url(folder) or not folder else str(Path(folder).absolute()),
        "file_wrapper": wrapper or "SingleSampleFileWrapper",
        "file_wrapper_config": options,
        "timestamp_source": timestamp_source,
        "watch": watch,
    }
    load_section(DatasetConfig, fields)  # A wrong name is refused before the folder is looked at.
    if wrapper is None and (dry_run or not (is_url(folder) or "label_file_extension" in options)):
        from modyn.cli.folder_contents import Given, Recognised, recognise

        found = Recognised("SingleSampleFileWrapper", options, timestamp_source)
        if "label_file_extension" not in options:  # No other format has this option.
            found = recognise(Given(name, folder, options, timestamp_source))
        for sentence in (*found.said, f"as by: {found.command(name, folder)}"):
            say(sentence)
        chosen = {"file_wrapper": found.wrapper, "file_wrapper_config": dict(found.options)}
        fields |= {**chosen, "timestamp_source": found.timestamp_source}
    if dry_run:
        return None
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
    """Append records to a dataset of records. If repeated, the command appends only missing records: the first record of each key counts.

    A line has the form {"key": "ID", "label": 1, "features": {"x": 0.5}}. "features" are stored as compact JSON; "payload" (text) or "payload_base64"
    (bytes) may replace them. "timestamp" is in seconds since 1970, or ISO 8601; by default, the time of arrival. "label" may be set later with
    `modyn data label`.
    """
    from rich.console import Console
    from rich.status import Status

    from modyn.cli.record_lines import read_calls

    counts = {"appended": 0, "duplicates": 0, "differing": 0}
    differing: list[str] = []
    with connect(start=True) as client, Status("reading", console=Console(stderr=True)) as shown:
        client.append_records(name, [])  # If the dataset does not accept records, this call fails before the file is read.
        timestamp_format = client.dataset(name).config.file_wrapper_config.get("timestamp_format", "")
        for records in read_calls(file, timestamp_format):
            answers = client.append_records(name, records)
            counts["appended"] += sum(not answer.is_duplicate for answer in answers)
            counts["duplicates"] += sum(answer.is_duplicate for answer in answers)
            others = [record.key for record, answer in zip(records, answers, strict=True) if answer.differs]
            counts["differing"] += len(others)
            differing += others[: SHOWN_KEYS - len(differing)]
            shown.update(f"{counts['appended']:,} records appended, {counts['duplicates']:,} existed already")
    if json:
        return print_json({**counts, "differing_keys": differing})
    say(f"{name}: {counts['appended']:,} records appended, {counts['duplicates']:,} existed already")
    if differing:
        say(f"{counts['differing']:,} of them differ from the existing records, which are kept; keys: {', '.join(differing)}")
    return None


@app.command()
def label(
    name: Name,
    file: Annotated[Path, typer.Argument(help="File of JSON lines, one label each.", show_default=False)],
    json: Json = False,
) -> None:
    """Set the labels of records that were appended without a label. A repeated command sets only missing labels: a record keeps its first label.

    A line has the form {"key": "ID", "label": 1}, with the key of the record. Runs in production mode train on a sample after it has its label.
    """
    from modyn.cli.record_lines import read_labels

    counts, differing = {"labelled": 0, "duplicates": 0, "differing": 0}, list[str]()
    with connect(start=True) as client:
        for labels in read_labels(file):
            answers = client.set_labels(name, labels)
            counts["labelled"] += sum(not answer.is_duplicate for answer in answers)
            counts["duplicates"] += sum(answer.is_duplicate for answer in answers)
            differing += [key for key, answer in zip(labels, answers, strict=True) if answer.differs]
    counts["differing"] = len(differing)
    if json:
        return print_json({**counts, "differing_keys": differing[:SHOWN_KEYS]})
    say(f"{name}: {counts['labelled']:,} records labelled, {counts['duplicates']:,} had a label already")
    if differing:
        say(f"{len(differing):,} of them have another label, which is kept; keys: {', '.join(differing[:SHOWN_KEYS])}")
    return None


@app.command()
def change(
    name: Name,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="Option of the format as NAME=VALUE; other options stay. Repeatable."),
    ] = None,
    timestamp_source: Annotated[str | None, typer.Option(help="Source of a sample's time, as in `modyn data register`.")] = None,
    watch: Annotated[bool | None, typer.Option("--watch/--no-watch", help="Index new files as they appear.")] = None,
) -> None:
    """Change the options of a dataset for files that are indexed from now on. Indexed samples do not change; rejected files are tried again. If
    there are indexed samples, options that locate labels or times cannot change."""
    from modyn.config.base import load_section
    from modyn.config.dataset import DatasetConfig

    with connect(start=True) as client:
        known = client.dataset(name).config.model_dump()
        options = known["file_wrapper_config"] | dict(_option(text) for text in option or [])
        asked = {"file_wrapper_config": options, "timestamp_source": timestamp_source, "watch": watch}
        changed = load_section(DatasetConfig, known | {key: value for key, value in asked.items() if value is not None})
        before, num_samples = known["file_wrapper_config"].get("timestamp_format"), client.change_dataset(changed).num_samples
    if num_samples and changed.file_wrapper_config.get("timestamp_format") != before:
        say(f"{num_samples:,} indexed samples keep the times that were read with the former timestamp_format")
    say(f"changed {name}; `modyn data ingest {name}` indexes the files that the new options accept")


@app.command()
def ingest(name: Name) -> None:
    """Index the new files of a dataset now, and show progress. Exit code 1 if the dataset has no samples because all files were rejected."""
    with connect(start=True) as client, shown_progress() as progress:
        info = client.ingest(name, progress)
        problems = client.storage.problems(name) if info.num_problems == 1 and not info.num_files else []
    say_what_is_indexed(info, problems)


@app.command()
def reindex(
    name: Name,
    file: Annotated[
        str, typer.Argument(help="Path of the data file, absolute or relative to the dataset's folder.", show_default=False)
    ],
) -> None:
    """Index a corrected data file again: its old samples are deleted, and its present samples are added with new keys. Runs stop training on the
    old samples; runs in production mode get the new samples. Runs with models or scores that may depend on the old samples get an event. A missing
    or unusable file is refused before any sample is deleted."""
    with connect(start=True) as client, shown_progress() as progress:
        done, info = client.reindex(name, file, progress), client.dataset(name)
        paths = (file, os.path.join(info.config.base_path, file))
        wrong = [problem.reason for problem in client.storage.problems(name) if problem.path in paths]
    say(f"{file}: {done.num_deleted:,} samples were deleted, and the present samples of the file have new keys")
    if wrong:
        say(f"part of the file was rejected, {counted(len(wrong), 'problem')}; the newest: {wrong[0]}")
    say_what_is_indexed(info)
    if done.told:
        say(
            f"models or scores of {', '.join(done.told)} may depend on the deleted samples; each of these runs has an event about it"
        )


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
        str | None,
        typer.Option("--run", help="List the samples that the training of a trigger of this run chose.", show_default=False),
    ] = None,
    trigger: Annotated[int | None, typer.Option(min=0, help="With --run: number of the trigger.", show_default=False)] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="With --run: number of samples. Default: 1,000; with --json, all.", show_default=False),
    ] = None,
    whole_set: Annotated[
        bool, typer.Option("--all", help="With --run: include samples of the trigger set that the training did not choose.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the registration, counts and times of a dataset; or the samples that a training chose, with their scores (see `keep_scores`)."""
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
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Permanently delete a dataset's index, or single samples from it. Data files are never changed, but appended records are deleted with their
    dataset."""
    from modyn.errors import UnavailableError

    with connect() as client:
        of_records = any(info.name == name and info.config.holds_records for info in client.storage.list_datasets())
        whole, costs = f"{name} and all records in it" if of_records else f"the index of {name}", ""
        what = f"{len(keys)} samples of {name}" if keys else whole
        if not keys:
            try:
                costs = cost_of_deletion(name, client.supervisor.runs(with_pipelines=True))
            except UnavailableError as error:
                costs = f"it is not known which runs read {name}: {error.message}"
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
    """Describe the effect of a dataset's deletion on runs that may be resumed; empty: there is no effect.

    Raises: ConflictError: active runs read the dataset.
    """
    from modyn.errors import ConflictError
    from modyn.supervisor.journal.states import RunState

    unfinished = [run for run in runs if name in run.datasets and run.state is not RunState.FINISHED]
    if active := [run.run_id for run in unfinished if not run.is_terminal]:
        raise ConflictError(
            f"dataset '{name}' is read by {', '.join(active)}; stop these runs first (`modyn stop RUN`), or wait for their end"
        )
    training = [run.run_id for run in unfinished if run.dataset_id == name]
    evaluating = [run.run_id for run in unfinished if run.run_id not in training]
    costs = []
    if training:
        costs.append(f"{', '.join(training)} cannot be resumed afterwards")
    if evaluating:
        costs.append(f"{', '.join(evaluating)} can be resumed and continue training, but evaluations on {name} will fail")
    return f"{'; '.join(costs)}: a dataset that is registered later as {name} counts as a different dataset" if costs else ""


@app.command()
def scrub(name: Name, json: Json = False) -> None:
    """Read the whole index and all data files of a dataset, compare them with their checksums, and refuse the samples of files that differ. Exit
    code 1 if a file is damaged, rewritten or unreadable.

    The first scrub of a data file compares a part of the file, and computes the checksum for later scrubs. So only later scrubs detect a file that
    was rewritten with equal size and time. Storage also scrubs slowly every storage.scrub_every_s seconds. Objects in buckets are not read.
    """
    from rich.console import Console
    from rich.status import Status

    steps: list[ScrubProgress] = []

    def show(step: ScrubProgress) -> None:
        steps[:] = [step]
        shown.update(f"{step.files_compared:,} of {step.files_seen:,} data files compared")

    with connect() as client, Status("reading the index", console=Console(stderr=True)) as shown:
        damaged = client.storage.scrub_dataset(name, show)
    if json:
        print_json(damaged)
    else:
        for problem in damaged:
            say(problem.reason)
        if not damaged:
            say(
                f"{name}: all files of its index match their checksums, and {steps[-1].files_compared:,} data files are unchanged since they were "
                "indexed"
            )
        if first := steps[-1].files_first:
            say(f"{first:,} data files were read for the first time: the next scrub will find later changes in them")
    if damaged:
        raise typer.Exit(1)


@app.command()
def rebuild(name: Name) -> None:
    """Restore a dataset's entries in the database from the dataset's index. This is needed after a restore of an older database backup: then
    `modyn data ingest` works again.
    """
    with connect(start=True) as client:
        info = client.storage.rebuild_dataset(name)
    say(
        f"{name}: {info.num_samples:,} samples in {info.num_files:,} files, as in the index; continue with `modyn data ingest {name}`"
    )


@app.command()
def locate(
    name: Name, keys: Annotated[list[int], typer.Argument(help="Keys of samples.", show_default=False)], json: Json = False
) -> None:
    """Show the file and the position of samples. Error messages name samples by their keys."""
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
    """List rejected files, skipped rows, and damaged files of the index. Problems with equal reasons are grouped; --json lists each problem."""
    from modyn.cli.views.problem_groups import problem_rows

    with connect() as client:
        found, info = client.storage.problems(name), client.dataset(name)
    if json:
        return print_json(found)
    if (total := info.num_problems + info.num_skipped) > len(found):
        say(f"the newest {len(found):,} of {total:,} problems")
    return print_table(["count", "file", "reason", "found"], problem_rows(found), empty="no problems")


def _option(text: str) -> tuple[str, Any]:
    """Return name and value of NAME=VALUE, with the value read as YAML. No value means an empty text; null must be written."""
    import yaml

    key, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"'{text}' is not NAME=VALUE")
    try:
        return key, yaml.safe_load(value) if value else ""
    except yaml.YAMLError:
        return key, value


def _fields(info: DatasetInfo) -> dict[str, Any]:
    counts = {field.name: getattr(info, field.name) for field in dataclasses.fields(info) if field.name != "config"}
    return {**info.config.model_dump(mode="json"), **counts}
