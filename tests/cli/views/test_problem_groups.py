"""Equal problems are shown once, with their number, some of the values, and one of the files."""

from __future__ import annotations

import pytest

from modyn.cli.views.problem_groups import grouped
from modyn.storage.model.dataset_records import FileProblem
from modyn.storage.model.schema import DatasetSchema, SchemaColumn, other_columns


def bad(path: str, row: int, value: str, column: str = "age") -> FileProblem:
    return FileProblem(path, f"{path}, row {row} at byte {row * 10}: column '{column}': '{value}' is not a number", float(row))


def test_equal_reasons_are_one_row_with_their_number_and_values() -> None:
    found = grouped(
        [
            *(bad("/d/a.csv", row, value) for row, value in enumerate("xyxzuv")),
            bad("/d/b.csv", 9, "x"),
            bad("/d/a.csv", 1, "x", "size"),
        ]
    )
    assert [(group.count, group.files) for group in found] == [(7, "/d/a.csv and 1 more"), (1, "/d/a.csv")]
    assert found[0].reason == "/d/a.csv, row 0 at byte 0: column 'age': 'x' is not a number; also 'y', 'z', 'u' and 1 more values"
    assert found[0].found_at == 9.0
    assert "column 'size'" in found[1].reason


def test_a_single_problem_is_shown_as_it_is() -> None:
    problem = bad("/d/a.csv", 3, "x")
    (group,) = grouped([problem])
    assert (group.count, group.files, group.reason) == (1, problem.path, problem.reason)
    assert grouped([]) == []


OWN = DatasetSchema("csv", tuple(map(SchemaColumn, ("y", "u", "v"))), "h.csv")


def columns(path: str, *names: str) -> str:
    return other_columns(path, names, OWN).message


def reasons(*reasons: str) -> list[FileProblem]:
    """Problems of the files of these reasons, each of which begins with a path."""
    return [FileProblem(reason.partition(".csv")[0] + ".csv", reason, 0.0) for reason in reasons]


@pytest.mark.parametrize(
    "different",
    [
        (columns("/d/a.csv", "y", "u", "w"), columns("/d/b.csv", "y", "U", "v")),
        ("/d/a.csv, line 2: column 'x1' is null", "/d/a.csv, line 2: column 'x2' is null"),
        ("/d/a.csv, line 2: there is no field 'a.b'", "/d/a.csv, line 3: there is no field 'a.c'"),
        (
            "/d/a.csv, line 2: the field 'u' occurs in it more than once",
            "/d/a.csv, line 3: the field 'v' occurs in it more than once",
        ),
        ("/d/a.csv: column 'x' is of type int32, not double", "/d/b.csv: column 'x' is of type int64, not double"),
        ("/d/a.csv: column 'x' is of type decimal128(9, 2)", "/d/b.csv: column 'x' is of type decimal128(9, 3)"),
        ("/d/a.csv, line 2: the row has 3 field(s)", "/d/a.csv, line 2: the row has 4 field(s)"),
        ("/d/a.csv, line 2: the time 't' is null", "/d/a.csv, line 2: the time 's' is null"),
    ],
)
def test_a_different_reason_is_not_hidden(different: tuple[str, str]) -> None:
    assert sorted(group.reason for group in grouped(reasons(*different))) == sorted(different)


@pytest.mark.parametrize(
    ("equal", "others"),
    [
        (("/d/a.csv, line 2, row 1: the field 'x' is no integer", "/d/a.csv, line 13, row 5: the field 'y7' is no integer"), "y7"),
        (("/d/a.csv, line 2: the field is no integer", "/d/a.csv, line 2: the field 'x' is no integer"), "x"),
        (("/d/a.csv, line 2: the time 't' '2030-13' is no time", "/d/b.csv, line 2: the time 't' '12 am' is no time"), "12 am"),
        (("cannot use /d/a1.csv: its label a1.label has a problem: 'u'", "cannot use /d/b_2.csv: its label b_2.label has a problem: 'v'"), "v"),
        (("/d/a.csv, line 2: the label 'y' is a text, 'u', not a number", "/d/a.csv, line 9: the label 'y' is a text, 'v', not a number"), "v"),
        (("/d/a.csv, line 2: its content 'u' is not a label", "/d/b.csv, line 2: its content '1.5' is not a label"), "1.5"),
        (("/d/a.csv.gz is not indexed: /d/a.csv is", "/d/b.csv.gz is not indexed: /d/b.csv is"), ""),
        (("/d/a.csv: its time is at 2100-01-01 00:00:00, not 5", "/d/b.csv: its time is at 2101-02-01 00:10:00, not 1e-05"), ""),
        ((columns("/d/a.csv", "y", "u", "w"), columns("/d/b.csv", "y", "u", "w")), ""),
    ],
)  # fmt: skip
def test_values_files_and_numbers_make_no_other_reason(equal: tuple[str, str], others: str) -> None:
    (first, second), problems = equal, []
    for reason in (first, second):
        path = reason.removeprefix("cannot use ").partition(" ")[0].rstrip(":,")
        problems.append(FileProblem(path, reason, 0.0))
    (group,) = grouped(problems)
    assert (group.count, group.reason) == (2, first + (f"; also '{others}'" if others else ""))
