"""What a worker holds at most while it compares 50,000 samples of 512 values, or as many as are asked for, with as many: a program.

python -m tests.support.large_windows METRIC [SAMPLES]

Prints the bytes in addition to those of a process that has compared a few samples, which are the libraries' own. They include what is kept of the
samples between questions, the copies of both windows, and the memory of the metric.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final, cast

import numpy as np
import torch
from torch import nn

from modyn.config.base import load_section
from modyn.evaluator.config import DriftDataConfig
from modyn.evaluator.drift import DRIFT_METRICS
from modyn.evaluator.evaluate import EvaluationInput
from modyn.evaluator.kept_values import KeptValues
from modyn.evaluator.measure_drift import DriftMemory, measure_drifts
from modyn.evaluator.records import AtPositions, DriftQuestion, DriftRequest
from modyn.evaluator.session_model import SessionModel
from modyn.evaluator.versions import DataVersion
from modyn.records import RunId, RunRegistration, SampleBatch, StreamWindow
from modyn.selector.client import SelectorClient
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.fake_storage import FakeStorage

SAMPLES: Final = int(sys.argv[2]) if len(sys.argv) > 2 else 50_000
WIDTH: Final = 512
_FEW: Final = 50
_RUN: Final = RunId("large-0001")
_SECTION: Final = {"dataset_id": "large", "record_layout": {"dtype": "int64", "shape": [1]}, "batch_size": 1000}


class Waves(nn.Module):
    """The embedding of sample k is sin(k · a) for as many fixed a; that of the second half of samples is shifted. Categories are tenths of it."""

    def __init__(self) -> None:
        super().__init__()
        self.last_layer = nn.Linear(WIDTH, 2)
        self.register_buffer("pace", torch.rand(WIDTH, generator=torch.Generator().manual_seed(0)))
        self.pace: torch.Tensor

    def embedding(self, data: torch.Tensor) -> torch.Tensor:
        """Args: data: int64 (n, 1), numbers of samples."""
        waves = torch.sin(data * self.pace).add_(0.1 * (data >= SAMPLES))
        return waves.mul_(10).round_() if DRIFT_METRICS.get(sys.argv[1]).by_category else waves

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last_layer(self.embedding(data))
        return logits


def main() -> None:
    keys = np.arange(2 * SAMPLES)
    storage = FakeStorage()
    storage.add_dataset("large")
    storage.add_samples("large", keys, payloads=[key.tobytes() for key in keys])
    identity = storage.client().dataset("large").identity
    selector = FakeSelectorClient()
    strategy = {"name": "NewDataStrategy", "maximum_keys_in_memory": 100, "tail_triggers": 0}
    selector.register_run(RunRegistration(_RUN, "large", strategy, 1, dataset_identity=identity))
    selector.inform(_RUN, 0, SampleBatch(keys, keys, np.zeros(len(keys), np.int64)))
    inputs = EvaluationInput(
        load_section(DriftDataConfig, _SECTION, "data"),
        AtPositions(_RUN, []),
        storage.client(),
        storage.payload_client(),
        identity=identity,
        selector=cast("SelectorClient", selector),
    )

    def ask(size: int, memory: DriftMemory) -> None:
        windows = StreamWindow(0, size), StreamWindow(SAMPLES, SAMPLES + size)
        question = DriftQuestion(*windows, metrics={"it": {"id": sys.argv[1]}}, model_id=1)
        (found,) = measure_drifts(DriftRequest(_RUN, dict(_SECTION), question), DataVersion(identity, ""), inputs, memory)
        assert found.num_embedded == 2 * size
        assert found.distances["it"].distance > 0

    network = Waves()
    ask(_FEW, DriftMemory(KeptValues(), SessionModel(1, "few", network)))
    before = held("VmRSS")
    ask(SAMPLES, DriftMemory(KeptValues(), SessionModel(1, "all", network)))
    print(held("VmHWM") - before)


def held(what: str) -> int:
    """Bytes of this process. Not by ru_maxrss, which a process takes over from the one that starts it."""
    found = re.search(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


if __name__ == "__main__":
    main()
