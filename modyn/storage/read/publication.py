"""The publication of a dataset for readers in other processes: files in the dataset's folder, complete at any moment.

`index.json` names the other files: the segments, and the blocks with the names of the data files. A block never changes; a new block may replace
smaller blocks. A block also contains the sizes, times and tails of its files, by which readers detect a changed file. Newer values are in a separate
file. Each publication is a new `index.json` that replaces the old one, so a reader detects a new state with one `stat`. Storage publishes a change
before its answers contain the change, so readers find every key that a client knows.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modyn.columnar import ColumnFile, FileKind, write_columns
from modyn.config.dataset import DatasetConfig
from modyn.errors import CorruptStateError, NotFoundError, UnavailableError
from modyn.records import Int64Array
from modyn.storage.model.file_table import FileTable
from modyn.storage.model.samples import UInt8Array
from modyn.storage.model.schema import DatasetSchema

INDEX = "index.json"
"""Name of the file that is replaced with each publication."""
TOMBSTONES = "deletions"
"""Name of the file of deleted keys."""
NAMES = ".names"
"""Ending of the blocks of file names."""
STAMPS = ".stamps"
"""Ending of the name of the file with the sizes and times that have changed after the blocks were written."""
_FORMAT = 6
"""Number of the format, increased with each change of the format. Readers refuse every other number."""
_ADVICE = "restart storage, which writes it again"
_NAMES_KIND = FileKind(b"MODYNNAM", 2, "file of names of data files", _ADVICE)
_STAMPS_KIND = FileKind(b"MODYNSTA", 2, "file of stamps of data files", _ADVICE)


@dataclass(frozen=True, slots=True)
class NameBlock:
    """A file with the names, sizes and times of `count` data files."""

    file: str
    count: int


@dataclass(frozen=True, slots=True)
class Publication:
    """The content of `index.json`.

    identity: identity of the registration. segments: names of the segment files. altered: ids of files that must not be read, ascending. stamps: name
    of the file of newer stamps; None: all stamps are in the blocks. num_deleted: smallest number of keys in the file of deletions; with fewer keys,
    the file is missing or older. damaged: names of damaged segments, each with the reason; no sample may be read from a damaged segment. schema:
    None: the schema is not known. num_labels: like `num_deleted`, for the file of late labels.
    """

    config: DatasetConfig
    identity: str
    version: int
    float_labels: bool
    segments: tuple[str, ...]
    names: tuple[NameBlock, ...]
    altered: tuple[int, ...]
    stamps: str | None = None
    num_deleted: int = 0
    damaged: tuple[tuple[str, str], ...] = ()
    schema: DatasetSchema | None = None
    num_labels: int = 0

    @property
    def num_files(self) -> int:
        """Number of data files in the name blocks."""
        return sum(block.count for block in self.names)

    def to_json(self) -> bytes:
        """Encode the publication as the content of its file."""
        content = {
            "dataset": self.config.model_dump(mode="json"),
            "identity": self.identity,
            "version": self.version,
            "float_labels": self.float_labels,
            "segments": self.segments,
            "names": [[block.file, block.count] for block in self.names],
            "altered": self.altered,
            "stamps": self.stamps,
            "num_deleted": self.num_deleted,
            "damaged": self.damaged,
            "schema": self.schema and self.schema.to_json(),
            "num_labels": self.num_labels,
        }
        return json.dumps({"format": _FORMAT, "crc32": _checksum(content), "content": content}).encode()

    @staticmethod
    def read(folder: Path) -> Publication:
        """Read the publication in the folder of a dataset.

        Raises: NotFoundError: there is no publication. CorruptStateError: the publication is damaged or has another format. UnavailableError: the
        publication cannot be read.
        """
        path = folder / INDEX
        try:
            whole: dict[str, Any] = json.loads(path.read_bytes())
            if whole["format"] != _FORMAT:
                raise CorruptStateError(
                    f"{path} is of format {whole['format']}, this Modyn reads format {_FORMAT}; use the Modyn that wrote it"
                )
            content: dict[str, Any] = whole["content"]
            if whole["crc32"] != _checksum(content):
                raise CorruptStateError(f"{path} is damaged (it does not match its checksum); {_ADVICE}")
            return Publication(
                DatasetConfig.model_validate(content["dataset"]),
                str(content["identity"]),
                int(content["version"]),
                bool(content["float_labels"]),
                tuple(content["segments"]),
                tuple(NameBlock(*block) for block in content["names"]),
                tuple(content["altered"]),
                content["stamps"],
                int(content["num_deleted"]),
                tuple((str(name), str(reason)) for name, reason in content["damaged"]),
                DatasetSchema.from_json(text) if (text := content["schema"]) else None,
                int(content["num_labels"]),
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"no dataset is published in {folder}") from error
        except OSError as error:
            raise UnavailableError(f"cannot read {path}: {error.strerror or error}; make it readable") from error
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStateError(f"{path} is damaged ({error}); {_ADVICE}") from error


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content).encode())


def last_published(folder: Path) -> Publication | None:
    """Return the publication in the folder of a dataset; None if there is no publication that can be read. Raises UnavailableError."""
    try:
        return Publication.read(folder)
    except (NotFoundError, CorruptStateError):
        return None


@dataclass(frozen=True, slots=True, eq=False)
class NameColumns:
    """A mapped block of names. text: uint8, all names one after the other. ends: where each name ends in `text`. sizes: bytes. ends, sizes,
    mtimes_ns and tails are int64 (n,)."""

    ends: Int64Array
    sizes: Int64Array
    mtimes_ns: Int64Array
    tails: Int64Array
    text: UInt8Array


def write_names(path: Path, files: FileTable, first: int) -> None:
    """Write a block with the files from id `first` on. Raises UnavailableError. Args: path: path of the new block."""
    text, ends = files.known.packed_paths(first)
    sizes, mtimes_ns, tails = files.known.stamps(np.arange(first, len(files)))
    write_columns(path, _NAMES_KIND, {"ends": ends, "sizes": sizes, "mtimes_ns": mtimes_ns, "tails": tails, "text": text})


def map_names(folder: Path, block: NameBlock, verify: bool = False) -> NameColumns:
    """Map the columns of a block of names into memory. Raises CorruptStateError, UnavailableError.

    Args: folder: folder of the dataset's publication. verify: compare the file with its checksums, which reads all of it.
    """
    file = _open(folder / block.file, _NAMES_KIND, verify)
    columns = NameColumns(
        file.column("ends"), file.column("sizes"), file.column("mtimes_ns"), file.column("tails"), file.column("text")
    )
    if len(columns.ends) != block.count:
        raise _NAMES_KIND.corrupt(file.path, f"it has {len(columns.ends)} names, not {block.count}")
    return columns


def write_stamps(path: Path, files: FileTable, ids: Int64Array) -> None:
    """Write sizes (bytes), times (ns) and tails of the files `ids`, int64 (n,), ascending. Raises UnavailableError."""
    write_columns(path, _STAMPS_KIND, {"stamps": np.stack([ids, *files.known.stamps(ids)])})


def map_stamps(path: Path, verify: bool = False) -> Int64Array:
    """Map ids, sizes, times and tails of files into memory: int64 (4, n). Argument `verify` and errors: see `map_names`."""
    return _open(path, _STAMPS_KIND, verify).column("stamps")


def _open(path: Path, kind: FileKind, verify: bool) -> ColumnFile:
    try:
        file = ColumnFile.open(path, kind)
        if verify:
            file.verify()
        return file
    except NotFoundError as error:
        raise CorruptStateError(error.message) from error
