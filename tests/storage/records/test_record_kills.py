"""`kill -9` of a storage service to which records are appended, at random moments: each record counts exactly once."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.storage.client import AppendedRecord, NewRecord, StorageClient
from modyn.testing.waiting import PATIENCE_S, eventually
from tests.support.processes import ServiceProcess
from tests.support.running_storage import records_dataset, running_storage


@pytest.mark.slow
def test_each_record_counts_once_for_any_kill(make_config: Callable[..., SystemConfig], tmp_path: Path) -> None:
    """Several clients append, each record twice at least, while the service is killed again and again; a stream follows the new samples."""
    random_, name, num_workers, num_records = random.Random(11), "clicks", 4, 400
    with tempfile.TemporaryDirectory(prefix="modyn-st-") as folder:
        config = make_config(state_dir=Path(folder), storage={"records": {"seal_s": 0.05}})
        answers: dict[int, set[int]] = {}
        failed: list[BaseException] = []
        arrived: list[int] = []
        answered: list[int] = []

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
                        answered.append(first)
                        time.sleep(own.uniform(0.0, 0.02))
            except BaseException as error:  # noqa: BLE001  (shown below)
                failed.append(error)

        with (
            ServiceProcess("storage", config, tmp_path) as process,
            # Between two kills storage may be up for too short a time to send an item.
            StorageClient(config.endpoint("storage"), retry_s=10 * PATIENCE_S, wait_s=PATIENCE_S) as client,
        ):
            client.register_dataset(records_dataset(name))
            threads = [threading.Thread(target=append, args=(worker,)) for worker in range(num_workers)]
            stream = client.new_samples(name, 0, 100)

            def follow() -> None:
                for batch in stream:
                    arrived.extend(batch.labels.tolist())

            def has_progressed(since: int) -> bool:
                return len(answered) > since or not any(thread.is_alive() for thread in threads)

            follower = threading.Thread(target=follow)
            for thread in [*threads, follower]:
                thread.start()
            num_kills = 0
            while any(thread.is_alive() for thread in threads):
                # A slow machine may need longer than the random pause for one call, and would never get further.
                eventually(partial(has_progressed, len(answered)))
                time.sleep(random_.uniform(0.0, 0.6))
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
    """A kill between log and segment: the records were answered, and no sample was made of them."""
    with tempfile.TemporaryDirectory(prefix="modyn-st-") as folder:
        config = make_config(state_dir=Path(folder), storage={"records": {"seal_s": 3_600}})
        records = [NewRecord(f"k{i}", b"%d" % i, i) for i in range(30)]
        with ServiceProcess("storage", config, tmp_path) as process, StorageClient(config.endpoint("storage")) as client:
            client.register_dataset(records_dataset())
            time.sleep(0.2)
            assert client.append_records("clicks", records) == [AppendedRecord(i) for i in range(30)]
            process.kill()
        with running_storage(config) as storage:
            eventually(lambda: storage.client.dataset("clicks").num_samples == 30)
            assert storage.client.append_records("clicks", records) == [AppendedRecord(i, is_duplicate=True) for i in range(30)]
            assert storage.client.samples_by_key("clicks", np.arange(30)).labels.tolist() == list(range(30))
