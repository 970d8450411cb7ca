"""The selector without gRPC: it stores the stream of each run and fixes the trigger sets.

Locks: one selection of a run at a time (`RunSlots`), which blocks neither its informing nor other runs, and can be cancelled. The row of
a run is locked for the length of short transactions only. Samples are counted and locked in their log, so that informing needs no database.
Order of writes: file, disk, row, so that a row never promises data that does not exist. With `storage_backend: database` a thread copies the
samples as rows behind the log.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import Counter
from sqlalchemy import delete, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from modyn.atomic_write import make_folder, sync
from modyn.db.engine import Database
from modyn.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, ModynError, NotFoundError, UnavailableError
from modyn.records import Int64Array, KeysAndWeights, RunId, SampleBatch, SelectionSummary, TriggerSetInfo
from modyn.rpc.logs import get_logger
from modyn.rpc.retry import CancellationToken
from modyn.run_ids import check_run_id
from modyn.selector.columns import ReadColumn, no_columns
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
from modyn.selector.run_slots import RunSlots
from modyn.selector.sample_log import check_range
from modyn.selector.sample_rows import RowCopier, copy_rows, create_rows, drop_rows
from modyn.selector.selection import build_selection
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
"""Keys and weights in one chunk: 3 MiB."""
ROWS_PER_COPY = 1_048_576
"""Samples that are copied into a run's table in one transaction, unless a trigger needs all of them."""


class Selector:
    """Runs, their samples and their trigger sets, in a database and below a directory.

    Every method raises UnavailableError when PostgreSQL or the disk cannot be used.
    """

    def __init__(
        self, database: Database, directory: Path, deleted_keys: DeletedKeys, read_column: ReadColumn = no_columns
    ) -> None:
        self._database = database
        self._deleted_keys, self._read_column = deleted_keys, read_column
        self._runs = directory / "runs"
        make_folder(self._runs)
        self._orphans = directory / "orphans"
        """Folders of runs that the database did not name at a start, set aside and never read."""
        self._slots = RunSlots()
        self._informed: dict[RunId, RunRecord] = {}
        """Cache of `inform`, which uses only the immutable fields of the records."""
        self._sets = KnownSets()
        self._copier = RowCopier(self._copy_some_rows)
        self._logger = get_logger("selector")

    def close(self) -> None:
        """Stop the thread that copies samples into tables."""
        self._copier.stop()

    def register_run(
        self,
        run_id: RunId,
        dataset: str,
        selection_strategy: Mapping[str, Any],
        seed: int,
        data: Mapping[str, Any] | None = None,
        dataset_identity: str = "",
        online: Mapping[str, Any] | None = None,
    ) -> None:
        """Register a run; a no-op if it is registered with equal arguments.

        Args: selection_strategy: that section of the pipeline. seed: of all that is drawn for the run. data: that section of the pipeline, kept
            as first given. online: that section of the pipeline; None: it has none. dataset_identity: of
            the registered dataset, which its trigger sets carry; empty: not known, and any will do.

        Raises: AlreadyExistsError: it is registered with other arguments. InvalidArgumentError: the name is no file name.
            ConfigError: the section is wrong.
        """
        check_run_id(run_id)
        build_selection(selection_strategy)
        row = {
            "run_id": run_id,
            "dataset": dataset,
            "selection_strategy": dict(selection_strategy),
            "seed": seed,
            "dataset_identity": dataset_identity,
            "online": None if online is None else dict(online),
        }
        with self._database.session() as session:
            before = find_run(session, run_id)
        if before is not None and before.deleting:
            self._finish_deletion(before)
        with self._database.session() as session:
            new = upsert(RUNS).values({**row, "data": None if data is None else dict(data)})
            # Of two concurrent calls for one run, one waits for the other here.
            added = session.execute(new.on_conflict_do_nothing().returning(RUNS.c.number)).all()
            run = get_run(session, run_id, lock=True)
            if added:
                self._files(run).log.create()
                if run.in_database:
                    create_rows(session, run.number)
        if any(getattr(run, name) != value for name, value in row.items()):
            raise AlreadyExistsError(
                f"run '{run_id}' is registered with another dataset, or another registration of it, selection strategy, section online or seed; "
                "choose another run id or delete the run"
            )

    def run(self, run_id: RunId) -> RunRecord:
        """Return what a run was registered with. Raises NotFoundError if it is unknown."""
        with self._database.session() as session:
            return get_run(session, run_id)

    def inform(self, run_id: RunId, position: int, samples: SampleBatch) -> int:
        """Append `samples` at `position` of the run's stream, without those already held; return the number held now.

        Raises: NotFoundError: the run is unknown. ConflictError: samples before `position` are missing.
        """
        run = self._informed_run(run_id)
        num_held, added = self._files(run).log.append(position, samples)
        if run.in_database and added:
            self._copier.wake(run_id)
        SAMPLES_INFORMED.inc(added)
        return num_held

    def inform_labels(self, run_id: RunId, number: int, samples: SampleBatch) -> int:
        """Append samples whose labels have come; return how many have labels now. The first call says from which sample on labels come late.

        Args: number: of the first of them among the samples with labels. Raises: NotFoundError, ConflictError: as `inform`.
        """
        files = self._files(self._informed_run(run_id))
        return (files.labelled or files.begin_labels(number)).append(number, samples)

    def _informed_run(self, run_id: RunId) -> RunRecord:
        run = self._informed.get(run_id)
        if run is None or not self._files(run).log.exists():
            run = self._informed[run_id] = self.run(run_id)
        return run

    def samples(self, run_id: RunId, position: int, limit: int, *, labelled: bool = False) -> SampleBatch:
        """Return at most `limit` samples from `position` on, as they were informed; none behind the last that is held.

        Args: labelled: those with labels alone, in the order of these.
        Raises: ConflictError: the run holds fewer samples. InvalidArgumentError: position or limit make no sense.
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
        """Select the trigger set over the first `num_samples` samples with labels, or return the one that exists.

        Args: online: the steps of proactive training over the samples since the trigger before, by the section `online`. tests_only: of these
            the new samples alone, which are only tested. token: ends the selection when it is cancelled, with its cause; nothing of the trigger is
            left then.
        Raises: ConflictError: the trigger exists over another number of samples, is not the next one, or covers fewer samples than
            the one before or more than are held.
        """
        token = token or CancellationToken()
        with self._slots.hold(run_id, token):
            run, before, found = self._before(run_id, trigger_id)
            if found is None:
                log = self._files(run).selectable
                next_id, covered = (0, 0) if before is None else (before.trigger_id + 1, before.num_samples)
                check_next(run_id, log.state().num_samples, next_id, covered, trigger_id, num_samples)
                while run.in_database and self._copy_some_rows(run_id):
                    token.check()
                ends, tail_end = partial(self._ends, run, trigger_id), partial(self._tail_end, run)
                asked = self._deleted_keys, self._read_column
                selecting = TriggerSelection(run, self._files(run), before, ends, tail_end, *asked)
                select_set = partial(selecting.select_online, tests_only=tests_only) if online else selecting.select
                found = select_set(CancellableReader(log, token), num_samples)
                with self._database.session() as session:
                    get_run(session, run_id, lock=True)
                    session.execute(insert(TRIGGERS).values({"run_number": run.number, **asdict(found)}))
                if before is not None:
                    self._files(run).remove(before.state_file_names - found.state_file_names)
                self._sets.add(run, found)
        if found.num_samples != num_samples or found.online != online:
            raise ConflictError(
                f"trigger {trigger_id} of run '{run_id}' {'is online and ' if found.online else ''}covers the first {found.num_samples} samples, "
                f"not {num_samples}{' as an online one' if online else ''}; a trigger set does not change"
            )
        return found.info(run)

    def _before(self, run_id: RunId, trigger_id: int) -> tuple[RunRecord, TriggerSetRecord | None, TriggerSetRecord | None]:
        """The run, its newest trigger set, and the set of `trigger_id` if there is one. For the holder of the run's slot."""
        known = self._sets.newest(run_id)
        if known is not None and trigger_id == known[1].trigger_id + 1:
            return *known, None
        with self._database.session() as session:
            run = get_run(session, run_id)
            newest = find_newest_trigger(session, run)
            is_new = newest is None or trigger_id > newest.trigger_id
            return run, newest, None if is_new else find_trigger(session, run, trigger_id)

    def _ends(self, run: RunRecord, trigger_id: int) -> Int64Array:
        """How many samples each trigger before `trigger_id` covers, without online ones."""
        with self._database.session() as session:
            return np.array(find_retrainings(session, run, trigger_id)[1], np.int64)

    def _tail_end(self, run: RunRecord, tail_triggers: int) -> int:
        with self._database.session() as session:
            return tail_end(session, run, tail_triggers)

    def trigger_set(self, run_id: RunId, trigger_id: int) -> TriggerSetInfo:
        """Describe an existing trigger set. Raises NotFoundError if there is none."""
        return self._find_set(run_id, trigger_id)[1]

    def keys(
        self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "", chunk_size: int = KEYS_PER_CHUNK
    ) -> Iterator[KeysAndWeights]:
        """Return a partition in chunks of at most `chunk_size` keys.

        Args: keys_checksum: that of the expected trigger set; empty accepts any.
        Raises: ConflictError: the trigger set has another checksum. CorruptStateError: the file is not the one that was written.
        NotFoundError: the run has no such trigger.
        """
        run, info = self._find_set(run_id, trigger_id)
        check_checksum(info, keys_checksum)
        return self._files(run).open_set(info).partition(partition, chunk_size)

    def summary(self, run_id: RunId, trigger_id: int) -> SelectionSummary:
        """Count what a trigger chose from and what it chose: in one pass over its window the first time, then kept with the trigger.

        Raises: NotFoundError: the run has no such trigger. InvalidArgumentError: it is an online one. CorruptStateError: log or sets are damaged.
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
            behind, chosen = trigger_before_window(number, tail), files.open_set(self._find_set(run_id, found[number])[1])
            return ChosenSet(0 if behind is None else ends[behind], ends[number], chosen.header.num_keys, chosen.chunks(BLOCK))

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
        """Return the files of what trainings of the run have scored. Raises NotFoundError if it is unknown."""
        return self._files(self.run(run_id)).feedback

    def delete_run(self, run_id: RunId) -> None:
        """Delete a run, its samples and its trigger sets. A no-op for an unknown run."""
        with self._database.session() as session:
            run = find_run(session, run_id, lock=True)
            if run is not None:
                update_run(session, run, deleting=True)
        if run is not None:
            self._finish_deletion(run)

    def _finish_deletion(self, run: RunRecord) -> None:
        # A selection that began before the row said so would write into the folder; one that begins now is refused by the row.
        self._slots.end(run.run_id, NotFoundError(f"run '{run.run_id}' was deleted while a trigger set was selected"))
        self._informed.pop(run.run_id, None)
        self._sets.forget(run.run_id)
        directory = self._files(run).directory
        # Several callers may delete a run at once; each may find that a file is gone already.
        try:
            while directory.exists():
                with suppress(FileNotFoundError):
                    shutil.rmtree(directory)
            sync(self._runs)  # Before the row goes: a folder that a crash brings back would be set aside, and stay.
        except OSError as error:
            raise UnavailableError(
                f"cannot delete {directory} of run '{run.run_id}': {error.strerror}; repair the disk and delete the run again"
            ) from error
        with self._database.session() as session:
            found = find_run(session, run.run_id, lock=True)
            if found is not None and found.number == run.number:
                if run.in_database:
                    drop_rows(session, run.number)
                session.execute(delete(RUNS).where(RUNS.c.number == run.number))

    def recover(self) -> None:
        """Finish or take back what a crash has cut off. Called once, before the first call is served."""
        with self._database.session() as session:
            known = session.scalars(select(RUNS.c.run_id).order_by(RUNS.c.number)).all()
        directories = set()
        for run_id in known:
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
        """Repair the log and remove files of triggers without a row. Damage is logged; it keeps only this run from being used."""
        files = self._files(run)
        known = {files.set_path(trigger_id).name for trigger_id in range(newest.trigger_id + 1)} if newest else set()
        try:
            files.log.repair()
            if files.labelled is not None:
                files.labelled.repair()
            files.feedback.repair()
            found = files.names_beside_sets()
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
        """Copy samples into the run's table, at most `most`; return how many. The session must hold the lock on the run's row."""
        num_rows = copy_rows(session, run.number, self._files(run).selectable, run.num_rows, most)
        if num_rows != run.num_rows:
            update_run(session, run, num_rows=num_rows)
        return num_rows - run.num_rows

    def _files(self, run: RunRecord) -> RunFiles:
        # The number distinguishes a run from an earlier one of the same name.
        return RunFiles(run.run_id, self._runs / f"{run.run_id}.{run.number}")
