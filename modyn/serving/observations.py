"""Labels of one model that clients send back: joined with predictions, and appended to the log of observations once they are complete."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from modyn.errors import AlreadyExistsError, ModynError, OverloadedError
from modyn.periodic_task import PeriodicTask
from modyn.rpc.logs import get_logger
from modyn.serving.arrivals import ArrivedPredictions
from modyn.serving.infer import InferAnswer, InferRequest
from modyn.serving.metrics import OBSERVATIONS
from modyn.serving.observation_join import (
    JoinEvent,
    JoinEventKind,
    JoinLimits,
    ObservationJoin,
    ObservationRecord,
    RequestFeatures,
    num_bytes,
    num_rows,
)
from modyn.serving.waiting_log import WaitingLog

_EVERY_S: Final = 1.0
"""Between two rounds that append what became complete by a prediction, and expire what waited too long."""
MAX_KEY: Final = 128
"""Characters of an idempotency key: as many as storage takes."""
_MAX_READY: Final = 100_000
"""Complete observations that the log has not taken; further posts are refused."""
_COMPACT_BYTES: Final = 16 * 2**20
"""Bytes of events on disk, beyond what waits, from which on their files are made one."""
_COMPACT_FILES: Final = 16


class ObservationLog(Protocol):
    """Where complete observations are kept: append-only, and each key once."""

    def append(self, records: Sequence[ObservationRecord]) -> Mapping[str, float | int]:
        """Keep the records durably, all or none; a key that is there already is left out. Raises ModynError: none was kept.

        Returns: by key the label that is there already, of those records that have another one.
        """
        ...


@dataclass(frozen=True, slots=True)
class PostedLabel:
    """A label that a client sends."""

    key: str
    """Of the request, or of its own if features come with it."""
    label: float | int
    features: RequestFeatures | None
    """None: those of the request with this id."""

    def event(self, at: float) -> JoinEvent:
        """What the join is called with."""
        return JoinEvent(
            JoinEventKind.LABELLED if self.features is None else JoinEventKind.COMPLETE, self.key, at, self.label, self.features
        )


class ObservationIntake:
    """Thread-safe. What a failing log did not take stays, and is offered again; so does, over a restart, what waits for its other half.

    Args: model: whose labels they are, for metrics and the log. waiting: where what waits is kept, and what is there is taken up; None: a restart
    loses it. clock: seconds since 1970.
    Raises: CorruptStateError: what was kept is damaged. UnavailableError: it cannot be read.
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
        self._lock = (
            threading.Lock()
        )  # Protects the join, and that records are appended in order. Taken before the lock of `_arrived`.
        self._rounds = PeriodicTask("observations", _EVERY_S, [self.flush], self._report)

    @property
    def join(self) -> ObservationJoin:
        """What waits, and counts."""
        return self._join

    def start(self) -> None:
        """Begin with the rounds, in a thread of their own."""
        self._rounds.start()

    def close(self) -> None:
        """End the rounds after a last one."""
        self._rounds.close()
        try:
            self.flush()
        except ModynError as error:
            event = "observations_lost" if self._waiting is None else "observations_kept_for_the_next_start"
            self._logger.error(event, model=self._model, count=len(self._join.ready()), error=error.message)
        finally:
            if self._waiting is not None:
                self._waiting.close()

    def answered(self, request: InferRequest, answer: InferAnswer) -> None:
        """Take a prediction of one row, that a label may come for; for `ModelServer`. Waits for no disk but that of `waiting`'s page cache."""
        features = RequestFeatures(request.inputs, answer.model, answer.version)
        if num_rows(features) == 1 and len(answer.request_id) <= MAX_KEY:
            self._arrived.add(answer.request_id, features)

    def knows(self, request_id: str) -> bool:
        """Whether a prediction or a label of this request has come, and is remembered."""
        with self._lock:
            self._take_predictions()
            return self._join.knows(request_id)

    def post(self, posted: Sequence[PostedLabel]) -> dict[str, int]:
        """Take labels that clients sent.

        Returns: how many were new, and how many had come before. Raises: AlreadyExistsError: one differs from what came before or is stored; the
        others are taken. OverloadedError: the log takes nothing for too long. ModynError: the log or the disk fails; what was taken is kept, and
        sending it again does no harm.
        """
        with self._lock:
            self._refuse_overload(posted)
            self._take_predictions()
            now = self._clock()
            if self._waiting is not None:
                # Before they count: what the client has an answer to is on the disk.
                self._arrived.write([each.event(now) for each in posted])
                self._waiting.sync()
            new_keys, conflicts = self._labelled(posted, now)
            stored = self._append()
        conflicts += [_is_stored(each, stored[each.key]) for each in posted if stored.get(each.key, each.label) != each.label]
        new = len(new_keys - stored.keys())
        OBSERVATIONS.labels(self._model, "repeated").inc(len(posted) - new - len(conflicts))
        if conflicts:
            OBSERVATIONS.labels(self._model, "refused").inc(len(conflicts))
            raise conflicts[0]
        return {"accepted": new, "repeated": len(posted) - new}

    def flush(self) -> None:
        """Join what has come, append what is complete, and drop what has waited too long. Raises: as the log."""
        with self._lock:
            counts = self._join.counts
            before = counts.expired_features + counts.expired_labels, counts.dropped_features + counts.dropped_labels
            self._take_predictions()
            self._join.expire(self._clock())
            OBSERVATIONS.labels(self._model, "expired").inc(counts.expired_features + counts.expired_labels - before[0])
            OBSERVATIONS.labels(self._model, "dropped").inc(counts.dropped_features + counts.dropped_labels - before[1])
            try:
                for key, label in self._append().items():
                    OBSERVATIONS.labels(self._model, "refused").inc()
                    self._logger.warning("observation_contradicts", model=self._model, key=key, stored=label)
            finally:
                self._compact()  # Also while the log takes nothing, or the files would grow with each prediction.

    def _refuse_overload(self, posted: Sequence[PostedLabel]) -> None:
        waiting = self._join.ready()
        size = sum(num_bytes(record.features) for record in waiting)
        more = sum(num_bytes(each.features) for each in posted if each.features is not None)
        if waiting and (len(waiting) + len(posted) > _MAX_READY or size + more > self._limits.max_bytes):
            raise OverloadedError(
                f"{len(waiting)} observations of {size} bytes wait for the dataset, which takes none; send these again later"
            )

    def _labelled(self, posted: Sequence[PostedLabel], now: float) -> tuple[set[str], list[AlreadyExistsError]]:
        """Call the join. Returns the keys that are new, and why others are refused."""
        new, conflicts = set[str](), list[AlreadyExistsError]()
        for each in posted:
            try:
                if each.features is None:
                    is_new = self._join.labelled(each.key, each.label, now)
                else:
                    is_new = self._join.complete(each.key, each.features, each.label, now)
            except AlreadyExistsError as error:
                conflicts.append(error)
            else:
                new |= {each.key} if is_new else set()
        return new, conflicts

    def _take_predictions(self) -> None:
        arrived, dropped = self._arrived.take()
        self._join.counts.dropped_features += dropped
        for request_id, features, at in arrived:
            self._join.predicted(request_id, features, at)

    def _append(self) -> Mapping[str, float | int]:
        """Append what is complete. Returns: the labels that the log has already, where they are other ones."""
        records = self._join.ready()
        if not records:
            return {}
        stored = self._log.append(records)
        self._join.done(records, stored)
        OBSERVATIONS.labels(self._model, "appended").inc(len(records) - len(stored))
        if self._waiting is not None:
            # Not synced: what is appended again after a crash of the machine counts once.
            done = [JoinEvent(JoinEventKind.DONE, each.key, 0.0, stored.get(each.key, each.label)) for each in records]
            self._arrived.write(done)
        return stored

    def _compact(self) -> None:
        """Make the files on disk one, once they are much larger than what counts in them."""
        if self._waiting is None:
            return
        if (
            self._waiting.num_bytes > _COMPACT_BYTES + 2 * self._join.num_waiting_bytes
            or self._waiting.num_files > _COMPACT_FILES
        ):
            self._waiting.sync()  # so that little is left to sync while predictions wait
            number = self._arrived.rotate()
            # Those that came until the new file began stand in the old ones.
            self._take_predictions()
            self._waiting.compact(number, self._join.events())

    def _report(self, error: Exception) -> None:
        self._logger.warning("observations_not_appended", model=self._model, error=str(error), waiting=len(self._join.ready()))


def _is_stored(posted: PostedLabel, label: float | int) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"observation '{posted.key}' is stored with the label {label!r}, and came now with {posted.label!r}; the first one counts"
    )
