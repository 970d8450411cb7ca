"""No presampling: the whole window goes to the trainer."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from modyn.selector.presampling import PresamplingConfig, PresamplingPolicy
from modyn.selector.window import Selection, SelectionContext, SelectionWindow, uniform


class NoPresamplingConfig(PresamplingConfig):
    """Options of NoPresampling."""

    ratio: int = Field(default_factory=lambda rest: rest.get("ratio_max", 100), ge=1, description="must be `ratio_max`")

    @field_validator("ratio")
    @classmethod
    def _check_whole(cls, value: int, info: ValidationInfo) -> int:
        if value != (whole := info.data.get("ratio_max", value)):
            raise ValueError(f"{value} of {whole} is a part, but strategy No keeps everything; choose Random, or leave ratio out")
        return value


class NoPresampling(PresamplingPolicy):
    """Keeps the whole window. If the window is larger than `limit`, keeps `limit` samples, uniformly at random without replacement.

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> presample({"strategy": "No"}, [0] * 3, [0] * 2)
    [[0, 1, 2], [0, 1, 2, 3, 4]]
    """

    Config = NoPresamplingConfig

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """Select the window, or `limit` of its samples drawn with the generator of the trigger."""
        return uniform(window, limit, context.generator())
