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


def why_misplaced(base_path: str, file_wrapper: str, filesystem_wrapper: str) -> str:
    """Return why what a dataset says of its place does not fit together, and what to write; empty: it does."""
    if (base_path == RECORDS) != (file_wrapper == RECORD_LOG):
        return (
            f"base_path is {base_path}, and file_wrapper {file_wrapper}: {RECORDS} and {RECORD_LOG} belong together; leave file_wrapper out for a "
            "dataset of records, or name the folder and the format of its files"
        )
    if is_url(base_path) and not is_bucket(base_path) and base_path != RECORDS:
        # The rest is not shown: it may hold a password.
        return (
            f"base_path begins with {base_path.partition('/')[0]}/, of which nothing is known; write s3://BUCKET/PREFIX, "
            "gs://BUCKET/PREFIX or az://CONTAINER/PREFIX for a bucket, or the path of a folder from the root"
        )
    if filesystem_wrapper != wrapper_of(base_path):
        return f"filesystem_wrapper is {filesystem_wrapper}, but base_path is {base_path}; leave it out"
    return ""


def wrapper_of(base_path: str) -> str:
    """Return the `filesystem_wrapper` of a `base_path`."""
    return BUCKETS[base_path.partition("://")[0]] if is_bucket(base_path) else "LocalFilesystemWrapper"
