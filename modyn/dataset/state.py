"""What must be kept of a reader so that another one goes on: where it stands, and all that its batches depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from modyn.errors import CorruptStateError

STATE_VERSION = 4

_TYPES = {"int": int, "bool": bool, "str": str}
_PLACE = ("epoch", "batch", "one_epoch")
"""Fields that say where a reader stands; on all others its batches depend."""


@dataclass(frozen=True, slots=True)
class DatasetState:
    """`batch` batches of epoch `epoch` have been consumed, and all epochs before it. one_epoch: the stream ends with this epoch
    (`set_epoch`). keys_checksum: SHA-256 of the trigger set's keys."""

    epoch: int
    batch: int
    one_epoch: bool
    run_id: str
    trigger_id: int
    num_keys: int
    keys_checksum: str
    partition_size: int
    batch_size: int
    drop_last: bool
    shuffle: bool
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Numbers and text only: fit for JSON and for `torch.save`."""
        return {"version": STATE_VERSION, **asdict(self)}

    @staticmethod
    def from_dict(state: Mapping[str, Any]) -> DatasetState:
        """Raises CorruptStateError, which names the field, for what was not written by `to_dict` of this version."""
        if state.get("version") != STATE_VERSION:
            raise CorruptStateError(
                f"the state of a dataset has version {STATE_VERSION}, this one {state.get('version')!r}; start the training anew"
            )
        for field in fields(DatasetState):
            value = state.get(field.name)
            # Exactly this type: True is an int too.
            if type(value) is not _TYPES[str(field.type)] or (isinstance(value, int) and value < 0):
                raise CorruptStateError(f"{field.name} is {value!r} in the state of a dataset; start the training anew")
        return DatasetState(**{field.name: state[field.name] for field in fields(DatasetState)})

    def differences(self, kept: DatasetState) -> list[str]:
        """In what the batches of this reader and those of the `kept` state would differ: a sentence for each field."""
        here, there = asdict(self), asdict(kept)
        return [
            f"{name} is {here[name]!r} here and {there[name]!r} in the state"
            for name in here
            if name not in _PLACE and here[name] != there[name]
        ]
