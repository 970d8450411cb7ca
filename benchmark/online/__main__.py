"""Measures one figure of online learning.

python -m benchmark.online FIGURE [--help]

statistics   rows/s of the whole preprocessing of clicks, against scikit-learn on the same batches
"""

from __future__ import annotations

from benchmark.figure_command import run_figure

FIGURES = ("statistics",)


if __name__ == "__main__":
    run_figure("benchmark.online", FIGURES, __doc__)
