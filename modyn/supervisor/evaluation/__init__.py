"""Evaluation handlers. A handler defines which models are evaluated, when, and on which datasets. The handler's strategy returns the intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.config.base import Problem, check_section, refuse, sections_in
from modyn.config.evaluation import Evaluation, EvaluationHandler
from modyn.config.policy import check_policy, load_policy
from modyn.registry import Registry, nearest
from modyn.supervisor.evaluation.base import EvaluationStrategy

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


def build_strategy(section: Mapping[str, Any], path: str = "strategy") -> EvaluationStrategy:
    """Return the strategy that a section describes.

    Args: path: place of the section in the file, for messages.
    Raises: ConfigError: lists every mistake.

    >>> strategy = build_strategy({"type": "StaticEvalStrategy", "intervals": [[0, 100]]})
    >>> list(strategy.intervals())
    [EvalInterval(start=0, end=100, anchor=0)]
    """
    strategy, config = load_policy(EVALUATION_STRATEGIES, section, "type", path)
    return strategy(config)


def check_handlers(evaluation: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake in the handlers of an `evaluation` section, including duplicate names and unknown datasets."""
    handlers = entries if isinstance(entries := evaluation.get("handlers"), list) else []
    known = sorted({str(entry.get("dataset_id")) for entry in sections_in(evaluation.get("datasets")).values()})
    found, names = list[Problem](), dict[str, int]()
    for index, section in enumerate(handlers):
        here = f"evaluation.handlers.{index}"
        mistakes = check_section(EvaluationHandler, section, here)
        found += mistakes
        if not isinstance(section, Mapping):
            continue
        if isinstance(strategy := section.get("strategy"), Mapping):
            found += check_policy(EVALUATION_STRATEGIES, strategy, "type", f"{here}.strategy")
        if not mistakes:
            handler = EvaluationHandler.model_validate(section)
            if (first := names.setdefault(handler.name, index)) != index:
                found.append(Problem(f"{here}.name", f"'{handler.name}' names handler {first} already; give each its own name"))
            found += [
                Problem(
                    f"{here}.datasets.{position}",
                    f"'{dataset}' is not a dataset_id in evaluation.datasets{nearest(dataset, known) or '.'} "
                    f"There: {', '.join(known) or 'none'}",
                )
                for position, dataset in enumerate(handler.datasets)
                if dataset not in known
            ]
    return found


def load_evaluation(section: Mapping[str, Any] | None) -> Evaluation:
    """Load a section; None means that there is no section. Raises: ConfigError: lists every mistake of the handlers."""
    refuse(check_handlers(section or {}))
    return Evaluation.of(section)
