"""Router of labels that clients send back. The router decodes labels, and passes each label to the intake of its model."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from modyn.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, ModynError, NotFoundError
from modyn.registry import nearest
from modyn.serving.messages.infer import InferAnswer, InferRequest
from modyn.serving.messages.json_parts import PART_BYTES, split_list
from modyn.serving.messages.json_tensors import MAX_ID, load_object, parse_inputs
from modyn.serving.messages.shown import shown
from modyn.serving.messages.signature import Tensors
from modyn.serving.observations.intake import ObservationIntake, PostedLabel
from modyn.serving.observations.join import RequestFeatures, num_rows

_PART_LABELS: Final = 1000
"""Largest number of labels that are processed at once, so that predictions wait for a few milliseconds at most."""
_LIST: Final = re.compile(rb'\s*\{[^][{}]*(?<!\\)"observations"\s*:\s*\[')
"""Text before the first observation. The fields before the list have neither lists nor objects. No quote of the name is part of a text."""
_END_OF_ITEM: Final = re.compile(rb"\}\s*,")
_FIELDS: Final = ("request_id", "key", "inputs", "label", "model")

CheckInputs = Callable[[str, Tensors], object]
"""Function that checks the inputs of an observation for a model. Raises InvalidArgumentError, NotFoundError, UnavailableError."""


class ObservationRouter:
    """Finds the model of each label. Thread-safe.

    Rule: a label belongs to the model that the label names. A label without a model name belongs to the only model that accepts labels, or to the
    only model that knows the request id.

    Args: intakes: intake of each model, by name; `post` needs at least one.
    """

    def __init__(self, intakes: Mapping[str, ObservationIntake]) -> None:
        self._intakes = intakes
        self._names = ", ".join(sorted(intakes))

    def add_prediction(self, request: InferRequest, answer: InferAnswer) -> None:
        """Pass a prediction to the intake of its model, if the model accepts labels."""
        if (intake := self._intakes.get(answer.model)) is not None:
            intake.add_prediction(request, answer)

    def post(self, body: bytes, check: CheckInputs) -> dict[str, int]:
        """Take the labels in a client's JSON.

        Format: {"observations": [{"request_id": TEXT, "label": VALUE}, {"key": TEXT, "inputs": [tensors as in a request], "label": VALUE}]}
        Each object in the list may have the field "model": NAME.

        Args: check: checks inputs that come with a label.
        Returns: the numbers of `stored`, `waiting` and `repeated` labels; see `ObservationIntake.post`.
        Raises, without taking any label: InvalidArgumentError: a label is wrong, or the model of a label cannot be found. NotFoundError: the model
        of a label accepts no labels. For other errors see `ObservationIntake.post`.
        """
        # The whole body is parsed before a label is taken, so that a wrong body changes nothing.
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
                    errors.append(error)  # labels without an error are taken
        if errors:
            raise errors[0]
        return dict(counts)

    def _parse(self, where: str, item: Any, check: CheckInputs) -> tuple[str, PostedLabel]:
        """Return the model and the label of one observation. Raises InvalidArgumentError or NotFoundError; the message names the observation."""
        if not isinstance(item, dict):
            raise InvalidArgumentError(f"{where} is not an object; write one with request_id and label")
        for name in item:
            if name not in _FIELDS:
                raise InvalidArgumentError(
                    f"{where} has the unknown field {shown(name)}{nearest(name, list(_FIELDS))}; known are {', '.join(_FIELDS)}"
                )
        label = item.get("label")
        if isinstance(label, bool) or not isinstance(label, int | float) or not math.isfinite(label):
            raise InvalidArgumentError(f"{where}: label is {shown(label)}; write a number")
        has_id, has_inputs = "request_id" in item, "inputs" in item
        key = item.get("request_id" if has_id else "key")
        if has_id == has_inputs:
            raise InvalidArgumentError(f"{where} needs either request_id, or inputs with a key of their own")
        if not isinstance(key, str) or not 0 < len(key) <= MAX_ID:
            name = "request_id" if has_id else "key"
            raise InvalidArgumentError(f"{where}: {name} is {shown(key)}; write a text of 1 to {MAX_ID} characters")
        model = self._model(where, item.get("model"), key if has_id else None)
        try:
            self._intakes[model].check_label(label)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{where}: {error.message}") from error
        return model, PostedLabel(key, label, _features(where, item, model, check) if has_inputs else None)

    def _model(self, where: str, named: object, request_id: str | None) -> str:
        """Find the model of a label. Args: request_id: id of the request that the label belongs to, or None if it comes with its own inputs."""
        if named is not None:
            if not isinstance(named, str):
                raise InvalidArgumentError(f"{where}: model is {shown(named)}; write its name")
            if named not in self._intakes:
                raise NotFoundError(f"{where}: no labels are taken for model {shown(named)}; taken are those for {self._names}")
            return named
        if len(self._intakes) == 1:
            return next(iter(self._intakes))
        if request_id is None:
            raise InvalidArgumentError(f"{where}: several models take labels here; set 'model' to one of {self._names}")
        # A label without a model is assigned by the request id, which must belong to one model only.
        known = [model for model, intake in self._intakes.items() if intake.knows(request_id)]
        if len(known) != 1:
            why = f"{' and '.join(known)} have" if known else "no model that takes labels has"
            raise InvalidArgumentError(f"{where}: {why} seen request {request_id!r}; set 'model' to one of {self._names}")
        return known[0]


def split_observations(body: bytes, part_bytes: int = PART_BYTES) -> Iterator[list[Any]]:
    """Yield the list `observations` of a JSON object in parts of about `part_bytes` bytes. No part is empty.

    Raises: InvalidArgumentError: the text is not such an object; some parts may have been yielded already.

    >>> list(split_observations(b'{"observations": [{"key": "a},"}, {"label": {"b": [2]}}, {}]}', 1))
    [[{'key': 'a},'}, {'label': {'b': [2]}}], [{}]]
    """
    rest = body
    if len(body) > part_bytes and (begin := _LIST.match(body)) is not None:
        start = begin.end()
        for part, after in split_list(body, start, _END_OF_ITEM, part_bytes):
            yield part
            start = after
        # The rest of the text is joined to the beginning of the object, so that the rest is parsed and checked like a short body.
        rest = begin[0] + memoryview(body)[start:]
    fields = load_object(rest, "the observations")
    found = fields.get("observations")
    if not isinstance(found, list) or not found:
        near = "" if "observations" in fields else nearest("observations", list(fields))
        raise InvalidArgumentError(f"'observations' is missing{near}; write a list of objects with request_id and label")
    yield found


def _features(where: str, item: Mapping[str, Any], model: str, check: CheckInputs) -> RequestFeatures:
    """Return the inputs that come with a label. Raises InvalidArgumentError."""
    try:
        features = RequestFeatures(parse_inputs(item))
        check(model, features.inputs)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where}: {error.message}") from error
    if (rows := num_rows(features)) != 1:
        raise InvalidArgumentError(f"{where} has inputs of {rows} rows and one label; send an observation for each row")
    return features
