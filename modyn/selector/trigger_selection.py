"""Select the trigger set behind the newest one of a run: by its selection strategy, or the steps of proactive training. No lock, no database."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prometheus_client import Histogram

from modyn.errors import ConflictError
from modyn.records import Int64Array
from modyn.selector.columns import ReadColumn
from modyn.selector.deletions import DeletedKeys
from modyn.selector.history import select_online
from modyn.selector.run_files import RunFiles
from modyn.selector.run_rows import RunRecord, TriggerSetRecord
from modyn.selector.selection import build_selection
from modyn.selector.trigger_set import write_trigger_set
from modyn.selector.window import SampleReader, SelectionContext, StateFiles, window_of_trigger

TRIGGER_SECONDS = Histogram(
    "modyn_selector_trigger_seconds", "Seconds to select a trigger set", buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
)


@dataclass(frozen=True, slots=True)
class TriggerSelection:
    """The selection of one trigger set, which may take minutes.

    before: the newest trigger set; None: there is none. ends: returns how many samples each trigger covers so far, int64. tail_end: returns how many
    the one covers that is so many before the newest; 0: there is none. Online triggers count in neither.
    """

    run: RunRecord
    files: RunFiles
    before: TriggerSetRecord | None
    ends: Callable[[], Int64Array]
    tail_end: Callable[[int], int]
    deleted_keys: DeletedKeys
    read_column: ReadColumn

    def select(self, reader: SampleReader, num_samples: int) -> TriggerSetRecord:
        """Select by the run's strategy, over the first `num_samples` samples, and write the set."""
        started, run, before = time.perf_counter(), self.run, self.before
        trigger_id = 0 if before is None else before.trigger_id + 1
        policy = build_selection(run.selection_strategy)
        if before is not None:
            policy.load_state(before.policy_state)
        size = policy.config.maximum_keys_in_memory
        deleted = self.deleted_keys(run.dataset, run.dataset_identity)
        start = self._window_start(policy.config.tail_triggers)
        window = window_of_trigger(reader, start, num_samples, size, deleted)
        state = StateFiles(self.files.triggers, trigger_id, before.state_files if before else None)
        column = partial(self.read_column, run.dataset, run.dataset_identity)
        context = SelectionContext(run.seed, trigger_id, state, self.ends, self.files.feedback.find, column)
        selection = policy.select(window, context)
        header = write_trigger_set(self.files.set_path(trigger_id), size, selection)
        TRIGGER_SECONDS.observe(time.perf_counter() - started)
        return TriggerSetRecord(
            trigger_id,
            num_samples,
            header.num_keys,
            size,
            header.keys_sha256,
            policy.state(),
            num_deleted=len(deleted),
            state_files=state.references(),
        )

    def select_online(self, reader: SampleReader, num_samples: int, *, tests_only: bool = False) -> TriggerSetRecord:
        """Select the steps over the samples since the trigger before, and write the set. What the strategy keeps goes on to the next trigger.

        Args: tests_only: only the new samples, for none is trained on.
        Raises: ConflictError: there are no steps to take.
        """
        started, run, before = time.perf_counter(), self.run, self.before
        if run.online is None or before is None:
            why = (
                "its pipeline has no section `online`"
                if run.online is None
                else "no trigger came before, whose model they go on from"
            )
            raise ConflictError(f"run '{run.run_id}' has no online trigger: {why}")
        trigger_id = before.trigger_id + 1
        size = build_selection(run.selection_strategy).config.maximum_keys_in_memory
        deleted = self.deleted_keys(run.dataset, run.dataset_identity)
        window = window_of_trigger(reader, 0, num_samples, size, deleted)
        num_new = len(window_of_trigger(reader, before.num_samples, num_samples, size, deleted))
        context = SelectionContext(run.seed, trigger_id, StateFiles(self.files.triggers, trigger_id), self.ends)
        selection = select_online(run.online, window, len(window) - num_new, context, tests_only=tests_only)
        header = write_trigger_set(self.files.set_path(trigger_id), size, selection)
        TRIGGER_SECONDS.observe(time.perf_counter() - started)
        found = trigger_id, num_samples, header.num_keys, size, header.keys_sha256
        return TriggerSetRecord(*found, before.policy_state, len(deleted), before.state_files, online=True)

    def _window_start(self, tail_triggers: int | None) -> int:
        """Where the window of a trigger begins in the stream: it reaches back over triggers that are not online."""
        if tail_triggers is None or self.before is None:
            return 0
        if tail_triggers == 0 and not self.before.online:
            return self.before.num_samples
        return self.tail_end(tail_triggers)
