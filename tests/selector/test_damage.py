"""One flipped bit or a cut anywhere in a file of the selector: what is read is as it was, or an error names the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.errors import CorruptStateError
from modyn.records import KeysAndWeights, RunId, SampleBatch
from modyn.selector.sample_log import GROUP, SampleLog
from modyn.selector.trigger_set import TriggerSet, write_trigger_set
from modyn.selector.window import Selection

NUM_SAMPLES = GROUP + 50


def write(kind: str, folder: Path) -> tuple[SampleLog, Path]:
    """A log, and the file of `kind`: the log itself, or a trigger set of all its samples, stored as keys or as ranges of the log."""
    log = SampleLog(RunId("r"), folder / "r.1")
    log.create()
    positions = np.arange(NUM_SAMPLES)
    log.append(0, SampleBatch(positions * 3, positions, positions % 10))
    if kind == "log":
        return log, log.path
    parts = iter([KeysAndWeights(positions * 3, np.ones(NUM_SAMPLES, np.float32))])
    write_trigger_set(folder / "0.set", 1000, Selection(NUM_SAMPLES, parts, [(0, NUM_SAMPLES)] if kind == "ranges" else None))
    return log, folder / "0.set"


def read(kind: str, log: SampleLog, path: Path) -> list[list[float]]:
    if kind == "log":
        found = log.read(0, log.state().num_samples)
        return [found.keys.tolist(), found.timestamps.tolist(), found.labels.tolist()]
    opened = TriggerSet(path, log)
    partitions = range(-(-opened.header.num_keys // opened.header.partition_size))
    whole = KeysAndWeights.concatenate([chunk for partition in partitions for chunk in opened.partition(partition, 300)])
    return [whole.keys.tolist(), whole.weights.tolist()]


@pytest.mark.parametrize("kind", ["log", "keys", "ranges"])
@settings(max_examples=40)
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_damage_is_found_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, kind: str, share: float, bit: int, cut: bool
) -> None:
    log, path = write(kind, tmp_path_factory.mktemp("files"))
    before, content = read(kind, log, path), bytearray(path.read_bytes())
    at = int(share * len(content))
    content[at] ^= 1 << bit
    path.write_bytes(content[:at] if cut else content)
    try:
        outcome: object = read(kind, log, path)
    except CorruptStateError as error:
        outcome = str(path) in error.message
    assert outcome in (before, True)
