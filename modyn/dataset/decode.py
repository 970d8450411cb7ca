"""From payloads to tensors. `Decoder.decode` is the one place between "the payload has arrived" and "the batch is decoded"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from modyn.dataset.batch import Data
from modyn.dataset.config import DataConfig, RecordLayout
from modyn.dataset.functions import compile_function, compile_transformation
from modyn.errors import DataError, UserCodeError
from modyn.records import Float32Array, Int64Array
from modyn.storage.flight import Payloads


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Part of a batch: samples `rows` (int64 (n,)) of `payloads`, with their weights, float32 (n,)."""

    payloads: Payloads
    rows: Int64Array
    weights: Float32Array

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def keys(self) -> Int64Array:
        return self.payloads.keys[self.rows]

    def contiguous(self) -> Payloads:
        """These samples alone: without a copy where they are neighbours."""
        payloads, rows = self.payloads, self.rows
        if not len(rows):
            return Payloads(payloads.keys[:0], payloads.labels[:0], payloads.data[:0], np.zeros(1, np.int64))
        first, last = int(rows[0]), int(rows[-1])
        if _neighbours(rows):
            bounds = payloads.offsets[first : last + 2]
            data = payloads.data[bounds[0] : bounds[-1]]
            return Payloads(payloads.keys[first : last + 1], payloads.labels[first : last + 1], data, bounds - bounds[0])
        all_lengths: Int64Array = payloads.offsets[1:] - payloads.offsets[:-1]
        lengths: Int64Array = all_lengths[rows]
        offsets: Int64Array = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        if np.all(all_lengths == all_lengths[0]):
            # Whole rows are moved, not single bytes: that is what shuffled records of fixed size cost.
            records = payloads.data[payloads.offsets[0] : payloads.offsets[-1]].reshape(len(payloads), -1)
            return Payloads(payloads.keys[rows], payloads.labels[rows], records[rows].reshape(-1), offsets)
        shifts: Int64Array = np.repeat(payloads.offsets[rows] - offsets[:-1], lengths)
        return Payloads(payloads.keys[rows], payloads.labels[rows], payloads.data[shifts + np.arange(len(shifts))], offsets)


def concatenate(parts: Sequence[Payloads]) -> Payloads:
    """The samples of all parts, in order, in one buffer. At least one part."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.offsets[1:] - part.offsets[:-1] for part in parts])
    return Payloads(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.data[part.offsets[0] : part.offsets[-1]] for part in parts]),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
    )


class Decoder:
    """Turns payloads into model inputs as `config` says. Compiles the user's functions: make it where they may run, in a worker.

    training: whether random_transformations are applied.
    """

    def __init__(self, config: DataConfig, *, training: bool) -> None:
        self._dataset = config.dataset_id
        self._layout = config.record_layout
        self._parse = config.bytes_parser_function and compile_function(config.bytes_parser_function, "bytes_parser_function")
        self._parse_batch = config.batch_parser_function and compile_function(
            config.batch_parser_function, "batch_parser_function"
        )
        self._label = config.label_transformer_function and compile_function(
            config.label_transformer_function, "label_transformer_function"
        )
        self._steps = [compile_transformation(config.tokenizer, "tokenizer")] if config.tokenizer else []
        for field in ("deterministic_transformations", "transformations", *(["random_transformations"] if training else [])):
            self._steps += [compile_transformation(text, f"{field}.{i}") for i, text in enumerate(getattr(config, field))]

    def decode(self, segments: Sequence[Segment]) -> tuple[Data, torch.Tensor]:
        """Model inputs and labels (float labels as float32) of the samples of all segments, in order.

        Raises UserCodeError that names the function, the sample and the line, DataError for a payload that is not as declared.
        """
        segments = [segment for segment in segments if len(segment)]
        if not segments:
            return torch.empty(0), torch.empty(0, dtype=torch.int64)
        keys = np.concatenate([segment.keys for segment in segments])
        if self._parse:
            samples = [
                self._parse(partial(self._named, key), segment.payloads.payload(row))
                for segment in segments
                for row, key in zip(segment.rows.tolist(), segment.keys.tolist(), strict=True)
            ]
            data = self._stack(self._transform(samples, keys), keys)
        else:
            data = self._whole(segments)
            if self._steps:
                data = self._stack(self._transform(_rows(data, len(keys)), keys), keys)
        return data, self._labels(np.concatenate([segment.payloads.labels[segment.rows] for segment in segments]), keys)

    def _named(self, key: int) -> str:
        return f"sample {key} of dataset '{self._dataset}'"

    def _named_batch(self, keys: Int64Array) -> str:
        return f"{len(keys)} samples of dataset '{self._dataset}', the first of which is {keys[0]}"

    def _whole(self, segments: Sequence[Segment]) -> Data:
        """A batch without a Python loop: the declared layout, or the user's batch parser, which is called for each segment."""
        if self._layout is not None:
            return from_layout(self._layout, segments, self._named)
        return _join([self._parsed(segment.contiguous()) for segment in segments])

    def _parsed(self, payloads: Payloads) -> Data:
        assert self._parse_batch
        data = self._parse_batch(lambda: self._named_batch(payloads.keys), payloads.data, payloads.offsets)
        data = _as_tensor(data) if isinstance(data, np.ndarray) else data
        if not _is_data(data) or any(part.shape[:1] != (len(payloads),) for part in _parts(data)):
            raise UserCodeError(
                f"batch_parser_function must return a tensor with {len(payloads)} rows (or a tuple or dict of such) "
                f"for {self._named_batch(payloads.keys)}; it returned {_told(data)}"
            )
        whole: Data = data
        return whole

    def _transform(self, samples: list[Any], keys: Int64Array) -> list[Any]:
        for step in self._steps:
            samples = [step(partial(self._named, key), sample) for key, sample in zip(keys.tolist(), samples, strict=True)]
        return samples

    def _stack(self, samples: list[Any], keys: Int64Array) -> Data:
        try:
            first = samples[0]
            if isinstance(first, tuple):
                return tuple(torch.stack([_as_tensor(sample[i]) for sample in samples]) for i in range(len(first)))
            if isinstance(first, dict):
                return {name: torch.stack([_as_tensor(sample[name]) for sample in samples]) for name in first}
            return torch.stack([_as_tensor(sample) for sample in samples])
        except (RuntimeError, TypeError, ValueError, KeyError, IndexError) as error:
            shapes = [_told(sample) for sample in samples]
            odd = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), 0)
            raise UserCodeError(
                f"{self._named(int(keys[odd]))} was decoded to {shapes[odd]}, {self._named(int(keys[0]))} to {shapes[0]}: parser and "
                "transformations must return tensors (or tuples or dicts of tensors) of one shape, so that they make a batch"
            ) from error

    def _labels(self, labels: Any, keys: Int64Array) -> torch.Tensor:
        tensor = _as_tensor(labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64))
        if not self._label:
            return tensor
        changed = self._label(lambda: self._named_batch(keys), tensor)
        if not isinstance(changed, torch.Tensor) or changed.shape[:1] != tensor.shape:
            raise UserCodeError(
                f"label_transformer_function must return a tensor with {len(keys)} rows for {self._named_batch(keys)}; "
                f"it returned {_told(changed)}"
            )
        return changed


def from_layout(layout: RecordLayout, segments: Sequence[Segment], named: Callable[[int], str]) -> torch.Tensor:
    """The array that `layout` declares, of each sample of all segments: (n, *shape), in native byte order, copied once.

    Raises DataError for a payload that is too short.
    """
    stop = layout.offset + layout.num_bytes
    array = np.empty((sum(map(len, segments)), layout.num_bytes), np.uint8)
    begin = 0
    for segment in segments:
        payloads, rows = segment.payloads, segment.rows
        target = array[begin : begin + len(rows)]
        begin += len(rows)
        lengths = payloads.offsets[1:] - payloads.offsets[:-1]
        short = np.flatnonzero(lengths[rows] < stop)
        if len(short):
            row = rows[short[0]]
            raise DataError(
                f"{named(int(payloads.keys[row]))} has {lengths[row]} bytes, but record_layout (dtype {layout.dtype}, "
                f"shape {list(layout.shape)}, offset {layout.offset}) needs {stop}; correct record_layout or the data"
            )
        if np.all(lengths == lengths[0]):
            records = payloads.data[payloads.offsets[0] : payloads.offsets[-1]].reshape(len(payloads), -1)
            if _neighbours(rows):
                target[:] = records[rows[0] : rows[-1] + 1, layout.offset : stop]
            elif records.shape[1] == layout.num_bytes:
                np.take(records, rows, axis=0, out=target, mode="clip")
            else:
                target[:] = records[rows, layout.offset : stop]
        else:
            target[:] = payloads.data[(payloads.offsets[rows, None] + layout.offset) + np.arange(layout.num_bytes)]
    kind = np.dtype(layout.dtype)
    shaped = array.view(kind).reshape(len(array), *layout.shape)
    return torch.from_numpy(shaped.astype(kind.newbyteorder("="), copy=False))


def _neighbours(rows: Int64Array) -> bool:
    """Whether rows (at least one) follow one another without a gap."""
    return bool(rows[-1] - rows[0] + 1 == len(rows) and np.all(rows[1:] - rows[:-1] == 1))


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()
    return torch.as_tensor(value)


def _parts(data: Any) -> list[torch.Tensor]:
    if isinstance(data, dict):
        return list(data.values())
    return list(data) if isinstance(data, tuple) else [data]


def _is_data(data: Any) -> bool:
    return bool(_parts(data)) and all(isinstance(part, torch.Tensor) for part in _parts(data))


def _rows(data: Data, num_rows: int) -> list[Any]:
    if isinstance(data, torch.Tensor):
        return list(data)
    if isinstance(data, tuple):
        return [tuple(part[i] for part in data) for i in range(num_rows)]
    return [{name: part[i] for name, part in data.items()} for i in range(num_rows)]


def _join(parts: list[Data]) -> Data:
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat([part for part in parts if isinstance(part, torch.Tensor)])
    if isinstance(first, tuple):
        return tuple(torch.cat(list(columns)) for columns in zip(*parts, strict=True))
    return {name: torch.cat([part[name] for part in parts if isinstance(part, dict)]) for name in first}


def _told(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_told(part) for part in value)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_told(part)}' for name, part in value.items())}}}"
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {list(shape)}" if shape is not None else "")
