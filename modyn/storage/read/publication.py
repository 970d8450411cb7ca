"""What storage publishes of a dataset for readers in other processes: files in the dataset's folder, complete at any moment.

`index.json` names the other files: the segments, and the names of the data files in blocks that only grow in number. A block also has
sizes, times and tails of its files, by which readers notice that a file was changed; newer ones stand in a file of their own. Each publication is a
new file that takes the place of the old one, so a reader that finds the same file finds the same state, at the price of a `stat`. Storage
publishes a change before it answers with it: the sample of a key that a client knows is found here.
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
TOMBSTONES = "deletions"
NAMES = ".names"
"""Ending of the blocks of file names."""
STAMPS = ".stamps"
"""Ending of the sizes and times that are not those in the blocks any more."""
_FORMAT = 6
_ADVICE = "restart storage, which writes it anew"
_NAMES_KIND = FileKind(b"MODYNNAM", 2, "file of names of data files", _ADVICE)
_STAMPS_KIND = FileKind(b"MODYNSTA", 2, "file of stamps of data files", _ADVICE)


@dataclass(frozen=True, slots=True)
class NameBlock:
    """A file with the names, sizes and times of `count` data files."""

    file: str
    count: int


@dataclass(frozen=True, slots=True)
class Publication:
    """The content of `index.json`. identity: of the registration. segments: names of files. altered: ids of files that may not be read, ascending.
    stamps: name of the file of newer stamps; None if all are those in the blocks. num_deleted: keys that the file of deletions has at least,
    by which a lost or older one is noticed; 0 in publications of before there was this field. damaged: names of segments that are known to be
    damaged, each with the reason; no sample may be read from them. schema: None: it is not known. num_labels: as `num_deleted`, of the file of labels
    that came late."""

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
        """Files that the name blocks hold."""
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
        """Read what storage has published in the folder of a dataset.

        Raises: NotFoundError: nothing is published there. CorruptStateError: it is damaged or of another format. UnavailableError: it cannot
        be read.
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
                int(content.get("num_deleted", 0)),
                tuple((str(name), str(reason)) for name, reason in content.get("damaged", ())),
                DatasetSchema.from_json(text) if (text := content.get("schema")) else None,
                int(content.get("num_labels", 0)),
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
    """What is published in the folder of a dataset; None if nothing readable is. Raises UnavailableError."""
    try:
        return Publication.read(folder)
    except (NotFoundError, CorruptStateError):
        return None


@dataclass(frozen=True, slots=True, eq=False)
class NameColumns:
    """What a block of names holds, mapped. ends of names in `text`, sizes (bytes), mtimes_ns, tails: int64 (n,). text: uint8."""

    ends: Int64Array
    sizes: Int64Array
    mtimes_ns: Int64Array
    tails: Int64Array
    text: UInt8Array


def write_names(path: Path, files: FileTable, first: int) -> None:
    """Write a block about the files from id `first` on. Raises UnavailableError. Args: path: of the new file."""
    text, ends = files.known.packed_paths(first)
    sizes, mtimes_ns, tails = files.known.stamps(np.arange(first, len(files)))
    write_columns(path, _NAMES_KIND, {"ends": ends, "sizes": sizes, "mtimes_ns": mtimes_ns, "tails": tails, "text": text})


def map_names(folder: Path, block: NameBlock, verify: bool = False) -> NameColumns:
    """Map the columns of a block of names into memory, compared with their checksums if asked. Raises CorruptStateError, UnavailableError.

    Args: folder: of the dataset's publication. verify: compare the file with its checksums, which reads all of it.
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
    """Map ids, sizes, times and tails of files into memory, as `map_names`: int64 (4, n). Raises CorruptStateError, UnavailableError."""
    return _open(path, _STAMPS_KIND, verify).column("stamps")


def _open(path: Path, kind: FileKind, verify: bool) -> ColumnFile:
    try:
        file = ColumnFile.open(path, kind)
        if verify:
            file.verify()
        return file
    except NotFoundError as error:
        raise CorruptStateError(error.message) from error
