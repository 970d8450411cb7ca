"""`modyn cache`: whether a cache of prepared samples would help and how to divide it, what it holds and what trainings had of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from modyn.cli.context import Json, client_of_this_machine, connect, say, services_run, system_config
from modyn.cli.output import print_json, print_table, size

if TYPE_CHECKING:
    from modyn.cache.measuring import MeasuredPart
    from modyn.cache.performance_model import Split
    from modyn.cache.profile import CacheProfile

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
    from modyn.cache.profile import profile_path
    from modyn.rpc.environment import look_here_last
    from modyn.state_folders import keep_private

    _check(file)
    with connect() as client:
        keep_private()
        look_here_last()  # Trainings look in the folder of the services.
        say(f"measuring for about {seconds:g} s")
        measured = client.profile_cache(file, seconds=seconds, workers=workers, progress=_show)
        path = profile_path(client.config.state_dir, measured.dataset, measured.data_digest)
    if json:
        print_json(measured)
    else:
        print_profile(measured)
    for note in (*measured.notes, *measured.too_little):
        say(note)
    say(f"kept in {path}; `modyn cache plan {file}` predicts from it")


@app.command()
def plan(
    file: PipelineFile,
    cache_size: Annotated[
        str | None,
        typer.Option("--size", help="Size of the cache, e.g. 2GB or 512MiB. Default: `cache.size`, or 2GB.", show_default=False),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Trainings that share it, at once and over the same samples. Default: `cache.jobs`, or 1.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            help="The split in use, to compare: percents encoded-decoded-augmented, e.g. 58-42-0. Default: `cache.split`, if it is one.",
            show_default=False,
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw all splits into this file, *.svg.", dir_okay=False, show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Predict what a cache would bring to a pipeline: the best split, those with one form, today's, and none.

    By what `modyn cache profile` has measured; nothing is measured or changed. What is not given is taken from the section `cache` of the pipeline
    or the system file. The store and the split are those that a training on this machine uses with `split: auto`.
    """
    from modyn.trainer_server.cache_planning import trainings

    if picture is not None and picture.suffix != ".svg":
        raise typer.BadParameter(f"{picture} is drawn as SVG; give a name that ends in .svg", param_hint="--picture")
    with connect() if services_run() else client_of_this_machine() as client:
        found = client.plan_cache(file, cache_size, jobs, split)
    measured, planned, ties = found.profile, found.plan, [str(tie) for tie in found.predictions.ties()]
    if picture is not None:
        title = f"{measured.dataset}: {size(found.size_bytes)} of {found.store}, {trainings(found.jobs)}"
        _draw(picture, title, found.predictions, found.in_use)
    if json:
        print_json(
            {
                "dataset": measured.dataset,
                "measured_at": measured.measured_at,
                "size_bytes": found.size_bytes,
                "jobs": found.jobs,
                "store": found.store,
                "cache": planned.cache,
                "split": None if planned.split is None else str(planned.split),
                "reason": planned.reason,
                "splits": found.splits,
                "num_ties": len(ties),
                "ties": ties[:SHOWN_TIES],
            }
        )
    else:
        print_table(
            ["use of the cache", "split", "samples/s", "below the best"],
            [[row.name, row.split or "–", _rounded(row.samples_per_s), f"{100 * row.regret:.2f} %"] for row in found.splits],
        )
    say(planned.reason)
    if len(ties) > 1:
        shown = ", ".join(ties[:SHOWN_TIES]) + (", …" if len(ties) > SHOWN_TIES else "")
        say(f"{len(ties):,} splits are as good as the best: {shown}")
    for note in found.notes:
        say(note)


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again every 2 s, until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show what the cache holds, and what it has served to the newest trainings.

    Of each tier: its budget, what of that is used, samples, namespaces (datasets, each as one kind of code decodes it), and samples that were
    evicted. Of each training: how many samples came from storage and from each tier, how many were decoded for each that was served, those for
    the cache only included, how many its sampler evicted, and the seconds of preparing that this saved: an estimate, only where `modyn cache
    profile` has measured the dataset. With --watch and --json, one line a look. A Redis that several installations share is shown as a whole.
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
    """Forget all cached samples, the budgets, and what trainings decide together by, in shared memory and in Redis. Nothing else is lost.

    Trainings that run go on, and keep samples again: they read meanwhile from storage. In a Redis that several installations share, those of
    all are forgotten. Another size of the cache needs no clearing: it holds once no training has used the old one for ten seconds.
    """
    from modyn.cache.sharing.clearing import clear_memory_states, clear_redis_states
    from modyn.cache.stores import TIERS, clear_memory, clear_redis
    from modyn.cli.cache_status import redis_url
    from modyn.state_folders import shared_folder

    chosen = tuple(name for name in TIERS if tier in (None, name))
    if not chosen:
        raise typer.BadParameter(f"'{tier}' is no tier; allowed are {', '.join(TIERS)}", param_hint="--tier")
    config = system_config()
    folder, url = shared_folder(config.state_dir), redis_url(config)
    if tier is None:
        clear_memory_states(folder)
    say(f"shared memory: forgot {size(clear_memory(folder, chosen))}")
    if url is not None:
        freed = clear_redis(url, chosen)
        if tier is None:
            clear_redis_states(url)
        say(f"Redis: forgot {size(freed)}")


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


def _check(file: Path) -> None:
    """Whatever is wrong in the file is told before services are asked for. Raises: ConfigError."""
    from modyn.config.overrides import read_pipeline
    from modyn.trainer_server.profiled_pipeline import load_profiled

    load_profiled(read_pipeline(file), str(file))


def _show(part: MeasuredPart) -> None:
    say(f"  {part.name}: {part.seconds:.0f} s")


def _draw(picture: Path, title: str, predictions: Any, today: Split | None) -> None:
    from modyn.analysis.cache_picture import splits_svg
    from modyn.atomic_write import replacing, writing_for_user

    with writing_for_user(picture), replacing(picture) as file:
        file.write(splits_svg(title, predictions, None if today is None else {"today": today}).encode())
    say(f"wrote {picture}")
