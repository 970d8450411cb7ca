"""The `data` section of a pipeline: which dataset, and how its bytes become tensors. Checking it executes nothing in it."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from modyn.config.base import Problem, Section, Severity
from modyn.config.durations import Duration
from modyn.dataset.user_code import check_function, check_transformation, has_source, imported_name, may_draw, takes_generator

NUM_ARGUMENTS = {"bytes_parser_function": 1, "batch_parser_function": 2, "label_transformer_function": 1}
"""With how many arguments the user's functions are called."""

TENSOR_TYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""Element types that NumPy and PyTorch share."""


_OF_TENSORS = ("tokenizer", "transformations", "deterministic_transformations", "random_transformations")


class RecordLayout(Section):
    """Every payload holds one array at the same place: a whole batch becomes a tensor without a Python loop."""

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
            raise ValueError(f"{value!r} is no element type; allowed are {', '.join(TENSOR_TYPES)}, also as <f4, >i2 and so on")
        return value

    @field_validator("shape")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(size < 1 for size in value):
            raise ValueError(f"{list(value)} is no shape: every size is at least 1")
        return value

    @property
    def num_bytes(self) -> int:
        """Bytes of the array of one sample."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


class DataConfig(Section):
    """How the bytes of a sample become a tensor: exactly one of `bytes_parser_function` (per sample), `batch_parser_function` (whole
    batches) and `record_layout` (whole batches, no code); then the transformations, per sample and in the order given below. None of them
    where the pipeline has a section `preprocessing`, which makes columns and features of samples."""

    dataset_id: str = Field(min_length=1, description="name of a registered dataset")
    bytes_parser_function: str | None = Field(
        None,
        description="source of `def bytes_parser_function(data: memoryview)`, or package.module:name, called for each sample",
    )
    batch_parser_function: str | None = Field(
        None,
        description="source of `def batch_parser_function(data, offsets)`, or package.module:name: uint8 array and int64 offsets (n+1,) "
        "to tensors with n rows",
    )
    record_layout: RecordLayout | None = Field(None, description="dtype, shape and offset of an array that every payload holds")
    transformations: tuple[str, ...] = Field(
        (),
        description="expressions such as transforms.Normalize(...), or package.module:name with arguments; may draw random numbers",
    )
    deterministic_transformations: tuple[str, ...] = Field(
        (), description="transformations without randomness, applied before all others; what a cache may keep the outcome of"
    )
    random_transformations: tuple[str, ...] = Field(
        (), description="transformations to draw anew for each use, applied after all others, in training only"
    )
    label_transformer_function: str | None = Field(
        None,
        description="source of `def label_transformer_function(labels)`, or package.module:name: called with the label tensor of a batch",
    )
    tokenizer: str | None = Field(
        None,
        description="package.module:name of a factory, with arguments in parentheses if it takes any, whose product is called with each "
        "parsed sample, before transformations; or of a function of one sample",
    )

    preprocessing: SkipJsonSchema[dict[str, Any] | None] = Field(
        None,
        description="columns of a payload (`ColumnSchema`); set from the section `preprocessing` of the pipeline, not written here",
    )
    on_bad_sample: Literal["fail", "skip"] = Field(
        "fail",
        description="what a sample does that cannot be decoded, or whose label float32 does not hold or, in a training, is no class of its "
        "model: end the training or evaluation, or be left out, with a line in the worker's log; `modyn show` lists those of trainings. A "
        "batch_parser_function fails for its whole batch",
    )
    max_bad_samples: int = Field(
        100, ge=1, description="so many samples are left out by a training or an evaluation; one more ends it"
    )
    label_delay: Duration = Field(
        0,
        ge=0,
        description="labels come so long after their samples, in stream time (`data` alone): until then no training has them, and no policy that "
        "reads labels; see docs/triggers.md",
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
        all_ways = ("bytes_parser_function", "batch_parser_function", "record_layout")
        ways = [name for name in all_ways if getattr(self, name) is not None]
        if self.preprocessing is not None:
            others = ways + [name for name in _OF_TENSORS if getattr(self, name)]
            if others:
                raise ValueError(
                    f"the pipeline has a section `preprocessing`, which makes features of columns, and {' and '.join(others)} would make tensors: "
                    "remove one of the two"
                )
            return self
        if len(ways) != 1:
            given = f"{' and '.join(ways)} are given" if ways else "none is given"
            raise ValueError(
                f"exactly one of bytes_parser_function, batch_parser_function and record_layout is needed, or a section `preprocessing`; {given}"
            )
        return self

    @property
    def all_transformations(self) -> tuple[str, ...]:
        """All transformations, in the order in which they are applied."""
        return (*self.deterministic_transformations, *self.transformations, *self.random_transformations)

    @property
    def runs_per_sample(self) -> bool:
        """Whether Python runs for each sample, so that further processes help."""
        return self.bytes_parser_function is not None or self.tokenizer is not None or bool(self.all_transformations)

    @property
    def runs_code(self) -> bool:
        """Whether any Python code of the pipeline takes part in decoding."""
        declared = self.record_layout is not None or self.preprocessing is not None
        return not declared or self.runs_per_sample or self.label_transformer_function is not None

    @property
    def keeps_decoded(self) -> bool:
        """Whether a cache may keep decoded samples: Python decodes each one by itself, and none of it may draw random numbers. What a
        `batch_parser_function` makes of a sample may depend on its batch."""
        texts = (self.bytes_parser_function, self.tokenizer, *self.deterministic_transformations)
        decoding = [text for text in texts if text is not None]
        if self.batch_parser_function is not None or not decoding:
            return False
        return not any(may_draw(text) or takes_generator(text) or not has_source(text) for text in decoding)

    @property
    def keeps_augmented(self) -> bool:
        """Whether a cache may keep augmented samples for other trainings: Python prepares each one, by code whose version is known."""
        texts = (self.bytes_parser_function, self.batch_parser_function, self.tokenizer, *self.all_transformations)
        return self.runs_per_sample and all(has_source(text) for text in texts if text is not None)

    @property
    def drawing(self) -> tuple[str, ...]:
        """Names of the functions that may draw from the global random generators though their outcome should depend on the sample alone."""
        texts = {name: getattr(self, name) for name in (*NUM_ARGUMENTS, "tokenizer")}
        texts |= {f"deterministic_transformations.{i}": text for i, text in enumerate(self.deterministic_transformations)}
        return tuple(name for name, text in texts.items() if text is not None and may_draw(text))

    @property
    def may_draw(self) -> bool:
        """Whether decoding may draw random numbers (in training)."""
        return bool(self.transformations or self.random_transformations or self.drawing)

    def warnings(self, path: str) -> list[Problem]:
        """What works, but probably not as it is meant. Args: path: of the section."""
        return [
            Problem(
                f"{path}.{name}",
                "may draw random numbers: they are seeded for each batch, which is then decoded in one thread; a parameter `generator` gets a "
                "seeded torch.Generator, for any number of threads",
                Severity.WARNING,
            )
            for name in self.drawing
        ]
