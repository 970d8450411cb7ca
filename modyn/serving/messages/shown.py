"""Values of clients in messages."""

from __future__ import annotations

import reprlib
from typing import Final

_MAX_SHOWN: Final = 80
"""Largest number of characters of a client's value in a message."""
_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxstring = 40, 40, 10, 2 * _MAX_SHOWN


def shown(value: object) -> str:
    """Return a client's value as a message shows it: short, and of any depth and size.

    >>> shown([[1] * 1000]), shown(None)
    ('[[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ...', 'missing')
    """
    text = "missing" if value is None else _SHORT.repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
