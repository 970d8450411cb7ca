"""A cache of recent trigger sets in memory: a trigger set does not change until its run is deleted."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from modyn.records import RunId, TriggerSetInfo
from modyn.selector.run_rows import RunRecord, TriggerSetRecord

FoundSet = tuple[RunRecord, TriggerSetInfo]
"""A run and one of its trigger sets. Use only fields of the run that never change, because the record may be outdated."""

_MOST_SETS, _MOST_RUNS = 256, 64
"""Largest numbers of cached trigger sets, and of runs whose newest set is cached. A set that is not cached costs one query."""


class KnownSets:
    """Trigger sets by run and trigger, and the newest set of a run. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the fields below. No thread holds this lock during `look_up`, which asks the database."""
        self._found: OrderedDict[tuple[RunId, int], FoundSet] = OrderedDict()
        self._newest: OrderedDict[RunId, tuple[RunRecord, TriggerSetRecord]] = OrderedDict()
        self._num_forgotten = 0
        """Number of deletions of runs so far. A set that was looked up before a deletion may belong to the deleted run."""

    def get(self, run_id: RunId, trigger_id: int, look_up: Callable[[], FoundSet]) -> FoundSet:
        """Return the cached trigger set, or else the result of `look_up`. Raises the errors of `look_up`."""
        with self._lock:
            found, before = self._found.get((run_id, trigger_id)), self._num_forgotten
        if found is not None:
            return found
        found = look_up()
        with self._lock:
            # If a run was deleted meanwhile, the set may belong to this run, and must not be cached.
            if before == self._num_forgotten:
                self._keep(run_id, found)
        return found

    def newest(self, run_id: RunId) -> tuple[RunRecord, TriggerSetRecord] | None:
        """Return the last set that was added for a run; None if this set is no longer cached."""
        with self._lock:
            return self._newest.get(run_id)

    def add(self, run: RunRecord, newest: TriggerSetRecord) -> None:
        """Add the newest trigger set of a run. The caller holds the run's slot. A deletion waits for this slot before it calls `forget`."""
        with self._lock:
            self._newest.pop(run.run_id, None)
            self._newest[run.run_id] = run, newest
            if len(self._newest) > _MOST_RUNS:
                self._newest.popitem(last=False)
            self._keep(run.run_id, (run, newest.info(run)))

    def forget(self, run_id: RunId) -> None:
        """Forget the sets of a run. Call this method after the row of the run is marked as deleted."""
        with self._lock:
            self._num_forgotten += 1
            self._newest.pop(run_id, None)
            for key in [key for key in self._found if key[0] == run_id]:
                del self._found[key]

    def _keep(self, run_id: RunId, found: FoundSet) -> None:
        self._found[run_id, found[1].trigger_id] = found
        if len(self._found) > _MOST_SETS:
            self._found.popitem(last=False)
