"""Convert pipeline files of the published system and its tools, so that these files run unchanged.

An empty text in place of a function means no function. Keys without meaning in Modyn are left out, with a warning for each. Files in
the older format are converted (`older_format`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from modyn.config.base import Problem, Severity
from modyn.config.older_format import in_todays_format
from modyn.config.yaml_source import YamlSource

_FUNCTIONS: Final = (
    "bytes_parser_function",
    "batch_parser_function",
    "label_transformer_function",
    "evaluation_transformer_function",
    "tokenizer",
)
"""Fields for user code. A tool that writes all fields writes an empty text if there is no function."""

_VALUES: Final[Mapping[tuple[str, str], str | None]] = {("device", "gpu"): "cuda", **{(name, ""): None for name in _FUNCTIONS}}
"""Modyn's value for each pair of a key and the key's value in the published system."""

_TRIGGERS: Final = ("trigger", "online", "policies")
_TRAINED: Final = ("training", "selection_strategy")


@dataclass(frozen=True, slots=True)
class _Leftover:
    """A published key that is accepted and has no effect in Modyn."""

    sections: tuple[str, ...]
    """Sections in which the key is accepted."""
    reason: str
    ids: str = ""
    """The key is accepted only next to an `id` or `name` that begins with this text."""
    only_off: bool = False
    """The key is refused unless its value is off: null, false, 0, empty, or `activated: false`."""


_WITHOUT_MEANING: Final[Mapping[str, _Leftover]] = {
    "processor_type": _Leftover(("selection_strategy",), "labels and times of samples are known without a processor"),
    "needs_calibration": _Leftover(_TRIGGERS, "the criterion itself says whether it calibrates"),
    "x_ref_preprocessed": _Leftover(_TRIGGERS, "reference windows are prepared like all other windows", "AlibiDetect"),
    "threshold": _Leftover(_TRIGGERS, "the metric's `decision_criterion` decides", "Evidently"),
    "quantile_probability": _Leftover(
        _TRIGGERS, "the metric's `decision_criterion` decides", "EvidentlySimpleDistanceDriftMetric"
    ),
    "result_writers": _Leftover(("evaluation",), "results are kept in the evaluator's database, and `modyn show` reads them"),
    "amp": _Leftover(("evaluation",), "models are evaluated in full precision", only_off=True),
    "initial_pass": _Leftover(
        ("training",), "`initial_model` and `initial_model_id` decide where the first trigger starts from", only_off=True
    ),
    "grad_norm": _Leftover(_TRAINED, "`gradient_clip_norm` bounds gradients", only_off=True),
    "preprocessor": _Leftover(_TRIGGERS, "embeddings by the newest model are compared", "AlibiDetect", only_off=True),
    "evaluation_interval_data_points": _Leftover(_TRIGGERS, "each trigger of the ensemble has its own", "EnsembleTrigger"),
    "num_classes": _Leftover(("evaluation",), "any number of classes is counted", "Accuracy"),
    "generative": _Leftover((*_TRIGGERS, *_TRAINED, "evaluation"), "models are trained on labels", only_off=True),
    **{
        name: _Leftover(_TRAINED, "layers that are added to a model are part of its own code", only_off=True)
        for name in ("lora", "kadapter", "prompt_tuning", "prefix_tuning")
    },
}

_SECTIONS: Final = ("training", "data", "trigger", "online", "selection_strategy", "evaluation", "policies")


@dataclass(frozen=True)
class PipelineSource(YamlSource):
    """A pipeline file in the current format, without keys that have no meaning in Modyn. Line numbers refer to the original file."""

    notes: tuple[Problem, ...] = ()
    """One warning for each key that is left out or converted, and one error for each key that requests an unavailable feature."""


def pipeline_source(source: YamlSource) -> PipelineSource:
    """Convert a pipeline file of the published system. Args: source: the file, or a result of this function."""
    if isinstance(source, PipelineSource):
        return source
    converted = in_todays_format(source.data)
    data, lines = converted.data, dict(source.lines)
    for old, new in converted.moved.items():
        lines = {new + path.removeprefix(old): line for path, line in lines.items() if f"{path}.".startswith(f"{old}.")} | lines
    left_out = [problem for name in _SECTIONS if name in data for problem in _ignored(data[name], name, name)]
    return PipelineSource(source.file_name, as_meant(data), lines, (*converted.notes, *left_out))


def as_meant(data: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a pipeline in the current format, or a file of policies, without keys and values that have no meaning in Modyn.

    >>> as_meant({"data": {"label_transformer_function": ""}, "selection_strategy": {"processor_type": None, "limit": -1}})
    {'data': {'label_transformer_function': None}, 'selection_strategy': {'limit': -1}}
    """
    return {name: _cleaned(value, name) if name in _SECTIONS else value for name, value in data.items()}


def _cleaned(value: Any, section: str) -> Any:
    if isinstance(value, list):
        return [_cleaned(item, section) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: _VALUES[key, item] if isinstance(item, str) and (key, item) in _VALUES else _cleaned(item, section)
        for key, item in value.items()
        if _leftover(key, value, section) is None
    }


def _ignored(value: Any, section: str, path: str) -> Iterator[Problem]:
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, Mapping) else ()
    for key, item in items:
        here = f"{path}.{key}"
        if (found := _leftover(key, value, section)) is not None:
            if found.only_off and not _is_off(item):
                yield Problem(here, f"is not available here: {found.reason}; remove the key")
            else:
                yield Problem(here, f"has no effect here: {found.reason}; the key can be removed", Severity.WARNING)
        elif isinstance(item, str) and (today := _VALUES.get((str(key), item))) is not None:
            yield Problem(here, f"is written as `{today}` today", Severity.WARNING)
        else:
            yield from _ignored(item, section, here)


def _leftover(key: object, siblings: Any, section: str) -> _Leftover | None:
    """Return the entry of a key that has no meaning in Modyn; None: the key has a meaning, for example as a name that a user gave to a section."""
    found = _WITHOUT_MEANING.get(key) if isinstance(key, str) else None
    if found is None or section not in found.sections or (isinstance(siblings[key], Mapping) and not found.only_off):
        return None
    return found if str(siblings.get("id", siblings.get("name", ""))).startswith(found.ids) else None


def _is_off(value: object) -> bool:
    return not (value.get("activated", True) if isinstance(value, Mapping) else value)
