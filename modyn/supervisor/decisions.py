"""Verdicts of a run's trigger policy: asked for, journalled, and taken from the journal where they were asked for before."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from prometheus_client import Counter

from modyn.errors import CorruptStateError
from modyn.records import SampleBatch
from modyn.rpc.logs import get_logger
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.journal import RunJournal
from modyn.supervisor.late_samples import LateSamples
from modyn.supervisor.triggers import CheckContext, Trigger
from modyn.supervisor.triggers.base import CheckRecord
from modyn.supervisor.triggers.evidence import NO_EVIDENCE, EvidenceSource

CHECK_SECONDS = Counter("modyn_supervisor_check_seconds", "Seconds that trigger policies have taken to check")

_LOG = get_logger("supervisor")


class TriggerDecisions:
    """Asks the trigger policy for its verdicts, in the order of the stream. All methods are called by the run's thread.

    Args: journal: its writes are retried. checks: those behind the run's cursor, in order, which are replayed. newest: the largest timestamp
    of the stream so far. source: answers what the policy asks. online: whether it is the policy `online.trigger`.
    """

    def __init__(
        self,
        policy: Trigger,
        journal: RunJournal,
        run_id: str,
        checks: Iterable[CheckRecord],
        newest: int | None = None,
        source: EvidenceSource = NO_EVIDENCE,
        *,
        online: bool = False,
    ) -> None:
        self._policy = policy
        self._source = source
        self._late = LateSamples(newest)
        self._journal = journal
        self._run_id = run_id
        self._online = online
        self._verdicts = deque(check for check in checks if check.online is online)
        """Journalled checks that the policy has not come to again."""
        self._warning = ""
        self.seconds = 0.0
        """That checks have taken so far; those that were replayed take none."""

    def observe(self, samples: SampleBatch) -> None:
        """Receive the next samples of the stream."""
        self._policy.observe(samples)
        self._late.observe(samples)

    def forget(self, last_check: int) -> None:
        """Replay no verdict up to a position, which the state of the policy knows."""
        while self._verdicts and self._verdicts[0].position <= last_check:
            self._verdicts.popleft()

    def check(self, cursor: Cursor, *, may_fire: bool = True) -> bool:
        """Whether the policy fires where the cursor stands. Args: may_fire: whether anything can come of it; if not, it is asked, and does not fire.

        Raises: CorruptStateError: a journalled verdict was passed over.
        """
        if self._verdicts and self._verdicts[0].position == cursor.position:
            record = self._verdicts.popleft()
        else:
            started = time.monotonic()
            check = self._policy.check(CheckContext(cursor.position, cursor.num_pending, self._source))
            seconds = time.monotonic() - started
            self.seconds += seconds
            CHECK_SECONDS.inc(seconds)
            made = check.evidence, seconds, check.memory, cursor.max_timestamp, self._online
            record = CheckRecord(cursor.position, check.fires and may_fire, *made)
            if self._verdicts and (check.evidence or self._verdicts[0].position < cursor.position):
                raise self._passed_over(cursor)
            if check.evidence:
                self._journal.checked(record)
        self._policy.checked(record)
        return record.fires and may_fire

    def refuse_missed(self, cursor: Cursor) -> None:
        """Raise CorruptStateError if a journalled verdict lies before the cursor. At its very position it may still be asked for."""
        if self._verdicts and (self._verdicts[0].position < cursor.position or cursor.stream_ended):
            raise self._passed_over(cursor)

    @property
    def warning(self) -> str:
        """What the policy warns of, or that everything is late; empty: nothing."""
        return self._policy.warning() or self._late.warning(self._policy.late_span_s) or ""

    def warn(self, lag: str = "", of_steps: str = "") -> None:
        """Journal what the policy warns of, when that changes. Args: lag: what `CheckLag` warns of. of_steps: what `online.trigger` does."""
        warning = "\n".join(dict.fromkeys(filter(None, (self.warning or lag, of_steps))))
        if warning != self._warning:
            self._warning = warning
            _LOG.warning("trigger_warning", run_id=self._run_id, warning=warning)
            self._journal.warn(warning)

    def _passed_over(self, cursor: Cursor) -> CorruptStateError:
        return diverged(self._run_id, f"checked after {self._verdicts[0].position} samples", cursor.position)


def diverged(run_id: str, before: str, position: int) -> CorruptStateError:
    """Build the error for a resumed run that decides otherwise than its journal. Args: before: what it did. position: where it is now."""
    return CorruptStateError(
        f"run {run_id} {before}, but not when it continues from its journal (now after {position}), on the same samples: the trigger policy "
        "differs from the one that began the run; install that one again, or submit the pipeline again"
    )
