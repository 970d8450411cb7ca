"""Throughput by split and size of the cache: what the performance model predicts from what is measured of this machine, against what is measured.

    python -m benchmark.cache predict [--samples 2000] [--splits 16] [--sizes 0.25 0.5 1.0] [--rounds 3] [--store memory] [--report]
    python -m benchmark.cache predict --samples 300 --splits 5 --sizes 0.3 0.6 1.0 --epochs 2 --rounds 1 --seconds 15     (in two minutes)

One training over JPEG files of about 100 KB, which reads and does not train; so nothing of the cache is for augmented samples, of which a single
training has no gain. Each split is read in steady state: the epoch in which the cache fills is not counted. The last line gives Pearson's
correlation over all splits and sizes (goal: at least 0.9), and by which part the chosen split misses the best of those that were measured, at the
size where that is worst (goal: at most 0.05).

Equation 9 of the model is a mean of rates; samples that come one after the other take the mean of their times. The last column but one has
the prediction that follows from times, for comparison.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from torch import nn

from benchmark.cache.reading import BATCH_SIZE, RESIZED, Images, command, images
from benchmark.evidence.scatter import Point, scatter
from benchmark.machine import REPORTS, busy_cores, dated, write_report
from modyn.cache.keys import TierName
from modyn.cache.measuring import BufferStore
from modyn.cache.performance_model import CacheStore, Split, Workload, access_rates, predict, samples_by_way, storage_limits
from modyn.cache.profile import CacheProfile
from modyn.cache.tier import StoreName
from modyn.config.base import Section
from modyn.config.pipeline import ModelReference
from modyn.models import MODELS
from modyn.registry import Plugin
from modyn.trainer_server.cache_profile import measure_profile
from modyn.trainer_server.config import TrainingConfig
from modyn.trainer_server.profiled_pipeline import ProfiledPipeline

NAME = "cache-predict"
PROFILED: Final = 3 * 16e6
"""Bytes that the stores hold while they are measured: more than the profile keeps of samples."""


class MeanColour(nn.Module):
    """A model of the images as they are read. The profile wants one; nothing is trained here."""

    class Config(Section):
        """It has no options."""

    def __init__(self, _: Config) -> None:
        super().__init__()
        self.last = nn.Linear(3, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(images.float().mean((2, 3)))  # type: ignore[no-any-return]


class Outcome(NamedTuple):
    """A split of a cache of one size. Rates are samples/s."""

    size: float
    split: Split
    predicted: float
    by_times: float
    """Predicted, if the mean is taken of times."""
    rounds: tuple[float, ...]
    """Measured."""

    @property
    def measured(self) -> float:
        """The median."""
        return statistics.median(self.rounds)


def main() -> None:
    """Measure, and print the last line `predict: 0.95, 0.02`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--splits", type=int, default=16, help="of each size, beside the one that the model chooses")
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.25, 0.5, 1.0], help="of the cache, as a part of the decoded bytes")
    parser.add_argument("--epochs", type=int, default=2, help="after the first one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes that decode")
    parser.add_argument("--seconds", type=float, default=60.0, help="for the profile")
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
    correlation = correlations(outcomes)
    body = (
        f"{size}, decoded and resized to 192 KB each, {options.workers} processes, {options.epochs} epochs after one that is not counted; store: "
        f"{options.store}; medians of {options.rounds} rounds. Cores that other programs kept busy just before: {busy:.1f}.\n\n"
        f"{parameters(profile, options.store)}\n\nWithout a cache: {plain:,.0f} samples/s measured, {without:,.0f} predicted.\n\n"
        f"{correlation}\n\n{choices(outcomes)}\n\n{table(outcomes)}"
    )
    print(body)
    if options.report:
        path = REPORTS / f"{dated(NAME)}.svg"
        points = {f"{o.size:.0%} {o.split}": Point(o.predicted, o.measured / 100) for o in outcomes}
        path.write_text(scatter("Throughput of splits", ("predicted, samples/s", "measured, samples/s"), points))
        print(f"report: {write_report(NAME, command('predict', options), f'{body}\n\n![Throughput of splits]({path.name})')}")
    print(f"predict: {pearson(outcomes):.3f}, {worst:.3f}")
