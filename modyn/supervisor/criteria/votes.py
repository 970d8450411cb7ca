"""Combine several verdicts: the majority, at least n verdicts, or all verdicts must be yes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from modyn.config.base import Section


class MajorityVote(Section):
    """More than half of all verdicts must be yes; a missing verdict counts as no."""

    id: Literal["MajorityVote"] = Field("MajorityVote", description="which vote")

    def decide(self, votes: Sequence[bool]) -> bool:
        """Return the verdict.

        >>> MajorityVote().decide([True, False]), MajorityVote().decide([True, True, False])
        (False, True)
        """
        return 2 * sum(votes) > len(votes)


class AtLeastN(Section):
    """At least `n` verdicts must be yes."""

    id: Literal["AtLeastN"] = Field("AtLeastN", description="which vote")
    n: int = Field(ge=1, description="number of yes verdicts that are needed")

    def decide(self, votes: Sequence[bool]) -> bool:
        """Return the verdict.

        >>> AtLeastN(n=1).decide([True, False])
        True
        """
        return sum(votes) >= self.n


class AllVote(Section):
    """All verdicts must be yes."""

    id: Literal["All"] = Field("All", description="which vote")

    def decide(self, votes: Sequence[bool]) -> bool:
        """Return the verdict.

        >>> AllVote().decide([True, False])
        False
        """
        return all(votes)


Vote = Annotated[MajorityVote | AtLeastN | AllVote, Field(discriminator="id")]
"""A rule that combines several verdicts."""
