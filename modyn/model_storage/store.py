"""Model versions: files in a folder, rows in the catalogue. A version exists if and only if its row is committed.

<folder>/models/     one file per version, with a random name, and perhaps a file with the state of its optimizers; both files are complete and on the
                     disk before the row is committed
<folder>/incoming/   files that are being received, encoded or decoded; useless after a restart
<folder>/quarantine/ files that no row names, left by interrupted puts and deletions, or by versions that an older, restored database does not know
<folder>/store_id    id of the catalogue that the folder belongs to
"""

from __future__ import annotations

import errno
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, Final

from sqlalchemy import Executable, RowMapping, delete, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session
from structlog.typing import FilteringBoundLogger

from modyn.atomic_write import make_folder, sync, write_atomically
from modyn.config.base import load_section
from modyn.db.engine import Database
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.keep_limits import set_aside
from modyn.model_storage.client import ModelHeader, StoredModelInfo
from modyn.model_storage.compression import compress, decompress
from modyn.model_storage.formats import MODEL_FORMATS, FullModelFormat
from modyn.model_storage.promotions import ModelPromotions, PromotionRequest
from modyn.model_storage.section import FullModelStrategy, ModelStorageSection
from modyn.model_storage.tables import models, store
from modyn.models.weights import TensorSpec, read_tensors, weights_sha256, wire_order
from modyn.records import ModelVersion, RunId

# Layouts are long and needed only for reading the file.
_WITHOUT_LAYOUT: Final = tuple(column for column in models.c if column.name != "layout")
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

QUARANTINE: Final = "quarantine"
"""Folder of files that were set aside."""


class ModelStore:
    """All versions of one installation. Thread-safe. Only one process at a time uses a folder."""

    def __init__(self, database: Database, folder: Path, logger: FilteringBoundLogger) -> None:
        self._database = database
        self._folder = folder
        self._logger = logger
        self.promotions = ModelPromotions(database)
        self._models = folder / "models"
        self._incoming = folder / "incoming"
        for path in (self._models, self._incoming):
            make_folder(path)
        self._check_identity()
        self._set_orphans_aside()

    @contextmanager
    def receive(self) -> Iterator[Path]:
        """Yield the path of a new file for incoming weights, which is removed when the block ends.

        Raises: UnavailableError: the disk cannot be written to.
        """
        with self._writing(), self._scratch() as path:
            yield path

    def publish(self, header: ModelHeader, safetensors: Path, optimizers: Path | None = None) -> StoredModelInfo:
        """Store the model in `safetensors`. Afterwards the model is complete and visible. If the method raises or the process dies, the model is
        either complete or absent. A second model of the same run and trigger is dropped. `optimizers` is the state of the model's optimizers. This
        state replaces the states of the run's earlier triggers, because no training resumes from them any more.
        Raises: ConfigError: the `model_storage` section is wrong. InvalidArgumentError: the file is not a safetensors file. UnavailableError: the
        disk or PostgreSQL cannot be used. ConflictError: the first model of the run and trigger was deleted meanwhile.
        """
        strategy = load_section(ModelStorageSection, header.model_storage, "model_storage").full_model_strategy
        try:
            layout, digest = wire_order(read_tensors(safetensors)), weights_sha256(safetensors)
        except CorruptStateError as error:
            raise InvalidArgumentError(f"the model that was put cannot be read: {error.message}") from error
        path, unpacked_bytes = self._write(strategy, safetensors, optimizers)
        row = {
            **{field.name: getattr(header, field.name) for field in fields(header) if field.name in models.c},
            "strategy": strategy.name,
            "strategy_config": strategy.model_dump(),
            "layout": [(spec.name, spec.dtype, spec.shape) for spec in layout],
            "file_name": path.name,
            "num_bytes": path.stat().st_size,
            "unpacked_bytes": unpacked_bytes,
            "weights_sha256": digest,
            "created_at": time.time(),
            "promoted": False,
            "optimizers_bytes": _optimizers_of(path).stat().st_size if optimizers is not None else None,
        }
        stored = self._insert(row)
        if stored is not None:
            return _info(stored)
        path.unlink()
        _optimizers_of(path).unlink(missing_ok=True)
        existing = self.find(header.run_id, header.trigger_id)
        if existing is None:
            raise ConflictError(
                f"the model of run {header.run_id}, trigger {header.trigger_id} was deleted meanwhile; put it again"
            )
        return existing

    def _write(self, strategy: FullModelStrategy, safetensors: Path, optimizers: Path | None) -> tuple[Path, int]:
        """Write the files of a version to the disk; return the path of the model, and the number of its bytes before compression."""
        path = self._models / f"{uuid.uuid4().hex}.model"
        with self._writing(), self._scratch() as encoded, self._scratch() as packed:
            _format(strategy).encode(safetensors, encoded)
            unpacked_bytes = encoded.stat().st_size
            if strategy.zip:
                compress(encoded, packed, strategy.zip_algorithm)
            (packed if strategy.zip else encoded).rename(path)
            if optimizers is not None:
                optimizers.rename(_optimizers_of(path))
            # All files are renamed before any file is synced, because the first sync then also writes most data of the other files.
            for written in (path, _optimizers_of(path)) if optimizers is not None else (path,):
                sync(written)
            sync(self._models)
        return path, unpacked_bytes

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
            _optimizers_of(self._models / name).unlink(missing_ok=True)
        return stored

    @contextmanager
    def fetch(self, model_id: int) -> Iterator[tuple[StoredModelInfo, Path]]:
        """Open a version. Yields the version, and its weights as a safetensors file that is removed when the block ends.

        Raises: NotFoundError. CorruptStateError: the file on disk does not contain the stored weights. UnavailableError: the disk or PostgreSQL
        cannot be used.
        """
        row = self._row(model_id)
        path = self._models / row["file_name"]
        try:
            with self._scratch() as wire:
                with self._writing():
                    self._decode(row, path, wire)
                yield _info(row), wire
        except CorruptStateError as error:
            self._logger.error("model_file_corrupt", model_id=model_id, file=str(path), error=error.message)
            raise CorruptStateError(
                f"model {model_id} (run '{row['run_id']}', trigger {row['trigger_id']}) cannot be read from {path}: {error.message}; "
                "restore the file from a backup, or delete the model and train it again"
            ) from error

    @contextmanager
    def open_optimizers(self, model_id: int) -> Iterator[BinaryIO]:
        """Open the state of the optimizers of a version.

        Raises: NotFoundError: there is no such version, or the version has no saved state. CorruptStateError: the file is missing or was cut.
        """
        row = self._row(model_id)
        if row["optimizers_bytes"] is None:
            raise NotFoundError(
                f"no state of optimizers is kept with model {model_id}: it was stored without one, or a later model of its run with one"
            )
        path = _optimizers_of(self._models / row["file_name"])
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise CorruptStateError(f"the state of the optimizers of model {model_id} is missing: {path}") from error
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
        """Return the versions of a run, or all versions, in the order in which they were stored."""
        wanted = select(*_WITHOUT_LAYOUT).order_by(models.c.model_id)
        if run_id:
            wanted = wanted.where(models.c.run_id == run_id)
        with self._database.session() as session:
            return [_info(row) for row in session.execute(wanted).mappings()]

    def delete(self, model_id: int, *, even_promoted: bool = False) -> None:
        """Delete a version, then its file. Versions that were fine-tuned from this version stay, because every version is stored whole.

        Raises: NotFoundError. ConflictError: the version is promoted, and `even_promoted` is false.
        """
        with self._database.session() as session:
            row = _one(session, select(models).where(models.c.model_id == model_id).with_for_update(), model_id)
            if row["promoted"] and not even_promoted:
                raise ConflictError(
                    f"model {model_id} is promoted, so it may be in use; promote another version of the run first"
                )
            session.execute(delete(models).where(models.c.model_id == model_id))
        path = self._models / row["file_name"]
        with self._writing():
            for file in (path, _optimizers_of(path)):
                file.unlink(missing_ok=True)
            sync(self._models)  # Without the sync, a crash could restore the files. They would then stay in quarantine.

    def promote(self, request: PromotionRequest) -> StoredModelInfo:
        """Promote a version. See `ModelPromotions.promote`."""
        self.promotions.promote(request)
        return self.describe(request.model_id)

    def _decode(self, row: RowMapping, path: Path, wire: Path) -> None:
        # Validation of user input would refuse a stored record, because all fields of a stored record are set.
        strategy = FullModelStrategy.model_construct(**row["strategy_config"])
        layout = tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in row["layout"])
        try:
            if (num_bytes := path.stat().st_size) != row["num_bytes"]:
                raise CorruptStateError(f"the file has {num_bytes} bytes, {row['num_bytes']} were written")
            with self._scratch() as unpacked:
                if strategy.zip:
                    decompress(path, unpacked, strategy.zip_algorithm, row["unpacked_bytes"])
                _format(strategy).decode(unpacked if strategy.zip else path, layout, wire)
        except FileNotFoundError as error:
            self._row(row["model_id"])  # raises NotFoundError if the version was deleted meanwhile
            raise CorruptStateError("the file is missing") from error
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # The directory of the zip archive refers to a position before the start of the file.
            raise CorruptStateError(f"it cannot be unpacked: {error}") from error
        if (found := weights_sha256(wire)) != row["weights_sha256"]:
            raise CorruptStateError(
                f"the SHA-256 of its weights is {found}; {row['weights_sha256']} was expected, that of the weights that were put: "
                "the file has changed since"
            )

    def _row(self, model_id: int) -> RowMapping:
        with self._database.session() as session:
            return _one(session, select(models).where(models.c.model_id == model_id), model_id)

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        path = self._incoming / uuid.uuid4().hex
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of the disk into an UnavailableError that names the cause."""
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            free = shutil.disk_usage(self._folder).free
            cause = f"no space is left ({free} bytes free)" if error.errno in _NO_SPACE else f"{error.strerror or error}"
            raise UnavailableError(
                f"model storage cannot write to {self._folder}: {cause}; free some space (`modyn models ls` shows sizes), or make it writable"
            ) from error

    def _check_identity(self) -> None:
        """Raise ConflictError if the folder belongs to another catalogue. The models of such a folder would be set aside as orphans."""
        with self._database.session() as session:
            expected = session.scalars(select(store.c.store_id)).one()
            known = _known_files(session)
        path = self._folder / "store_id"
        found = path.read_text(errors="replace") if path.exists() else ""
        if not found and known.issuperset(file.name for file in self._models.iterdir()):
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
        present = {path.name: path for path in self._models.iterdir()}
        orphans = [path for name, path in present.items() if name not in known]
        for path in self._incoming.iterdir():
            path.unlink()
        if orphans:
            quarantine = self._folder / QUARANTINE
            for path in orphans:
                set_aside(path, quarantine)
            self._logger.warning("orphans_set_aside", count=len(orphans), folder=str(quarantine))
        for name in known - present.keys():
            self._logger.error("model_file_missing", file=str(self._models / name))


def _format(strategy: FullModelStrategy) -> FullModelFormat:
    kind = MODEL_FORMATS.get(strategy.name)
    return kind(load_section(kind.Config, strategy.config, "model_storage.full_model_strategy.config"))


def _optimizers_of(path: Path) -> Path:
    """Return the path of the state of a version's optimizers. Args: path: path of the version's weights."""
    return path.with_suffix(".optimizers")


def _known_files(session: Session) -> set[str]:
    """Return the names of all files that belong to versions."""
    rows = session.execute(select(models.c.file_name, models.c.optimizers_bytes)).all()
    states = {_optimizers_of(Path(name)).name for name, num_bytes in rows if num_bytes is not None}
    return {name for name, _ in rows} | states


def _one(session: Session, statement: Executable, model_id: int) -> RowMapping:
    row = session.execute(statement).mappings().one_or_none()
    if row is None:
        raise NotFoundError(f"there is no model {model_id}; `modyn models ls` lists those that exist")
    return row


def _info(row: RowMapping) -> StoredModelInfo:
    version = ModelVersion(**{field.name: row[field.name] for field in fields(ModelVersion)})
    return StoredModelInfo(version, row["model_class"], row["model_config"], row["training_result"])
