"""Selection and presampling policies: the registry, the checks that all must pass, and what they decide on a fixed stream."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modyn.config.base import Severity
from modyn.config.selection_parts import GDUMB_FULL
from modyn.errors import ConfigError
from modyn.records import RunId, RunRegistration, SampleBatch
from modyn.selector.presampling import PRESAMPLING, PresamplingConfig
from modyn.selector.selection import SELECTION, build_selection, validate_selection
from modyn.selector.window import Selection, SelectionContext, SelectionWindow, uniform
from modyn.testing.checks import check_presampling, check_selection
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.memory_reader import MemoryReader
from modyn.trainer_server.downsampling.policies import DOWNSAMPLING

ROOT = Path(__file__).parents[2]

SELECTION_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "NewDataStrategy": [
        {},
        {"tail_triggers": 0},
        {"tail_triggers": 2, "limit": 17},
        {"limit": 17, "limit_reset": "sampleUAR"},
    ],
    "FreshnessSamplingStrategy": [
        {},
        {"unused_data_ratio": 1},
        {"unused_data_ratio": 99, "tail_triggers": 1},
        {"unused_data_ratio": 30, "limit": 17},
        {"limit": 1, "tail_triggers": 0},
    ],
    "CoresetStrategy": [
        {},
        {"presampling_config": {"strategy": "Random", "ratio": 30}},
        {"presampling_config": {"strategy": "Random", "ratio": 30}, "tail_triggers": 1, "limit": 20, "warmup_triggers": 2},
    ],
}
PRESAMPLING_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "No": [{}],
    "Random": [{"ratio": 333, "ratio_max": 1000}, {"ratio": 1}, {"ratio": 100}],
    "RandomNoReplacement": [{"ratio": 333, "ratio_max": 1000}, {"ratio": 70}],
    "LabelBalanced": [{"ratio": 30, "force_required_target_size": True}, {"ratio": 1}, {"ratio": 100}, {"ratio": 30}],
    "TriggerBalanced": [
        {"ratio": 30, "force_column_balancing": True, "force_required_target_size": True},
        {"ratio": 1},
        {"ratio": 100},
    ],
    "ColumnBalanced": [
        {"ratio": 30, "column": 3, "force_column_balancing": True, "force_required_target_size": True},
        {"ratio": 1, "column": "site"},
        {"ratio": 100, "column": "site"},
    ],
    "Stratified": [{"ratio": 30}, {"ratio": 1}, {"ratio": 100}, {"ratio": 30, "column": "site"}],
    "TimeWeighted": [
        {"ratio": 30, "half_life": 40},
        {"ratio": 1, "half_life": 1},
        {"ratio": 100, "half_life": "1d"},
        {"ratio": 50, "half_life": "100y"},
    ],
    "Reservoir": [{"buffer_size": 30}, {"buffer_size": 1}, {"buffer_size": 5000}],
    "ClassBalancedReservoir": [{"buffer_size": 30}],
    "GDumb": [{"buffer_size": 30}],
    "CLiB": [{"buffer_size": 30, "update_rate": 0.3}],
    "GSS": [{"buffer_size": 30}, {"buffer_size": 30, "variant": "iqp", "recent_size": 5, "gradient_size": 4}],
}
REFUSED = dict.fromkeys(("ClassBalancedReservoir", "GDumb", "CLiB"), ("real labels",))
"""Streams with more classes than the buffers of these policies hold."""


def test_the_registries_hold_exactly_these() -> None:
    """A policy that is dropped or added without its checks fails here."""
    ours = {id_ for id_, plugin in SELECTION.plugins.items() if plugin.distribution == "modyn"}
    assert ours == SELECTION_OPTIONS.keys() == {"CoresetStrategy", "FreshnessSamplingStrategy", "NewDataStrategy"}
    ours = {id_ for id_, plugin in PRESAMPLING.plugins.items() if plugin.distribution == "modyn"}
    assert ours == PRESAMPLING_OPTIONS.keys()
    assert sorted(ours) == [
        "CLiB",
        "ClassBalancedReservoir",
        "ColumnBalanced",
        "GDumb",
        "GSS",
        "LabelBalanced",
        "No",
        "Random",
        "RandomNoReplacement",
        "Reservoir",
        "Stratified",
        "TimeWeighted",
        "TriggerBalanced",
    ]


@pytest.mark.parametrize("name", SELECTION_OPTIONS)
def test_selection_strategies_keep_the_rules(name: str) -> None:
    for options in SELECTION_OPTIONS[name]:
        check_selection(SELECTION.get(name), {"maximum_keys_in_memory": 100, **options})


@pytest.mark.parametrize("name", PRESAMPLING_OPTIONS)
def test_presampling_policies_keep_the_rules(name: str) -> None:
    """The advice names the first of the options."""
    check_presampling(PRESAMPLING.get(name), PRESAMPLING_OPTIONS[name][0], refused=REFUSED.get(name, ()))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, some in PRESAMPLING_OPTIONS.items() if len(some) > 1])
def test_presampling_policies_keep_the_rules_with_other_options(name: str) -> None:
    for options in PRESAMPLING_OPTIONS[name][1:]:
        check_presampling(PRESAMPLING.get(name), options, refused=REFUSED.get(name, ()))


def test_the_checks_find_a_policy_that_depends_on_chunks() -> None:
    base = SELECTION.get("NewDataStrategy")

    class FirstChunk(base):  # type: ignore[misc, valid-type]
        """Selects from the first chunk only."""

        def select(self, window: SelectionWindow, context: SelectionContext) -> Selection:
            return uniform(
                SelectionWindow(window.reader, window.start, min(window.start + window.chunk_size, window.end), 9),
                10**6,
                context.generator(),
            )

    with pytest.raises(AssertionError, match="read 1 samples at a time"):
        check_selection(FirstChunk, {"maximum_keys_in_memory": 100})


def run(strategy: dict[str, Any], boundaries: tuple[int, ...] = (10, 25, 30, 50), seed: int = 3) -> list[list[int]]:
    """Keys of each trigger over a stream of keys 100, 101, …"""
    run_id = RunId("r")
    with FakeSelectorClient() as client:
        client.register_run(RunRegistration(run_id, "d", {"maximum_keys_in_memory": 4, **strategy}, seed))
        positions = np.arange(boundaries[-1])
        client.inform(run_id, 0, SampleBatch(positions + 100, positions, positions % 3))
        for trigger_id, boundary in enumerate(boundaries):
            client.trigger(run_id, trigger_id, boundary)
        return [found.keys.tolist() for found in client.runs[run_id].sets]


def span(start: int, end: int) -> list[int]:
    return list(range(100 + start, 100 + end))


@pytest.mark.parametrize(
    ("tail_triggers", "starts"),
    [(None, (0, 0, 0, 0)), (0, (0, 10, 25, 30)), (1, (0, 0, 10, 25)), (2, (0, 0, 0, 10)), (9, (0, 0, 0, 0))],
)
def test_windows_reach_back_as_many_triggers(tail_triggers: int | None, starts: tuple[int, ...]) -> None:
    found = run({"name": "NewDataStrategy", "tail_triggers": tail_triggers})
    assert found == [span(start, end) for start, end in zip(starts, (10, 25, 30, 50), strict=True)]


def test_limit_holds_per_trigger_not_per_partition_and_last_x_is_the_newest() -> None:
    """Partitions hold 4 keys here, and the limit is 6: a limit per partition would let all pass."""
    found = run({"name": "NewDataStrategy", "tail_triggers": 0, "limit": 6})
    assert found == [span(4, 10), span(19, 25), span(25, 30), span(44, 50)]


def test_golden_decisions() -> None:
    """The expected selections of these seeds must not change. A change affects every user's results: announce it in the changelog."""
    assert run({"name": "NewDataStrategy", "limit": 5, "limit_reset": "sampleUAR"}) == GOLDEN_UAR
    coreset = {"name": "CoresetStrategy", "tail_triggers": 0, "presampling_config": {"strategy": "Random", "ratio": 25}}
    assert run(coreset) == GOLDEN_RANDOM
    assert run({**coreset, "warmup_triggers": 2, "limit": 3}) == GOLDEN_WARMUP
    assert run({**coreset, "warmup_triggers": 1})[:1] == [span(0, 10)]


def test_coreset_limit_and_ratio_the_smaller_one_counts() -> None:
    coreset = {"name": "CoresetStrategy", "presampling_config": {"strategy": "Random", "ratio": 50}}
    assert [len(keys) for keys in run(coreset)] == [5, 12, 15, 25]
    assert [len(keys) for keys in run({**coreset, "limit": 13})] == [5, 12, 13, 13]
    assert [len(keys) for keys in run({"name": "CoresetStrategy", "limit": 13})] == [10, 13, 13, 13]


def test_seeds_and_triggers_draw_differently_and_negative_seeds_work() -> None:
    strategy = {"name": "NewDataStrategy", "limit": 5, "limit_reset": "sampleUAR"}
    assert run(strategy, seed=3) != run(strategy, seed=4)
    same_window = run(strategy, (50, 50))
    assert same_window[0] != same_window[1]
    assert run(strategy, seed=-1) == run(strategy, seed=-1)


@pytest.mark.parametrize(
    ("num_samples", "ratio", "ratio_max", "size"), [(99, 1, 100, 1), (1000, 33, 100, 330), (7, 1, 1000, 1), (0, 5, 10, 0)]
)
def test_target_size_is_rounded_down_but_not_to_nothing(num_samples: int, ratio: int, ratio_max: int, size: int) -> None:
    assert PresamplingConfig(ratio=ratio, ratio_max=ratio_max).target_size(num_samples) == size


def test_a_window_spanning_many_blocks_yields_what_it_was_asked_for() -> None:
    keys = np.arange(200_000) * 5
    window = SelectionWindow(MemoryReader(SampleBatch(keys, keys, keys)), 1000, 199_000, 65_536)
    blocks = iter([np.array([0, 70_000]), np.array([150_000, 197_999])])
    assert np.concatenate(list(window.keys_at(blocks))).tolist() == [5000, 355_000, 755_000, 994_995]


@pytest.mark.parametrize(
    ("section", "path", "says"),
    [
        ({}, "name", "is required"),
        ({"name": 3}, "name", "is required"),
        ({"name": "NewDataStrateg"}, "name", "did you mean 'NewDataStrategy'?"),
        ({"name": "NewDataStrategy"}, "maximum_keys_in_memory", "is required"),
        ({"name": "NewDataStrategy", "maximum_keys_in_memory": 0}, "maximum_keys_in_memory", "greater than or equal to 1"),
        ({"name": "NewDataStrategy", "maximum_keys_in_memory": 9, "limit": 0}, "limit", "0 would select nothing"),
        ({"name": "NewDataStrategy", "maximum_keys_in_memory": 9, "limit": -2}, "limit", "greater than or equal to -1"),
        (
            {"name": "NewDataStrategy", "maximum_keys_in_memory": 9, "tail_triggers": -1},
            "tail_triggers",
            "greater than or equal to 0",
        ),
        (
            {"name": "NewDataStrategy", "maximum_keys_in_memory": 9, "storage_backend": "redis"},
            "storage_backend",
            "'database' or 'local'",
        ),
        (
            {"name": "NewDataStrategy", "maximum_keys_in_memory": 9, "limit_reset": "lastY"},
            "limit_reset",
            "'lastX' or 'sampleUAR'",
        ),
        (
            {"name": "NewDataStrategy", "maximum_keys_in_memory": 9, "tail_trigger": 1},
            "tail_trigger",
            "did you mean 'tail_triggers'?",
        ),
        (
            {"name": "CoresetStrategy", "maximum_keys_in_memory": 9, "warmup_triggers": -1},
            "warmup_triggers",
            "greater than or equal to 0",
        ),
        (
            {"name": "CoresetStrategy", "maximum_keys_in_memory": 9, "presampling_config": {}},
            "presampling_config.strategy",
            "is required",
        ),
        (
            {"name": "CoresetStrategy", "maximum_keys_in_memory": 9, "presampling_config": {"strategy": "Randon"}},
            "presampling_config.strategy",
            "did you mean 'Random'?",
        ),
        (
            {"name": "CoresetStrategy", "maximum_keys_in_memory": 9, "presampling_config": {"strategy": "Random", "ratio": 101}},
            "presampling_config.ratio",
            "at most ratio_max, 100",
        ),
        (
            {"name": "CoresetStrategy", "maximum_keys_in_memory": 9, "presampling_config": {"strategy": "Random", "ratio": 0}},
            "presampling_config.ratio",
            "greater than or equal to 1",
        ),
        (
            {"name": "CoresetStrategy", "maximum_keys_in_memory": 9, "presampling_config": {"strategy": "No", "ratio": 50}},
            "presampling_config.ratio",
            "choose Random",
        ),
    ],
)
def test_a_wrong_section_names_its_place(section: dict[str, Any], path: str, says: str) -> None:
    (problem,) = validate_selection(section)
    assert problem.path == f"selection_strategy.{path}"
    assert says in problem.message
    with pytest.raises(ConfigError, match=problem.path):
        build_selection(section)


BUFFERS = ("CLiB", "ClassBalancedReservoir", "GDumb", "GSS", "Reservoir")


@pytest.mark.parametrize("strategy", ["RandomNoReplacement", "TriggerBalanced", "FreshnessSamplingStrategy", *BUFFERS])
def test_what_needs_samples_of_earlier_triggers_warns_where_there_are_none(strategy: str) -> None:
    section: dict[str, Any] = {"name": strategy, "maximum_keys_in_memory": 9}
    if strategy in PRESAMPLING.plugins:
        options = {"buffer_size": 9} if strategy in BUFFERS else {"ratio": 30}
        section |= {"name": "CoresetStrategy", "presampling_config": {"strategy": strategy, **options}}
    notes = [problem for problem in validate_selection(section) if problem.message == GDUMB_FULL]
    assert [problem.severity for problem in notes] == [Severity.WARNING] * (strategy == "GDumb")
    assert validate_selection(section) == validate_selection({**section, "tail_triggers": 1}) == notes
    (problem,) = [problem for problem in validate_selection({**section, "tail_triggers": 0}) if problem not in notes]
    assert problem.path == "selection_strategy.tail_triggers"
    assert problem.severity is Severity.WARNING
    assert f"which {strategy} is for" in problem.message
    build_selection({**section, "tail_triggers": 0})


@pytest.mark.parametrize(
    ("presampling", "path", "says"),
    [
        ({"strategy": "TimeWeighted", "ratio": 5}, "half_life", "is required"),
        ({"strategy": "TimeWeighted", "ratio": 5, "half_life": 0}, "half_life", "greater than or equal to 1"),
        ({"strategy": "TimeWeighted", "ratio": 5, "half_life": "soon"}, "half_life", "soon"),
        ({"strategy": "LabelBalanced"}, "ratio", "is required"),
        ({"strategy": "LabelBalanced", "ratio": 5, "force_column_balance": True}, "force_column_balance", "did you mean"),
        ({"strategy": "Stratified", "ratio": 5, "force_column_balancing": True}, "force_column_balancing", "balances no column"),
    ],
)
def test_a_wrong_option_of_a_presampling_strategy_names_its_place(presampling: dict[str, Any], path: str, says: str) -> None:
    section = {"name": "CoresetStrategy", "maximum_keys_in_memory": 9, "presampling_config": presampling}
    (problem,) = validate_selection(section)
    assert problem.path == f"selection_strategy.presampling_config.{path}"
    assert says in problem.message


@pytest.mark.parametrize("percent", [0, 100])
def test_freshness_needs_both_kinds(percent: int) -> None:
    section = {"name": "FreshnessSamplingStrategy", "maximum_keys_in_memory": 9, "unused_data_ratio": percent}
    (problem,) = validate_selection(section)
    assert problem.path == "selection_strategy.unused_data_ratio"


def test_several_mistakes_are_told_at_once() -> None:
    section = {"name": "CoresetStrategy", "limit": 0, "presampling_config": {"strategy": "Random", "ratoi": 5}}
    assert sorted(problem.path.removeprefix("selection_strategy.") for problem in validate_selection(section)) == [
        "limit",
        "maximum_keys_in_memory",
        "presampling_config.ratio",
        "presampling_config.ratoi",
    ]


def test_names_of_the_format_that_are_still_to_come_say_so() -> None:
    for name in SELECTION.not_yet:
        assert "not available yet" in validate_selection({"name": name})[0].message
    for name in PRESAMPLING.not_yet:
        section = {"name": "CoresetStrategy", "maximum_keys_in_memory": 9, "presampling_config": {"strategy": name}}
        assert "not available yet" in validate_selection(section)[0].message


def test_each_strategy_that_messages_advise_is_registered() -> None:
    """No advice leads to an error: names with a capital in lists after "choose"."""
    known = {*SELECTION, *PRESAMPLING, *DOWNSAMPLING, "Simple"}  # the last is no strategy
    texts = [
        (file, node.value)
        for room in ("selector", "trainer_server")
        for file in (ROOT / "modyn" / room).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    named = {(file.name, name) for file, text in texts for name in advised(text)}
    assert {name for _, name in named} >= {"Reservoir", "Loss", "GradNorm", "RS2"}
    assert {(file, name) for file, name in named if name not in known} == set()


def advised(text: str) -> list[str]:
    """What a text lists after "choose": of `choose Loss, RS2 or GradNorm, or remove Balance` the first three."""
    lists = re.findall(r"\bchoose ([A-Z]\w*(?:(?:, or|,| or) [A-Z]\w*)*)", text)
    return [name for one in lists for name in re.findall(r"[A-Z]\w*", one)]


def test_a_strategy_that_balances_nothing_cannot_be_told_to_force_balance() -> None:
    presampling = {"strategy": "Random", "ratio": 3, "force_column_balancing": True, "force_required_target_size": True}
    section = {"name": "CoresetStrategy", "maximum_keys_in_memory": 9, "presampling_config": presampling}
    (problem,) = validate_selection(section)
    assert problem.path == "selection_strategy.presampling_config.force_column_balancing"
    named = problem.message.split("choose ")[1].split(", or remove")[0]
    balanced = [name for name in PRESAMPLING.builtin if PRESAMPLING.get(name).Config.balances]
    assert re.split(", | or ", named) == balanced
    assert {"LabelBalanced", "TriggerBalanced"} <= set(balanced)


def test_sections_of_the_published_format_are_accepted() -> None:
    published: dict[str, Any] = {
        "name": "CoresetStrategy",
        "maximum_keys_in_memory": 100_000,
        "storage_backend": "database",
        "tail_triggers": 0,
        "limit": -1,
        "uses_weights": True,
        "warmup_triggers": 1,
        "presampling_config": {"strategy": "No", "ratio": 100, "force_column_balancing": False},
        "downsampling_config": {"strategy": "Loss", "sample_then_batch": False, "ratio": 50},
    }
    assert validate_selection(published) == []
    assert build_selection(published).config.uses_weights


GOLDEN_UAR = [[100, 101, 105, 106, 108], [103, 107, 108, 110, 116], [100, 102, 103, 118, 123], [107, 109, 111, 141, 145]]
GOLDEN_RANDOM = [[101, 108], [115, 120, 124], [128], [132, 133, 134, 140, 146]]
GOLDEN_WARMUP = [[101, 107, 108], [115, 120, 124], [128], [133, 141, 148]]
