"""Listed files against indexed files."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from modyn.storage.files.file_system import SeenFile, SeenFiles
from modyn.storage.model.file_table import FileRow, FileTable


def test_what_is_to_be_done_with_a_file() -> None:
    table = FileTable([FileRow(0, "a", 16, 5, 16, 1, "f"), FileRow(1, "b", 16, 5, 16, 1, "f", altered=True)])

    def compared(*files: SeenFile) -> list[list[int]]:
        seen = SeenFiles.of(files)
        return [column.tolist() for column in astuple(table.compare(seen.paths, seen.sizes, seen.mtimes_ns))]

    assert compared(SeenFile("a", 16, 5), SeenFile("b", 16, 5), SeenFile("c", 16, 5)) == [[1, 2], []]
    assert compared(SeenFile("a", 16, 6)) == [[0], [1]]
    assert compared(SeenFile("a", 32, 5)) == [[0], [1]]
    assert compared() == [[], [0, 1]]
    table.change([FileRow(1, "b", 16, 5, 16, 1, "f"), FileRow(0, "a", 32, 6, 32, 2, "g")])
    assert compared(SeenFile("b", 16, 5), SeenFile("a", 32, 6)) == [[], []]
    assert (table.id_of("b"), table.id_of("c"), table.path(0)) == (1, None, "a")
    with pytest.raises(ValueError, match="does not follow"):
        table.add([FileRow(3, "d", 1, 1, 1, 1, "")])
    assert [len(column) for column in astuple(FileTable().compare([], *np.zeros((2, 0), np.int64)))] == [0, 0]
