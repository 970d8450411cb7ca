"""Measures one figure of triggers.

python -m benchmark.triggers FIGURE [--help]

drift      our MMD against that of alibi-detect, CPU time
checks     what a drift check costs in a run, from the first to the last hundred
power      how small a shift each test finds; writes the pictures of docs/triggers.md
simulate   samples/s of 20 policies together in a simulation, and what 200 drift policies cost that share a model
pictures   writes the other pictures of docs/triggers.md
"""

from __future__ import annotations

import sys
from importlib import import_module

FIGURES = ("drift", "checks", "power", "simulate", "pictures")


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in FIGURES:
        raise SystemExit(__doc__)
    name = sys.argv.pop(1)
    import_module(f"benchmark.triggers.{name}").main()


if __name__ == "__main__":
    main()
