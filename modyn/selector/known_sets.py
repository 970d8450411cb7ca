"""The trigger sets that were asked for last, in memory: once it is there, a trigger set does not change until its run is deleted."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from modyn.records import RunId, TriggerSetInfo
from modyn.selector.run_rows import RunRecord, TriggerSetRecord

FoundSet = tuple[RunRecord, TriggerSetInfo]
"""Of the run only what does not change counts."""

_MOST_SETS, _MOST_RUNS = 256, 64


class KnownSets:
    """Trigger sets by run and trigger, and the newest one of a run. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the fields below; not held while a set is looked up."""
        self._found: OrderedDict[tuple[RunId, int], FoundSet] = OrderedDict()
        self._newest: OrderedDict[RunId, tuple[RunRecord, TriggerSetRecord]] = OrderedDict()
        self._num_forgotten = 0
        """Deletions of runs so far: what was looked up before one may be of the run that is gone."""

    def get(self, run_id: RunId, trigger_id: int, look_up: Callable[[], FoundSet]) -> FoundSet:
        """The trigger set, by `look_up` if it is not known. Raises: as `look_up`."""
        with self._lock:
            found, before = self._found.get((run_id, trigger_id)), self._num_forgotten
        if found is not None:
            return found
        found = look_up()
        with self._lock:
            if before == self._num_forgotten:
                self._keep(run_id, found)
        return found

    def newest(self, run_id: RunId) -> tuple[RunRecord, TriggerSetRecord] | None:
        """What `add` was given last of a run, if it is still known."""
        with self._lock:
            return self._newest.get(run_id)

    def add(self, run: RunRecord, newest: TriggerSetRecord) -> None:
        """Note the newest trigger set of a run. For the holder of its slot, which a deletion waits for before it calls `forget`."""
        with self._lock:
            self._newest.pop(run.run_id, None)
            self._newest[run.run_id] = run, newest
            if len(self._newest) > _MOST_RUNS:
                self._newest.popitem(last=False)
            self._keep(run.run_id, (run, newest.info(run)))

    def forget(self, run_id: RunId) -> None:
        """Forget the sets of a run, whose row says by now that it is deleted."""
        with self._lock:
            self._num_forgotten += 1
            self._newest.pop(run_id, None)
            for key in [key for key in self._found if key[0] == run_id]:
                del self._found[key]

    def _keep(self, run_id: RunId, found: FoundSet) -> None:
        self._found[run_id, found[1].trigger_id] = found
        if len(self._found) > _MOST_SETS:
            self._found.popitem(last=False)
