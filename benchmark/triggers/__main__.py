"""Measures one figure of triggers.

python -m benchmark.triggers FIGURE [--help]

drift      our MMD against that of alibi-detect, CPU time
"""

from __future__ import annotations

import sys
from importlib import import_module

FIGURES = ("drift",)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in FIGURES:
        raise SystemExit(__doc__)
    name = sys.argv.pop(1)
    import_module(f"benchmark.triggers.{name}").main()


if __name__ == "__main__":
    main()
