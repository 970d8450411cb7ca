"""The end of what several runs have: at once, within one deadline."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from modyn.serving.run_server import LeftTogether
from modyn.testing.waiting import PATIENCE_S

MODELS = ("a", "b", "c")


def test_all_runs_are_left_at_once() -> None:
    """Each of them ends only while the others do."""
    met = threading.Barrier(len(MODELS), timeout=PATIENCE_S)
    order = list[str]()

    @contextmanager
    def run(model: str) -> Iterator[str]:
        order.append(model)
        yield model.upper()
        met.wait()
        order.append("left")

    with capture_logs() as lines, LeftTogether("labels", PATIENCE_S) as together:
        assert [together.enter(model, run(model)) for model in MODELS] == ["A", "B", "C"]
    assert order == [*MODELS, "left", "left", "left"]
    assert lines == []


def test_one_that_hangs_or_fails_keeps_no_other_back() -> None:
    go_on, left = threading.Event(), list[str]()

    @contextmanager
    def run(model: str) -> Iterator[None]:
        yield
        if model == "a":
            go_on.wait()
        if model == "b":
            raise OSError("no disk")
        left.append(model)

    with capture_logs() as lines, pytest.raises(KeyError), LeftTogether("labels", 0.2) as together:
        for model in MODELS:
            together.enter(model, run(model))
        raise KeyError("why it ends")
    go_on.set()
    assert left == ["c"]
    assert {(line["event"], line["what"], str(line.get("models", line.get("model")))) for line in lines} == {
        ("end_not_waited_for", "labels", "['a']"), ("not_ended", "labels", "b"),
    }  # fmt: skip
