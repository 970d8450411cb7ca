"""What trainings themselves measured of preparing samples, since a profile was made: kept beside it, and by which `split: auto` plans again.

A training has no time to measure as a profile does: nothing but that, by all workers at once. It compares: what a sample costs one worker, with what
it cost one when the profile was made, which knows both that and the rate of all its workers side by side. By the factor between them that rate is
corrected. Of decoding and augmenting the processor's time counts, so that other work on the same processors does not look like a change; of reading
the time on the wall, for it waits for disks, and several trainings that read at once share them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from modyn.atomic_write import write_atomically
from modyn.cache.profile import CacheProfile, sealed, unsealed
from modyn.cache.split_plan import ParameterChange, changes
from modyn.errors import CorruptStateError, UnavailableError

RATES_VERSION: Final = 1
"""Raised with every change of the record: files of other versions are refused."""


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """What the newest trainings with enough samples measured. None: none has; the value of the profile holds."""

    profile_measured_at: float
    """Of the profile with which they are compared; with another one they mean nothing."""
    encoded_bytes: float | None = None
    """Mean size of a sample as stored."""
    read_bytes_per_s: float | None = None
    """Of one worker while it reads files."""
    decode_s: float | None = None
    """Seconds of a processor to decode a sample."""
    augment_s: float | None = None
    """The same to augment it, and to put it into a batch."""

    def after(self, earlier: MeasuredRates | None) -> MeasuredRates:
        """These, with what only an earlier training has measured: one that was served by a cache reads and decodes nothing."""
        if earlier is None or earlier.profile_measured_at != self.profile_measured_at:
            return self
        return MeasuredRates(
            **{name: getattr(earlier, name) if value is None else value for name, value in dataclasses.asdict(self).items()}
        )


def corrected(profile: CacheProfile, measured: MeasuredRates | None, num_samples: int) -> CacheProfile:
    """The profile as trainings have measured since. Decoded and augmented samples are taken to grow as encoded ones.

    Args: measured: None: nothing was. num_samples: of the dataset now.
    """
    found = replace(profile, num_samples=max(1, num_samples))
    if measured is None or measured.profile_measured_at != profile.measured_at:
        return found
    if measured.encoded_bytes:
        growth = measured.encoded_bytes / profile.encoded_bytes
        decoded, augmented = (size and growth * size for size in (profile.decoded_bytes, profile.augmented_bytes))
        found = replace(found, encoded_bytes=measured.encoded_bytes, decoded_bytes=decoded, augmented_bytes=augmented)
    if measured.read_bytes_per_s and profile.worker_read_bytes_per_s:
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
    """The profile to plan with, and what of it has changed so much that it is not the one that was measured. Args: as of `corrected`."""
    found = corrected(profile, measured, num_samples)
    changed = changes(profile.workload, found.workload)
    return (found if changed else profile), changed


def rates_path(profile: Path) -> Path:
    """Where the rates are kept that belong to a profile."""
    return profile.with_suffix(".rates")


def write_rates(path: Path, rates: MeasuredRates) -> None:
    """Keep rates in place of those before. Raises: UnavailableError: they cannot be written."""
    write_atomically(path, [sealed({"version": RATES_VERSION, "rates": dataclasses.asdict(rates)})])


def read_rates(path: Path) -> MeasuredRates | None:
    """Read what `write_rates` wrote. Returns None: there is nothing.

    Raises: CorruptStateError: the file is damaged, or of another version. UnavailableError: it cannot be read.
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
            f"the measured rates {path} cannot be used: {error}; the next training writes them anew"
        ) from error
