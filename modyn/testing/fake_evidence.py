"""An in-memory source of evidence for tests of trigger policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np

from modyn.evaluator.client import DriftDistance, DriftQuestion, MeasuredDrift, Question, Rows, Score
from modyn.records import Interval, SampleBatch, ServingLoad, StreamWindow
from modyn.supervisor.triggers.measures.label_clock import LabelClock
from modyn.supervisor.triggers.measures.questions import (
    DriftQuestions,
    HeldOutQuestion,
    LoadQuestion,
    OutcomeQuestion,
    ScoreQuestion,
)

A = TypeVar("A")

Distance = Callable[[SampleBatch, SampleBatch], float]


def mean_label_distance(reference: SampleBatch, current: SampleBatch) -> float:
    """Return the distance of the mean labels."""
    return float(abs(reference.labels.mean() - current.labels.mean()))


class FakeEvidence:
    """A fake source of evidence, which answers questions about a stream in memory. All metrics return the `distance` of the samples of both windows.

    Args: stream: the run's stream from its start. distance: function that returns the distance of two windows. is_error: function that returns
    whether a model errs at each sample; by default, a model errs if the label is 0. held_out: function that returns the positions of the samples that
    the training of a model held out; by default, no positions.

    `asked` has the questions about drift in order, and `asked_together` the number of questions in each call. Labels arrive `label_delay` seconds
    late; `decide` sets this delay.
    """

    def __init__(
        self,
        stream: SampleBatch,
        distance: Distance = mean_label_distance,
        is_error: Callable[[int, SampleBatch], Any] = lambda model_id, samples: samples.labels == 0,
        held_out: Callable[[int], Sequence[int]] = lambda model_id: (),
    ) -> None:
        self._stream = stream
        self._distance = distance
        self._is_error = is_error
        self._held_out = held_out
        self.label_delay = 0
        self.asked: list[DriftQuestion] = []
        self.asked_together: list[int] = []
        self.serving_load: ServingLoad | None = None
        """The load of servers, which a test may set. None: the run replays historical data."""

    def samples(self, window: StreamWindow) -> SampleBatch:
        """Return the samples of a window."""
        stream = LabelClock(self.label_delay).take(0, self._stream).labelled if window.labelled else self._stream
        found = stream.slice(window.start, window.stop)
        inside = (found.timestamps >= window.times.start) & (found.timestamps < window.times.end)
        return SampleBatch(found.keys[inside], found.timestamps[inside], found.labels[inside])

    def ask(self, question: Question[A], /) -> A:
        """See `EvidenceSource.ask`."""
        return cast("A", self._answer(question))

    def _answer(self, question: object) -> object:
        match question:
            case DriftQuestion():
                return self.drift(question)
            case DriftQuestions(question=common, pairs=pairs):
                self.asked_together.append(len(pairs))
                return [self.drift(replace(common, reference=pair.reference, current=pair.current)) for pair in pairs]
            case ScoreQuestion():
                return self.scores(question)
            case OutcomeQuestion():
                return self.outcomes(question)
            case HeldOutQuestion():
                return self.held_out(question)
            case LoadQuestion():
                return self.serving_load
        raise TypeError(f"no run answers {question!r}")

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        """Return the distance of the two windows for each metric. If a window has less than two samples, return no distances."""
        self.asked.append(question)
        reference, current = self.samples(question.reference), self.samples(question.current)
        if min(len(reference), len(current)) < 2:
            return MeasuredDrift({}, len(reference), len(current))
        distance = DriftDistance(self._distance(reference, current), p_value=0.5)
        return MeasuredDrift(dict.fromkeys(question.metrics, distance), len(reference), len(current), len(current))

    def scores(self, question: ScoreQuestion) -> Sequence[Score]:
        """Return a score for each metric: the share of samples at which the model does not err."""
        asked = question.model_id, question.windows, question.dataset, question.device
        rows = self.outcomes(OutcomeQuestion(*asked))
        names = [str(metric.get("label", metric["name"])) for metric in question.dataset["metrics"]]
        if rows is None:
            return [Score(Interval(), name, None, "undefined: there are no samples in the interval", 0, 0) for name in names]
        accuracy, number = float((rows.outputs[:, 0] == 0).mean()), len(rows.keys)
        return [Score(Interval(), name, accuracy, "", number, number) for name in names]

    def outcomes(self, question: OutcomeQuestion) -> Rows | None:
        """Return for each sample the error by `is_error`, a loss (2 for an error, otherwise 0.1), and a confidence (0.6 for an error, otherwise
        0.9)."""
        samples = SampleBatch.concatenate([self.samples(window) for window in question.windows])
        return self._rows(question.model_id, samples)

    def held_out(self, question: HeldOutQuestion) -> Rows | None:
        """Return errors, losses and confidences of the held-out samples."""
        at = np.array(sorted(self._held_out(question.model_id)), np.int64)
        at = at[self._stream.timestamps[at] < question.before][-question.count :]
        samples = SampleBatch(self._stream.keys[at], self._stream.timestamps[at], self._stream.labels[at])
        return self._rows(question.model_id, samples)

    def _rows(self, model_id: int, samples: SampleBatch) -> Rows | None:
        if not len(samples):
            return None
        errors = np.asarray(self._is_error(model_id, samples), np.float32)
        outputs = np.stack([errors, np.where(errors, 2.0, 0.1), np.where(errors, 0.6, 0.9)], 1).astype(np.float32)
        return Rows(samples.keys, samples.timestamps, samples.labels, outputs)
