"""Where a dataset lies, by its `base_path`: in a folder, in a bucket of an object store, or in storage's own record log."""

from __future__ import annotations

import re

BUCKETS = {"s3": "S3FilesystemWrapper", "gs": "GCSFilesystemWrapper", "az": "AzureFilesystemWrapper"}
"""Schemes of URLs of buckets: of Amazon S3 and what speaks like it, of Google Cloud Storage, and of containers of Azure Blob Storage."""

RECORDS = "records://"
"""The `base_path` of a dataset of records that clients append: storage keeps them in its own state folder."""
RECORD_LOG = "RecordLogWrapper"
"""The `file_wrapper` of such a dataset, and of no other."""


def is_bucket(base_path: str) -> bool:
    """Return whether a dataset's `base_path` is a bucket."""
    scheme, found, _ = base_path.partition("://")
    return bool(found) and scheme in BUCKETS


def is_url(base_path: str) -> bool:
    """Return whether a `base_path` is written as a URL of any kind. A folder is written from the root, or with ./"""
    return re.match(r"\w[\w+.\-]*:/", base_path) is not None


def wrapper_of(base_path: str) -> str:
    """Return the `filesystem_wrapper` of a `base_path`."""
    return BUCKETS[base_path.partition("://")[0]] if is_bucket(base_path) else "LocalFilesystemWrapper"
