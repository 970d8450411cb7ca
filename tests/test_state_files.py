"""A flipped bit or a cut in any kind of file that is read back: it is found, and the file is named, or it changes nothing that is read.

KINDS is the one list of all kinds. A kind of columnar file that is not in it fails the last test.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from structlog.testing import capture_logs

import modyn
from modyn.cache.plan.measured_rates import MeasuredRates, read_rates, write_rates
from modyn.cache.plan.profile import read_profile, write_profile
from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.errors import CorruptStateError, ModynError, UnavailableError
from modyn.evaluator.outputs import read_rows, write_rows
from modyn.evaluator.records import Rows
from modyn.model_storage.client import ModelHeader
from modyn.model_storage.formats import MODEL_FORMATS
from modyn.model_storage.store import ModelStore
from modyn.models.weights import save_weights
from modyn.records import FeedbackHeader, FeedbackRows, KeysAndWeights, RunId, SampleBatch, TriggerSetInfo
from modyn.rpc.logs import get_logger
from modyn.selector.sample_log import GROUP, SampleLog
from modyn.selector.trigger_set import TriggerSet, write_trigger_set
from modyn.selector.window import FeedbackFiles, Selection, StateFiles
from modyn.serving.observations.join import JoinEvent, JoinEventKind, RequestFeatures
from modyn.serving.observations.waiting_log import WaitingLog, encode, read_events
from modyn.state_folders import check_state, claim_state
from modyn.storage.formats.record_file import HEAD_BYTES, check_records
from modyn.storage.index.late_labels import LATE_LABELS, LateLabels, append_late_labels, read_late_labels
from modyn.storage.index.segment_file import Segment, SegmentColumns, write_segment
from modyn.storage.index.tombstones import Tombstones
from modyn.storage.ingest.publisher import Publisher
from modyn.storage.model.dataset_records import NewRecord
from modyn.storage.model.file_table import FileRow, FileTable
from modyn.storage.read.publication import Publication, map_names, map_stamps
from modyn.storage.records.key_index import KeyRun
from modyn.storage.records.log import PreparedRecords, RecordLog, RecordLogLimits
from modyn.trainer_server.disk.chosen_set import ChosenKeys, ChosenRows, find_chosen_set, write_chosen_set
from modyn.trainer_server.disk.files import find_finished, keep_finished, record_path
from modyn.trainer_server.disk.row_log import RowLog
from modyn.trainer_server.disk.state_file import read_state_file, write_state_file
from modyn.trainer_server.loop.checkpoint import VERSION, load_checkpoint
from modyn.trainer_server.scoring.irreducible import IrreducibleLosses, find_losses, write_losses
from modyn.trainer_server.scoring.sample_scores import feedback_rows, read_feedback
from modyn.trainer_server.scoring.scoring_pass import ScoredRows
from tests.support.cache_profiles import PROFILE
from tests.support.running_storage import binary_dataset, row_of


@dataclass(frozen=True)
class Room:
    """Where a file is made. config: of services whose state stands in PostgreSQL as well. stack: closes what the reader needs."""

    folder: Path
    config: Callable[[], SystemConfig]
    stack: ExitStack


File = tuple[Path, Callable[[], object]]
"""A valid file that the code wrote, and how the code reads it: returns something that can be compared."""


# Storage


def segment(room: Room) -> File:
    random, path = np.random.default_rng(3), room.folder / "a.segment"
    numbers = [random.integers(0, top, 60) for top in (9, 10**6, 200, 10**4, 5000)]
    write_segment(path, 70, SegmentColumns(numbers[0].astype(np.uint32), *numbers[1:]))

    def read() -> object:
        opened = Segment.open(path)
        opened.verify()
        columns, in_time = opened.columns(), opened.samples_by_rank(0, 60)
        return [getattr(columns, name).tolist() for name in SegmentColumns.__slots__], in_time.keys.tolist(), opened.info

    return path, read


def deletions(room: Room) -> File:
    path = room.folder / "deletions"
    for key in (1, 70_000, 5):
        Tombstones.open(path).add(np.array([key]))
    return path, lambda: Tombstones.open(path).keys.between(0, 2**41).tolist()


def rows_of_labels(path: Path) -> object:
    labels = read_late_labels(path)
    return labels.rows(0, len(labels)).tolist()


def late_labels(room: Room) -> File:
    path, labels = room.folder / LATE_LABELS, LateLabels()
    for keys in ([5, 2], [900], [7, 8, 1]):
        labels = append_late_labels(path, labels, np.array(keys), np.array(keys) % 3, at=1_000)
    return path, partial(rows_of_labels, path)


def published(pattern: str, room: Room) -> File:
    """A file of a publication of five data files, two of which have changed since the first one."""
    files = FileTable(FileRow(i, f"{i}.bin", 100 + i, 5 * i, 100, 10, "abc") for i in range(5))
    row, publisher = row_of(binary_dataset(room.folder / "data")), Publisher(room.folder)
    publisher.publish(row, ["a.segment"], files)
    files.change([FileRow(i, f"{i}.bin", 200, 7, 100, 10, "abc") for i in (1, 3)])
    publisher.publish(row, ["a.segment"], files, [1, 3], num_deleted=4)
    (path,) = room.folder.glob(pattern)
    (block,) = Publication.read(room.folder).names
    readers: dict[str, Callable[[], object]] = {
        ".names": lambda: [
            getattr(names, name).tolist() for names in [map_names(room.folder, block, True)] for name in names.__slots__
        ],
        ".stamps": lambda: map_stamps(path, True).tolist(),
        ".json": lambda: Publication.read(room.folder),
    }
    return path, readers[path.suffix]


def records(room: Room) -> File:
    """A file of records, all of which are indexed."""
    log = RecordLog(room.folder / "log", room.folder / "quarantine", 0)
    for i in range(3):
        log.append(PreparedRecords.of([NewRecord(f"{i} {j}", b"some bytes", j, 5) for j in range(4)], float_labels=False, now=7))
    (file,), end = log.durable.files, log.durable.end

    def read() -> object:
        check_records(str(file.path), end)
        again = RecordLog(room.folder / "log", room.folder / "quarantine", 12)
        again.close(UnavailableError("it was read"))
        return [batch.entries.tobytes() for batch in again.durable.batches(0, HEAD_BYTES, 0)]

    return file.path, read


def idempotency_keys(room: Room) -> File:
    log = RecordLog(room.folder / "log", room.folder / "quarantine", 0, RecordLogLimits(held_keys=20))
    log.append(PreparedRecords.of([NewRecord(str(i), b"", i, 5) for i in range(20)], float_labels=False, now=7))
    (path,) = (room.folder / "log").glob("*.keys")

    def read() -> object:
        run = KeyRun.open(path)
        return [column.tolist() for column in (run.high, run.low, run.keys, run.contents)]

    return path, read


# Serving


def waiting_observations(pattern: str, room: Room) -> File:
    """The base of what waits, or a file of events that another one follows."""

    def event(number: int) -> JoinEvent:
        inputs = {"x": np.full((1, 3), number, np.float32), "site": np.array([[b"a.org"]], object)}
        return JoinEvent(JoinEventKind.PREDICTED, f"r{number}", 5.0, None, RequestFeatures(inputs, "m", "7"))

    log = WaitingLog(room.folder / "waiting")
    assert list(log.recover()) == []
    log.append(encode(event(1)))
    log.compact(log.rotate(), [event(number) for number in range(4)])
    log.append(b"".join(encode(event(number)) for number in range(4, 8)))
    log.rotate()
    log.close()
    (path,) = (room.folder / "waiting").glob(pattern)
    size = path.stat().st_size

    def read() -> object:
        number = int(path.stem)
        return [encode(each) for each in read_events(path, number, None if path.suffix == ".base" else size)]

    return path, read


# Selector

POSITIONS = np.arange(GROUP + 50)
STREAM = SampleBatch(POSITIONS**2, POSITIONS, POSITIONS % 10)
"""Keys that are not a progression, so that a trigger set of ranges reads the log."""


def log_of(folder: Path) -> SampleLog:
    log = SampleLog(RunId("r"), folder / "r.1")
    log.create()
    log.append(0, STREAM)
    return log


def sample_log(room: Room) -> File:
    log = log_of(room.folder)

    def read() -> object:
        found = log.read(0, log.state().num_samples)
        return found.keys.tolist(), found.timestamps.tolist(), found.labels.tolist()

    return log.path, read


def trigger_set(ranges: list[tuple[int, int]] | None, room: Room) -> File:
    log, path = log_of(room.folder), room.folder / "0.set"
    parts = iter([KeysAndWeights(STREAM.keys, np.ones(len(STREAM), np.float32))])
    write_trigger_set(path, 1000, Selection(len(STREAM), parts, ranges))

    def read() -> object:
        opened = TriggerSet(path, log)
        partitions = range(-(-opened.header.num_keys // opened.header.partition_size))
        whole = KeysAndWeights.concatenate([chunk for partition in partitions for chunk in opened.partition(partition, 300)])
        return whole.keys.tolist(), whole.weights.tolist(), opened.header

    return path, read


def policy_state(room: Room) -> File:
    files = StateFiles(room.folder, 0)
    files.write("buffer", {"keys": POSITIONS[:40] ** 2, "losses": np.linspace(0, 1, 40)}, {"seen": 77})

    def read() -> object:
        opened = StateFiles(room.folder, 1, files.references()).open("buffer")
        assert opened is not None
        return opened.meta, opened.column("keys").tolist(), opened.column("losses").tolist()

    return room.folder / "000000.buffer.state", read


def feedback(room: Room) -> File:
    files, keys = FeedbackFiles(room.folder / "feedback", RunId("r")), np.arange(50)
    header = FeedbackHeader(RunId("r"), 3, "abc", 5, len(keys), {"loss": 1, "gradient_2": 2})
    scores = {"loss": keys[:, None].astype(np.float32), "gradient_2": np.ones((50, 2), np.float32)}
    files.put(header, [(0, FeedbackRows(keys**2, np.zeros(50, np.int32), scores))])

    def read() -> object:
        found = files.find(3)
        assert found is not None
        (rows,) = found.chunks()
        return found.header, rows.keys.tolist(), rows.epochs.tolist(), {n: v.tolist() for n, v in rows.scores.items()}

    return room.folder / "feedback" / "000003.feedback", read


# Evaluator


def kept_outputs(room: Room) -> File:
    path, keys = room.folder / "a.outputs", np.arange(20)
    write_rows(path, Rows(keys, keys * 10, keys % 2, np.linspace(0, 1, 40, dtype=np.float32).reshape(20, 2)))
    return path, lambda: [column.tolist() for column in read_rows(path)]


# Trainer

IDENTITY = {"run": "run-1", "trigger": 3}
STATES = {"default": {"state": {0: {"momentum": torch.arange(6.0)}}, "param_groups": [{"lr": 0.1}]}}


def named_in_logs(read: Callable[[], object]) -> object:
    """What `read` returns; None, with which the training is made again, as the error that was logged."""
    with capture_logs() as lines:
        found = read()
    if found is None:
        raise CorruptStateError(str(lines))
    return found


def checkpoint(room: Room) -> File:
    path = room.folder / "run-1.3.checkpoint"
    state = {
        "version": VERSION,
        "identity": IDENTITY,
        "seed": 5,
        "progress": {},
        "order": None,
        "model": {"w": torch.arange(9.0)},
    }
    write_state_file(path, state)
    return path, lambda: str(named_in_logs(lambda: load_checkpoint(path, IDENTITY)))


def test_a_state_file_that_unpacks_to_more_than_it_has_is_refused(tmp_path: Path) -> None:
    """Another run can store gigabytes as a few kilobytes. They are refused before they take memory."""
    plain, packed, path = io.BytesIO(), io.BytesIO(), tmp_path / "run-1.3.pt"
    torch.save({"w": torch.zeros(1 << 20)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
    content = packed.getvalue()
    path.write_bytes(content + struct.pack("<8sIQ", b"MODYNTST", zlib.crc32(content), len(content)))
    with pytest.raises(CorruptStateError, match="unpacks to more bytes than it has"):
        read_state_file(path)


def optimizer_states(room: Room) -> File:
    path = room.folder / "run-1.3.pt"
    write_state_file(path, {"version": 1, "optimizers": STATES})
    return path, lambda: str(read_state_file(path))


def finished_training(suffix: str, room: Room) -> File:
    """suffix: of the file to damage, the weights or their record."""
    weights, result = room.folder / "finished" / "run-1.3.safetensors", {"loss": 0.53125, "batches": 17, "note": float("nan")}
    keep_finished(weights, partial(save_weights, torch.nn.Linear(3, 2)), result, IDENTITY)
    path = {path.suffix: path for path in (weights, record_path(weights))}[suffix]
    return path, lambda: (str(named_in_logs(lambda: find_finished(weights, IDENTITY))), str(load_file(weights)))


def irreducible(room: Room) -> File:
    path, keys = room.folder / "irreducible", np.arange(30) ** 2
    write_losses(path, keys, np.linspace(0, 1, 30, dtype=np.float32), IDENTITY)

    def read() -> object:
        found = named_in_logs(lambda: find_losses(path, IDENTITY))
        assert isinstance(found, IrreducibleLosses)
        return found(keys).tolist()

    return path, read


def chosen_samples(room: Room) -> File:
    path, keys = room.folder / "0.chosen", np.arange(30) ** 2
    trigger_set = TriggerSetInfo(RunId("run-1"), 3, 100, 40, keys_checksum="abc")
    chosen = KeysAndWeights(keys, np.linspace(0, 1, 30, dtype=np.float32))
    write_chosen_set(path, trigger_set, ChosenRows(chosen, None), {"identity": IDENTITY, "notes": {"chosen": 30}})

    def read() -> object:
        found = named_in_logs(lambda: find_chosen_set(path, trigger_set, IDENTITY))
        whole = ChosenKeys(path).keys(RunId("run-1"), 3, 0)
        return str(found), whole.keys.tolist(), whole.weights.tolist()

    return path, read


def scores_of_a_pass(room: Room) -> File:
    path, keys, part = room.folder / "0.scores", np.arange(40), np.linspace(0, 1, 40, dtype=np.float32)

    def score() -> None:
        log = RowLog(path, 12345)
        log.open()
        log.append(ScoredRows(keys**2, keys % 3, part, part, np.stack([part, part], 1)).pack())
        log.commit(5)

    def scored() -> object:
        log = RowLog(path, 12345)
        log.open()
        return log.read(f"V{log.row_bytes}").tobytes() if log.num_rows else None

    def read() -> object:
        if not path.stat().st_size:
            score()  # as one that was only begun, it is scored without a word
        return named_in_logs(scored)

    score()
    return path, read


def scores_of_a_training(room: Room) -> File:
    path, widths = room.folder / "run-1.3.scores", {"loss": 1, "gradient_2": 2}
    log = RowLog(path)
    log.begin()
    log.append(feedback_rows(np.arange(40), np.zeros(40, np.int64), np.linspace(0, 1, 120, dtype=np.float32).reshape(40, 3)))
    log.commit()

    def read() -> object:
        resumed = RowLog(path)
        resumed.resume(log.num_rows, log.crc32, log.row_bytes)
        return [(rows.keys.tolist(), {n: v.tolist() for n, v in rows.scores.items()}) for rows in read_feedback(resumed, widths)]

    return path, read


# Model storage


def model_store(room: Room) -> tuple[Path, Callable[[], ModelStore]]:
    """The folder of model storage, and what opens it, as at its start."""
    config = room.config()
    database = open_database(config, "model_storage", "modyn.model_storage.migrations")
    room.stack.callback(database.close)
    folder = config.service_dir("model_storage")
    return folder, lambda: ModelStore(database, folder, get_logger("test"))


def model(strategy: Mapping[str, Any], room: Room) -> File:
    folder, opened = model_store(room)
    store, put = opened(), room.folder / "put"
    save_file({"layer.weight": np.linspace(0, 1, 30, dtype=np.float32), "steps": np.array(7)}, put)
    store.publish(ModelHeader(RunId("run-1"), 0, "MLP", {}, {"full_model_strategy": dict(strategy)}), put)
    (stored,) = store.list(None)
    (path,) = (folder / "models").iterdir()

    def read() -> object:
        with store.fetch(stored.version.model_id) as (_, weights):
            return weights.read_bytes()

    return path, read


def difference(options: Mapping[str, Any], room: Room) -> File:
    folder, opened = model_store(room)
    store, put = opened(), room.folder / "put"
    section = {"incremental_model_strategy": {"name": "WeightsDifference", **options}}
    for number in range(2):
        save_file({"layer.weight": np.linspace(0, 1 + number, 30, dtype=np.float32), "steps": np.array(number)}, put)
        before = set((folder / "models").iterdir())
        version = store.publish(ModelHeader(RunId("run-1"), number, "MLP", {}, section), put).version
    assert version.base_id is not None
    [path] = set((folder / "models").iterdir()) - before

    def read() -> object:
        with store.fetch(version.model_id) as (_, weights):
            return weights.read_bytes()

    return path, read


def store_id(room: Room) -> File:
    folder, opened = model_store(room)
    opened()
    path = folder / "store_id"

    def read() -> object:
        opened()
        return path.read_bytes()  # one that was emptied is written again

    return path, read


# All services


def state_version(room: Room) -> File:
    claim_state(room.folder / "service")
    (room.folder / "service" / "datasets").mkdir()
    return room.folder / "service" / "state_version", lambda: check_state(room.folder / "service")


STRATEGIES: list[dict[str, Any]] = [
    {"name": name, "zip": algorithm is not None, **({"zip_algorithm": algorithm} if algorithm else {})}
    for name in MODEL_FORMATS.names()
    for algorithm in (None, "ZIP_DEFLATED", "zstd")
]


def cache_profile(room: Room) -> File:
    path = room.folder / "photos.json"
    write_profile(path, PROFILE)
    return path, lambda: read_profile(path)


def measured_rates(room: Room) -> File:
    path = room.folder / "photos.rates"
    write_rates(path, MeasuredRates(PROFILE.measured_at, 100_000.0, 15e6, 0.003))
    return path, lambda: read_rates(path)


KINDS: dict[str, Callable[[Room], File]] = {
    "segment": segment,
    "late labels": late_labels,
    "deletions": deletions,
    "names of data files": partial(published, "*.names"),
    "stamps of data files": partial(published, "*.stamps"),
    "records": records,
    "idempotency keys": idempotency_keys,
    "publication": partial(published, "index.json"),
    "profile for a cache": cache_profile,
    "rates that trainings measured": measured_rates,
    "waiting observations": partial(waiting_observations, "*.base"),
    "events of waiting observations": partial(waiting_observations, "00000002.events"),
    "sample log": sample_log,
    "trigger set": partial(trigger_set, None),
    "trigger set of ranges": partial(trigger_set, [(0, len(STREAM))]),
    "state of a policy": policy_state,
    "feedback": feedback,
    "kept outputs": kept_outputs,
    "checkpoint": checkpoint,
    "optimizer states": optimizer_states,
    "irreducible losses": irreducible,
    "chosen samples": chosen_samples,
    "scores of a pass": scores_of_a_pass,
    "scores of a training": scores_of_a_training,
    "finished training": partial(finished_training, ".json"),
    "weights of a finished training": partial(finished_training, ".safetensors"),
    **{f"model {'-'.join(map(str, strategy.values()))}": partial(model, strategy) for strategy in STRATEGIES},
    "model as difference": partial(difference, {}),
    "model as difference in runs": partial(difference, {"zip": False, "config": {"operator": "xor", "rle": True}}),
    "store id": store_id,
    "state version": state_version,
}
"""Functions that write a file of each kind."""


def damages(content: bytes) -> Iterator[tuple[str, bytes]]:
    """`content` with one flipped bit, cut, or with a tail, at places in all of its regions; and what was done."""
    size = len(content)
    places = sorted({*range(min(size, 40)), *range(0, size, max(1, size // 80)), *range(max(0, size - 24), size)})
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        yield f"bit {place % 8} of byte {place} of {size}", bytes(flipped)
    for length in (*places[::8], size - 1):
        yield f"cut to {length} bytes of {size}", content[:length]
    yield "a tail", content + b"\0"


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow, id="all")])
@pytest.mark.parametrize("name", KINDS)
def test_damage_is_found_and_the_file_named_or_changes_nothing(
    name: str, every: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Args: every: one of `every` damages is tried."""
    with ExitStack() as stack:
        path, read = KINDS[name](Room(tmp_path, lambda: request.getfixturevalue("system_config"), stack))
        expected, content, num_found = read(), path.read_bytes(), 0
        for number, (done, damaged) in enumerate(islice(damages(content), 0, None, every), 1):
            # A new file with a time of its own: what is verified once a file is verified again, and no open map is cut.
            path.unlink()
            path.write_bytes(damaged)
            os.utime(path, ns=(number, number))
            try:
                wrong = "" if read() == expected else "other data was read"
            except ModynError as error:
                num_found, wrong = num_found + 1, "" if str(path) in error.message else f"{path} is not named: {error.message}"
            assert not wrong, f"{done}: {wrong}"
        assert num_found > 0


def test_every_kind_of_columnar_file_is_tested(tmp_path: Path, make_config: Callable[[], SystemConfig]) -> None:
    declared = set[bytes]()
    for path in Path(modyn.__file__).parent.rglob("*.py"):
        declared |= {magic.encode() for magic in re.findall(r'(?m)^\w.*FileKind\(\s*b"(\w+)"', path.read_text())}
    made = set[bytes]()
    for number, (name, make) in enumerate(KINDS.items()):
        if not name.startswith(("model", "store")):  # which are not columnar, and need a database
            (folder := tmp_path / str(number)).mkdir()
            with ExitStack() as stack:
                made.add(make(Room(folder, make_config, stack))[0].read_bytes()[:8])
    assert sorted(declared - made) == [], "add what makes such a file to KINDS"
