"""The shared state of a job that shares nothing."""

from __future__ import annotations

from typing import Any, Never

from modyn.cache.sharing.state import SharePlace
from modyn.errors import UnavailableError


class NoState:
    """A `SharedState` that is always away: the job serves its own order."""

    place = SharePlace(b"", 1)

    def _away(self, *_: Any) -> Never:
        raise UnavailableError("this training has no cache to share")

    join = exchange = leave = members = entries = put_key_set = key_set = begin_anew = _away

    def close(self) -> None:
        """As `SharedState.close`."""
