"""Fires after each given number of samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from modyn.config.base import Section
from modyn.records import SampleBatch
from modyn.supervisor.triggers.base import CheckRecord, Trigger, TriggerContext, read_state


class DataAmountConfig(Section):
    """Fires every `num_samples` samples."""

    num_samples: int = Field(ge=1, description="number of samples with labels between two triggers", examples=[1000])


class DataAmountTrigger(Trigger):
    """Fires after every `num_samples`-th sample of the stream (Modyn, SIGMOD'25, section 5.1: amount trigger).

    Timestamps have no effect. Samples after the last firing wait for the next firing. If labels arrive late (`data.label_delay`, records without a
    label), a sample counts when its label arrives, so that each training has `num_samples` new samples. If more than `num_samples` labels arrive at
    once, the policy fires once for all these labels.

    >>> import numpy as np
    >>> from modyn.testing.decisions import decide
    >>> keys = np.arange(7)
    >>> trigger = DataAmountTrigger(DataAmountConfig(num_samples=3))
    >>> [check.position for check in decide(trigger, [SampleBatch(keys, keys, keys)])]
    [3, 6]
    """

    Config: ClassVar[type[Section]] = DataAmountConfig

    def __init__(self, config: DataAmountConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._num_samples = config.num_samples
        self._pending = 0

    @classmethod
    def samples_per_trigger(cls, config: DataAmountConfig) -> int:
        """Return `num_samples`."""
        return config.num_samples

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """Return the next position that completes `num_samples` labels, counted over all batches."""
        counted = batch.num_labelled(start) if start >= 0 else 0
        at = max(batch.position_with(counted + self._num_samples - self._pending), start + 1, 0)
        return at if at <= len(batch) else None

    def observe(self, samples: SampleBatch) -> None:
        """Count the samples whose labels arrive."""
        self._pending += len(samples.labelled)

    def checked(self, record: CheckRecord) -> None:
        """Count from 0 again."""
        self._pending = 0

    def state(self) -> dict[str, Any]:
        """Return `pending`, the number of samples since the last firing."""
        return {"version": 1, "pending": self._pending}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `pending`. Raises: CorruptStateError."""
        self._pending = read_state("DataAmountTrigger", state, 1, {"pending": (int,)})["pending"]


class SampleAmountTrigger(DataAmountTrigger):
    """Fires after every `num_samples`-th sample of the stream, with or without its label. Policies that check once per interval use this trigger."""

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """Return the next position that completes `num_samples` samples, counted over all batches."""
        at = max(start, 0) + self._num_samples - self._pending
        return at if at <= len(batch) else None

    def observe(self, samples: SampleBatch) -> None:
        """Count the samples."""
        self._pending += len(samples)
