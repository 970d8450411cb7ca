"""Compares all files of a dataset's index with their checksums."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

from prometheus_client import Gauge

from modyn.errors import CorruptStateError, DataError, NotFoundError, UnavailableError
from modyn.storage.files.file_system import UNPACKED
from modyn.storage.files.unpacked import check_copy
from modyn.storage.formats.record_file import check_records
from modyn.storage.index.late_labels import LATE_LABELS, read_late_labels
from modyn.storage.index.segment_file import Segment
from modyn.storage.index.tombstones import Tombstones
from modyn.storage.model.dataset_records import RECORDS_FOLDER, FileProblem
from modyn.storage.read.publication import INDEX, TOMBSTONES, Publication, map_names, map_stamps

DAMAGED_FILES = Gauge(
    "modyn_storage_damaged_files",
    "Files of indexes that are known to be damaged, missing or unreadable; `modyn data problems` names them",
)


def scrub(folder: Path) -> Iterator[tuple[str, FileProblem | None]]:
    """Compare the published files of a dataset, its deletions, late labels and unpacked copies with their checksums, one after the other.

    Yields: the path of each file and its problem: the file is damaged, missing or unreadable; None: the file is intact, or was replaced meanwhile.
    Raises: NotFoundError: there is no publication in `folder`. UnavailableError: the publication cannot be read now.
    """
    try:
        checks = _checks(folder)
    except CorruptStateError as error:
        path = str(folder / INDEX)
        yield path, FileProblem(path, error.message, time.time())
        return
    for name, check in checks.items():
        yield str(folder / name), _problem(folder, name, check)


def _checks(folder: Path) -> dict[str, Callable[[], object]]:
    """Return file name → function that checks the file, for all files of the newest publication. Raises: see `Publication.read`."""
    published = Publication.read(folder)
    checks: dict[str, Callable[[], object]] = {name: partial(_verify_segment, folder / name) for name in published.segments}
    checks |= {block.file: partial(map_names, folder, block, verify=True) for block in published.names}
    if published.stamps is not None:
        checks[published.stamps] = partial(map_stamps, folder / published.stamps, verify=True)
    checks |= {
        f"{RECORDS_FOLDER}/{path}": partial(check_records, str(folder / RECORDS_FOLDER / path), size)
        for path, size in _record_files(folder, published)
    }
    checks |= {f"{UNPACKED}/{path.name}": partial(check_copy, path) for path in (folder / UNPACKED).glob("[!.]*")}
    checks[TOMBSTONES] = partial(Tombstones.open, folder / TOMBSTONES, published.num_deleted)
    if published.config.holds_records:
        checks[LATE_LABELS] = partial(read_late_labels, folder / LATE_LABELS, None, published.num_labels)
    return checks


def _record_files(folder: Path, published: Publication) -> Iterator[tuple[str, int]]:
    """Yield the name of each file of a dataset of records, and the number of indexed bytes of the file."""
    if not published.config.holds_records:
        return
    sizes: list[int] = []
    names: list[str] = []
    for block in published.names:
        mapped = map_names(folder, block)
        text, ends = mapped.text.tobytes(), [0, *mapped.ends.tolist()]
        names += [os.fsdecode(text[start:end]) for start, end in pairwise(ends)]
        sizes += mapped.sizes.tolist()
    if published.stamps is not None:
        ids, newer_sizes, _, _ = map_stamps(folder / published.stamps)
        for file_id, size in zip(ids.tolist(), newer_sizes.tolist(), strict=True):
            sizes[file_id] = size
    yield from zip(names, sizes, strict=True)


def segment_problem(path: Path) -> FileProblem | None:
    """Return the problem of a segment that is part of the index; None: the segment is intact."""
    return _problem(path.parent, path.name, partial(_verify_segment, path))


def _verify_segment(path: Path) -> None:
    Segment.open(path).verify()


def _problem(folder: Path, name: str, check: Callable[[], object]) -> FileProblem | None:
    try:
        check()
    # Ingestion may have replaced the file during the check. Then the damage of the old file does not matter.
    except (CorruptStateError, UnavailableError, DataError) as error:
        return FileProblem(str(folder / name), error.message, time.time()) if _is_named(folder, name) else None
    return None


def _is_named(folder: Path, name: str) -> bool:
    """Whether a file still belongs to the index. Ingestion removes files that it has replaced."""
    try:
        return name in _checks(folder)
    except NotFoundError:
        return False  # The dataset was deleted.
    except CorruptStateError:
        return True
