"""Downsampling policies: which samples of a batch are worth training on. One policy a file; here is where they are found by id."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import Field, field_validator

from modyn.config.base import Problem, Section, not_available_yet, refuse
from modyn.config.policy import check_policy, load_policy
from modyn.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from modyn.dataset.batch import Batch


class DownsamplingConfig(Section):
    """The options of every strategy."""

    strategy: str = Field(description="registered id of the strategy")
    sample_then_batch: bool = Field(
        False, description="select from the whole trigger set before batches are made; not available yet"
    )
    ratio: int = Field(100, ge=1, description="share of samples to keep, in `ratio_max`-ths")
    ratio_max: int = Field(100, ge=1, description="what `ratio` is a share of")
    period: int = Field(
        1, ge=0, description="epochs between two selections in sample-then-batch; 0: once a trigger; not available yet"
    )

    @field_validator("sample_then_batch")
    @classmethod
    def _from_batches(cls, value: bool) -> bool:
        return not_available_yet(value)

    @field_validator("period")
    @classmethod
    def _in_each_batch(cls, value: int) -> int:
        not_available_yet(value != 1)
        return value


class Downsampling(ABC):
    """Selects the samples of each batch to train on, with the present model. Made anew for each training."""

    Config: ClassVar[type[Section]] = DownsamplingConfig

    def __init__(self, config: Any) -> None:
        """Args: config: a checked `Config` of the policy."""
        self.config = config

    @abstractmethod
    def select(self, model: nn.Module, batch: Batch) -> Batch:
        """The part of `batch` to train on, with its weights; never empty. The batch lies on the model's device."""


DOWNSAMPLING: Registry[type[Downsampling]] = Registry(
    group="modyn.downsampling",
    kind="downsampling strategy",
    builtin={"No": "modyn.trainer_server.downsampling.no:NoDownsampling"},
    not_yet=("Craig", "GradMatch", "GradNorm", "KcenterGreedy", "Loss", "RHOLoss", "RS2", "Submodular", "Uncertainty"),
)

_PATH: Final = "selection_strategy.downsampling_config"


def check_downsampling(selection_strategy: Mapping[str, Any]) -> list[Problem]:
    """What is wrong in `selection_strategy.downsampling_config`; empty: nothing, or it is not there."""
    options = selection_strategy.get("downsampling_config")
    if options is None:
        return []
    if not isinstance(options, Mapping):
        return [Problem(_PATH, f"{options!r} is wrong: this is a mapping with the key `strategy`")]
    return check_policy(DOWNSAMPLING, {"strategy": "No", **options}, "strategy", _PATH)


def build_downsampling(selection_strategy: Mapping[str, Any]) -> Downsampling | None:
    """The policy of the section `downsampling_config` in `selection_strategy`; None without one. Raises ConfigError."""
    refuse(check_downsampling(selection_strategy))
    options = selection_strategy.get("downsampling_config")
    if options is None:
        return None
    policy, config = load_policy(DOWNSAMPLING, {"strategy": "No", **options}, "strategy", _PATH)
    return policy(config)
