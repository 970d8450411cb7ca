"""Candidates and chosen samples of a trigger, compared with counts by brute force."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.records import ClassCount, Float32Array, Int64Array, KeysAndWeights, RunId, SampleBatch
from modyn.selector.sample_log import SampleLog
from modyn.selector.summary import MOST_CLASSES, QUANTILES, ChosenSet, summarize
from modyn.selector.window import BLOCK


def log_of(folder: Path, samples: SampleBatch) -> SampleLog:
    log = SampleLog(RunId("run"), folder)
    log.create()
    log.append(0, samples)
    return log


def chosen(start: int, end: int, keys: Int64Array, weights: Float32Array | None = None, size: int = 7) -> ChosenSet:
    found = KeysAndWeights(keys, np.ones(len(keys), np.float32) if weights is None else weights)
    pieces = (KeysAndWeights(found.keys[at : at + size], found.weights[at : at + size]) for at in range(0, len(keys), size))
    return ChosenSet(start, end, len(keys), pieces)


@given(st.integers(0, 2**31), st.integers(1, 400), st.integers(0, 399))
def test_it_counts_what_brute_force_counts(tmp_path_factory: pytest.TempPathFactory, seed: int, size: int, first: int) -> None:
    draw, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("log")
    first = first % size
    before_first = int(draw.integers(0, first + 1))
    keys = draw.permutation(size * 3)[:size].astype(np.int64)
    times, labels = draw.integers(-50, 50, size), draw.integers(0, 5, size)
    log = log_of(folder, SampleBatch(keys, times, labels))
    kept = np.sort(draw.choice(np.arange(first, size), int(draw.integers(0, size - first + 1)), replace=False))
    earlier = np.sort(draw.choice(np.arange(before_first, size), int(draw.integers(0, size - before_first + 1)), replace=False))
    weights = draw.random(len(kept)).astype(np.float32)
    now, before = chosen(first, size, keys[kept], weights), chosen(before_first, size, keys[earlier])
    found = summarize(log, 3, now, before)
    assert (found.trigger_id, found.num_candidates, found.num_chosen) == (3, size - first, len(kept))
    assert found.num_shared == len(set(kept.tolist()) & set(earlier.tolist()))
    of_all, of_chosen = Counter(labels[first:].tolist()), Counter(labels[kept].tolist())
    assert found.classes == tuple(ClassCount(label, of_all[label], of_chosen[label]) for label in sorted(of_all))
    assert found.num_classes == len(of_all)
    ages = times[first:].max() - times
    assert found.candidate_ages == pytest.approx(np.quantile(ages[first:], QUANTILES))
    assert found.ages == (pytest.approx(np.quantile(ages[kept], QUANTILES)) if len(kept) else ())
    assert found.weights == (pytest.approx(np.quantile(weights, QUANTILES)) if len(kept) else ())


def test_more_than_a_block_of_the_stream(tmp_path: Path) -> None:
    size = 2 * BLOCK + 100
    keys = np.arange(size, dtype=np.int64)
    log = log_of(tmp_path, SampleBatch(keys, keys, keys % 2))
    found = summarize(log, 0, chosen(0, size, keys[::3], size=10_000), None)
    assert (found.num_chosen, found.num_shared) == (len(keys[::3]), 0)
    assert [(c.label, c.candidates) for c in found.classes] == [(0, size // 2), (1, size // 2)]
    assert sum(c.chosen for c in found.classes) == len(keys[::3])
    assert found.ages[-1] == size - 1


def test_the_classes_with_the_most_samples_are_listed(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(MOST_CLASSES + 5), [*([1] * 5), *([2] * MOST_CLASSES)])
    keys = np.arange(len(labels), dtype=np.int64)
    log = log_of(tmp_path, SampleBatch(keys, keys, labels))
    found = summarize(log, 0, chosen(0, len(keys), keys), None)
    assert found.num_classes == MOST_CLASSES + 5
    assert [c.label for c in found.classes] == list(range(5, MOST_CLASSES + 5))


def test_numbers_that_are_predicted_are_not_classes(tmp_path: Path) -> None:
    keys = np.arange(10, dtype=np.int64)
    log = log_of(tmp_path, SampleBatch(keys, keys, keys.astype(np.float64) + 0.5))
    found = summarize(log, 0, chosen(0, 10, keys), None)
    assert (found.num_classes, found.classes) == (0, ())
