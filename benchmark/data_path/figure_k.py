"""A small grid like the paper's Figure 15: which settings are fastest when."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product

from benchmark.data_path.figure import Case, Figure, Result, Setting
from benchmark.data_path.heat_map import heat_map
from benchmark.data_path.installation import Installation, installation
from benchmark.data_path.records import BATCH_SIZE, LAYOUT, records_dataset, write_records
from benchmark.data_path.side_process import SideProcesses
from benchmark.data_path.training_side import ShortCut, TrainingProcess
from benchmark.machine import REPORTS, dated

WORKERS, PREFETCHED, REQUESTS, STORAGE_THREADS, PARTITIONS = (1, 2), (1, 2, 6), (1, 2), (1, 2), (100_000, 1_000_000)


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    folder = write_records(setting.folder / "records", setting.samples)
    partitions = sorted({min(size, setting.samples) for size in PARTITIONS})
    data = {"dataset_id": "records", "record_layout": LAYOUT}
    cases = []
    with SideProcesses() as processes, _installations(setting) as all_services:
        for threads, services in all_services.items():
            services.ingest(records_dataset("records", folder), setting.samples)
            sets = [services.trigger_set(f"of-{size}", "records", size) for size in partitions]
            # Where workers gather themselves, threads of storage have nothing to do.
            short_cuts: list[ShortCut] = ["off", "on"] if threads == STORAGE_THREADS[0] else ["off"]
            for short_cut in short_cuts:
                training = TrainingProcess(processes, services, short_cut)
                served = "short cut" if short_cut == "on" else f"{threads} storage thread{'s' if threads > 1 else ''}"
                for trigger_set, workers, prefetched, requests in product(sets, WORKERS, PREFETCHED, REQUESTS):
                    if requests > prefetched:
                        continue
                    side = training.side(
                        trigger_set,
                        data,
                        workers,
                        batch_size=BATCH_SIZE,
                        num_prefetched_partitions=prefetched,
                        parallel_prefetch_requests=requests,
                    )
                    row = f"{trigger_set.partition_size // 1000} k, {served}"
                    # Not cold: the grid is about what waits for what between processes.
                    cases.append(Case(f"{row}: {workers}/{prefetched}/{requests}", None, side, None, cold=False))
        yield cases


@contextmanager
def _installations(setting: Setting) -> Iterator[dict[int, Installation]]:
    """Installations, one for each number of storage threads, which is fixed when storage starts."""
    with ExitStack() as stack:
        found = {}
        for threads in STORAGE_THREADS:
            folder = setting.folder / f"threads-{threads}"
            folder.mkdir()
            found[threads] = stack.enter_context(installation(folder, storage={"num_threads": threads}))
        yield found


def conclude(results: Sequence[Result], name: str) -> str:
    """Write the grid as CSV and as a heat map next to the report."""
    cells = {tuple(result.case.name.split(": ")): statistics.median(run.value for run in result.ours) for result in results}
    stem = REPORTS / dated(name)
    REPORTS.mkdir(exist_ok=True)
    with stem.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["partition and data plane", "workers/prefetched partitions/parallel requests", "samples per second"])
        writer.writerows([row, column, round(value)] for (row, column), value in cells.items())
    title = "Samples/s (x 1000) by workers / prefetched partitions / parallel requests"
    stem.with_suffix(".svg").write_text(heat_map(title, {cell: value / 1000 for cell, value in cells.items()}))
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    table = [f"| x 1000 samples/s | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    table += [f"| {row} | {' | '.join(f'{cells[row, column] / 1000:,.0f}' for column in columns)} |" for row in rows]
    (best_row, best_column), best = max(cells.items(), key=lambda cell: cell[1])
    return (
        f"Columns: workers / prefetched partitions / parallel requests. [Plot]({stem.name}.svg), [CSV]({stem.name}.csv).\n\n"
        + "\n".join(table)
        + f"\n\nBest: {best_row}, {best_column} with {best / 1000:,.0f} k samples/s."
    )


FIGURE = Figure(
    "k",
    "grid of workers, prefetched partitions, parallel requests, storage threads and partition size",
    "samples/s",
    samples=2_000_000,
    smoke_samples=3_000,
    prepare=prepare,
    pairs=3,
    conclude=conclude,
)
