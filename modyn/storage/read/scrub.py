"""All files of a dataset's index against their checksums."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from modyn.errors import CorruptStateError, NotFoundError
from modyn.storage.index.segment_file import Segment
from modyn.storage.index.tombstones import Tombstones
from modyn.storage.model.records import FileProblem
from modyn.storage.read.publication import INDEX, TOMBSTONES, Publication, map_names, map_stamps


def scrub(folder: Path) -> list[FileProblem]:
    """Read what is published in the folder of a dataset, and its deletions; return the files that are damaged or missing.

    Raises: NotFoundError: nothing is published there. UnavailableError: a file cannot be read now.
    """
    problems: list[FileProblem] = []
    try:
        published = Publication.read(folder)
    except CorruptStateError as error:
        return [FileProblem(str(folder / INDEX), error.message, time.time())]
    checks: dict[str, Callable[[], object]] = {name: partial(_verify_segment, folder / name) for name in published.segments}
    checks |= {block.file: partial(map_names, folder, block, verify=True) for block in published.names}
    if published.stamps is not None:
        checks[published.stamps] = partial(map_stamps, folder / published.stamps, verify=True)
    checks[TOMBSTONES] = partial(Tombstones.open, folder / TOMBSTONES, published.num_deleted)
    for name, check in checks.items():
        try:
            check()
        except CorruptStateError as error:
            problems.append(FileProblem(str(folder / name), error.message, time.time()))
    # Files that others have taken the place of meanwhile are no problem.
    return problems if not problems or _is_newest(folder, published) else scrub(folder)


def _verify_segment(path: Path) -> None:
    Segment.open(path).verify()


def _is_newest(folder: Path, published: Publication) -> bool:
    try:
        return Publication.read(folder) == published
    except (NotFoundError, CorruptStateError):
        return True
