"""Models and drift metrics that fail, wait or die, as plug-ins: services find them in a folder on their PYTHONPATH."""

from __future__ import annotations

from pathlib import Path

_MODULE = """
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
_ENTRY_POINTS = """[modyn.models]
Diverged = faulty:Diverged
NoLinear = faulty:NoLinear
[modyn.drift_metrics]
Raises = faulty:Raises
Words = faulty:Words
Waits = faulty:Waits
DiesOnce = faulty:DiesOnce
NoPolicy = faulty:NoPolicy
Uninstalled = not_there:Distance
"""


def plug_in(folder: Path) -> None:
    """Makes `folder` one that brings them. `Waits` and `DiesOnce` leave files there."""
    (folder / "faulty.py").write_text(_MODULE)
    info = folder / "faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
