"""Promotes each new version of a run that meets the conditions of its pipeline (`serving.promote_if`)."""

from __future__ import annotations

import time
from typing import Final

from modyn.errors import ConflictError, ModynError
from modyn.periodic_task import PeriodicTask
from modyn.records import RunId
from modyn.rpc.logs import get_logger
from modyn.serving.promotion_gate import PromotionGate, Promotions

_RETRY_S: Final = 10.0
"""Before a version that could not be measured is measured again."""


class AutoPromotion:
    """Looks in intervals for a version that is newer than the promoted one and was never judged, and has it judged.

    The audit trail is its memory: a version that stands in it, by any way, is left as it is, so that a rollback stays one.
    Versions that a newer one has overtaken before they were judged are left out.
    """

    def __init__(self, run_id: RunId, gate: PromotionGate, models: Promotions, every_s: float) -> None:
        self._run_id, self._gate, self._models = run_id, gate, models
        self._logger = get_logger("serving.promotion")
        self._failed: tuple[int, float] = (0, 0.0)  # the version that could not be measured last, and when
        self._task = PeriodicTask("promote", every_s, [self.look], self._report)

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._task.start()

    def close(self) -> None:
        """End; a version that is being measured is judged no more, or by the next server."""
        self._task.close()

    def look(self) -> None:
        """Look once, and judge the newest version if that is due. Raises: as the gate."""
        current = self._models.current(self._run_id)
        newest = current.newest_id
        if newest is None or newest <= (current.promoted_id or 0) or current.newest_in_trail or self._waits(newest):
            return
        try:
            decision = self._gate.promote(newest, "serving.promote_if")
        except ConflictError:
            return  # Another version was promoted meanwhile: the next look compares with that.
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
