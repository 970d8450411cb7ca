"""Section `storage.records` of the system file: records that clients append."""

from __future__ import annotations

from pydantic import Field

from modyn.config.base import Section


class RecordsConfig(Section):
    """Datasets of records."""

    max_bytes: int = Field(2**20, ge=1, le=2**30, description="largest payload of a record")
    seal_s: float = Field(
        0.5,
        gt=0,
        le=3600,
        description="seconds after which appended records become samples, if `seal_samples` have not come before",
    )
    seal_samples: int = Field(
        10_000, ge=1, le=10**6, description="so many appended records become samples without waiting for more"
    )
