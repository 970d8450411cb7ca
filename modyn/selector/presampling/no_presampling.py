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
    """Keeps the whole window; beyond `limit`, a uniform sample without replacement."""

    Config = NoPresamplingConfig

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """The window, or `limit` of its samples drawn by the generator of the trigger."""
        return uniform(window, limit, context.generator())
