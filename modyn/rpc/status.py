"""Translation between the errors of `modyn.errors` and gRPC statuses."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import NoReturn

import grpc

from modyn.errors import (
    BY_REASON,
    AlreadyExistsError,
    CancelledError,
    ConfigError,
    ConflictError,
    CorruptStateError,
    DataError,
    DeadlineError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
    OverloadedError,
    SecurityError,
    StreamExpiredError,
    UnavailableError,
    UserCodeError,
)

REASON_KEY = "modyn-reason"
TOKEN_KEY = "authorization"
ACCEPTED = ("modyn-accepted", "1")
"""Metadata that a server sends at the start of a stream. It distinguishes an expired stream from a server that does not answer."""

_MAX_DETAILS = 4000
"""Largest number of bytes of an error's details. gRPC sends the details in HTTP/2 headers of at most 8 KiB by default."""
_CUT = "..."

_CODES: dict[type[ModynError], grpc.StatusCode] = {
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    ConflictError: grpc.StatusCode.FAILED_PRECONDITION,
    DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    CancelledError: grpc.StatusCode.CANCELLED,
    DataError: grpc.StatusCode.DATA_LOSS,
    CorruptStateError: grpc.StatusCode.DATA_LOSS,
    UserCodeError: grpc.StatusCode.ABORTED,
    SecurityError: grpc.StatusCode.PERMISSION_DENIED,
}

_BY_CODE: dict[grpc.StatusCode, type[ModynError]] = {
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.PERMISSION_DENIED: SecurityError,
    grpc.StatusCode.UNAUTHENTICATED: SecurityError,
}
"""Class of the error for each status that gRPC itself makes. Such a status has no reason in its metadata."""


def bounded(text: str, max_bytes: int) -> str:
    """Cut `text` to at most `max_bytes` in a header. In a header, each byte that is not printable ASCII takes three bytes.

    >>> bounded("cannot read ä", 15), bounded("cannot read ä", 19), bounded("cannot read \\udcff", 99)
    ('cannot read ...', 'cannot read ä', 'cannot read \\\\udcff')
    """
    encoded = text.encode("utf-8", "backslashreplace")  # a file's name may not be valid text
    ends = list(accumulate(1 if 0x20 <= byte <= 0x7E and byte != ord("%") else 3 for byte in encoded))
    if not ends or ends[-1] <= max_bytes:
        return encoded.decode()
    return encoded[: bisect_right(ends, max_bytes - len(_CUT))].decode(errors="ignore") + _CUT


def abort(context: grpc.ServicerContext, error: ModynError) -> NoReturn:
    """End the call of `context` with the status of `error`, and with the reason of the error as metadata. The function never returns, because gRPC
    raises an exception.
    """
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    context.set_trailing_metadata(((REASON_KEY, error.reason),))
    context.abort(code, bounded(error.message, _MAX_DETAILS))
    raise AssertionError("abort raises")


def reason_of(error: grpc.RpcError) -> str | None:
    """Return the reason that a Modyn server sent; None: gRPC itself made the status, for example after a failed connection."""
    trailing = error.trailing_metadata() or () if hasattr(error, "trailing_metadata") else ()
    return next((str(entry.value) for entry in trailing if entry.key == REASON_KEY), None)


def from_rpc(error: grpc.RpcError, peer: str) -> ModynError:
    """Convert the gRPC error of a call to a ModynError. Args: peer: service and address, for the message."""
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = (error.details() if hasattr(error, "details") else None) or str(error)
    reason = reason_of(error)
    if reason is not None:
        return BY_REASON.get(reason, ModynError)(details)
    if code is grpc.StatusCode.UNAVAILABLE:
        # Embedded services have Unix sockets.
        start = "`modyn up` starts it" if peer.startswith("unix:") else "start it where it runs"
        return UnavailableError(f"{peer} cannot be reached ({details}); is it running? `modyn status` shows that, {start}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return InvalidArgumentError(
            f"{peer}: {details}; if a message is too large, raise max_message_bytes of the service in the system file, on both sides"
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        if hasattr(error, "initial_metadata") and any(tuple(entry) == ACCEPTED for entry in error.initial_metadata() or ()):
            return StreamExpiredError(f"the deadline of a stream from {peer} has passed; ask for the rest of it again")
        return DeadlineError(f"{peer} did not answer in time; `modyn logs` shows what it is doing")
    return _BY_CODE.get(code, ModynError)(f"{peer}: {details}")
