"""Train on everything."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from modyn.trainer_server.downsampling.policy import Candidates, Choice, DownsamplingConfig, DownsamplingPolicy, Draw


class NoDownsamplingConfig(DownsamplingConfig):
    """Options of NoDownsampling."""

    ratio: int = Field(
        default_factory=lambda rest: rest.get("ratio_max", 100), ge=1, description="must be `ratio_max`: everything is kept"
    )

    @field_validator("ratio")
    @classmethod
    def _is_the_whole(cls, value: int, info: ValidationInfo) -> int:
        if value != (whole := info.data.get("ratio_max", value)):
            raise ValueError(
                f"{value} of {whole} is a share, but No keeps everything: leave ratio out, or choose RS2 for a random share"
            )
        return value


class NoDownsampling(DownsamplingPolicy):
    """Keeps every sample, and makes no pass."""

    Config: ClassVar[type[DownsamplingConfig]] = NoDownsamplingConfig
    needs_pass = False

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """All candidates; never called, since there are no more of them."""
        return Choice(np.arange(len(candidates)))
