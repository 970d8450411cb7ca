"""Model versions: files in a folder, rows in the catalogue. A version exists if and only if its row is committed.

<folder>/models/     one file a version, with a random name; complete and on the disk before the row is committed
<folder>/incoming/   what is being received, encoded or decoded; of no value after a restart
<folder>/store_id    which catalogue the folder belongs to
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Final

from sqlalchemy import RowMapping, delete, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from structlog.typing import FilteringBoundLogger

from modyn.atomic_write import sync
from modyn.config.base import load_section
from modyn.db.engine import Database
from modyn.errors import ConflictError, CorruptStateError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.model_storage import compression
from modyn.model_storage.formats import MODEL_FORMATS, FullModelFormat
from modyn.model_storage.records import ModelHeader, StoredModelInfo
from modyn.model_storage.section import FullModelStrategy, ModelStorageSection
from modyn.model_storage.tables import models, store
from modyn.models.safetensors_file import TensorSpec, file_weights_sha256, read_entries, wire_order
from modyn.records import ModelVersion, RunId

# Layouts are long and only of use to read the file.
_WITHOUT_LAYOUT: Final = tuple(column for column in models.c if column.name != "layout")
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Incoming:
    """A safetensors file that is being received: written chunk by chunk, then verified."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256()
        self._num_bytes = 0
        self._file = path.open("xb")

    def write(self, chunk: bytes) -> None:
        """Append the next bytes of the file."""
        self._file.write(chunk)
        self._digest.update(chunk)
        self._num_bytes += len(chunk)

    def finish(self, num_bytes: int, sha256: str) -> None:
        """Raise InvalidArgumentError unless the content has the size and SHA-256 that the sender states."""
        self._file.close()
        if (self._num_bytes, self._digest.hexdigest()) != (num_bytes, sha256):
            raise InvalidArgumentError(
                f"the model was changed or cut on its way: {self._num_bytes} bytes arrived, {num_bytes} were sent, "
                f"SHA-256 {self._digest.hexdigest()} instead of {sha256}; put it again"
            )

    def close(self) -> None:
        """Close the file and remove it, if it is still there."""
        self._file.close()
        self.path.unlink(missing_ok=True)


class ModelStore:
    """All versions of one installation. Safe to use from several threads; one process works on a folder."""

    def __init__(self, database: Database, folder: Path, logger: FilteringBoundLogger) -> None:
        self._database = database
        self._folder = folder
        self._logger = logger
        self._models = folder / "models"
        self._incoming = folder / "incoming"
        for path in (self._models, self._incoming):
            path.mkdir(parents=True, exist_ok=True)
        self._check_identity()
        self._remove_orphans()

    @contextmanager
    def receive(self) -> Iterator[Incoming]:
        """Open a new file for incoming weights, which is removed when the block ends."""
        with self._writing():
            incoming = Incoming(self._scratch())
            try:
                yield incoming
            finally:
                incoming.close()

    def publish(self, header: ModelHeader, safetensors: Path) -> StoredModelInfo:
        """Store the model in `safetensors`: afterwards it is complete and visible, or (if this raises or the process dies) unknown.

        A second one of the same run and trigger is dropped in favour of the first.
        Raises: ConfigError: the `model_storage` section is wrong. InvalidArgumentError: the file is no safetensors file.
            UnavailableError: the disk or PostgreSQL cannot be used.
        """
        strategy = load_section(ModelStorageSection, header.model_storage, "model_storage").full_model_strategy
        try:
            entries = read_entries(safetensors)
        except CorruptStateError as error:
            raise InvalidArgumentError(f"the model that was put cannot be read: {error.message}") from error
        weights_sha256 = file_weights_sha256(safetensors, entries)
        with self._writing():
            packed, unpacked_bytes = self._encode(safetensors, strategy)
            path = self._models / f"{uuid.uuid4().hex}.model"
            sync(packed)
            packed.rename(path)
            sync(self._models)
        row = {
            **{field.name: getattr(header, field.name) for field in fields(header) if field.name in models.c},
            "strategy": strategy.name,
            "strategy_config": strategy.model_dump(),
            "layout": [(spec.name, spec.dtype, spec.shape) for spec in wire_order(entry.spec for entry in entries)],
            "file_name": path.name,
            "num_bytes": path.stat().st_size,
            "unpacked_bytes": unpacked_bytes,
            "weights_sha256": weights_sha256,
            "created_at": time.time(),
            "promoted": False,
        }
        # A commit that fails may have happened: the file stays, and the next start removes it if it is an orphan.
        with self._database.session() as session:
            stored = (
                session.execute(upsert(models).values(row).on_conflict_do_nothing().returning(*_WITHOUT_LAYOUT))
                .mappings()
                .one_or_none()
            )
        if stored is not None:
            return _info(stored)
        path.unlink()
        existing = self.find(header.run_id, header.trigger_id)
        if existing is None:
            raise ConflictError(
                f"the model of run {header.run_id}, trigger {header.trigger_id} was deleted meanwhile; put it again"
            )
        return existing

    @contextmanager
    def fetch(self, model_id: int) -> Iterator[tuple[StoredModelInfo, Path]]:
        """Open a version: yields it and its weights as a safetensors file, which is removed when the block ends.

        Raises: NotFoundError. CorruptStateError: the file on disk does not hold the weights that were put.
        """
        row = self._row(model_id)
        path, wire = self._models / row["file_name"], self._scratch()
        try:
            with self._writing():
                self._decode(row, path, wire)
            yield _info(row), wire
        except CorruptStateError as error:
            self._logger.error("model_file_corrupt", model_id=model_id, file=str(path), error=error.message)
            raise CorruptStateError(
                f"model {model_id} (run '{row['run_id']}', trigger {row['trigger_id']}) cannot be read from {path}: {error.message}; "
                "restore the file from a backup, or delete the model and train it again"
            ) from error
        finally:
            wire.unlink(missing_ok=True)

    def describe(self, model_id: int) -> StoredModelInfo:
        """Return a version. Raises NotFoundError."""
        return _info(self._row(model_id))

    def find(self, run_id: RunId, trigger_id: int) -> StoredModelInfo | None:
        """Return the version of a trigger of a run, if there is one."""
        if not run_id:
            return None
        wanted = select(*_WITHOUT_LAYOUT).where(models.c.run_id == run_id, models.c.trigger_id == trigger_id)
        with self._database.session() as session:
            row = session.execute(wanted).mappings().one_or_none()
        return None if row is None else _info(row)

    def list(self, run_id: RunId | None) -> list[StoredModelInfo]:
        """Return the versions of a run, or all, in the order in which they were put."""
        wanted = select(*_WITHOUT_LAYOUT).order_by(models.c.model_id)
        if run_id:
            wanted = wanted.where(models.c.run_id == run_id)
        with self._database.session() as session:
            return [_info(row) for row in session.execute(wanted).mappings()]

    def delete(self, model_id: int) -> None:
        """Delete a version, then its file. Its children stay: a parent is lineage only, as every version is stored whole.

        Raises NotFoundError, or ConflictError while the version is promoted.
        """
        with self._database.session() as session:
            row = session.execute(select(models).where(models.c.model_id == model_id).with_for_update()).mappings().one_or_none()
            if row is None:
                raise _unknown(model_id)
            if row["promoted"]:
                raise ConflictError(
                    f"model {model_id} is promoted, so it may be in use; promote another version of the run first"
                )
            session.execute(delete(models).where(models.c.model_id == model_id))
        (self._models / row["file_name"]).unlink(missing_ok=True)

    def promote(self, model_id: int) -> StoredModelInfo:
        """Mark a version as the one to use, and no other of the same run; imported ones belong to no run. Raises NotFoundError."""
        with self._database.session() as session:
            run_id = session.scalar(select(models.c.run_id).where(models.c.model_id == model_id))
            if run_id is None:
                raise _unknown(model_id)
            if run_id:
                # Locks the run's versions in one order, so that two promotions at once end with one promoted version.
                session.execute(
                    select(models.c.model_id).where(models.c.run_id == run_id).order_by(models.c.model_id).with_for_update()
                )
                session.execute(update(models).where(models.c.run_id == run_id, models.c.promoted).values(promoted=False))
            promoted = update(models).where(models.c.model_id == model_id).values(promoted=True).returning(*_WITHOUT_LAYOUT)
            row = session.execute(promoted).mappings().one_or_none()
            if row is None:
                raise _unknown(model_id)
            return _info(row)

    def _encode(self, safetensors: Path, strategy: FullModelStrategy) -> tuple[Path, int]:
        """Write the file to keep, still in `incoming`; return it and its size before compression."""
        encoded, packed = self._scratch(), self._scratch()
        try:
            _format(strategy).encode(safetensors, encoded)
            unpacked_bytes = encoded.stat().st_size
            if strategy.zip:
                compression.compress(encoded, packed, strategy.zip_algorithm)
                encoded.unlink()
                return packed, unpacked_bytes
            return encoded, unpacked_bytes
        except BaseException:
            encoded.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
            raise

    def _decode(self, row: RowMapping, path: Path, wire: Path) -> None:
        # A stored record has every field set, which the validation of user input would refuse.
        strategy = FullModelStrategy.model_construct(**row["strategy_config"])
        layout = tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in row["layout"])
        unpacked = self._scratch() if strategy.zip else path
        try:
            if (num_bytes := path.stat().st_size) != row["num_bytes"]:
                raise CorruptStateError(f"the file has {num_bytes} bytes, {row['num_bytes']} were written")
            if strategy.zip:
                compression.decompress(path, unpacked, strategy.zip_algorithm, row["unpacked_bytes"])
            _format(strategy).decode(unpacked, layout, wire)
        except FileNotFoundError as error:
            self._row(row["model_id"])  # Deleted while it was fetched: then it is unknown, not corrupt.
            raise CorruptStateError("the file is missing") from error
        finally:
            if strategy.zip:
                unpacked.unlink(missing_ok=True)
        if (found := file_weights_sha256(wire)) != row["weights_sha256"]:
            raise CorruptStateError(
                f"the SHA-256 of its weights is {found}; {row['weights_sha256']} was expected, that of the weights that were put: "
                "the file has changed since"
            )

    def _row(self, model_id: int) -> RowMapping:
        with self._database.session() as session:
            row = session.execute(select(models).where(models.c.model_id == model_id)).mappings().one_or_none()
        if row is None:
            raise _unknown(model_id)
        return row

    def _scratch(self) -> Path:
        return self._incoming / uuid.uuid4().hex

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of the disk into UnavailableError with the cause."""
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
        """Raise ConflictError for a folder of another catalogue, whose models would be removed as orphans."""
        with self._database.session() as session:
            expected = session.scalars(select(store.c.store_id)).one()
        path = self._folder / "store_id"
        if not path.exists() and not any(self._models.iterdir()):
            path.write_text(expected)
        found = path.read_text() if path.exists() else "none"
        if found != expected:
            raise ConflictError(
                f"{self._folder} belongs to another database (store {found}, this one has {expected}); "
                "correct state_dir or database_url in the system file, or move the folder away"
            )

    def _remove_orphans(self) -> None:
        """Remove files that an interrupted put, get or delete has left."""
        with self._database.session() as session:
            known = set(session.scalars(select(models.c.file_name)))
        present = {path.name: path for path in self._models.iterdir()}
        orphans = [path for name, path in present.items() if name not in known]
        for path in [*orphans, *self._incoming.iterdir()]:
            path.unlink()
        if orphans:
            self._logger.info("orphans_removed", count=len(orphans))
        for name in known - present.keys():
            self._logger.error("model_file_missing", file=str(self._models / name))


def _format(strategy: FullModelStrategy) -> FullModelFormat:
    kind = MODEL_FORMATS.get(strategy.name)
    return kind(load_section(kind.Config, strategy.config, "model_storage.full_model_strategy.config"))


def _unknown(model_id: int) -> NotFoundError:
    return NotFoundError(f"there is no model {model_id}; `modyn models ls` lists those that exist")


def _info(row: RowMapping) -> StoredModelInfo:
    version = ModelVersion(**{field.name: row[field.name] for field in fields(ModelVersion)})
    return StoredModelInfo(version, row["model_class"], row["model_config"], row["training_result"])
