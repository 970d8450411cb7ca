"""Evaluation strategies, one a file, found by the `type` of a handler's `strategy`; and the handlers of the `evaluation` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem
from modyn.config.policy import check_policy, load_policy
from modyn.registry import Registry
from modyn.supervisor.evaluation.base import EvaluationStrategy, IntervalContext

__all__ = [
    "EVALUATION_STRATEGIES",
    "EvaluationStrategy",
    "IntervalContext",
    "build_strategy",
    "check_strategy_section",
]

EVALUATION_STRATEGIES: Final[Registry[type[EvaluationStrategy]]] = Registry(
    group="modyn.evaluation_strategies",
    kind="evaluation strategy",
    builtin={
        "BetweenTwoTriggersEvalStrategy": "modyn.supervisor.evaluation.between_two_triggers:BetweenTwoTriggersEvalStrategy",
        "OffsetEvalStrategy": "modyn.supervisor.evaluation.offset:OffsetEvalStrategy",
        "PeriodicEvalStrategy": "modyn.supervisor.evaluation.periodic:PeriodicEvalStrategy",
        "SlicingEvalStrategy": "modyn.supervisor.evaluation.slicing:SlicingEvalStrategy",
        "StaticEvalStrategy": "modyn.supervisor.evaluation.static:StaticEvalStrategy",
    },
)


def check_strategy_section(section: Mapping[str, Any], path: str) -> list[Problem]:
    """Every mistake of a `strategy` section, with paths below `path`; empty if there is none."""
    return check_policy(EVALUATION_STRATEGIES, section, "type", path)


def build_strategy(section: Mapping[str, Any], path: str = "strategy") -> EvaluationStrategy:
    """The strategy that a section describes. Raises ConfigError that lists every mistake.

    >>> strategy = build_strategy({"type": "StaticEvalStrategy", "intervals": [[0, 100]]})
    >>> list(strategy.intervals(IntervalContext()))
    [EvalInterval(start=0, end=100, anchor=0)]
    """
    strategy, config = load_policy(EVALUATION_STRATEGIES, section, "type", path)
    return strategy(config)
