"""Fires every so many samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from modyn.config.base import Section
from modyn.records import SampleBatch
from modyn.supervisor.triggers.base import CheckRecord, Trigger, TriggerContext, read_state


class DataAmountConfig(Section):
    """Fires every `num_samples` samples."""

    num_samples: int = Field(ge=1, description="samples with labels between two triggers", examples=[1000])


class DataAmountTrigger(Trigger):
    """Fires after every `num_samples`-th sample of the stream (Modyn, SIGMOD'25, section 5.1: amount trigger).

    Timestamps play no role. Samples after the last firing wait for the next one. Where labels come late (`data.label_delay`, records without a
    label), a sample counts once its label has come, so that each training has `num_samples` new ones; where the labels of more come at once, it
    fires once for all of them.

    >>> import numpy as np
    >>> keys = np.arange(7)
    >>> batch = SampleBatch(keys, keys, keys)
    >>> trigger = DataAmountTrigger(DataAmountConfig(num_samples=3))
    >>> trigger.next_check(batch, -1)
    3
    """

    Config: ClassVar[type[Section]] = DataAmountConfig

    def __init__(self, config: DataAmountConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._num_samples = config.num_samples
        self._pending = 0

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """The position after every `num_samples`-th label, counted over all batches."""
        counted = batch.num_labelled(start) if start >= 0 else 0
        at = max(batch.position_with(counted + self._num_samples - self._pending), start + 1, 0)
        return at if at <= len(batch) else None

    def observe(self, samples: SampleBatch) -> None:
        """Count those whose labels come."""
        self._pending += len(samples.labelled)

    def checked(self, record: CheckRecord) -> None:
        """Count from 0 again."""
        self._pending = 0

    def state(self) -> dict[str, Any]:
        """`pending`: samples since the last firing."""
        return {"version": 1, "pending": self._pending}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `pending`. Raises: CorruptStateError."""
        self._pending = read_state("DataAmountTrigger", state, 1, {"pending": (int,)})["pending"]


class SampleAmountTrigger(DataAmountTrigger):
    """Counts the samples of the stream, whether their labels have come or not: the interval of policies that look at them."""

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """Every `num_samples`-th position, counted over all batches."""
        at = max(start, 0) + self._num_samples - self._pending
        return at if at <= len(batch) else None

    def observe(self, samples: SampleBatch) -> None:
        """Count them."""
        self._pending += len(samples)
