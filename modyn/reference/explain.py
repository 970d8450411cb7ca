"""Explain one field or policy of a pipeline file in the terminal, from its JSON Schema."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from modyn.config.durations import DURATION_PATTERN, TIMESTAMP_PATTERN
from modyn.errors import NotFoundError
from modyn.reference.schema import JsonSchema, pipeline_json_schema


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the pipeline format."""

    path: str
    """Dotted path without list items and policies: `trigger.num_samples`, `training.optimizers.algorithm`."""
    variant: str
    """Policy that has the field; empty: all policies have it."""
    schema: JsonSchema
    is_required: bool


def explain(path: str, schema: JsonSchema | None = None) -> str:
    """Describe the field at `path`, or the policy with this name: meaning, type, bounds, default, example. For an empty path, list the sections.

    Raises: NotFoundError: there is no such field; the message suggests similar fields.
    """
    schema = pipeline_json_schema() if schema is None else schema
    fields = list(walk(schema))
    parts, wanted, titles = _parse(path, fields)
    if not parts:
        return "\n".join(["A pipeline file has these sections:", *_children(schema)])
    if parts[-1] in titles:
        texts_of_policies = [
            _policy(field, variant) for field in fields for variant in variants_of(field.schema) if variant["title"] == parts[-1]
        ]
        return "\n\n".join(text for text in dict.fromkeys(texts_of_policies) if text.startswith(wanted))
    # Several policies of a section may have the same field; identical texts are printed once.
    texts: dict[str, list[str]] = {}
    for field in find_fields(path, schema):
        texts.setdefault(_text(field), []).append(field.variant)
    owners = {text: ", ".join(dict.fromkeys(filter(None, variants))) for text, variants in texts.items()}
    return "\n\n".join(f"{wanted}{f'  (of {owner})' if owner else ''}\n{text}" for text, owner in owners.items())


def find_fields(path: str, schema: JsonSchema | None = None) -> list[Field]:
    """Return the fields at `path`. There may be several, one for each policy. For an empty path, return the sections.

    Raises: NotFoundError: there is no such field; the message suggests similar fields.
    """
    fields = list(walk(pipeline_json_schema() if schema is None else schema))
    parts, wanted, titles = _parse(path, fields)
    if not parts:
        return [field for field in fields if "." not in field.path]
    policies = [part for part in parts if part in titles]
    found = [field for field in fields if field.path == wanted and (not policies or field.variant in policies)]
    if not found:
        raise NotFoundError(_not_found(path, wanted, fields))
    return found


def _parse(path: str, fields: list[Field]) -> tuple[list[str], str, set[str]]:
    """Return the parts of `path` without indices, the dotted path without indices and without names of policies, and the names of all policies."""
    titles = {variant["title"] for field in fields for variant in variants_of(field.schema)}
    parts = [part for part in path.strip().split(".") if part and not part.isdigit()]
    return parts, ".".join(part for part in parts if part not in titles), titles


def walk(schema: JsonSchema, path: str = "", variant: str = "") -> Iterator[Field]:
    """Yield every field below `schema`, depth first, in the order of the file.

    Args: path: dotted path of `schema`. variant: the policy to which `schema` belongs.
    """
    for choice in alternatives(schema):
        inner = choice.get("title", "") if choice is not schema and "title" in choice else variant
        required = choice.get("required", [])
        for name, value in choice.get("properties", {}).items():
            field = Field(f"{path}.{name}" if path else name, inner, value, name in required)
            yield field
            yield from walk(value, field.path, inner)


def type_text(schema: JsonSchema) -> str:
    """Describe the type of a value in words, with its bounds.

    >>> type_text({"type": "integer", "minimum": 1})
    'integer, at least 1'
    >>> type_text({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]})
    'list of text, or null'
    """
    if "anyOf" in schema:
        texts = list(dict.fromkeys(type_text(branch) for branch in schema["anyOf"]))
        durations = [text for text in texts if text.startswith(("duration", "timestamp"))]
        # Durations and times may also be written as numbers. The description omits this form.
        texts = [text for text in texts if not (durations and text.startswith("integer"))]
        return ", or ".join(texts) + _bounds_of_number(schema, bool(durations))
    if "oneOf" in schema:
        return "mapping, one of " + ", ".join(variant["title"] for variant in schema["oneOf"])
    if schema.get("type") == "array":
        return _list_text(schema)
    return _scalar_text(schema)


def _list_text(schema: JsonSchema) -> str:
    if "prefixItems" in schema:
        return "list of " + " and ".join(f"({type_text(item)})" for item in schema["prefixItems"])
    item = type_text(schema.get("items", {}))
    count = f", at least {schema['minItems']}" if schema.get("minItems") else ""
    return f"list of {f'({item})' if ', ' in item else item}{count}"


def _scalar_text(schema: JsonSchema) -> str:
    if "enum" in schema:
        values = [value_text(value) for value in schema["enum"]]
        return "one of " + ", ".join(values if len(values) <= 20 else [*values[:5], f"… ({len(values)})"])
    if "const" in schema:
        return value_text(schema["const"])
    times = {DURATION_PATTERN: "duration", TIMESTAMP_PATTERN: "timestamp or date"}
    words = {"string": "text", "object": "mapping"}
    kind = schema.get("type", "any value")
    return times.get(schema.get("pattern", "")) or str(words.get(kind, kind)) + _bounds(schema)


def _bounds_of_number(schema: JsonSchema, is_time: bool) -> str:
    limits = [_bounds(branch) for branch in schema["anyOf"] if branch.get("type") == "integer"]
    return f"{limits[0]} second{'s' if not limits[0].endswith(' 1') else ''}" if is_time and limits and limits[0] else ""


def _bounds(schema: JsonSchema) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = "".join(f", {text} {value_text(schema[keyword])}" for keyword, text in words.items() if keyword in schema)
    return limits + (f", at most {schema['maxLength']} characters" if "maxLength" in schema else "")


def _text(field: Field) -> str:
    lines = indent(field.schema.get("description") or "", "  ").splitlines()
    lines.append(f"  type: {type_text(field.schema)}")
    if field.is_required:
        lines.append("  required")
    elif "default" in field.schema:
        lines.append(f"  default: {value_text(field.schema['default'])}")
    lines += [f"  example: {value_text(example)}" for example in field.schema.get("examples", [])]
    return "\n".join(lines + _children(field.schema))


def _policy(field: Field, variant: JsonSchema) -> str:
    return "\n".join([f"{field.path}: {variant['title']}", indent(variant["description"], "  "), *_children(variant)])


def _children(schema: JsonSchema) -> list[str]:
    """Return a line for each key, or for each policy of a choice."""
    variants = variants_of(schema)
    if variants:
        entries = {variant["title"]: variant["description"].split("\n\n")[0].replace("\n", " ") for variant in variants}
        title = "  one of:"
    else:
        entries = {
            name: value.get("description", "") for m in alternatives(schema) for name, value in m.get("properties", {}).items()
        }
        title = "  keys:"
    width = max(map(len, entries), default=0)
    return [title, *(f"    {name:<{width}}  {text}".rstrip() for name, text in entries.items())] if entries else []


def alternatives(schema: JsonSchema) -> list[JsonSchema]:
    """Return the schemas of all mappings that a field may contain: the schema, items of a list, values of a mapping, and branches of a choice."""
    found = [schema] if "properties" in schema else []
    for branch in [*schema.get("anyOf", []), *schema.get("oneOf", [])]:
        found += alternatives(branch)
    for keyword in ("items", "additionalProperties"):
        found += alternatives(schema[keyword]) if isinstance(schema.get(keyword), dict) else []
    return found


def variants_of(schema: JsonSchema) -> list[JsonSchema]:
    """Return the schemas of the policies that a field allows."""
    return [mapping for mapping in alternatives(schema) if "title" in mapping and mapping is not schema]


def _not_found(path: str, wanted: str, fields: list[Field]) -> str:
    paths = list(dict.fromkeys(field.path for field in fields))
    policies = list(dict.fromkeys(variant["title"] for field in fields for variant in variants_of(field.schema)))
    same_name = [known for known in paths if known.rpartition(".")[2] == wanted.rpartition(".")[2]]
    close = (same_name or difflib.get_close_matches(wanted, paths + policies, n=3, cutoff=0.6))[:3]
    hint = f", did you mean {' or '.join(repr(name) for name in close)}?" if close else ". `modyn explain` lists the sections"
    return f"the pipeline format has no field '{path}'{hint}"


def value_text(value: Any) -> str:
    """Format a value as in a pipeline file: text stays as it is, and all other values become JSON."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
