"""The codec returns values unchanged or refuses them by name; damaged values count as missing."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from modyn._core import checksum
from modyn.cache.sample_codec import Compression, SampleCodec
from modyn.errors import InvalidArgumentError

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
COMPRESSIONS: list[Compression] = ["none", "zstd", "lz4"]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Draw tensors of any bytes, any type and any order of axes."""
    shape, dtype = draw(SHAPES), draw(st.sampled_from(DTYPES))
    size = math.prod(shape) * dtype.itemsize
    content = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8).copy()
    if dtype == torch.bool:
        content &= 1
    tensor = torch.from_numpy(content).view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    return tensor.permute(draw(st.permutations(range(len(shape)))))


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype = np.dtype(draw(st.sampled_from(["?", "<i2", ">i4", "<u8", "<f2", ">f8", "<c8"])))
    shape = draw(SHAPES)
    size = math.prod(shape) * dtype.itemsize
    content = draw(st.binary(min_size=size, max_size=size))
    array = np.frombuffer(bytes(byte & 1 for byte in content) if dtype.kind == "b" else content, dtype).reshape(shape)
    return array.transpose(draw(st.permutations(range(len(shape)))))


LEAVES = st.one_of(
    tensors(), arrays(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.complex_numbers(), st.binary(),
    st.floats(width=32).map(np.float32), st.integers(0, 9).map(np.int64),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda part: st.lists(part, max_size=3).map(tuple) | st.dictionaries(st.text(max_size=3), part, max_size=3),
    max_leaves=5,
)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_equal(one: Any, other: Any) -> None:
    """Assert that both have the same types, shapes, orders of axes and bits."""
    assert type(one) is type(other)
    if isinstance(one, tuple):
        assert len(one) == len(other)
        for part, same in zip(one, other, strict=True):
            assert_equal(part, same)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_equal(one[name], other[name])
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert raw(one) == raw(other)
        if 0 not in one.shape and 1 not in one.shape:
            assert one.stride() == other.stride()
    elif isinstance(one, np.ndarray | np.generic):
        assert (one.dtype.str, one.shape) == (other.dtype.str, other.shape)
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, float | complex):
        assert np.array(one).tobytes() == np.array(other).tobytes()
    else:
        assert one == other


@given(VALUES, st.sampled_from(COMPRESSIONS), st.booleans())
def test_a_value_comes_back_equal_and_may_be_written_to(value: Any, compression: Compression, writable: bool) -> None:
    buffer = SampleCodec(compression).encode(value)
    decoded = SampleCodec().decode(bytearray(buffer) if writable else buffer)
    assert_equal(value, decoded)
    if isinstance(decoded, np.ndarray):
        assert decoded.flags.writeable
    if isinstance(decoded, torch.Tensor):
        decoded.zero_()
        assert_equal(SampleCodec().decode(buffer), value)


@pytest.mark.parametrize("mode", ["L", "LA", "I;16", "RGB", "YCbCr", "HSV", "LAB", "RGBA", "CMYK", "I", "F"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_an_image_comes_back_with_its_pixels(mode: str, compression: Compression) -> None:
    size = len(Image.new(mode, (1, 1)).tobytes())
    image = Image.frombytes(mode, (5, 7), np.random.default_rng(0).bytes(35 * size))
    value = {"image": image, "label": 3}
    back = SampleCodec().decode(SampleCodec(compression).encode(value))
    assert back["label"] == 3
    assert (back["image"].mode, back["image"].size) == (mode, (5, 7))
    assert back["image"].tobytes() == image.tobytes()
    empty = SampleCodec().decode(SampleCodec().encode(Image.new(mode, (0, 3))))
    assert empty.size == (0, 3)


def _of_file(kind: str, **options: Any) -> Image.Image:
    content = io.BytesIO()
    Image.new("RGB", (4, 3)).save(content, kind, **options)
    return Image.open(content)


def _turned() -> Image.Image:
    exif = Image.Exif()
    exif[0x0112] = 6
    return _of_file("JPEG", exif=exif).convert("RGB")


def test_bytes_that_are_shared_are_views() -> None:
    codec = SampleCodec()
    assert bytes(codec.decode(codec.encode(memoryview(b"stored")))) == b"stored"
    buffer = bytearray(codec.encode(torch.zeros(8)))
    codec.decode(buffer).fill_(math.nan)
    assert codec.decode(buffer) is None


def test_what_is_only_a_view_of_its_elements_is_computed() -> None:
    codec = SampleCodec()
    conjugate = torch.tensor([1 + 2j]).conj()
    assert torch.equal(codec.decode(codec.encode(conjugate)), conjugate.resolve_conj())
    assert torch.equal(codec.decode(codec.encode(conjugate.imag)), torch.tensor([-2.0]))
    assert_equal(codec.decode(codec.encode(np.arange(6)[::-2])), np.array([5, 3, 1]))
    assert torch.equal(codec.decode(codec.encode(torch.ones(1, 3).expand(2, 3))), torch.ones(2, 3))


class _Tuple(tuple[int, ...]):
    pass


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "sparse": (
        lambda: torch.eye(2).to_sparse(),
        r"the sample is a sparse tensor \(torch.sparse_coo\); the cache cannot keep it",
    ),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), r"a quantized tensor \(torch.qint8\)"),
    "gradient": (lambda: torch.ones(2, requires_grad=True), "a tensor that requires a gradient"),
    "parameter": (lambda: torch.nn.Parameter(torch.ones(2)), "a Parameter"),
    "device": (lambda: torch.ones(2, device="meta"), "a tensor on the device meta"),
    "strange type": (lambda: torch.ones(2).to(torch.complex32), "a tensor of torch.complex32"),
    "objects": (lambda: np.array([object()]), "a ndarray of dtype object"),
    "text array": (lambda: np.array(["a"]), "a ndarray of dtype <U1"),
    "masked array": (lambda: np.ma.array([1]), "a MaskedArray"),
    "text": (lambda: {"image": torch.ones(1), "mask": (1, "text")}, r"part \['mask'\]\[1\] of the sample is a str"),
    "list": (lambda: [1, 2], "a list"),
    "none": (lambda: None, "a NoneType"),
    "file": (io.BytesIO, "a BytesIO"),
    "palette": (lambda: Image.new("P", (2, 2)), r"an image of mode P \(.* changes it\)"),
    "bits": (lambda: Image.new("1", (2, 2)), "an image of mode 1"),
    "not read yet": (lambda: _of_file("JPEG"), "a JpegImageFile that is not read yet"),
    "transparent": (lambda: _of_file("PNG", transparency=(0, 0, 0)).convert("RGB"), "an image with a transparent colour"),
    "numbers in memory": (lambda: memoryview(b"12345678").cast("q"), "a memoryview"),
    "not contiguous": (lambda: memoryview(b"abcdef")[::2], "a memoryview"),
    "turned": (_turned, "an image that EXIF says to turn"),
    "subclass": (lambda: _Tuple((1,)), "a _Tuple"),
    "name": (lambda: {1: 2}, "a dict with 1, a int, for a name"),
    "large": (lambda: 2**63, r"a whole number beyond 64 bits, 9.223e\+18"),
    "depth": (lambda: _deep(40), "more than 16 tuples and dicts within each other"),
    "names": (lambda: {"n" * 70_000: 1}, "take more than 65,535 bytes"),
}


def _deep(depth: int) -> Any:
    return (_deep(depth - 1),) if depth else 1


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:.*(quantize|ComplexHalf|torch.ao|deprecated|invariant)")
def test_what_cannot_be_kept_is_named(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(InvalidArgumentError, match=message):
        SampleCodec().encode(make())


@given(st.data(), VALUES, st.sampled_from(COMPRESSIONS))
def test_a_damaged_buffer_is_not_found(data: st.DataObject, value: Any, compression: Compression) -> None:
    buffer = bytearray(SampleCodec(compression).encode(value))
    if data.draw(st.booleans()):
        del buffer[data.draw(st.integers(0, len(buffer) - 1)) :]
    else:
        buffer[data.draw(st.integers(0, len(buffer) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert SampleCodec().decode(bytes(buffer)) is None


@given(VALUES, st.sampled_from(COMPRESSIONS))
def test_parts_are_those_of_the_whole(value: Any, compression: Compression) -> None:
    codec = SampleCodec(compression)
    whole, parted = codec.encode(value), codec.encode_parts(value)
    assert (len(parted), bytes(parted)) == (len(whole), whole)
    assert all(len(part) for part in parted.parts())


def test_parts_share_the_memory_of_the_value() -> None:
    value = {"image": torch.zeros(1000), "label": 1}
    parted = SampleCodec().encode_parts(value)
    value["image"].fill_(1)  # type: ignore[attr-defined]
    assert_equal(SampleCodec().decode(bytes(parted)), {"image": torch.ones(1000), "label": 1})


@given(st.lists(st.binary(max_size=80)))
def test_a_checksum_is_of_all_parts_together(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    assert checksum(*parts) == checksum(whole) == checksum(*(bytearray(part) for part in parts))
    assert checksum(np.frombuffer(whole, np.uint8)) == checksum(memoryview(whole)) == checksum(whole, b"")


def test_a_checksum_needs_memory_in_order() -> None:
    assert checksum() == checksum(b"") == 0xEF46DB3751D8E999
    with pytest.raises(BufferError):
        checksum(memoryview(bytes(8))[::2])
    with pytest.raises(TypeError):
        checksum(b"", "text")  # type: ignore[arg-type]


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_not_a_sample(content: bytes) -> None:
    assert SampleCodec().decode(content) is None


def test_another_version_is_not_found() -> None:
    buffer = bytearray(SampleCodec().encode(1))
    buffer[11] += 1
    buffer[:8] = checksum(buffer[8:]).to_bytes(8, "little")
    assert SampleCodec().decode(buffer) is None
    assert SampleCodec().decode(None) is None


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compression_makes_smaller(compression: Compression) -> None:
    assert len(SampleCodec(compression).encode(torch.zeros(1000))) < 200
