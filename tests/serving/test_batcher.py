"""Threads that predict: each request gets its own rows back, or an error of its own."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import (
    CancelledError,
    ConflictError,
    DeadlineError,
    InvalidArgumentError,
    OverloadedError,
    UserCodeError,
)
from modyn.serving.batch_queue import BatchLimits, Outcome
from modyn.serving.batcher import Batcher, BatchReport
from modyn.serving.messages.infer import settle
from modyn.serving.messages.signature import ModelSignature, Tensors, TensorSignature
from modyn.serving.versions.predictor import VersionName
from modyn.testing.fake_predictor import FakePredictor, PredictorGate
from modyn.testing.waiting import PATIENCE_S, eventually

NAME = VersionName("m", "1")


class Answers:
    """Futures of what a batcher was given."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher = batcher

    def submit(
        self, *rows: float, timeout_s: float | None = None, inline: bool = False, at_once: bool = False
    ) -> tuple[Any, Future[Tensors]]:
        future: Future[Tensors] = Future()
        inputs = {"input": np.array([[row, 0, 0] for row in rows], np.float32)}
        request = self.batcher.submit(inputs, functools.partial(settle, future), timeout_s, inline=inline, at_once=at_once)
        if inline:
            self.batcher.run_due()
        return request, future


Make = Callable[..., Batcher]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes batchers, which are closed at the end of the test."""
    batchers: list[Batcher] = []

    def make_batcher(predictor: FakePredictor, limits: BatchLimits | None = None, **options: Any) -> Batcher:
        batchers.append(Batcher(NAME, predictor, limits or BatchLimits(), **options))
        return batchers[-1]

    yield make_batcher
    for batcher in batchers:
        batcher.close()


@given(
    requests=st.lists(st.lists(st.integers(-1000, 1000), min_size=1, max_size=5), min_size=1, max_size=60),
    clients=st.integers(1, 6),
    threads=st.integers(1, 3),
    inline=st.sets(st.integers(0, 5)),
    at_once=st.sets(st.integers(0, 5)),
    max_batch_size=st.integers(5, 16),
    max_delay_s=st.sampled_from((0.0, 0.0005)),
)
def test_each_request_gets_its_own_rows_in_any_interleaving(
    requests: list[list[int]],
    clients: int,
    threads: int,
    inline: set[int],
    at_once: set[int],
    max_batch_size: int,
    max_delay_s: float,
) -> None:
    predictor = FakePredictor()
    batcher = Batcher(NAME, predictor, BatchLimits(max_batch_size, max_delay_s), threads=threads)
    answers, found = Answers(batcher), [None] * len(requests)

    def client(number: int) -> None:
        for index in range(number, len(requests), clients):
            _, future = answers.submit(*requests[index], inline=number in inline - at_once, at_once=number in at_once)
            found[index] = future.result(PATIENCE_S)["sum"].tolist()

    running = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    batcher.close()
    assert batcher.join(PATIENCE_S)
    assert found == [[float(value) for value in rows] for rows in requests]
    assert max(predictor.batches) <= max_batch_size
    assert sum(predictor.batches) == sum(map(len, requests))
    assert predictor.closed.is_set()


def test_a_batch_that_becomes_due_while_its_thread_looks_is_predicted(make: Make) -> None:
    """The clock advances by 0.1 s at each look. The batch is not due at the first look after its requests came, and due at the next one."""
    looks = list[float]()

    def clock() -> float:
        looks.append(0.1 * len(looks))
        return looks[-1]

    batcher = make(FakePredictor(), BatchLimits(max_delay_s=0.25), clock=clock)
    eventually(lambda: looks)
    batcher.run_due()  # returns when the thread waits for requests, since the thread holds the lock until then
    futures = [Future[Tensors](), Future[Tensors]()]
    for future, is_first in zip(futures, (True, False), strict=True):
        batcher.submit({"input": np.zeros((1, 3), np.float32)}, functools.partial(settle, future), inline=is_first)
    assert [future.result(PATIENCE_S)["sum"].tolist() for future in futures] == [[0], [0]]


def test_requests_that_come_while_the_model_works_become_one_batch(make: Make) -> None:
    gate, reports = PredictorGate(), list[BatchReport]()
    predictor = FakePredictor(before=gate)
    batcher = make(predictor, report=reports.append)
    answers = Answers(batcher)
    futures = [answers.submit(1.0)[1]]
    assert gate.reached.wait(PATIENCE_S)
    futures += [answers.submit(float(number))[1] for number in range(2, 6)]
    gate.open.set()
    assert [future.result(PATIENCE_S)["sum"].tolist() for future in futures] == [[1], [2], [3], [4], [5]]
    batcher.close()
    assert batcher.join(PATIENCE_S)
    assert predictor.batches == [1, 4]
    assert [(report.requests, report.rows) for report in reports] == [(1, 1), (4, 4)]


def test_a_bad_request_ends_no_other_of_its_batch(make: Make) -> None:
    gate = PredictorGate()

    def refuse_seven(inputs: Tensors) -> None:
        gate(inputs)
        if (inputs["input"] == 7).any():
            raise ValueError("seven")

    batcher = make(FakePredictor(before=refuse_seven))
    answers = Answers(batcher)
    futures = [answers.submit(1.0)[1]]
    assert gate.reached.wait(PATIENCE_S)
    futures += [answers.submit(value)[1] for value in (6.0, 7.0, 8.0)]
    gate.open.set()
    with pytest.raises(UserCodeError, match="version 1 of model 'm' failed: ValueError: seven"):
        futures[2].result(PATIENCE_S)
    assert [futures[i].result(PATIENCE_S)["sum"].tolist() for i in (0, 1, 3)] == [[1], [6], [8]]


def test_a_full_queue_refuses_and_what_waits_is_answered(make: Make) -> None:
    gate = PredictorGate()
    batcher = make(FakePredictor(before=gate), BatchLimits(max_queue=2))
    answers = Answers(batcher)
    futures = [answers.submit(0.0)[1]]
    assert gate.reached.wait(PATIENCE_S)
    futures += [answers.submit(1.0)[1], answers.submit(2.0)[1]]
    with pytest.raises(OverloadedError, match="2 requests wait already"):
        answers.submit(3.0)
    gate.open.set()
    assert [future.result(PATIENCE_S)["sum"].tolist() for future in futures] == [[0], [1], [2]]


def test_requests_end_at_their_deadline_in_the_queue_and_in_the_model(make: Make) -> None:
    now, gate = [0.0], PredictorGate()
    predictor = FakePredictor(before=gate)
    batcher = make(predictor, BatchLimits(timeout_s=10.0), clock=lambda: now[0])
    answers = Answers(batcher)
    _, working = answers.submit(0.0)
    assert gate.reached.wait(PATIENCE_S)
    _, soon = answers.submit(1.0, timeout_s=3.0)
    _, later = answers.submit(2.0, timeout_s=99.0)
    now[0] = 2.9
    batcher.end_overdue()
    assert not soon.done()
    now[0] = 3.0
    batcher.end_overdue()
    with pytest.raises(DeadlineError, match="version 1 of model 'm' did not answer within 3 s"):
        soon.result(0)
    now[0] = 10.0
    batcher.end_overdue()
    for overdue in (working, later):
        with pytest.raises(DeadlineError, match="within 10 s"):
            overdue.result(0)
    gate.open.set()
    batcher.close()
    assert batcher.join(PATIENCE_S)
    assert predictor.batches == [1], "what ended in the queue was predicted"


def test_a_cancelled_request_is_not_predicted(make: Make) -> None:
    gate = PredictorGate()
    predictor = FakePredictor(before=gate)
    batcher = make(predictor)
    answers = Answers(batcher)
    _, first = answers.submit(0.0)
    assert gate.reached.wait(PATIENCE_S)
    ticket, second = answers.submit(1.0)
    batcher.cancel(ticket)
    batcher.cancel(ticket)
    with pytest.raises(CancelledError):
        second.result(0)
    gate.open.set()
    first.result(PATIENCE_S)
    batcher.close()
    assert batcher.join(PATIENCE_S)
    assert predictor.batches == [1]


def test_what_is_closed_answers_what_it_has_and_takes_no_more(make: Make) -> None:
    gate = PredictorGate()
    predictor = FakePredictor(before=gate)
    batcher = make(predictor)
    answers = Answers(batcher)
    futures = [answers.submit(0.0)[1]]
    assert gate.reached.wait(PATIENCE_S)
    futures.append(answers.submit(1.0)[1])
    batcher.close()
    with pytest.raises(ConflictError, match="is unloaded; send the request again"):
        answers.submit(2.0)
    assert not predictor.closed.is_set()
    gate.open.set()
    assert [future.result(PATIENCE_S)["sum"].tolist() for future in futures] == [[0], [1]]
    eventually(predictor.closed.is_set)


def test_a_caller_predicts_what_is_quick_and_what_waits_for_a_fuller_batch_is_left_to_a_thread(make: Make) -> None:
    where = list[int]()
    predictor = FakePredictor(before=lambda _: where.append(threading.get_ident()))
    batcher = make(predictor, BatchLimits(max_delay_s=0.01))
    answers = Answers(batcher)
    quick = [batcher.is_quick]  # not measured yet
    assert answers.submit(1.0, inline=True)[1].done()
    assert where == [threading.get_ident()]
    quick.append(batcher.is_quick)
    assert quick == [False, True]
    inputs = {"input": np.zeros((1, 3), np.float32)}
    futures: list[Future[Outcome]] = [Future(), Future()]
    for future in futures:
        batcher.submit(inputs, future.set_result, inline=True)
    batcher.run_due()
    for future in futures:
        future.result(PATIENCE_S)
    batcher.close()
    assert batcher.join(PATIENCE_S)
    assert predictor.batches == [1, 2]


def test_an_idle_model_answers_at_once_with_any_delay(make: Make) -> None:
    where = list[int]()
    batcher = make(FakePredictor(before=lambda _: where.append(threading.get_ident())), BatchLimits(max_delay_s=PATIENCE_S))
    assert Answers(batcher).submit(1.0, at_once=True)[1].done()
    assert where == [threading.get_ident()]


def test_what_comes_while_a_caller_predicts_at_once_is_answered_without_another_request(make: Make) -> None:
    gate = PredictorGate()
    predictor = FakePredictor(before=gate)
    batcher = make(predictor)
    answers = Answers(batcher)
    caller = threading.Thread(target=answers.submit, args=(1.0,), kwargs={"at_once": True})
    caller.start()
    assert gate.reached.wait(PATIENCE_S)
    futures = [answers.submit(2.0, at_once=True)[1], answers.submit(3.0)[1], answers.submit(4.0, inline=True)[1]]
    assert not any(future.done() for future in futures), "one batch at a time"
    gate.open.set()
    assert [future.result(PATIENCE_S)["sum"].tolist() for future in futures] == [[2], [3], [4]]
    caller.join()
    batcher.close()
    assert predictor.batches == [1, 3]


def test_a_model_that_waits_is_quick_and_one_that_computes_is_not(make: Make) -> None:
    now = [0.0]

    def wait(_: Tensors) -> None:
        now[0] += 1.0

    def compute(_: Tensors) -> None:
        wait(_)
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    predictor = FakePredictor(before=wait)
    batcher = make(predictor, clock=lambda: now[0])
    for before, is_quick in ((wait, True), (lambda _: None, True), (compute, False)):
        predictor.before = before
        for _ in range(3):
            Answers(batcher).submit(1.0, at_once=True)
        assert batcher.is_quick == is_quick


def test_the_predictor_is_closed_after_the_last_caller(make: Make) -> None:
    gate = PredictorGate()
    predictor = FakePredictor(before=gate)
    batcher = make(predictor, threads=2)
    caller = threading.Thread(target=Answers(batcher).submit, args=(1.0,), kwargs={"inline": True})
    caller.start()
    assert gate.reached.wait(PATIENCE_S)
    batcher.close()
    assert not batcher.join(0.05)
    assert not predictor.closed.is_set()
    gate.open.set()
    assert batcher.join(PATIENCE_S)
    assert predictor.closed.is_set()
    caller.join()


def test_a_request_with_more_rows_than_a_batch_is_refused(make: Make) -> None:
    batcher = make(FakePredictor(), BatchLimits(max_batch_size=2))
    with pytest.raises(
        InvalidArgumentError, match=r"the request has 3 rows; version 1 of model 'm' takes at most 2 \(serving.max_batch_size\)"
    ):
        Answers(batcher).submit(1.0, 2.0, 3.0)


def test_a_model_that_returns_what_it_does_not_promise_is_an_error_of_the_model(make: Make) -> None:
    more = ModelSignature(FakePredictor().signature.inputs, (TensorSignature("scores", "FP32", (-1,)),))
    batcher = make(FakePredictor(signature=more))
    with pytest.raises(UserCodeError, match="returned no output 'scores', which its signature promises"):
        Answers(batcher).submit(1.0)[1].result(PATIENCE_S)
