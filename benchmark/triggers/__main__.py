"""Measures one figure of triggers.

python -m benchmark.triggers FIGURE [--help]

drift      our MMD against that of alibi-detect, CPU time
checks     what a drift check costs in a run, from the first to the last hundred
power      how small a shift each test finds; writes the pictures of docs/how-to/triggers.md
simulate   samples/s of 20 policies together in a simulation, and what 200 drift policies cost that share a model
pictures   writes the other pictures of docs/how-to/triggers.md
rare_classes   how many samples a check needs to see a rare class; prints the table of docs/how-to/rare-classes.md
"""

from __future__ import annotations

from benchmark.figure_command import run_figure

FIGURES = ("drift", "checks", "power", "simulate", "pictures", "rare_classes")


if __name__ == "__main__":
    run_figure("benchmark.triggers", FIGURES, __doc__)
