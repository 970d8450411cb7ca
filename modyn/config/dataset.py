"""Registration of a dataset, from the system file, the API or the command line."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from modyn.config.base import Matching, Section
from modyn.config.system_sections.buckets import RECORD_LOG, RECORDS, why_misplaced, wrapper_of

DATASET_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}$"
DatasetName = Annotated[
    str, Matching(DATASET_NAME, "allowed are 1 to 100 letters a to z, digits, `_`, `.`, `-`; the first is a letter or digit")
]


class DatasetConfig(Section):
    """A dataset: the location of its files, and the format in which storage reads samples from the files."""

    name: DatasetName = Field(description="identity, used as `data.dataset_id` in pipelines")
    base_path: str = Field(
        min_length=1,
        description="folder of the files, searched recursively; or s3://, gs:// or az://BUCKET/PREFIX; or records://, to which clients append "
        "records; see docs/how-to/records.md",
    )
    file_wrapper: str = Field(description="file format, e.g. SingleSampleFileWrapper; omitted with records://")
    file_wrapper_config: dict[str, Any] = Field(default_factory=dict, description="options of the file format")
    filesystem_wrapper: Literal[
        "LocalFilesystemWrapper", "S3FilesystemWrapper", "GCSFilesystemWrapper", "AzureFilesystemWrapper"
    ] = Field("LocalFilesystemWrapper", description="kind of the location; it follows from base_path, so it may be omitted")
    timestamp_source: str = Field("", description="source of a sample's time; empty: the modification time of its file")
    watch: bool = Field(True, description="index new files as they appear")

    @property
    def holds_records(self) -> bool:
        """Return whether clients append the samples of this dataset as records. Storage keeps records in its own state folder."""
        return self.base_path == RECORDS

    @model_validator(mode="before")
    @classmethod
    def _of_base_path(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("base_path"), str | os.PathLike):
            return data
        base_path = os.fspath(data["base_path"])
        known = {"filesystem_wrapper": wrapper_of(base_path)} | ({"file_wrapper": RECORD_LOG} if base_path == RECORDS else {})
        return {**known, **data, "base_path": base_path}

    @model_validator(mode="after")
    def _lies_where_it_says(self) -> DatasetConfig:
        if reason := why_misplaced(self.base_path, self.file_wrapper, self.filesystem_wrapper):
            raise ValueError(reason)
        return self
