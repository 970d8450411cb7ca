"""Files of model versions in the folder of model storage: how a version is encoded, compressed, written durably, read and checked."""

from __future__ import annotations

import errno
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import RowMapping

from modyn.atomic_write import make_folder, sync
from modyn.config.base import load_section
from modyn.errors import CorruptStateError, UnavailableError
from modyn.model_storage.compression import compress, decompress
from modyn.model_storage.formats import MODEL_FORMATS, FullModelFormat
from modyn.model_storage.formats.differences import WeightsDifference
from modyn.model_storage.section import FullModelStrategy, IncrementalModelStrategy, ModelStorageSection
from modyn.models.weights import TensorSpec, weights_sha256

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_WORTH: Final = 0.95
"""A difference must be smaller than this share of the whole version. A smaller gain is not worth a version that needs others to be read."""


@dataclass(frozen=True, slots=True)
class BaseWeights:
    """The weights that a version may be stored as a difference to. path: safetensors file. read_s: seconds that it took to make this file."""

    model_id: int
    path: Path
    read_s: float


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A version in one of the ways in which it may be stored. strategy: name of the way. base_id: None for a whole version."""

    strategy: str
    base_id: int | None
    path: Path
    num_bytes: int
    unpacked_bytes: int
    """Bytes before compression."""
    seconds: float


class VersionFiles:
    """The files in `folder`. Files in `models/` are complete and on the disk when a method returns them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.models = folder / "models"
        self.incoming = folder / "incoming"
        for path in (self.models, self.incoming):
            make_folder(path)

    def write(
        self,
        section: ModelStorageSection,
        safetensors: Path,
        base: BaseWeights | None,
        write_optimizers: Callable[[Path], object] | None,
    ) -> dict[str, Any]:
        """Write the files of a version: the version, whole or as a difference, and the state of its optimizers.

        Args: base: the version is stored as the difference to these weights, if that is smaller; None: it is stored whole.
        write_optimizers: makes the file with this state.
        Returns: the columns of the version's row that describe its files.
        """
        path = self.models / f"{uuid.uuid4().hex}.model"
        with self.writing(), ExitStack() as stack:
            full = chosen = self._encode(stack, section, safetensors, None)
            if base is not None:
                difference = self._encode(stack, section, safetensors, base)
                chosen = difference if difference.num_bytes < _WORTH * full.num_bytes else full
            chosen.path.rename(path)
            written = [path]
            if write_optimizers is not None:
                write_optimizers(optimizers_of(path))
                written.append(optimizers_of(path))
            # All files are there before any file is synced, because the first sync then also writes most data of the other files.
            for file in written:
                sync(file)
            sync(self.models)
        return {
            "file_name": path.name,
            "strategy": chosen.strategy,
            "base_id": chosen.base_id,
            "num_bytes": chosen.num_bytes,
            "unpacked_bytes": chosen.unpacked_bytes,
            "encode_s": chosen.seconds,
            "full_bytes": full.num_bytes,
            "full_encode_s": full.seconds,
            "optimizers_bytes": None if write_optimizers is None else optimizers_of(path).stat().st_size,
        }

    def _encode(self, stack: ExitStack, section: ModelStorageSection, safetensors: Path, base: BaseWeights | None) -> _Encoded:
        """Encode and compress a version. Args: stack: removes the files, unless they are moved."""
        began = time.perf_counter()
        strategy, form = _format(section, None if base is None else base.path)
        path = stack.enter_context(self.scratch())
        form.encode(safetensors, path)
        unpacked_bytes = path.stat().st_size
        if strategy.zip:
            encoded, path = path, stack.enter_context(self.scratch())
            compress(encoded, path, strategy.zip_algorithm)
            encoded.unlink()
        seconds = time.perf_counter() - began + (0.0 if base is None else base.read_s)
        base_id = None if base is None else base.model_id
        return _Encoded(strategy.name, base_id, path, path.stat().st_size, unpacked_bytes, seconds)

    def read(self, row: RowMapping, base: Path | None, wire: Path) -> None:
        """Write the weights of a version into the new safetensors file `wire`. Args: base: weights that the version is stored as a difference to.

        Raises: FileNotFoundError: the version has no file. CorruptStateError: the file does not contain the version.
        """
        path = self.models / row["file_name"]
        layout = tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in row["layout"])
        strategy, form = _format(ModelStorageSection.from_stored(row["section"]), base)
        with self.writing(), self.scratch() as unpacked:
            if (num_bytes := path.stat().st_size) != row["num_bytes"]:
                raise CorruptStateError(f"the file has {num_bytes} bytes, {row['num_bytes']} were written")
            try:
                if strategy.zip:
                    decompress(path, unpacked, strategy.zip_algorithm, row["unpacked_bytes"])
                form.decode(unpacked if strategy.zip else path, layout, wire)
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

    def remove(self, *file_names: str) -> None:
        """Remove the files of versions durably. Without the sync, a crash could restore the files. They would then stay in quarantine."""
        with self.writing():
            for name in file_names:
                for file in (self.models / name, optimizers_of(self.models / name)):
                    file.unlink(missing_ok=True)
            sync(self.models)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield the path of a new file in `incoming/`, which is removed when the block ends."""
        path = self.incoming / uuid.uuid4().hex
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
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


def optimizers_of(path: Path) -> Path:
    """Return the path of the state of a version's optimizers. Args: path: path of the version's weights."""
    return path.with_suffix(".optimizers")


def _format(
    section: ModelStorageSection, base: Path | None
) -> tuple[FullModelStrategy | IncrementalModelStrategy, FullModelFormat | WeightsDifference]:
    """Return how a version is stored whole, or as the difference to the weights in `base`."""
    if base is not None:
        incremental = section.incremental_model_strategy
        assert incremental is not None
        return incremental, WeightsDifference(incremental.config, base)
    full = section.full_model_strategy
    kind = MODEL_FORMATS.get(full.name)
    return full, kind(load_section(kind.Config, full.config, "model_storage.full_model_strategy.config"))
