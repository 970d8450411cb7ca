"""The section `preprocessing` of a pipeline: the components, and the time at which statistics are computed."""

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
    """Columns of the payloads, and the components that make features of them, in order. The section replaces parser, tokenizer and transformations of
    all `data` sections. Statistics (means, vocabularies, quantiles) are computed from the training samples, belong to the model version, and are used
    with this version in evaluations and in serving."""

    statistics: Literal["while_training", "before_training"] = Field(
        "while_training",
        description="`while_training`: in the first epoch, each batch updates the statistics before it is transformed. `before_training`: an "
        "additional pass over the trigger set updates them before the first epoch, so that all batches are transformed with the "
        "same statistics",
    )


def section_of(pipeline: Mapping[str, Any]) -> PreprocessingSection | None:
    """Return the section `preprocessing` of a pipeline; None without this section.

    Raises: ConfigError: lists the mistakes in the section's own keys.
    """
    section = pipeline.get(PREPROCESSING)
    return None if section is None else load_section(PreprocessingSection, section, PREPROCESSING)


def preprocessing_of(pipeline: Mapping[str, Any]) -> Preprocessing | None:
    """Make the preprocessing of a pipeline, with no statistics yet; None if the pipeline has no preprocessing.

    Columns and features are ordered by name. Raises: ConfigError: the section is wrong.
    """
    section = section_of(pipeline)
    if section is None:
        return None
    # Mappings of a pipeline lose their order in messages between services, so features and the bytes of statistics must not depend on this order.
    ordered = json.loads(to_json(section.model_dump(mode="json", exclude={_STATISTICS}), sort_keys=True))
    return Preprocessing(ordered, PREPROCESSING)


def check_section_of(pipeline: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake of the section of a pipeline that can be found at once. Without a section, the result is empty."""
    section = pipeline.get(PREPROCESSING)
    if section is None:
        return []
    if found := check_section(PreprocessingSection, section, PREPROCESSING):
        return found
    if section.get("format") is None:
        return [Problem(f"{PREPROCESSING}.format", "is required in a pipeline: csv or json, the format of payloads")]
    return check_preprocessing_section({name: value for name, value in section.items() if name != _STATISTICS}, PREPROCESSING)


def with_statistics_of(preprocessing: Preprocessing, content: bytes | None, what: str) -> Preprocessing:
    """Load the statistics of a model into `preprocessing`. Args: content: bytes from `Preprocessing.to_bytes`. what: the model, for messages.

    Returns: `preprocessing`. Raises: ConfigError: the model has no statistics, or the statistics belong to other columns or components.
    CorruptStateError: the bytes are damaged.
    """
    if content is None:
        raise ConfigError(
            f"{PREPROCESSING}: {what} has no statistics of preprocessing, so its inputs differ from the features of this section; start from a model "
            "that was "
            "trained with the section, or train one from scratch"
        )
    found = Preprocessing.from_bytes(content)
    for name in ("columns", "components"):
        ours, theirs = (getattr(made.config, name) for made in (preprocessing, found))
        if ours != theirs or list(ours) != list(theirs):  # The order of columns is the order of features.
            raise ConfigError(
                f"{PREPROCESSING}.{name}: {what} was trained with other {name}, so its statistics and weights do not fit; keep the former section, "
                "or train from scratch"
            )
    preprocessing.load_state(found.state())
    return preprocessing
