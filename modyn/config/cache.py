"""Section `cache` of a pipeline and of the system file: size and location of the memory that stores prepared samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from modyn.config.base import Matching, Section, load_section
from modyn.config.sizes import Size

SamplerName = Literal["static", "coordinated", "opportunistic"]
"""Names of samplers. A sampler chooses the cached samples of a batch."""
_REMOVED_SAMPLERS: Final = ("lru", "quiver", "shade", "shared_loader")
"""Former samplers of pipelines, for comparisons only. These samplers are in `benchmark/cache`."""


def managed_tier(sampler: SamplerName) -> Literal["augmented"] | None:
    """Return the tier in which a sampler stores and evicts values; None for `static`, because a static cache stores values in all tiers."""
    return None if sampler == "static" else "augmented"


SPLIT: Final = r"auto|(\d{1,3})-(\d{1,3})-(\d{1,3})"


class CacheConfig(Section):
    """A cache of prepared samples. Trainings on the same samples share it. See docs/how-to/cache.md."""

    size: Annotated[Size, Field(ge=1)] | None = Field(
        None, description="memory for samples, in all tiers together, such as 2GB; none: no cache", examples=["2GB"]
    )
    store: Literal["auto", "memory", "redis"] = Field(
        "auto",
        description="place of the samples: `memory`, the shared memory of the trainer server's machine, or `redis`, which several machines may "
        "share. auto: `memory` if `size` is at most half of the shared memory, unless `modyn cache profile` has measured that "
        "`redis` is faster; otherwise `redis`",
    )
    split: Annotated[str, Matching(SPLIT, "write auto, or percents encoded-decoded-augmented such as 58-42-0")] = Field(
        "auto",
        description="division of `size` between encoded, decoded and augmented samples, in percent. auto: the split of `modyn cache plan`, or "
        "without measurements, the whole size for the form that saves the most work",
        examples=["0-100-0"],
    )
    jobs: int = Field(
        1,
        ge=1,
        le=32,
        description="number of concurrent trainings on the same samples. With several, a training may use samples that another has prepared "
        "(`sampler`), and `split: auto` plans for this number",
    )
    sampler: Literal["auto", SamplerName] = Field(
        "auto",
        description="rule that chooses the cached samples of a batch. `static`: the order of the training, without regard to the cache. "
        "`coordinated`: samples that other trainings have prepared and this one has not yet seen, each sample once in an epoch. "
        "auto: `coordinated` if a part of the cache is for augmented samples and `training.shuffle` is set without `seed`, otherwise "
        "`static`. `opportunistic`, for comparison: as many cached samples as possible, while random samples are prepared in the "
        "background",
    )
    compression: Literal["none", "zstd", "lz4"] = Field(
        "none", description="compression of each sample in the cache; lz4 needs the package lz4"
    )

    @field_validator("sampler", mode="before")
    @classmethod
    def _is_not_removed(cls, value: object) -> object:
        if value in _REMOVED_SAMPLERS:
            raise ValueError(
                f"the sampler {value!r} served comparisons only, and is no longer a part of pipelines: write auto, coordinated, opportunistic or "
                "static, or leave it out"
            )
        return value

    @field_validator("split")
    @classmethod
    def _is_whole(cls, value: str) -> str:
        if value == "auto":
            return value
        if sum(map(int, value.split("-"))) != 100:
            raise ValueError(f"{value!r} does not add up to 100 percent")
        return value

    def overridden(self, section: Mapping[str, Any]) -> CacheConfig:
        """Return these settings, overridden by the settings of a pipeline's section `cache`. Raises ConfigError."""
        return load_section(CacheConfig, {**self.model_dump(exclude_unset=True), **section}, "cache")
