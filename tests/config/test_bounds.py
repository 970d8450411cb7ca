"""A bound in a section is enforced: `ge`, `le`, `gt`, `lt`. Pydantic accepts `min=` silently and ignores it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import annotated_types
import pytest
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

import modyn
from modyn.config.base import Section

ENFORCED = {"ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern"}


def sections(below: type[Section] = Section) -> Iterator[type[Section]]:
    for kind in below.__subclasses__():
        yield kind
        yield from sections(kind)


@pytest.fixture(scope="module", autouse=True)
def all_modules() -> None:
    """Import all modules to find sections, except programs, test fixtures and modules that need a worker's imports."""
    for module in pkgutil.walk_packages(modyn.__path__, "modyn."):
        if module.name.endswith(("config", "section")) or ".triggers" in module.name or ".evaluation" in module.name:
            importlib.import_module(module.name)
        if any(part in module.name for part in (".selection", ".presampling", ".formats", ".metrics", ".models.")):
            importlib.import_module(module.name)


def test_no_field_has_a_bound_that_is_ignored() -> None:
    found = list(sections())
    assert len(found) > 40
    ignored = [
        f"{kind.__name__}.{name}: {extra}"
        for kind in found
        for name, field in kind.model_fields.items()
        for extra in (field.json_schema_extra or {} if isinstance(field.json_schema_extra, dict) else {})
        if extra.startswith(("min", "max")) or extra in ("minimum", "maximum", "lower", "upper")
    ]
    assert ignored == []


def test_every_numeric_bound_refuses_the_next_number() -> None:
    checked = 0
    for kind in sections():
        for name, field in kind.model_fields.items():
            for value in beyond(field):
                checked += 1
                with pytest.raises(ValidationError):
                    kind.__pydantic_validator__.validate_assignment(kind.model_construct(), name, value)
                    pytest.fail(f"{kind.__name__}.{name} takes {value}")
    assert checked > 60


def beyond(field: FieldInfo) -> Iterator[float]:
    """Return numbers just outside the bounds of a field."""
    for bound in field.metadata:
        match bound:
            case annotated_types.Ge(ge=limit) if isinstance(limit, int | float):
                yield limit - 1
            case annotated_types.Gt(gt=limit) if isinstance(limit, int | float):
                yield limit
            case annotated_types.Le(le=limit) if isinstance(limit, int | float):
                yield limit + 1
            case annotated_types.Lt(lt=limit) if isinstance(limit, int | float):
                yield limit
            case _:
                continue


def test_the_check_would_find_one() -> None:
    with pytest.warns(DeprecationWarning, match="extra keyword arguments"):

        class Wrong(Section):
            number: int = Field(1, min=0)  # type: ignore[call-overload]

    assert Wrong(number=-5).number == -5
