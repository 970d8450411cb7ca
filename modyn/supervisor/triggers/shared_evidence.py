"""Evidence that many policies share: each question is asked once, and those of many policies together."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar, cast

from modyn.errors import CancelledError, SecurityError, UnavailableError, WorkerDiedError
from modyn.evaluator.client import DriftDistance, DriftQuestion, MeasuredDrift, Rows, Score, WindowPair
from modyn.records import ServingLoad, StreamWindow
from modyn.supervisor.triggers.evidence import EvidenceSource

T = TypeVar("T")

OF_SERVICES: Final = (CancelledError, SecurityError, UnavailableError, WorkerDiedError)
"""Errors that are of no question: asked again later, it may be answered."""


@dataclass(slots=True)
class _Drift:
    """What is known of two windows: the counts of the first answer, and distances by the section of their metric. None: too few samples."""

    first: MeasuredDrift
    distances: dict[str, DriftDistance | None] = field(default_factory=dict)


class UnansweredQuestion(BaseException):
    """Ends a check whose question is asked with those of others; the check is made again once it is answered."""

    def __init__(self, question: DriftQuestion) -> None:
        super().__init__(question)
        self.question = question


class SharedEvidence:
    """An EvidenceSource that keeps the answers of another one. Of a question about drift only the metrics that are not known are asked for.

    Answers are kept until `forget` has been called twice without their having been asked for again.
    """

    def __init__(self, source: EvidenceSource) -> None:
        self._source = source
        self._new: dict[Hashable, object] = {}
        self._old: dict[Hashable, object] = {}
        self._texts: dict[int, tuple[object, str]] = {}
        """Of sections by identity, with the section, so that no other gets its identity."""
        self._alone: set[Hashable] = set()
        """Questions that could not be answered with others: each is asked by itself, so that its error is that of its policy."""
        self.num_asked = 0
        """Questions that went to the source."""
        self.num_answered = 0
        """Questions of the policies."""

    def forget(self) -> None:
        """Drop the answers that nothing has asked for since the last call."""
        self._old, self._new = self._new, {}
        self._texts.clear()
        self._alone.clear()

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        """See `EvidenceSource.drift`."""
        found = self.found(question)
        if found is None:
            key = self._key(question)
            missing = self._missing(question, key)
            self.num_asked += 1
            self._learn(key, missing, self._source.drift(replace(question, metrics=missing)))
            found = self.found(question)
            assert found is not None, "what was missing is known now"
        self.num_answered += 1
        return found

    def found(self, question: DriftQuestion) -> MeasuredDrift | None:
        """The answer, if it is known."""
        key = self._key(question)
        known = cast("_Drift | None", self._find(key))
        if known is None:
            return None
        self._new[key], distances = known, dict[str, DriftDistance]()
        for name, metric in question.metrics.items():
            text = self._text(metric)
            if text not in known.distances:
                return None
            if (distance := known.distances[text]) is not None:
                distances[name] = distance
        first = known.first
        return MeasuredDrift(distances, first.num_reference, first.num_current, first.num_embedded)

    def drifts(self, question: DriftQuestion, pairs: Sequence[WindowPair]) -> Sequence[MeasuredDrift]:
        """See `EvidenceSource.drifts`."""
        return [self.drift(replace(question, reference=pair.reference, current=pair.current)) for pair in pairs]

    def answer(self, questions: Sequence[DriftQuestion]) -> None:
        """Ask those that are not known, those about the same data and metrics together: `drift` finds the answers.

        Raises: what the source raises of services. What one question cannot be answered for is raised by `drift`, when it is asked again.
        """
        groups: dict[Hashable, dict[Hashable, tuple[DriftQuestion, Mapping[str, Any]]]] = {}
        for question in questions:
            key = self._key(question)
            if missing := self._missing(question, key):
                about = tuple(sorted((name, self._text(metric)) for name, metric in missing.items()))
                groups.setdefault((self._rest(question), about), {})[key] = question, missing
        for group in groups.values():
            self._ask_together(group)

    def _ask_together(self, group: Mapping[Hashable, tuple[DriftQuestion, Mapping[str, Any]]]) -> None:
        """Args: group: questions about the same data and metrics, by key."""
        first, metrics = next(iter(group.values()))
        pairs = [WindowPair(question.reference, question.current) for question, _ in group.values()]
        try:
            answers = self._source.drifts(replace(first, metrics=metrics), pairs)
        except OF_SERVICES:
            raise
        except Exception:  # noqa: BLE001 - it is raised again by the question that it is of
            self._alone.update(group)
            return
        self.num_asked += len(group)
        for (key, (_, missing)), answer in zip(group.items(), answers, strict=True):
            self._learn(key, missing, answer)

    def is_alone(self, question: DriftQuestion) -> bool:
        """Whether it could not be answered with others, so that `drift` is to ask it by itself."""
        return bool(self._alone) and self._key(question) in self._alone

    def scores(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Sequence[Score]:
        """See `EvidenceSource.scores`."""
        key = ("scores", model_id, tuple(windows), self._text(dataset), device)
        return self._answer(key, lambda: self._source.scores(model_id, windows, dataset, device))

    def outcomes(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Rows | None:
        """See `EvidenceSource.outcomes`."""
        key = ("outcomes", model_id, tuple(windows), self._text(dataset), device)
        return self._answer(key, lambda: self._source.outcomes(model_id, windows, dataset, device))

    def held_out(self, model_id: int, count: int, before: int, dataset: Mapping[str, Any], device: str) -> Rows | None:
        """See `EvidenceSource.held_out`."""
        key = ("held out", model_id, count, before, self._text(dataset), device)
        return self._answer(key, lambda: self._source.held_out(model_id, count, before, dataset, device))

    def load(self) -> ServingLoad | None:
        """See `EvidenceSource.load`. It is of now, and not kept."""
        return self._source.load()

    def _answer(self, key: Hashable, ask: Callable[[], T]) -> T:
        self.num_answered += 1
        if key not in self._new and key not in self._old:
            self.num_asked += 1
            self._new[key] = ask()
        self._new[key] = self._find(key)
        return cast("T", self._new[key])

    def _missing(self, question: DriftQuestion, key: Hashable) -> Mapping[str, Any]:
        known = cast("_Drift | None", self._find(key))
        if known is None:
            return question.metrics
        return {name: metric for name, metric in question.metrics.items() if self._text(metric) not in known.distances}

    def _learn(self, key: Hashable, missing: Mapping[str, Any], answer: MeasuredDrift) -> None:
        known = cast("_Drift | None", self._find(key)) or _Drift(answer)
        known.distances |= {self._text(metric): answer.distances.get(name) for name, metric in missing.items()}
        self._new[key] = known

    def _key(self, question: DriftQuestion) -> Hashable:
        # Of plain numbers: windows are records, whose hashes take several times as long, and each policy comes here at each check.
        a, b = question.reference, question.current
        return (
            (a.start, a.stop, a.times.start, a.times.end, b.start, b.stop, b.times.start, b.times.end),
            self._rest(question),
        )

    def _rest(self, question: DriftQuestion) -> Hashable:
        return question.data, question.model_id, self._text(question.projection), question.sample_size, question.seed

    def _find(self, key: Hashable) -> object:
        return self._new[key] if key in self._new else self._old.get(key)

    def _text(self, section: Mapping[str, Any] | None) -> str:
        found = self._texts.get(id(section))
        if found is None:
            found = self._texts[id(section)] = section, json.dumps(section, sort_keys=True, default=str)
        return found[1]


class SharedLater:
    """An EvidenceSource for one of many policies: a question about drift whose answer is not known yet ends the check, so that it can be asked
    with those of the others."""

    def __init__(self, shared: SharedEvidence) -> None:
        self._shared = shared

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        """See `EvidenceSource.drift`. Raises also: UnansweredQuestion."""
        found = self._shared.found(question)
        if found is not None:
            self._shared.num_answered += 1
            return found
        if self._shared.is_alone(question):
            return self._shared.drift(question)
        raise UnansweredQuestion(question)

    def drifts(self, question: DriftQuestion, pairs: Sequence[WindowPair]) -> Sequence[MeasuredDrift]:
        """See `EvidenceSource.drifts`. Raises also: UnansweredQuestion."""
        return [self.drift(replace(question, reference=pair.reference, current=pair.current)) for pair in pairs]

    def scores(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Sequence[Score]:
        """See `EvidenceSource.scores`."""
        return self._shared.scores(model_id, windows, dataset, device)

    def outcomes(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Rows | None:
        """See `EvidenceSource.outcomes`."""
        return self._shared.outcomes(model_id, windows, dataset, device)

    def held_out(self, model_id: int, count: int, before: int, dataset: Mapping[str, Any], device: str) -> Rows | None:
        """See `EvidenceSource.held_out`."""
        return self._shared.held_out(model_id, count, before, dataset, device)

    def load(self) -> ServingLoad | None:
        """See `EvidenceSource.load`."""
        return self._shared.load()
