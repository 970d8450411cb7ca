"""Measures one figure of data selection.

python -m benchmark.selection FIGURE [--help]

score      the pass that scores a trigger set, against a plain forward pass over the same samples
bts        a training on half of each batch's candidates, against one on all samples
rs2        a training on a new random half in each epoch, against one on a half that was drawn once
greedy     facility location, CPU time and memory against apricot and submodlib
k_center   k-center, CPU time against the way of DeepCore
many       CRAIG, gradient matching and k-center of 10 million candidates on disk, time and memory
presample  balanced presampling of informed keys, against NumPy on arrays in memory
"""

from __future__ import annotations

from benchmark.figure_command import run_figure

FIGURES = ("score", "bts", "rs2", "greedy", "k_center", "many", "presample")


if __name__ == "__main__":
    run_figure("benchmark.selection", FIGURES, __doc__)
