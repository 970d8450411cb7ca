"""The command `python -m benchmark.PACKAGE FIGURE`: the program of one figure, which is a module of that package."""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib import import_module


def run_figure(package: str, figures: Collection[str], usage: str | None) -> None:
    """Run the figure that the command line names, with the arguments after it. Args: usage: shown if it names no figure."""
    if len(sys.argv) < 2 or sys.argv[1] not in figures:
        raise SystemExit(usage)
    import_module(f"{package}.{sys.argv.pop(1)}").main()
