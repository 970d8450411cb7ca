"""Table of the statuses of trainings or evaluations. The table starts one job at a time, informs watchers of every end of a job, and keeps a bounded
number of ended jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from modyn.rpc.retry import JobStatus
from modyn.workers.session import Job

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=JobStatus)


class JobTable(Generic[K, S]):
    """Statuses of live jobs and of the jobs that ended most recently. Thread-safe.

    Args:
        absent: returns the status of a job that is not in the table, e.g. from a database; raises NotFoundError if there is none.
        num_ended: number of ended jobs that stay in the table; the oldest jobs are removed first.
    """

    def __init__(self, absent: Callable[[K], S], num_ended: int) -> None:
        self._absent = absent
        self._num_ended = num_ended
        # Protects starts and reads of `absent` from each other: no job starts between a read of `absent` and its use.
        self._starting = threading.Lock()
        self.changed = threading.Condition()
        """Lock that protects the table and the service's own data on jobs. The lock is reentrant, and waiting threads are notified at every change.
        """
        self._statuses: dict[K, S] = {}
        self._jobs: dict[K, Job] = {}

    def __len__(self) -> int:
        return len(self._statuses)

    def start(self, key: K, find_ended: Callable[[], S | None], begin: Callable[[], S]) -> S:
        """Return the status of a live job. Without a live job, return the status that `find_ended` returns for a job that ended well. If there is no
        such status, start the job with `begin`, and return its first status.

        `begin` sets the first status. During the calls of `find_ended` and `begin`, the lock `changed` is not held. One job starts at a time.
        """
        with self._starting:
            live = self.get(key)
            if live is not None and not live.state.is_final:
                return live
            return find_ended() or begin()

    def get(self, key: K) -> S | None:
        """Return the status of a job in the table; None: the table has no status for the job."""
        with self.changed:
            return self._statuses.get(key)

    def status(self, key: K) -> S:
        """Return the status of a job in the table, or else the status that `absent` returns."""
        found = self.get(key)
        if found is None:
            with self._starting:
                found = self.get(key) or self._absent(key)
        return found

    def unfinished(self) -> list[S]:
        """Return the statuses that are not final."""
        with self.changed:
            return [status for status in self._statuses.values() if not status.state.is_final]

    def set(self, key: K, status: S) -> S:
        """Add or replace a status, and wake the watchers."""
        with self.changed:
            self._statuses.pop(key, None)
            self._statuses[key] = status
            ended = [k for k, s in self._statuses.items() if s.state.is_final] if status.state.is_final else []
            for old in ended[: max(0, len(ended) - self._num_ended)]:
                del self._statuses[old]
            self.changed.notify_all()
        return status

    def update(self, key: K, change: Callable[[S], S]) -> None:
        """Replace the status of a live job by `change(status)`. Does nothing for other jobs."""
        with self.changed:
            status = self._statuses.get(key)
            if status is not None and not status.state.is_final:
                self.set(key, change(status))

    def attach(self, key: K, submit: Callable[[], Job]) -> None:
        """Submit the worker's job of `key`. Args: submit: called once, with `changed` held."""
        with self.changed:  # the lock is held so that a job that ends immediately finds its entry
            self._jobs[key] = submit()

    def settle(self, key: K, end: Callable[[S], S]) -> None:
        """Replace the status by the final status `end(status)`, wake the watchers, and remove the worker's job."""
        with self.changed:
            self._jobs.pop(key, None)
            self.set(key, end(self._statuses[key]))

    def stop(self, key: K) -> None:
        """Ask the worker of a live job to stop. Raises: the errors of `absent`."""
        with self.changed:
            job = self._jobs.get(key)
        if job is None:
            self.status(key)
        else:
            job.stop()

    def end_all(self, chosen: Callable[[K], bool], timeout_s: float) -> bool:
        """Stop all live jobs with a chosen key, wait for their ends, and remove them. Returns False if a job has not ended in time."""
        with self.changed:
            live = [job for key, job in self._jobs.items() if chosen(key)]
        for job in live:
            job.stop()
        with self.changed:
            # `settle` notifies this thread; the wait ends when all chosen jobs are settled.
            if not self.changed.wait_for(lambda: not any(chosen(key) for key in self._jobs), timeout_s):
                return False
            for key in [key for key, status in self._statuses.items() if chosen(key) and status.state.is_final]:
                del self._statuses[key]
            self.changed.notify_all()
        return True

    def watch(self, key: K, active: Callable[[], bool] = lambda: True) -> Iterator[S]:
        """Yield the current status and each change, up to the final status or until `active` returns False. Call `wake` when the result of `active`
        changes.

        Raises: the errors of `absent`.
        """
        last: S | None = None
        while active() and (last is None or not last.state.is_final):
            with self.changed:
                # `set` notifies when a status changes or a job leaves the table, `wake` when `active` changes.
                while (status := self._statuses.get(key)) is not None and status == last and active():
                    self.changed.wait()
            if not active():
                return
            last = status or self.status(key)
            yield last

    def wake(self) -> None:
        """Make all watchers call `active` again."""
        with self.changed:
            self.changed.notify_all()
