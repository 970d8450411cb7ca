"""How several verdicts become one: the majority, at least n of them, or all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from modyn.config.base import Section


class MajorityVote(Section):
    """More than half of all must say yes; those that have not spoken say no."""

    id: Literal["MajorityVote"] = Field("MajorityVote", description="which vote")

    def decide(self, votes: Sequence[bool]) -> bool:
        """
        >>> MajorityVote().decide([True, False]), MajorityVote().decide([True, True, False])
        (False, True)
        """
        return 2 * sum(votes) > len(votes)


class AtLeastN(Section):
    """At least `n` must say yes."""

    id: Literal["AtLeastN"] = Field("AtLeastN", description="which vote")
    n: int = Field(ge=1, description="how many must say yes")

    def decide(self, votes: Sequence[bool]) -> bool:
        """
        >>> AtLeastN(n=1).decide([True, False])
        True
        """
        return sum(votes) >= self.n


class AllVote(Section):
    """All must say yes."""

    id: Literal["All"] = Field("All", description="which vote")

    def decide(self, votes: Sequence[bool]) -> bool:
        """
        >>> AllVote().decide([True, False])
        False
        """
        return all(votes)


Vote = Annotated[MajorityVote | AtLeastN | AllVote, Field(discriminator="id")]
"""How several verdicts become one."""
