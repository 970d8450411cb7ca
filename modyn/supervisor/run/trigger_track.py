"""One trigger policy of a run, with the positions of decisions, the journalled verdicts, and the samples of the next trigger."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from prometheus_client import Counter

from modyn.config.online import ONLINE
from modyn.config.pipeline import Pipeline
from modyn.errors import CorruptStateError
from modyn.records import SampleBatch
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.journal.journal import RunJournal
from modyn.supervisor.run.run_warnings import LateSamples
from modyn.supervisor.triggers import CheckContext, Trigger, TriggerContext, build_trigger
from modyn.supervisor.triggers.base import CheckRecord, DueChecks, TriggerOutcome
from modyn.supervisor.triggers.measures.questions import NO_EVIDENCE, EvidenceSource
from modyn.supervisor.triggers.share_bound import ShareBound

CHECK_SECONDS = Counter("modyn_supervisor_check_seconds", "Seconds that trigger policies have taken to check")
_KEPT: Final = ("num_pending", "first_pending", "last_pending", "last_check")
"""Fields of the cursor that differ between the tracks of a run."""


@dataclass(frozen=True, slots=True)
class TriggeredSamples:
    """The samples that a trigger takes from the pending samples."""

    number: int
    stop: int
    """Number of samples with labels in the stream, up to and including the last sample taken."""
    first: int
    """Smallest timestamp of the taken samples."""
    last: int
    """Largest timestamp of the taken samples."""

    @classmethod
    def pending(cls, cursor: Cursor) -> TriggeredSamples:
        """Return all pending samples at a cursor. Without pending samples, both timestamps are the largest timestamp of the stream."""
        assert cursor.max_timestamp is not None
        now = cursor.max_timestamp
        first, last = (now if time is None else time for time in (cursor.first_pending, cursor.last_pending))
        return cls(cursor.num_pending, cursor.num_labelled, first, last)


class TriggerTrack:
    """Asks one trigger policy for its verdicts, in the order of the stream, and counts the samples that wait for the next trigger of the policy.

    A run has one track for retrainings; a run with a section `online` has a second track for online steps. The online policy also receives
    retrainings and their models, because online steps continue from the newest model of any kind. The samples of online steps stay pending for the
    next retraining.

    The run's thread calls all methods.
    """

    def __init__(
        self,
        policy: Trigger,
        journal: RunJournal,
        cursor: Cursor,
        checks: Iterable[CheckRecord] = (),
        source: EvidenceSource = NO_EVIDENCE,
        *,
        online: bool = False,
        max_samples: int | None = None,
    ) -> None:
        """Args: cursor: position of the run in its stream. checks: checks of both tracks after the cursor, in order, which are replayed. source:
        answers the questions of the policy. online: whether the policy is `online.trigger`. max_samples: largest number of samples of one trigger;
        None if a trigger takes all waiting samples.
        """
        self.policy = policy
        self.online = online
        self.cursor = cursor
        """Position of the run, with the pending samples and the last decision of this track. With `max_samples`, the pending timestamps cover the
        samples since the last trigger, but not the samples that the last trigger left waiting.
        """
        self.seconds = 0.0
        """Seconds of all checks so far, without replayed checks."""
        self._journal = journal
        self._source = source
        self._max_samples = max_samples
        self._late = LateSamples(cursor.max_timestamp)
        self._verdicts = deque(check for check in checks if check.online is online)
        """Journalled checks that the policy has not reached again."""
        self._due: DueChecks

    def begin(self, batch: SampleBatch, *, again: bool = False) -> None:
        """Find the positions in the next batch at which the policy decides, before the samples of the batch are observed. Args: again: whether the
        policy may decide a second time at the cursor.
        """
        self._due = DueChecks(batch, self.policy, -1 if again else self.cursor.last_check - self.cursor.position)

    @property
    def next_check(self) -> int | None:
        """The next position in the batch at which the policy decides, or None."""
        return self._due.at

    def advance(self) -> None:
        """Find the next position after the policy has decided and the trigger has ended."""
        self._due.go_on()

    def observe(self, samples: SampleBatch) -> None:
        """Receive the next samples of the stream, or labels that arrive between two samples. There is at least one sample or label."""
        self.policy.observe(samples)
        self._late.observe(samples)
        self.cursor = self.cursor.plus(samples) if len(samples) else self.cursor.with_labels(samples.labelled)

    def check(self, *, has_model: bool = False) -> bool:
        """Return whether the policy fires here; a journalled verdict is replayed. Online steps fire only with a model and a pending sample.

        Raises: CorruptStateError: a journalled verdict was passed over.
        """
        cursor, may_fire = self.cursor, not self.online or (has_model and self.cursor.num_pending > 0)
        if self._verdicts and self._verdicts[0].position == cursor.position:
            record = self._verdicts.popleft()
        else:
            started = time.monotonic()
            check = self.policy.check(CheckContext(cursor.position, cursor.num_pending, self._source))
            seconds = time.monotonic() - started
            self.seconds += seconds
            CHECK_SECONDS.inc(seconds)
            made = check.evidence, seconds, check.memory, cursor.max_timestamp, self.online
            record = CheckRecord(cursor.position, check.fires and may_fire, *made)
            if self._verdicts and (check.evidence or self._verdicts[0].position < cursor.position):
                raise self._passed_over()
            # A verdict without evidence needs no record: the verdict depends only on the stream, and a resumed run computes it again.
            if check.evidence:
                self._journal.record_check(record)
        self.policy.checked(record)
        self.cursor = replace(cursor, last_check=cursor.position)
        return record.fires and may_fire

    def refuse_missed(self) -> None:
        """Raise CorruptStateError if a journalled verdict is before the cursor. A verdict exactly at the cursor may still be needed."""
        if self._verdicts and (self._verdicts[0].position < self.cursor.position or self.cursor.stream_ended):
            raise self._passed_over()

    def take(self, read: Callable[[int, int], SampleBatch]) -> TriggeredSamples:
        """Return the samples of a trigger that fires here; the other samples wait for the next trigger.

        Args: read: read(start, number) returns samples with labels from index `start` on, at most `number`.
        """
        if self._max_samples is None:
            return TriggeredSamples.pending(self.cursor)
        at = self.cursor.num_labelled - self.cursor.num_pending
        stop, first, last = at + self._num_taken, list[int](), list[int]()
        while at < stop:
            samples = read(at, stop - at)
            first.append(int(samples.timestamps.min()))
            last.append(int(samples.timestamps.max()))
            at += len(samples)
        return TriggeredSamples(self._num_taken, stop, min(first), max(last))

    @property
    def _num_taken(self) -> int:
        return min(self.cursor.num_pending, self._max_samples or self.cursor.num_pending)

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Receive the next trigger of the run, from either track, after `take` has returned the samples of the trigger."""
        if outcome.online and not self.online:
            self.cursor = self.cursor.after_steps()
            return
        self.policy.triggered(outcome)
        # With `max_samples`, a step batch may leave samples for the next step batch. A retraining takes all samples.
        left = self.cursor.num_pending - self._num_taken if outcome.online else 0
        self.cursor = replace(self.cursor.after_trigger(), num_pending=left)

    def ended(self, outcome: TriggerOutcome) -> None:
        """Receive the end of the trigger, with the model if the trigger made a model."""
        if self.online or not outcome.online:
            self.policy.ended(outcome)

    @property
    def warning(self) -> str:
        """Warnings about the policy, about late samples, and about more waiting samples than one trigger takes; empty without warnings."""
        warning = self.policy.warning() or self._late.warning(self.policy.late_span_s) or ""
        if self.cursor.num_pending <= self._num_taken:
            return warning
        too_many = (
            f"more than {self._max_samples:,} samples wait for steps of proactive training (online.max_samples), which lag the stream; let "
            "online.trigger fire more often, or raise online.max_samples or online.max_share"
        )
        return "\n".join(filter(None, (warning, too_many)))

    def state(self) -> dict[str, Any]:
        """Return the state that survives a restart in addition to the run's cursor, as JSON."""
        if not self.online:
            return self.policy.state()
        return {"version": 1, "policy": self.policy.state(), **{name: getattr(self.cursor, name) for name in _KEPT}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state()`, and replay only verdicts after this state. Raises: CorruptStateError."""
        if not self.online:
            self.policy.load_state(state)
            return
        values = dict(state)
        if values.pop("version", None) != 1 or "policy" not in values:
            raise CorruptStateError(
                f"the saved state of section {ONLINE} is not readable: found {dict(state)}; submit the run again"
            )
        self.policy.load_state(values.pop("policy"))
        self.cursor = replace(self.cursor, **values)
        while self._verdicts and self._verdicts[0].position <= self.cursor.last_check:
            self._verdicts.popleft()

    def _passed_over(self) -> CorruptStateError:
        return diverged(self._journal.run_id, f"checked after {self._verdicts[0].position} samples", self.cursor.position)


def open_tracks(
    pipeline: Pipeline, journal: RunJournal, cursor: Cursor, checks: Sequence[CheckRecord], source: EvidenceSource
) -> tuple[TriggerTrack, TriggerTrack | None]:
    """Return the track of a run's retrainings and the track of the online steps; the second track is None without a section `online`.

    Args: see `TriggerTrack`. Raises: ConfigError.
    """
    seed, delay = pipeline.training.seed, pipeline.label_delay
    policy = build_trigger(pipeline.trigger, TriggerContext(seed, label_delay=delay))
    retrainings = TriggerTrack(policy, journal, cursor, checks, source)
    if (config := pipeline.online) is None:
        return retrainings, None
    policy = build_trigger(config.trigger, TriggerContext(seed, online=True, label_delay=delay), f"{ONLINE}.trigger")
    if config.max_share < 1:
        policy = ShareBound(policy, config.max_share)
    steps = TriggerTrack(policy, journal, cursor, checks, source, online=True, max_samples=config.max_samples)
    return retrainings, steps


def first_due(tracks: Sequence[TriggerTrack]) -> TriggerTrack:
    """Return the track that decides next, or the first track if no track decides in this batch. See `DueChecks.before` for equal positions."""
    first = tracks[0]
    for track in tracks[1:]:
        if track._due.before(first._due):
            first = track
    return first


def diverged(run_id: str, before: str, position: int) -> CorruptStateError:
    """Build the error for a resumed run whose decision differs from its journal. Args: before: journalled decision. position: present position."""
    return CorruptStateError(
        f"run {run_id} {before}, but not when it continues from its journal (now after {position}), on the same samples: the trigger policy "
        "differs from the one that began the run; install that one again, or submit the pipeline again"
    )
