"""Frame of a pipeline file: the sections, and the values that the supervisor itself uses.

Each further section is checked by the service that uses the section. So a plug-in must be installed only where it runs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from modyn.config.base import Problem, Section, check_section, section_at, sections_in
from modyn.config.downsampling_turns import DownsamplingTurns, load_turns
from modyn.config.label_delay import check_label_delay, label_delay
from modyn.config.online import OnlineConfig
from modyn.config.preprocessing import with_columns, written_columns
from modyn.config.published import pipeline_source
from modyn.config.serving import ServedRun
from modyn.config.yaml_source import YamlSource, load_yaml, with_lines
from modyn.errors import ConfigError

NOT_YET: Final = ("lineage", "publish", "tracking")
"""Sections of the pipeline format that are not available yet."""


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class Identity(Section):
    """Name and version of the pipeline."""

    name: str = Field(
        min_length=1, max_length=200, description="name of the pipeline; runs are named after it", examples=["digits"]
    )
    description: str | None = Field(None, description="what the pipeline is for")
    version: Annotated[str | None, BeforeValidator(_number_as_text)] = Field(None, description="your version", examples=["1.0.0"])


class ModelReference(Section):
    """A model by name: `package.module:Name`, `./file.py:Name`, `torchvision:NAME`, `timm:NAME` or `transformers:FOLDER`."""

    id: str = Field(
        min_length=1,
        description="registered id (`modyn plugins`), `package.module:Name`, `./file.py:Name`, `torchvision:NAME`, `timm:NAME` or "
        "`transformers:FOLDER`",
        examples=["ResNet18", "timm:vit_small_patch16_224"],
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="arguments of the model's constructor", examples=[{"num_classes": 10}]
    )
    freeze: list[str] = Field(
        default_factory=list,
        description="names or patterns of parameters or modules that are not trained; BatchNorm statistics change",
        examples=[["encoder", "*.bias"]],
    )
    download: bool = Field(False, description="whether a library may download pretrained weights")


class _View(Section):
    """The part of another service's section that the supervisor reads. The other service refuses unknown keys."""

    model_config = ConfigDict(extra="ignore")


class ValidationView(_View):
    """Fields of `training.validation` that the supervisor reads."""

    ratio: int
    """Percentage of each partition of a trigger set that is held out."""


class TrainingView(_View):
    """Fields of `training` that the supervisor reads."""

    use_previous_model: bool
    """Whether each training starts from the model of the previous trigger."""
    initial_model: Literal["random", "pretrained"] = "random"
    initial_model_id: int | None = Field(None, ge=0)
    """The stored model that the first training starts from; None: random or pretrained weights."""
    num_samples_to_pass: list[Annotated[int, Field(ge=1)]] | None = None
    seed: int | None = Field(None, ge=0)
    """The seed of all random generators; None: runs are not repeatable."""
    device: str = "cpu"
    validation: ValidationView | None = None

    @property
    def percent_held_out(self) -> int:
        """Percentage of each partition of a trigger set that no training sees; 0: all samples are trained on."""
        return 0 if self.validation is None else self.validation.ratio


class DatasetView(_View):
    """Fields of `data`, and of an entry of `evaluation.datasets`, that the supervisor reads."""

    dataset_id: str = Field(min_length=1)


class EvaluationFrame(Section):
    """Evaluation of models."""

    device: str = Field("cpu", description="where models are evaluated: `cpu` or `cuda:N`", examples=["cuda:0"])
    datasets: list[DatasetView] = Field(
        min_length=1,
        description="datasets to evaluate on; each is a `data` section with `batch_size`, `dataloader_workers`, `metrics`",
    )
    handlers: list[dict[str, Any]] = Field(
        min_length=1, description="when to evaluate which models on which datasets and intervals; at least one"
    )
    after_training_evaluation_workers: int = Field(
        5, ge=1, le=1000, description="most concurrent evaluations while the run continues"
    )
    after_pipeline_evaluation_workers: int = Field(5, ge=1, le=1000, description="most concurrent evaluations after the run")


class PipelineFrame(Section):
    """The sections of a pipeline file."""

    pipeline: Identity = Field(description="what the pipeline is called")
    model: ModelReference = Field(description="which model is trained")
    model_storage: dict[str, Any] = Field(default_factory=dict, description="how models are stored")
    training: TrainingView = Field(description="how a model is trained")
    data: DatasetView = Field(description="which dataset is trained on, and how its bytes become tensors")
    preprocessing: dict[str, Any] | None = Field(
        None,
        description="columns of a sample, and the features made of them; replaces parser and transformations in `data`",
    )
    cache: dict[str, Any] = Field(default_factory=dict, description="memory that keeps prepared samples for trainings")
    trigger: dict[str, Any] = Field(description="when to train; `id` names the policy")
    selection_strategy: dict[str, Any] = Field(description="which samples to train on; `name` names the policy")
    online: OnlineConfig | None = Field(None, description="proactive training between two triggers; none: no such training")
    serving: ServedRun | None = Field(
        None, description="how `modyn serve` serves a run; options of the command override this section"
    )
    evaluation: EvaluationFrame | None = Field(None, description="how models are evaluated; none: they are not evaluated")
    sources: dict[str, Any] = Field(
        default_factory=dict, description="files that models are built from, by name; `modyn run` adds them"
    )


@dataclass(frozen=True)
class Pipeline:
    """A pipeline file with a valid frame. The supervisor's sections are parsed. Other sections are plain data, which the supervisor passes to other
    services.
    """

    frame: PipelineFrame
    """The parsed sections. Each `data` section has the columns of `preprocessing`."""
    source: YamlSource

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.frame.pipeline.name

    @property
    def dataset_id(self) -> str:
        """The dataset whose samples are the stream of a run."""
        return self.frame.data.dataset_id

    @property
    def training(self) -> TrainingView:
        """The training options that the supervisor itself needs."""
        return self.frame.training

    @property
    def online(self) -> OnlineConfig | None:
        """The section `online`; None: no steps are made between two triggers."""
        return self.frame.online

    @cached_property
    def turns(self) -> DownsamplingTurns:
        """The downsampling policies, and the rule that chooses between them. Raises: ConfigError."""
        return load_turns(self.frame.selection_strategy)

    def num_samples_to_pass(self, trigger_id: int) -> int | None:
        """Return the number of samples that the training of a trigger sees; None: the number of epochs determines it."""
        bounds = self.training.num_samples_to_pass or []
        return bounds[trigger_id] if trigger_id < len(bounds) else None

    @cached_property
    def label_delay(self) -> int:
        """Seconds of stream time between a sample and the arrival of its label."""
        return label_delay(self._data)

    @property
    def trigger(self) -> dict[str, Any]:
        """The section `trigger` as the user wrote it."""
        return copy.deepcopy(self.frame.trigger)

    @property
    def selection_strategy(self) -> dict[str, Any]:
        """The section `selection_strategy` as the user wrote it."""
        return copy.deepcopy(self.frame.selection_strategy)

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """The section `evaluation` as the user wrote it; None: models are not evaluated."""
        return self.section("evaluation") or None

    def section(self, name: str) -> dict[str, Any]:
        """Return a section as the user wrote it; empty: the section is absent. `data` sections also have the columns of `preprocessing`."""
        return copy.deepcopy(dict(self._data.get(name, {})))

    def as_dict(self) -> dict[str, Any]:
        """Return the whole file as plain data for services. The `data` sections also have the columns of `preprocessing`."""
        return copy.deepcopy(self._data)

    @cached_property
    def _data(self) -> dict[str, Any]:
        return with_columns(_present(self.source.data))


def check_frame(data: Mapping[str, Any]) -> list[Problem]:
    """Return every problem in the frame of a pipeline: missing or unknown sections, and wrong values in the fields of `PipelineFrame`."""
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
    return Pipeline(PipelineFrame.model_validate(with_columns(_present(source.data))), source)


def _present(data: Mapping[str, Any]) -> dict[str, Any]:
    """Remove empty sections: `evaluation:` without a value counts as missing."""
    return {name: value for name, value in data.items() if value is not None}


def _cross_checks(data: Mapping[str, Any]) -> list[Problem]:
    entries = sections_in(section_at(data, "evaluation").get("datasets"))
    names = {index: entry.get("dataset_id") for index, entry in entries.items()}
    return [
        Problem(f"evaluation.datasets.{index}.dataset_id", f"'{name}' is listed twice; list each dataset once")
        for position, (index, name) in enumerate(names.items())
        if name is not None and name in [*names.values()][:position]
    ]
