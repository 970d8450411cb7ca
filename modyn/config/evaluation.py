"""The section `evaluation` of a pipeline: its handlers, and the datasets that the evaluator reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import Field

from modyn.config.base import Section
from modyn.config.downsampling_turns import UNNAMED_HANDLER

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
    def of(cls, section: Mapping[str, Any] | None) -> Self:
        """Read a section whose handlers were checked; None means that there is no section. No plug-in is needed."""
        section = section or {}
        return cls(
            tuple(map(EvaluationHandler.model_validate, section.get("handlers", []))),
            {entry["dataset_id"]: entry for entry in section.get("datasets") or []},
            str(section.get("device", "cpu")),
            int(section.get("after_training_evaluation_workers", 5)),
            int(section.get("after_pipeline_evaluation_workers", 5)),
        )
