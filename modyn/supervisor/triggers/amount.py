"""Fires every so many samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from modyn.config.base import Section
from modyn.records import SampleBatch
from modyn.supervisor.triggers.base import Trigger, TriggerContext, read_state


class DataAmountConfig(Section):
    """Fires every `num_samples` samples."""

    num_samples: int = Field(ge=1, description="samples between two triggers", examples=[1000])


class DataAmountTrigger(Trigger):
    """Fires after every `num_samples`-th sample of the stream (Modyn, SIGMOD'25, section 5.1: amount trigger).

    Timestamps play no role. Samples after the last firing wait for the next one.

    >>> import numpy as np
    >>> keys = np.arange(7)
    >>> trigger = DataAmountTrigger(DataAmountConfig(num_samples=3))
    >>> list(trigger.cuts(SampleBatch(keys, keys, keys)))
    [3, 6]
    >>> list(trigger.cuts(SampleBatch(keys, keys, keys)))
    [2, 5]
    """

    Config: ClassVar[type[Section]] = DataAmountConfig

    def __init__(self, config: DataAmountConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._num_samples = config.num_samples
        self._pending = 0

    def cuts(self, batch: SampleBatch) -> Iterator[int]:
        """Every `num_samples`-th position, counted over all batches."""
        first = self._num_samples - self._pending
        self._pending = (self._pending + len(batch)) % self._num_samples
        yield from range(first, len(batch) + 1, self._num_samples)

    def state(self) -> dict[str, Any]:
        """`pending`: samples since the last firing."""
        return {"version": 1, "pending": self._pending}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `pending`. Raises: CorruptStateError."""
        self._pending = read_state("DataAmountTrigger", state, 1, {"pending": (int,)})["pending"]
