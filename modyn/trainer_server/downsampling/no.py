"""Train on everything."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from modyn.trainer_server.downsampling.policy import Candidates, Choice, DownsamplingConfig, DownsamplingPolicy, Draw


class NoDownsamplingConfig(DownsamplingConfig):
    """Options of NoDownsampling."""

    ratio: Literal[100] = Field(100, description="everything is kept")
    ratio_max: Literal[100] = Field(100, description="what `ratio` is a part of")


class NoDownsampling(DownsamplingPolicy):
    """Keeps every sample, and makes no pass."""

    Config: ClassVar[type[DownsamplingConfig]] = NoDownsamplingConfig
    needs_pass = False

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """All candidates; never called, since there are no more of them."""
        return Choice(np.arange(len(candidates)))
