"""Evidence that many policies share: each question is asked once."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from modyn.evaluator.client import DriftDistance, DriftQuestion, MeasuredDrift, Rows, Score
from modyn.records import StreamWindow
from modyn.supervisor.triggers.evidence import EvidenceSource

T = TypeVar("T")


@dataclass(slots=True)
class _Drift:
    """What is known of two windows: the counts of the first answer, and distances by the section of their metric. None: too few samples."""

    first: MeasuredDrift
    distances: dict[str, DriftDistance | None] = field(default_factory=dict)


class SharedEvidence:
    """An EvidenceSource that keeps the answers of another one. Of a question about drift only the metrics that are not known are asked for.

    Answers are kept until `forget` has been called twice without their having been asked for again.
    """

    def __init__(self, source: EvidenceSource) -> None:
        self._source = source
        self._new: dict[Hashable, object] = {}
        self._old: dict[Hashable, object] = {}
        self.num_asked = 0
        """Questions that went to the source."""
        self.num_answered = 0
        """Questions of the policies."""

    def forget(self) -> None:
        """Drop the answers that nothing has asked for since the last call."""
        self._old, self._new = self._new, {}

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        """See `EvidenceSource.drift`."""
        self.num_answered += 1
        sections = {name: _text(metric) for name, metric in question.metrics.items()}
        rest = (question.data, question.model_id, _text(question.projection), question.sample_size, question.seed)
        key = ("drift", question.reference, question.current, *rest)
        known = cast("_Drift | None", self._find(key))
        missing = {
            name: metric for name, metric in question.metrics.items() if known is None or sections[name] not in known.distances
        }
        if known is None or missing:
            self.num_asked += 1
            answer = self._source.drift(replace(question, metrics=missing))
            known = known or _Drift(answer)
            known.distances |= {sections[name]: answer.distances.get(name) for name in missing}
        self._new[key] = known
        found = {name: known.distances[text] for name, text in sections.items()}
        return replace(known.first, distances={name: distance for name, distance in found.items() if distance is not None})

    def scores(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Sequence[Score]:
        """See `EvidenceSource.scores`."""
        key = ("scores", model_id, tuple(windows), _text(dataset), device)
        return self._answer(key, lambda: self._source.scores(model_id, windows, dataset, device))

    def outcomes(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Rows | None:
        """See `EvidenceSource.outcomes`."""
        key = ("outcomes", model_id, tuple(windows), _text(dataset), device)
        return self._answer(key, lambda: self._source.outcomes(model_id, windows, dataset, device))

    def held_out(self, model_id: int, count: int, before: int, dataset: Mapping[str, Any], device: str) -> Rows | None:
        """See `EvidenceSource.held_out`."""
        key = ("held out", model_id, count, before, _text(dataset), device)
        return self._answer(key, lambda: self._source.held_out(model_id, count, before, dataset, device))

    def _answer(self, key: Hashable, ask: Callable[[], T]) -> T:
        self.num_answered += 1
        if key not in self._new and key not in self._old:
            self.num_asked += 1
            self._new[key] = ask()
        self._new[key] = self._find(key)
        return cast("T", self._new[key])

    def _find(self, key: Hashable) -> object:
        return self._new[key] if key in self._new else self._old.get(key)


def _text(section: Mapping[str, Any] | None) -> str:
    return json.dumps(section, sort_keys=True, default=str)
