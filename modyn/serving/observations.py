"""Labels that clients send back: decodes them, joins them with predictions, and appends what is complete to the log of observations."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from modyn.errors import AlreadyExistsError, InvalidArgumentError, ModynError, OverloadedError
from modyn.periodic_task import PeriodicTask
from modyn.rpc.logs import get_logger
from modyn.serving.infer import InferAnswer, InferRequest
from modyn.serving.json_tensors import load_object, parse_inputs
from modyn.serving.metrics import OBSERVATIONS
from modyn.serving.observation_join import JoinLimits, ObservationJoin, ObservationRecord, RequestFeatures, num_rows

_EVERY_S: Final = 1.0
"""Between two rounds that append what became complete by a prediction, and expire what waited too long."""
_MAX_KEY: Final = 128
"""Characters of an idempotency key: as many as storage takes."""
_MAX_READY: Final = 100_000
"""Complete observations that the log has not taken; further posts are refused."""


class ObservationLog(Protocol):
    """Where complete observations are kept: append-only, and each key once."""

    def append(self, records: Sequence[ObservationRecord]) -> None:
        """Keep the records durably, all or none; a key that is there already is left out. Raises ModynError: none was kept."""
        ...


class ObservationIntake:
    """Thread-safe. What a failing log did not take stays, and is offered again; a restart loses what waits for its other half.

    Args: clock: seconds since 1970.
    """

    def __init__(self, log: ObservationLog, limits: JoinLimits | None = None, clock: Callable[[], float] = time.time) -> None:
        self._log, self._clock = log, clock
        self._limits = limits or JoinLimits()
        self._join = ObservationJoin(self._limits)
        # Predictions on their way into the join: appended without a lock by the threads that predict, and bounded as the join is.
        self._predicted: deque[tuple[str, RequestFeatures]] = deque(maxlen=self._limits.max_features)
        self._lock = threading.Lock()  # Protects the join, and that records are appended in order.
        self._logger = get_logger("serving.observations")
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
            self._logger.error("observations_lost", count=len(self._join.ready()), error=error.message)

    def answered(self, request: InferRequest, answer: InferAnswer) -> None:
        """Take a prediction of one row, that a label may come for; for `ModelServer`. Never blocks."""
        if num_rows(features := RequestFeatures(request.inputs, answer.model, answer.version)) == 1:
            self._predicted.append((answer.request_id, features))

    def post(self, body: bytes) -> dict[str, int]:
        """Take the labels in the JSON of a client.

        {"observations": [{"request_id": TEXT, "label": VALUE}, {"key": TEXT, "inputs": [tensors as in a request], "label": VALUE}]}

        Returns: how many were new, and how many had come before. Raises: InvalidArgumentError: one is wrong, and none of them is taken.
        AlreadyExistsError: one differs from what came before; the others are taken. OverloadedError: the log takes nothing for too long.
        ModynError: the log fails; the labels are kept, and sending them again does no harm.
        """
        found = load_object(body, "the observations").get("observations")
        if not isinstance(found, list) or not found:
            raise InvalidArgumentError("'observations' is missing; write a list of objects with request_id and label")
        parsed = [_parse(number, item) for number, item in enumerate(found)]
        conflicts, new = [], 0
        with self._lock:
            if len(self._join.ready()) >= _MAX_READY:
                raise OverloadedError(f"{_MAX_READY} observations wait for the log, which takes none; send them again later")
            self._take_predictions()
            for key, features, label in parsed:
                try:
                    if features is None:
                        new += self._join.labelled(key, label, self._clock())
                    else:
                        new += self._join.complete(key, features, label, self._clock())
                except AlreadyExistsError as error:
                    conflicts.append(error)
            self._append()
        OBSERVATIONS.labels("repeated").inc(len(parsed) - new - len(conflicts))
        if conflicts:
            OBSERVATIONS.labels("refused").inc(len(conflicts))
            raise conflicts[0]
        return {"accepted": new, "repeated": len(parsed) - new}

    def flush(self) -> None:
        """Join what has come, append what is complete, and drop what has waited too long. Raises: as the log."""
        with self._lock:
            self._take_predictions()
            expired = self._join.counts.expired_features, self._join.counts.expired_labels
            self._join.expire(self._clock())
            OBSERVATIONS.labels("expired").inc(
                self._join.counts.expired_features + self._join.counts.expired_labels - sum(expired)
            )
            self._append()

    def _take_predictions(self) -> None:
        while self._predicted:
            request_id, features = self._predicted.popleft()
            self._join.predicted(request_id, features, self._clock())

    def _append(self) -> None:
        records = self._join.ready()
        if records:
            self._log.append(records)
            self._join.done(records)
            OBSERVATIONS.labels("appended").inc(len(records))

    def _report(self, error: Exception) -> None:
        self._logger.warning("observations_not_appended", error=str(error), waiting=len(self._join.ready()))


def _parse(number: int, item: Any) -> tuple[str, RequestFeatures | None, float | int]:
    """Return key, features (None: those of the request with this id) and label of one observation. Raises InvalidArgumentError."""
    where = f"observations[{number}]"
    if not isinstance(item, dict):
        raise InvalidArgumentError(f"{where} is no object; write one with request_id and label")
    label = item.get("label")
    if isinstance(label, bool) or not isinstance(label, int | float) or not math.isfinite(label):
        raise InvalidArgumentError(f"{where}: label is {'missing' if label is None else repr(label)[:80]}; write a number")
    has_id, has_inputs = "request_id" in item, "inputs" in item
    key = item.get("request_id" if has_id else "key")
    if has_id == has_inputs:
        raise InvalidArgumentError(f"{where} needs either request_id, or inputs with a key of their own")
    if not isinstance(key, str) or not 0 < len(key) <= _MAX_KEY:
        name = "request_id" if has_id else "key"
        raise InvalidArgumentError(
            f"{where}: {name} is {'missing' if key is None else repr(key)[:80]}; write a text of 1 to {_MAX_KEY} characters"
        )
    if not has_inputs:
        return key, None, label
    features = RequestFeatures(parse_inputs(item))
    if (rows := num_rows(features)) != 1:
        raise InvalidArgumentError(f"{where} has inputs of {rows} rows and one label; send an observation for each row")
    return key, features, label
