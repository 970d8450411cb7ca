"""Evaluation handlers: when to evaluate which models on which datasets and intervals. The intervals come from strategies, one a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from modyn.config.base import Problem, Section, check_section, refuse
from modyn.config.downsampling_turns import UNNAMED_HANDLER
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
    """The strategy that a section describes.

    Args: path: where the section stands in the file, for messages.
    Raises: ConfigError: lists every mistake.

    >>> strategy = build_strategy({"type": "StaticEvalStrategy", "intervals": [[0, 100]]})
    >>> list(strategy.intervals())
    [EvalInterval(start=0, end=100, anchor=0)]
    """
    strategy, config = load_policy(EVALUATION_STRATEGIES, section, "type", path)
    return strategy(config)


ModelChoice = Literal["matrix", "active", "train"]


class EvaluationHandler(Section):
    """One entry of `evaluation.handlers`."""

    name: str = Field(
        UNNAMED_HANDLER, min_length=1, max_length=200, description="names the results of this handler", examples=["slices"]
    )
    execution_time: Literal["after_training", "after_pipeline", "manual"] = Field(
        description="`after_training`: each model as soon as it is trained; `after_pipeline`: all of them at the end of the run; "
        "`manual`: on request"
    )
    models: ModelChoice = Field(
        "matrix",
        description="`matrix`: every model on every interval; `active`: on each interval the newest model from before its anchor; "
        "`train`: the one that follows the active one",
    )
    datasets: list[str] = Field(
        min_length=1, description="`dataset_id`s out of `evaluation.datasets`", examples=[["digits_test"]]
    )
    strategy: dict[str, Any] = Field(description="where evaluation data is taken from; chosen by `type`")


def check_handlers(evaluation: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake in the handlers of an `evaluation` section: each alone, names used twice, datasets that it does not hold."""
    handlers, datasets = (
        entries if isinstance(entries := evaluation.get(name), list) else [] for name in ("handlers", "datasets")
    )
    known = sorted({str(entry.get("dataset_id")) for entry in datasets if isinstance(entry, Mapping)})
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


def load_handlers(evaluation: Mapping[str, Any] | None) -> tuple[EvaluationHandler, ...]:
    """Return the handlers of an `evaluation` section, none if there is none. Raises ConfigError that lists every mistake."""
    refuse(check_handlers(evaluation or {}))
    return tuple(map(EvaluationHandler.model_validate, (evaluation or {}).get("handlers", [])))
