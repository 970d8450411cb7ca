"""Listed files against indexed files."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from modyn.storage.files.file_system import SeenFile, SeenFiles
from modyn.storage.model.file_table import FileRow, FileTable


def test_what_is_to_be_done_with_a_file() -> None:
    table = FileTable([FileRow(0, "a", 16, 5, 16, 1, "f"), FileRow(1, "b", 16, 5, 16, 1, "f", altered=True)])

    def compared(*files: SeenFile) -> list[list[int]]:
        found = table.compare(*SeenFiles.of(files).columns)
        return [column.tolist() for column in (found.new, found.changed, found.unchanged, found.absent)]

    assert compared(SeenFile("a", 16, 5), SeenFile("b", 16, 5), SeenFile("c", 16, 5)) == [[2], [1], [0], []]
    assert compared(SeenFile("a", 16, 6)) == [[], [0], [], [1]]
    assert compared(SeenFile("a", 32, 5)) == [[], [0], [], [1]]
    assert compared() == [[], [], [], [0, 1]]
    table.change([FileRow(1, "b", 16, 5, 16, 1, "f"), FileRow(0, "a", 32, 6, 32, 2, "g")])
    assert compared(SeenFile("b", 16, 5), SeenFile("a", 32, 6)) == [[], [], [0, 1], []]
    with pytest.raises(ValueError, match="does not follow"):
        table.add([FileRow(3, "d", 1, 1, 1, 1, "")])
    assert [len(column) for column in astuple(FileTable().compare(*SeenFiles.of([]).columns))] == [0, 0, 0, 0]
