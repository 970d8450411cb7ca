"""Intake of labels that clients send back for one model. The intake joins labels with predictions, and appends complete observations to a log."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from modyn.errors import AlreadyExistsError, ConflictError, DeadlineError, InvalidArgumentError, ModynError, OverloadedError
from modyn.periodic_task import PeriodicTask
from modyn.rpc.logs import get_logger
from modyn.serving.messages.infer import InferAnswer, InferRequest
from modyn.serving.observations.arrivals import ArrivedPredictions
from modyn.serving.observations.join import (
    Appended,
    JoinEvent,
    JoinEventKind,
    JoinLimits,
    ObservationJoin,
    ObservationRecord,
    RequestFeatures,
    num_bytes,
    num_rows,
)
from modyn.serving.observations.waiting_log import WaitingLog
from modyn.serving.prometheus import OBSERVATIONS

_EVERY_S: Final = 1.0
"""Seconds between two rounds. A round appends observations that a prediction completed, and drops predictions and labels that waited too long."""
_LOG_EVERY_S: Final = 10.0
"""Seconds between two log lines about lost predictions and labels."""
_COMPACT_BYTES: Final = 16 * 2**20
"""The files are compacted if they exceed twice the memory of the waiting events by more than this number of bytes."""
_COMPACT_FILES: Final = 16
"""The files are also compacted if there are more files than this number."""

_OTHER_INPUTS: Final = (
    "is stored with other inputs, of an earlier request or of another run whose labels go to the same dataset; send the label with its inputs and a "
    "key of its own, and give each request an id of its own"
)


class ObservationLog(Protocol):
    """Append-only log of complete observations. Each key occurs at most once."""

    def check_label(self, label: float | int) -> None:
        """Raise InvalidArgumentError if no record can have this label."""
        ...

    def append(self, records: Sequence[ObservationRecord]) -> Appended:
        """Store the records durably, except records whose key is known and records that the log refuses. Raises ModynError: the call failed, but some
        records may be stored.
        """
        ...


@dataclass(frozen=True, slots=True)
class PostedLabel:
    """A label that a client sends."""

    key: str
    """Id of the request; if features come with the label, a key that the client chose."""
    label: float | int
    features: RequestFeatures | None
    """Inputs that come with the label; None: the inputs of the request with this id count."""

    def event(self, at: float) -> JoinEvent:
        """Return the join event for this label."""
        return JoinEvent(
            JoinEventKind.LABELLED if self.features is None else JoinEventKind.COMPLETE, self.key, at, self.label, self.features
        )


class ObservationIntake:
    """Joins and stores the labels of one model. Thread-safe. If the log fails, observations are appended again later, even after a restart.

    Args: model: name for metrics and logs. waiting: write-ahead log of the join, which the constructor replays; None: a restart loses waiting
    predictions and labels. clock: seconds since 1970.
    Raises: CorruptStateError: the write-ahead log is damaged. UnavailableError: the write-ahead log cannot be read.
    """

    def __init__(
        self,
        model: str,
        log: ObservationLog,
        limits: JoinLimits | None = None,
        clock: Callable[[], float] = time.time,
        waiting: WaitingLog | None = None,
    ) -> None:
        self._model, self._log, self._clock, self._waiting = model, log, clock, waiting
        self._limits = limits or JoinLimits()
        self._join = ObservationJoin(self._limits)
        self._logger = get_logger("serving.observations")
        if waiting is not None:
            for event in waiting.recover():
                self._join.replay(event)
        self._arrived = ArrivedPredictions(self._limits, clock, waiting, self._logger)
        # Protects the join, and the order of appends to the log. A thread takes this lock before the lock of `_arrived`.
        self._lock = threading.Lock()
        self._counted = self._losses()  # losses at the last round; the earlier server process has counted the replayed losses
        self._logged, self._logged_at = self._counted, clock() - _LOG_EVERY_S
        self._rounds = PeriodicTask("observations", _EVERY_S, [self.flush], self._report)

    @property
    def join(self) -> ObservationJoin:
        """The join of labels and predictions, with its counts."""
        return self._join

    def start(self) -> None:
        """Start the thread of the rounds."""
        self._rounds.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread, and run a last round. Args: timeout_s: time that the current round may take; if the round takes longer, there is no last
        round.
        """
        try:
            if not self._rounds.close(timeout_s):
                raise DeadlineError(f"the dataset has not answered for {timeout_s:g} s")
            self.flush()
        except ModynError as error:
            event = "observations_lost" if self._waiting is None else "observations_kept_for_the_next_start"
            self._logger.error(event, model=self._model, count=len(self._join.ready()), error=error.message)
        finally:
            if self._waiting is not None:
                self._waiting.close()

    def add_prediction(self, request: InferRequest, answer: InferAnswer) -> None:
        """Add a prediction. Only a prediction of one row may get a label. The call waits at most for the write of `waiting` into the page cache,
        not for the disk.
        """
        features = RequestFeatures(request.inputs, answer.model, answer.version)
        if (rows := num_rows(features)) == 1:
            self._arrived.add(answer.request_id, features)
        else:
            self._arrived.note_rows(answer.request_id, rows)

    def knows(self, request_id: str) -> bool:
        """Whether a prediction or a label of this request is remembered."""
        with self._lock:
            self._take_predictions()
            return self._join.knows(request_id)

    def check_label(self, label: float | int) -> None:
        """See `ObservationLog.check_label`."""
        self._log.check_label(label)

    def post(self, posted: Sequence[PostedLabel]) -> dict[str, int]:
        """Take labels from clients.

        Returns: three numbers of labels: `stored` by this call, `waiting` for a prediction, and `repeated` for a stored sample.
        Raises, after all other labels are taken: AlreadyExistsError: a label differs from an earlier or stored label. ConflictError: several
        predictions have the request id of a label, or the key of a label is stored with other inputs. InvalidArgumentError: the log refuses a
        label, or the request of a label has several rows.
        Raises: OverloadedError: too many observations wait for the log. ModynError: the log or the disk fails; taken labels are kept, and clients may
        send them again.
        """
        with self._lock:
            self._refuse_overload(posted)
            now = self._clock()
            posted, errors = self._of_one_row(posted)
            self._take_predictions([each.event(now) for each in posted])
            if self._waiting is not None:
                # Labels are on disk before they are acknowledged.
                self._waiting.sync()
            taken, others = self._join_labels(posted, now)
            errors += others
            OBSERVATIONS.labels(self._model, "refused").inc(len(errors))
            new, appended = self._append()
            stored = {each.key for each in taken if self._join.is_done(each.key)}
        counts = Counter({"stored": 0, "waiting": 0, "repeated": 0})
        for each in taken:
            if each.key in appended.refused:
                errors.append(InvalidArgumentError(appended.refused[each.key]))
            elif each.key in appended.reused:
                errors.append(ConflictError(f"observation '{each.key}' {_OTHER_INPUTS}"))
            elif appended.known.get(each.key, each.label) != each.label:
                errors.append(_differs_from_stored(each, appended.known[each.key]))
            else:
                counts["stored" if each.key in new else "repeated" if each.key in stored else "waiting"] += 1
                new.discard(each.key)
        OBSERVATIONS.labels(self._model, "repeated").inc(counts["repeated"])
        if errors:
            raise errors[0]
        return dict(counts)

    def flush(self) -> None:
        """Run a round: join arrived predictions, append complete observations, and drop predictions and labels that waited too long. Raises: the
        errors of the log.
        """
        with self._lock:
            self._take_predictions()
            self._join.expire(self._clock())
            self._count_losses()
            try:
                self._append()
            finally:
                self._compact()  # the files grow with each prediction, even while the log fails

    def _refuse_overload(self, posted: Sequence[PostedLabel]) -> None:
        ready = self._join.ready()
        size = sum(num_bytes(record.features) for record in ready)
        more = sum(num_bytes(each.features) for each in posted if each.features is not None)
        if ready and size + more > self._limits.max_bytes:
            raise OverloadedError(
                f"{len(ready)} observations of {size} bytes wait for the dataset, which takes none; send these again later"
            )

    def _of_one_row(self, posted: Sequence[PostedLabel]) -> tuple[Sequence[PostedLabel], list[ModynError]]:
        """Return the labels of requests of one row, and an error for each label of a request of several rows, which would wait forever."""
        ids = {each.key for each in posted if each.features is None and not self._join.knows(each.key)}
        rows = {key: number for key in ids if (number := self._arrived.rows_of(key)) > 1}
        errors: list[ModynError] = [
            InvalidArgumentError(
                f"request '{key}' has {number} rows, and a label is of one: send a request for each row, or labels with their inputs and keys of "
                "their own"
            )
            for key, number in rows.items()
        ]
        return [each for each in posted if each.features is not None or each.key not in rows], errors

    def _join_labels(self, posted: Sequence[PostedLabel], now: float) -> tuple[list[PostedLabel], list[ModynError]]:
        """Pass labels to the join. Returns the labels that the join has accepted, now or earlier, and the errors of the other labels."""
        taken, errors = list[PostedLabel](), list[ModynError]()
        for each in posted:
            try:
                if each.features is None:
                    self._join.add_label(each.key, each.label, now)
                else:
                    self._join.complete(each.key, each.features, each.label, now)
            except (AlreadyExistsError, ConflictError) as error:
                errors.append(error)
            else:
                taken.append(each)
        return taken, errors

    def _take_predictions(self, labels: Sequence[JoinEvent] = ()) -> None:
        """Join arrived predictions. Args: labels: labels that are written to disk after these predictions."""
        arrived, dropped = self._arrived.take(labels)
        self._join.counts.dropped_predictions += dropped
        for request_id, features, at in arrived:
            self._join.add_prediction(request_id, features, at)

    def _append(self) -> tuple[set[str], Appended]:
        """Append complete observations to the log. Returns: the keys that are new in the log, and the log's answer."""
        records = self._join.ready()
        if not records:
            return set(), Appended()
        appended = self._log.append(records)
        events = self._join.end(records, appended)
        others = appended.known.keys() | appended.refused.keys() | appended.reused | appended.undecided
        new = {record.key for record in records} - others
        OBSERVATIONS.labels(self._model, "appended").inc(len(new))
        for record in records:
            why = _OTHER_INPUTS if record.key in appended.reused else appended.refused.get(record.key)
            if (label := appended.known.get(record.key, record.label)) != record.label:
                why = f"it is stored with the label {label!r}, and came now with {record.label!r}; the first one counts"
            if why is not None:
                OBSERVATIONS.labels(self._model, "refused").inc()
                self._logger.warning("observation_refused", model=self._model, key=record.key, reason=why)
        if self._waiting is not None:
            # These events are not synced. If a crash of the machine loses the events, the observations are appended again, and the log ignores known
            # keys.
            self._arrived.write(events)
        return new, appended

    def _losses(self) -> Mapping[str, int]:
        counts = self._join.counts
        dropped = {"predictions": counts.dropped_predictions, "labels": counts.dropped_labels}
        return {"expired": counts.expired, "dropped": sum(dropped.values()), "reused": counts.reused, **dropped}

    def _count_losses(self) -> None:
        """Count lost predictions and labels in metrics, and log them at intervals."""
        losses, at = self._losses(), self._clock()
        for result in ("expired", "dropped", "reused"):
            OBSERVATIONS.labels(self._model, result).inc(losses[result] - self._counted[result])
        self._counted = losses
        if at < self._logged_at + _LOG_EVERY_S:
            return
        lost = {name: number - self._logged[name] for name, number in losses.items()}
        if lost["dropped"]:
            self._logger.warning(
                "observations_dropped",
                model=self._model,
                predictions=lost["predictions"],
                labels=lost["labels"],
                advice=f"more waits than fits into serving.max_waiting_bytes ({self._limits.max_bytes}): raise it in the system file, or lower "
                "serving.waiting_s if labels come sooner",
            )
        if lost["reused"]:
            self._logger.warning(
                "request_ids_reused",
                model=self._model,
                count=lost["reused"],
                newest=self._join.counts.reused_id,
                advice="labels of these ids are refused: clients must give each request an id of its own",
            )
        self._logged, self._logged_at = losses, at

    def _compact(self) -> None:
        """Compact the files on disk if the files are much larger than the events that are still needed."""
        if self._waiting is None:
            return
        if (
            self._waiting.num_bytes > _COMPACT_BYTES + 2 * self._join.num_waiting_bytes
            or self._waiting.num_files > _COMPACT_FILES
        ):
            self._waiting.sync()  # sync most events here: `rotate` syncs the rest while predictions wait
            number = self._arrived.rotate()
            # The old files have the predictions that arrived before the new file was begun.
            self._take_predictions()
            self._waiting.compact(number, self._join.events())

    def _report(self, error: Exception) -> None:
        self._logger.warning("observations_not_appended", model=self._model, error=str(error), waiting=len(self._join.ready()))


def _differs_from_stored(posted: PostedLabel, label: float | int) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"observation '{posted.key}' is stored with the label {label!r}, and came now with {posted.label!r}; the first one counts"
    )
