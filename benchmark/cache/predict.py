"""Throughput by split and size of the cache: the performance model's predictions from measurements of this machine, against measured throughput.

    python -m benchmark.cache predict [--samples 2000] [--splits 16] [--sizes 0.25 0.5 1.0] [--rounds 3] [--store memory] [--report]
    python -m benchmark.cache predict --samples 300 --splits 5 --sizes 0.3 0.6 1.0 --epochs 2 --rounds 1 --seconds 15     (in two minutes)

One training over JPEG files of about 100 KB, which reads and does not train; so nothing of the cache is for augmented samples, of which a single
training has no gain. Each split is read in steady state: the epoch in which the cache fills is not counted, nor the last one. The last line gives
Pearson's correlation over all splits and sizes (goal: at least 0.9), and by which part the chosen split misses the best of those that were measured,
at the size where that is worst (goal: at most 0.05).

Equation 9 of the paper is a mean of rates; samples that come one after the other take the mean of their times, by which caches are planned here. The
last column but one has the prediction of equation 9, for comparison.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import pearsonr, spearmanr

from benchmark.cache.point_chart import point_chart
from benchmark.cache.profiled import profiled
from benchmark.cache.reading import Images, command, images
from benchmark.machine import REPORTS, busy_cores, dated, write_report
from modyn.cache.keys import TierName
from modyn.cache.plan.performance_model import Split, Workload, predict, storage_limits
from modyn.cache.plan.profile import CacheProfile

NAME = "cache-predict"


class Outcome(NamedTuple):
    """Split of a cache of one size. Rates are samples/s."""

    size: float
    split: Split
    predicted: float
    by_rates: float
    """Rate by equation 9 of the paper."""
    rounds: tuple[float, ...]
    """Measured rates."""
    is_chosen: bool
    """Whether the model chooses this split for this size."""

    @property
    def measured(self) -> float:
        """Median of the measured rates."""
        return statistics.median(self.rounds)


def main() -> None:
    """Measure, and print the last line `predict: 0.95, 0.02`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--splits", type=int, default=16, help="of each size, in addition to the one that the model chooses")
    parser.add_argument(
        "--sizes", type=float, nargs="+", default=[0.25, 0.5, 1.0], help="sizes of the cache, as shares of the decoded bytes"
    )
    parser.add_argument("--epochs", type=int, default=2, help="counted epochs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes that decode")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds for the profile")
    parser.add_argument("--store", choices=("memory", "redis"), default="memory")
    parser.add_argument("--report", action="store_true", help="write a dated report with a picture below benchmark/reports/")
    options = parser.parse_args()
    busy = busy_cores()
    with images(options.samples) as found:
        profile = profiled(found, options.store, options.seconds, options.workers)
        print(parameters(profile, options.store), flush=True)
        outcomes = measure(found, profile, options)
        plain = statistics.median(_rate(found, None, options, number) for number in range(options.rounds))
        size = f"{options.samples:,} files of {found.mean_bytes / 1000:.0f} KB"
    workload = reading(profile)
    without = min(storage_limits(workload, None).values())
    worst = max(missed(outcomes).values())
    body = (
        f"{size}, decoded and resized to 192 KB each, {options.workers} processes, {options.epochs} epochs between two that are not counted; store: "
        f"{options.store}; medians of {options.rounds} rounds. Cores that other programs kept busy just before: {busy:.1f}.\n\n"
        f"{parameters(profile, options.store)}\n\nWithout a cache: {plain:,.0f} samples/s measured, {without:,.0f} predicted.\n\n"
        f"{correlations(outcomes)}\n\n{choices(outcomes)}\n\n{table(outcomes)}"
    )
    print(body)
    if options.report:
        path = REPORTS / f"{dated(NAME)}.svg"
        points = {
            f"cache for {size:.0%}": [(o.predicted, o.measured) for o in outcomes if o.size == size] for size in options.sizes
        }
        path.write_text(point_chart("Throughput of splits", ("predicted, samples/s", "measured, samples/s"), points))
        body += f"\n\n![Throughput of splits]({path.name})"
        print(f"report: {write_report(NAME, command('predict', options), body)}")
    print(f"predict: {correlation([o.predicted for o in outcomes], [o.measured for o in outcomes]):.3f}, {worst:.3f}")


def reading(profile: CacheProfile) -> Workload:
    """Return the workload of trainings that only read: no accelerator limits them."""
    workload = profile.workload
    return dataclasses.replace(workload, nodes=dataclasses.replace(workload.nodes, accelerator_samples_per_s=math.inf))


def measure(found: Images, profile: CacheProfile, options: argparse.Namespace) -> list[Outcome]:
    """Measure all splits of all sizes, those of one size in a row; every second round runs in reverse order."""
    workload, outcomes = reading(profile), list[Outcome]()
    for size in options.sizes:
        budget = found.budget(size)
        store = profile.cache_store(options.store, budget)
        predictions = predict(workload, store, num_trainings=1, by_times=True)
        by_rates = predict(workload, store, num_trainings=1)
        splits = dict.fromkeys([*spaced(options.splits), predictions.best])
        rounds: dict[Split, list[float]] = {split: [] for split in splits}
        for number in range(options.rounds):
            for split in list(splits)[:: -1 if number % 2 else 1]:
                budgets: dict[TierName, int] = {
                    "encoded": budget * split.encoded // 100,
                    "decoded": budget * split.decoded // 100,
                }
                rounds[split].append(_rate(found, budgets, options, number))
        for split in splits:
            predicted = predictions.of(split), by_rates.of(split)
            outcomes.append(Outcome(size, split, *predicted, tuple(rounds[split]), split == predictions.best))
            print(_row(outcomes[-1]), flush=True)
    return outcomes


def spaced(number: int) -> list[Split]:
    """Give `number` splits between encoded and decoded samples, at even distances.

    >>> [str(split) for split in spaced(3)]
    ['100-0-0', '50-50-0', '0-100-0']
    """
    return [Split(100 - decoded, decoded, 0) for decoded in np.linspace(0, 100, number).round().astype(int).tolist()]


def _rate(found: Images, budgets: Mapping[TierName, int] | None, options: argparse.Namespace, seed: int) -> float:
    cache = None if budgets is None else found.cache(options.store, budgets)
    # Nor is the last one, of which the first batches are made in the one before, as those of the first that counts were.
    seconds = found.read(cache, options.epochs + 2, options.workers, seed)[1:-1]
    return found.trigger_set.num_keys * len(seconds) / sum(seconds)


def correlation(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return Pearson's correlation."""
    return float(pearsonr(predicted, measured).statistic)


def correlations(outcomes: Sequence[Outcome]) -> str:
    """Return a table of both correlations of both predictions."""
    measured = [o.measured for o in outcomes]
    predictions = {
        "as the model predicts": [o.predicted for o in outcomes],
        "by equation 9 of the paper": [o.by_rates for o in outcomes],
    }
    rows = [
        f"| {name} | {correlation(values, measured):.3f} | {spearmanr(values, measured).statistic:.3f} | {_off(values, measured):.0%} |"
        for name, values in predictions.items()
    ]
    head = f"| {len(outcomes)} splits | Pearson | Spearman | median of what it is off by |\n|---|---|---|---|"
    return "\n".join([head, *rows])


def _off(predicted: Sequence[float], measured: Sequence[float]) -> float:
    return statistics.median(abs(one / other - 1) for one, other in zip(predicted, measured, strict=True))


def chosen(outcomes: Sequence[Outcome]) -> dict[float, tuple[Outcome, Outcome]]:
    """Return, by size, the split that the model chooses, and the one with the largest measured throughput."""
    choices = {o.size: o for o in outcomes if o.is_chosen}
    return {
        size: (choice, max((o for o in outcomes if o.size == size), key=lambda o: o.measured)) for size, choice in choices.items()
    }


def missed(outcomes: Sequence[Outcome]) -> dict[float, float]:
    """Return, by size, the share of the best measured throughput that the chosen split misses."""
    return {size: 1 - choice.measured / best.measured for size, (choice, best) in chosen(outcomes).items()}


def choices(outcomes: Sequence[Outcome]) -> str:
    """Return a row for each size."""
    rows = [
        f"| {size:.0%} | {choice.split} | {choice.measured:,.0f} | {best.split} | {best.measured:,.0f} | {1 - choice.measured / best.measured:.1%} |"
        for size, (choice, best) in chosen(outcomes).items()
    ]
    return "\n".join(["| cache for | chosen | samples/s | best | samples/s | missed |", "|---|---|---|---|---|---|", *rows])


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a row for each split."""
    head = "| cache for | split | predicted | by equation 9 | measured |\n|---|---|---|---|---|"
    return "\n".join([head, *map(_row, outcomes)])


def _row(o: Outcome) -> str:
    measured = f"{o.measured:,.0f} ({min(o.rounds):,.0f}–{max(o.rounds):,.0f})"
    return f"| {o.size:.0%} | {o.split} | {o.predicted:,.0f} | {o.by_rates:,.0f} | {measured} |"


def parameters(profile: CacheProfile, store: str) -> str:
    """Return the results of the profile in a sentence."""
    return (
        f"Profile: storage {profile.storage_bytes_per_s / 1e6:,.0f} MB/s, {store} {profile.stores[store].read_bytes_per_s / 1e6:,.0f} MB/s, "
        f"decoding and augmenting {profile.decode_and_augment_samples_per_s:,.0f} samples/s, augmenting {profile.augment_samples_per_s:,.0f} "
        f"samples/s; a sample has {profile.encoded_bytes / 1e3:,.0f}, {(profile.decoded_bytes or 0) / 1e3:,.0f} and "
        f"{(profile.augmented_bytes or 0) / 1e3:,.0f} KB in its three forms."
    )
