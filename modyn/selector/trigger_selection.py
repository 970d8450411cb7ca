"""Select the next trigger set of a run, with its selection strategy or as steps of proactive training. This module uses no locks and no database."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prometheus_client import Histogram

from modyn.errors import ConflictError
from modyn.records import Int64Array
from modyn.selector.deletions import DeletedKeys
from modyn.selector.history import select_online
from modyn.selector.run_files import RunFiles
from modyn.selector.run_rows import RunRecord, TriggerSetRecord
from modyn.selector.selection import build_selection
from modyn.selector.storage_columns import ReadColumn
from modyn.selector.trigger_set import write_trigger_set
from modyn.selector.window import SampleReader, SelectionContext, StateFiles, window_of_trigger

TRIGGER_SECONDS = Histogram(
    "modyn_selector_trigger_seconds", "Seconds to select a trigger set", buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
)


@dataclass(frozen=True, slots=True)
class TriggerSelection:
    """The selection of one trigger set, which may take minutes.

    before: the newest trigger set, or None. ends: returns the number of samples that each trigger so far covers, int64. tail_end: for n, returns the
    number of samples that the trigger n steps before the newest trigger covers, or 0 without such a trigger. `ends` and `tail_end` ignore online
    triggers.
    """

    run: RunRecord
    files: RunFiles
    before: TriggerSetRecord | None
    ends: Callable[[], Int64Array]
    tail_end: Callable[[int], int]
    deleted_keys: DeletedKeys
    read_column: ReadColumn

    def select(self, reader: SampleReader, num_samples: int) -> TriggerSetRecord:
        """Select with the run's strategy over the first `num_samples` samples, and write the set."""
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
        # The policy's state is read last, because it may change until all chunks are written.
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
        """Select the steps over the samples since the previous trigger, and write the set. The next trigger gets the strategy's state unchanged.

        Args: tests_only: select only the new samples, for a test that trains on no sample. Raises: ConflictError: the run has no online triggers,
        or no earlier trigger.
        """
        started, run, before = time.perf_counter(), self.run, self.before
        if run.online is None or before is None:
            why = (
                "its pipeline has no section `online`"
                if run.online is None
                else "there is no earlier trigger whose model they continue from"
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
        # State and files are copied, so that the next selection by the strategy continues from its last selection.
        return TriggerSetRecord(*found, before.policy_state, len(deleted), before.state_files, online=True)

    def _window_start(self, tail_triggers: int | None) -> int:
        """Return the position at which the window of a trigger begins. Online triggers do not count."""
        if tail_triggers is None or self.before is None:
            return 0
        # In this usual case, the record of the newest trigger has the position, and no query is needed.
        if tail_triggers == 0 and not self.before.online:
            return self.before.num_samples
        return self.tail_end(tail_triggers)
