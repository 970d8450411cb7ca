"""Functions that bounded processes run in tests."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator


def answer(request: tuple[str, int]) -> Iterator[object]:
    """Do what the request names; yield the process id."""
    what, number = request
    match what:
        case "count":
            yield from range(number)
            return
        case "signal":
            os.kill(os.getpid(), number)
        case "abort":
            os.abort()
        case "exit":
            os._exit(number)
        case "hang":
            time.sleep(3600)
        case "spin":
            while True:
                pass
        case "allocate":
            held = []
            while True:
                held.append(b"x" * (1 << 20))
        case "reserve":
            bytearray(number)
        case "raise":
            raise KeyError("a bug")
        case "leave":
            sys.exit("a parser that ends its process")
    yield os.getpid()
