"""The function of a Custom vote, as users bring one."""

from __future__ import annotations

from collections.abc import Mapping


def drift_and_any_other(votes: Mapping[str, bool]) -> bool:
    """Return whether the subtrigger `drift` and at least one other have voted to fire."""
    return votes["drift"] and sum(votes.values()) > 1
