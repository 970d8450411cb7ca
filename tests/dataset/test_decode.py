"""User functions run where they may, and their errors name function, sample and line. Layouts are exact."""

from __future__ import annotations

import datetime as dt
import io
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modyn.dataset.chunks import no_payloads
from modyn.dataset.code.functions import compile_function, compile_transformation
from modyn.dataset.code.user_code import EXTRAS
from modyn.dataset.config import DataConfig, RecordLayout
from modyn.dataset.decode import BLOCK, BatchPipeline
from modyn.errors import ConfigError, DataError, UserCodeError
from modyn.models.classes import LabelClasses
from modyn.storage.model.samples import Payloads


def payloads(*parts: bytes, first_key: int = 0, dtype: str = "int64") -> Payloads:
    offsets = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    keys = np.arange(first_key, first_key + len(parts))
    return Payloads(keys, (keys % 3).astype(dtype), np.frombuffer(b"".join(parts), np.uint8), offsets)


def pipeline(training: bool = True, **fields: Any) -> BatchPipeline:
    return BatchPipeline(DataConfig(dataset_id="d", **fields), training=training)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i2", ">i8", "u1", "f8", "f2", "bool"])
@pytest.mark.parametrize("even", [True, False])
def test_layout_reads_any_type_byte_order_shape_and_offset(dtype: str, even: bool) -> None:
    expected = np.arange(24).reshape(4, 2, 3).astype(dtype)
    arrived = payloads(*[b"xyz" + row.tobytes() + b"t" * (1 if even else i) for i, row in enumerate(expected)])
    run = pipeline(record_layout=RecordLayout(dtype=dtype, shape=(2, 3), offset=3)).run
    data, labels = run(arrived)
    assert isinstance(data, torch.Tensor)
    assert np.array_equal(data.numpy(), expected.astype(np.dtype(dtype).newbyteorder("=")))
    assert labels.tolist() == [0, 1, 2, 0]
    data[0] = 0  # writable: not a view of the wire's buffer


def test_payloads_that_are_the_array_are_not_copied() -> None:
    """What was gathered for a batch is its own; what came over the wire may not be written to, and is copied."""
    data = np.arange(6, dtype="<f4").view(np.uint8)
    arrived = Payloads(np.arange(3), np.arange(3), data, np.arange(4) * 8, 8)
    run = pipeline(record_layout=RecordLayout(dtype="float32", shape=(2,))).run
    tensor, labels = run(arrived)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert np.shares_memory(tensor.numpy(), data)
    assert np.shares_memory(labels.numpy(), arrived.labels)
    data.flags.writeable = False
    copied, _ = run(arrived)
    assert isinstance(copied, torch.Tensor)
    assert not np.shares_memory(copied.numpy(), data)
    assert torch.equal(copied, tensor)


def test_a_record_that_is_too_short_is_named() -> None:
    with pytest.raises(DataError, match=r"sample 1 of dataset 'd' has 3 bytes.* needs 4"):
        pipeline(record_layout=RecordLayout(dtype="f4")).run(payloads(b"1234", b"123"))


def test_order_of_parser_and_transformations() -> None:
    fields: dict[str, Any] = {
        "bytes_parser_function": "def bytes_parser_function(x: memoryview):\n    return bytes(x).decode()\n",
        "tokenizer": "operator:methodcaller('split')",
        "deterministic_transformations": ["lambda words: words[0]"],
        "transformations": ["lambda x: float(x)", "lambda x: x + 1"],
        "random_transformations": ["lambda x: x * 10"],
    }
    arrived = payloads(b"1 a", b"2 b")
    assert pipeline(**fields).run(arrived)[0].tolist() == [20.0, 30.0]  # type: ignore[union-attr]
    assert pipeline(training=False, **fields).run(arrived)[0].tolist() == [2.0, 3.0]  # type: ignore[union-attr]


def make_tokenizer(offset: int = 0) -> Callable[[str], torch.Tensor]:
    """A factory."""
    return lambda text: torch.tensor([len(word) + offset for word in text.split()])


def lengths(text: str) -> torch.Tensor:
    """A function for one sample."""
    return make_tokenizer()(text)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [("make_tokenizer", [1, 3]), ("make_tokenizer()", [1, 3]), ("make_tokenizer(offset=2)", [3, 5]), ("lengths", [1, 3])],
)
def test_a_tokenizer_is_the_product_of_its_factory(tokenizer: str, expected: list[int]) -> None:
    parser = "def bytes_parser_function(x: memoryview):\n    return bytes(x).decode()\n"
    found, _ = pipeline(bytes_parser_function=parser, tokenizer=f"{__name__}:{tokenizer}").run(payloads(b"a bcd"))
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == [expected]


def test_tuples_and_dicts_of_tensors() -> None:
    arrived = payloads(b"\x01", b"\x02")
    pair = "def bytes_parser_function(x):\n    return torch.tensor(x[0]), np.full(2, x[0])\n"
    data, _ = pipeline(bytes_parser_function=pair).run(arrived)
    assert isinstance(data, tuple)
    assert data[0].tolist() == [1, 2]
    assert data[1].shape == (2, 2)
    named = "def batch_parser_function(data, offsets):\n    return {'a': torch.tensor(data.tolist())}\n"
    data, _ = pipeline(batch_parser_function=named, transformations=["lambda s: {'b': s['a'] + 1}"]).run(arrived)
    assert isinstance(data, dict)
    assert data["b"].tolist() == [2, 3]


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, 2 * BLOCK + 1])
def test_blocks_make_one_batch(size: int) -> None:
    arrived = payloads(*[i.to_bytes(4, "little") for i in range(size)])
    parser = "def bytes_parser_function(x):\n    n = int.from_bytes(x, 'little')\n    return {'a': torch.tensor(n), 'b': np.full(2, n)}\n"
    data, _ = pipeline(bytes_parser_function=parser).run(arrived)
    assert isinstance(data, dict)
    assert data["a"].tolist() == data["b"][:, 1].tolist() == list(range(size))
    layout = RecordLayout(dtype="<i4")
    data, _ = pipeline(record_layout=layout, transformations=["lambda x: (x, 2 * x)"]).run(arrived)
    assert isinstance(data, tuple)
    assert torch.equal(data[1], 2 * torch.arange(size))


def test_samples_of_different_shape_are_named_across_blocks() -> None:
    arrived = payloads(*[b"x" * (3 if i < BLOCK else 4) for i in range(BLOCK + 2)], first_key=70)
    parser = "def bytes_parser_function(x):\n    return torch.zeros(len(x))\n"
    with pytest.raises(UserCodeError, match=rf"sample {BLOCK + 70} .* of shape \[4\], sample 70 .* to .* shape \[3\]"):
        pipeline(bytes_parser_function=parser).run(arrived)


def test_samples_that_make_no_tensors_are_refused() -> None:
    """All are alike, so their shapes are not at fault."""
    parser = "def bytes_parser_function(x):\n    return bytes(x).decode()\n"
    with pytest.raises(UserCodeError, match=r"was decoded to a str each, of which no batch can be made: .*str"):
        pipeline(bytes_parser_function=parser).run(payloads(b"one", b"two"))


def test_labels_are_transformed_as_a_batch_and_floats_become_float32() -> None:
    layout = RecordLayout(dtype="u1")
    source = "def label_transformer_function(labels):\n    return (labels > 0).long()\n"
    arrived = payloads(b"1", b"2", b"3")
    assert pipeline(record_layout=layout, label_transformer_function=source).run(arrived)[1].tolist() == [
        0,
        1,
        1,
    ]
    floats = payloads(b"1", b"2", dtype="float64")
    assert pipeline(record_layout=layout).run(floats)[1].dtype == torch.float32


@pytest.mark.parametrize("label", [1e39, -1e39])
def test_a_label_beyond_float32_is_a_bad_sample(label: float) -> None:
    """In training, the label would be infinite, and the model would diverge."""
    arrived = payloads(b"1", b"2", b"3", dtype="float64")
    arrived.labels[1] = label
    with pytest.raises(DataError, match=r"sample 1 of dataset 'd': the label is -?1e\+39, which float32 does not hold") as caught:
        pipeline(record_layout=RecordLayout(dtype="u1")).run(arrived)
    assert caught.value.sample_key == 1


def test_nothing_to_decode() -> None:
    data, labels = pipeline(record_layout=RecordLayout(dtype="u1")).run(no_payloads())
    assert len(data) == len(labels) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {
                "bytes_parser_function": "def helper(x):\n    return 1 / 0\n\ndef bytes_parser_function(x):\n    return helper(x)\n"
            },
            r"^bytes_parser_function failed for sample 5 of dataset 'd': ZeroDivisionError: .* at line 2: `return 1 / 0`$",
        ),
        (
            {"bytes_parser_function": "raise ValueError('no')\ndef bytes_parser_function(x): ..."},
            "cannot be defined: ValueError: no at line 1",
        ),
        ({"bytes_parser_function": "json:loads"}, r"bytes_parser_function \(json:loads\) failed for sample 5 .* of .*json"),
        (
            {"bytes_parser_function": "def bytes_parser_function(x):\n    return torch.zeros(x[0])\n"},
            r"sample 6 .* shape \[98\], sample 5",
        ),
        ({"bytes_parser_function": "def bytes_parser_function(x):\n    return None\n"}, "a NoneType"),
        ({"batch_parser_function": "def batch_parser_function(d, o):\n    return d[0]\n"}, r"2 rows .* the first of which is 5"),
        ({"batch_parser_function": "def batch_parser_function(d, o):\n    return d[9]\n"}, "IndexError.* at line 2"),
        (
            {"record_layout": {"dtype": "u1"}, "transformations": ["lambda x: x.nope"]},
            "transformations.0 `lambda x: x.nope` failed for sample 5",
        ),
        (
            {"record_layout": {"dtype": "u1"}, "transformations": ["1 / 0"]},
            "transformations.0 `1 / 0` cannot be made: ZeroDivision",
        ),
        (
            {
                "record_layout": {"dtype": "u1"},
                "label_transformer_function": "def label_transformer_function(x):\n    return x[:1]\n",
            },
            "label_transformer_function must return a tensor with 2 rows",
        ),
    ],
)
def test_errors_in_user_code_name_function_sample_and_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserCodeError, match=message):
        pipeline(**fields).run(payloads(b"a", b"b", first_key=5))


def test_importable_names_with_and_without_arguments() -> None:
    assert compile_transformation("builtins:abs", "t")(str, -1) == 1
    assert compile_transformation("operator:itemgetter(1)", "t")(str, "ab") == "b"
    assert compile_transformation("datetime:date.fromisoformat", "t")(str, "1970-01-02") == dt.date(1970, 1, 2)
    assert compile_function("math:sqrt", "f")(str, 4) == 2
    with pytest.raises(ConfigError, match="cannot import 'no_such_module:f'"):
        compile_function("no_such_module:f", "f")
    with pytest.raises(ConfigError, match="cannot be called"):
        compile_function("math:pi", "f")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "transforms", "no_such_package")
    with pytest.raises(ConfigError, match=r"`transforms.Resize\(2\)` needs no_such_package.* pip install no_such_package"):
        compile_transformation("transforms.Resize(2)", "transformations.0")


def test_images_are_parsed_with_names_that_need_no_import() -> None:
    files = []
    for shade in (10, 200):
        file = io.BytesIO()
        Image.fromarray(np.full((4, 5), shade, np.uint8)).save(file, "PNG")
        files.append(file.getvalue())
    source = "def bytes_parser_function(data):\n    return np.array(Image.open(io.BytesIO(data)), np.float32)[None] / 255\n"
    data, _ = pipeline(bytes_parser_function=source).run(payloads(*files))
    assert isinstance(data, torch.Tensor)
    assert data.shape == (2, 1, 4, 5)
    assert (data[:, 0, 0, 0] * 255).round().tolist() == [10, 200]


def test_threads_do_not_disturb_what_each_other_draw() -> None:
    """The functions draw from the global generators, so batches are made one at a time."""
    parser = "def bytes_parser_function(data):\n    return torch.zeros(1)"
    run = pipeline(bytes_parser_function=parser, random_transformations=("lambda x: x + torch.rand(1)",)).run
    samples = payloads(*[b"x"] * 200)
    expected = [run(samples, seed)[0] for seed in range(4)]
    switches = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda seed: run(samples, seed)[0], [*range(4)] * 4))
    finally:
        sys.setswitchinterval(switches)
    for seed, data in enumerate(found):
        assert isinstance(data, torch.Tensor)
        assert data.tolist() == torch.as_tensor(expected[seed % 4]).tolist()


def test_labels_that_are_not_a_class_are_named_except_the_ignored_one() -> None:
    """Labels are what the function makes of them: here those of the samples, 0 to 2, less 1."""
    config = DataConfig(
        dataset_id="d",
        record_layout=RecordLayout(dtype="u1", shape=(1,)),
        label_transformer_function="def label_transformer_function(labels):\n    return labels - 1",
    )
    run = BatchPipeline(config, training=True, classes=LabelClasses(2, ignored=-1)).run
    assert run(payloads(b"a", b"b", b"c"))[1].tolist() == [-1, 0, 1]
    with pytest.raises(
        DataError, match=r"sample 2 of dataset 'd': the label is 1, and the model has 1 classes \(0 to 0\)"
    ) as caught:
        BatchPipeline(config, training=True, classes=LabelClasses(1, ignored=-1)).run(payloads(b"a", b"b", b"c"))
    assert caught.value.sample_key == 2
    with pytest.raises(DataError, match="sample 0 .*: the label is -1"):
        BatchPipeline(config, training=True, classes=LabelClasses(2, ignored=-100)).run(payloads(b"a", b"b", b"c"))
    assert len(run(payloads(b"a", dtype="float32"))[1]) == 1, "fractions are no classes"


def test_a_negative_label_is_not_a_class_of_a_model_of_a_plug_in() -> None:
    config = DataConfig(
        dataset_id="d",
        record_layout=RecordLayout(dtype="u1", shape=(1,)),
        label_transformer_function="def label_transformer_function(labels):\n    return 10 ** 9 * (labels - 1)",
    )
    run = BatchPipeline(config, training=True, classes=LabelClasses(None, ignored=-100)).run
    assert run(payloads(b"b", b"c", first_key=1))[1].tolist() == [0, 10**9]
    with pytest.raises(DataError, match="sample 0 .*: the label is -1000000000, and classes are whole numbers from 0 on"):
        run(payloads(b"a", b"b", b"c"))
