"""Preparation rates that trainings measured after a profile. The rates are stored next to the profile, and `split: auto` plans with them.

A profile measures the rate of all workers while the machine has no other work. A training cannot measure this rate. A training compares the cost of a
sample in one worker with the same cost in the profile. The ratio of the two costs corrects the profile's rate of all workers. Decoding and augmenting
are measured in processor time, so that other work on the same processors does not change the measured cost. Reading is measured in elapsed time,
because it waits for disks that concurrent trainings share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from modyn.atomic_write import write_atomically
from modyn.cache.plan.profile import CacheProfile, sealed, unsealed
from modyn.cache.plan.split_plan import ParameterChange, changes
from modyn.errors import CorruptStateError, UnavailableError

RATES_VERSION: Final = 1
"""Incremented with every change of the record. Files of other versions are refused."""


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """Rates that the newest trainings with enough samples measured. None: no training measured the rate; then the profile's value is used."""

    profile_measured_at: float
    """`measured_at` of the profile that the rates belong to. The rates are not valid for another profile."""
    encoded_bytes: float | None = None
    """Mean size of a sample as stored."""
    read_bytes_per_s: float | None = None
    """Rate of one worker while it reads files."""
    decode_s: float | None = None
    """Seconds of a processor to decode a sample."""
    augment_s: float | None = None
    """Seconds of a processor to augment a sample and to put it into a batch."""

    def after(self, earlier: MeasuredRates | None) -> MeasuredRates:
        """Return these rates. Rates of an earlier training replace missing ones, because a training with samples from a cache measures no reading or
        decoding."""
        if earlier is None or earlier.profile_measured_at != self.profile_measured_at:
            return self
        return MeasuredRates(
            **{name: getattr(earlier, name) if value is None else value for name, value in dataclasses.asdict(self).items()}
        )


def corrected(profile: CacheProfile, measured: MeasuredRates | None, num_samples: int) -> CacheProfile:
    """Return the profile, corrected by newer measurements of trainings. The sizes of decoded and augmented samples are assumed to grow like the sizes
    of encoded samples.

    Args: measured: rates of earlier trainings, or None if nothing was measured. num_samples: current size of the dataset.
    """
    found = replace(profile, num_samples=max(1, num_samples))
    if measured is None or measured.profile_measured_at != profile.measured_at:
        return found
    if measured.encoded_bytes:
        growth = measured.encoded_bytes / profile.encoded_bytes
        decoded, augmented = (size and growth * size for size in (profile.decoded_bytes, profile.augmented_bytes))
        found = replace(found, encoded_bytes=measured.encoded_bytes, decoded_bytes=decoded, augmented_bytes=augmented)
    if measured.read_bytes_per_s and profile.worker_read_bytes_per_s:
        # Rates of one worker were measured. The rate of all workers is assumed to change by the same factor.
        factor = measured.read_bytes_per_s / profile.worker_read_bytes_per_s
        found = replace(found, storage_bytes_per_s=factor * profile.storage_bytes_per_s)
    decode_s, augment_s = measured.decode_s or profile.decode_s, measured.augment_s or profile.augment_s
    if before_s := profile.decode_s + profile.augment_s:
        factor = before_s / (decode_s + augment_s)
        found = replace(found, decode_and_augment_samples_per_s=factor * profile.decode_and_augment_samples_per_s)
    if profile.augment_s:
        found = replace(found, augment_samples_per_s=profile.augment_s / augment_s * profile.augment_samples_per_s)
    return found


def planned_again(
    profile: CacheProfile, measured: MeasuredRates | None, num_samples: int
) -> tuple[CacheProfile, Sequence[ParameterChange]]:
    """Return the values that changed enough to plan again, and the profile, corrected if there are such values. Args: see `corrected`."""
    found = corrected(profile, measured, num_samples)
    changed = changes(profile.workload, found.workload)
    return (found if changed else profile), changed


def rates_path(profile: Path) -> Path:
    """Path of the rates that belong to a profile."""
    return profile.with_suffix(".rates")


def write_rates(path: Path, rates: MeasuredRates) -> None:
    """Replace the rates in a file. Raises: UnavailableError: the rates cannot be written."""
    write_atomically(path, [sealed({"version": RATES_VERSION, "rates": dataclasses.asdict(rates)})])


def read_rates(path: Path) -> MeasuredRates | None:
    """Read the rates that `write_rates` wrote.

    Returns: None if no file exists.
    Raises: CorruptStateError: the file is damaged, or of another version. UnavailableError: the file cannot be read.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return MeasuredRates(**unsealed(text, RATES_VERSION)["rates"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptStateError(
            f"the measured rates {path} cannot be used: {error}; the next training writes them again"
        ) from error
