"""Problems of a dataset's files for people to read: equal reasons once, with their number and some of the values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from modyn.cli.output import clock
from modyn.storage.model.records import FileProblem

_SHOWN_VALUES: Final = 3
"""How many values of the other problems of a group are shown."""
_QUOTED: Final = re.compile(r"(column |the label |the time |the sample |timestamp_format=)?'([^']*)'")
"""A quoted value. Where the first group matches, the value is a name, and problems of one group have the same one."""


@dataclass(slots=True)
class ProblemGroup:
    """Problems whose reasons differ in files, numbers and values only. first: the one that is shown. paths: of all, in order."""

    first: FileProblem
    count: int = 0
    paths: dict[str, None] = field(default_factory=dict)
    values: dict[str, None] = field(default_factory=dict)
    found_at: float = 0.0

    @property
    def files(self) -> str:
        """The file of the one that is shown, and how many more there are."""
        more = len(self.paths) - 1
        return self.first.path + (f" and {more:,} more" if more else "")

    @property
    def reason(self) -> str:
        """The reason of the problem that is shown, and values of the others."""
        others = [value for value in self.values if f"'{value}'" not in self.first.reason]
        shown = ", ".join(f"'{value}'" for value in others[:_SHOWN_VALUES])
        more = f" and {len(others) - _SHOWN_VALUES:,} more values" if len(others) > _SHOWN_VALUES else ""
        return self.first.reason + (f"; also {shown}{more}" if others else "")


def grouped(problems: Iterable[FileProblem]) -> list[ProblemGroup]:
    """Group problems with equal reasons, the largest group first.

    >>> rows = [FileProblem("a.csv", f"a.csv, row {row}: the field '{value}' is bad", 0.0) for row, value in ((1, "x"), (7, "y"))]
    >>> [(group.count, group.files, group.reason) for group in grouped(rows)]
    [(2, 'a.csv', "a.csv, row 1: the field 'x' is bad; also 'y'")]
    """
    groups = dict[str, ProblemGroup]()
    for problem in problems:
        text = problem.reason.replace(problem.path, "")
        values = [match[2] for match in _QUOTED.finditer(text) if not match[1]]
        kind = _QUOTED.sub(lambda match: match[0] if match[1] else "''", text)
        group = groups.setdefault(re.sub(r"\d+", "#", kind), ProblemGroup(problem))
        group.count += 1
        group.paths[problem.path] = None
        group.values.update(dict.fromkeys(values[:1]))
        group.found_at = max(group.found_at, problem.found_at)
    return sorted(groups.values(), key=lambda group: -group.count)


def problem_rows(problems: Iterable[FileProblem]) -> list[list[object]]:
    """Rows of a table of groups: count, file, reason, and when the newest was found."""
    return [[group.count, group.files, group.reason, clock(group.found_at)] for group in grouped(problems)]
