"""Check that the section `preprocessing` of a pipeline and the files of a dataset name the same columns."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from modyn.config.base import Problem, Severity
from modyn.config.dataset import DatasetConfig
from modyn.config.preprocessing import PREPROCESSING
from modyn.registry import nearest
from modyn.storage.client import DatasetSchema, listed

_QUOTE: Final = '"'
_FORMATS: Final = {"CsvFileWrapper": "csv", "JsonLinesFileWrapper": "json"}
"""File format → format of its payloads, for file formats in which all payloads have the same format."""


def wrong_form(section: Mapping[str, Any], config: DatasetConfig) -> list[Problem]:
    """List the keys of a section that do not match the options with which rows are read from the files of a dataset.

    Args: section: `preprocessing`, which may be invalid. config: registration of the dataset.
    """
    rows, options, written = f"rows of dataset '{config.name}'", config.file_wrapper_config, section.get("format")
    expected = _FORMATS.get(config.file_wrapper, written)
    if written in ("csv", "json") and written != expected:
        return [Problem(f"{PREPROCESSING}.format", f"is {written}, and {rows} are {expected}: write {expected}")]
    if expected != "csv" or config.file_wrapper not in _FORMATS:
        return []
    found, separator = list[Problem](), section.get("separator", ",")
    if isinstance(separator, str) and separator != (theirs := options.get("separator", ",")):
        message = f"is {json.dumps(separator)}, and {rows} are separated by {json.dumps(theirs)}: write {json.dumps(theirs)}"
        found.append(Problem(f"{PREPROCESSING}.separator", message))
    if (quote := options.get("quote", _QUOTE)) != _QUOTE:
        theirs = f"the quote {quote}" if quote else "no quotes"
        message = (
            f"reads {_QUOTE} as the quote, and {rows} have {theirs}; write files with the quote {_QUOTE}, and register these"
        )
        found.append(Problem(f"{PREPROCESSING}.format", message, Severity.WARNING))
    columns, encoding = section.get("columns"), options.get("encoding", "utf-8")
    texts = [name for name, kind in columns.items() if kind != "number"] if isinstance(columns, Mapping) else []
    if texts and codecs.lookup(encoding).name not in ("utf-8", "utf-8-sig", "ascii"):
        message = f"is read as UTF-8, and {rows} are in {encoding}: other characters than those of ASCII fail; convert the files to UTF-8"
        found.append(Problem(f"{PREPROCESSING}.columns.{texts[0]}", message, Severity.WARNING))
    return found


def wrong_number(names: Sequence[str], dataset: str, num_fields: int) -> list[Problem]:
    """Check that the number of `names` equals the number of fields in a row. Use it for datasets whose files have no header."""
    if len(names) == num_fields:
        return []
    message = (
        f"has {len(names)} names, and rows of dataset '{dataset}' have {num_fields} fields: write the names of all fields of a row, in order, the "
        "label's too"
    )
    return [Problem(f"{PREPROCESSING}.names", message)]


def wrong_names(section: Mapping[str, Any], dataset: str, schema: DatasetSchema | None) -> list[Problem]:
    """List the columns of a section that do not match the rows of a dataset.

    Args: section: `preprocessing`, which may be invalid. dataset: name of the dataset. schema: schema of the dataset, or None.
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
            how = "name it twice." if name in fields else f"do not name it{nearest(name, fields) or '.'}"
            message = f"the files of dataset '{dataset}' {how} They name {listed(fields)}"
            found.append(Problem(f"{PREPROCESSING}.columns.{name}", message))
    return found


def _missing_field(name: str, wanted: Sequence[str], dataset: str, schema: DatasetSchema) -> Problem:
    """Return a problem if no object of a file has the field `name`. Return a warning if only some objects have the field, or if this is not known.

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
    """Return the section. If the section has no field names, add `fields` as its names. A field without a unique name gets a new name, so no column
    can use this field.

    >>> with_names({"format": "csv"}, ["", "a", "b", "b"])["names"]
    ('field 0', 'a', 'field 2', 'field 3')
    """
    unique = (name if name and fields.count(name) == 1 else f"field {number}" for number, name in enumerate(fields))
    return dict(section) if section.get("names") is not None else {**section, "names": tuple(unique)}
