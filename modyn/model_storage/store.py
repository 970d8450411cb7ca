"""Model versions: files in a folder, rows in the catalogue. A version exists if and only if its row is committed.

<folder>/models/     one file per version, with a random name, and perhaps a file with the state of its optimizers; both files are complete and on the
                     disk before the row is committed
<folder>/incoming/   files that are being received, encoded or decoded; useless after a restart
<folder>/quarantine/ files that no row names, left by interrupted puts and deletions, or by versions that an older, restored database does not know
<folder>/store_id    id of the catalogue that the folder belongs to

The file of a version contains the version whole, or its difference to the run's previous version, its base. Before a version is deleted, the versions
that are differences to it are written to new files that do not need it; one transaction then names these files and deletes the version.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Final

from sqlalchemy import Executable, RowMapping, delete, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session
from structlog.typing import FilteringBoundLogger

from modyn.atomic_write import write_atomically
from modyn.config.base import load_section
from modyn.db.engine import Database
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.keep_limits import set_aside
from modyn.model_storage.client import ModelHeader, StoredModelInfo
from modyn.model_storage.formats import link_or_copy
from modyn.model_storage.promotions import ModelPromotions, PromotionRequest
from modyn.model_storage.section import ModelStorageSection
from modyn.model_storage.tables import models, store
from modyn.model_storage.version_files import BaseWeights, VersionFiles, optimizers_of
from modyn.models.weights import read_tensors, weights_sha256, wire_order
from modyn.records import ModelVersion, RunId

# Layouts are long and needed only for reading the file.
_WITHOUT_LAYOUT: Final = tuple(column for column in models.c if column.name != "layout")
_LISTED: Final = tuple(column for column in _WITHOUT_LAYOUT if column.name != "model_definition")

QUARANTINE: Final = "quarantine"
"""Folder of files that were set aside."""


class ModelStore:
    """All versions of one installation. Thread-safe. Only one process at a time uses a folder."""

    def __init__(self, database: Database, folder: Path, logger: FilteringBoundLogger) -> None:
        self._database = database
        self._folder = folder
        self._logger = logger
        self.promotions = ModelPromotions(database)
        self._files = VersionFiles(folder)
        # Each lock protects the versions of some runs: no version is deleted while a difference to it is made or rewritten.
        self._locks = [Lock() for _ in range(64)]
        self._check_identity()
        self._set_orphans_aside()

    @contextmanager
    def receive(self) -> Iterator[Path]:
        """Yield the path of a new file for incoming weights, which is removed when the block ends.

        Raises: UnavailableError: the disk cannot be written to.
        """
        with self._files.writing(), self._files.scratch() as path:
            yield path

    def publish(self, header: ModelHeader, safetensors: Path, optimizers: Path | None = None) -> StoredModelInfo:
        """Store the model in `safetensors`. Afterwards the model is complete and visible. If the method raises or the process dies, the model is
        either complete or absent. A second model of the same run and trigger is dropped. `optimizers` is the state of the model's optimizers. This
        state replaces the states of the run's earlier triggers, because no training resumes from them any more.
        Raises: ConfigError: the `model_storage` section is wrong. InvalidArgumentError: the file is not a safetensors file. UnavailableError: the
        disk or PostgreSQL cannot be used. ConflictError: the first model of the run and trigger was deleted meanwhile.
        """
        section = load_section(ModelStorageSection, header.model_storage, "model_storage")
        try:
            layout, digest = wire_order(read_tensors(safetensors)), weights_sha256(safetensors)
        except CorruptStateError as error:
            raise InvalidArgumentError(f"the model that was put cannot be read: {error.message}") from error
        move = None if optimizers is None else optimizers.rename
        with self._changing(header.run_id), self._base(header, section) as base:
            row = {
                **{field.name: getattr(header, field.name) for field in fields(header) if field.name in models.c},
                "section": section.model_dump(),
                "layout": [(spec.name, spec.dtype, spec.shape) for spec in layout],
                "weights_sha256": digest,
                "created_at": time.time(),
                "promoted": False,
                **self._files.write(section, safetensors, base, move),
            }
            stored = self._insert(row)
        if stored is not None:
            return _info(stored)
        self._files.remove(row["file_name"])
        existing = self.find(header.run_id, header.trigger_id)
        if existing is None:
            raise ConflictError(
                f"the model of run {header.run_id}, trigger {header.trigger_id} was deleted meanwhile; put it again"
            )
        return existing

    @contextmanager
    def _base(self, header: ModelHeader, section: ModelStorageSection) -> Iterator[BaseWeights | None]:
        """Yield the weights of the run's previous version; None: the new version is to be stored whole."""
        began = time.perf_counter()
        with self._files.scratch() as path:
            chain = self._chain_before(header) if section.longest_chain > 1 else []
            if not 0 < len(chain) < section.longest_chain:
                yield None
                return
            base: BaseWeights | None = None
            try:
                self._decode(chain, path)
                base = BaseWeights(chain[0]["model_id"], path, time.perf_counter() - began)
            except (CorruptStateError, FileNotFoundError) as error:
                # A damaged version must not prevent later versions.
                self._logger.error("stored_whole_after_damaged_version", model_id=chain[0]["model_id"], error=str(error))
            yield base

    def _chain_before(self, header: ModelHeader) -> Sequence[RowMapping]:
        """Return the chain of the run's previous version; empty if there is no such version."""
        earlier = (models.c.run_id == header.run_id, models.c.run_id != "", models.c.trigger_id < header.trigger_id)
        newest = select(models.c.model_id).where(*earlier).order_by(models.c.trigger_id.desc()).limit(1)
        with self._database.session() as session:
            model_id = session.scalars(newest).one_or_none()
        return [] if model_id is None else self._chain(model_id)

    def _insert(self, row: dict[str, Any]) -> RowMapping | None:
        """Insert a version, and remove the replaced optimizers. Returns None if its run and trigger already have a version."""
        outlived: list[str] = []
        # A commit that reports a failure may still have succeeded. Therefore the file stays, and the next start sets the file aside if no row names
        # it.
        with self._database.session() as session:
            new = upsert(models).values(row).on_conflict_do_nothing().returning(*_WITHOUT_LAYOUT)
            stored = session.execute(new).mappings().one_or_none()
            if stored is not None and row["optimizers_bytes"] is not None:
                earlier = (models.c.run_id == row["run_id"], models.c.run_id != "", models.c.trigger_id < row["trigger_id"])
                forgotten = update(models).where(*earlier, models.c.optimizers_bytes.is_not(None)).values(optimizers_bytes=None)
                outlived = list(session.scalars(forgotten.returning(models.c.file_name)))
        for name in outlived:
            # The next put syncs the removal. If a crash brings a file back before that, the next start sets the file aside.
            optimizers_of(self._files.models / name).unlink(missing_ok=True)
        return stored

    @contextmanager
    def fetch(self, model_id: int) -> Iterator[tuple[StoredModelInfo, Path]]:
        """Open a version. Yields the version, and its weights as a safetensors file that is removed when the block ends.

        Raises: NotFoundError. CorruptStateError: the file on disk, or the file of a version that it is a difference to, does not contain the stored
        weights. UnavailableError: the disk or PostgreSQL cannot be used.
        """
        with self._files.scratch() as wire:
            yield _info(self._read(model_id, wire)), wire

    def _read(self, model_id: int, wire: Path) -> RowMapping:
        """Write the weights of a version into the new file `wire`, and return its row. Raises: see `fetch`."""
        chain = self._chain(model_id)
        while True:
            try:
                self._decode(chain, wire)
                return chain[0]
            except FileNotFoundError as error:
                wire.unlink(missing_ok=True)
                found = self._chain(model_id)  # raises NotFoundError if the version was deleted meanwhile
                if [row["file_name"] for row in found] == [row["file_name"] for row in chain]:
                    gone = next((row for row in chain if not (self._files.models / row["file_name"]).exists()), chain[0])
                    raise self._damage(chain[0], gone, "the file is missing") from error
                chain = found  # the version has a new file, because another version was deleted

    def _decode(self, chain: Sequence[RowMapping], wire: Path) -> None:
        """Write the weights of the first version of a chain into the new file `wire`. Args: chain: see `_chain`.

        Raises: FileNotFoundError: a file of the chain is missing. CorruptStateError: a file is damaged.
        """
        base: Path | None = None
        with ExitStack() as stack:
            for row in reversed(chain):
                path = wire if row is chain[0] else stack.enter_context(self._files.scratch())
                try:
                    self._files.read(row, base, path)
                except CorruptStateError as error:
                    raise self._damage(chain[0], row, error.message) from error
                if base is not None:
                    base.unlink()
                base = path

    def _damage(self, wanted: RowMapping, damaged: RowMapping, cause: str) -> CorruptStateError:
        """Return the error for a version that cannot be read. Args: damaged: the version, or the version of its chain whose file is damaged."""
        path = self._files.models / damaged["file_name"]
        self._logger.error("model_file_corrupt", model_id=damaged["model_id"], file=str(path), error=cause)
        name = f"model {wanted['model_id']} (run '{wanted['run_id']}', trigger {wanted['trigger_id']})"
        if wanted is damaged:
            advice = "restore the file from a backup, or delete the model and train it again"
            return CorruptStateError(f"{name} cannot be read from {path}: {cause}; {advice}")
        other = damaged["model_id"]
        return CorruptStateError(
            f"{name} is stored as a difference that needs model {other} (trigger {damaged['trigger_id']}), which cannot be read from {path}: "
            f"{cause}; restore the file from a backup, or delete model {wanted['model_id']}, then model {other}, and train them again"
        )

    @contextmanager
    def open_optimizers(self, model_id: int) -> Iterator[BinaryIO]:
        """Open the state of the optimizers of a version.

        Raises: NotFoundError: there is no such version, or the version has no saved state. CorruptStateError: the file is missing or was cut.
        """
        name, file = "", None
        while file is None:
            row = self._row(model_id)
            if row["optimizers_bytes"] is None:
                raise NotFoundError(
                    f"no state of optimizers is kept with model {model_id}: it was stored without one, or a later model of its run with one"
                )
            path = optimizers_of(self._files.models / row["file_name"])
            try:
                file = path.open("rb")
            except FileNotFoundError as error:
                if name == row["file_name"]:
                    raise CorruptStateError(f"the state of the optimizers of model {model_id} is missing: {path}") from error
                name = row["file_name"]  # The version may have new files by now, because another version was deleted.
        with file:
            if (found := path.stat().st_size) != row["optimizers_bytes"]:
                raise CorruptStateError(f"{path} has {found} bytes, {row['optimizers_bytes']} were written: it was changed since")
            yield file

    def describe(self, model_id: int) -> StoredModelInfo:
        """Return a version. Raises NotFoundError."""
        return _info(self._row(model_id))

    def find(self, run_id: RunId, trigger_id: int) -> StoredModelInfo | None:
        """Return the version of a trigger of a run; None if the trigger has no version, or if `run_id` is empty, as for imported versions."""
        if not run_id:
            return None
        wanted = select(*_WITHOUT_LAYOUT).where(models.c.run_id == run_id, models.c.trigger_id == trigger_id)
        with self._database.session() as session:
            row = session.execute(wanted).mappings().one_or_none()
        return None if row is None else _info(row)

    def list(self, run_id: RunId | None) -> list[StoredModelInfo]:
        """Return the versions of a run, or all versions, in the order in which they were stored, without their definitions."""
        wanted = select(*_LISTED).order_by(models.c.model_id)
        if run_id:
            wanted = wanted.where(models.c.run_id == run_id)
        with self._database.session() as session:
            return [_info(row) for row in session.execute(wanted).mappings()]

    def delete(self, model_id: int, *, even_promoted: bool = False) -> None:
        """Delete a version, then its file. Versions that are stored as a difference to this version are first written to new files.

        Raises: NotFoundError. ConflictError: the version is promoted, and `even_promoted` is false. CorruptStateError, UnavailableError: a difference
        to the version cannot be rewritten; nothing was changed.
        """
        with self._changing(self._row(model_id)["run_id"]):
            row = self._row(model_id)
            _refuse_promoted(row, even_promoted)
            rewritten = self._rewrite_differences(row)
            with self._database.session() as session:
                row = _one(session, select(models).where(models.c.model_id == model_id).with_for_update(), model_id)
                _refuse_promoted(row, even_promoted)
                for child, changes in rewritten:
                    session.execute(update(models).where(models.c.model_id == child["model_id"]).values(changes))
                session.execute(delete(models).where(models.c.model_id == model_id))
            self._files.remove(row["file_name"], *(child["file_name"] for child, _ in rewritten))

    def _rewrite_differences(self, row: RowMapping) -> Sequence[tuple[RowMapping, dict[str, Any]]]:
        """Write new files for the versions that are differences to a version: whole, or as differences to the base of this version.

        Returns: each such version, and the changes of its row. Raises: CorruptStateError, UnavailableError: there are no new files.
        """
        with self._database.session() as session:
            children = session.execute(select(models).where(models.c.base_id == row["model_id"])).mappings().all()
        rewritten: list[tuple[RowMapping, dict[str, Any]]] = []
        for child in children:
            try:
                rewritten.append((child, self._rewrite(child, row["base_id"])))
            except (CorruptStateError, UnavailableError) as error:
                self._files.remove(*(changes["file_name"] for _, changes in rewritten))
                raise type(error)(
                    f"model {row['model_id']} cannot be deleted before model {child['model_id']}, which is stored as a difference to it and cannot "
                    f"be rewritten: {error.message}"
                ) from error
        return rewritten

    def _rewrite(self, row: RowMapping, base_id: int | None) -> dict[str, Any]:
        """Write new files for a version, whole or as a difference to another base. Returns the changes of its row."""
        began = time.perf_counter()
        with self._files.scratch() as base_path, self._files.scratch() as wire:
            base = None
            if base_id is not None:
                self._read(base_id, base_path)
                base = BaseWeights(base_id, base_path, time.perf_counter() - began)
            self._read(row["model_id"], wire)
            optimizers = optimizers_of(self._files.models / row["file_name"])
            link = partial(link_or_copy, optimizers) if optimizers.exists() else None
            changes = self._files.write(ModelStorageSection.from_stored(row["section"]), wire, base, link)
        del changes["optimizers_bytes"]  # the state of the optimizers, even if it is damaged, stays as it is
        return changes

    def promote(self, request: PromotionRequest) -> StoredModelInfo:
        """Promote a version. See `ModelPromotions.promote`."""
        self.promotions.promote(request)
        return self.describe(request.model_id)

    def _changing(self, run_id: str) -> AbstractContextManager[object]:
        """Return a lock that is held while files of a run's versions are made that depend on each other, or while a version is deleted."""
        if not run_id:  # imported versions do not depend on each other
            return nullcontext()
        return self._locks[zlib.crc32(run_id.encode()) % len(self._locks)]

    def _chain(self, model_id: int) -> Sequence[RowMapping]:
        """Return the versions that a version is read from: the version, its base, the base of this base, … up to a whole version.

        Raises: NotFoundError.
        """
        # One statement, so that a deletion at the same time changes all rows or none.
        first = select(models.c.model_id, models.c.base_id).where(models.c.model_id == model_id).cte("chain", recursive=True)
        chain = first.union_all(select(models.c.model_id, models.c.base_id).join(first, models.c.model_id == first.c.base_id))
        with self._database.session() as session:
            found = session.execute(select(models).join(chain, chain.c.model_id == models.c.model_id)).mappings().all()
        # A base is older than the versions that need it.
        rows = sorted(found, key=lambda row: -int(row["model_id"]))
        if not rows:
            raise _missing(model_id)
        return rows

    def _row(self, model_id: int) -> RowMapping:
        with self._database.session() as session:
            return _one(session, select(models).where(models.c.model_id == model_id), model_id)

    def _check_identity(self) -> None:
        """Raise ConflictError if the folder belongs to another catalogue. The models of such a folder would be set aside as orphans."""
        with self._database.session() as session:
            expected = session.scalars(select(store.c.store_id)).one()
            known = _known_files(session)
        path = self._folder / "store_id"
        found = path.read_text(errors="replace") if path.exists() else ""
        if not found and known.issuperset(file.name for file in self._files.models.iterdir()):
            # The folder is new, or the file was lost. All models in the folder belong to this catalogue, so no model can be set aside by mistake.
            found = expected
            write_atomically(path, [expected.encode()])
        if found != expected:
            found = found or "unknown"
            raise ConflictError(
                f"{self._folder} belongs to another database ({path} says {found}, this one is {expected}); correct state_dir or database_url in "
                "the system file, or move the folder away; or restore the file, if it is damaged"
            )

    def _set_orphans_aside(self) -> None:
        """Move files that no row names to `quarantine/`, and remove incomplete files of interrupted calls. Complete files are kept, because a
        restored database may lack rows of models in use.
        """
        with self._database.session() as session:
            known = _known_files(session)
        present = {path.name: path for path in self._files.models.iterdir()}
        orphans = [path for name, path in present.items() if name not in known]
        for path in self._files.incoming.iterdir():
            path.unlink()
        if orphans:
            quarantine = self._folder / QUARANTINE
            for path in orphans:
                set_aside(path, quarantine)
            self._logger.warning("orphans_set_aside", count=len(orphans), folder=str(quarantine))
        for name in known - present.keys():
            self._logger.error("model_file_missing", file=str(self._files.models / name))


def _refuse_promoted(row: RowMapping, even_promoted: bool) -> None:
    if row["promoted"] and not even_promoted:
        raise ConflictError(f"model {row['model_id']} is promoted, so it may be in use; promote another version of the run first")


def _known_files(session: Session) -> set[str]:
    """Return the names of all files that belong to versions."""
    rows = session.execute(select(models.c.file_name, models.c.optimizers_bytes)).all()
    states = {optimizers_of(Path(name)).name for name, num_bytes in rows if num_bytes is not None}
    return {name for name, _ in rows} | states


def _one(session: Session, statement: Executable, model_id: int) -> RowMapping:
    row = session.execute(statement).mappings().one_or_none()
    if row is None:
        raise _missing(model_id)
    return row


def _missing(model_id: int) -> NotFoundError:
    return NotFoundError(f"there is no model {model_id}; `modyn models ls` lists those that exist")


def _info(row: RowMapping) -> StoredModelInfo:
    version = ModelVersion(**{field.name: row[field.name] for field in fields(ModelVersion)})
    definition = row.get("model_definition", "")
    return StoredModelInfo(version, row["model_class"], row["model_config"], row["training_result"], model_definition=definition)
