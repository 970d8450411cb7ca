"""One training alone, several epochs over JPEG files of about 100 KB: with a cache for half of the samples or all, against none, and against
libraries that keep decoded samples on disk.

    python -m benchmark.cache single [--samples 2000] [--epochs 4] [--rounds 3] [--workers 2] [--report]
    python -m benchmark.cache single --samples 300 --epochs 2 --rounds 1 --records 200000             (in two minutes)

Counted is all of the time, from the start of the worker processes on, the first epoch too, in which the cache fills; and the last epoch by itself.
The libraries are Hugging Face datasets and torchdata (`make peers`; without, they are left out), with as many worker processes and the same decoding.
Where a cache cannot help: epochs over records of 160 bytes on a local disk that `record_layout` decodes, with a cache that is asked for and chosen by
`split: auto`, which is none; and epochs over the same files with room for all samples in shared memory, where training takes longer than reading
(the reader sleeps for twice the time of a batch). Both against no cache. The last line gives the ratios over all epochs with room for all samples in
shared memory, against no cache and against the better library, and the less of those where a cache cannot help (goal: at least 0.97).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmark.cache.bar_chart import bar_chart
from benchmark.cache.reading import BATCH_SIZE, CROPPED, RESIZED, Images, command, compared, images, ratio
from benchmark.data_path import records
from benchmark.data_path.figure import Missing, Side
from benchmark.data_path.peers import PYTHON, missing
from benchmark.data_path.side_process import SideProcesses
from benchmark.machine import REPORTS, busy_cores, dated, write_report
from modyn.cache.plan.tier_choice import SampleOrder
from modyn.cache.tiers.tier import StoreName
from modyn.config.base import load_section
from modyn.dataset.cached.pipeline_cache import training_cache
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetSource
from modyn.dataset.loader import BatchLoader
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.records import TriggerSetInfo

NAME = "cache-single"
STORES: Final[tuple[StoreName, ...]] = ("memory", "redis")
SHARES: Final = (0.5, 1.0)
PEERS: Final = {"Hugging Face datasets": ("datasets", "hugging_face"), "torchdata": ("torchdata.datapipes.iter", "torch_data")}
"""Package and program of a peer."""
PLAIN, GOAL = "no cache", "memory, room for 100%"


class Seconds(NamedTuple):
    """Seconds of one run."""

    whole: float
    last: float
    """The last epoch."""


Runs = Mapping[str, Sequence[Seconds]]
"""Seconds of each run, by side."""


def main() -> None:
    """Measure, and print the last line `single: 2.51 times no cache, …`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache single", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes that decode")
    parser.add_argument("--records", type=int, default=2_000_000, help="records of the dataset where a cache cannot help")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    busy = busy_cores()
    with images(options.samples) as found, SideProcesses() as processes:
        sides, absent = all_sides(found, processes, options)
        runs: dict[str, list[Seconds]] = {name: [] for name in sides}
        # A first round, which is not counted: it starts what later ones find running.
        for number in range(options.rounds + 1):
            for name in list(sides)[:: 1 if number % 2 else -1]:
                seconds = sides[name]()
                if number:
                    runs[name].append(seconds)
                    print(f"{name}: {seconds.whole:.2f} s, last epoch {seconds.last:.2f} s", flush=True)
        batch_s = statistics.median(seconds.last for seconds in runs[PLAIN]) * BATCH_SIZE / options.samples
        trained = compared(options.rounds, *(partial(_trained, found, cached, 2 * batch_s, options) for cached in (True, False)))
        read = no_help(found, options)
        size = f"{options.samples:,} files of {found.mean_bytes / 1000:.0f} KB"
    help_ratio = min(ratio(*read), ratio(*trained))
    body = (
        f"{size}, decoded and resized to 192 KB each, {options.epochs} epochs, {options.workers} processes, medians of {options.rounds} rounds. "
        f"Cores that other programs kept busy just before: {busy:.1f}.\n\n{table(runs)}\n\n"
        + "".join(f"Not measured: {name}, for {why}.\n\n" for name, why in absent.items())
        + f"Where a cache cannot help, {options.epochs} epochs:\n\n| | with a cache | without | ratio |\n|---|---|---|---|\n"
        + "\n".join(
            f"| {name} | {statistics.median(ours):.2f} s | {statistics.median(theirs):.2f} s | {ratio(ours, theirs):.3f} |"
            for name, (ours, theirs) in (
                (f"{options.records:,} records, a cache asked for", read),
                ("the same files, training takes twice as long as reading", trained),
            )
        )
    )
    print(body)
    if options.report:
        plain = [seconds.whole for seconds in runs[PLAIN]]
        times = {name: ratio([seconds.whole for seconds in found], plain) for name, found in runs.items()}
        path = REPORTS / f"{dated(NAME)}.svg"
        path.write_text(bar_chart(f"Speed over {options.epochs} epochs, without a cache 1", times, 1.0))
        body += f"\n\n![Speed over all epochs]({path.name})"
        print(f"report: {write_report(NAME, command('single', options), body)}")
    print(last_line(runs, help_ratio))


def all_sides(
    found: Images, processes: SideProcesses, options: argparse.Namespace
) -> tuple[Mapping[str, Callable[[], Seconds]], Mapping[str, str]]:
    """Return the sides by name, and those that are missing here, with the reason."""
    sides: dict[str, Callable[[], Seconds]] = {PLAIN: lambda: _ours(found, None, 0.0, options)}
    for store in STORES:
        for share in SHARES:
            sides[f"{store}, room for {share:.0%}"] = lambda store=store, share=share: _ours(found, store, share, options)  # type: ignore[misc]
    absent = {}
    folder = found.services.config_file.parent
    for name, (package, program) in PEERS.items():
        if isinstance(why := missing(package), Missing):
            absent[name] = why.reason
            continue
        task = {
            "files": str(folder / "images"),
            "folder": str(folder / program),
            "batch_size": BATCH_SIZE,
            "workers": options.workers,
        }
        process = processes.open(f"benchmark.cache.peers.{program}", {**task, "resized": RESIZED, "cropped": CROPPED}, PYTHON)
        ends = folder / f"{program}.json"
        side = process.side(name, options.epochs * options.samples, check=False, epochs=options.epochs, ends=str(ends))
        sides[name] = lambda side=side, ends=ends: _theirs(side, ends)  # type: ignore[misc]
    return sides, absent


def _ours(found: Images, store: StoreName | None, share: float, options: argparse.Namespace) -> Seconds:
    cache = None if store is None else found.cache(store, {"decoded": found.budget(share)})
    began = time.perf_counter()
    epochs = found.read(cache, options.epochs, options.workers)
    return Seconds(time.perf_counter() - began, epochs[-1])


def _trained(found: Images, cached: bool, train_s: float, options: argparse.Namespace) -> float:
    """Return the seconds of all epochs if training on each batch takes this long."""
    cache = found.cache("memory", {"decoded": found.budget(1.0)}) if cached else None
    began = time.perf_counter()
    with found.batches(cache, options.epochs, options.workers) as (batches, _):
        for _ in batches:
            time.sleep(train_s)
    return time.perf_counter() - began


def _theirs(side: Side, ends: Path) -> Seconds:
    side.run(lambda: None)
    at: list[float] = json.loads(ends.read_text())
    return Seconds(at[-1], at[-1] - (at[-2] if len(at) > 1 else 0.0))


def no_help(found: Images, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Return the seconds of epochs over records, with a requested cache and without a cache."""
    services, number = found.services, options.records
    services.ingest(
        records.records_dataset("records", records.write_records(services.config_file.parent / "records", number)), number
    )
    trigger_set = services.trigger_set("records", "records", number, number)
    section = {"dataset_id": "records", "record_layout": records.LAYOUT}
    data, info = load_section(DataConfig, section, "data"), services.client.dataset("records")

    settings = services.config.cache.overridden({"size": "64MB"})

    def read(cached: bool) -> float:
        began = time.perf_counter()
        if cached and training_cache(services.config, settings, data, info, SampleOrder()) is not None:
            raise RuntimeError("a cache was chosen where none can help")
        _read_records(trigger_set, data, DatasetSource(services.config, "records"), options)
        return time.perf_counter() - began

    return compared(options.rounds, lambda: read(True), lambda: read(False))


def _read_records(trigger_set: TriggerSetInfo, data: DataConfig, source: DatasetSource, options: argparse.Namespace) -> None:
    load = LoadOptions(records.BATCH_SIZE, drop_last=False, shuffle=True, seed=0, epochs=options.epochs)
    with BatchLoader(TriggerSetDataset(trigger_set, data, source.connect, load), options.workers) as loader:
        seen = sum(map(len, loader))
    if seen != options.epochs * trigger_set.num_keys:
        raise RuntimeError(f"{seen} records came, not {options.epochs} times {trigger_set.num_keys}")


def table(runs: Runs) -> str:
    """Return a row for each side, with its speed relative to no cache."""
    plain = runs[PLAIN]
    rows = []
    for name, found in runs.items():
        whole, last = ([getattr(seconds, part) for seconds in found] for part in Seconds._fields)
        ratios = [
            ratio(values, [getattr(seconds, part) for seconds in plain]) for part, values in (("whole", whole), ("last", last))
        ]
        rows.append(
            f"| {name} | {statistics.median(whole):.2f} s | {ratios[0]:.2f} | {statistics.median(last):.2f} s | {ratios[1]:.2f} |"
        )
    return "\n".join(["| side | all epochs | times no cache | last epoch | times no cache |", "|---|---|---|---|---|", *rows])


def last_line(runs: Runs, help_ratio: float) -> str:
    """Return the result in words.

    >>> last_line({"no cache": [Seconds(9, 3)], "memory, room for 100%": [Seconds(3, 1)], "torchdata": [Seconds(6, 2)]}, 0.99)
    'single: 3.00 times no cache, 2.00 times the best library, 0.99 where a cache cannot help'
    """
    whole = {name: [seconds.whole for seconds in found] for name, found in runs.items()}
    peers = [ratio(whole[GOAL], whole[name]) for name in PEERS if name in whole]
    against = f"{min(peers):.2f} times the best library" if peers else "no library to compare with"
    return f"single: {ratio(whole[GOAL], whole[PLAIN]):.2f} times no cache, {against}, {help_ratio:.2f} where a cache cannot help"
