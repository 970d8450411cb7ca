"""Section `cache` of a pipeline and of the system file: how much memory keeps prepared samples, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from modyn.config.base import Matching, Section, load_section
from modyn.config.sizes import Size

SPLIT: Final = r"auto|(\d{1,3})-(\d{1,3})-(\d{1,3})"


class CacheConfig(Section):
    """A cache of prepared samples, which trainings over the same samples share. See docs/cache.md."""

    size: Annotated[Size, Field(ge=1)] | None = Field(
        None, description="memory for samples, in all tiers together, such as 2GB; none: no cache", examples=["2GB"]
    )
    store: Literal["auto", "memory", "redis"] = Field(
        "auto",
        description="what holds the samples: `memory`, the shared memory of the trainer server's machine, or `redis`, which several machines may "
        "share; auto: `memory` where `size` is at most half of that",
    )
    split: Annotated[str, Matching(SPLIT, "write auto, or percents encoded-decoded-augmented such as 58-42-0")] = Field(
        "auto",
        description="how `size` is divided between encoded, decoded and augmented samples, in percent; auto: as `modyn cache plan` says, "
        "or else all for the form that saves most work",
        examples=["0-100-0"],
    )
    compression: Literal["none", "zstd", "lz4"] = Field(
        "none", description="of each sample in the cache; lz4 needs the package lz4"
    )

    @field_validator("split")
    @classmethod
    def _is_whole(cls, value: str) -> str:
        if value == "auto":
            return value
        encoded, decoded, augmented = map(int, value.split("-"))
        if encoded + decoded + augmented != 100:
            raise ValueError(f"{value!r} does not add up to 100 percent")
        if augmented:
            raise ValueError(
                f"{value!r} has a tier of augmented samples, which is not available yet; divide the rest, as 58-42-0"
            )
        return value

    def overridden(self, section: Mapping[str, Any]) -> CacheConfig:
        """Return these settings with those of a pipeline's section `cache` in their place. Raises ConfigError."""
        return load_section(CacheConfig, {**self.model_dump(exclude_unset=True), **section}, "cache")
