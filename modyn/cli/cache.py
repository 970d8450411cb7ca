"""`modyn cache`: predict the benefit of a cache of prepared samples, plan its split, and show its content and use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from modyn.cli.context import Json, client_of_this_machine, connect, say, services_run, system_config
from modyn.cli.views.output import print_json, print_table, size

if TYPE_CHECKING:
    from modyn.cache.plan.measuring import MeasuredPart
    from modyn.cache.plan.performance_model import Split
    from modyn.cache.plan.profile import CacheProfile

app = typer.Typer(no_args_is_help=True)

SHOWN_TIES: Final = 5
"""Largest number of listed splits that are equal to the best split. Up to 5,151 splits may be equal."""

PipelineFile = Annotated[Path, typer.Argument(help="Pipeline file.", show_default=False)]


@app.command()
def profile(
    file: PipelineFile,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="Seconds to measure.")] = 60,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Number of threads or processes that read and decode, for all trainings that share the machine. Default: "
            "training.dataloader_workers.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure the parameters of a cache for a pipeline's dataset on this machine, and store them for `modyn cache plan`.

    The command runs the pipeline's own code in this process. Use an idle machine: other load on processors and disks changes the result.
    """
    from modyn.cache.plan.profile import profile_path
    from modyn.rpc.environment import look_here_last
    from modyn.state_folders import keep_private

    _check(file)
    with connect() as client:
        keep_private()
        look_here_last()  # Imports of the pipeline's code find modules of the current folder, as in trainings.
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
            help="Number of concurrent trainings on the same samples that share the cache. Default: `cache.jobs`, or 1.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            help="The present split, for comparison: percentages encoded-decoded-augmented, e.g. 58-42-0. Default: `cache.split`, unless it is auto.",
            show_default=False,
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw all splits into this file, *.svg.", dir_okay=False, show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Predict the speed of a pipeline for several uses of a cache: with the best split, with one form of samples only, with the present split, and
    without a cache.

    The command uses the measurements of `modyn cache profile`, and changes nothing. Missing options come from the section `cache` of the pipeline
    or the system file. With `split: auto`, a training on this machine uses the same store and split.
    """
    from modyn.trainer_server.cache_plan.cache_planning import trainings

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
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update every 2 s, until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show the content of the cache, and what it served to the newest trainings.

    The row of a tier has budget, used bytes, and numbers of samples, of namespaces (a namespace is a dataset with one kind of decoding) and of
    evicted samples. The row of a training has the numbers of samples from storage and from each tier, of decodings per served sample (including
    those for the cache), and of samples that its sampler evicted. If `modyn cache profile` has measured the dataset, the row also has an estimate
    of the saved seconds of preparation. With --watch and --json, each update is one line. The rows of a Redis count samples of all its
    installations.
    """
    from modyn.cli.views.cache_status import read_status, show
    from modyn.cli.views.cache_status import watch as look_again

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
    """Remove all cached samples, the budgets, and the shared state of trainings, in shared memory and in Redis. Nothing else is lost.

    Running trainings continue, read from storage, and fill the cache again. If several installations share a Redis, the samples of all these
    installations are removed. A new size of the cache needs no clearing: it takes effect when no training has used the old size for ten seconds.
    """
    from modyn.cache.sharing.clearing import clear_memory_states, clear_redis_states
    from modyn.cache.tiers.stores import TIERS, clear_memory, clear_redis
    from modyn.cli.views.cache_status import redis_url
    from modyn.state_folders import shared_folder

    chosen = tuple(name for name in TIERS if tier in (None, name))
    if not chosen:
        raise typer.BadParameter(f"'{tier}' is not a tier; allowed are {', '.join(TIERS)}", param_hint="--tier")
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
    """Format a number: as a whole number if it is at least 1,000, otherwise with four digits."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _check(file: Path) -> None:
    """Check the file before services are started. Raises ConfigError."""
    from modyn.config.overrides import read_pipeline
    from modyn.models.names import with_sources
    from modyn.trainer_server.cache_plan.profiled_pipeline import load_profiled

    load_profiled(with_sources(read_pipeline(file), str(file)), str(file))


def _show(part: MeasuredPart) -> None:
    say(f"  {part.name}: {part.seconds:.0f} s")


def _draw(picture: Path, title: str, predictions: Any, today: Split | None) -> None:
    from modyn.analysis.charts.cache_picture import splits_svg
    from modyn.atomic_write import replacing, writing_for_user

    with writing_for_user(picture), replacing(picture) as file:
        file.write(splits_svg(title, predictions, None if today is None else {"today": today}).encode())
    say(f"wrote {picture}")
