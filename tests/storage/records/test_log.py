"""The record log alone: against a dictionary, at every cut and flipped bit, on a full disk, and with several threads."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from modyn.errors import CorruptStateError, UnavailableError
from modyn.storage.formats.record_file import HEAD_BYTES, RECORD_FILE
from modyn.storage.model.dataset_records import AppendedRecord, NewRecord
from modyn.storage.records.log import PreparedRecords, RecordLog, RecordLogLimits
from tests.support.running_storage import flip

SMALL = RecordLogLimits(file_bytes=400, write_bytes=200, held_keys=2)
"""Files, writes and runs of a few records."""


def open_log(folder: Path, limits: RecordLogLimits = SMALL, num_indexed: int = 0) -> RecordLog:
    return RecordLog(folder / "records", folder / "quarantine", num_indexed, limits)


def append(log: RecordLog, *records: NewRecord) -> list[AppendedRecord]:
    return log.append(PreparedRecords.of(records, float_labels=False, now=7))


def numbered(number: int, content: str = "") -> NewRecord:
    return NewRecord(f"k{number}", f"payload {number} {content}".encode(), number, 100 + number)


def held(log: RecordLog) -> list[tuple[bytes, int, int]]:
    """Payload, label and time of each record, as its batches say where they are."""
    found, next_key = [], 0
    for number, file in enumerate(log.durable.files):
        content = file.path.read_bytes()
        for batch in log.durable.batches(number, HEAD_BYTES, file.first_key):
            assert batch.first_key == next_key
            samples = batch.samples(float_labels=False)
            lengths = np.broadcast_to(np.asarray(samples.lengths), len(samples)).tolist()
            columns = samples.offsets.tolist(), lengths, samples.labels.tolist(), np.asarray(samples.timestamps).tolist()
            found += [(content[start : start + size], label, at) for start, size, label, at in zip(*columns, strict=True)]
            next_key = batch.end_key
    assert next_key == log.durable.next_key
    return found


class AgainstDictionary(RuleBasedStateMachine):
    """A log and what must be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.log = open_log(self.folder)
        self.known: dict[str, tuple[int, NewRecord]] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(numbers=st.lists(st.integers(0, 60), max_size=12), content=st.sampled_from(["", "other"]))
    def append(self, numbers: Sequence[int], content: str) -> None:
        records = [numbered(number, content) for number in numbers]
        answers, expected = append(self.log, *records), []
        for record in records:
            is_duplicate = record.key in self.known
            key, first = self.known.setdefault(record.key, (len(self.known), record))
            expected.append(AppendedRecord(key, is_duplicate, differs=first != record))
        assert answers == expected

    @rule()
    def merge(self) -> None:
        self.log.merge_keys()

    @rule()
    def reopen(self) -> None:
        self.log = open_log(self.folder, num_indexed=len(self.known))

    @precondition(lambda self: self.log.durable.files)
    @rule(garbage=st.binary(min_size=1, max_size=90))
    def crash_in_a_write(self, garbage: bytes) -> None:
        with self.log.durable.files[-1].path.open("ab") as file:
            file.write(garbage)
        self.reopen()

    @rule(choice=st.integers(0, 10))
    def lose_a_file_of_keys(self, choice: int) -> None:
        if runs := sorted(self.folder.glob("records/*.keys")):
            runs[choice % len(runs)].unlink()
        self.reopen()

    @invariant()
    def has_each_record_once(self) -> None:
        assert held(self.log) == [(record.payload, record.label, record.timestamp) for _, record in self.known.values()]


@pytest.mark.hypothesis
def test_the_log_is_a_dictionary_in_order_of_append() -> None:
    run_machine(AgainstDictionary, settings=settings(stateful_step_count=25))


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_write_that_was_cut_at_any_byte_counts_whole_or_not_at_all(tmp_path: Path, every: int) -> None:
    """The gate cuts at every fifth byte, and at the ends."""
    log = open_log(tmp_path, RecordLogLimits())
    append(log, numbered(0), numbered(1))
    before = log.durable.end
    append(log, numbered(2), numbered(3))
    whole = log.durable.files[0].path.read_bytes()
    for cut in {*range(before, len(whole), every), len(whole) - 1, len(whole)}:
        folder = tmp_path / str(cut)
        shutil.copytree(tmp_path / "records", folder / "records")
        (folder / "records" / f"00000000{RECORD_FILE}").write_bytes(whole[:cut])
        again = open_log(folder, RecordLogLimits(), num_indexed=2)
        assert again.durable.next_key == (4 if cut == len(whole) else 2)
        answers = append(again, numbered(3), numbered(0), numbered(4))
        assert [answer.is_duplicate for answer in answers] == [cut == len(whole), True, False]
        # The file after it takes over, also after another start.
        reopened = open_log(folder, RecordLogLimits(), num_indexed=2)
        assert [label for _, label, _ in held(reopened)] == ([0, 1, 2, 3, 4] if cut == len(whole) else [0, 1, 3, 4])
        assert all(answer.is_duplicate and not answer.differs for answer in append(reopened, numbered(4), numbered(3)))
        shutil.rmtree(folder)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_found(tmp_path: Path, every: int) -> None:
    """A batch that others follow, or that is a sample already, is not taken for a write that a crash cut. The gate flips a bit of every third
    byte, so in each field of a head."""
    log = open_log(tmp_path, RecordLogLimits())
    append(log, numbered(0))
    end = log.durable.end
    append(log, numbered(1))
    path = log.durable.files[0].path
    whole = path.read_bytes()
    for position in range(0, len(whole), every):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        with pytest.raises(CorruptStateError, match=r"records"):
            open_log(tmp_path, RecordLogLimits(), num_indexed=0 if position < end else 2)
    path.write_bytes(whole)
    assert open_log(tmp_path, RecordLogLimits(), num_indexed=2).durable.next_key == 2


def test_damage_shows_where_samples_are_made(tmp_path: Path) -> None:
    log = open_log(tmp_path, RecordLogLimits())
    append(log, numbered(0))
    append(log, numbered(1))
    path = log.durable.files[0].path
    flip(path, -1)
    with pytest.raises(CorruptStateError, match=r"00000000\.records is damaged: the batch at byte \d+ is not what was written"):
        list(log.durable.batches(0, HEAD_BYTES, 0))


def test_damaged_keys_are_set_aside_and_made_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for first in range(0, 40, 4):
        append(log, *(numbered(i) for i in range(first, first + 4)))
    runs = sorted((tmp_path / "records").glob("*.keys"))
    assert len(runs) > 3
    flip(runs[1], 70)
    log = open_log(tmp_path, num_indexed=40)
    assert all(answer.is_duplicate for answer in append(log, *(numbered(i) for i in range(40))))
    assert runs[1].name in {path.name for path in (tmp_path / "quarantine").iterdir()}


def test_a_lost_file_is_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for i in range(20):
        append(log, numbered(i))
    files = [file.path for file in log.durable.files]
    assert len(files) > 2
    for path in files:
        kept = path.read_bytes()
        path.unlink()
        with pytest.raises(CorruptStateError, match="restore it from a backup"):
            open_log(tmp_path, num_indexed=20)
        path.write_bytes(kept)


@pytest.mark.parametrize("name", ["pwrite", "fdatasync"])
def test_a_full_or_broken_disk_leaves_nothing_visible(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, RecordLogLimits())
    append(log, numbered(0))
    real: Callable[..., int] = getattr(os, name)
    strikes = [True]

    def full(*arguments: object) -> int:
        """Writes a part, or all, and fails."""
        if not strikes:
            return real(*arguments)
        strikes.pop()
        if name == "pwrite":
            descriptor, content, position = arguments
            real(descriptor, bytes(content)[:50], position)  # type: ignore[call-overload]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, name, full)
    with pytest.raises(UnavailableError, match=r"No space left on device.*repeat the call"):
        append(log, numbered(1), numbered(2))
    assert [label for _, label, _ in held(log)] == [0]
    assert append(log, numbered(2), numbered(1), numbered(0)) == [AppendedRecord(1), AppendedRecord(2), AppendedRecord(0, True)]
    again = open_log(tmp_path, RecordLogLimits(), num_indexed=3)
    assert [label for _, label, _ in held(again)] == [label for _, label, _ in held(log)] == [0, 2, 1]


def test_a_disk_that_stays_full_gets_no_file_with_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, RecordLogLimits())
    append(log, numbered(0))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        for i in range(1, 8):
            with pytest.raises(UnavailableError):
                append(log, numbered(i))
    assert len(list((tmp_path / "records").iterdir())) == 2
    assert [answer.sample_key for answer in append(log, numbered(7), numbered(0))] == [1, 0]
    assert [label for _, label, _ in held(open_log(tmp_path, RecordLogLimits(), num_indexed=2))] == [0, 7]


def test_appends_at_once_share_writes_and_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs, real = [0], os.fdatasync

    def counting(descriptor: int) -> None:
        syncs[0] += 1
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", counting)
    log, answers = open_log(tmp_path, RecordLogLimits(held_keys=50)), dict[int, list[AppendedRecord]]()

    def work(worker: int) -> None:
        """Half of the keys are those of all workers."""
        order = np.random.default_rng(worker).permutation(100).tolist()
        answers[worker] = [append(log, numbered(i if i % 2 else 1000 * (worker + 1) + i))[0] for i in order]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    labels = [label for _, label, _ in held(log)]
    assert len(labels) == len(set(labels)) == 50 + 8 * 50
    assert sum(not answer.is_duplicate for found in answers.values() for answer in found) == len(labels)
    for worker, found in answers.items():
        order = np.random.default_rng(worker).permutation(100).tolist()
        assert [labels[answer.sample_key] for answer in found] == [i if i % 2 else 1000 * (worker + 1) + i for i in order]
    assert syncs[0] <= len(labels)


def test_a_closed_log_refuses(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, numbered(0))
    log.close(UnavailableError("it stops"))
    with pytest.raises(UnavailableError, match="it stops"):
        append(log, numbered(1))
    assert [answer.is_duplicate for answer in append(open_log(tmp_path), numbered(0), numbered(1))] == [True, False]


def test_a_time_that_is_not_given_is_not_a_difference(tmp_path: Path) -> None:
    log, record = open_log(tmp_path), NewRecord("a", b"x", 1)
    log.append(PreparedRecords.of([record], float_labels=False, now=7))
    (again,) = log.append(PreparedRecords.of([record], float_labels=False, now=8))
    (other,) = log.append(PreparedRecords.of([NewRecord("a", b"x", 2)], float_labels=False, now=8))
    assert (again.is_duplicate, again.differs, other.differs) == (True, False, True)
    assert held(log) == [(b"x", 1, 7)]
