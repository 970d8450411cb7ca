"""The frame of a pipeline file: its sections, and the values that the supervisor itself uses.

Each other section is checked by the service that acts on it, so that a plug-in is installed only where it runs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from modyn.config.base import Problem, Section, check_section
from modyn.config.label_delay import check_label_delay, label_delay
from modyn.config.online import OnlineConfig
from modyn.config.preprocessing import with_columns, written_columns
from modyn.config.published import pipeline_source
from modyn.config.serving import ServedRun
from modyn.config.yaml_source import YamlSource, load_yaml, with_lines
from modyn.errors import ConfigError

NOT_YET: Final = ("lineage", "publish", "tracking")
"""Sections of the format that are still to come."""


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class Identity(Section):
    """Name and version of the pipeline."""

    name: str = Field(
        min_length=1, max_length=200, description="name of the pipeline; runs are named after it", examples=["digits"]
    )
    description: str | None = Field(None, description="what it is for")
    version: Annotated[str | None, BeforeValidator(_number_as_text)] = Field(None, description="your version", examples=["1.0.0"])


class ModelReference(Section):
    """Which model is trained."""

    id: str = Field(min_length=1, description="registered name of the model, see `modyn plugins`", examples=["ResNet18"])
    config: dict[str, Any] = Field(
        default_factory=dict, description="arguments of the model's constructor", examples=[{"num_classes": 10}]
    )


class _View(Section):
    """The part of another service's section that the supervisor reads; the owner refuses unknown keys."""

    model_config = ConfigDict(extra="ignore")


class TrainingView(_View):
    """What the supervisor reads of `training`."""

    use_previous_model: bool
    """Whether each training starts from the model of the trigger before."""
    initial_model: Literal["random", "pretrained"] = "random"
    initial_model_id: int | None = Field(None, ge=0)
    """The stored model that the first training starts from; None: random or pretrained weights."""
    num_samples_to_pass: list[Annotated[int, Field(ge=1)]] | None = None
    seed: int | None = Field(None, ge=0)
    """The seed of all random generators; None: not repeatable."""


class DatasetView(_View):
    """What the supervisor reads of `data`, and of an entry of `evaluation.datasets`."""

    dataset_id: str = Field(min_length=1)


class EvaluationFrame(Section):
    """How models are evaluated."""

    device: str = Field("cpu", description="where models are evaluated: `cpu` or `cuda:N`", examples=["cuda:0"])
    datasets: list[DatasetView] = Field(
        min_length=1,
        description="datasets to evaluate on: a `data` section each, with `batch_size`, `dataloader_workers`, `metrics`",
    )
    handlers: list[dict[str, Any]] = Field(
        min_length=1, description="when to evaluate which models on which datasets and intervals; at least one"
    )
    after_training_evaluation_workers: int = Field(5, ge=1, le=1000, description="evaluations at once while the run goes on")
    after_pipeline_evaluation_workers: int = Field(5, ge=1, le=1000, description="evaluations at once after the run")


class PipelineFrame(Section):
    """The sections of a pipeline file."""

    pipeline: Identity = Field(description="what the pipeline is called")
    model: ModelReference = Field(description="which model is trained")
    model_storage: dict[str, Any] = Field(default_factory=dict, description="how models are stored")
    training: TrainingView = Field(description="how a model is trained")
    data: DatasetView = Field(description="which dataset is trained on, and how its bytes become tensors")
    preprocessing: dict[str, Any] | None = Field(
        None,
        description="columns of a sample and what features are made of them; takes the place of parser and transformations in `data`",
    )
    cache: dict[str, Any] = Field(default_factory=dict, description="memory that keeps prepared samples for trainings")
    trigger: dict[str, Any] = Field(description="when to train; chosen by `id`")
    selection_strategy: dict[str, Any] = Field(description="which samples to train on; chosen by `name`")
    online: OnlineConfig | None = Field(None, description="proactive training between two triggers; none = there is none")
    serving: ServedRun | None = Field(None, description="what `modyn serve` serves of a run; its options go before this section")
    evaluation: EvaluationFrame | None = Field(None, description="how models are evaluated; none = not at all")


@dataclass(frozen=True)
class Pipeline:
    """A pipeline file whose frame is valid. Other services check their own sections."""

    frame: PipelineFrame
    source: YamlSource

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.frame.pipeline.name

    @property
    def dataset_id(self) -> str:
        """The dataset whose samples stream in."""
        return self.frame.data.dataset_id

    @property
    def training(self) -> TrainingView:
        """The training options that the supervisor itself needs."""
        return self.frame.training

    def num_samples_to_pass(self, trigger_id: int) -> int | None:
        """Return how many samples the training of a trigger sees; None: as many as its epochs give."""
        bounds = self.training.num_samples_to_pass or []
        return bounds[trigger_id] if trigger_id < len(bounds) else None

    @property
    def label_delay(self) -> int:
        """Seconds of stream time that labels come after their samples."""
        return label_delay(self._data)

    @property
    def trigger(self) -> dict[str, Any]:
        """The `trigger` section as written."""
        return self.section("trigger")

    @property
    def selection_strategy(self) -> dict[str, Any]:
        """The `selection_strategy` section as written."""
        return self.section("selection_strategy")

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """The section as written, or none when nothing is to be evaluated."""
        return self.section("evaluation") or None

    def section(self, name: str) -> dict[str, Any]:
        """Return a section as the user wrote it, sections of data with the columns of `preprocessing`; empty if it is absent."""
        return copy.deepcopy(dict(self._data.get(name, {})))

    def as_dict(self) -> dict[str, Any]:
        """Return the whole file as plain data, as it is sent to services: sections of data with the columns of `preprocessing`."""
        return copy.deepcopy(self._data)

    @cached_property
    def _data(self) -> dict[str, Any]:
        return with_columns(_present(self.source.data))


def check_frame(data: Mapping[str, Any]) -> list[Problem]:
    """Return every problem in the frame of a pipeline: missing or unknown sections, and the values that are read here."""
    coming = [Problem(name, "this section is not available yet; remove it") for name in NOT_YET if data.get(name) is not None]
    known = {name: value for name, value in _present(data).items() if name not in NOT_YET}
    return (
        coming
        + check_section(PipelineFrame, known, "")
        + _cross_checks(known)
        + check_label_delay(known)
        + written_columns(known)
    )


def load_pipeline(text: str, file_name: str) -> Pipeline:
    """Load the pipeline in `text`. Raises ConfigError that lists every problem as `file:line: path: what, allowed, did you mean`."""
    source = pipeline_source(load_yaml(text, file_name))
    if found := check_frame(source.data):
        raise ConfigError("\n".join(with_lines(found, source)))
    return Pipeline(PipelineFrame.model_validate(_present(source.data)), source)


def _present(data: Mapping[str, Any]) -> dict[str, Any]:
    """Drop sections that are left empty: `evaluation:` with nothing after it is no section."""
    return {name: value for name, value in data.items() if value is not None}


def _cross_checks(data: Mapping[str, Any]) -> list[Problem]:
    evaluation = data.get("evaluation")
    datasets = evaluation.get("datasets") if isinstance(evaluation, Mapping) else None
    names = [d.get("dataset_id") for d in datasets if isinstance(d, Mapping)] if isinstance(datasets, list) else []
    return [
        Problem(f"evaluation.datasets.{index}.dataset_id", f"'{name}' is listed twice; list each dataset once")
        for index, name in enumerate(names)
        if name is not None and name in names[:index]
    ]
