"""Equal problems are shown once, with their number, some of the values, and one of the files."""

from __future__ import annotations

from modyn.cli.problem_groups import grouped
from modyn.storage.model.records import FileProblem


def bad(path: str, row: int, value: str, column: str = "age") -> FileProblem:
    return FileProblem(path, f"{path}, row {row} at byte {row * 10}: column '{column}': '{value}' is no number", float(row))


def test_equal_reasons_are_one_row_with_their_number_and_values() -> None:
    found = grouped(
        [
            *(bad("/d/a.csv", row, value) for row, value in enumerate("xyxzuv")),
            bad("/d/b.csv", 9, "x"),
            bad("/d/a.csv", 1, "x", "size"),
        ]
    )
    assert [(group.count, group.files) for group in found] == [(7, "/d/a.csv and 1 more"), (1, "/d/a.csv")]
    assert found[0].reason == "/d/a.csv, row 0 at byte 0: column 'age': 'x' is no number; also 'y', 'z', 'u' and 1 more values"
    assert found[0].found_at == 9.0
    assert "column 'size'" in found[1].reason


def test_a_single_problem_is_shown_as_it_is() -> None:
    problem = bad("/d/a.csv", 3, "x")
    (group,) = grouped([problem])
    assert (group.count, group.files, group.reason) == (1, problem.path, problem.reason)
    assert grouped([]) == []
