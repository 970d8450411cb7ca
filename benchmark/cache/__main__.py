"""Measures one figure of the cache.

python -m benchmark.cache FIGURE [--help]

accuracy   what models come to that are trained with a cache, against those without
faults     what training costs while Redis is killed, stopped, slow, full or flushed
jobs       trainings that run at once
makespan   twelve trainings that arrive over time, two at once
overhead   what a cache costs that never hits
predict    the throughput that the performance model predicts, against what is measured
simulate   hits and preparations of all samplers, by jobs and size of the cache; numbers of samples only
single     one training alone, several epochs
soak       memory over fifty epochs
"""

from __future__ import annotations

from benchmark.figure_command import run_figure

FIGURES = ("accuracy", "faults", "jobs", "makespan", "overhead", "predict", "simulate", "single", "soak")


if __name__ == "__main__":
    run_figure("benchmark.cache", FIGURES, __doc__)
