"""Measures one figure of the cache.

python -m benchmark.cache FIGURE [--help]

simulate   hits and preparations of all samplers, by jobs and size of the cache; numbers of samples only
"""

from __future__ import annotations

import sys
from importlib import import_module

FIGURES = ("simulate",)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in FIGURES:
        raise SystemExit(__doc__)
    name = sys.argv.pop(1)
    import_module(f"benchmark.cache.{name}").main()


if __name__ == "__main__":
    main()
