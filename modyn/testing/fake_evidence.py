"""A source of evidence over memory, for tests of trigger policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from modyn.evaluator.client import DriftDistance, DriftQuestion, MeasuredDrift, Rows, Score, WindowPair
from modyn.records import Interval, SampleBatch, ServingLoad, StreamWindow
from modyn.supervisor.triggers.label_clock import LabelClock

Distance = Callable[[SampleBatch, SampleBatch], float]


def mean_label_distance(reference: SampleBatch, current: SampleBatch) -> float:
    """The distance of the mean labels."""
    return float(abs(reference.labels.mean() - current.labels.mean()))


class FakeEvidence:
    """Use in place of the evidence of a run: it looks at a stream in memory. All metrics give `distance`, of the samples of both windows.

    Args: stream: the run's stream from its start. distance: of two windows. is_error: for each sample whether a model errs at it; by
    default where the label is 0. held_out: the positions of the samples that the training of a model has held out; by default it has none.
    `asked` holds the questions about drift, in order. Labels come `label_delay` seconds late, which `decide` sets.
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
        """Of servers; None: the run replays history."""

    def samples(self, window: StreamWindow) -> SampleBatch:
        """The samples of a window."""
        stream = LabelClock(self.label_delay).take(0, self._stream).labelled if window.labelled else self._stream
        found = stream.slice(window.start, window.stop)
        inside = (found.timestamps >= window.times.start) & (found.timestamps < window.times.end)
        return SampleBatch(found.keys[inside], found.timestamps[inside], found.labels[inside])

    def drift(self, question: DriftQuestion) -> MeasuredDrift:
        """The distance of the two windows, by each metric; none without two samples in each."""
        self.asked.append(question)
        reference, current = self.samples(question.reference), self.samples(question.current)
        if min(len(reference), len(current)) < 2:
            return MeasuredDrift({}, len(reference), len(current))
        distance = DriftDistance(self._distance(reference, current), p_value=0.5)
        return MeasuredDrift(dict.fromkeys(question.metrics, distance), len(reference), len(current), len(current))

    def drifts(self, question: DriftQuestion, pairs: Sequence[WindowPair]) -> Sequence[MeasuredDrift]:
        """As `drift`, of each pair; `asked_together` holds how many."""
        self.asked_together.append(len(pairs))
        return [self.drift(replace(question, reference=pair.reference, current=pair.current)) for pair in pairs]

    def scores(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Sequence[Score]:
        """The share of samples at which the model does not err, under the name of each metric of `dataset`."""
        rows = self.outcomes(model_id, windows, dataset, device)
        names = [str(metric.get("label", metric["name"])) for metric in dataset["metrics"]]
        if rows is None:
            return [Score(Interval(), name, None, "undefined: there are no samples in the interval", 0, 0) for name in names]
        accuracy, number = float((rows.outputs[:, 0] == 0).mean()), len(rows.keys)
        return [Score(Interval(), name, accuracy, "", number, number) for name in names]

    def outcomes(self, model_id: int, windows: Sequence[StreamWindow], dataset: Mapping[str, Any], device: str) -> Rows | None:
        """Errors by `is_error`, a loss of 2 for an error and 0.1 otherwise, a confidence of 0.6 and 0.9."""
        samples = SampleBatch.concatenate([self.samples(window) for window in windows])
        return self._rows(model_id, samples)

    def held_out(self, model_id: int, count: int, before: int, dataset: Mapping[str, Any], device: str) -> Rows | None:
        """As `outcomes`, of the samples that were held out."""
        at = np.array(sorted(self._held_out(model_id)), np.int64)
        at = at[self._stream.timestamps[at] < before][-count:]
        return self._rows(model_id, SampleBatch(self._stream.keys[at], self._stream.timestamps[at], self._stream.labels[at]))

    def load(self) -> ServingLoad | None:
        """`serving_load`, which a test sets."""
        return self.serving_load

    def _rows(self, model_id: int, samples: SampleBatch) -> Rows | None:
        if not len(samples):
            return None
        errors = np.asarray(self._is_error(model_id, samples), np.float32)
        outputs = np.stack([errors, np.where(errors, 2.0, 0.1), np.where(errors, 0.6, 0.9)], 1).astype(np.float32)
        return Rows(samples.keys, samples.timestamps, samples.labels, outputs)
