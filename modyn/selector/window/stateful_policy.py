"""The base of policies that may keep state from one trigger of a run to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.errors import CorruptStateError


class StatefulPolicy:
    """A policy that may keep state from one trigger of a run to the next. This base keeps none."""

    def state(self) -> dict[str, Any]:
        """Return what the next trigger of the run needs, as small JSON with a `version`; called after all chunks were read.

        What grows with the stream goes into `SelectionContext.files`.
        """
        return {"version": 1}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the `state()` after the previous trigger. Raises CorruptStateError if this version cannot read it."""
        if dict(state) != {"version": 1}:
            raise CorruptStateError(
                f"the saved state of {type(self).__name__} is {dict(state)}, but it keeps none; "
                "resume the run with the release that started it"
            )
