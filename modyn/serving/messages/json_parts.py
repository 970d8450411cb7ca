"""Decoder and encoder that process large JSON in parts. Each part holds the interpreter's lock for about a millisecond, so that other threads can
answer requests between two parts.
"""

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

from modyn.errors import InvalidArgumentError

PART_BYTES: Final = 2**16
"""Largest JSON text that is decoded at once, in bytes. A separate thread decodes a larger text."""
PART_VALUES: Final = 8192
"""Largest number of values of a tensor that are encoded or copied at once."""
_MOST_PARTS: Final = 64
"""Largest number of parts that are combined in an attempt to find valid JSON. After this number of parts, the rest of the text is decoded at once."""
_MAX_WHOLE: Final = 500_000
"""Largest number of lists and objects that are decoded at once. No other thread runs meanwhile, for up to 0.3 s."""
_NAME: Final = b'"data"'
_LIST: Final = re.compile(_NAME + rb"\s*:\s*\[\s*")
_END_OF_TEXT: Final = re.compile(rb'"\s*,')
_NO_FORM: Final = bytes(set(range(256)) - set(b"[],"))


class ListInParts:
    """A JSON list that was decoded in parts. Each part is a flat list.

    Args: form: the brackets and commas of a list of numbers, which may be nested; None: the list is flat.
    """

    def __init__(self, parts: deque[list[Any]], form: bytes | None = None) -> None:
        self.parts, self._form = parts, form

    def take(self) -> Iterator[list[Any]]:
        """Yield and release the parts one by one, because the release of millions of values at once takes long."""
        while self.parts:
            yield self.parts.popleft()

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether the list is flat, or its nesting fits the shape. Args: shape: a shape with the same number of values as the list."""
        return self._form is None or self._form == _form_of([math.prod(shape)]) or self._form == _form_of(shape)


def _form_of(shape: Sequence[int]) -> bytes:
    form = b""
    for size in reversed(shape):
        form = b"[%b]" % b",".join([form] * size)
    return form


def split_list(
    text: bytes, start: int, end_of_item: re.Pattern[bytes], part_bytes: int, stop: int | None = None
) -> Iterator[tuple[list[Any], int]]:
    """Yield parts of a JSON list, each of about `part_bytes` bytes. Each part comes with the offset after the comma that ends the part. The rest of
    the list is not yielded.

    Rule: the text before a comma is a part if it is a valid JSON list on its own. If the text is not a valid list, the comma is within a text or an
    inner list, and the search for the next comma begins twice as far away.

    Args: start: offset of the list's first item. end_of_item: pattern at the end of an item; its last byte is the comma. stop: offset before which
    the list ends; None: the end of the text.
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
    """Decode the JSON of a request. In a large request, the field `data` of an input becomes `ListInParts` if the field can be split.

    Raises: see `load_whole`.

    >>> [list(part) for part in load_tensors(b'{"inputs": [{"data": [1, 2, 3]}]}', 1)["inputs"][0]["data"].take()]
    [[1], [2], [3]]
    """
    if len(text) <= part_bytes:
        return orjson.loads(text)
    mark = secrets.token_hex(16)  # no client can have written it
    view, done, at = memoryview(text), 0, text.find(_NAME)
    kept, taken = list[bytes | memoryview](), dict[str, ListInParts]()
    while at >= 0:
        # A quote after a backslash is part of a text; any other quote before `data` begins the name, or the text is not JSON.
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
            fields = load_whole(b"".join((*kept, view[done:])))
        except orjson.JSONDecodeError:
            return load_whole(text)  # raises with the position of the error
        if _put_back(fields, taken):
            return fields
    return load_whole(text)


def load_whole(text: bytes) -> Any:
    """Decode JSON at once. Raises: orjson.JSONDecodeError. InvalidArgumentError: the text has too many lists and objects."""
    if len(text) > _MAX_WHOLE and text.count(b"[") + text.count(b"{") > _MAX_WHOLE:
        raise InvalidArgumentError(
            f"the JSON has more than {_MAX_WHOLE:,} lists and objects, and cannot be decoded in parts; send less at a time, or flat lists"
        )
    return orjson.loads(text)


def _texts(text: bytes, start: int, part_bytes: int) -> tuple[ListInParts, int] | None:
    """Decode the beginning of a list of texts. Returns the texts, and the offset of the comma before the rest; None: the list cannot be split."""
    stop = text.find(_NAME, start)
    found = list(split_list(text, start, _END_OF_TEXT, part_bytes, None if stop < 0 else stop))
    return (ListInParts(deque(part for part, _ in found)), found[-1][1] - 1) if found else None


def _numbers(text: bytes, start: int, part_bytes: int) -> tuple[ListInParts, int] | None:
    """Decode a list of numbers, which may be nested. Returns the list, and the offset of its last bracket; None: the list is too short to be split,
    or the text is not such a list.

    Rule: a comma ends a part. Brackets that are open at the comma are closed in this part and opened in the next part. All brackets and commas are
    kept to check the shape.
    """
    # Numbers have neither quotes nor braces: the list ends at the last bracket before the next quote or brace.
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
    """Put the lists that were decoded in parts into the inputs of a request. Returns whether each list belongs to an input."""
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
