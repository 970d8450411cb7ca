"""Measurements of trainings correct a profile, and change a plan if they differ by more than a fifth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.cache.plan.measured_rates import MeasuredRates, corrected, planned_again, rates_path, read_rates, write_rates
from modyn.errors import CorruptStateError
from tests.support.cache_profiles import PROFILE

SAME = MeasuredRates(
    PROFILE.measured_at, PROFILE.encoded_bytes, PROFILE.worker_read_bytes_per_s, PROFILE.decode_s, PROFILE.augment_s
)
FACTORS = st.floats(0.1, 10)
SMALL = st.floats(0.84, 1.19)
"""Factors within a fifth, whose inverses are also within a fifth."""


def scaled(size: float, read: float, decode: float, augment: float) -> MeasuredRates:
    """Measurements of a training in which everything takes `factor` times as long."""
    return MeasuredRates(
        PROFILE.measured_at,
        PROFILE.encoded_bytes * size,
        PROFILE.worker_read_bytes_per_s * read,
        PROFILE.decode_s * decode,
        PROFILE.augment_s * augment,
    )


@given(FACTORS, FACTORS, FACTORS, FACTORS, st.integers(1, 10**7))
def test_a_rate_of_all_workers_changes_as_that_of_one(
    size: float, read: float, decode: float, augment: float, num_samples: int
) -> None:
    found = corrected(PROFILE, scaled(size, read, decode, augment), num_samples)
    assert found.num_samples == num_samples
    assert found.storage_bytes_per_s == pytest.approx(PROFILE.storage_bytes_per_s * read)
    assert found.augment_samples_per_s == pytest.approx(PROFILE.augment_samples_per_s / augment)
    # Of the 4 ms that a sample takes a worker, 3 are decoding.
    whole = PROFILE.decode_and_augment_samples_per_s / (0.75 * decode + 0.25 * augment)
    assert found.decode_and_augment_samples_per_s == pytest.approx(whole)
    assert found.workload.dataset.encoded_bytes == pytest.approx(PROFILE.encoded_bytes * size)
    assert found.workload.dataset.decoded_inflation == pytest.approx(PROFILE.workload.dataset.decoded_inflation)
    assert found.decoded_bytes == pytest.approx(1.5 * found.encoded_bytes)


@given(SMALL, SMALL, SMALL, SMALL, SMALL)
def test_within_a_fifth_the_profile_holds(size: float, read: float, decode: float, augment: float, grown: float) -> None:
    found = planned_again(PROFILE, scaled(size, read, decode, augment), int(PROFILE.num_samples * grown))
    assert found == (PROFILE, [])


@pytest.mark.parametrize(
    ("measured", "num_samples", "changed"),
    [
        (scaled(1.3, 1, 1, 1), PROFILE.num_samples, {"encoded_bytes": (100_000, 130_000)}),
        (scaled(1, 0.5, 1, 1), PROFILE.num_samples, {"storage_bytes_per_s": (25e6, 12.5e6)}),
        (scaled(1, 1, 2, 1), PROFILE.num_samples, {"decode_and_augment_samples_per_s": (500, 500 / 1.75)}),
        (replace(SAME, encoded_bytes=None, read_bytes_per_s=None, decode_s=None), 2 * PROFILE.num_samples, {"num_samples": (123_000, 246_000)}),
        (None, PROFILE.num_samples // 2, {"num_samples": (123_000, 61_500)}),
        (replace(scaled(9, 9, 9, 9), profile_measured_at=3.0), PROFILE.num_samples, {}),
    ],
    ids=["larger samples", "slower storage", "slower decoding", "grown", "shrunk", "measured with another profile"],
)  # fmt: skip
def test_more_than_a_fifth_is_named(
    measured: MeasuredRates | None, num_samples: int, changed: dict[str, tuple[float, float]]
) -> None:
    profile, found = planned_again(PROFILE, measured, num_samples)
    assert {change.name: pytest.approx(change[1:]) for change in found} == changed
    assert (profile == PROFILE) == (not changed)


def test_what_a_training_did_not_do_is_as_the_one_before_measured_it() -> None:
    cached = MeasuredRates(PROFILE.measured_at, augment_s=0.002)
    assert cached.after(None) == cached
    assert cached.after(SAME) == replace(SAME, augment_s=0.002)
    assert cached.after(replace(SAME, profile_measured_at=1.0)) == cached


def test_a_profile_without_such_values_is_not_corrected() -> None:
    """Over Flight the read rate is unknown, and a layout has no separate decoding of samples."""
    flight = replace(PROFILE, worker_read_bytes_per_s=0.0, decode_s=0.0, augment_s=0.0, decoded_bytes=None)
    found = corrected(flight, scaled(1, 3, 3, 3), PROFILE.num_samples)
    assert found == flight


def test_rates_come_back_from_their_file_or_are_refused(tmp_path: Path) -> None:
    path = rates_path(tmp_path / "photos-0123456789abcdef.json")
    assert path.name == "photos-0123456789abcdef.rates"
    assert read_rates(path) is None
    write_rates(path, SAME)
    assert read_rates(path) == SAME
    path.write_text(path.read_text().replace("0.003", "0.004"))
    with pytest.raises(CorruptStateError, match=r"photos-0123456789abcdef\.rates cannot be used: its content does not match"):
        read_rates(path)
