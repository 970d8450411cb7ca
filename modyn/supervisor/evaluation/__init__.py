"""Evaluation handlers. A handler defines which models are evaluated, when, and on which datasets. The handler's strategy returns the intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from pydantic import Field

from modyn.config.base import Problem, Section, check_section, refuse, sections_in
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
    """Return the strategy that a section describes.

    Args: path: place of the section in the file, for messages.
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
        UNNAMED_HANDLER, min_length=1, max_length=200, description="name of the handler in results", examples=["slices"]
    )
    execution_time: Literal["after_training", "after_pipeline", "manual"] = Field(
        description="`after_training`: each model after its training; `after_pipeline`: all models at the end of the run; `manual`: on request"
    )
    models: ModelChoice = Field(
        "matrix",
        description="`matrix`: every model on every interval; `active`: on each interval, the newest model from before its anchor; `train`: the "
        "next model after the active one",
    )
    datasets: list[str] = Field(min_length=1, description="`dataset_id`s from `evaluation.datasets`", examples=[["digits_test"]])
    strategy: dict[str, Any] = Field(description="how evaluation data are chosen; `type` names the strategy")


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


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The section `evaluation` of a pipeline. The defaults describe a pipeline without this section."""

    handlers: tuple[EvaluationHandler, ...] = ()
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Entries of `evaluation.datasets` by `dataset_id`. The evaluator reads these entries."""
    device: str = "cpu"
    after_training_workers: int = 5
    """Largest number of evaluations made at the same time while the run continues."""
    after_pipeline_workers: int = 5
    """Largest number of evaluations made at the same time after the run."""

    @classmethod
    def load(cls, section: Mapping[str, Any] | None) -> Self:
        """Load a section; None means that there is no section. Raises: ConfigError: lists every mistake of the handlers."""
        section = section or {}
        refuse(check_handlers(section))
        return cls(
            tuple(map(EvaluationHandler.model_validate, section.get("handlers", []))),
            {entry["dataset_id"]: entry for entry in section.get("datasets") or []},
            str(section.get("device", "cpu")),
            int(section.get("after_training_evaluation_workers", 5)),
            int(section.get("after_pipeline_evaluation_workers", 5)),
        )
