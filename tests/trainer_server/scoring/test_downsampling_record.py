"""What is noted of choices: classes beyond a number are counted together, the same before and after."""

from __future__ import annotations

import numpy as np
import pytest

from modyn.records import OTHER_CLASSES
from modyn.trainer_server.downsampling.policies.importance import ImportanceConfig
from modyn.trainer_server.downsampling.policies.loss import LossDownsampling
from modyn.trainer_server.downsampling.policies.policy import Choice
from modyn.trainer_server.scoring.downsampling_record import MAX_CLASSES, DownsamplingRecord, bounded, notes_of


@pytest.mark.parametrize("is_bounded", [False, True])
def test_classes_that_are_counted_together_are_the_same_before_and_after(is_bounded: bool) -> None:
    """Two choices among 1,500 classes: the last ones, and then the first ones, whose names must not take the room of the others."""
    labels = np.repeat(np.arange(1500), 2)
    record = DownsamplingRecord(LossDownsampling(ImportanceConfig(ratio=50)))
    for positions in (np.arange(1800, 3000), np.arange(600)):
        notes = notes_of(labels, Choice(positions))
        record.add(bounded(notes) if is_bounded else notes)
    counts = record.state()["classes"]
    assert counts["before"] == {**{str(c): 4 for c in range(MAX_CLASSES)}, OTHER_CLASSES: 2000}
    assert counts["after"] == {**{str(c): 2 for c in (*range(300), *range(900, MAX_CLASSES))}, OTHER_CLASSES: 1000}


def test_what_a_file_keeps_of_a_choice_is_bounded() -> None:
    notes = bounded(notes_of(np.arange(100_000), Choice(np.arange(50_000, 100_000))))
    assert len(notes["before"]) == MAX_CLASSES + 1
    assert notes["after"] == {OTHER_CLASSES: 50_000}


def test_the_largest_weight_and_the_effective_samples_are_those_of_all_choices() -> None:
    """Quantiles are of a share of the weights, which hides the one that matters."""
    weights = np.ones(20_001, np.float32)
    weights[77] = 15_881
    for is_uneven, parts in ((True, (weights, np.ones(3, np.float32))), (False, (np.ones(5, np.float32),))):
        record = DownsamplingRecord(LossDownsampling(ImportanceConfig(ratio=50)))
        for part in parts:
            record.add(bounded(notes_of(np.zeros(2 * len(part), np.int64), Choice(np.arange(len(part)), part))))
        restored = DownsamplingRecord(LossDownsampling(ImportanceConfig(ratio=50)))
        restored.load_state(record.state())
        every = np.concatenate(parts).astype(np.float64)
        assert restored._weight_sums.largest == every.max()
        assert restored._weight_sums.effective_samples == pytest.approx(every.sum() ** 2 / (every**2).sum())
        found = list(restored.warnings())
        assert len(found) == is_uneven
        assert (
            not found
            or "20,004 chosen samples count as 5, the largest weight being 1.588e+04: raise uniform_share (0.1)" in found[0]
        )
