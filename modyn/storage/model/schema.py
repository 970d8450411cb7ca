"""The schema of a dataset: the columns that all of its files have, decided at the first file or by an option."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, Self

from modyn.errors import DataError

_LISTED = 50
"""Largest number of column names in a message."""
_NAME_CHARACTERS = 80
"""Largest number of characters of a name in a message."""
MOST_LACKING = 100
"""Largest number of files that `DatasetSchema.lacking` names."""


@dataclass(frozen=True, slots=True, order=True)
class SchemaColumn:
    """A column. type: name of the column's Arrow type; empty: the values are text."""

    name: str
    type: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.type})" if self.type else self.name


@dataclass(frozen=True, slots=True)
class LackingFile:
    """A file that lacks JSON fields. Objects of the dataset's first file have these fields, but no object in the first lines of the file has them."""

    path: str
    """Path in the dataset's folder; empty: the record describes all files beyond MOST_LACKING together."""
    lacks: tuple[str, ...]
    fields: tuple[str, ...]
    """Fields of the file's objects. In the record for all files beyond MOST_LACKING: fields of one of these files. If there are many fields, only the
    first are stored."""


@dataclass(frozen=True, slots=True)
class DatasetSchema:
    """The columns that all files of a dataset have, by name."""

    payloads: Literal["csv", "json", "values", "unknown"]
    """The content of a payload. csv: a row with all `columns`, in their order. json: an object with the fields `columns`, and maybe other fields.
    values: the value of one column of bytes, or the packed values of columns of numbers. unknown: no columns are known; the record has
    only classes."""
    columns: tuple[SchemaColumn, ...]
    decided_by: str = ""
    """Path of the file that decided the columns, in the dataset's folder; empty: options decided them."""
    mixed_order: bool = False
    """Whether CSV files may have the columns in another order. The rows of such files are read in the order of the schema."""
    casts: tuple[SchemaColumn, ...] = ()
    """Each column that has another type in some files, with this other type. Values of the other type are cast without loss."""
    some_lines: tuple[str, ...] = ()
    """JSON fields that some, but not all, of the first lines of the first file had when the file was indexed."""
    names_all: bool = False
    """Whether the first lines of the first file had no other JSON fields than `columns` and `some_lines`. False: other fields are possible,
    because options name the needed fields, the lines have too many fields to list, or an earlier version of Modyn indexed the file."""
    lacking: tuple[LackingFile, ...] = ()
    """Files whose first lines lack some of the fields `some_lines`: at most MOST_LACKING, and one record for all further files."""
    classes: tuple[str, ...] = ()
    """Names of the classes: the label of a sample is the position of its class. Classes are only appended. Empty: labels are numbers of the data."""

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    @property
    def decider(self) -> str:
        """A clause for messages: which file decided the schema, or that options decided it."""
        return f"which its first file, {self.decided_by}, decided" if self.decided_by else "which its options decided"

    def described(self) -> dict[str, str]:
        """Describe the schema for users: name → text."""
        name = "fields of each file" if self.payloads == "json" else "columns"
        types = {column.name: column.type for column in self.columns}
        casts = [f"{cast.name}, {cast.type} in some files, is read as {types[cast.name]}" for cast in self.casts]
        others = f" and {len(self.classes) - _LISTED:,} more" if len(self.classes) > _LISTED else ""
        said = {
            "classes": ", ".join(f"{number} {shortened(text)}" for number, text in enumerate(self.classes[:_LISTED])) + others,
            name: ", ".join(map(str, self.columns)),
            "decided by": (self.decided_by or "options") if self.columns else "",
            "order of columns": "may differ between files; rows are read in this one" if self.mixed_order else "",
            "casts": "; ".join(casts),
            "fields of some lines": listed(self.some_lines),
            "files without them": "; ".join(f"{file.path or 'others'} without {listed(file.lacks)}" for file in self.lacking),
        }
        return {key: value for key, value in said.items() if value}

    def joined(self, other: DatasetSchema) -> DatasetSchema:
        """Return this schema, updated with the findings about another file of the dataset."""
        casts = tuple(sorted({*self.casts, *other.casts}))
        lacking = _bounded((*self.lacking, *other.lacking))
        return replace(self, mixed_order=self.mixed_order or other.mixed_order, casts=casts, lacking=lacking)

    def compared(self, path: str, other: DatasetSchema) -> DatasetSchema:
        """Return this JSON schema, updated with the fields that the file at `path` lacks. The file was indexed before the schema was decided.
        Args: other: schema that the file alone would decide."""
        there = [*other.names, *other.some_lines]
        lacks = tuple(name for name in (*self.names, *self.some_lines) if name not in there)
        if not lacks or not other.names_all:
            return self
        columns = tuple(column for column in self.columns if column.name not in lacks)
        some = (*self.some_lines, *(name for name in self.names if name in lacks))
        lacking = _bounded((*self.lacking, LackingFile(path, lacks, tuple(there[:_LISTED]))))
        return replace(self, columns=columns, some_lines=some, lacking=lacking)

    def to_json(self) -> str:
        """Return the schema as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the text of `to_json`. Raises: ValueError, KeyError, TypeError: the text is not a schema."""
        found = json.loads(text)
        columns = {name: tuple(SchemaColumn(**column) for column in found[name]) for name in ("columns", "casts")}
        lacking = [LackingFile(file["path"], tuple(file["lacks"]), tuple(file["fields"])) for file in found.get("lacking", ())]
        texts = {name: tuple(found.get(name, ())) for name in ("some_lines", "classes")}
        return cls(**{**found, **columns, **texts, "lacking": tuple(lacking)})


def _bounded(files: Sequence[LackingFile]) -> tuple[LackingFile, ...]:
    """Return `files`, with all files beyond MOST_LACKING combined into one record."""
    named = [file for file in files if file.path]
    others = [*(file for file in files if not file.path), *named[MOST_LACKING:]]
    if not others:
        return tuple(named)
    lacks = dict.fromkeys(name for file in others for name in file.lacks)
    return (*named[:MOST_LACKING], LackingFile("", tuple(lacks), others[0].fields))


def field_order(path: str, names: Sequence[str], schema: DatasetSchema) -> list[int] | None:
    """Return the position of each column of the schema in `names`, the columns of the file at `path`; None: file and schema have the same order.

    Raises: DataError: the file has other columns than the schema.
    """
    known = schema.names
    if list(names) == known:
        return None
    if len(set(names)) < len(names) or set(names) != set(known):
        raise other_columns(path, names, schema)
    return [names.index(name) for name in known]


def other_columns(path: str, names: Sequence[str], schema: DatasetSchema) -> DataError:
    """Return the error for a file at `path` whose columns `names` differ from the columns of `schema`, the schema of its dataset."""
    known = schema.names
    missing, others = ([name for name in some if name not in of] for some, of in ((known, names), (names, known)))
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    wrong = [
        f"{listed(some)} {'is' if len(some) == 1 else 'are'} {what}"
        for some, what in ((missing, "missing"), (others, "not of the dataset"), (twice, "there twice"))
        if some
    ]
    # Any text file can be read as CSV, and its first line may contain a secret. So names are shown only if one of them is a column of the dataset.
    is_alike = bool({name.casefold() for name in names} & {name.casefold() for name in known})
    if not is_alike and schema.payloads == "csv":
        wrong, own = ["it has none of them"], f"its first line names {len(names)}"
    else:
        own = f"its columns are {listed(names)}"
    is_longer = is_alike and not missing and not twice
    return DataError(
        f"{path} has other columns than its dataset: {'; '.join(wrong)}. Those of the dataset, {schema.decider}, are {listed(known)}; {own}. "
        f"Write the file {f'without {listed(others)}' if is_longer else 'with the columns of the dataset'}, or move such files to a folder that is "
        "registered as a dataset of its own"
    )


def columns_of(schema: DatasetSchema | None) -> DatasetSchema | None:
    """Return the schema; None: there is no schema, or it has only classes."""
    return schema if schema is not None and schema.payloads != "unknown" else None


def listed(names: Sequence[str]) -> str:
    """Return column names for a message: at most the first 50 names, and only the start of a long name."""
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(f"'{shortened(name)}'" for name in names[:_LISTED]) + more


def shortened(name: str) -> str:
    """Return a name for a message, cut if it is long. In a CSV file with an unclosed quote, a name may contain most of the file.

    >>> shortened("price"), len(shortened("x" * 5000))
    ('price', 83)
    """
    return name if len(name) <= _NAME_CHARACTERS else f"{name[:_NAME_CHARACTERS]}..."
