"""Cost triggers: against a brute force that knows the whole stream, units, resets, and the forecast of training times."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import nnls

from modyn.config.base import load_section
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, SampleBatch
from modyn.supervisor.triggers import build_trigger, check_trigger_section
from modyn.supervisor.triggers.base import CheckRecord, TriggerOutcome
from modyn.supervisor.triggers.cost import DataIncorporationLatencyCostTrigger, LatencyCostConfig, WaitingTime
from modyn.supervisor.triggers.measures.training_seconds import TrainingTime, TrainingTimes, fit_seconds, vary
from modyn.testing.checks import check_trigger, decide, example_streams
from tests.support.trigger_sections import streams_of_each
from tests.support.triggers import fired

RATE = "incorporation_delay_per_training_second"
Seconds = Callable[[int], float]


def latency(**options: Any) -> dict[str, Any]:
    """A section that checks every sample, at a rate of 10 sample-seconds for one second of training."""
    return {"id": "DataIncorporationLatencyCostTrigger", "evaluation_interval_data_points": 1, RATE: 10, **options}


def at(*times: int) -> SampleBatch:
    """Samples of these timestamps."""
    column = np.array(times, np.int64)
    return SampleBatch(np.arange(len(times)), column, np.zeros(len(times), np.int64))


class _Trained(DataIncorporationLatencyCostTrigger):
    """A policy whose trainings take `seconds_of` the samples since the trigger before."""

    seconds_of: Seconds

    def trained(self, outcome: TriggerOutcome) -> None:
        super().trained(replace(outcome, seconds={"train": self.seconds_of(self._num_taken)}))


def policy(seconds: Seconds, **options: Any) -> _Trained:
    """A policy whose trainings take so long."""
    section = {key: value for key, value in latency(**options).items() if key != "id"}
    made = _Trained(load_section(LatencyCostConfig, section))
    made.seconds_of = seconds
    return made


CONFIGS: dict[str, dict[str, Any]] = {
    "every sample": latency(),
    "some samples": latency(**{"evaluation_interval_data_points": 7, RATE: 10_000.5}),
    "time": latency(evaluation_interval_data_points=None, evaluation_interval="1d", **{RATE: 86_400}),
    "warm-up": latency(warmup_intervals=5, warmup_policy={"id": "TimeTrigger", "every": "1d"}),
    "few trainings": latency(cost_tracking_window_size=1, consecutive_checks=2, min_samples_between_triggers=9),
}


@pytest.mark.parametrize(("name", "titles"), streams_of_each(CONFIGS, 40, all_timed=True))
def test_same_decisions_for_any_batching_and_after_any_restart(name: str, titles: list[str]) -> None:
    options = {key: value for key, value in CONFIGS[name].items() if key != "id"}
    streams = example_streams(40)
    check_trigger(DataIncorporationLatencyCostTrigger, options, streams={title: streams[title] for title in titles})


def _brute_force(times: Sequence[int], every: int, rate: float, seconds: Seconds, window: int) -> list[int]:
    """The rule over the whole stream: each sample by itself, and the forecast by SciPy."""
    found, trainings = list[int](), list[tuple[int, float]]()
    for position in range(every, len(times) + 1, every):
        last = found[-1] if found else 0
        pending = position - last
        if trainings:
            now = max(times[:position])
            regret = sum(now - max(times[: sample + 1]) for sample in range(last, position))
            known = trainings[-window:]
            if len({samples for samples, _ in known}) == 1:
                forecast = float(np.mean([took for _, took in known]))
            else:
                line, _ = nnls(np.array([[1.0, samples] for samples, _ in known]), np.array([took for _, took in known]))
                forecast = float(line @ [1.0, pending])
            assume(abs(regret / rate - forecast) > 1e-6)  # The forecasts of two solvers differ by more than rounding.
            if regret / rate <= forecast:
                continue
        found.append(position)
        trainings.append((pending, seconds(pending)))
    return found


@given(
    times=st.lists(st.integers(-20, 200), max_size=60),
    edges=st.lists(st.integers(0, 60), max_size=5),
    every=st.integers(1, 5),
    rate=st.floats(0.5, 50),
    costs=st.lists(st.floats(0.01, 10), min_size=1, max_size=5),
    window=st.integers(1, 4),
)
def test_it_decides_as_the_rule_says(
    times: list[int], edges: list[int], every: int, rate: float, costs: list[float], window: int
) -> None:
    def seconds(pending: int) -> float:
        return costs[pending % len(costs)] + 0.013 * pending

    whole, bounds = at(*times), [0, *sorted(min(edge, len(times)) for edge in edges), len(times)]
    asked = policy(seconds, evaluation_interval_data_points=every, cost_tracking_window_size=window, **{RATE: rate})
    found = decide(asked, [whole.slice(start, stop) for start, stop in pairwise(bounds)])
    assert fired(found) == _brute_force(times, every, rate, seconds, window)


@pytest.mark.parametrize(
    ("seconds", "gap_s"), [(lambda _: 21.0, 1), (lambda pending: 0.31 * pending, 60), (lambda pending: 5 + 0.11 * pending, 1)]
)
def test_constant_arrivals_and_constant_cost_give_triggers_at_a_constant_distance(seconds: Seconds, gap_s: int) -> None:
    samples = at(*range(0, 16_000 * gap_s, gap_s))
    found = fired(
        decide(policy(seconds, evaluation_interval_data_points=10, **{RATE: 1000 * gap_s}), [samples], asks_twice=False)
    )
    distances = np.diff(found)
    assert len(distances) > 20
    assert len(set(distances[2:])) == 1, "once two trainings of different size are known"
    # n samples every g seconds have waited g n (n - 1) / 2; divided by the rate that is to exceed the seconds of a training.
    n = int(distances[-1])
    assert n * (n - 1) / 2 / 1000 > seconds(n)
    assert (n - 10) * (n - 11) / 2 / 1000 <= seconds(n - 10)


def test_the_example_of_units_in_the_docstring() -> None:
    # 1,000 samples that have waited an hour on average, at 1e5 sample-seconds for a second: worth 36 s of training.
    samples = at(*[0] * 500, *[7200] * 500)
    for seconds, fires in ((35.9, True), (36.1, False)):
        asked = policy(lambda _, s=seconds: s, evaluation_interval_data_points=1000, **{RATE: 1e5})  # type: ignore[misc]
        stream = SampleBatch.concatenate([samples, at(*[7200] * 500, *[14_400] * 500)])
        first, second = decide(asked, [stream])
        assert first.numbers == {"first_trigger": 1}
        # The second thousand: half of them for two hours.
        assert second.numbers == {
            "regret": 3.6e6,
            "regret.threshold": pytest.approx(seconds * 1e5),
            "regret.unusual": fires,
            "forecast_training_s": pytest.approx(seconds),
            "unusual": fires,
        }
        assert second.fires is fires


def test_one_sample_a_second_and_trainings_of_20_s_fire_every_2000_s() -> None:
    found = fired(decide(policy(lambda _: 20.0, evaluation_interval_data_points=100, **{RATE: 1e5}), [at(*range(30_000))]))
    assert set(np.diff(found)[2:]) == {2100}, "at 2,000 the regret of 1,999,000 is not above 20 · 1e5"


def _regrets(records: Sequence[CheckRecord]) -> list[float | None]:
    return [record.numbers.get("regret") for record in records]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param([5, 5, 5, 5], [0, 0, 0], id="tied timestamps"),
        pytest.param([0, 0, 1, 2], [0, 1, 3], id="a timestamp of 0 is a time"),
        pytest.param([-9, -9, -4, 0], [0, 5, 13], id="before 1970"),
        pytest.param([10, 10, 2, 20], [0, 0, 20], id="a late sample waits from its arrival on"),
        pytest.param([10, 30, 20, 40], [0, 0, 20], id="and never a negative time"),
    ],
)
def test_regret_is_the_time_that_the_samples_since_the_last_trigger_have_waited(times: list[int], expected: list[float]) -> None:
    assert _regrets(decide(policy(lambda _: 1e9), [at(*times)])) == [None, *expected], "the first sample is in the first trigger"


def test_a_trigger_resets_the_regret_also_one_of_another_policy() -> None:
    section = {
        "id": "EnsembleTrigger",
        "ensemble_strategy": {"id": "AtLeastN", "n": 1},
        "subtriggers": {"cost": latency(**{RATE: 1e9}), "amount": {"id": "DataAmountTrigger", "num_samples": 4}},
    }
    records = decide(build_trigger(section), [at(*range(0, 90, 10))])
    assert fired(records) == [1, 4, 8]
    assert [record.numbers.get("cost/regret") for record in records] == [None, 0, 10, 30, 0, 10, 30, 60, 0]


def test_sums_of_extreme_times_are_exact() -> None:
    waiting = WaitingTime()
    waiting.observe(np.array([MIN_TIMESTAMP] * 5 + [-1, 0, MAX_TIMESTAMP]))
    assert waiting.area() == 5 * (MAX_TIMESTAMP - MIN_TIMESTAMP) + MAX_TIMESTAMP + 1 + MAX_TIMESTAMP
    waiting.observe(np.empty(0, np.int64))
    waiting.clear()
    assert waiting.area() == 0


def test_a_run_whose_triggers_train_nothing_warns_and_fires_at_each_interval() -> None:
    class Untrained(_Trained):
        """Hears of no model."""

        def trained(self, outcome: TriggerOutcome) -> None:
            pass

    asked = Untrained(load_section(LatencyCostConfig, {key: value for key, value in latency().items() if key != "id"}))
    assert asked.warning() is None
    assert fired(decide(asked, [at(*range(50))])) == list(range(1, 51))
    assert (asked.warning() or "").startswith("no trigger so far has trained a model")
    cooling = {**latency(), "min_samples_between_triggers": 30}
    asked = Untrained(load_section(LatencyCostConfig, {key: value for key, value in cooling.items() if key != "id"}))
    assert fired(decide(asked, [at(*range(50))])) == list(range(1, 51)), "a cool-down begins with the first model"


_TRAININGS = st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 1e4)), min_size=2, max_size=30)


@given(_TRAININGS, st.integers(0, 20_000))
def test_the_fit_is_the_best_line_without_negative_numbers(trainings: list[tuple[int, float]], num_samples: int) -> None:
    samples, seconds = [count for count, _ in trainings], [took for _, took in trainings]
    assume(vary(samples))
    line = fit_seconds([TrainingTime(*training) for training in trainings])
    assert min(line.per_trigger, line.per_sample, line.of(num_samples)) >= 0, "forecasts are never negative"
    matrix = np.stack([np.ones(len(samples)), samples], 1)
    _, best = nnls(matrix, np.array(seconds))
    own = np.linalg.norm(matrix @ [line.per_trigger, line.per_sample] - seconds)
    assert own == pytest.approx(best, rel=1e-6, abs=1e-6 * (1 + max(seconds)))


def test_one_training_says_what_a_trigger_and_what_its_samples_take() -> None:
    times = TrainingTimes(10)
    times.add(100, TriggerOutcome(0, 100, 0, 0, model_id=1, seconds={"train": 3.0}, batches_s=2.0))
    assert times.forecast(50) == pytest.approx(1.0 + 1.0)
    times.add(102, TriggerOutcome(1, 202, 0, 0, model_id=2, seconds={"train": 3.1}, batches_s=2.04))
    assert times.forecast(1000) == pytest.approx(1.03 + 20.0), "of almost equal sizes noise is no slope"
    resumed = TrainingTimes(10)
    resumed.load_state(json.loads(json.dumps(times.state())))
    assert resumed.forecast(1000) == times.forecast(1000)
    resumed.load_state([[100, 3.0]])
    assert resumed.forecast(1000) == 3.0, "as an earlier release saved it, without seconds of batches"


def test_trainings_are_those_of_the_window_that_have_seconds() -> None:
    def outcome(**seconds: float) -> TriggerOutcome:
        return TriggerOutcome(0, 100, 0, 0, model_id=1, seconds=seconds)

    times = TrainingTimes(2)
    assert times.forecast(10) is None
    times.add(10, outcome(select=1.0))
    assert times.forecast(10) is None, "nothing is known of the training"
    times.add(10, outcome(total=99.0))
    times.add(100, outcome(train=1.0, total=5.0))
    times.add(200, outcome(train=2.0))
    assert times.forecast(300) == pytest.approx(3.0), "the newest two, by the seconds of the training alone"


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({RATE: 0}, RATE, "greater than 0"),
        ({RATE: float("inf")}, RATE, "finite"),
        ({RATE: None}, RATE, "is wrong"),
        ({"cost_tracking_window_size": 0}, "cost_tracking_window_size", "greater than or equal to 1"),
        ({"evaluation_interval": "1d"}, "evaluation_interval", "give one of them"),
        ({"incorporation_delay_per_training_seconds": 3}, "incorporation_delay_per_training_seconds", "did you mean"),
    ],
)
def test_mistakes(options: dict[str, Any], path: str, words: str) -> None:
    found = check_trigger_section(latency(**options))
    assert any(problem.path == f"trigger.{path}".rstrip(".") and words in problem.message for problem in found), found
