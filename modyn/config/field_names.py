"""Whether the section `preprocessing` of a pipeline and the files of a dataset name the same columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from modyn.config.base import Problem, Severity
from modyn.config.preprocessing import PREPROCESSING
from modyn.registry import nearest

_LISTED: Final = 50
"""Most names in a message."""


def wrong_names(section: Mapping[str, Any], dataset: str, payloads: str, fields: Sequence[str]) -> list[Problem]:
    """Return where a section takes rows of a dataset to have other columns than they have.

    Args: section: `preprocessing`, which may be wrong itself. dataset: its name. payloads: of its schema, see `DatasetSchema`; empty: it has
    none. fields: the names of its schema.
    """
    columns, names = section.get("columns"), section.get("names")
    if section.get("format") != payloads:
        if section.get("format") == "csv" and names is None:
            message = (
                f"is required: the first lines of the files of dataset '{dataset}' name no columns, or none of its files is indexed yet; write the "
                "names of all fields of a row, in order"
            )
            return [Problem(f"{PREPROCESSING}.names", message)]
        return []
    if payloads == "csv" and isinstance(names, Sequence) and list(names) != list(fields):
        message = f"{_listed(names)} are not the columns that the files of dataset '{dataset}' name: {_listed(fields)}; remove `names`, or correct it"
        return [Problem(f"{PREPROCESSING}.names", message)]
    found = list[Problem]()
    for name in columns if isinstance(columns, Mapping) else ():
        place, near = f"{PREPROCESSING}.columns.{name}", nearest(str(name), list(fields)) or "."
        if payloads == "json" and name not in fields:
            message = f"the first file of dataset '{dataset}' does not have this field in each line{near} Where it is absent, it is missing"
            found.append(Problem(place, message, Severity.WARNING))
        elif payloads == "csv" and fields.count(name) != 1:
            how = "name it twice" if name in fields else f"do not name it{near}"
            found.append(Problem(place, f"the files of dataset '{dataset}' {how} They name {_listed(fields)}"))
    return found


def with_names(section: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return a section with the names of the fields of rows, where it has none. A field without a name of its own, which none of its columns can be,
    gets one.

    >>> with_names({"format": "csv"}, ["", "a", "b", "b"])["names"]
    ('field 0', 'a', 'field 2', 'field 3')
    """
    unique = (name if name and fields.count(name) == 1 else f"field {number}" for number, name in enumerate(fields))
    return dict(section) if section.get("names") is not None else {**section, "names": tuple(unique)}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(map(str, names[:_LISTED])) + more
