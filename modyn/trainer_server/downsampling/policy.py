"""The base of downsampling policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from modyn.config.base import Section

if TYPE_CHECKING:
    from torch import nn

    from modyn.dataset.batch import Batch


class DownsamplingConfig(Section):
    """The options of every strategy."""

    strategy: str = Field(description="registered id of the strategy")
    sample_then_batch: bool = Field(False, description="select from the whole trigger set before batches are made")
    ratio: int = Field(100, ge=1, description="share of samples to keep, in `ratio_max`-ths")
    ratio_max: int = Field(100, ge=1, description="what `ratio` is a share of")
    period: int = Field(1, ge=0, description="epochs between two selections in sample-then-batch; 0: once a trigger")


class Downsampling(ABC):
    """Selects the samples of each batch to train on, with the present model. Made anew for each training."""

    Config: ClassVar[type[Section]] = DownsamplingConfig

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def select(self, model: nn.Module, batch: Batch) -> Batch:
        """The part of `batch` to train on, with its weights; never empty. The batch lies on the model's device."""
