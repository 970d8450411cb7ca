"""Rows a second of the whole preprocessing of clicks, statistics and features, compared with scikit-learn on the same batches.

    python -m benchmark.online statistics [--rows 100000] [--batch-sizes 256 1000 10000] [--rounds 5] [--report]

Both sides fill 13 numbers, scale them, encode 26 categories, and give one batch of float32 features for each batch of Arrow columns. The statistics
of ours include the vocabularies, which grow while they are bounded (10,000 a column), counts of unseen and missing values, and the means that are
filled in. scikit-learn has no such thing for all of it, so that its side is given what is fastest, and is compared in two ways:

hasher     numbers: a running mean by numpy (SimpleImputer has no partial_fit), StandardScaler.partial_fit, transform; categories: FeatureHasher (2^18
           features, no vocabulary at all) over lists of "column=value", which is the fastest of its inputs
one-hot    numbers the same; categories: OneHotEncoder(handle_unknown="ignore"), which was fitted before on the first tenth of the rows, and is only
           transformed with: its vocabularies do not grow, and its fit is not counted

The ratio is against the faster of both at the same size of batches: of medians of rounds in turn, the first of which does not count. Goal: at
least 1.5 at each size. What turns Arrow columns into what scikit-learn reads (numpy matrices of numbers and of Python strings) counts, as ours reads
Arrow too; the last column leaves it out, for those whose data is there already.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.sparse as sp
from sklearn.feature_extraction import FeatureHasher
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmark.machine import busy_cores, write_report
from benchmark.online.clicks import CATEGORIES, NUMBERS, ClickStream
from modyn.preprocessing import Preprocessing

NAME = "online-statistics"
TARGET = 1.5
SECTION = {
    "columns": {**dict.fromkeys(NUMBERS, "number"), **dict.fromkeys(CATEGORIES, "category")},
    "components": [
        {"id": "Imputer", "strategy": "mean"},
        {"id": "StandardScaler"},
        {"id": "OneHotEncoder", "max_categories": 10_000},
    ],
}
Batch = Mapping[str, pa.Array]
SIDES = ("ours", "hasher", "one-hot")


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one pass over a stream. converting: part of them that converts Arrow to the input of the side."""

    seconds: float
    converting: float = 0.0


def ours(batches: Sequence[Batch]) -> Timed:
    """Update all statistics and transform, batch by batch."""
    preprocessing = Preprocessing(SECTION)
    begun = time.perf_counter()
    for batch in batches:
        preprocessing.update_and_transform(batch)
    return Timed(time.perf_counter() - begun)


class SklearnNumbers:
    """Code that users of scikit-learn write for numbers of a stream."""

    def __init__(self) -> None:
        self._sums, self._counts, self._scaler = np.zeros(len(NUMBERS)), np.zeros(len(NUMBERS)), StandardScaler()

    def __call__(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """Fill in the mean of earlier rows, and scale by their statistics. Args: values: float64 (n, 13), NaN if missing."""
        missing = np.isnan(values)
        self._sums += np.where(missing, 0, values).sum(axis=0)
        self._counts += (~missing).sum(axis=0)
        filled = np.where(missing, self._sums / np.maximum(self._counts, 1), values)
        scaled: npt.NDArray[np.float64] = self._scaler.partial_fit(filled).transform(filled)
        return scaled.astype(np.float32)


def number_matrix(batch: Batch) -> npt.NDArray[np.float64]:
    """Return the numbers as float64 (n, 13)."""
    return np.stack([batch[name].to_numpy(zero_copy_only=False) for name in NUMBERS], axis=1)


def category_matrix(batch: Batch) -> npt.NDArray[np.object_]:
    """Return the categories as Python strings (n, 26); missing ones are a category of their own."""
    return np.stack([batch[name].fill_null("").to_numpy(zero_copy_only=False) for name in CATEGORIES], axis=1)


def hasher(batches: Sequence[Batch]) -> Timed:
    """Numbers as `SklearnNumbers`, categories by FeatureHasher."""
    numbers, hashing, converting = SklearnNumbers(), FeatureHasher(1 << 18, input_type="string", dtype=np.float32), 0.0
    begun = time.perf_counter()
    for batch in batches:
        before = time.perf_counter()
        matrix = number_matrix(batch)
        columns = [[f"{name}={value}" for value in batch[name].to_pylist()] for name in CATEGORIES]
        rows = list(zip(*columns, strict=True))
        converting += time.perf_counter() - before
        sp.hstack([sp.csr_matrix(numbers(matrix)), hashing.transform(rows)], format="csr")
    return Timed(time.perf_counter() - begun, converting)


def one_hot(batches: Sequence[Batch]) -> Timed:
    """Numbers as above, categories by a OneHotEncoder that has seen the first tenth, of at most 10,000 categories a column."""
    numbers, encoder, converting = SklearnNumbers(), OneHotEncoder(handle_unknown="ignore", dtype=np.float32), 0.0
    encoder.fit(np.concatenate([category_matrix(batch) for batch in batches[: max(len(batches) // 10, 1)]]))
    begun = time.perf_counter()
    for batch in batches:
        before = time.perf_counter()
        matrix, categories = number_matrix(batch), category_matrix(batch)
        converting += time.perf_counter() - before
        sp.hstack([sp.csr_matrix(numbers(matrix)), encoder.transform(categories)], format="csr")
    return Timed(time.perf_counter() - begun, converting)


RUN: Mapping[str, Callable[[Sequence[Batch]], Timed]] = {"ours": ours, "hasher": hasher, "one-hot": one_hot}


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one size of batches. rates: median rows/s by side; converted: without the conversion from Arrow."""

    batch_size: int
    rates: Mapping[str, float]
    converted: Mapping[str, float]
    spread: tuple[float, float]
    """Rows/s of our slowest and fastest round."""

    @property
    def ratio(self) -> float:
        """Ratio of our rate to that of the faster side of scikit-learn."""
        return self.rates["ours"] / max(rate for side, rate in self.rates.items() if side != "ours")

    @property
    def converted_ratio(self) -> float:
        """The same ratio, if scikit-learn gets its input converted and we get Arrow."""
        return self.rates["ours"] / max(rate for side, rate in self.converted.items() if side != "ours")


def measure(stream: ClickStream, batch_size: int, rounds: int) -> Result:
    """Run all sides in turn, the order changing from round to round; the first round does not count."""
    batches = list(stream.batches(batch_size))
    timed: dict[str, list[Timed]] = {side: [] for side in SIDES}
    for number in range(rounds + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            found = RUN[side](batches)
            if number:
                timed[side].append(found)
    rows = stream.num_rows
    rates = {side: rows / statistics.median(found.seconds for found in timed[side]) for side in SIDES}
    converted = {side: rows / statistics.median(found.seconds - found.converting for found in timed[side]) for side in SIDES}
    times = [found.seconds for found in timed["ours"]]
    return Result(batch_size, rates, converted, (rows / max(times), rows / min(times)))


def table(results: Sequence[Result]) -> str:
    """Return the report as Markdown."""
    lines = [
        "| batch | ours, rows/s | scikit-learn with hasher | with one-hot | ratio | input converted before |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        rates, (low, high) = result.rates, result.spread
        lines.append(
            f"| {result.batch_size:,} | {rates['ours']:,.0f} ({low:,.0f}–{high:,.0f}) | {rates['hasher']:,.0f} | {rates['one-hot']:,.0f} | "
            f"**{result.ratio:.2f}** | {result.converted_ratio:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the last line `statistics: 4.56` with the smallest ratio."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.online statistics", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[256, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    busy = busy_cores()
    results = [measure(ClickStream(options.rows), size, options.rounds) for size in options.batch_sizes]
    worst = min(result.ratio for result in results)
    body = "\n\n".join(
        [
            f"{options.rows:,} rows of 13 numbers and 26 categories; medians of {options.rounds} rounds, sides in turn. Cores that other programs "
            f"kept busy just before: {busy:.1f}. What is compared: `python -m benchmark.online statistics --help`.",
            table(results),
            f"Smallest ratio: **{worst:.2f}** (target {TARGET}).",
        ]
    )
    print(body)
    if options.report:
        sizes = " ".join(map(str, options.batch_sizes))
        command = f"python -m benchmark.online statistics --rows {options.rows} --batch-sizes {sizes} --rounds {options.rounds} --report"
        write_report(NAME, command, body)
    print(f"statistics: {worst:.2f} (target {TARGET})")
