"""Zstandard of the standard library, which has it from Python 3.14 on, and of its backport before that."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
