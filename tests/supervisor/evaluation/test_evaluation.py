"""Evaluation strategies and handlers: the registry, golden intervals, properties, and the message of each mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Any, ClassVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from modyn.config.base import Section
from modyn.config.evaluation import EvaluationHandler
from modyn.config.policy import check_policy
from modyn.errors import ConfigError
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, EvalInterval, Interval
from modyn.supervisor.evaluation import EVALUATION_STRATEGIES, build_strategy, check_handlers, load_evaluation
from modyn.supervisor.evaluation.base import EvaluationStrategy, TrainedModel
from modyn.supervisor.evaluation.between_two_triggers import BetweenTwoTriggersConfig
from modyn.supervisor.evaluation.periodic import AnchorWindow, parse_window
from modyn.testing.checks import check_evaluation_strategy, intervals_of_run

CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("SlicingEvalStrategy", {"eval_every": "100s", "eval_start_from": -250, "eval_end_at": 1000}),
    ("PeriodicEvalStrategy", {"every": "1d", "start_timestamp": 0, "end_timestamp": "1970-02-01", "interval": "[-2d; +0d]"}),
    ("PeriodicEvalStrategy", {"every": "1d", "start_timestamp": 0, "end_timestamp": "1970-02-01", "interval": "(-inf; +inf)"}),
    ("StaticEvalStrategy", {"intervals": [[50, 60], [-10, 20], [0, None]]}),
    ("OffsetEvalStrategy", {"offsets": ["-inf", "-1d", "0d", "1d", "+1d", "inf"]}),
    ("BetweenTwoTriggersEvalStrategy", {}),
]


def _intervals(section: dict[str, Any], data: Sequence[Interval] = (), stream_end: int | None = None) -> list[EvalInterval]:
    return intervals_of_run(build_strategy(section), data, stream_end)


def test_the_registry_holds_what_we_mean_it_to() -> None:
    assert set(EVALUATION_STRATEGIES.builtin) == {
        "SlicingEvalStrategy",
        "PeriodicEvalStrategy",
        "StaticEvalStrategy",
        "OffsetEvalStrategy",
        "BetweenTwoTriggersEvalStrategy",
    }
    assert {type_ for type_, _ in CONFIGS} == set(EVALUATION_STRATEGIES.builtin), "every strategy is checked below"


@pytest.mark.parametrize(("type_", "config"), CONFIGS, ids=str)
def test_every_strategy_passes_the_checks(type_: str, config: dict[str, Any]) -> None:
    check_evaluation_strategy(EVALUATION_STRATEGIES.get(type_), config)


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**5), st.integers(1, 5000), st.lists(st.integers(-(2 * 10**6), 2 * 10**6)))
def test_tumbling_windows_partition_the_range(start: int, length: int, every: int, times: list[int]) -> None:
    end = start + min(length, every * 200)
    assume(not {start, end} & set(range(1900, 2101)))  # refused, for these are years most likely
    windows = _intervals({"type": "SlicingEvalStrategy", "eval_every": every, "eval_start_from": start, "eval_end_at": end})
    assert windows[0].start == start
    assert windows[-1].end == end
    assert all(left.end == right.start for left, right in pairwise(windows))
    assert all(w.end - w.start == every for w in windows[:-1])
    assert all(w.anchor == w.start for w in windows)
    for time in [start, end - 1, end, *times]:
        assert sum(w.start <= time < w.end for w in windows) == (start <= time < end), "each time lies in one window only"


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("[-2d; +0d]", AnchorWindow(-172_800, 1)),
        ("[-2d, 0d]", AnchorWindow(-172_800, 1)),
        ("(-2d; 0d)", AnchorWindow(-172_799, 0)),
        (" ( -20s ; -15s ] ", AnchorWindow(-19, -14)),
        ("[0s; 0s]", AnchorWindow(0, 1)),
        ("[+10s;+20m)", AnchorWindow(10, 1200)),
        ("[-inf; +inf]", AnchorWindow(-inf, inf)),
        ("(-inf; inf)", AnchorWindow(-inf, inf)),
        ("[-inf, -0d]", AnchorWindow(-inf, 1)),
        ("[1h; +inf)", AnchorWindow(3600, inf)),
        ("[-1y; +1w)", AnchorWindow(-31_536_000, 604_800)),
    ],
)
def test_windows_as_users_write_them(text: str, window: AnchorWindow) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize(
    "text",
    [
        "[0s; 0s)",
        "[+3d; +1d]",
        "[+inf; -inf]",
        "[+inf; 3d]",
        "[3d; -inf]",
        "{-1d; 1d}",
        "[-1; 1]",
        "[-1d]",
        "-1d; 1d",
        "",
        "[-1d; 1d",
        None,
        3,
    ],
)
def test_windows_that_hold_nothing_or_make_no_sense(text: object) -> None:
    section = {"type": "PeriodicEvalStrategy", "every": "1d", "start_timestamp": 0, "end_timestamp": 10, "interval": text}
    problems = check_policy(EVALUATION_STRATEGIES, section, "type", "s")
    assert [problem.path for problem in problems] == ["s.interval"]
    assert repr(text) in problems[0].message


@given(st.integers(-1000, 1000), st.integers(1, 50), st.integers(0, 20), st.integers(-60, 60), st.integers(1, 90))
def test_sliding_windows_lie_around_their_anchors(start: int, every: int, steps: int, left: int, width: int) -> None:
    right = left + width
    text = f"[{left:+d}s; {right:+d}s)"
    section = {"type": "PeriodicEvalStrategy", "every": every, "start_timestamp": start, "end_timestamp": start + every * steps}
    intervals = _intervals({**section, "interval": text})
    assert intervals == [EvalInterval(a + left, a + right, a) for a in (start + i * every for i in range(steps + 1))]


def test_sliding_windows_without_end_reach_the_ends_of_time() -> None:
    section = {"type": "PeriodicEvalStrategy", "every": "1d", "start_timestamp": 5, "end_timestamp": 5}
    assert _intervals({**section, "interval": "[-inf; +0s]"}) == [EvalInterval(MIN_TIMESTAMP, 6, 5)]
    assert _intervals({**section, "interval": "(+0s; +inf]"}) == [EvalInterval(6, MAX_TIMESTAMP, 5)]


def test_static_intervals_come_in_order_each_once() -> None:
    section = {"type": "StaticEvalStrategy", "intervals": [["1970-01-02", None], [0, 10], [0, 10]]}
    assert _intervals(section) == [EvalInterval(0, 10, 0), EvalInterval(86_400, MAX_TIMESTAMP, 86_400)]


def test_offsets_lie_around_the_data_of_each_training() -> None:
    section = {"type": "OffsetEvalStrategy", "offsets": ["-inf", "-3s", "0d", "2s", "inf"]}
    assert _intervals(section) == []
    assert _intervals(section, (Interval(10, 20), Interval(5, 15))) == [
        EvalInterval(MIN_TIMESTAMP, 10, 20),
        EvalInterval(7, 10, 20),
        EvalInterval(10, 20, 20),
        EvalInterval(20, 22, 20),
        EvalInterval(20, MAX_TIMESTAMP, 20),
        EvalInterval(MIN_TIMESTAMP, 5, 20),
        EvalInterval(2, 5, 20),
        EvalInterval(5, 15, 20),
        EvalInterval(15, 17, 20),
        EvalInterval(15, MAX_TIMESTAMP, 20),
    ], "late data does not make the second model older than the first"


BETWEEN = {"type": "BetweenTwoTriggersEvalStrategy"}


def test_between_two_triggers_before_the_first_there_is_nothing() -> None:
    assert _intervals(BETWEEN) == []
    assert _intervals(BETWEEN, (), stream_end=100) == []


def test_between_two_triggers_follows_the_data_of_each() -> None:
    triggers = (Interval(0, 10), Interval(12, 30), Interval(5, 25), Interval(31, 40))
    expected = [EvalInterval(0, 10, 0), EvalInterval(10, 30, 10), EvalInterval(30, 40, 30)]
    assert _intervals(BETWEEN, triggers) == expected, "late data of the third trigger gives no interval of its own"
    assert _intervals(BETWEEN, triggers, stream_end=40) == expected
    assert _intervals(BETWEEN, triggers, stream_end=41) == [*expected, EvalInterval(40, 41, 40)]


@given(st.lists(st.tuples(st.integers(-100, 100), st.integers(1, 50)), min_size=1, max_size=8), st.integers(-100, 200))
def test_between_two_triggers_leaves_no_hole(triggers: list[tuple[int, int]], end: int) -> None:
    found = _intervals(BETWEEN, [Interval(start, start + length) for start, length in triggers], end)
    assert all(left.end == right.start for left, right in pairwise(found))
    assert found[0].start == triggers[0][0]
    assert found[-1].end == max(end, *(start + length for start, length in triggers))


@pytest.mark.parametrize(
    ("section", "path", "message"),
    [
        ({}, "s.type", "is required: the name of an evaluation strategy, one of BetweenTwoTriggersEvalStrategy,"),
        ({"type": "SlicingStrategy"}, "s.type", "did you mean 'SlicingEvalStrategy'?"),
        (
            {"type": "OffsetEvalStrategy", "offsets": ["1d", "soon"]},
            "s.offsets.1",
            "'soon' is not an offset; write -inf, inf, or",
        ),
        ({"type": "BetweenTwoTriggersEvalStrategy", "every": 3}, "s.every", "there is no such key"),
        ({"type": "StaticEvalStrategy", "intervals": []}, "s.intervals", "at least 1 item"),
        ({"type": "StaticEvalStrategy", "intervals": [[0, 1], [5, 5]]}, "s.intervals.1", "[5, 5) is empty"),
        ({"type": "SlicingEvalStrategy", "eval_every": "1d", "eval_start_from": 9, "eval_end_at": 9}, "s", "must be later than"),
        ({"type": "SlicingEvalStrategy", "eval_every": 1, "eval_start_from": 0, "eval_end_at": 10**9}, "s", "1000000000 windows"),
        (
            {"type": "PeriodicEvalStrategy", "every": 1, "start_timestamp": 5, "end_timestamp": 4, "interval": "[0s; 1s]"},
            "s",
            "must not be before",
        ),
    ],
)
def test_mistakes_in_a_strategy(section: dict[str, Any], path: str, message: str) -> None:
    problems = check_policy(EVALUATION_STRATEGIES, section, "type", "s")
    assert [problem.path for problem in problems] == [path]
    assert message in problems[0].message
    with pytest.raises(ConfigError, match="s"):
        build_strategy(section, "s")


def _handler(**changes: Any) -> dict[str, Any]:
    strategy = {"type": "SlicingEvalStrategy", "eval_every": "100s", "eval_start_from": 0, "eval_end_at": 300}
    return {"name": "h", "execution_time": "after_training", "datasets": ["test"], "strategy": strategy} | changes


def test_handlers() -> None:
    section = {"datasets": [{"dataset_id": "test"}], "handlers": [_handler(), _handler(name="all", models="active")]}
    first, second = load_evaluation(section).handlers
    assert (first.models, second.models) == ("matrix", "active")
    assert [i.start for i in build_strategy(first.strategy).intervals()] == [0, 100, 200]
    assert load_evaluation({"datasets": [{"dataset_id": "test"}]}).handlers == ()


@pytest.mark.parametrize(
    ("handlers", "path", "message"),
    [
        ([_handler(execution_time="later")], "0.execution_time", "'later' is wrong"),
        ([_handler(models="most_recent")], "0.models", "'most_recent' is wrong: input should be 'matrix', 'active' or 'train'"),
        (
            [_handler(datasets=["tset"])],
            "0.datasets.0",
            "'tset' is not a dataset_id in evaluation.datasets, did you mean 'test'? There: test",
        ),
        ([_handler(datasets=[])], "0.datasets", "at least 1 item"),
        ([_handler(dataset="test")], "0.dataset", "did you mean 'datasets'?"),
        ([_handler(), _handler()], "1.name", "'h' names handler 0 already"),
        ([_handler(strategy={"type": "StaticEvalStrategy", "intervals": [[2, 1]]})], "0.strategy.intervals.0", "is empty"),
        (["nothing"], "0", "'nothing' is wrong"),
    ],
)
def test_mistakes_in_handlers(handlers: list[Any], path: str, message: str) -> None:
    problems = check_handlers({"handlers": handlers, "datasets": [{"dataset_id": "test"}]})
    assert [problem.path for problem in problems] == [f"evaluation.handlers.{path}"]
    assert message in problems[0].message


def test_a_handler_is_frozen_and_has_a_name_by_default() -> None:
    section = _handler()
    del section["name"]
    assert EvaluationHandler.model_validate(section).name == "Modyn EvalHandler"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (lambda models: [EvalInterval(5, 5, 5)], "gives empty intervals"),
        (lambda models: [EvalInterval(0, 1, 7), EvalInterval(0, 1, 6)], "anchors do not ascend"),
        (lambda models: [EvalInterval(0, 1, -len(models))], "anchors do not ascend"),
        (lambda models: [EvalInterval(0, 1, id(models))], "asked again, it answers otherwise"),
    ],
)
def test_the_checks_can_fail(found: Callable[[Sequence[TrainedModel]], list[EvalInterval]], message: str) -> None:
    class Breaks(EvaluationStrategy):
        """Breaks one rule."""

        Config: ClassVar[type[Section]] = BetweenTwoTriggersConfig

        def after_training(self, models: Sequence[TrainedModel]) -> Iterator[EvalInterval]:
            yield from found(models)

    with pytest.raises(AssertionError, match=message):
        check_evaluation_strategy(Breaks, {})
