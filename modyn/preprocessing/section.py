"""The section `preprocessing` of a pipeline: what `Preprocessing` is made of, and when its statistics come about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from modyn.config.base import Problem, check_section, load_section
from modyn.config.preprocessing import PREPROCESSING
from modyn.errors import ConfigError
from modyn.json_codec import to_json
from modyn.preprocessing.pipeline import Preprocessing, PreprocessingConfig, check_preprocessing_section

_STATISTICS: Final = "statistics"


class PreprocessingSection(PreprocessingConfig):
    """Columns of the payloads, and the components that make features of them, in order. Takes the place of parser, tokenizer and transformations of
    all `data` sections. Its statistics (means, vocabularies, quantiles) come from the samples that are trained on, belong to the model version, and
    are used with it alike wherever it is evaluated or served."""

    statistics: Literal["while_training", "before_training"] = Field(
        "while_training",
        description="`while_training`: in the first epoch, each batch updates the statistics before it is transformed. `before_training`: a pass "
        "over the trigger set updates them before the first epoch, so that all batches are transformed alike; it costs one more reading",
    )


def section_of(pipeline: Mapping[str, Any]) -> PreprocessingSection | None:
    """Return the section `preprocessing` of a pipeline; None: it has none. Raises: ConfigError: lists what is wrong with its frame."""
    section = pipeline.get(PREPROCESSING)
    return None if section is None else load_section(PreprocessingSection, section, PREPROCESSING)


def preprocessing_of(pipeline: Mapping[str, Any]) -> Preprocessing | None:
    """Return the preprocessing of a pipeline, without statistics; None: it has none.

    Its columns, and so its features, are in the order of their names. Raises: ConfigError: the section is wrong.
    """
    section = section_of(pipeline)
    if section is None:
        return None
    # A pipeline reaches services as a message whose mappings have no order: features must not depend on it, nor the bytes of statistics.
    ordered = json.loads(to_json(section.model_dump(mode="json", exclude={_STATISTICS}), sort_keys=True))
    return Preprocessing(ordered, PREPROCESSING)


def check_section_of(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake of the section of a pipeline, as far as they can be found at once; empty: there is none, or no section."""
    section = pipeline.get(PREPROCESSING)
    if section is None:
        return []
    if found := check_section(PreprocessingSection, section, PREPROCESSING):
        return found
    if section.get("format") is None:
        return [Problem(f"{PREPROCESSING}.format", "is required in a pipeline: csv or json, which is what payloads are")]
    return check_preprocessing_section({name: value for name, value in section.items() if name != _STATISTICS}, PREPROCESSING)


def with_statistics_of(preprocessing: Preprocessing, content: bytes | None, what: str) -> Preprocessing:
    """Let preprocessing go on from the statistics of a model. Args: content: as `Preprocessing.to_bytes`. what: the model, for messages.

    Returns: `preprocessing`. Raises: ConfigError: the model has no statistics, or those of other columns or components. CorruptStateError.
    """
    if content is None:
        raise ConfigError(
            f"{PREPROCESSING}: {what} has no statistics of preprocessing, so its inputs are not what this section makes; start from a model that was "
            "trained with the section, or train one from scratch"
        )
    found = Preprocessing.from_bytes(content)
    for name in ("columns", "components"):
        ours, theirs = (getattr(made.config, name) for made in (preprocessing, found))
        if ours != theirs or list(ours) != list(theirs):  # the order of columns is that of features
            raise ConfigError(
                f"{PREPROCESSING}.{name}: {what} was trained with other {name}, so its statistics and weights do not fit; keep them as they were, or "
                "train from scratch"
            )
    preprocessing.load_state(found.state())
    return preprocessing
