"""Models and drift metrics that fail, wait or die, as plug-ins. `Waits` and `DiesOnce` leave files in their folder."""

from __future__ import annotations

SOURCE = """
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

from modyn.config.base import Section
from modyn.evaluator.drift import Drift, DriftMetric

FOLDER = Path(__file__).parent


class Diverged(nn.Module):
    Config = Section

    def __init__(self, config):
        super().__init__()
        self.last_layer = nn.Linear(4, 3)

    def forward(self, data):
        return self.last_layer(data if self.training else data * float("nan"))


class NoLinear(nn.Module):
    Config = Section

    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3))

    def forward(self, data):
        return data @ self.weight


class Raises(DriftMetric):
    Config = Section

    def compare(self, reference, current):
        return Drift([0.1][7])


class Words(Raises):
    def compare(self, reference, current):
        return Drift("far")


class Waits(Raises):
    def compare(self, reference, current):
        (FOLDER / "waits").write_text(str(os.getpid()))
        while not (FOLDER / "go on").exists():
            time.sleep(0.02)
        return Drift(0.0)


class DiesOnce(Raises):
    def compare(self, reference, current):
        if not (FOLDER / "died").exists():
            (FOLDER / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Drift(0.0)


class NoPolicy:
    pass
"""
_DISTANCES = ("Raises", "Words", "Waits", "DiesOnce", "NoPolicy")
ENTRY_POINTS = {
    "modyn.models": {name: f"faulty:{name}" for name in ("Diverged", "NoLinear")},
    "modyn.drift_metrics": {**{name: f"faulty:{name}" for name in _DISTANCES}, "Uninstalled": "not_there:Distance"},
}
