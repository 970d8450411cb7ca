"""Listed files against indexed files."""

from __future__ import annotations

import numpy as np
import pytest

from modyn.storage.files.file_system import SeenFile, SeenFiles
from modyn.storage.model.file_table import Comparison, FileRow, FileTable


def test_what_is_to_be_done_with_a_file() -> None:
    table = FileTable([FileRow(0, "a", 16, 5, 16, 1, "f"), FileRow(1, "b", 16, 5, 16, 1, "f", altered=True)])

    def compared(*files: SeenFile) -> list[list[int]]:
        seen = SeenFiles.of(files)
        assert seen.tags is not None
        comparison = Comparison(table)
        # In two parts, as a listing that comes page by page.
        first, second = (
            comparison.differing(*part)
            for part in (
                (seen.paths[:1], seen.sizes[:1], seen.mtimes_ns[:1], seen.tags[:1]),
                (seen.paths[1:], seen.sizes[1:], seen.mtimes_ns[1:], seen.tags[1:]),
            )
        )
        return [[*first.tolist(), *(second + 1).tolist()], comparison.absent().tolist()]

    assert compared(SeenFile("a", 16, 5), SeenFile("b", 16, 5), SeenFile("c", 16, 5)) == [[1, 2], []]
    assert compared(SeenFile("a", 16, 6)) == [[0], [1]]
    assert compared(SeenFile("a", 32, 5)) == [[0], [1]]
    assert compared() == [[], [0, 1]]
    table.change([FileRow(1, "b", 16, 5, 16, 1, "f"), FileRow(0, "a", 32, 6, 32, 2, "g")])
    assert compared(SeenFile("b", 16, 5), SeenFile("a", 32, 6)) == [[], []]
    assert (table.id_of("b"), table.id_of("c"), table.path(0)) == (1, None, "a")
    with pytest.raises(ValueError, match="does not follow"):
        table.add([FileRow(3, "d", 1, 1, 1, 1, "")])
    assert len(Comparison(FileTable()).differing([], *np.zeros((2, 0), np.int64))) == 0


@pytest.mark.parametrize(("known", "listed", "differs"), [(7, 7, False), (7, 8, True), (-1, 8, False), (7, -1, False)])
def test_objects_of_one_size_and_time_differ_by_their_tags_where_both_are_known(known: int, listed: int, differs: bool) -> None:
    table = FileTable([FileRow(0, "a", 16, 5, 16, 1, "f", tail=known)])
    size, time, tag = np.array([[16], [5], [listed]])
    assert len(Comparison(table).differing(["a"], size, time, tag)) == differs
