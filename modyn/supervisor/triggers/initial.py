"""Fires once, for a first model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from modyn.config.base import Section
from modyn.records import SampleBatch
from modyn.supervisor.triggers.base import CheckRecord, Trigger, TriggerContext, read_state


class InitialConfig(Section):
    """Fires once, after `num_samples` samples."""

    num_samples: int = Field(ge=1, description="number of samples with labels before the only firing", examples=[10_000])


class InitialTrigger(Trigger):
    """Fires after the first `num_samples` samples of the stream and never again. The resulting model is the initial model of a pipeline, and then
    learns by the steps of the section `online` (Continuous Training of Machine Learning Pipelines, section 4, figure "Continuous Training and
    Serving").

    >>> import numpy as np
    >>> from modyn.testing.decisions import decide
    >>> keys = np.arange(7)
    >>> [check.position for check in decide(InitialTrigger(InitialConfig(num_samples=3)), [SampleBatch(keys, keys, keys)])]
    [3]
    """

    Config: ClassVar[type[Section]] = InitialConfig

    def __init__(self, config: InitialConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._missing = config.num_samples
        """Number of samples until the policy fires; less than 1 afterwards."""
        self._fired = False

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """Return the position after the last of the first `num_samples` labels."""
        counted = batch.num_labelled(start) if start >= 0 else 0
        at = max(batch.position_with(counted + self._missing), start + 1, 0)
        return None if self._fired or at > len(batch) else at

    def observe(self, samples: SampleBatch) -> None:
        """Count the samples whose labels arrive."""
        self._missing = max(0, self._missing - len(samples.labelled))

    def checked(self, record: CheckRecord) -> None:
        """Never fire again."""
        self._fired = True

    def end_warning(self) -> str:
        """Return the missing samples, if the policy has not fired."""
        return "" if self._fired else f"{self._missing:,} samples less than InitialTrigger waits for"

    def state(self) -> dict[str, Any]:
        """Return `missing`, the number of samples until the policy fires, and whether it has `fired`."""
        return {"version": 1, "missing": self._missing, "fired": self._fired}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state. Raises: CorruptStateError."""
        values = read_state("InitialTrigger", state, 1, {"missing": (int,), "fired": (bool,)})
        self._missing, self._fired = values["missing"], values["fired"]
