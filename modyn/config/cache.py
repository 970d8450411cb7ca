"""Section `cache` of a pipeline and of the system file: size and location of the memory that stores prepared samples."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, field_validator

from modyn.config.base import Matching, Section, load_section

UNITS: Final = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
SIZE_PATTERN: Final = r"^\s*\d+(\.\d+)?\s*([kKmMgGtT][iI]?)?[bB]\s*$"
"""Pattern for editors. `parse_size` decides which texts are valid."""


def parse_size(value: object) -> int:
    """Convert `<number><unit>` to bytes, with a unit of B KB MB GB TB (powers of 1,000) or KiB MiB GiB TiB (powers of 1,024), in any case. An int is
    a number of bytes.

    Raises: ValueError: `value` is another text or type; pydantic converts this error to a problem with the path of the value.

    >>> parse_size("2GB"), parse_size("1.5 KiB")
    (2000000000, 1536)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].upper() not in UNITS:
        raise ValueError(f"{value!r} is not a size; write a number and one of B KB MB GB TB KiB MiB GiB TiB, for example '2GB'")
    return math.floor(float(match[1]) * UNITS[match[2].upper()])


Size = Annotated[int, BeforeValidator(parse_size, json_schema_input_type=int | Annotated[str, Field(pattern=SIZE_PATTERN)])]
"""Type of a field in bytes, which users write in the form `2GB`."""

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
