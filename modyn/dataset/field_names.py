"""Whether the section `preprocessing` of a pipeline and the files of a dataset name the same columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modyn.config.base import Problem, Severity
from modyn.config.preprocessing import PREPROCESSING
from modyn.registry import nearest
from modyn.storage.client import DatasetSchema, listed


def wrong_names(section: Mapping[str, Any], dataset: str, schema: DatasetSchema | None) -> list[Problem]:
    """Return where a section takes rows of a dataset to have other columns than they have.

    Args: section: `preprocessing`, which may be wrong itself. dataset: its name. schema: its schema; None: it has none.
    """
    columns, names = section.get("columns"), section.get("names")
    if schema is None or section.get("format") != schema.payloads:
        if section.get("format") == "csv" and names is None:
            message = (
                f"is required: the first lines of the files of dataset '{dataset}' name no columns, or none of its files is indexed yet; write the "
                "names of all fields of a row, in order"
            )
            return [Problem(f"{PREPROCESSING}.names", message)]
        return []
    fields = list(schema.names)
    if schema.payloads == "csv" and isinstance(names, Sequence) and list(names) != fields:
        message = (
            f"{listed([*map(str, names)])} are not the columns that the files of dataset '{dataset}' name: {listed(fields)}; remove `names`, or "
            "correct it"
        )
        return [Problem(f"{PREPROCESSING}.names", message)]
    wanted = [str(name) for name in columns] if isinstance(columns, Mapping) else []
    if schema.payloads == "json":
        return [_missing_field(name, wanted, dataset, schema) for name in wanted if name not in fields]
    found = list[Problem]()
    for name in wanted:
        if schema.payloads == "csv" and fields.count(name) != 1:
            how = "name it twice" if name in fields else f"do not name it{nearest(name, fields) or '.'}"
            message = f"the files of dataset '{dataset}' {how} They name {listed(fields)}"
            found.append(Problem(f"{PREPROCESSING}.columns.{name}", message))
    return found


def _missing_field(name: str, wanted: Sequence[str], dataset: str, schema: DatasetSchema) -> Problem:
    """A problem if no object of a file has the field `name`, and a warning if that is not known, or some objects have it.

    Args: wanted: all columns of the section.
    """
    place = f"{PREPROCESSING}.columns.{name}"
    known = [*schema.names, *schema.some_lines]
    without = [file for file in schema.lacking if name in file.lacks]
    if schema.names_all and (name not in known or without):
        there = list(without[0].fields) if without else known
        which = f"{schema.decided_by}, as it was when it decided the fields of dataset '{dataset}',"
        if without:
            more = " and of others" if len(without) > 1 else ""
            which = f"{without[0].path or 'some files'}{more} of dataset '{dataset}'"
        message = (
            f"no object in the first lines of {which} has this field{nearest(name, there) or '.'} The fields there are "
            f"{listed(there)}; `columns` are {listed(wanted)}. Correct the name, or write the field in each file, as null where it is unknown. If "
            f"files may lack it, name those that all have by `modyn data change {dataset} -o 'required_fields=[...]'`: where it is absent, it is "
            "missing then"
        )
        return Problem(place, message)
    which = f"the first file of dataset '{dataset}' does not have this field in each line"
    if not schema.decided_by:
        which = f"the option required_fields of dataset '{dataset}' does not name this field"
    near = "." if name in known else nearest(name, known) or "."
    return Problem(place, f"{which}{near} Where it is absent, it is missing", Severity.WARNING)


def with_names(section: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return a section with the names of the fields of rows, where it has none. A field without a name of its own, which none of its columns can be,
    gets one.

    >>> with_names({"format": "csv"}, ["", "a", "b", "b"])["names"]
    ('field 0', 'a', 'field 2', 'field 3')
    """
    unique = (name if name and fields.count(name) == 1 else f"field {number}" for number, name in enumerate(fields))
    return dict(section) if section.get("names") is not None else {**section, "names": tuple(unique)}
