"""Train on everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from modyn.config.base import Section
from modyn.trainer_server.downsampling import Downsampling, DownsamplingConfig

if TYPE_CHECKING:
    from torch import nn

    from modyn.dataset.batch import Batch


class NoDownsamplingConfig(DownsamplingConfig):
    """Options of NoDownsampling."""

    strategy: Literal["No"] = Field("No", description="chooses this strategy")
    ratio: Literal[100] = Field(100, description="everything is kept")
    ratio_max: Literal[100] = Field(100, description="what `ratio` is a part of")


class NoDownsampling(Downsampling):
    """Keeps every sample of every batch."""

    Config: ClassVar[type[Section]] = NoDownsamplingConfig

    def select(self, model: nn.Module, batch: Batch) -> Batch:
        """Return the batch itself."""
        return batch
