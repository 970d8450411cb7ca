"""The programs that measure the cache on real samples: what they compute, and each of them on few samples."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmark.cache import accuracy, jobs, makespan, predict, sides, soak
from benchmark.cache.arrivals import Arrivals, together
from benchmark.cache.bar_chart import bar_chart
from benchmark.cache.point_chart import point_chart
from benchmark.cache.reading import Images
from modyn.cache.plan.performance_model import CacheStore, DatasetSizes, Split, TrainingNodes, Workload
from tests.support.measuring import measured

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
WORKLOAD = Workload(TrainingNodes(100.0, 900.0), DatasetSizes(1000, 100.0, 2.0, 2.0), 1e6, storage_crosses_network=False)
STORE = CacheStore(100_000, 1e9, crosses_network=False)


@pytest.mark.parametrize("module", ["accuracy", "arrivals", "jobs", "makespan", "predict", "single", "soak"])
def test_examples(module: str) -> None:
    result = doctest.testmod(import_module(f"benchmark.cache.{module}"))
    assert result.attempted > 0
    assert result.failed == 0


def arrivals(times: list[float], size: int) -> Arrivals:
    return Arrivals(np.array(times), size * np.arange(1, len(times) + 1))


def test_only_the_time_in_which_all_trainings_run_counts() -> None:
    # The second begins late and ends late: from 4 to 6 s both are warm.
    assert together([arrivals([1, 2, 3, 4, 5, 6], 10), arrivals([4, 5, 6, 7, 8], 5)], warm_up=5) == pytest.approx((20 + 10) / 2)


def test_trainings_that_never_run_together_have_no_rate() -> None:
    with pytest.raises(ValueError, match="more epochs"):
        together([arrivals([1, 2], 10), arrivals([3, 4], 10)], warm_up=10)
    with pytest.raises(ValueError, match="20 samples, and 30"):
        arrivals([1, 2], 10).reached(30)
    assert arrivals([1, 2], 10).until(0.5) == 0


def test_ours_is_compared_with_the_best_of_the_others() -> None:
    rates = {
        (4, 0.4, "plain"): [10.0, 11.0, 12.0],
        (4, 0.4, "static"): [20.0],
        (4, 0.4, "ours"): [33.0],
        (8, 0.4, "ours"): [99.0],
    }
    assert jobs.last_line(rates) == "jobs: 3.00, 1.65 times the best of the others"
    assert jobs.last_line({(4, 0.4, "plain"): [10.0]}) == "jobs: incomplete"
    assert "| 4 | 40% | ours | 33 (33–33) | 3.00 |" in jobs.table(rates)
    assert "| 8 | 40% | ours | 99 (99–99) | – |" in jobs.table(rates)


def test_a_schedule_is_the_same_for_all_sides() -> None:
    schedule = makespan.Schedule.drawn(12, 5.0, seed=0)
    assert schedule == makespan.Schedule.drawn(12, 5.0, seed=0)
    assert schedule.starts_s[0] == 0
    assert sorted(schedule.starts_s) == list(schedule.starts_s)
    assert set(schedule.models) == set(makespan.MODELS)


def test_memory_that_grows_is_out_of_bounds() -> None:
    base = soak.Memory(0, 1e9, 1e9, 0, 1e6)
    steady = [soak.Memory(epoch, 1e9, 1e9, 10e6, 11e6) for epoch in range(10)]
    assert soak.out_of_bounds(steady, base, budget=10_000_000) == []
    growing = [soak.Memory(epoch, 1e9, 1e9 + 50e6 * epoch, 10e6, 11e6) for epoch in range(10)]
    assert soak.out_of_bounds(growing, base, budget=10_000_000) == ["trainings grew from 1125.0 to 1425.0 MB"]
    problems = soak.out_of_bounds(steady, base, budget=6_000_000)
    assert [problem.split(" more")[0] for problem in problems] == ["shm has 10.0 MB", "redis has 10.0 MB"]


def test_the_chosen_split_is_compared_with_the_best_measured() -> None:
    def outcome(size: float, decoded: int, measured: float, is_chosen: bool) -> predict.Outcome:
        return predict.Outcome(size, Split(100 - decoded, decoded, 0), 100.0, 90.0, (measured,), is_chosen)

    outcomes = [outcome(0.5, 0, 50, False), outcome(0.5, 50, 90, True), outcome(0.5, 100, 100, False), outcome(1, 100, 200, True)]
    assert predict.missed(outcomes) == {0.5: pytest.approx(0.1), 1: 0}
    assert "| 50% | 50-50-0 | 90 | 0-100-0 | 100 | 10.0% |" in predict.choices(outcomes)


def test_sides_that_differ_are_told_apart() -> None:
    difference = accuracy.compare([0.90, 0.91, 0.92, 0.93], [0.80, 0.81, 0.82, 0.83])
    assert difference.welch_p < 0.001
    assert difference.mann_whitney_p < 0.05
    assert difference.low < -0.1 < difference.high < 0


def test_points_are_drawn_by_group() -> None:
    picture = ElementTree.fromstring(point_chart("a & b", ("x", "y"), {"one": [(1, 2), (3, 4)], "two": [(5, 6)]}))
    circles = picture.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 5  # one more for each group's name
    assert {circle.get("fill") for circle in circles} == {"#447", "#c52"}
    ElementTree.fromstring(point_chart("nothing", ("x", "y"), {}))


def test_bars_are_as_long_as_their_values() -> None:
    picture = ElementTree.fromstring(bar_chart("a & b", {"one": 1.0, "two": 2.0}, 0.95))
    _background, *bars = picture.iter("{http://www.w3.org/2000/svg}rect")
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert widths[1] == pytest.approx(2 * widths[0])
    ElementTree.fromstring(bar_chart("nothing", {}, 0.95))


def test_an_unknown_side_is_refused() -> None:
    found: Images = None  # type: ignore[assignment]
    with pytest.raises(ValueError, match="there is no side 'faster'; there are plain, "):
        sides.open_side("faster", found, 0.4)


MINUTES = [
    (
        "jobs",
        # On a busy machine a training may have read an epoch before another has begun: all run at once only if there are more.
        "--samples 200 --epochs 4 --rounds 1 --jobs 4 --shares 0.4 --sides plain ours --seconds 5",
        r"jobs: [\d.]+, [\d.]+ times the best of the others",
    ),
    ("makespan", "--samples 100 --epochs 1 --trainings 3 --gap 1 --sides plain ours --seconds 5", r"makespan: [\d.]+"),
    ("overhead", "--samples 100 --rounds 1 --workers 1", r"overhead: [\d.]+, [\d.]+ bytes a sample"),
    (
        "predict",
        "--samples 150 --splits 2 --sizes 0.5 1.0 --epochs 1 --rounds 1 --seconds 5",
        r"predict: -?[\d.]+, [\d.]+",
    ),
    ("single", "--samples 150 --epochs 2 --rounds 1 --workers 1 --records 20000", r"single: [\d.]+ times no cache, .*"),
]
"""Figures that take a minute or more even with few samples: name, arguments, last line."""


@pytest.mark.parametrize(
    ("figure", "arguments", "last_line"),
    [
        pytest.param(
            "accuracy",
            "--seeds 2 --epochs 1 --side static",
            r"accuracy: p 1\.00 \(Welch\), 1\.00 \(Mann-Whitney\)",
            marks=pytest.mark.slow,
        ),
        *(pytest.param(*figure, marks=pytest.mark.exhaustive) for figure in MINUTES),
    ],
)
def test_figures_are_measured(figure: str, arguments: str, last_line: str) -> None:
    assert re.fullmatch(last_line, measured("benchmark.cache", figure, *arguments.split()).splitlines()[-1])


@pytest.mark.exhaustive
def test_a_soak_is_measured() -> None:
    command = [sys.executable, "-m", "benchmark.cache", "soak", "--samples", "100", "--epochs", "5", "--sides", "static"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # So few epochs are no time to see growth, and what grows at first may be named: it ends with 1 then.
    assert "MB, medians of the second and of the last fifth" in done.stdout, done.stderr
