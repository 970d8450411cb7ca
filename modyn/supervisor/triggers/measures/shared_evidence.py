"""Evidence that many policies share. Each distinct question is asked once, and questions of many policies are asked together."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar, cast

from modyn.errors import CancelledError, SecurityError, UnavailableError, WorkerDiedError
from modyn.evaluator.client import DriftDistance, DriftQuestion, MeasuredDrift, Question, WindowPair
from modyn.supervisor.triggers.measures.questions import DriftQuestions, EvidenceSource, LoadQuestion

A = TypeVar("A")

SERVICE_ERRORS: Final = (CancelledError, SecurityError, UnavailableError, WorkerDiedError)
"""Errors that the question does not cause. The source may answer the same question later."""


@dataclass(slots=True)
class _Drift:
    """Known answers about two windows: the counts of the first answer, and each distance by the section of its metric. A distance is None if the
    windows had too few samples.
    """

    first: MeasuredDrift
    distances: dict[str, DriftDistance | None] = field(default_factory=dict)


class SharedEvidence:
    """An EvidenceSource that caches the answers of another source. For drift, the cache requests only unknown metrics.

    The cache drops an answer if no policy asks for the answer between two calls of `forget`.
    """

    def __init__(self, source: EvidenceSource) -> None:
        self._source = source
        self._new: dict[Hashable, object] = {}
        self._old: dict[Hashable, object] = {}
        self._texts: dict[int, tuple[object, str]] = {}
        """JSON of sections by the `id` of the section object. The section is kept with its text, so that no new object gets the same `id`."""
        self._keys: dict[int, tuple[DriftQuestion, tuple[Hashable, ...]]] = {}
        """Keys of questions by the `id` of the question object, with the question."""

    def forget(self) -> None:
        """Drop the answers that were not requested since the last call."""
        self._old, self._new = self._new, {}
        self._texts.clear()
        self._keys.clear()

    def ask(self, question: Question[A], /) -> A:
        """See `EvidenceSource.ask`. The load of servers is not cached, because the load changes all the time."""
        if isinstance(question, LoadQuestion):
            return cast("A", self._source.ask(question))
        if isinstance(question, DriftQuestion):
            return cast("A", self._drift(question))
        if isinstance(question, DriftQuestions):
            pairs = (replace(question.question, reference=pair.reference, current=pair.current) for pair in question.pairs)
            return cast("A", [self._drift(each) for each in pairs])
        key = (type(question), *(self._hashable(getattr(question, one.name)) for one in fields(cast("Any", question))))
        # A used answer moves to `_new`. `forget` drops the answers that stayed in `_old`.
        if key not in self._new:
            if key not in self._old:
                self._old[key] = self._source.ask(question)
            self._new[key] = self._old[key]
        return cast("A", self._new[key])

    def prepare(self, questions: Sequence[DriftQuestion]) -> None:
        """Ask the questions without a known answer. Questions about the same data and metrics share one call. Afterwards `ask` finds the answers.

        If a question cannot be answered, `ask` asks the question again, so that the error reaches the policy that asks.

        Raises: one of SERVICE_ERRORS.
        """
        groups: dict[Hashable, dict[Hashable, tuple[DriftQuestion, Mapping[str, Any]]]] = {}
        for question in questions:
            key = self._key(question)
            if missing := self._missing(question, key):
                metrics = tuple(sorted((name, self._text(metric)) for name, metric in missing.items()))
                groups.setdefault((key[1:], metrics), {})[key] = question, missing
        for group in groups.values():
            self._ask_together(group)

    def _ask_together(self, group: Mapping[Hashable, tuple[DriftQuestion, Mapping[str, Any]]]) -> None:
        """Ask all questions of a group in one call, and store the answers. Args: group: key → question and its unknown metrics."""
        first, metrics = next(iter(group.values()))
        pairs = [WindowPair(question.reference, question.current) for question, _ in group.values()]
        try:
            answers = self._source.ask(DriftQuestions(replace(first, metrics=metrics), pairs))
        except SERVICE_ERRORS:
            raise
        except Exception:  # noqa: BLE001 - `ask` repeats each question alone and raises its error
            return
        for (key, (_, missing)), answer in zip(group.items(), answers, strict=True):
            self._learn(key, missing, answer)

    def _drift(self, question: DriftQuestion) -> MeasuredDrift:
        key = self._key(question)
        # Another policy may have asked for some of these metrics of the same windows. Only the missing metrics are measured.
        if missing := self._missing(question, key):
            self._learn(key, missing, self._source.ask(replace(question, metrics=missing)))
        known = cast("_Drift", self._find(key))
        self._new[key] = known
        found = {name: known.distances[self._text(metric)] for name, metric in question.metrics.items()}
        distances = {name: distance for name, distance in found.items() if distance is not None}
        first = known.first
        return MeasuredDrift(distances, first.num_reference, first.num_current, first.num_embedded)

    def _missing(self, question: DriftQuestion, key: Hashable) -> Mapping[str, Any]:
        known = cast("_Drift | None", self._find(key))
        if known is None:
            return question.metrics
        return {name: metric for name, metric in question.metrics.items() if self._text(metric) not in known.distances}

    def _learn(self, key: Hashable, missing: Mapping[str, Any], answer: MeasuredDrift) -> None:
        known = cast("_Drift | None", self._find(key)) or _Drift(answer)
        known.distances |= {self._text(metric): answer.distances.get(name) for name, metric in missing.items()}
        self._new[key] = known

    def _key(self, question: DriftQuestion) -> tuple[Hashable, ...]:
        found = self._keys.get(id(question))
        if found is None:
            found = self._keys[id(question)] = question, self._numbers_of(question)
        return found[1]

    def _numbers_of(self, question: DriftQuestion) -> tuple[Hashable, ...]:
        # Keys consist of plain numbers, because hashes of records take several times as long, and each policy needs a key at each check.
        a, b = question.reference, question.current
        return (
            (a.start, a.stop, a.times.start, a.times.end, b.start, b.stop, b.times.start, b.times.end),
            a.labelled,
            b.labelled,
            question.data,
            question.model_id,
            self._text(question.projection),
            question.sample_size,
            question.seed,
        )

    def _find(self, key: Hashable) -> object:
        return self._new[key] if key in self._new else self._old.get(key)

    def _hashable(self, value: Any) -> Hashable:
        if isinstance(value, Mapping):
            return self._text(value)
        return tuple(value) if isinstance(value, list) else value

    def _text(self, section: Mapping[str, Any] | None) -> str:
        found = self._texts.get(id(section))
        if found is None:
            found = self._texts[id(section)] = section, json.dumps(section, sort_keys=True, default=str)
        return found[1]
