"""The write-ahead log of the label join survives restarts, a kill at any byte, and a power loss at any time."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from modyn.errors import AlreadyExistsError, ConflictError, CorruptStateError, InvalidArgumentError, UnavailableError
from modyn.serving.messages.infer import InferAnswer, InferRequest
from modyn.serving.messages.signature import Tensors
from modyn.serving.observations.intake import ObservationIntake
from modyn.serving.observations.join import (
    Appended,
    JoinEvent,
    JoinEventKind,
    JoinLimits,
    ObservationJoin,
    ObservationRecord,
    RequestFeatures,
)
from modyn.serving.observations.router import ObservationRouter
from modyn.serving.observations.waiting_log import WaitingLog, encode
from modyn.testing.fake_observation_log import FakeObservationLog
from modyn.testing.waiting import PATIENCE_S
from tests.serving.messages.test_json_tensors import tensors
from tests.support.disk_recorder import recorded_disk

KEYS = st.sampled_from("abcdef")
STEP = st.one_of(
    st.tuples(st.sampled_from(("predict", "label", "complete")), KEYS, st.integers(0, 1)),
    st.tuples(st.sampled_from(("flush", "restart", "compact", "away", "back")), st.just(""), st.just(0)),
)


def any_inputs(model: str, inputs: Tensors) -> None:
    """Takes all."""


def features(number: float) -> RequestFeatures:
    return RequestFeatures({"x": np.full((1, 2), number, np.float32)}, "m", "3")


def post_to(intake: ObservationIntake, observation: dict[str, object]) -> dict[str, int]:
    return ObservationRouter({"m": intake}).post(json.dumps({"observations": [observation]}).encode(), any_inputs)


class Restarted:
    """An intake over the files of a folder."""

    def __init__(self, folder: Path, log: FakeObservationLog, limits: JoinLimits | None = None) -> None:
        self.folder, self.log, self.limits, self.now = folder, log, limits, 100.0
        self.start()

    def start(self) -> None:
        self.waiting = WaitingLog(self.folder)
        self.intake = ObservationIntake("m", self.log, self.limits, lambda: self.now, self.waiting)

    def kill(self) -> None:
        """End without the round that an orderly end has."""
        self.waiting.close()
        self.start()

    def predict(self, key: str, number: float) -> None:
        given = features(number)
        self.intake.add_prediction(InferRequest("m", given.inputs), InferAnswer("m", "3", key, {}))

    def post(self, observation: dict[str, object]) -> dict[str, int]:
        return post_to(self.intake, observation)

    def compact(self) -> None:
        number = self.waiting.rotate()
        self.intake._take_predictions()
        self.waiting.compact(number, self.intake.join.events())


@given(st.lists(STEP, max_size=40))
def test_restarts_change_nothing_of_what_becomes_of_observations(steps: list[tuple[str, str, int]]) -> None:
    """The same steps without a restart are the oracle."""
    with TemporaryDirectory() as folder:
        log, other = FakeObservationLog(), FakeObservationLog()
        made, oracle = Restarted(Path(folder), log), ObservationIntake("m", other, clock=lambda: 100.0)
        for kind, key, number in steps:
            answers: list[str] = []
            for each in (made.intake, oracle):
                try:
                    if kind == "predict":
                        each.add_prediction(InferRequest("m", features(number).inputs), InferAnswer("m", "3", key, {}))
                    elif kind == "label":
                        answers.append(str(post_to(each, {"request_id": key, "label": number})))
                    elif kind == "complete":
                        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [number, number]}
                        answers.append(str(post_to(each, {"key": key, "label": number, "inputs": [tensor]})))
                    elif kind == "flush":
                        each.flush()
                except (AlreadyExistsError, ConflictError, UnavailableError) as error:
                    answers.append(error.message)
            assert len(set(answers)) <= 1
            if kind == "restart":
                made.kill()
            elif kind == "compact":
                made.compact()
            log.is_away = other.is_away = kind == "away" or (log.is_away and kind != "back")
        made.kill()
        log.is_away = other.is_away = False
        for each in (made.intake, oracle):
            each.flush()
        assert list(map(encode, made.intake.join.events())) == list(map(encode, oracle.join.events()))
        assert {key: (r.label, r.observed_at) for key, r in log.records.items()} == {
            key: (r.label, r.observed_at) for key, r in other.records.items()
        }
        made.waiting.close()


@given(
    st.lists(
        st.builds(
            JoinEvent,
            st.just(JoinEventKind.COMPLETE),
            st.text(max_size=8),
            st.floats(0, 2e9),
            st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)),
            st.builds(
                RequestFeatures, st.dictionaries(st.text(max_size=4), tensors(), max_size=2), st.text(max_size=4), st.just("1")
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_events_are_read_as_they_were_written_up_to_any_cut(events: list[JoinEvent]) -> None:
    with TemporaryDirectory() as folder:
        log = WaitingLog(Path(folder))
        assert list(log.recover()) == []
        log.append(b"".join(map(encode, events)))
        log.close()
        path = Path(folder) / "00000001.events"
        content, frames = path.read_bytes(), list(map(encode, events))
        head = len(content) - sum(map(len, frames))
        for cut in {len(content), len(content) - 1, head + len(frames[0]), head + len(frames[0]) // 2, head}:
            path.write_bytes(content[:cut])
            for later in Path(folder).glob("0000000[2-9].events"):
                later.unlink()
            again = WaitingLog(Path(folder))
            whole = [frame for number, frame in enumerate(frames) if head + sum(map(len, frames[: number + 1])) <= cut]
            assert list(map(encode, again.recover())) == whole
            again.close()


def test_what_is_acknowledged_survives_every_power_loss(tmp_path: Path) -> None:
    folder = tmp_path / "waiting"
    with recorded_disk(tmp_path) as disk:
        made = Restarted(folder, FakeObservationLog())
        for number in range(4):
            made.predict(f"p{number}", number)
            made.post({"request_id": f"l{number}", "label": number})
            disk.note(number)
            if number == 1:
                made.compact()
                made.predict("later", 9.0)
            if number == 2:
                made.kill()
        made.waiting.close()
    for loss in disk.losses():
        with loss.restored():
            again = Restarted(folder, FakeObservationLog())
            found = {event.key for event in again.intake.join.events() if event.kind is JoinEventKind.LABELLED}
            assert {f"l{number}" for number in loss.notes} <= found
            again.waiting.close()


def test_a_prediction_of_before_the_kill_gets_its_label_after_it(tmp_path: Path) -> None:
    log = FakeObservationLog()
    made = Restarted(tmp_path, log)
    made.predict("a", 7.0)
    made.kill()
    made.post({"request_id": "a", "label": 1})
    made.kill()
    with pytest.raises(AlreadyExistsError, match="observation 'a' came before with the label 1, now with 2"):
        made.post({"request_id": "a", "label": 2})
    (record,) = log.records.values()
    assert (record.features.inputs["x"].tolist(), record.features.version, record.label) == ([[7.0, 7.0]], "3", 1)
    made.waiting.close()


def test_an_expired_label_does_not_come_back_by_a_restart(tmp_path: Path) -> None:
    made = Restarted(tmp_path, FakeObservationLog(), JoinLimits(keep_s=10.0))
    made.post({"request_id": "a", "label": 1})
    made.now += 20.0
    made.intake.flush()
    made.predict("a", 7.0)
    made.kill()
    made.intake.flush()
    assert made.log.records == {}
    assert made.post({"request_id": "a", "label": 0})["stored"] == 1
    made.waiting.close()


@pytest.mark.parametrize("compact", [False, True])
def test_an_id_that_was_used_again_and_what_was_refused_stay_so_after_a_restart(tmp_path: Path, compact: bool) -> None:
    log = FakeObservationLog()
    made = Restarted(tmp_path, log)
    for key in ("waits", "stored", "refused"):
        made.predict(key, 1.0)
    log.refused = {"refused": "too large"}
    made.post({"request_id": "stored", "label": 1})
    with pytest.raises(InvalidArgumentError, match="too large"):
        made.post({"request_id": "refused", "label": 1})
    made.predict("waits", 2.0)
    if compact:
        made.compact()
    made.kill()
    assert made.intake.join.ready() == []
    made.predict("stored", 2.0)
    for key in ("waits", "stored"):
        with pytest.raises(ConflictError, match=f"request id '{key}' was used again for other inputs"):
            made.post({"request_id": key, "label": 0})
    assert made.post({"request_id": "stored", "label": 1})["repeated"] == 1, "the label that is stored, sent again"
    assert made.post({"request_id": "refused", "label": 1})["waiting"] == 1
    made.waiting.close()


@pytest.mark.parametrize("compact", [False, True])
def test_an_id_that_is_stored_with_other_inputs_stays_a_conflict_after_a_restart(tmp_path: Path, compact: bool) -> None:
    """The log has it of another run."""
    log = FakeObservationLog()
    log.append([ObservationRecord("a", features(1.0), 1, 50.0)])
    made = Restarted(tmp_path, log)
    made.predict("a", 2.0)
    with pytest.raises(ConflictError, match="observation 'a' is stored with other inputs"):
        made.post({"request_id": "a", "label": 1})
    if compact:
        made.compact()
    made.kill()
    with pytest.raises(ConflictError, match="request id 'a' was used again for other inputs"):
        made.post({"request_id": "a", "label": 1})
    assert (made.intake.join.ready(), log.records["a"].features.inputs["x"][0, 0]) == ([], 1.0)
    made.waiting.close()


def test_predictions_and_labels_are_on_disk_in_the_order_in_which_they_are_joined(tmp_path: Path) -> None:
    """A prediction that comes while labels are written cannot come between a label and the prediction that it was joined with."""
    log = FakeObservationLog()
    made = Restarted(tmp_path, log)
    made.predict("r", 1.0)
    log.is_away = True

    class Clock:
        """Is read once by each call; at the first one another client uses the id."""

        def __init__(self) -> None:
            self.to_come = [2.0]

        def __call__(self) -> float:
            while self.to_come:
                made.predict("r", self.to_come.pop())
            return 100.0

    made.intake._clock = Clock()
    with pytest.raises((UnavailableError, ConflictError)):
        made.post({"request_id": "r", "label": 1})
    before = list(map(encode, made.intake.join.events()))
    made.kill()
    assert list(map(encode, made.intake.join.events())) == before
    made.waiting.close()


class HangingLog(FakeObservationLog):
    """Answers once `resume` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.resume = threading.Event(), threading.Event()

    def append(self, records: Sequence[ObservationRecord]) -> Appended:
        self.asked.set()
        self.resume.wait()
        return super().append(records)


def test_a_log_that_hangs_keeps_no_server_from_its_end(tmp_path: Path) -> None:
    """The next server offers the observations again."""
    log = HangingLog()
    made = Restarted(tmp_path, log)
    made.predict("a", 1.0)
    assert made.post({"request_id": "b", "label": 1})["waiting"] == 1
    made.predict("b", 1.0)
    made.intake.start()
    assert log.asked.wait(PATIENCE_S)
    with capture_logs() as lines:
        made.intake.close(0.05)
    assert [(line["event"], line["count"]) for line in lines] == [("observations_kept_for_the_next_start", 1)]
    next_one = Restarted(tmp_path, FakeObservationLog())
    next_one.intake.flush()
    assert list(next_one.log.records) == ["b"]
    next_one.waiting.close()
    log.resume.set()


def test_files_stay_small_and_what_is_done_leaves_them(tmp_path: Path) -> None:
    made = Restarted(tmp_path, FakeObservationLog(), JoinLimits(max_done=10))
    large = {"x": np.zeros((1, 300_000), np.float32)}
    for number in range(40):  # of 1.2 MB each
        made.intake.add_prediction(InferRequest("m", large), InferAnswer("m", "3", f"r{number}", {}))
        made.post({"request_id": f"r{number}", "label": 1})
        made.intake.flush()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20 * 2**20
    for _ in range(40):
        made.kill()
        made.intake.flush()
    assert len(list(tmp_path.glob("*.events"))) <= 17
    assert len(list(made.intake.join.events())) == 10
    made.waiting.close()


def test_files_stay_small_while_the_dataset_takes_nothing(tmp_path: Path) -> None:
    log = FakeObservationLog()
    made = Restarted(tmp_path, log, JoinLimits(max_bytes=2**20))
    made.predict("a", 1.0)
    log.is_away = True
    with pytest.raises(UnavailableError):
        made.post({"request_id": "a", "label": 1})
    large = {"x": np.zeros((1, 200_000), np.float32)}
    for number in range(60):  # of 0.8 MB each
        made.intake.add_prediction(InferRequest("m", large), InferAnswer("m", "3", f"r{number}", {}))
        with pytest.raises(UnavailableError):
            made.intake.flush()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 24 * 2**20
    made.kill()
    log.is_away = False
    made.intake.flush()
    assert list(log.records) == ["a"]
    made.waiting.close()


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    first = WaitingLog(tmp_path)
    with pytest.raises(ConflictError, match="another server keeps what waits .*serving.keep_waiting"):
        WaitingLog(tmp_path)
    first.close()
    WaitingLog(tmp_path).close()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    made = Restarted(tmp_path, FakeObservationLog())
    made.predict("a", 1.0)
    made.kill()
    made.kill()
    made.waiting.close()
    (tmp_path / "00000002.events").unlink()
    log = WaitingLog(tmp_path)
    with pytest.raises(CorruptStateError, match=r"lacks the file 00000001\.events or one after it"):
        list(log.recover())
    log.close()


def test_a_disk_that_fails_refuses_labels_and_no_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Restarted(tmp_path, FakeObservationLog())

    def fails(events: object) -> None:
        raise UnavailableError("cannot keep what waits: no space left")

    monkeypatch.setattr(made.waiting, "append", fails)
    made.predict("a", 1.0)
    with pytest.raises(UnavailableError, match="no space left"):
        made.post({"request_id": "a", "label": 1})
    monkeypatch.undo()
    made.post({"request_id": "a", "label": 1})
    assert list(made.log.records) == ["a"]
    made.waiting.close()


def test_a_file_that_cannot_be_opened_takes_nothing_from_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has no descriptors left, and the file before keeps growing: a new file must not state its size."""
    made, open_file = Restarted(tmp_path, FakeObservationLog()), os.open

    def fails_to_append(path: str | Path, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_RDWR and str(path).endswith(".events"):
            raise OSError(errno.EMFILE, "Too many open files")
        return open_file(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", fails_to_append)
    with pytest.raises(UnavailableError, match="Too many open files"):
        made.compact()
    monkeypatch.undo()
    made.post({"request_id": "a", "label": 1})
    made.kill()
    made.predict("a", 1.0)
    made.intake.flush()
    assert list(made.log.records) == ["a"]
    made.waiting.close()


def test_bytes_that_wait_are_bounded() -> None:
    join = ObservationJoin(JoinLimits(max_bytes=10_000))
    for number in range(10):
        join.add_prediction(str(number), RequestFeatures({"x": np.zeros((1, 500), np.float32)}), 0.0)
    assert (join.num_waiting, join.counts.dropped_predictions) == (3, 7)
    assert join.num_waiting_bytes <= 10_000
    for number in range(7, 10):
        join.add_label(str(number), 1, 0.0)
    assert join.num_waiting_bytes == 0
    text = RequestFeatures({"x": np.array([[b"a" * 20_000]], object)})
    join.add_prediction("text", text, 0.0)
    assert join.num_waiting == 0


TEXTS = st.lists(st.one_of(st.none(), st.binary(max_size=4)), min_size=1, max_size=5)


@given(texts=TEXTS, numbers=st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=5))
def test_inputs_come_back_as_they_were_missing_texts_too(texts: list[bytes | None], numbers: list[float]) -> None:
    made = np.empty((len(texts), 1), object)
    made[:, 0] = texts
    sent = RequestFeatures({"text": made, "x": np.array([numbers], np.float32)}, "m", "7")
    with TemporaryDirectory() as folder:
        log = WaitingLog(Path(folder))
        list(log.recover())
        log.append(encode(JoinEvent(JoinEventKind.PREDICTED, "a", 1.5, None, sent)))
        log.close()
        log = WaitingLog(Path(folder))
        (found,) = log.recover()
        log.close()
    assert found.features is not None
    assert found.features.inputs["text"].tolist() == made.tolist()
    np.testing.assert_array_equal(found.features.inputs["x"], sent.inputs["x"])
