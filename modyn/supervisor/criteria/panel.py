"""Several criteria with the earlier values of their series, and the vote that combines the verdicts of the criteria."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from modyn.errors import CorruptStateError
from modyn.supervisor.criteria.base import DecisionCriterion, Measurement
from modyn.supervisor.evidence import Evidence, EvidenceKind, value_of


class VoteRule(Protocol):
    """Combines several verdicts."""

    def decide(self, votes: list[bool]) -> bool:
        """Return the verdict."""


class CriteriaPanel:
    """Judges the values of each check, and stores the values that the criteria need for later checks."""

    def __init__(self, criteria: Mapping[str, tuple[str, DecisionCriterion]], vote: VoteRule) -> None:
        """Args: criteria: name → the series that the criterion judges, and the criterion. Two criteria may judge the same series."""
        self._criteria = dict(criteria)
        self._vote = vote
        self._seen: dict[str, deque[float]] = {
            series: deque(maxlen=max(c.window_size for s, c in self._criteria.values() if s == series))
            for series, _ in self._criteria.values()
        }

    def judge(self, measured: Sequence[Evidence]) -> tuple[bool, list[Evidence]]:
        """Return the verdict on the values of one check, and the evidence with the verdict on each value. The state of the panel does not change.

        A series that several criteria judge has one record for each criterion. A criterion whose series was not measured votes no.
        """
        values = {one.series: one for one in measured if one.kind is EvidenceKind.VALUE and one.series in self._seen}
        judged, votes = dict[str, list[Evidence]](), list[bool]()
        for name, (series, criterion) in self._criteria.items():
            if (now := values.get(series)) is None:
                votes.append(False)
                continue
            verdict = criterion.decide(Measurement(now.value, now.p_value), self._newest(series, criterion.window_size))
            votes.append(verdict.fires)
            threshold, level = (None, verdict.threshold) if verdict.of_p_value else (verdict.threshold, None)
            # The record is built here, because `replace` takes several times as long and many policies call this method at each check.
            one = Evidence(
                series, now.value, threshold, verdict.fires, now.p_value, level, now.seconds, "" if name == series else name
            )
            judged.setdefault(series, []).append(one)
        found = list[Evidence]()
        for one in measured:
            found += judged.get(one.series, [one]) if one is values.get(one.series) else [one]
        return self._vote.decide(votes), found

    def remember(self, evidence: Iterable[Evidence]) -> None:
        """Store the values of a check from the evidence of the check."""
        for series, seen in self._seen.items():
            if (value := value_of(evidence, series)) is not None:
                seen.append(value)

    def state(self) -> dict[str, Any]:
        """Return the state that survives a restart, as JSON."""
        return {series: list(seen) for series, seen in self._seen.items()}

    def load_state(self, state: Mapping[str, Iterable[float]]) -> None:
        """Restore `state()` of a panel with the same criteria. Raises: CorruptStateError: the criteria differ."""
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
