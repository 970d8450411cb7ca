"""A record log after a power loss at any moment: what was answered is there, in its order, and nothing is there twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest

from modyn.errors import UnavailableError
from modyn.storage.model.dataset_records import NewRecord
from modyn.storage.records.log import PreparedRecords, RecordLog, RecordLogLimits
from tests.support.disk_recorder import recorded_disk

LIMITS = RecordLogLimits(file_bytes=400, write_bytes=200, held_keys=4)


def open_log(folder: Path, num_indexed: int = 0) -> RecordLog:
    return RecordLog(folder / "records", folder / "quarantine", num_indexed, LIMITS)


def append(log: RecordLog, numbers: range) -> list[int]:
    """The positions in `numbers` of those that were there."""
    records = [NewRecord(f"k{i}", b"payload %d" % i, i, 5) for i in numbers]
    answers = log.append(PreparedRecords.of(records, float_labels=False, now=7))
    assert [answer.sample_key for answer in answers] == list(numbers)
    return [i for i, answer in zip(numbers, answers, strict=True) if answer.is_duplicate]


def check(folder: Path, num_answered: int, num_sent: int) -> None:
    log = open_log(folder, num_answered)
    held = log.durable.next_key
    assert num_answered <= held <= num_sent
    assert append(log, range(num_sent + 3)) == list(range(held))
    labels = [
        label
        for number, file in enumerate(log.durable.files)
        for batch in log.durable.batches(number, 64, file.first_key)
        for label in batch.entries["label"].tolist()
    ]
    assert labels == list(range(num_sent + 3))
    log.close(UnavailableError("the test ends"))


def test_what_was_answered_is_there_after_a_power_loss(tmp_path: Path) -> None:
    with recorded_disk(tmp_path) as disk:
        log = open_log(tmp_path)
        for first in range(0, 21, 3):
            append(log, range(first, first + 3))
            disk.note(first + 3)
        log.close(UnavailableError("the test ends"))
    num_losses = 0
    for loss in disk.losses():
        with loss.restored() as folder:
            answered = loss.notes[-1] if loss.notes else 0
            check(folder, answered, answered + 3)
            num_losses += 1
    assert num_losses > 30


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20))])
def test_kills_and_power_losses_one_after_the_other_lose_nothing(tmp_path: Path, seed: int) -> None:
    """A process is killed at an append or a merge of keys; the next one answers for what it finds, and then the power is lost."""
    random, num_answered = Random(seed), 0
    for _ in range(40):
        with recorded_disk(tmp_path) as disk:
            sent = range(num_answered, num_answered + 5)

            def begin(sent: range) -> None:
                log = open_log(tmp_path, sent.start)
                append(log, sent)
                log.merge_keys()

            disk.kill_at(random.randrange(24), partial(begin, sent))
            log = open_log(tmp_path, num_answered)
            append(log, range(sent.stop - 2))
            num_answered = sent.stop - 2
            disk.note(num_answered)
            log.close(UnavailableError("the power goes"))
            loss = disk.random_loss(random)
        answered = loss.notes[-1] if loss.notes else sent.start
        with loss.restored() as folder:
            check(folder, answered, sent.stop)
