"""Turn payloads into tensors, for local reads and reads over Flight: payloads → `decode` → `augment` → one batch."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import get_worker_info

from modyn.cache.keys import TierName
from modyn.config.base import load_section
from modyn.config.preprocessing import PREPROCESSING
from modyn.dataset.chunks import PreparedValues, select_payloads
from modyn.dataset.code.functions import UserFunction, compile_function, compile_tokenizer, compile_transformation, seeded
from modyn.dataset.config import DataConfig, ImageDecoding, RecordLayout
from modyn.dataset.preparation_clock import PreparationClock
from modyn.errors import DataError, UserCodeError
from modyn.models.calls import Data
from modyn.models.classes import LabelClasses
from modyn.preprocessing import ColumnParser, ColumnSchema
from modyn.preprocessing.column_parser import BadRowError
from modyn.preprocessing.columns import ReadColumns
from modyn.records import LARGEST_LABEL, Int64Array, all_labelled, has_label
from modyn.storage.model.samples import Payloads, UInt8Array

if TYPE_CHECKING:
    from modyn.dataset.image_decoder import ImageDecoder

Keep = Callable[[TierName, Int64Array, Sequence[Any]], None]
"""Function that is called with the form of the samples (decoded or augmented), their keys, int64 (n,), and their n values."""

BLOCK = 512
"""Number of samples that are decoded one by one before they are put into one tensor."""


def _image_decoder(config: ImageDecoding) -> ImageDecoder:
    from modyn.dataset.image_decoder import ImageDecoder  # Most pipelines decode no images, and do not need Pillow.

    return ImageDecoder(config)


class BatchPipeline:
    """Turns the payloads of a batch into tensors as `config` says. The constructor compiles the user's functions, so only workers may call it.

    `decode` depends only on the payload: parser or built-in decoder, tokenizer, deterministic transformations. `augment` may draw random numbers:
    `transformations`, and in training `random_transformations`. Thread-safe. If Python runs for each sample, batches are made one at a time: the
    user's functions need not be thread-safe, and nothing else draws from the global generators. A sample is bad if its label is not in `classes`.
    """

    def __init__(
        self, config: DataConfig, *, training: bool, classes: LabelClasses | None = None, absent_is_missing: bool = True
    ) -> None:
        """Args: absent_is_missing: see `ColumnParser`."""

        def functions(*fields: str) -> list[UserFunction]:
            return [
                compile_transformation(text, f"{name}.{i}") for name in fields for i, text in enumerate(getattr(config, name))
            ]

        def function(name: str) -> UserFunction | None:
            text = getattr(config, name)
            return None if text is None else compile_function(text, name)

        self._dataset, self._training = config.dataset_id, training
        self._may_draw = config.may_draw
        self.runs_per_sample = config.runs_per_sample
        """Whether Python runs for each sample."""
        # Held while a batch is made, because the user's functions may not be thread-safe, and the global generators are seeded for one batch.
        self._alone = threading.Lock() if config.runs_per_sample else nullcontext()
        self._layout = config.record_layout
        schema = None if config.preprocessing is None else load_section(ColumnSchema, config.preprocessing, PREPROCESSING)
        self._columns = None if schema is None else ColumnParser(schema, absent_is_missing=absent_is_missing)
        self._kinds = None if schema is None else schema.kinds
        self._parse, self._parse_batch = function("bytes_parser_function"), function("batch_parser_function")
        self._images = None if config.decode is None else _image_decoder(config.decode.image)
        self._label = function("label_transformer_function")
        self._classes = classes
        tokenizer = [compile_tokenizer(config.tokenizer)] if config.tokenizer else []
        parser = [self._parse] if self._parse else []
        self._decoding = parser + tokenizer + functions("deterministic_transformations")
        self.keeps_decoded = config.keeps_decoded and not any(function.takes_generator for function in self._decoding)
        """Whether a cache may keep the result of `decode`, because this result depends only on the sample."""
        self._augmenting = functions("transformations", *(["random_transformations"] if training else []))
        called = [*self._decoding, *self._augmenting, *filter(None, (self._parse_batch, self._label))]
        self.takes_seed = self._may_draw or any(function.takes_generator for function in called)
        """Whether the tensors of a batch depend on its seed."""
        self.makes_views = bool(self._layout) and not config.runs_code
        """Whether a batch is a view of its payloads, because no function of the user runs. Several batches can then be made as one and split."""

    def run(
        self,
        payloads: Payloads,
        seed: int | None = None,
        prepared: PreparedValues | None = None,
        keep: Keep | None = None,
        clock: PreparationClock | None = None,
    ) -> tuple[Data, torch.Tensor]:
        """Return the model inputs and labels (float labels as float32) of one batch. The offsets of `payloads` begin with 0.

        Inputs may be a view of `payloads.data` if it is writable.

        Args: seed: seed of the generator that functions receive, and of the global generators if functions may draw from them; None: no seed.
        prepared: values from a cache, whose payloads are not read; None: no values. keep: called with the decoded, and with the augmented samples.
        clock: receives the times.
        Raises: UserCodeError: a function fails; the message names the function, the sample and the line. DataError: a payload is not as declared.
        """
        keys = payloads.keys
        if not len(keys):
            return torch.empty(0), torch.empty(0, dtype=torch.int64)
        # The seed belongs to the batch, so a batch is the same in any thread or process.
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        clock = clock or PreparationClock()
        with self._alone, seeded(seed if self._may_draw else None):
            if self._parse is None and self._images is None and not (self._decoding or self._augmenting):
                with clock.decoding(len(keys)):
                    data = self.decode_batch(payloads, generator)
            else:
                data = self._by_sample(payloads, prepared, generator, keep, clock)
            if self._images is not None:
                with clock.augmenting(0):
                    data = self._images.normalized(self._pixels(data, keys))
            return data, self._labels(payloads.labels, keys, generator)

    def _by_sample(
        self,
        payloads: Payloads,
        prepared: PreparedValues | None,
        generator: torch.Generator | None,
        keep: Keep | None,
        clock: PreparationClock,
    ) -> Data:
        """Decode and augment the samples, in blocks, and return them as a batch. Without blocks, the garbage collector would need more time for many
        thousand live objects than the user's functions take.
        """
        keys = payloads.keys
        rows = None if prepared is None else np.flatnonzero(prepared.missing)
        with clock.decoding(0):
            samples = self._samples(payloads, rows, generator)
        blocks: list[Data] = []
        done = 0
        for start in range(0, len(keys), BLOCK):
            # Samples with cached values need no payload, so positions among the decoded samples differ from positions in the batch. `done` counts
            # decoded samples.
            of_block = keys[start : start + BLOCK]
            held = None if prepared is None else prepared.take(range(start, start + len(of_block)))
            missing = of_block if held is None else of_block[held.missing]
            with clock.decoding(len(missing)):
                decoded = self.decode(samples(done, done + len(missing)), missing, generator)
            done += len(missing)
            if keep is not None and decoded:
                keep("decoded", missing, decoded)
            is_new = np.ones(len(of_block), np.bool_) if held is None else held.not_augmented
            # The cached and the new decoded values together are the input of `augment`.
            if held is not None:
                decoded = _filled([held.decoded[row] for row in np.flatnonzero(is_new).tolist()], decoded)
            new = of_block[is_new]
            with clock.augmenting(len(new)):
                augmented = self.augment(decoded, new, generator)
            if keep is not None and augmented:
                keep("augmented", new, augmented)
            if held is not None:
                augmented = _filled(held.augmented, augmented)
            # The time counts as augmenting, but no further sample was augmented.
            with clock.augmenting(0):
                blocks.append(self._combine(augmented, partial(_stack, last=len(keys) <= BLOCK), of_block))
        return (
            blocks[0]
            if len(blocks) == 1
            else self._combine(blocks, _concatenate, keys[::BLOCK], lambda block: _samples_of(block, 0, 1)[0])
        )

    def _samples(
        self, payloads: Payloads, rows: Int64Array | None, generator: torch.Generator | None
    ) -> Callable[[int, int], Iterable[Any]]:
        """Return a function of (start, stop) that returns inputs of `decode`: payloads, or rows of `decode_batch`. `start` and `stop` count only the
        samples at `rows`; None: all samples."""
        if self._parse or self._images:
            starts, stops = payloads.offsets[:-1], payloads.offsets[1:]
            return partial(_views, payloads.data, *((starts, stops) if rows is None else (starts[rows], stops[rows])))
        if rows is not None and not len(rows):
            return lambda start, stop: ()
        missing = payloads if rows is None or len(rows) == len(payloads) else select_payloads(payloads, rows)
        return partial(_samples_of, self.decode_batch(missing, generator))

    def columns(self, payloads: Payloads, clock: PreparationClock) -> ReadColumns | None:
        """Return the columns of a batch as the section `preprocessing` declares them; None without this section. The offsets of `payloads` begin with
        0. The columns do not depend on the statistics.

        Thread-safe. Args: clock: receives the time. Raises: DataError: a payload does not have these columns. The message names the sample.
        """
        if self._columns is None or self._kinds is None:
            return None
        with clock.decoding(0):
            whole, ends = payloads.data.tobytes(), payloads.offsets.tolist()
            rows = [whole[start:end] for start, end in pairwise(ends)]
            try:
                return ReadColumns.of(pa.RecordBatch.from_pydict(self._columns.parse(rows)), self._kinds)
            except BadRowError as error:
                raise self._bad_sample(payloads.keys, error.row, error.what) from error

    def decode(self, samples: Iterable[Any], keys: Int64Array, generator: torch.Generator | None = None) -> list[Any]:
        """Parse `samples`, which are payloads or rows of `decode_batch`. The same payload always gives the same result.

        Args: keys: keys of the samples, int64 (n,), for messages. Raises: UserCodeError: a function fails. The message names the sample.
        """
        return self._apply(self._decoding, self._decoded_images(samples, keys), keys, generator)

    def _decoded_images(self, samples: Iterable[Any], keys: Int64Array) -> Iterable[Any]:
        """Return the images of payloads; without a built-in decoder, return `samples`. Raises: DataError: a payload is not an image."""
        if self._images is None:
            return samples
        images = list[torch.Tensor]()
        for payload in samples:
            try:
                images.append(self._images.decode(payload))
            except ValueError as error:
                raise self._bad_sample(keys, len(images), str(error)) from error
        return images

    def _pixels(self, data: Data, keys: Int64Array) -> torch.Tensor:
        """Return images of a batch after the transformations. Raises UserCodeError if they are no uint8 pixels any more."""
        assert self._images is not None
        channels, wanted = self._images.shape[0], f"uint8 (n, {self._images.shape[0]}, height, width)"
        if not isinstance(data, torch.Tensor) or data.dtype != torch.uint8 or data.dim() != 4 or data.shape[1] != channels:
            found = f"{_describe(data)} of {data.dtype}" if isinstance(data, torch.Tensor) else _describe(data)
            raise UserCodeError(
                f"transformations of decoded images must return their pixels, {wanted} for a batch, because `decode.image.normalize` follows; for "
                f"{self._name_batch(keys)}, the batch is {found}"
            )
        return data

    def augment(self, samples: list[Any], keys: Int64Array, generator: torch.Generator | None = None) -> list[Any]:
        """Turn parsed `samples` into model inputs, with new random numbers for each use. Args and errors as for `decode`."""
        return self._apply(self._augmenting, samples, keys, generator)

    def decode_batch(self, payloads: Payloads, generator: torch.Generator | None = None) -> Data:
        """Parse a whole batch at once, before `decode`: by layout or by the batch parser.

        Args: payloads: payloads of n samples. generator: as for `decode`. Returns: a tensor (n, …), or a tuple or dict of such tensors; (n, 0) if
        samples are rows of columns.
        Raises: DataError: a payload is too short for the layout. UserCodeError: the parser fails or returns other shapes.
        """
        if self._columns is not None:
            return torch.empty(len(payloads), 0)
        if self._layout:
            return from_layout(self._layout, payloads, self._dataset)
        assert self._parse_batch
        data = self._parse_batch(lambda: self._name_batch(payloads.keys), payloads.data, payloads.offsets, generator=generator)
        data = as_tensor(data) if isinstance(data, np.ndarray) else data
        parts = _parts(data)
        if not parts or any(not isinstance(part, torch.Tensor) or part.shape[:1] != (len(payloads),) for part in parts):
            raise UserCodeError(
                f"batch_parser_function must return a tensor with {len(payloads)} rows (or a tuple or dict of such) "
                f"for {self._name_batch(payloads.keys)}; it returned {_describe(data)}"
            )
        whole: Data = data
        return whole

    def _apply(
        self, functions: Sequence[UserFunction], samples: Iterable[Any], keys: Int64Array, generator: torch.Generator | None
    ) -> list[Any]:
        for function in functions:
            samples = function.each(partial(self._name_sample, keys), keys, samples, generator)
        return samples if isinstance(samples, list) else list(samples)

    def _name_sample(self, keys: Int64Array, i: int) -> str:
        return f"sample {keys[i]} of dataset '{self._dataset}'"

    def _bad_sample(self, keys: Int64Array, i: int, why: str) -> DataError:
        return DataError(f"{self._name_sample(keys, i)}: {why}", int(keys[i]))

    def _name_batch(self, keys: Int64Array) -> str:
        return f"{len(keys)} samples of dataset '{self._dataset}', the first of which is {keys[0]}"

    def _combine(
        self,
        parts: Sequence[Any],
        function: Callable[[Sequence[Any]], torch.Tensor],
        keys: Int64Array,
        example: Callable[[Any], Any] = lambda part: part,
    ) -> Data:
        """Apply `function` to all parts, which have the same form; if they are tuples or dictionaries, apply it to each column.

        keys: key of the first sample of each part. example: returns the first sample of a part.
        """
        first = parts[0]
        try:
            if isinstance(first, tuple):
                return tuple(function(column) for column in zip(*parts, strict=True))
            return (
                {name: function([part[name] for part in parts]) for name in first} if isinstance(first, dict) else function(parts)
            )
        except (RuntimeError, TypeError, ValueError, KeyError, IndexError) as error:
            raise self._unequal([_describe(example(part)) for part in parts], keys, error) from error

    def _unequal(self, shapes: list[str], keys: Int64Array, error: Exception) -> UserCodeError:
        odd = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
        if odd is None:
            return UserCodeError(
                f"{self._name_batch(keys)} was decoded to {shapes[0]} each, of which no batch can be made: {error}; parser and "
                "transformations must return tensors, or tuples or dicts of tensors"
            )
        return UserCodeError(
            f"{self._name_sample(keys, odd)} was decoded to {shapes[odd]}, {self._name_sample(keys, 0)} to {shapes[0]}: parser and "
            "transformations must return tensors (or tuples or dicts of tensors) of one shape, so that they make a batch"
        )

    def _labels(self, labels: Any, keys: Int64Array, generator: torch.Generator | None) -> torch.Tensor:
        if not all_labelled(labels):
            has = has_label(labels)
            if self._training:
                row = int(np.flatnonzero(~has)[0])
                raise self._bad_sample(keys, row, "it has no label (yet): a training takes samples with labels alone")
            # Readers of samples without labels, such as drift detection, use no labels. The label 0 only protects the user's label function from
            # invalid labels.
            labels = np.where(has, labels, labels.dtype.type(0))
        for row in np.flatnonzero(np.abs(labels) > LARGEST_LABEL)[:1] if labels.dtype.kind == "f" else ():
            raise self._bad_sample(keys, row, f"the label is {labels[row]}, which float32 does not hold; scale the labels")
        tensor = as_tensor(labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64, copy=False))
        if not self._label:
            return self._checked(tensor, keys)
        changed = self._label(lambda: self._name_batch(keys), tensor, generator=generator)
        if not isinstance(changed, torch.Tensor) or changed.shape[:1] != tensor.shape:
            raise UserCodeError(
                f"label_transformer_function must return a tensor with {len(keys)} rows for {self._name_batch(keys)}; "
                f"it returned {_describe(changed)}"
            )
        return self._checked(changed, keys)

    def _checked(self, labels: torch.Tensor, keys: Int64Array) -> torch.Tensor:
        """Return the labels. Raises DataError if a label is not a class of the model. On a GPU such a label would end the process."""
        if self._classes is None or labels.dim() != 1 or labels.is_floating_point():
            return labels
        wrong = (((labels < 0) | (labels > self._classes.largest)) & (labels != self._classes.ignored)).nonzero()
        if len(wrong):
            row = int(wrong[0])
            why = f"{self._classes.why_not(int(labels[row]))}; give the model more classes, or map labels with data.label_transformer_function"
            raise self._bad_sample(keys, row, why)
        return labels


def _filled(values: Sequence[Any], fresh: list[Any]) -> list[Any]:
    """Return the values, with each None replaced by the next new value."""
    if len(fresh) == len(values):
        return fresh
    left = iter(fresh)
    return [next(left) if value is None else value for value in values]


def from_layout(layout: RecordLayout, payloads: Payloads, dataset: str) -> torch.Tensor:
    """Return the array of each sample that `layout` declares: (n, *shape), contiguous and in native byte order. The result is a view of
    `payloads.data` if that buffer is writable and contains only these arrays; otherwise the arrays are copied once.

    Args: dataset: name of the dataset, for messages.
    Raises: DataError: a payload is too short.
    """
    stop, num = layout.offset + layout.num_bytes, len(payloads)
    size = payloads.common_size
    if size is None or size < stop:
        lengths = np.diff(payloads.offsets)
        for row in np.flatnonzero(lengths < stop)[:1]:
            raise DataError(
                f"sample {payloads.keys[row]} of dataset '{dataset}' has {lengths[row]} bytes, but record_layout (dtype {layout.dtype}, "
                f"shape {list(layout.shape)}, offset {layout.offset}) needs {stop}; correct record_layout or the data",
                int(payloads.keys[row]),
            )
    if size is None:
        # The samples have different sizes, so the bytes of each are picked by index.
        array = payloads.data[(payloads.offsets[:-1, None] + layout.offset) + np.arange(layout.num_bytes)]
    else:
        array = np.ascontiguousarray(payloads.data.reshape(num, size)[:, layout.offset : stop])
    kind = np.dtype(layout.dtype)
    shaped = array.view(kind).reshape(num, *layout.shape)
    return as_tensor(shaped.astype(kind.newbyteorder("="), copy=False))


def as_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a tensor over the memory of the array. If this memory is not writable, return a tensor over a copy."""
    # PyTorch needs memory that is writable and aligned.
    return torch.from_numpy(array if array.flags.writeable and array.flags.aligned else array.copy())


def _stack(samples: Sequence[Any], last: bool) -> torch.Tensor:
    """Stack all samples in one tensor. The samples are tensors, arrays or numbers of one shape and type."""
    kinds = set(map(type, samples))
    if kinds == {np.ndarray} and len({sample.dtype for sample in samples}) == 1:
        return torch.from_numpy(np.stack(samples))
    tensors = list(samples) if kinds == {torch.Tensor} else [torch.as_tensor(sample) for sample in samples]
    # `_concatenate` copies the blocks of a large batch, so only a final tensor gets shared memory. A given tensor accepts values of one dtype only.
    if not last or get_worker_info() is None or len({tensor.dtype for tensor in tensors}) > 1:
        return torch.stack(tensors)
    return torch.stack(tensors, out=_shared_room((len(tensors), *tensors[0].shape), tensors[0].dtype))


def _shared_room(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Allocate shared memory in a worker process, as torch's own collation does, because a batch in other memory would be copied to shared memory."""
    storage = torch.UntypedStorage._new_shared(math.prod(shape) * dtype.itemsize)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]


def _parts(data: Any) -> list[Any]:
    if isinstance(data, dict):
        return list(data.values())
    return list(data) if isinstance(data, tuple) else [data]


def _views(data: UInt8Array, starts: Int64Array, stops: Int64Array, start: int, stop: int) -> Iterator[memoryview]:
    """Yield the bytes of samples [start, stop). Args: starts, stops: bounds of each sample in `data`."""
    return map(data.data.__getitem__, map(slice, starts[start:stop].tolist(), stops[start:stop].tolist()))


def _samples_of(data: Data, start: int, stop: int) -> list[Any]:
    """Return samples [start, stop) of a batch, one by one."""
    if isinstance(data, torch.Tensor):
        return list(data[start:stop])
    if isinstance(data, tuple):
        return [tuple(part[i] for part in data) for i in range(start, stop)]
    return [{name: part[i] for name, part in data.items()} for i in range(start, stop)]


def _concatenate(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    if get_worker_info() is None or len({part.dtype for part in parts}) > 1:
        return torch.cat(list(parts))
    room = _shared_room((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    return torch.cat(list(parts), out=room)


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_describe(part) for part in value)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_describe(part)}' for name, part in value.items())}}}"
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {list(shape)}" if shape is not None else "")
