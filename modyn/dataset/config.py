"""The `data` section of a pipeline: the dataset, and how its bytes become tensors. Checking the section executes none of its code."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationInfo, WithJsonSchema, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from modyn.config.base import PlacedError, Problem, Section, Severity
from modyn.config.durations import Duration
from modyn.dataset.code.user_code import (
    check_function,
    check_transformation,
    has_source,
    imported_name,
    may_draw,
    takes_generator,
)

NUM_ARGUMENTS = {"bytes_parser_function": 1, "batch_parser_function": 2, "label_transformer_function": 1}
"""Number of arguments of the user's functions."""

TENSOR_TYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Element types that NumPy and PyTorch share."""


_OF_TENSORS = ("tokenizer", "transformations", "deterministic_transformations", "random_transformations")
"""Fields of functions for tensors, which a section `preprocessing` excludes."""


class RecordLayout(Section):
    """Layout of payloads that contain one array at the same offset, so that a whole batch becomes a tensor without a Python loop."""

    dtype: str = Field(description="NumPy type of the elements, with byte order if it matters, e.g. uint8, float32, <f4, >i2")
    shape: tuple[int, ...] = Field((), description="shape of one sample, e.g. [3, 32, 32]; empty: a number")
    offset: int = Field(0, ge=0, description="bytes before the array in each payload")

    @field_validator("dtype")
    @classmethod
    def _known_type(cls, value: str) -> str:
        try:
            name = np.dtype(value).newbyteorder("=").name
        except (TypeError, ValueError):
            name = ""
        if name not in TENSOR_TYPES:
            raise ValueError(
                f"{value!r} is not an element type; allowed are {', '.join(TENSOR_TYPES)}, also as <f4, >i2 and so on"
            )
        return value

    @field_validator("shape")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(size < 1 for size in value):
            raise ValueError(f"{list(value)} is not a shape: every size is at least 1")
        return value

    @property
    def num_bytes(self) -> int:
        """Number of bytes of the array of one sample."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


class Normalization(Section):
    """Mean and standard deviation of each channel, for pixels from 0 to 1."""

    mean: tuple[float, ...] = Field(min_length=1)
    std: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1)


IMAGENET = Normalization(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_NORMALIZE_SCHEMA = {
    "anyOf": [{"enum": ["imagenet"], "type": "string"}, {"type": "object"}, {"type": "null"}],
    "description": "`imagenet`; or `mean` and `std`, one number for each channel; null: pixels are from 0 to 1",
}


class ImageDecoding(Section):
    """Decodes images of the format `image_folder` to float32 (channels, size, size): short side to `size`, then the centre."""

    size: int = Field(ge=1, le=8192, description="height and width in pixels", examples=[224])
    mode: Literal["RGB", "L"] = Field("RGB", description="channels")
    normalize: Annotated[Normalization | None, WithJsonSchema(_NORMALIZE_SCHEMA)] = None

    @property
    def num_channels(self) -> int:
        """Number of channels of a decoded image."""
        return len(self.mode)

    @field_validator("normalize", mode="before")
    @classmethod
    def _by_name(cls, value: object) -> object:
        if isinstance(value, str) and value != "imagenet":
            raise ValueError(f"{value!r} is not known; write imagenet, or {{mean: [...], std: [...]}}, or null")
        return IMAGENET if value == "imagenet" else value

    @model_validator(mode="after")
    def _for_each_channel(self) -> ImageDecoding:
        for name in ("mean", "std") if self.normalize else ():
            if (number := len(getattr(self.normalize, name))) != self.num_channels:
                raise PlacedError(
                    f"normalize.{name}", f"{number} numbers are given, and mode {self.mode} has {self.num_channels} channels"
                )
        return self


class DecodeConfig(Section):
    """A built-in decoder, which needs no Python in the pipeline."""

    image: ImageDecoding


class DataConfig(Section):
    """Rules that turn the bytes of a sample into a tensor. A section has exactly one of `decode` (a built-in decoder), `bytes_parser_function` (per
    sample), `batch_parser_function` (whole batches) and `record_layout` (whole batches, no code). Then transformations are applied to each sample:
    first the deterministic, last the random ones. A pipeline with a section `preprocessing`, which makes columns and features of samples, has none of
    these keys."""

    dataset_id: str = Field(min_length=1, description="name of a registered dataset")
    bytes_parser_function: str | None = Field(
        None,
        description="source of `def bytes_parser_function(data: memoryview)`, or package.module:name, called for each sample. A "
        "cache may keep its result, so it must not draw random numbers (see `deterministic_transformations`)",
    )
    batch_parser_function: str | None = Field(
        None,
        description="source of `def batch_parser_function(data, offsets)`, or package.module:name; it converts a uint8 array and int64 offsets "
        "(n+1,) to tensors with n rows",
    )
    record_layout: RecordLayout | None = Field(None, description="dtype, shape and offset of an array that every payload holds")
    decode: DecodeConfig | None = Field(
        None,
        description="built-in decoder; transformations get its pixels (uint8), and normalising follows",
    )
    transformations: tuple[str, ...] = Field(
        (),
        description="expressions such as transforms.Normalize(...), or package.module:name with arguments; they may draw random numbers",
    )
    deterministic_transformations: tuple[str, ...] = Field(
        (),
        description="transformations without randomness, applied before all others; a cache may keep their results, unless their code names "
        "something that draws, such as torch.rand. Draws within imported modules are not detected: use `random_transformations` for "
        "them",
    )
    random_transformations: tuple[str, ...] = Field(
        (),
        description="transformations that draw random numbers, applied after all others, in training only; a training gets each of their "
        "results from a cache at most once",
    )
    label_transformer_function: str | None = Field(
        None,
        description="source of `def label_transformer_function(labels)`, or package.module:name; it gets the label tensor of a batch",
    )
    tokenizer: str | None = Field(
        None,
        description="package.module:name of a function of one parsed sample, applied before transformations; or of a factory of such a "
        "function, with arguments in parentheses if it takes any",
    )

    preprocessing: SkipJsonSchema[dict[str, Any] | None] = Field(
        None,
        description="columns of a payload (`ColumnSchema`), which come from the section `preprocessing` of the pipeline; do not write them here",
    )
    on_bad_sample: Literal["fail", "skip"] = Field(
        "fail",
        description="for a sample that cannot be decoded, whose label float32 cannot hold, or (in a training) whose label is not a class of the "
        "model: `fail` ends the training or evaluation; `skip` leaves the sample out, with a line in the worker's log, and `modyn "
        "show` lists those of trainings. A batch_parser_function fails for its whole batch",
    )
    max_bad_samples: int = Field(
        100, ge=1, description="largest number of samples that a training or an evaluation leaves out; one more ends it"
    )
    label_delay: Duration = Field(
        0,
        ge=0,
        description="time between a sample and the arrival of its label, in stream time (in section `data` alone). Until then, no training has "
        "the label, and no policy that reads labels; see docs/how-to/late-labels.md",
        examples=["1w"],
    )

    @field_validator(*NUM_ARGUMENTS)
    @classmethod
    def _function(cls, value: str | None, info: ValidationInfo) -> str | None:
        name = info.field_name or ""
        return value if value is None else check_function(value, name, NUM_ARGUMENTS[name])

    @field_validator("transformations", "deterministic_transformations", "random_transformations")
    @classmethod
    def _transformations(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_transformation(text) for text in value)

    @field_validator("tokenizer")
    @classmethod
    def _tokenizer(cls, value: str | None) -> str | None:
        if value is not None and imported_name(value) is None:
            name = value if value.isidentifier() else "name"
            raise ValueError(
                f"{value!r} is not an importable name; write 'package.module:{name}', with arguments if it takes any"
            )
        return value

    @model_validator(mode="after")
    def _one_way_to_parse(self) -> DataConfig:
        all_ways = ("decode", "bytes_parser_function", "batch_parser_function", "record_layout")
        ways = [name for name in all_ways if getattr(self, name) is not None]
        if self.preprocessing is not None:
            others = ways + [name for name in _OF_TENSORS if getattr(self, name)]
            if others:
                raise ValueError(
                    f"the pipeline has a section `preprocessing`, which makes features of columns, and {' and '.join(others)} would make tensors: "
                    "remove one of the two"
                )
            return self
        if self.decode is not None and self.tokenizer is not None:
            raise PlacedError("tokenizer", "is for texts, and `decode.image` makes images; remove one of the two")
        if len(ways) != 1:
            given = f"{' and '.join(ways)} are given" if ways else "none is given"
            raise ValueError(
                "exactly one of decode, bytes_parser_function, batch_parser_function and record_layout is needed, or a section `preprocessing`; "
                f"{given}"
            )
        return self

    @property
    def all_transformations(self) -> tuple[str, ...]:
        """All transformations, in the order in which they are applied."""
        return (*self.deterministic_transformations, *self.transformations, *self.random_transformations)

    @property
    def runs_per_sample(self) -> bool:
        """Whether Python runs for each sample, so that more processes help."""
        return self.bytes_parser_function is not None or self.tokenizer is not None or bool(self.all_transformations)

    @property
    def runs_code(self) -> bool:
        """Whether decoding runs any Python code of the pipeline."""
        declared = self.record_layout is not None or self.decode is not None or self.preprocessing is not None
        return not declared or self.runs_per_sample or self.label_transformer_function is not None

    @property
    def keeps_decoded(self) -> bool:
        """Whether a cache may keep decoded samples: each sample is decoded by itself, and no function may draw random numbers. A
        `batch_parser_function` is excluded, because its result for a sample may depend on the batch."""
        texts = (self.bytes_parser_function, self.tokenizer, *self.deterministic_transformations)
        decoding = [text for text in texts if text is not None]
        if self.batch_parser_function is not None or not (decoding or self.decode):
            return False
        return not any(may_draw(text) or takes_generator(text) or not has_source(text) for text in decoding)

    @property
    def keeps_augmented(self) -> bool:
        """Whether a cache may keep augmented samples for other trainings: Python prepares each sample, and the version of its code is known."""
        texts = (self.bytes_parser_function, self.batch_parser_function, self.tokenizer, *self.all_transformations)
        return self.runs_per_sample and all(has_source(text) for text in texts if text is not None)

    @property
    def drawing(self) -> tuple[str, ...]:
        """Names of functions that may draw from the global random generators, although the result of such a function should depend only on the
        sample."""
        texts = {name: getattr(self, name) for name in (*NUM_ARGUMENTS, "tokenizer")}
        texts |= {f"deterministic_transformations.{i}": text for i, text in enumerate(self.deterministic_transformations)}
        return tuple(name for name, text in texts.items() if text is not None and may_draw(text))

    @property
    def may_draw(self) -> bool:
        """Whether decoding for training may draw random numbers."""
        return bool(self.transformations or self.random_transformations or self.drawing)

    def warnings(self, path: str) -> list[Problem]:
        """List settings that work, but probably not as intended. Args: path: path of the section."""
        return [
            Problem(
                f"{path}.{name}",
                "may draw random numbers, by the names in it: they are seeded for each batch, one thread decodes it, and no cache keeps the result. "
                "Draw in random_transformations, or by a parameter `generator`, which gets a seeded torch.Generator for any number of threads",
                Severity.WARNING,
            )
            for name in self.drawing
        ]
