"""Measures one figure of online learning.

python -m benchmark.online FIGURE [--help]

statistics   rows/s of the whole preprocessing of clicks, against scikit-learn on the same batches
step         seconds of a step of proactive training, all that belongs to it, against the bare step of PyTorch on data in memory
serve        predictions/s and latency over HTTP, against a handler of FastAPI and Ray Serve with the same model
latency      p99 of predictions while proactive training takes its steps, against that while nothing trains
rollback     seconds from a rollback until no answer comes from the version that is taken back
swap         hot swaps of stored versions in `modyn serve` under load: failed and mixed answers, and how long a swap takes
"""

from __future__ import annotations

from benchmark.figure_command import run_figure

FIGURES = ("statistics", "step", "swap", "serve", "latency", "rollback")


if __name__ == "__main__":
    run_figure("benchmark.online", FIGURES, __doc__)
