"""The result of a training: one converter, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from modyn.cache.served_counts import ServedCounts
from modyn.errors import CorruptStateError
from modyn.json_codec import from_json, to_json
from modyn.trainer_server.result import NO_RESULT, TrainingCounts, TrainingResult

CACHED = {"num_cached": {"encoded": 10, "decoded": 70, "augmented": 0}, "cache_work": {"read": 5, "decoded": 10}}
STORED: dict[str, Any] = {
    "num_samples": 50,
    "num_skipped": 1,
    "num_batches": 9,
    "num_steps": 9,
    "skipped_steps": 0,
    "ignored_labels": 2,
    "num_labels": 50,
    "num_epochs": 2,
    "num_keys": 26,
    "loss": 0.5,
    "epoch_losses": [1.5, 0.5],
    "validation_losses": [1.25, float("inf")],
    "losses": [[4, 1.5], [8, float("inf")]],
    "seconds": {"load": 0.5, "forward": 1.0, "store": 0.25},
    "device": "cpu",
    "warnings": ["a warning"],
    "bad_samples": [{"key": 3, "place": "a.csv, line 4", "reason": "it is short"}],
    **CACHED,
    "cache_saved_s": -1.5,
    "downsampling": {
        "strategy": "Loss",
        "mode": "batch_then_sample",
        "transforms_labels": False,
        "num_candidates": 100,
        "num_chosen": 50,
        "num_selections": 9,
        "class_shares": {"before": {}, "after": {"1": 1.0}},
        "weight_quantiles": {"0.5": 1.0},
        "largest_weight": 2.0,
        "effective_samples": 40.0,
        "seconds": {"score": 0.5, "choose": 0.25},
        "effective_epochs": 1.0,
    },
    "preprocessing": {
        "rows": 9,
        "dense_features": 1,
        "sparse_features": 2,
        "over_bound": {"vocabulary": {"site": 0.5}},
        "inputs": {"age": {"rows": 9, "missing": 0.5, "unlike": 0.25}},
        "unusual": [],
    },
    "prequential": {"first_step": 3, "num": [2, 1], "loss": [1.5, float("inf")], "errors": [1, 0]},
    "step_guard": {
        "snapshots": 2,
        "data_jumps": 1,
        "rollbacks": [
            {
                "step": 8,
                "to_step": 4,
                "running": 0.5,
                "loss": 9.0,
                "alone": True,
                "newest_loss": 8.0,
                "compared_loss": 7.0,
                "snapshot_loss": 0.25,
            }
        ],
        "left_out": False,
        "running": {"total": 4.0, "weight": 8.0},
        "ranges": {"rows": 8, "ranges": {"data": [0.0, 1.0], "labels": None}},
    },
    "feedback": {"scores": {"loss": 1}, "num_rows": 50, "crc32": 7, "attempt": 1_700_000_000_000_000},
}
"""Results as journals and models of earlier versions hold them."""


def test_a_stored_result_is_read_and_written_unchanged() -> None:
    result = TrainingResult.from_mapping(from_json(to_json(STORED)))
    assert result.to_mapping() == STORED
    assert TrainingResult.from_mapping(result.to_mapping()) == result
    assert result.stream_steps == 2 + 9


@pytest.mark.parametrize("mapping", [{}, {"a key of another version": 1}])
def test_a_training_that_has_not_ended_has_an_empty_result(mapping: dict[str, Any]) -> None:
    result = TrainingResult.from_mapping(mapping)
    assert result == NO_RESULT
    assert not result.has_ended
    assert result.to_mapping() == {}


def test_a_damaged_result_is_refused() -> None:
    with pytest.raises(CorruptStateError, match="the stored result of a training cannot be read"):
        TrainingResult.from_mapping({"losses": [0.5]})


def test_what_is_none_or_empty_is_left_out() -> None:
    written = TrainingResult(TrainingCounts(num_keys=4), device="cpu", nothing_trained="no whole batch").to_mapping()
    counts = dict.fromkeys(("num_samples", "num_skipped", "num_batches", "num_steps", "skipped_steps", "num_epochs"), 0)
    losses: dict[str, Any] = {"loss": None, "epoch_losses": [], "losses": []}
    assert written == {**counts, "num_keys": 4, **losses, "device": "cpu", "nothing_trained": "no whole batch"}


def test_the_served_counts_are_those_of_all_candidates() -> None:
    assert TrainingResult.from_mapping({"num_samples": 100}).served_counts is None
    counts = ServedCounts.of(100, CACHED["num_cached"], CACHED["cache_work"])
    assert TrainingResult.from_mapping({"num_samples": 100, **CACHED}).served_counts == counts
    assert TrainingResult.from_mapping(STORED).served_counts == counts
