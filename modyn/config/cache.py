"""Section `cache` of a pipeline and of the system file: how much memory keeps prepared samples, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from modyn.config.base import Matching, Section, load_section
from modyn.config.sizes import Size

SamplerName = Literal["static", "coordinated", "opportunistic", "shared_loader", "lru", "quiver", "shade"]
"""What decides which cached samples a batch serves."""
_MANAGED: Final[Mapping[str, Literal["augmented", "decoded"]]] = {
    **dict.fromkeys(("coordinated", "opportunistic", "shared_loader"), "augmented"),
    **dict.fromkeys(("lru", "quiver", "shade"), "decoded"),
}


COMPARED: Final = ("opportunistic", "shared_loader", "lru", "quiver", "shade")
"""Samplers that are for comparison: in shared memory only."""
BY_LOSS: Final = ("shade",)
"""Samplers that choose by the losses of samples."""


def managed_tier(sampler: str) -> Literal["augmented", "decoded"] | None:
    """The tier whose values a sampler keeps and drops; None: it does so with none."""
    return _MANAGED.get(sampler)


SPLIT: Final = r"auto|(\d{1,3})-(\d{1,3})-(\d{1,3})"


class CacheConfig(Section):
    """A cache of prepared samples, which trainings over the same samples share. See docs/cache.md."""

    size: Annotated[Size, Field(ge=1)] | None = Field(
        None, description="memory for samples, in all tiers together, such as 2GB; none: no cache", examples=["2GB"]
    )
    store: Literal["auto", "memory", "redis"] = Field(
        "auto",
        description="what holds the samples: `memory`, the shared memory of the trainer server's machine, or `redis`, which several machines may "
        "share; auto: where `size` is at most half of the shared memory, `memory`, unless `modyn cache profile` measured that `redis` brings more; "
        "else `redis`",
    )
    split: Annotated[str, Matching(SPLIT, "write auto, or percents encoded-decoded-augmented such as 58-42-0")] = Field(
        "auto",
        description="how `size` is divided between encoded, decoded and augmented samples, in percent; auto: as `modyn cache plan` says, "
        "or else all for the form that saves most work",
        examples=["0-100-0"],
    )
    jobs: int = Field(
        1,
        ge=1,
        le=32,
        description="trainings over the same samples that run at once: with several, one may take what another has prepared (`sampler`), and `split: "
        "auto` plans for so many",
    )
    sampler: Literal["auto", SamplerName] = Field(
        "auto",
        description="which cached samples a batch takes: `static`, none but by chance, in the order of the training; `coordinated`, those that other "
        "trainings have prepared and this one has still to see, each sample once an epoch; auto: `coordinated` where a part of the cache is for "
        "augmented samples, and `training.shuffle` is set without `seed`. For comparisons also opportunistic, shared_loader, lru, quiver, shade",
    )
    compression: Literal["none", "zstd", "lz4"] = Field(
        "none", description="of each sample in the cache; lz4 needs the package lz4"
    )

    @field_validator("split")
    @classmethod
    def _is_whole(cls, value: str) -> str:
        if value == "auto":
            return value
        if sum(map(int, value.split("-"))) != 100:
            raise ValueError(f"{value!r} does not add up to 100 percent")
        return value

    def overridden(self, section: Mapping[str, Any]) -> CacheConfig:
        """Return these settings with those of a pipeline's section `cache` in their place. Raises ConfigError."""
        return load_section(CacheConfig, {**self.model_dump(exclude_unset=True), **section}, "cache")
