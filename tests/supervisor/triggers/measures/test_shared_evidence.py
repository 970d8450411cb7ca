"""Evidence that several policies share answers each kind of question as its source does, and asks each distinct one once."""

from __future__ import annotations

import numpy as np

from modyn.evaluator.client import DriftQuestion, WindowPair
from modyn.records import SampleBatch, StreamWindow
from modyn.supervisor.triggers.measures.questions import DriftQuestions
from modyn.supervisor.triggers.measures.shared_evidence import SharedEvidence
from modyn.testing.fake_evidence import FakeEvidence


def test_several_pairs_of_windows_are_answered_and_each_is_asked_once() -> None:
    keys = np.arange(30)
    source = FakeEvidence(SampleBatch(keys, keys, keys // 10))
    pairs = [WindowPair(StreamWindow(0, 10), StreamWindow(start, start + 10)) for start in (10, 20, 10)]
    question = DriftQuestions(DriftQuestion(StreamWindow(0, 0), StreamWindow(0, 0), {"mmd": {"id": "MMDDriftMetric"}}), pairs)
    shared = SharedEvidence(source)
    for _ in range(2):
        assert [answer.distances["mmd"].distance for answer in shared.ask(question) if answer.distances["mmd"]] == [1.0, 2.0, 1.0]
    assert [asked.current.start for asked in source.asked] == [10, 20]
