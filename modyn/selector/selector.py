"""What the selector does, without gRPC: it remembers the stream of each run and fixes the trigger sets.

The row of a run is the lock of the run: whoever triggers holds it for the length of a transaction, in whatever process, and other runs
are not touched. The order of writing is always file, disk, row, so a row never promises what is not there. Samples are counted and locked
in their file, so that informing asks no database; where the strategy wants them as rows too, these are copied behind it.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Histogram

from modyn.db.engine import Database
from modyn.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptStateError,
    InvalidArgumentError,
    ModynError,
    NotFoundError,
    UnavailableError,
)
from modyn.records import KeysAndWeights, RunId, SampleBatch, TriggerSetInfo
from modyn.rpc.logs import get_logger
from modyn.selector import catalogue
from modyn.selector.catalogue import RunRecord, TriggerSetRecord
from modyn.selector.row_copier import RowCopier
from modyn.selector.sample_log import SampleLog
from modyn.selector.sample_rows import SampleRows
from modyn.selector.selection import build_selection
from modyn.selector.stream_checks import check_meant, check_next, trigger_starts
from modyn.selector.trigger_set import TriggerSet, write_trigger_set
from modyn.selector.window import SelectionContext, SelectionWindow, piece_size

SAMPLES_INFORMED = Counter(
    "modyn_selector_samples_informed_total", "Samples that runs were informed of, repeated ones not counted"
)
TRIGGER_SECONDS = Histogram(
    "modyn_selector_trigger_seconds", "Seconds to select a trigger set", buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
)

KEYS_PER_PIECE = 262_144
"""Keys and weights handed out at once: 3 MiB."""
ROWS_PER_COPY = 1_048_576
"""Samples that are copied into a run's table in one transaction, unless a trigger waits for all."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,199}")


class Selector:
    """Runs, their samples and their trigger sets, in a database and below a directory."""

    def __init__(self, database: Database, directory: Path) -> None:
        self._database = database
        self._runs = directory / "runs"
        self._runs.mkdir(parents=True, exist_ok=True)
        self._orphans = directory / "orphans"
        """Folders of runs that the database did not name when the service started. Nobody looks there again."""
        self._used: dict[RunId, RunRecord] = {}
        """Runs that were informed of samples; of their record only what never changes is used."""
        self._copier = RowCopier(self._copy)
        self._logger = get_logger("selector")

    def close(self) -> None:
        self._copier.stop()

    def recover(self) -> None:
        """Called once before the first call is served: finishes or takes back what a crash has cut off."""
        with self._database.session() as session:
            known = catalogue.run_ids(session)
        directories = set()
        for run_id in known:
            with self._database.session() as session:
                run = catalogue.find_run(session, run_id, lock=True)
                if run is not None:
                    directories.add(self._directory(run))
                if run is not None and not run.deleting:
                    self._repair(run, len(catalogue.boundaries(session, run)))
            if run is not None and run.deleting:
                try:
                    self._finish_delete(run)
                except ModynError as error:
                    self._logger.error("run_not_deleted", run_id=run_id, error=error.message)
        for directory in set(self._runs.iterdir()) - directories:
            self._set_aside(directory)

    def _repair(self, run: RunRecord, num_triggers: int) -> None:
        """What is damaged here keeps only its own run from being used, which whoever uses it is told."""
        try:
            self._log(run).repair()
            self._remove_orphans(run, num_triggers)
        except (ModynError, OSError) as error:
            self._logger.error("run_not_repaired", run_id=run.run_id, path=str(self._directory(run)), error=str(error))

    def _set_aside(self, directory: Path) -> None:
        """A folder that no row names is left over from a registration that was cut off, or the database is another or an older one.
        It is never deleted: then it would take all samples along."""
        aside = self._orphans / f"{directory.name}.{time.time_ns()}"
        self._orphans.mkdir(exist_ok=True)
        directory.rename(aside)
        self._logger.warning("orphan_set_aside", path=str(directory), to=str(aside))

    def register_run(
        self,
        run_id: RunId,
        dataset: str,
        selection_strategy: Mapping[str, Any],
        seed: int,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes a run known. A no-op if it is known with equal arguments, AlreadyExistsError if with others. data: kept as it was given first.

        Raises InvalidArgumentError for a name that is no file name, ConfigError for a wrong section.
        """
        if not _RUN_ID.fullmatch(run_id):
            raise InvalidArgumentError(
                f"'{run_id}' cannot name a run: use letters, digits, '.', '_' and '-', at most 200, no dot first"
            )
        build_selection(selection_strategy)
        with self._database.session() as session:
            before = catalogue.find_run(session, run_id)
        if before is not None and before.deleting:
            self._finish_delete(before)
        with self._database.session() as session:
            added = catalogue.add_run(
                session, run_id, dataset, dict(selection_strategy), seed, None if data is None else dict(data)
            )
            run = catalogue.get_run(session, run_id, lock=True)
            if added:
                self._log(run).create()
                if run.in_database:
                    SampleRows(run, session).create()
        if (run.dataset, run.selection_strategy, run.seed) != (dataset, dict(selection_strategy), seed):
            raise AlreadyExistsError(
                f"run '{run_id}' is registered with another dataset, selection strategy or seed; choose another run id or delete the run"
            )

    def run(self, run_id: RunId) -> RunRecord:
        """What a run was registered with. Raises NotFoundError if it is not known."""
        with self._database.session() as session:
            return catalogue.get_run(session, run_id)

    def inform(self, run_id: RunId, position: int, samples: SampleBatch) -> int:
        """Appends `samples` at `position` of the run's stream; the number held now. What is held already is skipped."""
        run = self._used.get(run_id)
        if run is None or not self._log(run).exists():
            with self._database.session() as session:
                run = self._used[run_id] = catalogue.get_run(session, run_id)
        log = self._log(run)
        with log.locked():
            held = log.held().num_samples
            added = log.append(position, samples)
        if run.in_database and added:
            self._copier.wake(run_id)
        SAMPLES_INFORMED.inc(added)
        return held + added

    def _copy(self, run_id: RunId) -> bool:
        """Copies some samples into the run's table; whether more are left."""
        with self._database.session() as session:
            run = catalogue.get_run(session, run_id, lock=True)
            return SampleRows(run, session).copy(self._log(run), ROWS_PER_COPY) > 0

    def trigger(self, run_id: RunId, trigger_id: int, num_samples: int) -> TriggerSetInfo:
        """Selects the trigger set over the first `num_samples` samples, or finds the one that exists.

        Raises ConflictError if it exists over another number, is not the next one, or covers fewer samples than the one before or more
        than are held.
        """
        with self._database.session() as session:
            run = catalogue.get_run(session, run_id, lock=True)
            existing = catalogue.find_trigger(session, run, trigger_id)
            if existing is None:
                boundaries = catalogue.boundaries(session, run)
                log = self._log(run)
                check_next(run_id, log.held().num_samples, boundaries, trigger_id, num_samples)
                before = catalogue.find_trigger(session, run, trigger_id - 1)
                catalogue.allow_idle(session)
                if run.in_database:
                    SampleRows(run, session).copy(log)
                existing = self._select(run, log, boundaries, before, num_samples)
                catalogue.add_trigger(session, run, existing)
        if existing.num_samples != num_samples:
            raise ConflictError(
                f"trigger {trigger_id} of run '{run_id}' covers the first {existing.num_samples} samples, not {num_samples}; "
                "a trigger set does not change"
            )
        return existing.info(run_id)

    def _select(
        self, run: RunRecord, log: SampleLog, boundaries: list[int], before: TriggerSetRecord | None, num_samples: int
    ) -> TriggerSetRecord:
        started = time.perf_counter()
        trigger_id = len(boundaries)
        policy = build_selection(run.selection_strategy)
        if before is not None:
            policy.load_state(before.policy_state)
        size = policy.shared.maximum_keys_in_memory
        starts = trigger_starts(boundaries, trigger_id, policy.shared.tail_triggers)
        window = SelectionWindow(log, starts[0], num_samples, piece_size(size), starts)
        selection = policy.select(window, SelectionContext(run.seed, trigger_id))
        header = write_trigger_set(self._set_path(run, trigger_id), size, selection)
        TRIGGER_SECONDS.observe(time.perf_counter() - started)
        return TriggerSetRecord(trigger_id, num_samples, header.num_keys, size, header.keys_sha256.hex(), policy.state())

    def trigger_set(self, run_id: RunId, trigger_id: int) -> TriggerSetInfo:
        """What is known of an existing trigger set. Raises NotFoundError if there is none."""
        with self._database.session() as session:
            return _existing(catalogue.find_trigger(session, catalogue.get_run(session, run_id), trigger_id), run_id, trigger_id)

    def keys(
        self,
        run_id: RunId,
        trigger_id: int,
        partition: int,
        worker: int,
        num_workers: int,
        keys_checksum: str = "",
        *,
        num_at_once: int = KEYS_PER_PIECE,
    ) -> Iterator[KeysAndWeights]:
        """A worker's share of a partition, in pieces of at most `num_at_once` keys.
        keys_checksum: of the trigger set that is meant; empty: of whichever there is.

        Raises ConflictError when there is another one now, CorruptStateError when the file is not the one that was written.
        """
        with self._database.session() as session:
            run = catalogue.get_run(session, run_id)
            info = _existing(catalogue.find_trigger(session, run, trigger_id), run_id, trigger_id)
        check_meant(info, keys_checksum)
        path = self._set_path(run, trigger_id)
        if not path.exists():
            raise CorruptStateError(
                f"the trigger set {path} is missing; restore it from a backup, or delete run '{run_id}' and start it anew"
            )
        found = TriggerSet(path)
        if (found.header.keys_sha256.hex(), found.header.partition_size) != (info.keys_checksum, info.partition_size):
            raise CorruptStateError(
                f"the trigger set {path} is not the one of trigger {trigger_id} of run '{run_id}'; restore the right one"
            )
        return found.share(partition, worker, num_workers, num_at_once)

    def delete_run(self, run_id: RunId) -> None:
        """Forgets a run, its samples and its trigger sets. A no-op for a run that is not known."""
        with self._database.session() as session:
            run = catalogue.find_run(session, run_id, lock=True)
            if run is not None:
                catalogue.mark_deleting(session, run)
        if run is not None:
            self._finish_delete(run)

    def _finish_delete(self, run: RunRecord) -> None:
        self._used.pop(run.run_id, None)
        directory = self._directory(run)
        # Several may delete a run at once, and take files away from under each other.
        while directory.exists():
            try:
                shutil.rmtree(directory)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise UnavailableError(
                    f"cannot delete {directory} of run '{run.run_id}': {error.strerror}; repair the disk and delete the run again"
                ) from error
        with self._database.session() as session:
            found = catalogue.find_run(session, run.run_id, lock=True)
            if found is not None and found.number == run.number:
                if run.in_database:
                    SampleRows(run, session).drop()
                catalogue.remove_run(session, run)

    def _remove_orphans(self, run: RunRecord, num_triggers: int) -> None:
        """Removes trigger sets that were not finished, or finished and never entered into the catalogue."""
        known = {self._set_path(run, trigger_id).name for trigger_id in range(num_triggers)}
        directory = self._set_path(run, 0).parent
        for path in directory.iterdir() if directory.exists() else ():
            if path.name not in known:
                self._logger.info("orphan_removed", run_id=run.run_id, path=str(path))
                path.unlink()

    def _log(self, run: RunRecord) -> SampleLog:
        return SampleLog(run.run_id, self._directory(run))

    def _directory(self, run: RunRecord) -> Path:
        # The number tells a run from an earlier one of the same name.
        return self._runs / f"{run.run_id}.{run.number}"

    def _set_path(self, run: RunRecord, trigger_id: int) -> Path:
        return self._directory(run) / "triggers" / f"{trigger_id:06}.set"


def _existing(trigger: TriggerSetRecord | None, run_id: RunId, trigger_id: int) -> TriggerSetInfo:
    if trigger is None:
        raise NotFoundError(f"run '{run_id}' has no trigger {trigger_id}; trigger it first")
    return trigger.info(run_id)
