"""Faults between a payload client and its servers: nothing is lost or repeated, and neither side exceeds its memory limit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import CancelledError, DataError, DeadlineError, ModynError, NotFoundError, UnavailableError
from modyn.records import Int64Array
from modyn.storage.flight.client import OnMissing, PayloadClient, PayloadStream
from modyn.storage.flight.endpoints import EndpointPool
from modyn.storage.flight.fetch import RequestThread
from modyn.storage.flight.protocol import AnswerHead, answer_schema, location, to_record_batch
from modyn.storage.flight.server import PayloadServer, ServerLimits
from modyn.storage.model.samples import Payloads
from modyn.testing.waiting import PATIENCE_S, at_rest, eventually
from tests.support.processes import ServiceProcess
from tests.support.running_storage import ONCE, SMALL_FETCHING, SMALL_SERVING, RunningStorage, image_dataset, write_image
from tests.support.watched_reads import StartServer, WatchedSnapshots, keys_of

HOUR_S = 3600.0
"""A silence that no healthy server is found guilty of; `answer_without` makes one of so long."""


T = TypeVar("T")


def answer_without(silent: Endpoint, fetched: PayloadStream, answer: Future[T]) -> T:
    """What another thread makes of a fetch. Whenever the fetch waits for `silent`, it is let believe that it has done so for an hour."""
    fetch = fetched._fetch

    def is_done() -> bool:
        with fetch._changed:
            for thread in fetch._threads:
                if thread.address == silent.address and thread.silent_since is not None:
                    thread.silent_since -= HOUR_S
            fetch._changed.notify_all()
        return answer.done()

    eventually(is_done)
    return answer.result()


Answers = list[tuple[Payloads, AnswerHead]]


class Stub(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """A server that answers each call with `answers` and no more. opens: not even a call is opened otherwise."""

    def __init__(self, endpoint: Endpoint, answers: Answers, opens: bool = True) -> None:
        self.answers, self.opens = answers, opens
        self.num_calls = 0
        self.released = threading.Event()
        super().__init__(location(endpoint))

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        self.num_calls += 1
        schema = answer_schema(False, "stub")
        if not self.opens:
            self.released.wait()
        return flight.GeneratorStream(schema, self._messages(schema))

    def _messages(self, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        for payloads, head in self.answers:
            yield to_record_batch(payloads, schema), head.to_bytes()
        self.released.wait()


StartStub = Callable[..., tuple[Endpoint, Stub]]


@pytest.fixture
def stub(storage: RunningStorage) -> Iterator[StartStub]:
    stubs: list[Stub] = []

    def start(answers: Answers, opens: bool = True) -> tuple[Endpoint, Stub]:
        endpoint = Endpoint(address=f"unix:{storage.config.run_dir}/stub-{len(stubs)}.sock")
        stubs.append(Stub(endpoint, answers, opens))
        return endpoint, stubs[-1]

    yield start
    for each in stubs:
        each.released.set()
        each.shutdown()


random_ = np.random.default_rng(5)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("on_missing", ["raise", "skip"])
def test_servers_that_go_and_come_again_and_again(
    numbers: RunningStorage, stack: ExitStack, streams: int, on_missing: OnMissing
) -> None:
    if on_missing == "skip":
        numbers.client.delete_samples("numbers", np.arange(100, 200))
    keys = random_.integers(200, 1000, 3000) if on_missing == "raise" else random_.integers(0, 1000, 3000)
    expected = [key for key in keys.tolist() if on_missing == "raise" or not 100 <= key < 200]
    endpoints = [Endpoint(address=f"unix:{numbers.config.run_dir}/test-{number}.sock") for number in range(2)]
    servers = [PayloadServer(endpoint, numbers.store, SMALL_SERVING) for endpoint in endpoints]

    def stop() -> None:
        for server in servers:
            server.stop()

    stack.callback(stop)
    got = []
    with PayloadClient(endpoints, streams, replace(SMALL_FETCHING, retry_s=PATIENCE_S)) as client:
        for number, batch in enumerate(client.fetch("numbers", keys, on_missing)):
            got.append(batch)
            if number % 60 == 5:
                which = (number // 60) % 2
                servers[which].stop()
                servers[which] = PayloadServer(endpoints[which], numbers.store, SMALL_SERVING)
    assert keys_of(iter(got)) == expected


@pytest.fixture
def replica(numbers: RunningStorage, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A payload server in a process of its own, on what storage has published."""
    config = numbers.config.model_copy(update={"storage": numbers.config.storage.model_copy(update={"replicas": 1})})
    with ServiceProcess("replica-1", config, tmp_path) as process:
        yield process


def test_a_process_that_hangs_is_left_for_another(numbers: RunningStorage, replica: ServiceProcess, serve: StartServer) -> None:
    endpoint = Endpoint(address=f"unix:{numbers.config.run_dir}/flight-1.sock")
    keys = random_.integers(0, 1000, 3000)
    with PayloadClient(endpoint) as client:
        assert keys_of(client.fetch("numbers", keys[:10])) == keys[:10].tolist()
    got = []
    limits = replace(SMALL_FETCHING, stall_s=HOUR_S, retry_s=PATIENCE_S)
    with PayloadClient([endpoint, serve()], 2, limits) as client, ThreadPoolExecutor(1) as pool:
        fetched = client.fetch("numbers", keys)
        for _ in range(10):
            got.append(next(fetched))
        os.kill(replica.pid, signal.SIGSTOP)
        got += answer_without(endpoint, fetched, pool.submit(list, fetched))
    assert keys_of(iter(got)) == keys.tolist()


@pytest.mark.parametrize("opens", [True, False])
def test_one_that_never_answers_is_an_error_or_left_for_another(
    numbers: RunningStorage, stub: StartStub, serve: StartServer, opens: bool
) -> None:
    silent, counted = stub([], opens)
    with PayloadClient(silent, limits=replace(ONCE, stall_s=0.2)) as client, pytest.raises(DeadlineError, match=silent.address):
        list(client.fetch("numbers", np.arange(10)))
    eventually(lambda: counted.num_calls == 1)
    limits = replace(ONCE, stall_s=HOUR_S, avoid_s=HOUR_S)
    with PayloadClient([silent, serve()], limits=limits) as client, ThreadPoolExecutor(1) as pool:
        for _ in range(4):  # Each thread would begin with the silent one.
            fetched = client.fetch("numbers", np.arange(500))
            assert answer_without(silent, fetched, pool.submit(keys_of, fetched)) == list(range(500))
        eventually(lambda: counted.num_calls > 1)
    assert counted.num_calls == 2, "one that has stalled is not tried again soon"


IMPATIENT = replace(SMALL_SERVING, alive_s=0.05, poll_s=0.05)


def test_a_slow_server_that_reports_to_be_alive_is_waited_for(serve: StartServer, hanging: WatchedSnapshots) -> None:
    """Each report ends the silence, and a new one begins."""
    endpoint = serve(hanging, limits=IMPATIENT)
    with PayloadClient(endpoint, limits=replace(ONCE, stall_s=HOUR_S)) as client, ThreadPoolExecutor(1) as pool:
        fetched = client.fetch("numbers", np.arange(10))
        got = pool.submit(keys_of, fetched)
        beginnings: set[float | None] = set()

        def heard_again() -> bool:
            beginnings.update(thread.silent_since for thread in fetched._fetch._threads)
            return len(beginnings) > 4

        eventually(heard_again)
        hanging.released.set()
        assert got.result() == list(range(10))


def test_a_read_that_hangs_is_reported_or_left_for_another_server(
    numbers: RunningStorage, serve: StartServer, hanging: WatchedSnapshots, capsys: pytest.CaptureFixture[str]
) -> None:
    hangs = serve(hanging, limits=replace(IMPATIENT, hang_s=0.3))
    once = replace(ONCE, stall_s=HOUR_S)
    with PayloadClient(hangs, limits=once) as client, ThreadPoolExecutor(1) as pool:
        fetched = client.fetch("numbers", np.arange(10))
        failed = pool.submit(list, fetched)
        eventually(lambda: "payload_read_hangs" in capsys.readouterr().err)
        with pytest.raises(DeadlineError, match=hangs.address):
            answer_without(hangs, fetched, failed)
    with PayloadClient([hangs, serve()], 2, replace(once, retry_s=PATIENCE_S)) as client, ThreadPoolExecutor(1) as pool:
        fetched = client.fetch("numbers", np.arange(1000))
        assert answer_without(hangs, fetched, pool.submit(keys_of, fetched)) == list(range(1000))


def test_a_deadline_holds_also_against_a_server_that_reports_to_be_alive(serve: StartServer, hanging: WatchedSnapshots) -> None:
    hangs = serve(hanging, limits=IMPATIENT)
    with PayloadClient(hangs) as client:
        fetched = client.fetch("numbers", np.arange(7, 10), deadline_s=0.3)
        fetched._fetch._start()
        eventually(lambda: any(thread.request for thread in fetched._fetch._threads))
        with pytest.raises(DeadlineError, match=f"key 7 of dataset 'numbers' did not come within 0.3 s.*{hangs.address}"):
            list(fetched)


def test_a_deadline_is_for_each_batch_and_not_for_the_consumer(numbers: RunningStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = numbers.payloads.fetch("numbers", np.arange(1000), deadline_s=PATIENCE_S)
    got = [next(fetched)]
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 2 * PATIENCE_S)  # The consumer takes its time.
    assert keys_of(iter([*got, *fetched])) == list(range(1000))


def test_a_server_that_is_busy_is_asked_again(pictures: RunningStorage, serve: StartServer) -> None:
    endpoint = serve(limits=ServerLimits(max_streams=1))
    with PayloadClient(endpoint, limits=replace(SMALL_FETCHING, buffer_bytes=2**20)) as first, ThreadPoolExecutor(1) as pool:
        held = first.fetch("images", np.arange(600) % 20)
        next(held)
        with (
            PayloadClient(endpoint, limits=ONCE) as impatient,
            pytest.raises(UnavailableError, match=r"busy.*storage\.max_threads"),
        ):
            list(impatient.fetch("images", np.arange(20)))
        with PayloadClient(endpoint, limits=replace(SMALL_FETCHING, retry_s=PATIENCE_S)) as patient:
            waiting = pool.submit(lambda: sum(len(batch) for batch in patient.fetch("images", np.arange(20))))
            held.close()
            assert waiting.result() == 20


def test_a_client_that_does_not_read_keeps_no_other_out(pictures: RunningStorage, serve: StartServer) -> None:
    """The client continues where it was when it reads again."""
    endpoint = serve(limits=ServerLimits(max_streams=1, idle_s=0.0))
    small = replace(SMALL_FETCHING, buffer_bytes=2**20, retry_s=PATIENCE_S)
    with PayloadClient(endpoint, limits=small) as idle, PayloadClient(endpoint, limits=small) as other:
        held = idle.fetch("images", np.arange(200) % 20)
        first = len(next(held))
        for _ in range(3):
            assert sum(len(batch) for batch in other.fetch("images", np.arange(20))) == 20
        assert first + sum(len(batch) for batch in held) == 200


def test_a_connection_that_comes_back_after_the_end_is_closed(numbers: RunningStorage) -> None:
    pool = EndpointPool([numbers.config.endpoint("flight")])
    client, options = pool.take(0)
    pool.close()
    pool.give_back(0, client)
    with pytest.raises(pa.ArrowInvalid, match="closed"):
        client.do_get(flight.Ticket(b""), options)


def test_an_endpoint_that_comes_back_is_used_again(numbers: RunningStorage, serve: StartServer) -> None:
    """It is used again in the middle of a fetch."""
    limits = replace(SMALL_FETCHING, retry_s=PATIENCE_S, avoid_s=0.0)
    returned = WatchedSnapshots(numbers.store)
    keys = random_.integers(0, 1000, 5_000)
    got = []
    absent = Endpoint(address=f"unix:{numbers.config.run_dir}/absent.sock")
    with PayloadClient([absent, serve()], 2, limits) as client:
        for number, batch in enumerate(client.fetch("numbers", keys)):
            if number == 20:
                serve(returned, endpoint=absent)
            if number > 20 and not returned.num_bytes:
                # Not so fast that all has come before the pause after the failure is over.
                time.sleep(0.02)
            got.append(batch)
    assert keys_of(iter(got)) == keys.tolist()
    assert returned.num_bytes > 0


def test_answers_to_other_questions_are_refused(numbers: RunningStorage, stub: StartStub) -> None:
    def answer(keys: list[int], done: int = 2) -> tuple[Payloads, AnswerHead]:
        column = np.asarray(keys, np.int64)
        payloads = Payloads(column, column, np.zeros(2 * len(keys), np.uint8), 2 * np.arange(len(keys) + 1))
        return payloads, AnswerHead(done, 2)

    bad = [answer([1, 3]), answer([2, 1]), answer([1]), answer([1, 2], done=0), answer([1, 2], done=3), answer([1, 1])]
    cases: list[tuple[tuple[Payloads, AnswerHead], OnMissing]] = [*((one, "raise") for one in bad), (bad[1], "skip")]
    for bad_answer, on_missing in cases:
        endpoint, _ = stub([bad_answer])
        with (
            PayloadClient(endpoint, limits=ONCE) as client,
            pytest.raises(ModynError, match="server at .* answered .*; run the same"),
        ):
            list(client.fetch("numbers", np.asarray([1, 2]), on_missing))


@pytest.fixture
def pictures(storage: RunningStorage, tmp_path: Path) -> RunningStorage:
    """20 samples of 1 MiB."""
    for i in range(20):
        write_image(tmp_path / "d", f"{i:02}", bytes([i]) * 2**20, i, 1000)
    storage.index(image_dataset(tmp_path / "d"))
    return storage


@pytest.mark.parametrize("streams", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_slow_consumer_stalls_the_servers(pictures: RunningStorage, serve: StartServer, streams: int) -> None:
    watched = WatchedSnapshots(pictures.store)
    keys = np.arange(200) % 20
    with PayloadClient([serve(watched), serve(watched)], streams, replace(SMALL_FETCHING, buffer_bytes=4 * 2**20)) as client:
        fetched = client.fetch("images", keys)
        got = [(batch.keys.tolist(), [bytes(batch.payload(i)[:1]) for i in range(len(batch))]) for batch in [next(fetched)]]
        # What the client may hold, and for each stream: chunks that wait, some on their way or being read (1 MiB each), and gRPC's windows,
        # which grow with the bandwidth that it measures. Of 200 MiB that are asked for.
        gathered = at_rest(lambda: watched.num_bytes, at_least=2**20 * (4 + streams * 4))
        assert gathered <= 2**20 * (4 + streams * (4 + 1 + 32))
        got += [(batch.keys.tolist(), [bytes(batch.payload(i)[:1]) for i in range(len(batch))]) for batch in fetched]
    assert [key for part, _ in got for key in part] == keys.tolist()
    assert [byte for _, part in got for byte in part] == [bytes([key]) for key in keys]


@pytest.mark.parametrize("end", ["cancel", "close the client", "drop", pytest.param("close", marks=pytest.mark.slow)])
def test_servers_stop_work_when_the_client_does(pictures: RunningStorage, serve: StartServer, end: str) -> None:
    watched = WatchedSnapshots(pictures.store)
    client = PayloadClient(serve(watched), 2, SMALL_FETCHING)
    fetched = client.fetch("images", np.arange(600) % 20)
    next(fetched)
    if end == "close":
        fetched.close()
        assert list(fetched) == []
    elif end == "cancel":
        fetched.cancel()
        with pytest.raises(CancelledError):
            next(fetched)
    elif end == "drop":
        del fetched
    else:
        client.close()
        with pytest.raises(CancelledError, match="client was closed"):
            next(fetched)
    assert at_rest(lambda: watched.num_bytes, at_least=2**20) < 200 * 2**20
    client.close()


@pytest.mark.parametrize("opens", [True, False])
def test_a_wait_is_cancelled_from_another_thread(numbers: RunningStorage, stub: StartStub, opens: bool) -> None:
    silent, counted = stub([], opens)
    with PayloadClient(silent) as client, ThreadPoolExecutor(1) as pool:
        fetched = client.fetch("numbers", np.arange(10))
        waiting = pool.submit(next, fetched)
        eventually(lambda: counted.num_calls)
        fetched.cancel()
        with pytest.raises(CancelledError):
            waiting.result()


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize("late_s", [0.0, 0.5])
def test_an_error_comes_after_all_that_is_before_it(
    numbers: RunningStorage, tmp_path: Path, streams: int, serve: StartServer, late_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if the server has come to the error before the client reads anything."""
    read = RequestThread._read

    def read_late(*arguments: Any) -> bool:
        time.sleep(late_s)
        return read(*arguments)

    monkeypatch.setattr(RequestThread, "_read", read_late)
    (tmp_path / "data" / "5.bin").unlink()
    got: list[Payloads] = []
    error = r"vanished: .*5\.bin.*`modyn data problems numbers`"
    with PayloadClient([serve(), serve()], streams, SMALL_FETCHING) as client, pytest.raises(DataError, match=error):
        got.extend(client.fetch("numbers", np.arange(1000)))
    keys = keys_of(iter(got))
    assert keys == list(range(len(keys)))
    assert 490 < len(keys) <= 500, "all chunks (of 10 samples) but the one with the first sample of the file that is gone"


def test_a_dataset_that_is_deleted_in_between(numbers: RunningStorage) -> None:
    fetched = numbers.payloads.fetch("numbers", np.arange(100_000) % 1000)
    next(fetched)
    numbers.client.delete_dataset("numbers")
    with pytest.raises(NotFoundError):
        list(fetched)


@pytest.mark.parametrize("num_clients", [pytest.param(1, marks=pytest.mark.slow), 16])
def test_many_fetches_at_once(numbers: RunningStorage, stack: ExitStack, serve: StartServer, num_clients: int) -> None:
    endpoints = [serve(), serve()]
    clients = [stack.enter_context(PayloadClient(endpoints, 1 + seed % 3, SMALL_FETCHING)) for seed in range(num_clients)]

    def read(seed: int) -> bool:
        keys: Int64Array = np.random.default_rng(seed).integers(0, 1000, 1000)
        return keys_of(clients[seed % num_clients].fetch("numbers", keys)) == list(keys)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(16))) == [True] * 16
