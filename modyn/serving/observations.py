"""Labels of one model that clients send back: joined with predictions, and appended to the log of observations once they are complete."""

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
from modyn.serving.arrivals import ArrivedPredictions
from modyn.serving.infer import InferAnswer, InferRequest
from modyn.serving.metrics import OBSERVATIONS
from modyn.serving.observation_join import (
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
from modyn.serving.waiting_log import WaitingLog

_EVERY_S: Final = 1.0
"""Between two rounds that append what became complete by a prediction, and expire what waited too long."""
_LOG_EVERY_S: Final = 10.0
"""Between two lines about predictions and labels that are lost."""
_COMPACT_BYTES: Final = 16 * 2**20
"""Bytes of events on disk, beyond what waits, from which on their files are made one."""
_COMPACT_FILES: Final = 16

_OTHER_INPUTS: Final = (
    "is stored with other inputs, of an earlier request or of another run whose labels go to the same dataset; send the label with its inputs and a "
    "key of its own, and give each request an id of its own"
)


class ObservationLog(Protocol):
    """Where complete observations are kept: append-only, and each key once."""

    def check_label(self, label: float | int) -> None:
        """Raise InvalidArgumentError if this can be the label of no record."""
        ...

    def append(self, records: Sequence[ObservationRecord]) -> Appended:
        """Keep the records durably, but for those whose key is there already and those that it refuses. Raises ModynError: some may be kept."""
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
        # Protects the join, and that records are appended in order. Taken before the lock of `_arrived`.
        self._lock = threading.Lock()
        self._counted = self._losses()  # As of the last round; what is known from a start before was counted then.
        self._logged, self._logged_at = self._counted, clock() - _LOG_EVERY_S
        self._rounds = PeriodicTask("observations", _EVERY_S, [self.flush], self._report)

    @property
    def join(self) -> ObservationJoin:
        """What waits, and counts."""
        return self._join

    def start(self) -> None:
        """Begin with the rounds, in a thread of their own."""
        self._rounds.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the rounds after a last one. Args: timeout_s: that one which is under way gets; with one that takes longer, none comes after it."""
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

    def answered(self, request: InferRequest, answer: InferAnswer) -> None:
        """Take a prediction of one row, that a label may come for; for `ModelServer`. Waits for no disk but that of `waiting`'s page cache."""
        features = RequestFeatures(request.inputs, answer.model, answer.version)
        if (rows := num_rows(features)) == 1:
            self._arrived.add(answer.request_id, features)
        else:
            self._arrived.note_rows(answer.request_id, rows)

    def knows(self, request_id: str) -> bool:
        """Whether a prediction or a label of this request has come, and is remembered."""
        with self._lock:
            self._take_predictions()
            return self._join.knows(request_id)

    def check_label(self, label: float | int) -> None:
        """As `ObservationLog.check_label`."""
        self._log.check_label(label)

    def post(self, posted: Sequence[PostedLabel]) -> dict[str, int]:
        """Take labels that clients sent.

        Returns: how many are `stored`, samples now by this call; how many are `waiting` for their prediction; how many were `repeated`, samples
        before. Sent again, a label counts as what it is then.
        Raises: AlreadyExistsError: one differs from what came before or is stored. ConflictError: one is of a request id that several predictions
        have, or of a key that is stored with other inputs. InvalidArgumentError: the log refuses one, or one is of a request of several rows. In
        these cases the others are taken.
        OverloadedError: the log takes nothing for too long. ModynError: the log or the disk fails; what was taken is kept, and sending it again
        does no harm.
        """
        with self._lock:
            self._refuse_overload(posted)
            now = self._clock()
            posted, errors = self._of_one_row(posted)
            self._take_predictions([each.event(now) for each in posted])
            if self._waiting is not None:
                # Before they count: what the client has an answer to is on the disk.
                self._waiting.sync()
            taken, others = self._labelled(posted, now)
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
                errors.append(_is_stored(each, appended.known[each.key]))
            else:
                counts["stored" if each.key in new else "repeated" if each.key in stored else "waiting"] += 1
                new.discard(each.key)
        OBSERVATIONS.labels(self._model, "repeated").inc(counts["repeated"])
        if errors:
            raise errors[0]
        return dict(counts)

    def flush(self) -> None:
        """Join what has come, append what is complete, and drop what has waited too long. Raises: as the log."""
        with self._lock:
            self._take_predictions()
            self._join.expire(self._clock())
            self._count_losses()
            try:
                self._append()
            finally:
                self._compact()  # Also while the log takes nothing, or the files would grow with each prediction.

    def _refuse_overload(self, posted: Sequence[PostedLabel]) -> None:
        ready = self._join.ready()
        size = sum(num_bytes(record.features) for record in ready)
        more = sum(num_bytes(each.features) for each in posted if each.features is not None)
        if ready and size + more > self._limits.max_bytes:
            raise OverloadedError(
                f"{len(ready)} observations of {size} bytes wait for the dataset, which takes none; send these again later"
            )

    def _of_one_row(self, posted: Sequence[PostedLabel]) -> tuple[Sequence[PostedLabel], list[ModynError]]:
        """Those labels that a request can have, and why others are refused: they would wait for ever."""
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

    def _labelled(self, posted: Sequence[PostedLabel], now: float) -> tuple[list[PostedLabel], list[ModynError]]:
        """Call the join. Returns those that it has taken, now or before, and why others are refused."""
        taken, errors = list[PostedLabel](), list[ModynError]()
        for each in posted:
            try:
                if each.features is None:
                    self._join.labelled(each.key, each.label, now)
                else:
                    self._join.complete(each.key, each.features, each.label, now)
            except (AlreadyExistsError, ConflictError) as error:
                errors.append(error)
            else:
                taken.append(each)
        return taken, errors

    def _take_predictions(self, labels: Sequence[JoinEvent] = ()) -> None:
        """Join what has come. Args: labels: written to disk behind it."""
        arrived, dropped = self._arrived.take(labels)
        self._join.counts.dropped_predictions += dropped
        for request_id, features, at in arrived:
            self._join.predicted(request_id, features, at)

    def _append(self) -> tuple[set[str], Appended]:
        """Append what is complete. Returns: the keys that are new in the log, and what became of the others."""
        records = self._join.ready()
        if not records:
            return set(), Appended()
        appended = self._log.append(records)
        events = self._join.done(records, appended)
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
            # Not synced: what is appended again after a crash of the machine counts once.
            self._arrived.write(events)
        return new, appended

    def _losses(self) -> Mapping[str, int]:
        counts = self._join.counts
        dropped = {"predictions": counts.dropped_predictions, "labels": counts.dropped_labels}
        return {"expired": counts.expired, "dropped": sum(dropped.values()), "reused": counts.reused, **dropped}

    def _count_losses(self) -> None:
        """Count them for metrics, and log them at intervals."""
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
