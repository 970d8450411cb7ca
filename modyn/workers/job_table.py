"""The statuses of jobs, trainings and evaluations alike: one start at a time, watchers that miss no end, a bounded number of ended jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from modyn.rpc.retry import JobStatus
from modyn.workers.session import Job

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound=JobStatus)


class JobTable(Generic[K, S]):
    """Statuses of live jobs and of the newest ended ones. Safe to use from any thread.

    Args:
        absent: the status of a job that is not in the table, e.g. from a database; raises NotFoundError if there is none.
        num_ended: ended jobs that stay in the table; the oldest leave first.
    """

    def __init__(self, absent: Callable[[K], S], num_ended: int) -> None:
        self._absent = absent
        self._num_ended = num_ended
        # One start at a time, and no look at `absent` during one: a job must not begin between the look and the entry in the table.
        self._starting = threading.Lock()
        self.changed = threading.Condition()
        """Protects the table, and what a service keeps beside it. Notified at every change. May be taken again by the same thread."""
        self._statuses: dict[K, S] = {}
        self._jobs: dict[K, Job] = {}

    def __len__(self) -> int:
        return len(self._statuses)

    def start(self, key: K, find_ended: Callable[[], S | None], begin: Callable[[], S]) -> S:
        """The status of a job that is live; else of one that has ended well, by `find_ended`; else `begin` starts it.

        `begin` sets the first status. Both calls are made without `changed`, one start at a time.
        """
        with self._starting:
            live = self.get(key)
            if live is not None and not live.state.is_final:
                return live
            return find_ended() or begin()

    def get(self, key: K) -> S | None:
        """The status in the table."""
        with self.changed:
            return self._statuses.get(key)

    def status(self, key: K) -> S:
        """The status in the table, else what `absent` returns."""
        found = self.get(key)
        if found is None:
            with self._starting:
                found = self.get(key) or self._absent(key)
        return found

    def unfinished(self) -> list[S]:
        """The statuses that are not final."""
        with self.changed:
            return [status for status in self._statuses.values() if not status.state.is_final]

    def set(self, key: K, status: S) -> S:
        """Enter or replace a status and wake the watchers."""
        with self.changed:
            self._statuses.pop(key, None)
            self._statuses[key] = status
            ended = [k for k, s in self._statuses.items() if s.state.is_final] if status.state.is_final else []
            for old in ended[: max(0, len(ended) - self._num_ended)]:
                del self._statuses[old]
            self.changed.notify_all()
        return status

    def update(self, key: K, change: Callable[[S], S]) -> None:
        """Replace the status of a live job by `change(status)`; does nothing if it has ended or is unknown."""
        with self.changed:
            status = self._statuses.get(key)
            if status is not None and not status.state.is_final:
                self.set(key, change(status))

    def attach(self, key: K, submit: Callable[[], Job]) -> None:
        """Submit the worker's job of `key`. Under the lock: a job that ends at once finds its entry.

        Args: submit: called once, with `changed` held.
        """
        with self.changed:
            self._jobs[key] = submit()

    def settle(self, key: K, end: Callable[[S], S]) -> None:
        """Replace the status by the final one, `end(status)`, wake the watchers and forget the worker's job."""
        with self.changed:
            self._jobs.pop(key, None)
            self.set(key, end(self._statuses[key]))

    def stop(self, key: K) -> None:
        """Ask the worker of a live job to stop. Raises NotFoundError by `absent`."""
        with self.changed:
            job = self._jobs.get(key)
        if job is None:
            self.status(key)
        else:
            job.stop()

    def end_all(self, chosen: Callable[[K], bool], timeout_s: float) -> bool:
        """Ask the workers of all live jobs with a chosen key to stop, and wait for their ends; forget them. False: one has not ended in time."""
        with self.changed:
            live = [job for key, job in self._jobs.items() if chosen(key)]
        for job in live:
            job.stop()
        with self.changed:
            # Until `settle` was called for all of them.
            if not self.changed.wait_for(lambda: not any(chosen(key) for key in self._jobs), timeout_s):
                return False
            for key in [key for key, status in self._statuses.items() if chosen(key) and status.state.is_final]:
                del self._statuses[key]
            self.changed.notify_all()
        return True

    def watch(self, key: K, active: Callable[[], bool] = lambda: True) -> Iterator[S]:
        """The status now and on every change, up to a final one, or until `active` returns False (call `wake` when that has changed).

        Raises NotFoundError by `absent`.
        """
        last: S | None = None
        while active() and (last is None or not last.state.is_final):
            with self.changed:
                # Until the status changes or the job leaves the table (`set`), or `wake` reports that `active` has changed.
                while (status := self._statuses.get(key)) is not None and status == last and active():
                    self.changed.wait()
            if not active():
                return
            last = status or self.status(key)
            yield last

    def wake(self) -> None:
        """Make all watchers ask `active` again."""
        with self.changed:
            self.changed.notify_all()
