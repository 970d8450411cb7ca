"""What a trigger policy is: it looks at the stream and says between which two samples to train.

Semantics are per sample, evaluation is per batch: however a stream is cut into batches, a policy fires at the same samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from modyn.config.base import Section
from modyn.errors import CorruptStateError
from modyn.records import SampleBatch


@dataclass(frozen=True, slots=True)
class TriggerContext:
    """What a policy may know of its run, beside the stream."""

    seed: int | None = None
    """`training.seed`. A policy that draws at random derives its generator from it; none = not repeatable."""


class Trigger(ABC):
    """A trigger policy, built from its `Config` once per run.

    Decisions depend on the configuration, the context, the samples and the models that it was informed of, and on nothing else: no clock, no global
    generator. That is what makes a run resumable and an experiment the same as production.
    """

    Config: ClassVar[type[Section]]
    """Options of the policy: the keys of the `trigger` section beside `id`."""

    def __init__(self, config: Section, context: TriggerContext | None = None) -> None:
        self.context = context or TriggerContext()

    @abstractmethod
    def cuts(self, batch: SampleBatch) -> Iterator[int]:
        """Strictly ascending positions c in [0, len(batch)]: fire after c samples of this batch (c = 0: before its first).

        A policy never fires twice without a sample in between, and never before the first sample of the stream. It may be informed
        of the new model before the next position is asked for. The batch has been seen once the iterator is exhausted; it is not changed.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON, after a whole batch: small, with a `version`."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`. Raises CorruptStateError if it is not a state of this policy that this version can read."""

    def inform_model(self, trigger_id: int, model_id: int) -> None:  # noqa: B027 - most policies do not care
        """Trigger `trigger_id` of this run has produced model `model_id`. Called once per model, in order."""


def read_state(policy: str, state: Mapping[str, Any], version: int, fields: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """The `fields` of `state`, checked by name and type. Raises CorruptStateError when version, names or types are others.

    >>> read_state("Every10", {"version": 1, "pending": 3}, 1, {"pending": (int,)})
    {'pending': 3}
    """
    if state.get("version") != version:
        raise CorruptStateError(
            f"the saved state of {policy} has version {state.get('version')!r}, this release reads version {version}; "
            "resume the run with the release that started it"
        )
    values = {name: value for name, value in state.items() if name != "version"}
    wrong = [name for name, types in fields.items() if name in values and type(values[name]) not in types]
    if values.keys() != fields.keys() or wrong:
        raise CorruptStateError(f"the saved state of {policy} is not readable: expected {sorted(fields)}, found {dict(state)}")
    return values
