"""Explain the fields of a pipeline file from its JSON Schema: one field for the terminal, all fields of a section as Markdown."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from modyn.config.durations import DURATION_PATTERN, TIMESTAMP_PATTERN
from modyn.errors import NotFoundError
from modyn.reference.schema import JsonSchema, pipeline_json_schema


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the format."""

    path: str
    """Dotted; items of lists add nothing, policies add nothing: `trigger.num_samples`, `training.optimizers.algorithm`."""
    variant: str
    """The policy that has the field; empty if all have."""
    schema: JsonSchema
    is_required: bool


def explain(path: str, schema: JsonSchema | None = None) -> str:
    """Describe the field at `path`, or a policy by its name: meaning, type, bounds, default, example. An empty path lists the sections.

    Raises: NotFoundError: names the nearest fields.
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
    # Policies of one section may share a field; identical texts are printed once.
    texts: dict[str, list[str]] = {}
    for field in find_fields(path, schema):
        texts.setdefault(_text(field), []).append(field.variant)
    owners = {text: ", ".join(dict.fromkeys(filter(None, variants))) for text, variants in texts.items()}
    return "\n\n".join(f"{wanted}{f'  (of {owner})' if owner else ''}\n{text}" for text, owner in owners.items())


def find_fields(path: str, schema: JsonSchema | None = None) -> list[Field]:
    """Return the fields at `path`: several where policies differ; the sections for an empty path.

    Raises: NotFoundError: names the nearest fields.
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
    """The parts of `path` without indices, the path without names of policies, and the names of all policies."""
    titles = {variant["title"] for field in fields for variant in variants_of(field.schema)}
    parts = [part for part in path.strip().split(".") if part and not part.isdigit()]
    return parts, ".".join(part for part in parts if part not in titles), titles


def walk(schema: JsonSchema, path: str = "", variant: str = "") -> Iterator[Field]:
    """Yield every field below `schema`, depth first, in the order of the file.

    Args: path: dotted, of `schema` itself. variant: the policy that it belongs to.
    """
    for choice in _alternatives(schema):
        inner = choice.get("title", "") if choice is not schema and "title" in choice else variant
        required = choice.get("required", [])
        for name, value in choice.get("properties", {}).items():
            field = Field(f"{path}.{name}" if path else name, inner, value, name in required)
            yield field
            yield from walk(value, field.path, inner)


def tables(schema: JsonSchema, heading: str, path: str, told: dict[str, str] | None = None, owner: str = "") -> Iterator[str]:
    """Yield the lines of a Markdown table of one mapping's fields; policies and nested mappings as headings below.

    What was told before is not told again: its place stands in its stead, as "as `trigger.metrics` of `DataDriftTrigger`".

    Args: heading: `#` signs of the headings. path: of the mapping in the file. told: mappings told so far → where, added to; by default
        none. owner: the policy that the mapping belongs to.
    """
    told = {} if told is None else told
    place = _place(path, owner)
    variants = variants_of(schema)
    deeper = heading + "#" if variants else heading
    mappings = variants or _mappings(schema)
    # All before any: a policy of this choice is told here, not below one that may hold it.
    places = [told.setdefault(_identity(mapping), place) for mapping in mappings]
    for mapping, where in zip(mappings, places, strict=True):
        if where != place:
            yield f"{heading} `{mapping['title']}`\n\nAs in {where}.\n" if variants else f"As {where}.\n"
            continue
        if variants:
            yield f"{heading} `{mapping['title']}`\n\n{mapping['description']}\n"
        holder = mapping["title"] if variants else ""
        chooser = mapping.get("required", [])[0] if variants else None
        options = {name: field for name, field in mapping["properties"].items() if name != chooser}
        references = {name: _reference(field, told, _place(f"{path}.{name}", holder)) for name, field in options.items()}
        yield from _rows(options, mapping.get("required", []), references)
        for name, field in options.items():
            if _mappings(field) and not references[name]:
                yield f"{deeper} {_place(f'{path}.{name}', holder)}\n"
                yield from tables(field, deeper + "#", f"{path}.{name}", told, holder)


def _rows(options: JsonSchema, required: list[str], references: Mapping[str, str]) -> Iterator[str]:
    if options:
        yield "| field | meaning | type | default |\n|---|---|---|---|"
    for name, field in options.items():
        default = "**required**" if name in required else f"`{_value(field['default'])}`" if "default" in field else ""
        example = f" Example: `{_value(field['examples'][0])}`" if field.get("examples") else ""
        meaning = _cell(sentence(field.get("description", "")) + example)
        yield f"| `{name}` | {meaning} | {references[name] or _cell(type_text(field))} | {_cell(default)} |"
    if options:
        yield ""


def _place(path: str, owner: str) -> str:
    return f"`{path}`" + (f" of `{owner}`" if owner else "")


def _reference(field: JsonSchema, told: Mapping[str, str], place: str) -> str:
    """Where all of a field's mappings have been told, as its type; empty if they have not, or there are none."""
    places = [told.get(_identity(mapping), place) for mapping in _mappings(field)]
    if not places or place in places:
        return ""
    titles = [variant["title"] for variant in variants_of(field)]
    kind = "list of mappings" if field.get("type") == "array" else "mapping"
    one_of = f", one of {', '.join(titles)}" if 0 < len(titles) <= 3 else ""
    or_null = ", or null" if {"type": "null"} in field.get("anyOf", []) else ""
    return f"{kind}{one_of}, as {' and '.join(dict.fromkeys(places))}{or_null}"


def _mappings(schema: JsonSchema) -> list[JsonSchema]:
    return [mapping for mapping in _alternatives(schema) if mapping.get("properties")]


def _identity(mapping: JsonSchema) -> str:
    """Equal for mappings that mean the same, whatever the fields that hold them say of themselves."""
    own = ("title", "description", "default", "examples") if "title" not in mapping else ()
    return json.dumps({name: value for name, value in mapping.items() if name not in own}, sort_keys=True, default=str)


def type_text(schema: JsonSchema) -> str:
    """Describe the kind of a value in words, with its bounds.

    >>> type_text({"type": "integer", "minimum": 1})
    'integer, at least 1'
    >>> type_text({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]})
    'list of text, or null'
    """
    if "anyOf" in schema:
        texts = list(dict.fromkeys(type_text(branch) for branch in schema["anyOf"]))
        durations = [text for text in texts if text.startswith(("duration", "timestamp"))]
        # Both are numbers inside, and may be written as such.
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
        values = [_value(value) for value in schema["enum"]]
        return "one of " + ", ".join(values if len(values) <= 20 else [*values[:5], f"… ({len(values)})"])
    if "const" in schema:
        return _value(schema["const"])
    times = {DURATION_PATTERN: "duration", TIMESTAMP_PATTERN: "timestamp or date"}
    words = {"string": "text", "object": "mapping", "boolean": "true or false"}
    kind = schema.get("type", "any value")
    return times.get(schema.get("pattern", "")) or str(words.get(kind, kind)) + _bounds(schema)


def _bounds_of_number(schema: JsonSchema, is_time: bool) -> str:
    limits = [_bounds(branch) for branch in schema["anyOf"] if branch.get("type") == "integer"]
    return f"{limits[0]} second{'s' if not limits[0].endswith(' 1') else ''}" if is_time and limits and limits[0] else ""


def _bounds(schema: JsonSchema) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = "".join(f", {text} {_value(schema[keyword])}" for keyword, text in words.items() if keyword in schema)
    return limits + (f", at most {schema['maxLength']} characters" if "maxLength" in schema else "")


def _text(field: Field) -> str:
    lines = indent(field.schema.get("description") or "", "  ").splitlines()
    lines.append(f"  type: {type_text(field.schema)}")
    if field.is_required:
        lines.append("  required")
    elif "default" in field.schema:
        lines.append(f"  default: {_value(field.schema['default'])}")
    lines += [f"  example: {_value(example)}" for example in field.schema.get("examples", [])]
    return "\n".join(lines + _children(field.schema))


def _policy(field: Field, variant: JsonSchema) -> str:
    return "\n".join([f"{field.path}: {variant['title']}", indent(variant["description"], "  "), *_children(variant)])


def _children(schema: JsonSchema) -> list[str]:
    """One line for each key, or for each policy to choose from."""
    variants = variants_of(schema)
    if variants:
        entries = {variant["title"]: variant["description"].split("\n\n")[0].replace("\n", " ") for variant in variants}
        title = "  one of:"
    else:
        entries = {
            name: value.get("description", "") for m in _alternatives(schema) for name, value in m.get("properties", {}).items()
        }
        title = "  keys:"
    width = max(map(len, entries), default=0)
    return [title, *(f"    {name:<{width}}  {text}".rstrip() for name, text in entries.items())] if entries else []


def _alternatives(schema: JsonSchema) -> list[JsonSchema]:
    """The mappings that may stand at a place: itself, items of a list, values of a mapping, branches of a choice."""
    found = [schema] if "properties" in schema else []
    for branch in [*schema.get("anyOf", []), *schema.get("oneOf", [])]:
        found += _alternatives(branch)
    for keyword in ("items", "additionalProperties"):
        found += _alternatives(schema[keyword]) if isinstance(schema.get(keyword), dict) else []
    return found


def variants_of(schema: JsonSchema) -> list[JsonSchema]:
    """Return the policies that may stand at a place of the schema."""
    return [mapping for mapping in _alternatives(schema) if "title" in mapping and mapping is not schema]


def _not_found(path: str, wanted: str, fields: list[Field]) -> str:
    paths = list(dict.fromkeys(field.path for field in fields))
    policies = list(dict.fromkeys(variant["title"] for field in fields for variant in variants_of(field.schema)))
    same_name = [known for known in paths if known.rpartition(".")[2] == wanted.rpartition(".")[2]]
    close = (same_name or difflib.get_close_matches(wanted, paths + policies, n=3, cutoff=0.6))[:3]
    hint = f", did you mean {' or '.join(repr(name) for name in close)}?" if close else ". `modyn explain` lists the sections"
    return f"the pipeline format has no field '{path}'{hint}"


def sentence(text: str) -> str:
    """Return a description as a sentence: with a capital and a full stop."""
    if not text:
        return ""
    first = text.split(maxsplit=1)[0]
    is_word = first.rstrip(",;:").replace("-", "").isalpha() and first.islower()
    return f"{text[0].upper() if is_word else text[0]}{text[1:].rstrip('.')}."


def _cell(text: str) -> str:
    parts = text.replace("|", "\\|").replace("\n", " ").split("`")
    # Between backticks Markdown leaves `<` alone; elsewhere it would start a tag.
    return "`".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(parts))


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
