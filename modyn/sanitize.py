"""Text of foreign origin, made such that PostgreSQL and protobuf take it."""

from __future__ import annotations


def sanitize(text: str) -> str:
    """`text` with escapes for what no message and no column holds: a user's exception may quote a NUL, and a file's name may be no text.

    >>> print(sanitize("bad value \\0 in caf\\udce9.csv"))
    bad value \\x00 in caf\\udce9.csv
    """
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
