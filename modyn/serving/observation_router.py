"""Decodes labels that clients send back, and hands each to the intake of the model that it belongs to."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from modyn.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, ModynError, NotFoundError
from modyn.registry import nearest
from modyn.serving.infer import InferAnswer, InferRequest
from modyn.serving.json_parts import PART_BYTES, split_list
from modyn.serving.json_tensors import MAX_ID, load_object, parse_inputs
from modyn.serving.observation_join import RequestFeatures, num_rows
from modyn.serving.observations import ObservationIntake, PostedLabel
from modyn.serving.signature import Tensors

_PART_LABELS: Final = 1000
"""Taken at once, so that predictions wait for some milliseconds at most."""
_LIST: Final = re.compile(rb'\s*\{\s*"observations"\s*:\s*\[')
_END_OF_ITEM: Final = re.compile(rb"\}\s*,")
_FIELDS: Final = ("request_id", "key", "inputs", "label", "model")

CheckInputs = Callable[[str, Tensors], object]
"""Called with the model that an observation belongs to, and its inputs. Raises InvalidArgumentError, NotFoundError, UnavailableError."""


class ObservationRouter:
    """Thread-safe. Rule: a label belongs to the model that it names; if it names none, to the only one that takes labels, or else to the only one
    that knows its request id.

    Args: intakes: by the model whose labels each takes; `post` needs one.
    """

    def __init__(self, intakes: Mapping[str, ObservationIntake]) -> None:
        self._intakes = intakes
        self._names = ", ".join(sorted(intakes))

    def answered(self, request: InferRequest, answer: InferAnswer) -> None:
        """As `ObservationIntake.answered`, of the model that answered, if it takes labels."""
        if (intake := self._intakes.get(answer.model)) is not None:
            intake.answered(request, answer)

    def post(self, body: bytes, check: CheckInputs) -> dict[str, int]:
        """Take the labels in the JSON of a client.

        {"observations": [{"request_id": TEXT, "label": VALUE}, {"key": TEXT, "inputs": [tensors as in a request], "label": VALUE}]}
        Each object may have {"model": NAME}.

        Args: check: of inputs that come with a label.
        Returns: how many are `stored`, `waiting` and `repeated`, as `ObservationIntake.post`.
        Raises: InvalidArgumentError: one is wrong, or its model cannot be found; NotFoundError: its model takes no labels; none of them is taken.
        Others as `ObservationIntake.post`.
        """
        posted = defaultdict[str, list[PostedLabel]](list)
        for number, item in enumerate(chain.from_iterable(split_observations(body))):
            model, label = self._parse(f"observations[{number}]", item, check)
            posted[model].append(label)
        counts, errors = Counter[str](), list[ModynError]()
        for model, labels in posted.items():
            for first in range(0, len(labels), _PART_LABELS):
                try:
                    counts.update(self._intakes[model].post(labels[first : first + _PART_LABELS]))
                except (AlreadyExistsError, ConflictError, InvalidArgumentError) as error:
                    errors.append(error)  # Those of other models are taken, as others of this one are.
        if errors:
            raise errors[0]
        return dict(counts)

    def _parse(self, where: str, item: Any, check: CheckInputs) -> tuple[str, PostedLabel]:
        """Return one observation and its model. Raises InvalidArgumentError, NotFoundError, which name it."""
        if not isinstance(item, dict):
            raise InvalidArgumentError(f"{where} is no object; write one with request_id and label")
        for name in item:
            if name not in _FIELDS:
                raise InvalidArgumentError(
                    f"{where} has the unknown field '{name}'{nearest(name, list(_FIELDS))}; known are {', '.join(_FIELDS)}"
                )
        label = item.get("label")
        if isinstance(label, bool) or not isinstance(label, int | float) or not math.isfinite(label):
            raise InvalidArgumentError(f"{where}: label is {'missing' if label is None else repr(label)[:80]}; write a number")
        has_id, has_inputs = "request_id" in item, "inputs" in item
        key = item.get("request_id" if has_id else "key")
        if has_id == has_inputs:
            raise InvalidArgumentError(f"{where} needs either request_id, or inputs with a key of their own")
        if not isinstance(key, str) or not 0 < len(key) <= MAX_ID:
            name = "request_id" if has_id else "key"
            raise InvalidArgumentError(
                f"{where}: {name} is {'missing' if key is None else repr(key)[:80]}; write a text of 1 to {MAX_ID} characters"
            )
        model = self._model(where, item.get("model"), key if has_id else None)
        try:
            self._intakes[model].check_label(label)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{where}: {error.message}") from error
        return model, PostedLabel(key, label, _features(where, item, model, check) if has_inputs else None)

    def _model(self, where: str, named: object, request_id: str | None) -> str:
        """Args: request_id: None: inputs come with the label."""
        if named is not None:
            if not isinstance(named, str):
                raise InvalidArgumentError(f"{where}: model is {named!r}; write its name")
            if named not in self._intakes:
                raise NotFoundError(f"{where}: no labels are taken for model {named!r}; taken are those for {self._names}")
            return named
        if len(self._intakes) == 1:
            return next(iter(self._intakes))
        if request_id is None:
            raise InvalidArgumentError(f"{where}: several models take labels here; set 'model' to one of {self._names}")
        known = [model for model, intake in self._intakes.items() if intake.knows(request_id)]
        if len(known) != 1:
            why = f"{' and '.join(known)} have" if known else "no model that takes labels has"
            raise InvalidArgumentError(f"{where}: {why} seen request {request_id!r}; set 'model' to one of {self._names}")
        return known[0]


def split_observations(body: bytes, part_bytes: int = PART_BYTES) -> Iterator[list[Any]]:
    """Yield the list `observations` of a JSON object in parts of about `part_bytes`, none of them empty.

    Raises: InvalidArgumentError: it is no such object. Parts may have come before.

    >>> list(split_observations(b'{"observations": [{"key": "a},"}, {"label": {"b": [2]}}, {}]}', 1))
    [[{'key': 'a},'}, {'label': {'b': [2]}}], [{}]]
    """
    rest = body
    if len(body) > part_bytes and (begin := _LIST.match(body)) is not None:
        start = begin.end()
        for part, after in split_list(body, start, _END_OF_ITEM, part_bytes):
            yield part
            start = after
        rest = begin[0] + memoryview(body)[start:]
    fields = load_object(rest, "the observations")
    found = fields.get("observations")
    if not isinstance(found, list) or not found:
        near = "" if "observations" in fields else nearest("observations", list(fields))
        raise InvalidArgumentError(f"'observations' is missing{near}; write a list of objects with request_id and label")
    yield found


def _features(where: str, item: Mapping[str, Any], model: str, check: CheckInputs) -> RequestFeatures:
    """The inputs that come with a label. Raises InvalidArgumentError."""
    try:
        features = RequestFeatures(parse_inputs(item))
        check(model, features.inputs)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where}: {error.message}") from error
    if (rows := num_rows(features)) != 1:
        raise InvalidArgumentError(f"{where} has inputs of {rows} rows and one label; send an observation for each row")
    return features
