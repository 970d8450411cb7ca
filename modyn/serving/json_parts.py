"""Large JSON in parts: each holds the interpreter for about a millisecond, so that requests in other threads are answered between two of them."""

from __future__ import annotations

import math
import re
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy.typing as npt
import orjson

PART_BYTES: Final = 2**16
"""Largest JSON text that is decoded at once. A larger one is decoded by a thread of its own."""
PART_VALUES: Final = 8192
"""Most values of a tensor that are encoded or copied at once."""
_MOST_PARTS: Final = 64
"""Parts that are tried as one where none of them can stand alone, before the rest is left whole."""
_NAME: Final = b'"data"'
_LIST: Final = re.compile(_NAME + rb"\s*:\s*\[\s*")
_END_OF_TEXT: Final = re.compile(rb'"\s*,')
_NO_FORM: Final = bytes(set(range(256)) - set(b"[],"))


class ListInParts:
    """A JSON list that was decoded in parts: each is a flat list.

    Args: form: the brackets and commas of a list of numbers, which may be nested; None: it is a flat list.
    """

    def __init__(self, parts: deque[list[Any]], form: bytes | None = None) -> None:
        self.parts, self._form = parts, form

    def take(self) -> Iterator[list[Any]]:
        """Yield the parts in their order and forget them one by one, since millions of values take long to forget at once."""
        while self.parts:
            yield self.parts.popleft()

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether it is flat, or nested as the shape says. Args: shape: of as many values as it has."""
        return self._form is None or self._form == _form_of([math.prod(shape)]) or self._form == _form_of(shape)


def _form_of(shape: Sequence[int]) -> bytes:
    form = b""
    for size in reversed(shape):
        form = b"[%b]" % b",".join([form] * size)
    return form


def split_list(
    text: bytes, start: int, end_of_item: re.Pattern[bytes], part_bytes: int, stop: int | None = None
) -> Iterator[tuple[list[Any], int]]:
    """Yield parts of a JSON list, each of about `part_bytes`, and where what follows its comma begins. What is left in the end is no part.

    Rule: what stands between the beginning of the list and a comma is a part if it is JSON as a list of its own: within a text or an inner list it is
    not, since that would have no end. Then the next comma is looked for, twice as far away.

    Args: start: where the list's first item begins. end_of_item: what stands where an item ends; its last byte is the comma. stop: where the list has
    ended at the latest; None: the end of the text.
    """
    view, wanted, stop = memoryview(text), part_bytes, len(text) if stop is None else stop
    while wanted <= _MOST_PARTS * part_bytes and (found := end_of_item.search(text, start + wanted, stop)) is not None:
        try:
            part = orjson.loads(b"".join((b"[", view[start : found.end() - 1], b"]")))
        except orjson.JSONDecodeError:
            wanted *= 2
            continue
        if not part:  # a comma without an item before it
            return
        start, wanted = found.end(), part_bytes
        yield part, start


def load_tensors(text: bytes, part_bytes: int = PART_BYTES) -> Any:
    """Decode the JSON of a request. In a large one, the field `data` of its inputs is `ListInParts` where it can be split.

    Raises: orjson.JSONDecodeError.

    >>> [list(part) for part in load_tensors(b'{"inputs": [{"data": [1, 2, 3]}]}', 1)["inputs"][0]["data"].take()]
    [[1], [2], [3]]
    """
    if len(text) <= part_bytes:
        return orjson.loads(text)
    mark = secrets.token_hex(16)  # no client can have written it
    view, done, at = memoryview(text), 0, text.find(_NAME)
    kept, taken = list[bytes | memoryview](), dict[str, ListInParts]()
    while at >= 0:
        # A quote after a backslash is a part of a text; any other one before `data` begins it, or this is no JSON.
        if (begin := _LIST.match(text, at)) is not None and text[at - 1 : at] != b"\\":
            start = begin.end()
            found = _texts(text, start, part_bytes) if text[start : start + 1] == b'"' else _numbers(text, start, part_bytes)
            if found is not None:
                name = f"{mark}{len(taken)}"
                taken[name], rest = found
                kept += (view[done:start], b'"%b"' % name.encode())
                done = rest
        at = text.find(_NAME, max(at + len(_NAME), done))
    if taken:
        try:
            fields = orjson.loads(b"".join((*kept, view[done:])))
        except orjson.JSONDecodeError:
            return orjson.loads(text)  # for the place of the error
        if _put_back(fields, taken):
            return fields
    return orjson.loads(text)


def _texts(text: bytes, start: int, part_bytes: int) -> tuple[ListInParts, int] | None:
    """Decode the beginning of a list of texts. Returns it, and where what is left of the list begins, a comma; None: there are no parts."""
    stop = text.find(_NAME, start)
    found = list(split_list(text, start, _END_OF_TEXT, part_bytes, None if stop < 0 else stop))
    return (ListInParts(deque(part for part, _ in found)), found[-1][1] - 1) if found else None


def _numbers(text: bytes, start: int, part_bytes: int) -> tuple[ListInParts, int] | None:
    """Decode a list of numbers, which may be nested. Returns it, and where its last bracket is; None: it is something else, or no JSON.

    Rule: a comma ends a part; brackets that are open there end this part and begin the next one. What brackets and commas say of the shape is kept.
    """
    # Numbers have no quotes, nor braces: a name or a brace comes after the list, and its last bracket right before it.
    stop = len(text) if (quote := text.find(b'"', start)) < 0 else quote
    stop = stop if (brace := text.find(b"}", start, stop)) < 0 else brace
    end = text.rfind(b"]", start, stop)
    if end - start <= part_bytes:
        return None
    depth, forms, parts = 1, [b"["], deque[list[Any]]()
    while start < end:
        comma = text.find(b",", start + part_bytes, end)
        part = text[start : end if comma < 0 else comma]
        opened, depth = depth, depth + part.count(b"[") - part.count(b"]")
        try:
            values = orjson.loads(b"".join((b"[" * opened, part, b"]" * depth)))
            while values and type(values[0]) is list:
                values = list(chain.from_iterable(values))
        except (orjson.JSONDecodeError, TypeError):
            return None
        if not values or depth < 1:  # a comma without a value, or after the list
            return None
        parts.append(values)
        start = end if comma < 0 else comma + 1
        forms += (part.translate(None, _NO_FORM), b"" if comma < 0 else b",")
    return (ListInParts(parts, b"".join((*forms, b"]"))), end) if depth == 1 else None


def _put_back(fields: Any, taken: dict[str, ListInParts]) -> bool:
    """Give the inputs of a request the lists that were taken. Returns whether all of these belong to inputs."""
    inputs = fields.get("inputs") if isinstance(fields, dict) else None
    for item in inputs if isinstance(inputs, list) else ():
        data = item.get("data") if isinstance(item, dict) else None
        if isinstance(data, list) and data and isinstance(data[0], str) and (found := taken.pop(data[0], None)) is not None:
            item["data"] = found
            if len(data) > 1:
                found.parts.append(data[1:])
    return not taken


def dumps_values(values: npt.NDArray[Any], part_values: int = PART_VALUES) -> orjson.Fragment:
    """Encode a flat array of numbers as a JSON list, in parts.

    >>> import numpy as np
    >>> orjson.dumps(dumps_values(np.arange(5), 2))
    b'[0,1,2,3,4]'
    """
    parts = (values[first : first + part_values] for first in range(0, len(values), part_values))
    return orjson.Fragment(b"[%b]" % b",".join(orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1] for part in parts))
