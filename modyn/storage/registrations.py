"""Registrations of datasets: the one way to write one, and what differs between two."""

from __future__ import annotations

import os

from modyn.config.buckets import is_bucket
from modyn.config.dataset import DatasetConfig
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.storage.files.bucket_url import BucketUrl
from modyn.storage.formats import build_format


def normalised(config: DatasetConfig) -> DatasetConfig:
    """The registration with its base_path in the one form. Raises ConfigError, InvalidArgumentError."""
    return config.model_copy(update={"base_path": _normal(config)})


def _normal(config: DatasetConfig) -> str:
    """The one way to write a dataset's base_path. Raises ConfigError, InvalidArgumentError."""
    if config.holds_records:
        return config.base_path
    if is_bucket(config.base_path):
        return str(BucketUrl.parse(config.base_path))
    if not os.path.isabs(config.base_path):
        raise InvalidArgumentError(
            f"base_path '{config.base_path}' of dataset '{config.name}' is not absolute; write it from the root"
        )
    return os.path.normpath(config.base_path)


def difference(known: DatasetConfig, asked: DatasetConfig) -> str:
    """What differs between two ways to register one name, with the defaults of the file format filled in; empty if nothing does."""
    found = [
        f"{field} is {getattr(known, field)!s}, not {getattr(asked, field)!s}"
        for field in ("base_path", "file_wrapper", "filesystem_wrapper", "timestamp_source", "watch")
        if getattr(known, field) != getattr(asked, field)
    ]
    if known.file_wrapper == asked.file_wrapper and known.file_wrapper_config != asked.file_wrapper_config:
        try:
            options = [build_format(c.file_wrapper, c.file_wrapper_config, c.timestamp_source).config for c in (known, asked)]
        except ConfigError:
            options = []
        if not options or options[0] != options[1]:
            found.append(f"file_wrapper_config is {known.file_wrapper_config}, not {asked.file_wrapper_config}")
    return "; ".join(found)
