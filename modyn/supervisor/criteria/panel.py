"""Several criteria, each with the values that it has seen, and the vote that makes one verdict of theirs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Protocol

from modyn.errors import CorruptStateError
from modyn.supervisor.criteria.base import DecisionCriterion, Measurement


class VoteRule(Protocol):
    """Makes one verdict of several."""

    def decide(self, votes: list[bool]) -> bool:
        """Whether the votes are a yes."""


class CriteriaPanel:
    """Judges the numbers of each check by name, and remembers as many as its criteria look back at.

    Evidence of a series `name`: `name` is the value, `name.threshold` what it was compared with (absent: nothing yet), `name.unusual` 1 or 0,
    `name.p_value` that of a test; `name.p_value.threshold` what that was compared with.
    """

    def __init__(self, criteria: Mapping[str, tuple[str, DecisionCriterion]], vote: VoteRule) -> None:
        """Args: criteria: name → the series that it judges, and the criterion. Two may judge one series."""
        self._criteria = dict(criteria)
        self._vote = vote
        self._seen: dict[str, deque[float]] = {
            series: deque(maxlen=max(c.window_size for s, c in self._criteria.values() if s == series))
            for series, _ in self._criteria.values()
        }

    def judge(self, measured: Mapping[str, Measurement]) -> tuple[bool, dict[str, float]]:
        """The verdict on the numbers of one check, and the evidence of it. A series that was not measured votes no. Changes nothing."""
        votes, evidence = list[bool](), dict[str, float]()
        for name, (series, criterion) in self._criteria.items():
            if (now := measured.get(series)) is None:
                votes.append(False)
                continue
            verdict = criterion.decide(now, self._newest(series, criterion.window_size))
            votes.append(verdict.fires)
            evidence[series] = now.value
            if now.p_value is not None:
                evidence[f"{series}.p_value"] = now.p_value
            if verdict.threshold is not None:
                evidence[f"{name}{'.p_value' if verdict.of_p_value else ''}.threshold"] = verdict.threshold
            evidence[f"{name}.unusual"] = float(verdict.fires)
        return self._vote.decide(votes), evidence

    def remember(self, evidence: Mapping[str, float]) -> None:
        """Take the numbers of a check, as they stand in its evidence."""
        for series, seen in self._seen.items():
            if series in evidence:
                seen.append(evidence[series])

    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON."""
        return {series: list(seen) for series, seen in self._seen.items()}

    def load_state(self, state: Mapping[str, Iterable[float]]) -> None:
        """Go on from `state()` of a panel with the same criteria. Raises: CorruptStateError: it is of others."""
        if state.keys() != self._seen.keys():
            raise CorruptStateError(
                f"the saved values are of {sorted(state)}, and the criteria judge {sorted(self._seen)} now, by the options or the defaults of this "
                "release: resume the run with the release that started it, or submit the pipeline again"
            )
        for series, seen in self._seen.items():
            seen.clear()
            seen.extend(state[series])

    def _newest(self, series: str, count: int) -> list[float]:
        seen = self._seen[series]
        return list(islice(seen, max(0, len(seen) - count), None))
