"""The files that storage publishes of a dataset, see `published`: what stands in them, and how they are written and mapped."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modyn import _core
from modyn.atomic_write import write_atomically
from modyn.config.system import DatasetConfig
from modyn.errors import CorruptStateError, NotFoundError, UnavailableError
from modyn.records import Int64Array
from modyn.storage.model.file_table import FileTable
from modyn.storage.model.samples import UInt8Array

INDEX = "index.json"
NAMES = ".names"
"""Ending of the blocks of file names."""
STAMPS = ".stamps"
"""Ending of the sizes and times that are not those in the blocks any more."""
_FORMAT = 2
_ADVICE = "restart storage, which writes it anew"


@dataclass(frozen=True, slots=True)
class NameBlock:
    """A file about `count` data files: ends of their names, sizes and times (nanoseconds), all int64, and the text of the names."""

    file: str
    count: int


@dataclass(frozen=True, slots=True)
class StampFile:
    """A file about `count` data files whose stamps changed: ids, ascending, sizes and times, all int64."""

    file: str
    count: int


@dataclass(frozen=True, slots=True)
class Publication:
    """What `index.json` says of a dataset. segments: names of files. altered: ids of files that may not be read, ascending.
    stamps: None if all are those in the blocks."""

    config: DatasetConfig
    version: int
    float_labels: bool
    segments: tuple[str, ...]
    names: tuple[NameBlock, ...]
    altered: tuple[int, ...]
    stamps: StampFile | None = None

    @property
    def num_files(self) -> int:
        return sum(block.count for block in self.names)

    def to_json(self) -> bytes:
        content = {
            "format": _FORMAT,
            "dataset": self.config.model_dump(mode="json"),
            "version": self.version,
            "float_labels": self.float_labels,
            "segments": self.segments,
            "names": [[block.file, block.count] for block in self.names],
            "altered": self.altered,
            "stamps": self.stamps and [self.stamps.file, self.stamps.count],
        }
        return json.dumps(content).encode()

    @staticmethod
    def read(folder: Path) -> Publication:
        """Raises NotFoundError if nothing is published in `folder`, CorruptStateError, UnavailableError."""
        path = folder / INDEX
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
            if content["format"] != _FORMAT:
                raise CorruptStateError(
                    f"{path} is of format {content['format']}, this Modyn reads format {_FORMAT}; use the Modyn that wrote it"
                )
            return Publication(
                DatasetConfig.model_validate(content["dataset"]),
                int(content["version"]),
                bool(content["float_labels"]),
                tuple(content["segments"]),
                tuple(NameBlock(*block) for block in content["names"]),
                tuple(content["altered"]),
                StampFile(*content["stamps"]) if content["stamps"] else None,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"no dataset is published in {folder}") from error
        except OSError as error:
            raise UnavailableError(f"cannot read {path}: {error.strerror or error}; make it readable") from error
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStateError(f"{path} is damaged ({error}); {_ADVICE}") from error


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A block of names, mapped. ends, sizes, mtimes_ns: int64 (n,). text: uint8."""

    ends: Int64Array
    sizes: Int64Array
    mtimes_ns: Int64Array
    text: UInt8Array


def write_names(path: Path, files: FileTable, first: int) -> None:
    encoded = [os.fsencode(name) for name in files.paths[first:]]
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    columns = ends, *files.stamps(slice(first, None))
    write_atomically(path, [*(column.data.cast("B") for column in columns), b"".join(encoded)])


def map_names(path: Path, count: int) -> Block:
    """Raises CorruptStateError."""
    columns, text = _map_columns(path, count)
    if count and int(columns[0][-1]) != len(text):
        raise CorruptStateError(f"{path} is damaged; {_ADVICE}")
    return Block(columns[0], columns[1], columns[2], text)


def map_stamps(folder: Path, stamps: StampFile) -> Int64Array:
    """Ids, sizes and times: int64 (3, count), mapped. Raises CorruptStateError."""
    return _map_columns(folder / stamps.file, stamps.count)[0]


def _map_columns(path: Path, count: int) -> tuple[Int64Array, UInt8Array]:
    """Three columns and what follows: int64 (3, count), uint8. Raises CorruptStateError, UnavailableError."""
    try:
        content = _core.map_file(path)
    except _core.FileVanishedError as error:
        raise CorruptStateError(f"cannot read what is known of data files: {error}; {_ADVICE}") from error
    except _core.FileAccessError as error:
        raise UnavailableError(f"cannot read what is known of data files: {error}") from error
    size = 3 * 8 * count
    if len(content) < size:
        raise CorruptStateError(f"{path} is cut short; {_ADVICE}")
    return content[:size].view(np.int64).reshape(3, count), content[size:]


def is_readable(folder: Path, published: Publication) -> bool:
    """Whether all that `published` names of data files is there, and of the right size."""
    try:
        for block in published.names:
            map_names(folder / block.file, block.count)
        if published.stamps is not None:
            map_stamps(folder, published.stamps)
    except CorruptStateError:
        return False
    return True


def are_stamped(folder: Path, published: Publication, files: FileTable, ids: Int64Array) -> npt.NDArray[np.bool_]:
    """Whether the stamp of each of `ids`, ascending, is published as it is: bool (n,)."""
    sizes, mtimes_ns = files.stamps(ids)
    same = np.zeros(len(ids), np.bool_)

    def compare(places: Int64Array | slice, in_column: Int64Array, of: Int64Array, at: Int64Array) -> None:
        same[places] = (in_column[at] == sizes[places]) & (of[at] == mtimes_ns[places])

    try:
        first = 0
        for block in published.names if len(ids) else ():
            start, stop = np.searchsorted(ids, [first, first + block.count]).tolist()
            if start < stop:
                mapped = map_names(folder / block.file, block.count)
                compare(slice(start, stop), mapped.sizes, mapped.mtimes_ns, ids[start:stop] - first)
            first += block.count
        if published.stamps is not None and len(ids):
            restamped = map_stamps(folder, published.stamps)
            _, places, at = np.intersect1d(ids, restamped[0], assume_unique=True, return_indices=True)
            compare(places, restamped[1], restamped[2], at)
    except CorruptStateError:
        same[:] = False  # They are written once more.
    return same
