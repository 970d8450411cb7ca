"""Kinds of a dataset's location: a folder, a bucket of an object store, or storage's record log. `base_path` determines the kind."""

from __future__ import annotations

import re

BUCKETS = {"s3": "S3FilesystemWrapper", "gs": "GCSFilesystemWrapper", "az": "AzureFilesystemWrapper"}
"""URL schemes of buckets: Amazon S3 and compatible stores, Google Cloud Storage, and containers of Azure Blob Storage."""

RECORDS = "records://"
"""The `base_path` of a dataset of records that clients append. Storage keeps the records in its own state folder."""
RECORD_LOG = "RecordLogWrapper"
"""The `file_wrapper` of a dataset of records, and of no other dataset."""


def is_bucket(base_path: str) -> bool:
    """Return whether a dataset's `base_path` is a bucket."""
    scheme, found, _ = base_path.partition("://")
    return bool(found) and scheme in BUCKETS


def is_url(base_path: str) -> bool:
    """Return whether a `base_path` has the form of a URL. Paths of folders begin with / or ./"""
    return re.match(r"\w[\w+.\-]*:/", base_path) is not None


def why_misplaced(base_path: str, file_wrapper: str, filesystem_wrapper: str) -> str:
    """Return the reason why the fields of a dataset's location contradict each other, with advice. Empty: there is no contradiction."""
    if (base_path == RECORDS) != (file_wrapper == RECORD_LOG):
        return (
            f"base_path is {base_path}, and file_wrapper {file_wrapper}: {RECORDS} and {RECORD_LOG} belong together; leave file_wrapper out for a "
            "dataset of records, or name the folder and the format of its files"
        )
    if is_url(base_path) and not is_bucket(base_path) and base_path != RECORDS:
        # The rest is not shown, because it may contain a password.
        return (
            f"base_path begins with {base_path.partition('/')[0]}/, which is not a known scheme; write s3://BUCKET/PREFIX, "
            "gs://BUCKET/PREFIX or az://CONTAINER/PREFIX for a bucket, or the path of a folder from the root"
        )
    if filesystem_wrapper != wrapper_of(base_path):
        return f"filesystem_wrapper is {filesystem_wrapper}, but base_path is {base_path}; leave it out"
    return ""


def wrapper_of(base_path: str) -> str:
    """Return the `filesystem_wrapper` of a `base_path`."""
    return BUCKETS[base_path.partition("://")[0]] if is_bucket(base_path) else "LocalFilesystemWrapper"
