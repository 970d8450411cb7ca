"""Clients of buckets, made with obstore: the client for a URL, credentials, time limits, and the translation of errors."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from modyn.errors import ConfigError, DataError, ModynError, NotFoundError, SecurityError, UnavailableError
from modyn.storage.files.aws_profile import AwsProfile
from modyn.storage.files.bucket_url import BucketUrl
from modyn.storage.files.file_system import UnusableNowError, changed

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_NEEDED = "needs obstore, which is not installed where storage runs: pip install 'modyn[buckets]'"
_MAX_REASON = 300
"""Largest number of characters of a reason in a message."""
_begun_in: int | None = None
"""Id of the process in which obstore's threads run. A forked process does not have these threads, so requests of a forked process would never end."""


class BadKeyError(DataError):
    """An object's key contains `//`, or `..` between slashes. obstore does not accept the key as a path, and lists no object with the same prefix."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Time limits of requests and retries, in seconds. A request is repeated if it gets no response, gets status 5xx, or is interrupted."""

    connect_s: float = 10.0
    read_s: float = 30.0
    """Longest pause between two bytes of the response."""
    answer_s: float = 120.0
    """Longest time of one whole response."""
    retries: int = 3
    retry_s: float = 60.0
    """Time since the first attempt of a request after which the request is not repeated any more."""


def open_store(url: BucketUrl, limits: StoreLimits) -> ObjectStore:
    """Return the client of a bucket, without a request to the server.

    Raises: ConfigError: obstore is not installed, or an option or the environment is wrong. UnavailableError: the process was forked from a process
    that used a bucket.
    """
    global _begun_in  # noqa: PLW0603  (obstore has one set of threads for the process)
    if _begun_in not in (None, os.getpid()):
        raise UnavailableError(
            f"{url.base} cannot be read in this process: it was forked from one that had read from a bucket, and has none of its "
            "threads; start it by another method than fork ('spawn', 'forkserver'), or before the first read"
        )
    try:
        from obstore import exceptions
    except ModuleNotFoundError as error:
        raise ConfigError(f"{url.base} {_NEEDED}") from error
    common: dict[str, Any] = {
        "client_options": {
            "allow_http": dict(url.options).get("scheme") == "http",
            "connect_timeout": timedelta(seconds=limits.connect_s),
            "read_timeout": timedelta(seconds=limits.read_s),
            "timeout": timedelta(seconds=limits.answer_s),
        },
        "retry_config": {"max_retries": limits.retries, "retry_timeout": timedelta(seconds=limits.retry_s)},
    }
    try:
        found = _client_of_kind(url, common)
    except (exceptions.BaseError, ValueError) as error:
        raise ConfigError(
            f"{url.base} cannot be used: {reason_of(error)}; check its options and the environment of storage"
        ) from error
    _begun_in = os.getpid()
    return found


def _client_of_kind(url: BucketUrl, common: dict[str, Any]) -> ObjectStore:
    """Make the client for the scheme of `url`: S3, Google Cloud Storage or Azure. Args: common: arguments that are the same for all clients."""
    from obstore import store

    options = dict(url.options)
    config: dict[str, Any] = {"skip_signature": True} if options.get("anonymous") == "true" else {}
    if endpoint := options.get("endpoint_override"):
        config["base_url" if url.kind == "gs" else "endpoint"] = f"{options.get('scheme', 'https')}://{endpoint}"
    if url.kind == "gs":
        return store.GCSStore(url.bucket, config=config, **common)  # type: ignore[arg-type]
    if url.kind == "az":
        config |= {"account_name": options["account"]} if "account" in options else {}
        return store.AzureStore(url.bucket, config=config, **common)  # type: ignore[arg-type]
    profile = AwsProfile.of(os.environ) if "skip_signature" not in config else None
    named = "AWS_REGION" in os.environ or "AWS_DEFAULT_REGION" in os.environ
    region = options.get("region")
    # obstore itself reads a region from the environment.
    if region is None and not named:
        # If the keys come from the file of profiles and the file is unreadable, `of` has raised an error. Otherwise an unreadable file is ignored.
        with suppress(ConfigError):
            region = AwsProfile.selected(os.environ).region
    config |= {"region": region} if region else {}
    return store.S3Store(url.bucket, config=config, credential_provider=profile, **common)  # type: ignore[arg-type]


def object_error(error: Exception, path: str, offset: int) -> ModynError:
    """Translate an error that obstore raised for an object. The result is a DataError if the object is the reason, a FileChangedError if the object
    has another version, and an UnavailableError if the server is the reason.

    Args: path: full path. offset: first byte of the requested range.
    """
    status = status_of(error)
    if status == 412:
        return changed(path, offset, f"byte {offset}")
    if status == 404:
        return DataError(f"cannot read {path} at byte {offset}: there is no such object; put it back or delete its samples")
    if status in {401, 403}:
        return UnusableNowError(
            f"cannot read {path} at byte {offset}: the server refuses it ({reason_of(error)}); make the object readable for the "
            "credentials of storage"
        )
    return UnavailableError(f"cannot read {path} at byte {offset}: {reason_of(error)}; try again, and check network and endpoint")


def bucket_error(error: Exception, url: BucketUrl) -> ModynError:
    """Translate an error that obstore raised for a listing of `url`."""
    status = status_of(error)
    if found := re.search(r"object with invalid path: (.*)", str(error)):
        return BadKeyError(
            f"{url.base} cannot be listed: the key of an object is not a path of a file: {found[1]}. No other object of the prefix can be listed: "
            "rename or remove that object, or register a prefix without it"
        )
    if status == 404:
        return NotFoundError(f"{url.base} cannot be read: there is no bucket '{url.bucket}'; create it or correct base_path")
    if status in {401, 403}:
        return SecurityError(
            f"{url.base} cannot be listed: the server refuses the credentials of storage ({reason_of(error)}); correct them in its "
            "environment, or let them list and read the bucket"
        )
    return UnavailableError(f"{url.base} cannot be listed: {reason_of(error)}; check network, region, endpoint and credentials")


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of an error of obstore; None if the server did not respond. Errors of listings have the status only in their text."""
    from obstore.exceptions import PermissionDeniedError, PreconditionError, UnauthenticatedError

    kinds = {FileNotFoundError: 404, PreconditionError: 412, PermissionDeniedError: 403, UnauthenticatedError: 401}
    for kind, status in kinds.items():
        if isinstance(error, kind):
            return status
    found = re.search(r"status code: (\d{3})\b", str(error))
    return int(found[1]) if found else None


def reason_of(error: Exception) -> str:
    """Shorten an error of obstore to one line. The line contains code and message of the server's response, and URLs without their queries."""
    text = str(error).strip().split("\n\nDebug source:")[0]
    found = re.search(r"status code: (\d{3}[^:<]*)", text)
    if found:
        code, message = (re.search(rf"<{name}>(.*?)</{name}>", text, re.DOTALL) for name in ("Code", "Message"))
        text = ": ".join([found[1].strip(), *(part[1] for part in (code, message) if part)])
    # The query of a URL may hold key ids and signatures.
    text = " ".join(re.sub(r"(\w+://[^\s?\"']*)\?[^\s\"')]*", r"\1", text).split())
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"
