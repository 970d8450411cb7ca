"""Checks of a run's stream, as pure functions: what of a batch is new, which trigger may come next, and what it covers."""

from __future__ import annotations

from collections.abc import Sequence

from modyn.errors import ConflictError, InvalidArgumentError
from modyn.records import RunId, SampleBatch, TriggerSetInfo


def unseen(run_id: RunId, held: int, position: int, batch: SampleBatch) -> SampleBatch:
    """Return the part of `batch`, sent for `position`, behind the `held` samples. Raises ConflictError if it leaves a gap.

    >>> import numpy as np
    >>> batch = SampleBatch(np.arange(5), np.arange(5), np.arange(5))
    >>> [unseen(RunId("r"), held, 10, batch).keys.tolist() for held in (10, 12, 15, 99)]
    [[0, 1, 2, 3, 4], [2, 3, 4], [], []]
    """
    if position < 0:
        raise InvalidArgumentError(f"position {position} of run '{run_id}' is negative; the first sample has position 0")
    if position > held:
        raise ConflictError(
            f"run '{run_id}' holds {held} samples, so samples for position {position} would leave a gap; send those from {held} on first"
        )
    return batch.slice(min(held - position, len(batch)), len(batch))


def check_next(run_id: RunId, held: int, boundaries: Sequence[int], trigger_id: int, num_samples: int) -> None:
    """Raise ConflictError unless the run can trigger `trigger_id` over `num_samples` samples now."""
    if trigger_id < 0 or num_samples < 0:
        raise InvalidArgumentError(f"trigger {trigger_id} over {num_samples} samples: neither may be negative")
    if trigger_id != len(boundaries):
        raise ConflictError(f"the next trigger of run '{run_id}' is {len(boundaries)}, not {trigger_id}; triggers come in order")
    if num_samples > held:
        raise ConflictError(
            f"trigger {trigger_id} of run '{run_id}' asks for {num_samples} samples, but {held} are held; inform the rest first"
        )
    if boundaries and num_samples < boundaries[-1]:
        raise ConflictError(
            f"trigger {trigger_id} of run '{run_id}' asks for {num_samples} samples, fewer than the {boundaries[-1]} of the one before"
        )


def check_checksum(found: TriggerSetInfo, keys_checksum: str) -> None:
    """Raise ConflictError unless the trigger set has this checksum; an empty one accepts any."""
    if keys_checksum and keys_checksum != found.keys_checksum:
        raise ConflictError(
            f"trigger {found.trigger_id} of run '{found.run_id}' has other keys than when reading began: the run was deleted and begun "
            "anew; start its reader anew, too"
        )


def trigger_starts(boundaries: Sequence[int], trigger_id: int, tail_triggers: int | None) -> tuple[int, ...]:
    """Return where the samples of each trigger in the window of `trigger_id` begin, oldest first; the window starts at the first.

    `boundaries[i]` is how many samples trigger i covered, for all i < trigger_id.

    >>> [trigger_starts([10, 25, 30], 3, tail) for tail in (None, 0, 1, 3)]
    [(0, 10, 25, 30), (30,), (25, 30), (0, 10, 25, 30)]
    """
    oldest = 0 if tail_triggers is None else max(trigger_id - tail_triggers, 0)
    return (0, *boundaries[:trigger_id])[oldest:]
