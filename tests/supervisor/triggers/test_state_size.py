"""The state of a policy for a restart does not grow with the stream, because each batch writes it, and a run may last for years."""

from __future__ import annotations

import json

import numpy as np
import pytest

from modyn.records import SampleBatch
from modyn.supervisor.triggers import TriggerContext, build_trigger
from modyn.testing.checks import decide
from modyn.testing.fake_evidence import FakeEvidence
from tests.support.trigger_sections import SECTIONS

SAMPLES = 4000
MOST_BYTES = 8 << 10


@pytest.mark.parametrize(
    "moves", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["a stream that drifts", "one that stays the same"]
)
@pytest.mark.parametrize("name", SECTIONS)
def test_the_state_stays_as_small_as_it_was(name: str, *, moves: bool) -> None:
    keys = np.arange(SAMPLES)
    labels = np.random.default_rng(3).integers(0, 2, SAMPLES) * (1 + keys // 500 % 3 * moves)
    stream = SampleBatch(keys, keys * 3600, labels)
    policy = build_trigger(SECTIONS[name], TriggerContext(seed=1))
    source, half = FakeEvidence(stream), SAMPLES // 2
    records = decide(policy, [stream.slice(0, half)], source=source, asks_twice=False)
    before = len(json.dumps(policy.state()))
    decide(policy, [stream.slice(half, SAMPLES)], before=records, position=half, source=source, asks_twice=False)
    after = len(json.dumps(policy.state()))
    assert after < MOST_BYTES
    assert after <= 1.3 * before + 200, f"{before} bytes after half of the stream"
