"""Train on all samples."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from modyn.trainer_server.downsampling.policies.policy import Candidates, Choice, DownsamplingConfig, DownsamplingPolicy, Draw


class NoDownsamplingConfig(DownsamplingConfig):
    """Options of NoDownsampling."""

    ratio: int = Field(
        default_factory=lambda rest: rest.get("ratio_max", 100),
        ge=1,
        description="must be `ratio_max`, because every sample is kept",
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
    """Keeps every sample, and makes no pass.

    >>> candidates = Candidates(np.zeros((3, 0), np.float32), np.zeros(3, np.int64), np.arange(3))
    >>> NoDownsampling(NoDownsamplingConfig()).choose(candidates, 3, Draw(seed=7, trigger_id=0, number=0)).positions.tolist()
    [0, 1, 2]
    """

    Config: ClassVar[type[DownsamplingConfig]] = NoDownsamplingConfig
    needs_pass = False

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Return all candidates. The trainer never calls this method, because there is nothing to choose."""
        return Choice(np.arange(len(candidates)))
