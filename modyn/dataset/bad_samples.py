"""Handles samples that cannot be decoded, or whose label fits neither the model nor float32. `data.on_bad_sample` decides whether such a sample is an
error, or is left out and listed, up to a bound."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from modyn.dataset.batch import BadSample
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import PayloadReader
from modyn.errors import DataError, UserCodeError
from modyn.rpc.logs import get_logger
from modyn.storage.payloads import PayloadClient

_NAMED = 10
"""Number of samples that the error about too many bad samples names."""
_LONGEST = 1000
"""Largest number of characters of a stored place or reason."""


def _shown(text: str) -> str:
    """Shorten a text, and remove the characters that a database refuses."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:_LONGEST]


class BadSampleList:
    """The bad samples that one process, or all processes of a training, found: each sample once, in the order in which it was found."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._found: dict[int, BadSample] = {}

    def __iter__(self) -> Iterator[BadSample]:
        return iter(self._found.values())

    def get(self, key: int) -> BadSample | None:
        """Return the bad sample with this key, or None."""
        return self._found.get(key)

    def add(self, samples: Iterable[BadSample]) -> None:
        """Add samples. A sample that is added twice counts once. Raises DataError if there are more than `data.max_bad_samples`."""
        for sample in samples:
            self._found.setdefault(sample.key, sample)
        if len(self._found) > self._config.max_bad_samples:
            found = list(self)
            named = "; ".join(f"{sample.key} ({sample.place})" for sample in found[:_NAMED])
            raise DataError(
                f"{len(found)} samples of dataset '{self._config.dataset_id}' are bad, more than data.max_bad_samples "
                f"({self._config.max_bad_samples}): {named}{', …' if len(found) > _NAMED else ''}; the last one: {found[-1].reason}",
                found[-1].key,
            )


class BadSamples:
    """The samples that one process could not decode, handled as `data.on_bad_sample` says. Thread-safe."""

    def __init__(self, config: DataConfig, payloads: PayloadReader) -> None:
        """Args: payloads: finds the name of a sample's file, for messages."""
        self._config, self._payloads = config, payloads
        self._lock = threading.Lock()
        """Guards the list: readers decode batches on several threads."""
        self._found = BadSampleList(config)

    def leave_out(self, error: DataError | UserCodeError) -> BadSample:
        """Add the sample of an error to the list, and return the sample.

        Raises: DataError, UserCodeError: `data.on_bad_sample` is `fail`, or there are too many bad samples. The message names the file.
        """
        key, dataset = error.sample_key, self._config.dataset_id
        # An error without a key names no sample that could be left out.
        if key is None:
            raise error
        with self._lock:
            # The same sample fails in each epoch. It counts and is logged once.
            known = self._found.get(key)
            sample = known or BadSample(key, _shown(self._place(key)), _shown(error.message))
            if self._config.on_bad_sample == "fail":
                # An indexed file that was changed is refused until it is indexed again.
                advice = (
                    f"correct the file and index it again with `modyn data reindex {dataset} FILE`, delete the sample with "
                    f"`modyn data delete {dataset} --key {key}`, or set data.on_bad_sample: skip"
                )
                raise type(error)(f"{error.message}; the sample is {sample.place}: {advice}", key) from error
            self._found.add([sample])
        if known is None:
            get_logger("dataset").warning("bad_sample_left_out", dataset=dataset, key=key, place=sample.place, why=sample.reason)
        return sample

    def _place(self, key: int) -> str:
        if isinstance(self._payloads, PayloadClient):
            return f"named by `modyn data locate {self._config.dataset_id} {key}`"
        place = self._payloads.place(key)
        return f"in {place}" if place else "deleted by now"
