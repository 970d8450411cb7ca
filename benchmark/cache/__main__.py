"""Measures one figure of the cache.

python -m benchmark.cache FIGURE [--help]

simulate   hits and preparations of all samplers, by jobs and size of the cache; numbers of samples only
"""

from __future__ import annotations

from benchmark.figure_command import run_figure

FIGURES = ("simulate",)


if __name__ == "__main__":
    run_figure("benchmark.cache", FIGURES, __doc__)
