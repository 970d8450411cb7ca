"""`modyn cache`: whether a cache of prepared samples would help and how to divide it, what it holds and what trainings had of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from modyn.cli.context import Json, connect, say, services_run, system_config
from modyn.cli.output import clock, print_json, print_table, size

if TYPE_CHECKING:
    from modyn.cache.measuring import MeasuredPart
    from modyn.cache.profile import CacheProfile
    from modyn.trainer_server.profiled_pipeline import ProfiledPipeline

app = typer.Typer(no_args_is_help=True)

SHOWN_TIES: Final = 5
"""Splits as good as the best that are named, of up to 5,151."""

PipelineFile = Annotated[Path, typer.Argument(help="Pipeline file.", show_default=False)]


@app.command()
def profile(
    file: PipelineFile,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="Measure for so long.")] = 60,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Threads or processes that read and decode: of all trainings that are to share the machine. Default: "
            "training.dataloader_workers.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure on this machine what decides about a cache for a pipeline's dataset, and keep it for `modyn cache plan`.

    Runs the pipeline's own code, here. Do it while nothing else runs: what takes processors or disks meanwhile is measured too.
    """
    started = time.perf_counter()  # Importing PyTorch takes some of the seconds.
    from modyn.cache.profile import profile_path, write_profile

    pipeline = _load(file)
    with connect() as client:
        info = client.dataset(pipeline.data.dataset_id)
        # Trainings are started in the folder of the services; the code that the pipeline names is looked for here.
        if "" not in sys.path:
            sys.path.insert(0, "")
        say(f"measuring dataset {info.name} for at most {seconds:g} s")
        from modyn.dataset.connections import DatasetSource
        from modyn.trainer_server.cache_profile import measure_profile
        from modyn.trainer_server.store_rates import known_stores

        measured = measure_profile(
            DatasetSource(client.config, info.name, pipeline.training.parallel_prefetch_requests),
            pipeline,
            info,
            seconds=max(1.0, seconds - (time.perf_counter() - started)),
            num_workers=workers,
            torch_threads=client.config.trainer_server.num_threads,
            stores=known_stores(client.config),
            progress=_show,
        )
        path = profile_path(client.config.state_dir, info.name, measured.data_digest)
        write_profile(path, measured)
    if json:
        print_json(measured)
    else:
        print_profile(measured)
    for note in measured.notes:
        say(note)
    say(f"kept in {path}; `modyn cache plan {file}` predicts from it")


@app.command()
def plan(
    file: PipelineFile,
    cache_size: Annotated[str, typer.Option("--size", help="Size of the cache, e.g. 2GB or 512MiB.")] = "2GB",
    jobs: Annotated[int, typer.Option(min=1, max=10_000, help="Trainings that share it, at once and over the same samples.")] = 1,
    split: Annotated[
        str | None,
        typer.Option(
            "--split", help="The split in use, to compare: percents encoded-decoded-augmented, e.g. 58-42-0.", show_default=False
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw all splits into this file, *.svg.", dir_okay=False, show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Predict what a cache would bring to a pipeline: the best split, those with one form, today's, and none.

    By what `modyn cache profile` has measured; nothing is measured or changed.
    """
    from modyn.cache.performance_model import Split, predict
    from modyn.cache.profile import profile_path, read_profile
    from modyn.cache.split_plan import plan_cache
    from modyn.cache.split_table import check_cache_size, compare_splits

    if picture is not None and picture.suffix != ".svg":
        raise typer.BadParameter(f"{picture} is drawn as SVG; give a name that ends in .svg", param_hint="--picture")
    num_bytes, today = _bytes(cache_size), Split.parse(split) if split is not None else None
    pipeline = _load(file)
    path = profile_path(system_config().state_dir, pipeline.data.dataset_id, pipeline.data_digest)
    measured = read_profile(path)
    check_cache_size(num_bytes, measured.memory_bytes, measured.encoded_bytes)
    _check_dataset(measured)
    workload = measured.workload
    stores = {name: measured.cache_store(name, num_bytes) for name in measured.stores}
    planned = plan_cache(workload, stores, jobs)
    name = planned.cache or next(iter(stores))
    predictions = predict(workload, stores[name], jobs)
    rows, ties = compare_splits(predictions, today), [str(tie) for tie in predictions.ties()]
    if picture is not None:
        _draw(picture, f"{measured.dataset}: {size(num_bytes)} of {name}, {_trainings(jobs)}", predictions, today)
    if json:
        print_json(
            {
                "dataset": measured.dataset,
                "measured_at": measured.measured_at,
                "size_bytes": num_bytes,
                "jobs": jobs,
                "store": name,
                "cache": planned.cache,
                "split": None if planned.split is None else str(planned.split),
                "reason": planned.reason,
                "splits": rows,
                "num_ties": len(ties),
                "ties": ties[:SHOWN_TIES],
            }
        )
    else:
        print_table(
            ["use of the cache", "split", "samples/s", "below the best"],
            [[row.name, row.split or "–", _rounded(row.samples_per_s), f"{100 * row.regret:.2f} %"] for row in rows],
        )
    say(planned.reason)
    if len(ties) > 1:
        shown = ", ".join(ties[:SHOWN_TIES]) + (", …" if len(ties) > SHOWN_TIES else "")
        say(f"{len(ties):,} splits are as good as the best: {shown}")
    for note in plan_notes(measured, pipeline, jobs):
        say(note)


def plan_notes(measured: CacheProfile, pipeline: ProfiledPipeline, jobs: int) -> list[str]:
    """What a prediction rests on, in sentences: when it was measured, and in which way a pipeline or its number differs from that."""
    notes = [f"Measured {clock(measured.measured_at)} on {measured.machine}; stores: {', '.join(measured.stores)}."]
    if measured.training != pipeline.trained:
        notes.append(
            f"The accelerator was measured with {measured.training}, and this is {pipeline.trained}: `modyn cache profile` measures anew."
        )
    workers = jobs * pipeline.training.dataloader_workers
    if jobs > 1:
        notes.append(f"Throughput is that of all {jobs} trainings together, which share the rates of the machine.")
    if workers > measured.num_workers:
        notes.append(
            f"{_trainings(jobs)} {'has' if jobs == 1 else 'have'} {workers} workers, and rates are those of {measured.num_workers}: "
            f"`modyn cache profile --workers {workers}` measures what they do together."
        )
    return notes


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again every 2 s, until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show what the cache holds, and what it has served to the newest trainings.

    Of each tier: its budget, what of that is used, samples, and namespaces (datasets, each as one kind of code decodes it). Of each training
    that has ended: how many samples came from storage and from each tier, how many were decoded for each that was served, and the seconds
    of preparing that this saved: an estimate, only where `modyn cache profile` has measured the dataset. With --watch and --json, one line a
    look. A Redis that several installations share is shown as a whole.
    """
    from modyn.cli.cache_status import read_status, show
    from modyn.cli.cache_status import watch as look_again

    config = system_config()
    if watch:
        look_again(lambda: read_status(config), json=json)
    else:
        show(read_status(config), json=json)


@app.command()
def clear(
    tier: Annotated[
        str | None, typer.Option("--tier", help="Only this tier: encoded, decoded or augmented.", show_default=False)
    ] = None,
) -> None:
    """Forget all cached samples and the budgets, in shared memory and in Redis. Nothing else is lost.

    Trainings that run go on, and keep samples again: they read meanwhile from storage. In a Redis that several installations share, those of
    all are forgotten. Another size of the cache needs no clearing: it holds once no training has used the old one for ten seconds.
    """
    from modyn.cache.stores import TIERS, clear_memory, clear_redis
    from modyn.cli.cache_status import redis_url
    from modyn.state_folders import shared_folder

    chosen = tuple(name for name in TIERS if tier in (None, name))
    if not chosen:
        raise typer.BadParameter(f"'{tier}' is no tier; allowed are {', '.join(TIERS)}", param_hint="--tier")
    config = system_config()
    say(f"shared memory: forgot {size(clear_memory(shared_folder(config.state_dir), chosen))}")
    if (url := redis_url(config)) is not None:
        say(f"Redis: forgot {size(clear_redis(url, chosen))}")


def print_profile(measured: CacheProfile) -> None:
    """Print the parameters of the performance model, with their units and their names in the paper."""
    stores = [
        (f"{name}, {what}", rate, "bytes/s", paper)
        for name, rates in measured.stores.items()
        for what, rate, paper in (("written", rates.write_bytes_per_s, ""), ("read", rates.read_bytes_per_s, "B_cache"))
    ]
    rows = [
        ("samples", measured.num_samples, "", "N_total"),
        ("a sample, encoded", measured.encoded_bytes, "bytes", "S_data"),
        *(
            (f"a sample, {form}", "not kept" if num_bytes is None else num_bytes, "bytes", "M × S_data")
            for form, num_bytes in (("decoded", measured.decoded_bytes), ("augmented", measured.augmented_bytes))
        ),
        ("storage, read in random order", measured.storage_bytes_per_s, "bytes/s", "B_storage"),
        *stores,
        ("decoding and augmenting", measured.decode_and_augment_samples_per_s, "samples/s", "T_D+A"),
        ("augmenting", measured.augment_samples_per_s, "samples/s", "T_A"),
        (f"training, {measured.training}", measured.accelerator_samples_per_s, "samples/s", "T_GPU"),
    ]
    print_table(["parameter", "value", "unit", "in the paper"], [[name, _rounded(value), *rest] for name, value, *rest in rows])
    say(
        f"{measured.machine}; workers: {measured.num_workers}; {measured.num_measured:,} samples decoded; {measured.seconds:.0f} s in all"
    )


def _rounded(value: float | str) -> str:
    """Whole numbers from 1,000 on, four digits below."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _trainings(jobs: int) -> str:
    return "1 training" if jobs == 1 else f"{jobs:,} trainings"


def _load(file: Path) -> ProfiledPipeline:
    from modyn.config.overrides import read_pipeline
    from modyn.trainer_server.profiled_pipeline import load_profiled

    return load_profiled(read_pipeline(file), str(file))


def _bytes(text: str) -> int:
    """Raises InvalidArgumentError: this is no size of a cache."""
    from modyn.config.sizes import parse_size
    from modyn.errors import InvalidArgumentError

    try:
        found = parse_size(text)
    except ValueError as error:
        raise InvalidArgumentError(f"--size: {error}") from None
    if found < 1:
        raise InvalidArgumentError(f"--size: a cache of {text!r} holds nothing; give more, for example 2GB")
    return found


def _check_dataset(measured: CacheProfile) -> None:
    """Where services run, check that the dataset is still the one that was measured. Raises: NotFoundError, ConflictError."""
    from modyn.errors import ConflictError, UnavailableError

    if not services_run():
        return
    try:
        with connect() as client:
            identity = client.dataset(measured.dataset).identity
    except UnavailableError as error:
        say(f"whether dataset {measured.dataset} is still the one that was measured is not known: {error.message}")
        return
    if identity != measured.dataset_identity:
        raise ConflictError(
            f"dataset '{measured.dataset}' was registered anew since it was measured; measure it again by `modyn cache profile PIPELINE.yaml`"
        )


def _show(part: MeasuredPart) -> None:
    say(f"  {part.name}: {part.seconds:.0f} s")


def _draw(picture: Path, title: str, predictions: Any, today: Any) -> None:
    from modyn.analysis.cache_picture import splits_svg
    from modyn.atomic_write import replacing, writing_for_user

    with writing_for_user(picture), replacing(picture) as file:
        file.write(splits_svg(title, predictions, None if today is None else {"today": today}).encode())
    say(f"wrote {picture}")
