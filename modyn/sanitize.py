"""Text of foreign origin, escaped so that PostgreSQL and protobuf accept it."""

from __future__ import annotations


def sanitize(text: str) -> str:
    """Escape NUL and lone surrogates: a user's exception may quote a NUL, and a file's name may be no valid text.

    >>> print(sanitize("bad value \\0 in caf\\udce9.csv"))
    bad value \\x00 in caf\\udce9.csv
    """
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
