"""Store the stream of each run and select the trigger sets, without gRPC.

Locks: one selection of a run runs at a time (`RunSlots`). A selection can be cancelled, and blocks neither `inform` nor other runs. The row of a run
is locked only for short transactions. The log counts and locks its samples, so that `inform` needs no database. A file is written and synced before
the row that names it is committed; a row therefore never names missing data. With `storage_backend: database`, a thread copies the samples from the
log into rows.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from prometheus_client import Counter
from sqlalchemy import delete, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from modyn.atomic_write import make_folder, sync
from modyn.db.engine import Database
from modyn.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, ModynError, NotFoundError, UnavailableError
from modyn.records import Int64Array, KeysAndWeights, RunId, RunRegistration, SampleBatch, SelectionSummary, TriggerSetInfo
from modyn.rpc.logs import get_logger
from modyn.rpc.retry import CancellationToken
from modyn.run_ids import check_run_id
from modyn.selector.deletions import DeletedKeys
from modyn.selector.known_sets import FoundSet, KnownSets
from modyn.selector.run_files import RunFiles, set_aside_orphan
from modyn.selector.run_rows import (
    RUNS,
    TRIGGERS,
    RunRecord,
    TriggerSetRecord,
    find_newest_trigger,
    find_retrainings,
    find_run,
    find_summary,
    find_trigger,
    get_run,
    keep_summary,
    tail_end,
    update_run,
)
from modyn.selector.sample_log import check_range
from modyn.selector.sample_rows import RowCopier, copy_rows, create_rows, drop_rows
from modyn.selector.selection import build_selection
from modyn.selector.storage_columns import ReadColumn, no_columns
from modyn.selector.summary import ChosenSet, summarize
from modyn.selector.trigger_selection import TriggerSelection
from modyn.selector.trigger_set import check_checksum, check_next
from modyn.selector.window import (
    BLOCK,
    CancellableReader,
    FeedbackFiles,
    trigger_before_window,
)

SAMPLES_INFORMED = Counter("modyn_selector_samples_informed_total", "Samples that runs were informed of, without repeated ones")
KEYS_PER_CHUNK = 262_144
"""Number of keys and weights in one chunk: 3 MiB."""
ROWS_PER_COPY = 1_048_576
"""Largest number of samples that one transaction copies into a run's table."""


class Selector:
    """Runs with their samples and trigger sets, in a database and a directory.

    Every method raises UnavailableError if PostgreSQL or the disk cannot be used.
    """

    def __init__(
        self, database: Database, directory: Path, deleted_keys: DeletedKeys, read_column: ReadColumn = no_columns
    ) -> None:
        self._database = database
        self._deleted_keys, self._read_column = deleted_keys, read_column
        self._runs = directory / "runs"
        make_folder(self._runs)
        self._orphans = directory / "orphans"
        """Folder for folders of runs without a row in the database. The selector moves such folders here when it starts, and never reads them."""
        self._slots = RunSlots()
        self._informed: dict[RunId, RunRecord] = {}
        """Cache of run records for `inform`, which uses only fields that never change. The dict needs no lock, because each access is a single
        operation.
        """
        self._sets = KnownSets()
        self._copier = RowCopier(self._copy_some_rows)
        self._logger = get_logger("selector")

    def close(self) -> None:
        """Stop the thread that copies samples into tables."""
        self._copier.stop()

    def register_run(self, registration: RunRegistration) -> None:
        """Register a run. The call has no effect if the run is registered with equal arguments.

        Raises: AlreadyExistsError: the run is registered with other arguments. InvalidArgumentError: the name is not a file name. ConfigError: the
            section `selection_strategy` is invalid.
        """
        check_run_id(run_id := registration.run_id)
        build_selection(registration.selection_strategy)
        with self._database.session() as session:
            before = find_run(session, run_id)
        # The deletion of an earlier run with this name may be incomplete. The row of the earlier run would block the new run.
        if before is not None and before.deleting:
            self._finish_deletion(before)
        with self._database.session() as session:
            new = upsert(RUNS).values(asdict(registration))
            # If two calls register the same run at once, the second call waits here for the transaction of the first call, and then adds no row.
            added = session.execute(new.on_conflict_do_nothing().returning(RUNS.c.number)).all()
            run = get_run(session, run_id, lock=True)
            if added:
                # The log is created before the commit. A crash before the commit leaves a folder without a row, and `recover` sets this folder aside.
                self._files(run).log.create()
                if run.in_database:
                    create_rows(session, run.number)
        if not registration.is_equal(run.registration):
            raise AlreadyExistsError(
                f"run '{run_id}' is registered with another dataset, or another registration of it, selection strategy, section online or seed; "
                "choose another run id or delete the run"
            )

    def run(self, run_id: RunId) -> RunRecord:
        """Return the registration of a run. Raises NotFoundError if the run is unknown."""
        with self._database.session() as session:
            return get_run(session, run_id)

    def inform(self, run_id: RunId, position: int, samples: SampleBatch) -> int:
        """Append `samples` at `position` of the run's stream, except samples that are already stored. Returns the number of stored samples.

        Raises: NotFoundError: the run is unknown. ConflictError: samples before `position` are missing.
        """
        run = self._informed_run(run_id)
        num_held, added = self._files(run).log.append(position, samples)
        if run.in_database and added:
            self._copier.wake(run_id)
        SAMPLES_INFORMED.inc(added)
        return num_held

    def inform_labels(self, run_id: RunId, number: int, samples: SampleBatch) -> int:
        """Append samples whose labels have arrived. Returns the number of samples with labels. In the first call, `number` is the position of the
        first sample that arrived without its label.

        Args: number: index of the first of these samples among all samples with labels. Raises: NotFoundError: the run is unknown. ConflictError:
        samples before `number` are missing, or repeated samples differ from the stored samples.
        """
        files = self._files(self._informed_run(run_id))
        return (files.labelled or files.begin_labels(number)).append(number, samples)

    def _informed_run(self, run_id: RunId) -> RunRecord:
        run = self._informed.get(run_id)
        # If the log is missing, the run was deleted, and perhaps a new run with its name was registered. The row has the current state.
        if run is None or not self._files(run).log.exists():
            run = self._informed[run_id] = self.run(run_id)
        return run

    def samples(self, run_id: RunId, position: int, limit: int, *, labelled: bool = False) -> SampleBatch:
        """Return at most `limit` samples from `position` on, as `inform` received them. The result is empty if `position` is after the last sample.

        Args: labelled: return only samples with labels, in the order of their labels. Raises: ConflictError: the run has fewer samples.
        InvalidArgumentError: `position` or `limit` is out of range.
        """
        files = self._files(self.run(run_id))
        log = files.selectable if labelled else files.log
        held = log.state().num_samples
        check_range(run_id, held, position, limit)
        return log.read(position, min(position + limit, held))

    def trigger(
        self,
        run_id: RunId,
        trigger_id: int,
        num_samples: int,
        token: CancellationToken | None = None,
        *,
        online: bool = False,
        tests_only: bool = False,
    ) -> TriggerSetInfo:
        """Select the trigger set over the first `num_samples` samples with labels, or return the existing set.

        Args: online: select the steps of proactive training over the samples since the previous trigger, by the section `online`. tests_only: select
            only the new samples of these steps, for a test. token: token that cancels the selection; a cancelled trigger is not stored.
            Raises: ConflictError: the trigger exists with another number of samples, the trigger is not the next trigger, `num_samples` is less than
            in the previous trigger, or fewer samples are stored.
        """
        token = token or CancellationToken()
        with self._slots.hold(run_id, token):
            run, before, found = self._before(run_id, trigger_id)
            if found is None:
                log = self._files(run).selectable
                next_id, covered = (0, 0) if before is None else (before.trigger_id + 1, before.num_samples)
                check_next(run_id, log.state().num_samples, next_id, covered, trigger_id, num_samples)
                # The policy must see all rows. The missing rows are copied in parts, so that a cancelled trigger ends soon.
                while run.in_database and self._copy_some_rows(run_id):
                    token.check()
                ends, tail_end = partial(self._ends, run, trigger_id), partial(self._tail_end, run)
                asked = self._deleted_keys, self._read_column
                selecting = TriggerSelection(run, self._files(run), before, ends, tail_end, *asked)
                select_set = partial(selecting.select_online, tests_only=tests_only) if online else selecting.select
                found = select_set(CancellableReader(log, token), num_samples)
                with self._database.session() as session:
                    # `get_run` raises an error if the run was deleted during the selection. Its lock blocks a deletion until the commit.
                    get_run(session, run_id, lock=True)
                    session.execute(insert(TRIGGERS).values({"run_number": run.number, **asdict(found)}))
                # After the commit no trigger opens the older state files. Before the commit, a repeated trigger would need them.
                if before is not None:
                    self._files(run).remove(before.state_file_names - found.state_file_names)
                self._sets.add(run, found)
        # A repeated call returns the stored set, which must match the arguments of the call.
        if found.num_samples != num_samples or found.online != online:
            raise ConflictError(
                f"trigger {trigger_id} of run '{run_id}' {'is online and ' if found.online else ''}covers the first {found.num_samples} samples, "
                f"not {num_samples}{' as an online one' if online else ''}; a trigger set does not change"
            )
        return found.info(run)

    def _before(self, run_id: RunId, trigger_id: int) -> tuple[RunRecord, TriggerSetRecord | None, TriggerSetRecord | None]:
        """Return the run, its newest trigger set, and the set `trigger_id`; a missing set is None. The caller must hold the run's slot."""
        known = self._sets.newest(run_id)
        # The usual case: the next trigger of a run that this process knows. It needs no query, because the slot excludes other triggers of the run.
        if known is not None and trigger_id == known[1].trigger_id + 1:
            return *known, None
        with self._database.session() as session:
            run = get_run(session, run_id)
            newest = find_newest_trigger(session, run)
            is_new = newest is None or trigger_id > newest.trigger_id
            return run, newest, None if is_new else find_trigger(session, run, trigger_id)

    def _ends(self, run: RunRecord, trigger_id: int) -> Int64Array:
        """Return the number of samples that each trigger before `trigger_id` covers, without online triggers."""
        with self._database.session() as session:
            return np.array(find_retrainings(session, run, trigger_id)[1], np.int64)

    def _tail_end(self, run: RunRecord, tail_triggers: int) -> int:
        with self._database.session() as session:
            return tail_end(session, run, tail_triggers)

    def trigger_set(self, run_id: RunId, trigger_id: int) -> TriggerSetInfo:
        """Describe an existing trigger set. Raises NotFoundError if the set does not exist."""
        return self._find_set(run_id, trigger_id)[1]

    def keys(
        self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "", chunk_size: int = KEYS_PER_CHUNK
    ) -> Iterator[KeysAndWeights]:
        """Return a partition in chunks of at most `chunk_size` keys.

        Args: keys_checksum: checksum of the expected trigger set; empty accepts any. Raises: ConflictError: the trigger set has another checksum.
        CorruptStateError: the file was changed or damaged. NotFoundError: the run has no such trigger.
        """
        run, info = self._find_set(run_id, trigger_id)
        check_checksum(info, keys_checksum)
        return self._files(run).open_set(info).partition(partition, chunk_size)

    def summary(self, run_id: RunId, trigger_id: int) -> SelectionSummary:
        """Count a trigger's candidates and its chosen samples. The first call reads the window, and stores the result with the trigger.

        Raises: NotFoundError: the run has no such trigger. InvalidArgumentError: the trigger is online. CorruptStateError: log or sets are damaged.
        """
        run, _ = self._find_set(run_id, trigger_id)
        with self._database.session() as session:
            counted = find_summary(session, run, trigger_id)
            found, ends = find_retrainings(session, run, trigger_id + 1)
        if counted is not None:
            return counted
        if trigger_id not in found:
            raise InvalidArgumentError(
                f"trigger {trigger_id} of run '{run_id}' is online: it takes all new samples, and draws from the history as online.history says"
            )
        tail, files = build_selection(run.selection_strategy).config.tail_triggers, self._files(run)

        def of(number: int) -> ChosenSet:
            before, chosen = trigger_before_window(number, tail), files.open_set(self._find_set(run_id, found[number])[1])
            return ChosenSet(0 if before is None else ends[before], ends[number], chosen.header.num_keys, chosen.chunks(BLOCK))

        # `found` ends with this trigger. Windows do not count online triggers, so triggers are numbered by their indices in `found`.
        last = len(found) - 1
        counted = summarize(files.selectable, trigger_id, of(last), of(last - 1) if last else None)
        with self._database.session() as session:
            keep_summary(session, run, counted)
        return counted

    def _find_set(self, run_id: RunId, trigger_id: int) -> FoundSet:
        return self._sets.get(run_id, trigger_id, partial(self._look_up, run_id, trigger_id))

    def _look_up(self, run_id: RunId, trigger_id: int) -> FoundSet:
        with self._database.session() as session:
            run = get_run(session, run_id)
            found = find_trigger(session, run, trigger_id)
        if found is None:
            raise NotFoundError(f"run '{run_id}' has no trigger {trigger_id}; trigger it first")
        return run, found.info(run)

    def feedback(self, run_id: RunId) -> FeedbackFiles:
        """Return the files with the scores of the run's trainings. Raises NotFoundError if the run is unknown."""
        return self._files(self.run(run_id)).feedback

    def delete_run(self, run_id: RunId) -> None:
        """Delete a run, its samples and its trigger sets. An unknown run is not an error."""
        with self._database.session() as session:
            run = find_run(session, run_id, lock=True)
            if run is not None:
                update_run(session, run, deleting=True)
        if run is not None:
            self._finish_deletion(run)

    def _finish_deletion(self, run: RunRecord) -> None:
        # End a selection that began before the row was marked, because the selection would write into the folder. The marked row blocks later
        # selections.
        self._slots.end(run.run_id, NotFoundError(f"run '{run.run_id}' was deleted while a trigger set was selected"))
        self._informed.pop(run.run_id, None)
        self._sets.forget(run.run_id)
        directory = self._files(run).directory
        # Several callers may delete a run at once. If another caller has already removed a file, the removal starts again.
        try:
            while directory.exists():
                with suppress(FileNotFoundError):
                    shutil.rmtree(directory)
            # The removal of the folder must be durable before the row is deleted. Otherwise a crash could bring the folder back without its row, and
            # the next start would set it aside forever.
            sync(self._runs)
        except OSError as error:
            raise UnavailableError(
                f"cannot delete {directory} of run '{run.run_id}': {error.strerror}; repair the disk and delete the run again"
            ) from error
        with self._database.session() as session:
            found = find_run(session, run.run_id, lock=True)
            # Meanwhile another caller may have deleted the row, and a new run of this name may have been registered.
            if found is not None and found.number == run.number:
                if run.in_database:
                    drop_rows(session, run.number)
                session.execute(delete(RUNS).where(RUNS.c.number == run.number))

    def recover(self) -> None:
        """Finish or undo the changes that a crash interrupted. The service calls this method once, before it serves the first call."""
        with self._database.session() as session:
            known = session.scalars(select(RUNS.c.run_id).order_by(RUNS.c.number)).all()
        directories = set()
        for run_id in known:
            # Each run has its own short transaction, so that many runs are not locked at once.
            with self._database.session() as session:
                run = find_run(session, run_id, lock=True)
                if run is None:
                    continue
                directories.add(self._files(run).directory)
                if not run.deleting:
                    self._repair(run, find_newest_trigger(session, run))
            if run.deleting:
                try:
                    self._finish_deletion(run)
                except ModynError as error:
                    self._logger.error("run_not_deleted", run_id=run_id, error=error.message)
        for directory in set(self._runs.iterdir()) - directories:
            set_aside_orphan(directory, self._orphans)

    def _repair(self, run: RunRecord, newest: TriggerSetRecord | None) -> None:
        """Repair the log, and remove files of triggers without a row. Damage is only logged, because the other runs are still usable."""
        files = self._files(run)
        known = {files.set_path(trigger_id).name for trigger_id in range(newest.trigger_id + 1)} if newest else set()
        try:
            files.log.repair()
            if files.labelled is not None:
                files.labelled.repair()
            files.feedback.repair()
            found = files.names_in_folder()
        except (ModynError, OSError) as error:
            self._logger.error("run_not_repaired", run_id=run.run_id, path=str(files.directory), error=str(error))
        else:
            files.remove(found - known - (newest.state_file_names if newest else set()))

    def _copy_some_rows(self, run_id: RunId) -> bool:
        """Copy some samples into the run's table; return whether more may be left."""
        with self._database.session() as session:
            run = get_run(session, run_id, lock=True)
            return self._copy_rows(session, run, ROWS_PER_COPY) == ROWS_PER_COPY

    def _copy_rows(self, session: Session, run: RunRecord, most: int | None = None) -> int:
        """Copy at most `most` samples into the run's table. Returns the number of copied samples. The session must hold the lock on the run's row."""
        num_rows = copy_rows(session, run.number, self._files(run).selectable, run.num_rows, most)
        if num_rows != run.num_rows:
            update_run(session, run, num_rows=num_rows)
        return num_rows - run.num_rows

    def _files(self, run: RunRecord) -> RunFiles:
        # The number distinguishes a run from an earlier run of the same name.
        return RunFiles(run.run_id, self._runs / f"{run.run_id}.{run.number}")


class RunSlots:
    """One slot for each run. One thread at a time may hold a slot."""

    def __init__(self) -> None:
        # Guards `_held`. It is notified when a slot becomes free or a waiter is cancelled.
        self._changed = threading.Condition()
        self._held: dict[RunId, CancellationToken] = {}

    @contextmanager
    def hold(self, run_id: RunId, token: CancellationToken) -> Iterator[None]:
        """Wait for the slot of the run, and hold it in the block. Raises the token's cause if the token is cancelled during the wait."""
        unregister = token.on_cancel(lambda _: self._wake())
        try:
            with self._changed:
                # Wait until the slot is free or the token is cancelled: both notify.
                self._changed.wait_for(lambda: run_id not in self._held or token.cause is not None)
                token.check()
                self._held[run_id] = token
        finally:
            unregister()
        try:
            yield
        finally:
            with self._changed:
                del self._held[run_id]
                self._changed.notify_all()

    def end(self, run_id: RunId, cause: ModynError) -> None:
        """If a thread holds the run's slot, cancel the token of this thread with `cause`. Wait until the slot is free."""
        with self._changed:
            token = self._held.get(run_id)
        if token is None:
            return
        token.cancel(cause)
        with self._changed:
            # The wait ends when the holder sees its cancelled token and leaves its block. Another thread may then hold the slot.
            self._changed.wait_for(lambda: self._held.get(run_id) is not token)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
