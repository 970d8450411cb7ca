"""A full disk, which counts as an unavailable service."""

from __future__ import annotations

import errno
import os

from modyn.errors import ModynError, UnavailableError


def disk_full_error(error: BaseException) -> UnavailableError | None:
    """Return the error for a full disk or quota; None: `error` is another error. The request may succeed later, when there is space."""
    # Errors of C++ and Rust libraries report a full disk only in their text.
    is_full = os.strerror(errno.ENOSPC) in str(error)
    if isinstance(error, OSError) and error.errno is not None:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (
        UnavailableError(f"the disk is full: {error}; free space there")
        if is_full and not isinstance(error, ModynError)
        else None
    )
