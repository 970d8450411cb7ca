"""Write the fields of a section as Markdown, from its JSON Schema, for the pages in `docs/reference/`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from modyn.reference.explain import alternatives, type_text, value_text, variants_of
from modyn.reference.schema import JsonSchema

_SHARED_BY: Final = 3
"""If at least this number of policies have the same option, the option is described only once."""

_NAMED_AT_MOST: Final = 5
"""The type of a field lists the policies of a choice if there are at most this number of policies."""

_VALUES_AT_MOST: Final = 15
"""The type of a field lists its values if there are at most this number of values. More values are names of policies, which have own headings."""


@dataclass(slots=True)
class Described:
    """The mappings that were described so far. Each mapping is described once; later fields with the mapping refer to its description."""

    page: str = ""
    """First part of the paths on this page. References to other pages become links."""
    places: dict[str, str] = field(default_factory=dict)
    """Identity of a mapping → path of its description."""


def field_lists(schema: JsonSchema, heading: str, path: str, described: Described, owner: str = "") -> Iterator[str]:
    """Yield the Markdown lines of one mapping's fields, with policies and nested mappings as headings below.

    Args: heading: `#` signs of the headings. path: path of the mapping in the file. described: the mappings that were described so far; the mappings
    described here are added. owner: policy to which the mapping belongs.
    """
    place = _place(path, owner)
    variants = variants_of(schema)
    deeper = heading + "#" if variants else heading
    mappings = [_with_options_of_config(variant) for variant in variants] or _mappings(schema)
    # All policies of this choice are collected first, so that each policy is described here, and not within another policy that may contain it.
    places = [described.places.setdefault(_identity(mapping), place) for mapping in mappings]
    new = [mapping for mapping, where in zip(mappings, places, strict=True) if where == place]
    shared = _shared_options(new) if variants else {}
    if shared:
        yield f"{heading} Options of several policies{f' in {place}' if '.' in path else ''}\n"
        yield from _fields({"properties": shared, "required": []}, deeper, path, described, "", {})
    for mapping, where in zip(mappings, places, strict=True):
        if where != place:
            text = f"Described at {_link(where, described)}."
            yield f"{heading} `{mapping['title']}`\n\n{text}\n" if variants else f"{text}\n"
            continue
        if variants:
            yield f"{heading} `{mapping['title']}`\n\n{mapping['description']}\n"
        yield from _fields(mapping, deeper, path, described, mapping["title"] if variants else owner, shared)


def _fields(
    mapping: JsonSchema, heading: str, path: str, described: Described, owner: str, shared: Mapping[str, JsonSchema]
) -> Iterator[str]:
    required = mapping.get("required", [])
    options = _options(mapping)
    own = {name: option for name, option in options.items() if shared.get(name) != _with_need(option, name in required)}
    references = {}
    for name, option in own.items():
        place = _place(f"{path}.{name}", owner)
        references[name] = _reference(option, described, place)
        # After this line, another field with the same choice refers to this field.
        for nested in _mappings(option):
            described.places.setdefault(_identity(nested), place)
        yield _field_line(name, option, references[name], name in required)
    others = [f"`{name}`" for name in options if name not in own]
    if others:
        yield f"- as above: {', '.join(others)}"
    if options:
        yield ""
    for name, option in own.items():
        if _mappings(option) and not references[name]:
            yield f"{heading} {_place(f'{path}.{name}', owner)}\n"
            yield from field_lists(option, heading + "#", f"{path}.{name}", described, owner)


def _options(mapping: JsonSchema) -> dict[str, JsonSchema]:
    """Return the fields of a mapping, without the field that chooses the policy."""
    chooser = mapping.get("required", [None])[0] if "title" in mapping else None
    return {name: option for name, option in mapping["properties"].items() if name != chooser}


def _shared_options(policies: list[JsonSchema]) -> dict[str, JsonSchema]:
    """Return the options that at least `_SHARED_BY` policies have with the same meaning. If an option has several meanings, the most frequent
    meaning counts."""
    every = [
        (name, _with_need(option, name in policy.get("required", [])))
        for policy in policies
        for name, option in _options(policy).items()
    ]
    counts = Counter((name, json.dumps(option, sort_keys=True, default=str)) for name, option in every)
    frequent: dict[str, JsonSchema] = {}
    for name, option in every:
        count = counts[name, json.dumps(option, sort_keys=True, default=str)]
        if count >= _SHARED_BY and count == max(n for (other, _), n in counts.items() if other == name):
            frequent.setdefault(name, option)
    return frequent


def _with_options_of_config(policy: JsonSchema) -> JsonSchema:
    """Return the policy with the options of its mapping `config`, named `config.NAME`, in place of the mapping."""
    config = _options(policy).get("config", {})
    if not config.get("properties"):
        return policy
    required = policy.get("required", [])
    inner = [f"config.{name}" for name in config.get("required", [])]
    chooser = {name: option for name, option in policy["properties"].items() if name != "config"}
    return {
        **policy,
        "properties": {**chooser, **{f"config.{name}": option for name, option in config["properties"].items()}},
        "required": [name for name in required if name != "config"] + inner,
    }


def _with_need(option: JsonSchema, is_required: bool) -> JsonSchema:
    return {**option, "x-required": True} if is_required else option


def _field_line(name: str, option: JsonSchema, reference: str, is_required: bool) -> str:
    kind = _kind(option, reference)
    default = option.get("default", "")
    if is_required or option.get("x-required"):
        need = ", **required**"
    elif "default" not in option or default in (None, "", [], {}):
        need = ", optional"
        kind = kind.removesuffix(", or null")
    else:
        need = f", default `{value_text(default)}`"
    example = f" Example: `{value_text(option['examples'][0])}`." if option.get("examples") else ""
    return f"- **`{name}`** ({_escaped(kind)}{need}): {_escaped(sentence(option.get('description', '')))}{_escaped(example)}"


def _kind(option: JsonSchema, reference: str) -> str:
    """Describe a field's type in words. The text does not list the policies of a long choice, because they are the headings below."""
    kind = reference or type_text(option)
    if len(values := option.get("enum", ())) > _VALUES_AT_MOST:
        return f"one of {len(values)} names"
    titles = [variant["title"] for variant in variants_of(option)]
    if len(titles) > _NAMED_AT_MOST:
        kind = kind.replace(f"one of {', '.join(titles)}", f"one of the {len(titles)} below")
    kind = re.sub(r"\b(integer|number), at least (\S+), at most (\S+)", r"\1 from \2 to \3", kind)
    kind = re.sub(r"\binteger, at least 1\b", "positive integer", kind)
    return re.sub(r"\b(integer|number), at least ", r"\1 ≥ ", kind)


def _place(path: str, owner: str) -> str:
    return f"`{path}`" + (f" of `{owner}`" if owner else "")


def _link(place: str, described: Described) -> str:
    page = place.strip("`").split("`")[0].split(".")[0]
    return place if page == described.page else f"[{place}]({page}.md)"


def _reference(option: JsonSchema, described: Described, place: str) -> str:
    """Return a reference to the descriptions of all mappings of a field, which replaces the field's type. Empty: a mapping is not described yet, or
    the field has no mapping.
    """
    places = [described.places.get(_identity(mapping), place) for mapping in _mappings(option)]
    if not places or place in places:
        return ""
    titles = [variant["title"] for variant in variants_of(option)]
    is_list = any(branch.get("type") == "array" for branch in [option, *option.get("anyOf", [])])
    kind = "list of mappings" if is_list else "mapping"
    one_of = f", one of {', '.join(titles)}" if 0 < len(titles) <= 3 else ""
    or_null = ", or null" if {"type": "null"} in option.get("anyOf", []) else ""
    return f"{kind}{one_of}, as {' and '.join(_link(where, described) for where in dict.fromkeys(places))}{or_null}"


def _mappings(schema: JsonSchema) -> list[JsonSchema]:
    return [mapping for mapping in alternatives(schema) if mapping.get("properties")]


def _identity(mapping: JsonSchema) -> str:
    """Return a text that is equal for equal mappings, regardless of the description of the field that contains the mapping."""
    own = ("title", "description", "default", "examples") if "title" not in mapping else ()
    return json.dumps({name: value for name, value in mapping.items() if name not in own}, sort_keys=True, default=str)


def sentence(text: str) -> str:
    """Turn a description into a sentence, with a capital letter and a full stop."""
    if not text:
        return ""
    first = text.split(maxsplit=1)[0]
    is_word = first.rstrip(",;:").replace("-", "").isalpha() and first.islower()
    return f"{text[0].upper() if is_word else text[0]}{text[1:].rstrip('.')}."


def _escaped(text: str) -> str:
    """Escape `<` outside of backticks, because `<` would start a tag there."""
    parts = text.replace("\n", " ").split("`")
    return "`".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(parts))
