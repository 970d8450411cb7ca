"""`kill -9` of what appends records: between any two system calls, and of a whole service at random moments. Each record counts exactly once."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.storage.client import AppendedRecord, NewRecord, StorageClient
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.processes import ServiceProcess
from tests.support.running_storage import start_storage

APPEND_AND_DIE = """
import os, signal, sys
from pathlib import Path
from modyn.storage.model.records import AppendedRecord, NewRecord
from modyn.storage.records.log import PreparedRecords, RecordLog, RecordLogLimits

LIMITS = RecordLogLimits(file_bytes=600, write_bytes=200, held_keys=2)
folder = Path(sys.argv[1])

def open_log(place, num_indexed=0):
    return RecordLog(place / "records", place / "quarantine", num_indexed, LIMITS)

def append(log, numbers):
    records = [NewRecord(f"k{i}", b"payload %d" % i, i, 5) for i in numbers]
    return log.append(PreparedRecords.of(records, float_labels=False, now=7))

def work(place, answered):
    # Twice: the second time from where the first one ended.
    for _ in range(2):
        log = open_log(place)
        for first in range(0, 60, 3):
            for i, answer in zip(range(first, first + 3), append(log, range(first, first + 3)), strict=True):
                os.write(answered, b"%d %d\\n" % (i, answer.sample_key))
            log.merge_keys()

def die_at(nth):
    passed = 0
    def dying(name, real):
        def wrapped(*arguments, **options):
            nonlocal passed
            passed += 1
            if passed == nth:
                if name == "pwrite":  # A part was written.
                    real(arguments[0], bytes(arguments[1])[: nth % (len(arguments[1]) + 1)], arguments[2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        return wrapped
    for name in ("pwrite", "fdatasync", "fsync", "replace", "open", "rename", "unlink"):
        setattr(os, name, dying(name, getattr(os, name)))

nth = 0
while True:
    nth += int(sys.argv[2])
    place = folder / str(nth)
    place.mkdir()
    answered = os.open(place / "answered", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    if not (child := os.fork()):
        die_at(nth)
        work(place, answered)
        os._exit(0)
    os.close(answered)
    _, status = os.waitpid(child, 0)
    pairs = {tuple(map(int, line.split())) for line in (place / "answered").read_text().splitlines()}
    keys = dict(pairs)
    assert len(keys) == len(pairs), f"call {nth}: a record has two keys"
    log = open_log(place, len(keys))
    again = append(log, range(70))
    assert all(answer.is_duplicate and not answer.differs for i, answer in enumerate(again) if i in keys), f"call {nth}: forgotten"
    assert all(again[i].sample_key == key for i, key in keys.items()), f"call {nth}: another key"
    assert [answer.sample_key for answer in again] == list(range(70)), f"call {nth}: not in order"
    labels = [
        label
        for number, file in enumerate(log.durable.files)
        for batch in log.durable.batches(number, 64, file.first_key)
        for label in batch.entries["label"].tolist()
    ]
    assert labels == list(range(70)), f"call {nth}: the log has other records"
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        print(nth)
        break
"""


def append_and_die(folder: Path, step: int) -> int:
    """The number of calls after which nothing was left to be killed."""
    done = subprocess.run(
        [sys.executable, "-c", APPEND_AND_DIE, str(folder), str(step)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.splitlines()[-1])


def test_a_kill_between_some_system_calls(tmp_path: Path) -> None:
    assert append_and_die(tmp_path, 7) > 200


@pytest.mark.slow
def test_a_kill_between_any_two_system_calls(tmp_path: Path) -> None:
    assert append_and_die(tmp_path, 1) > 200


@pytest.mark.slow
def test_each_record_counts_once_whatever_is_killed(make_config: Callable[..., SystemConfig], tmp_path: Path) -> None:
    """Several clients append, each record twice at least, while the service is killed again and again; a stream follows the new samples."""
    random_, name, num_workers, num_records = random.Random(11), "clicks", 4, 400
    with tempfile.TemporaryDirectory(prefix="modyn-st-") as folder:
        config = make_config(state_dir=Path(folder), storage={"records": {"seal_s": 0.05}})
        answers: dict[int, set[int]] = {}
        failed: list[BaseException] = []
        arrived: list[int] = []

        def append(worker: int) -> None:
            own = random.Random(worker)
            try:
                with StorageClient(config.endpoint("storage"), retry_s=PATIENCE_S, wait_s=PATIENCE_S) as client:
                    for first in range(0, num_records, 5):
                        # Half of the records are those of the neighbour as well.
                        numbers = [(worker // 2 * num_records + first + i) for i in range(5)]
                        records = [NewRecord(f"k{n}", b"payload of %d" % n, n, 1_000 + n) for n in numbers]
                        for number, answer in zip(numbers, client.append_records(name, records), strict=True):
                            assert not answer.differs
                            answers.setdefault(number, set()).add(answer.sample_key)
                        time.sleep(own.uniform(0.0, 0.02))
            except BaseException as error:  # noqa: BLE001  (shown below)
                failed.append(error)

        with (
            ServiceProcess("storage", config, tmp_path) as process,
            StorageClient(config.endpoint("storage"), retry_s=PATIENCE_S, wait_s=PATIENCE_S) as client,
        ):
            from tests.storage.records.test_record_datasets import records_dataset

            client.register_dataset(records_dataset(name))
            threads = [threading.Thread(target=append, args=(worker,)) for worker in range(num_workers)]
            stream = client.new_samples(name, 0, 100)

            def follow() -> None:
                for batch in stream:
                    arrived.extend(batch.labels.tolist())

            follower = threading.Thread(target=follow)
            for thread in [*threads, follower]:
                thread.start()
            num_kills = 0
            while any(thread.is_alive() for thread in threads):
                time.sleep(random_.uniform(0.1, 0.7))
                process.kill()
                num_kills += 1
                process.start()
            for thread in threads:
                thread.join()
            assert failed == []
            assert num_kills >= 3
            total = num_workers // 2 * num_records
            eventually(lambda: len(arrived) >= total)
            stream.cancel()
            follower.join(PATIENCE_S)
            info = client.dataset(name)
            assert (info.num_samples, info.next_key) == (total, total)
            labels = client.samples_by_key(name, np.arange(total)).labels.tolist()
            assert sorted(labels) == list(range(total))
            assert {number: {labels.index(number)} for number in range(total)} == answers
            assert arrived == labels
            assert process.end() == 0


def test_what_a_kill_leaves_in_the_log_becomes_samples(make_config: Callable[..., SystemConfig], tmp_path: Path) -> None:
    """Between log and segment: the records were answered, and no sample was made of them."""
    from contextlib import ExitStack

    from tests.storage.records.test_record_datasets import records_dataset

    with tempfile.TemporaryDirectory(prefix="modyn-st-") as folder:
        config = make_config(state_dir=Path(folder), storage={"records": {"seal_s": 3_600}})
        records = [NewRecord(f"k{i}", b"%d" % i, i) for i in range(30)]
        with ServiceProcess("storage", config, tmp_path) as process, StorageClient(config.endpoint("storage")) as client:
            client.register_dataset(records_dataset())
            time.sleep(0.2)
            assert client.append_records("clicks", records) == [AppendedRecord(i) for i in range(30)]
            process.kill()
        with ExitStack() as stack:
            storage = start_storage(config, stack)
            eventually(lambda: storage.client.dataset("clicks").num_samples == 30)
            assert storage.client.append_records("clicks", records) == [AppendedRecord(i, is_duplicate=True) for i in range(30)]
            assert storage.client.samples_by_key("clicks", np.arange(30)).labels.tolist() == list(range(30))
