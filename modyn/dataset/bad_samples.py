"""Samples that cannot be decoded: they end the reading, or are left out and listed, up to a bound."""

from __future__ import annotations

import threading

from modyn.dataset.config import DataConfig
from modyn.dataset.connections import PayloadReader
from modyn.errors import DataError, UserCodeError
from modyn.rpc.logs import get_logger
from modyn.storage.payloads import PayloadClient

_NAMED = 10
"""Samples that the error of too many names."""


class BadSamples:
    """The samples that one process could not decode, as `data.on_bad_sample` says. May be used by several threads."""

    def __init__(self, config: DataConfig, payloads: PayloadReader) -> None:
        """Args: payloads: names the file of a sample."""
        self._config, self._payloads = config, payloads
        self._lock = threading.Lock()
        """Guards the list: readers decode batches on several threads."""
        self._found: dict[int, str] = {}

    def leave_out(self, error: DataError | UserCodeError) -> int:
        """Note the sample of an error and return its key. A sample that is met again counts once.

        Raises: DataError, UserCodeError: the sample is not to be left out, or there are too many; names its file.
        """
        key, dataset = error.sample_key, self._config.dataset_id
        if key is None:
            raise error
        with self._lock:
            known = key in self._found
            place = "" if known else self._place(key)
            self._found.setdefault(key, place)
            found = list(self._found.items())
        if self._config.on_bad_sample == "fail":
            advice = f"correct it, `modyn data delete {dataset} --key {key}`, or set data.on_bad_sample: skip"
            raise type(error)(f"{error.message}; the sample is {place}: {advice}", key) from error
        if len(found) > self._config.max_bad_samples:
            named = "; ".join(f"{key} ({where})" for key, where in found[:_NAMED])
            raise DataError(
                f"{len(found)} samples of dataset '{dataset}' cannot be decoded, more than data.max_bad_samples ({self._config.max_bad_samples}): "
                f"{named}{', …' if len(found) > _NAMED else ''}; the last one: {error.message}",
                key,
            ) from error
        if not known:
            get_logger("dataset").warning("bad_sample_left_out", dataset=dataset, key=key, place=place, why=error.message)
        return key

    def _place(self, key: int) -> str:
        if isinstance(self._payloads, PayloadClient):
            return f"named by `modyn data locate {self._config.dataset_id} {key}`"
        place = self._payloads.place(key)
        return f"in {place}" if place else "deleted by now"
