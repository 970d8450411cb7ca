"""Spellings that tools of the published system write into every file, so that such files run as they are.

Empty text for a function means none. Keys that mean nothing here are left out, with a warning for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from modyn.config.base import Problem, Severity

FUNCTIONS: Final = frozenset(
    {
        "bytes_parser_function",
        "batch_parser_function",
        "label_transformer_function",
        "evaluation_transformer_function",
        "tokenizer",
    }
)
"""Fields of user code, which a tool that writes all fields gives as empty text where there is none."""

_TRIGGERS: Final = ("trigger", "online", "policies")


@dataclass(frozen=True, slots=True)
class _Leftover:
    """A key that is accepted and means nothing here."""

    sections: tuple[str, ...]
    """Where it is accepted."""
    reason: str
    ids: str = ""
    """The `id` beside it begins with this."""


_WITHOUT_MEANING: Final[Mapping[str, _Leftover]] = {
    "processor_type": _Leftover(("selection_strategy",), "labels and times of samples are known without a processor"),
    "needs_calibration": _Leftover(_TRIGGERS, "the criterion itself says whether it calibrates"),
    "x_ref_preprocessed": _Leftover(_TRIGGERS, "reference windows are prepared as all others", "AlibiDetect"),
    "threshold": _Leftover(_TRIGGERS, "the metric's `decision_criterion` decides", "Evidently"),
    "quantile_probability": _Leftover(
        _TRIGGERS, "the metric's `decision_criterion` decides", "EvidentlySimpleDistanceDriftMetric"
    ),
}

_SECTIONS: Final = ("data", "trigger", "online", "selection_strategy", "evaluation", "policies")


def as_meant(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pipeline, or a file of policies, without spellings of the published system that mean nothing: a copy where it has any.

    >>> as_meant({"data": {"label_transformer_function": ""}, "selection_strategy": {"processor_type": None, "limit": -1}})
    {'data': {'label_transformer_function': None}, 'selection_strategy': {'limit': -1}}
    """
    return {name: _cleaned(value, name) if name in _SECTIONS else value for name, value in data.items()}


def published_spellings(data: Mapping[str, Any]) -> list[Problem]:
    """Return a warning for each key that `as_meant` leaves out. Args: data: a pipeline as written."""
    return [problem for name in _SECTIONS if name in data for problem in _ignored(data[name], name, name)]


def _cleaned(value: Any, section: str) -> Any:
    if isinstance(value, list):
        return [_cleaned(item, section) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: None if key in FUNCTIONS and item == "" else _cleaned(item, section)
        for key, item in value.items()
        if _leftover(key, value, section) is None
    }


def _ignored(value: Any, section: str, path: str) -> Iterator[Problem]:
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, Mapping) else ()
    for key, item in items:
        here = f"{path}.{key}"
        if (found := _leftover(key, value, section)) is not None:
            yield Problem(here, f"has no effect here: {found.reason}; the key can be removed", Severity.WARNING)
        else:
            yield from _ignored(item, section, here)


def _leftover(key: object, beside: Any, section: str) -> _Leftover | None:
    """What a key of a mapping is that means nothing; None: it has a meaning. The name that a user gave to a section has one."""
    found = _WITHOUT_MEANING.get(key) if isinstance(key, str) else None
    if found is None or section not in found.sections or isinstance(beside[key], Mapping):
        return None
    return found if str(beside.get("id", "")).startswith(found.ids) else None
