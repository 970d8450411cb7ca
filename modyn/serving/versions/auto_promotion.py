"""Automatic promotion of each new version of a run that meets the conditions of the run's pipeline (`serving.promote_if`)."""

from __future__ import annotations

import time
from typing import Final

from modyn.errors import ConflictError, ModynError
from modyn.model_storage.client import ModelStorageClient
from modyn.periodic_task import PeriodicTask
from modyn.records import RunId
from modyn.rpc.logs import get_logger
from modyn.serving.versions.promotion_gate import PromotionGate

_RETRY_S: Final = 10.0
"""Seconds after which a version that could not be measured is measured again."""


class AutoPromotion:
    """Judges the newest version of a run at intervals, if this version is newer than the promoted version and was never judged.

    A version that has an entry in the audit trail is never judged again, so a rollback is not reversed. A version is not judged if a newer version
    is stored before the judgement.
    """

    def __init__(self, run_id: RunId, gate: PromotionGate, models: ModelStorageClient, every_s: float) -> None:
        self._run_id, self._gate, self._models = run_id, gate, models
        self._logger = get_logger("serving.promotion")
        self._failed: tuple[int, float] = (0, 0.0)  # the last version that could not be measured, and the time of the attempt
        self._task = PeriodicTask("promote", every_s, [self.look], self._report)

    def start(self) -> None:
        """Start a thread that calls `look` at intervals."""
        self._task.start()

    def close(self) -> None:
        """End the thread. If a version is being measured now, the next server process judges it."""
        self._task.close()

    def look(self) -> None:
        """Look for a new version once, and judge the newest version if this is due. Raises: the errors of the gate."""
        current = self._models.current(self._run_id)
        newest = current.newest_id
        if newest is None or newest <= (current.promoted_id or 0) or current.newest_in_trail or self._waits(newest):
            return
        try:
            decision = self._gate.promote(newest, "serving.promote_if")
        except ConflictError:
            return  # Another version was promoted meanwhile, and the next call compares with that version.
        except ModynError:
            self._failed = newest, time.monotonic()
            raise
        event = "version_promoted" if decision.promoted else "version_not_promoted"
        self._logger.info(event, run_id=self._run_id, decision=str(decision))

    def _waits(self, model_id: int) -> bool:
        failed, at = self._failed
        return failed == model_id and time.monotonic() < at + _RETRY_S

    def _report(self, error: Exception) -> None:
        self._logger.warning("version_not_judged", run_id=self._run_id, error=str(error))
