"""Samples that cannot be decoded, or whose label fits neither model nor float32: they end the reading, or are left out and listed, up to a bound."""

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
"""Samples that the error of too many names."""
_LONGEST = 1000
"""Characters that are kept of a place or a reason."""


def _shown(text: str) -> str:
    """The text as it can be kept anywhere: not too long, without what a database refuses."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:_LONGEST]


class BadSampleList:
    """The bad samples of one reading, each once, in the order in which they were met: of one process, or of all that make its batches."""

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._found: dict[int, BadSample] = {}

    def __iter__(self) -> Iterator[BadSample]:
        return iter(self._found.values())

    def get(self, key: int) -> BadSample | None:
        """The sample with this key, if it is bad."""
        return self._found.get(key)

    def add(self, samples: Iterable[BadSample]) -> None:
        """Add samples; one that is met again counts once. Raises DataError: they are more than `data.max_bad_samples`."""
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
    """The samples that one process could not decode, as `data.on_bad_sample` says. May be used by several threads."""

    def __init__(self, config: DataConfig, payloads: PayloadReader) -> None:
        """Args: payloads: names the file of a sample."""
        self._config, self._payloads = config, payloads
        self._lock = threading.Lock()
        """Guards the list: readers decode batches on several threads."""
        self._found = BadSampleList(config)

    def leave_out(self, error: DataError | UserCodeError) -> BadSample:
        """Note the sample of an error and return it.

        Raises: DataError, UserCodeError: the sample is not to be left out, or there are too many; names its file.
        """
        key, dataset = error.sample_key, self._config.dataset_id
        if key is None:
            raise error
        with self._lock:
            known = self._found.get(key)
            sample = known or BadSample(key, _shown(self._place(key)), _shown(error.message))
            if self._config.on_bad_sample == "fail":
                advice = f"correct it, `modyn data delete {dataset} --key {key}`, or set data.on_bad_sample: skip"
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
