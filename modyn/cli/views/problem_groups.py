"""View of the problems of a dataset's files. Problems with equal reasons are shown once, with the number of problems and some of their values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from modyn.cli.views.output import clock
from modyn.storage.model.dataset_records import FileProblem

_SHOWN_VALUES: Final = 3
"""Largest number of values that are shown in addition to the value of the first problem of a group."""
_VALUE: Final = re.compile(
    r"((?:the field|'[^']*':?|problem:|read:|does not match|its content|is a (?:text|fraction|whole number),)) '([^']*)'(?! occurs)"
)
"""A quoted value of a row or a file, with the words before it. Other quoted texts are names, mostly of columns."""
_NUMBER: Final = re.compile(
    r"((?<!\w)'[^']*'|\w+[(\[][^)\]]*[)\]]|\d+ (?:field|column)\(s\))|(?<!\w)\d+(?:[.,:-]?\d+)*(?:e[+-]?\d+)?(?!\w)"
)
"""A number, such as a row number. If the capturing group matches, the text is a name, a type or a field count, which stays in the reason."""


@dataclass(slots=True)
class ProblemGroup:
    """Problems whose reasons differ only in files, values, and numbers of rows, lines and bytes. first: the problem that is shown. paths: files of
    all problems, in order. values: the values of all problems, in order."""

    first: FileProblem
    count: int = 0
    paths: dict[str, None] = field(default_factory=dict)
    values: dict[str, None] = field(default_factory=dict)
    found_at: float = 0.0

    @property
    def files(self) -> str:
        """Return the file of the shown problem, and the number of further files."""
        more = len(self.paths) - 1
        return self.first.path + (f" and {more:,} more" if more else "")

    @property
    def reason(self) -> str:
        """Return the reason of the shown problem, and values of the other problems."""
        others = [value for value in self.values if f"'{value}'" not in self.first.reason]
        shown = ", ".join(f"'{value}'" for value in others[:_SHOWN_VALUES])
        more = f" and {len(others) - _SHOWN_VALUES:,} more values" if len(others) > _SHOWN_VALUES else ""
        return self.first.reason + (f"; also {shown}{more}" if others else "")


def grouped(problems: Iterable[FileProblem]) -> list[ProblemGroup]:
    """Group problems with equal reasons, largest group first.

    >>> rows = [FileProblem("a.csv", f"a.csv, row {row}: the field '{value}' is bad", 0.0) for row, value in ((1, "x"), (7, "y"))]
    >>> [(group.count, group.files, group.reason) for group in grouped(rows)]
    [(2, 'a.csv', "a.csv, row 1: the field 'x' is bad; also 'y'")]
    """
    groups = dict[str, ProblemGroup]()
    for problem in problems:
        text = _without_file(problem)
        kind = _NUMBER.sub(lambda match: match[1] or "#", _VALUE.sub(r"\1", text))
        group = groups.setdefault(kind, ProblemGroup(problem))
        group.count += 1
        group.paths[problem.path] = None
        group.values.update((match[2], None) for match in _VALUE.finditer(text))
        group.found_at = max(group.found_at, problem.found_at)
    return sorted(groups.values(), key=lambda group: -group.count)


def _without_file(problem: FileProblem) -> str:
    """Return the reason without the path of the file, and without paths that differ only in the suffix, such as the path of a label file."""
    text = problem.reason.replace(problem.path, "")
    folder, name = os.path.split(problem.path)
    stem = name.partition(".")[0]
    if not stem or f"{stem}." not in text:
        return text
    return re.sub(rf"(?<![\w'])(?:{re.escape(folder)}/)?{re.escape(stem)}(?:\.\w+)+", "", text)


def problem_rows(problems: Iterable[FileProblem]) -> list[list[object]]:
    """Return the rows of a table of groups: count, file, reason, and time of the newest problem."""
    return [[group.count, group.files, group.reason, clock(group.found_at)] for group in grouped(problems)]
