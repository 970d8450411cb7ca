"""Measures one figure of the cache.

python -m benchmark.cache FIGURE [--help]

faults     what training costs while Redis is killed, stopped, slow, full or flushed
overhead   what a cache costs that never hits
simulate   hits and preparations of all samplers, by jobs and size of the cache; numbers of samples only
single     one training alone, several epochs
"""

from __future__ import annotations

from benchmark.figure_command import run_figure

FIGURES = ("faults", "overhead", "simulate", "single")


if __name__ == "__main__":
    run_figure("benchmark.cache", FIGURES, __doc__)
