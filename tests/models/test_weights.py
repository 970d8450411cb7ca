"""Weights survive the file bit by bit, and equal weights have equal hashes however they are held."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from random import Random

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor, nn

from modyn.errors import CorruptStateError, InvalidArgumentError
from modyn.models.weights import (
    DTYPE_BITS,
    TensorSpec,
    build_model,
    header_bytes,
    load_weights,
    read_tensors,
    save_weights,
    weights_sha256,
    wire_order,
)

torch.set_num_threads(1)

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2),
]


class Odd(nn.Module):
    """Parameters and buffers of every kind: one of each dtype, without dimensions, empty, tied, not contiguous, not saved."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for dtype in DTYPES:
            values = torch.randint(0, 2, (3, 2), generator=generator)
            self.register_buffer(str(dtype).replace(".", "_"), values.to(dtype))
        self.register_buffer("scalar", torch.tensor(seed + 0.5, dtype=torch.bfloat16))
        self.register_buffer("nothing", torch.empty(0, 4))
        self.register_buffer("transposed", torch.randn(3, 5, generator=generator).T)
        self.register_buffer("forgotten", torch.zeros(1), persistent=False)
        self.weight = nn.Parameter(torch.randn(4, 4, generator=generator))
        self.tied = self.weight
        self.part = nn.Parameter(self.weight.data[1:3])


def test_every_kind_of_tensor_survives(tmp_path: Path) -> None:
    module, other = Odd(0), Odd(1)
    save_weights(module, tmp_path / "w")
    load_weights(other, tmp_path / "w")
    assert other.state_dict().keys() == module.state_dict().keys()
    for name, tensor in module.state_dict().items():
        found = other.state_dict()[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found.contiguous().view(-1).view(torch.uint8), tensor.contiguous().view(-1).view(torch.uint8)), name
    assert other.tied is other.weight


def test_hash_of_our_file_and_of_the_library_s_agree(tmp_path: Path) -> None:
    module = Odd()
    save_weights(module, tmp_path / "w")
    safetensors.torch.save_file(safetensors.torch.load_file(tmp_path / "w"), tmp_path / "v", metadata={"who": "somebody"})
    assert (tmp_path / "v").read_bytes() != (tmp_path / "w").read_bytes()
    assert weights_sha256(tmp_path / "v") == weights_sha256(tmp_path / "w")


def hash_of(weights: dict[str, Tensor], folder: Path) -> str:
    safetensors.torch.save_file(weights, folder / "hashed")
    return weights_sha256(folder / "hashed")


def test_hash_is_what_is_written_down(tmp_path: Path) -> None:
    weights = {"b": torch.arange(3, dtype=torch.int64), "a": torch.tensor(1.5)}
    hashed = b'["a", "F32", []]\n' + struct.pack("<f", 1.5) + b'["b", "I64", [3]]\n' + struct.pack("<3q", 0, 1, 2)
    assert hash_of(weights, tmp_path) == hashlib.sha256(hashed).hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.zeros(2, 3), "c": torch.zeros(1)},
        {"a": torch.zeros(3, 2), "b": torch.zeros(1)},
        {"a": torch.zeros(2, 3, dtype=torch.int32), "b": torch.zeros(1)},
        {"a": torch.ones(2, 3), "b": torch.zeros(1)},
        {"a": torch.zeros(2, 3)},
    ],
)
def test_hash_tells_name_shape_dtype_value_and_number_apart(other: dict[str, Tensor], tmp_path: Path) -> None:
    weights = {"a": torch.zeros(2, 3), "b": torch.zeros(1)}
    assert hash_of(weights, tmp_path) != hash_of(other, tmp_path)
    assert hash_of(weights, tmp_path) == hash_of(dict(reversed(weights.items())), tmp_path)


def test_same_weights_give_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_weights(Odd(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    save_weights(build_model("MLP", {"input_size": 4, "num_classes": 2}), tmp_path / "w")
    other = build_model("LogisticRegression", {"input_size": 4, "num_classes": 2})
    with pytest.raises(InvalidArgumentError, match=r"hidden\.0\.weight"):
        load_weights(other, tmp_path / "w")
    wider = build_model("MLP", {"input_size": 4, "num_classes": 3})
    with pytest.raises(InvalidArgumentError, match=r"output\.weight"):
        load_weights(wider, tmp_path / "w", strict=False)


def test_strict_false_takes_what_fits(tmp_path: Path) -> None:
    source = build_model("MLP", {"input_size": 4, "num_classes": 2})
    save_weights(source, tmp_path / "w")
    target = build_model("MLP", {"input_size": 4, "num_classes": 2, "hidden_sizes": [128, 128]})
    safetensors.torch.save_file({"hidden.0.bias": torch.full((128,), 3.0), "stranger": torch.zeros(1)}, tmp_path / "w")
    load_weights(target, tmp_path / "w", strict=False)
    assert target.state_dict()["hidden.0.bias"].eq(3).all()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.output = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.output.weight = self.table.weight


def test_tied_weights_are_stored_under_both_names_and_stay_tied(tmp_path: Path) -> None:
    source, target = Tied(), Tied()
    save_weights(source, tmp_path / "w")
    assert {spec.name for spec in read_tensors(tmp_path / "w")} == {"table.weight", "output.weight"}
    load_weights(target, tmp_path / "w")
    assert target.output.weight is target.table.weight
    assert torch.equal(target.table.weight, source.table.weight)


def test_state_that_is_not_a_tensor_is_refused(tmp_path: Path) -> None:
    class Extra(nn.Module):
        def get_extra_state(self) -> int:
            return 3

    with pytest.raises(InvalidArgumentError, match="'_extra_state'"):
        save_weights(Extra(), tmp_path / "w")


LAYOUTS = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__"),
        st.sampled_from(sorted(name for name, bits in DTYPE_BITS.items() if bits >= 8)),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
    ),
    max_size=6,
    unique_by=lambda item: item[0],
).map(lambda items: wire_order(TensorSpec(*item) for item in items))


@given(LAYOUTS, st.randoms(use_true_random=False))
def test_what_is_written_by_hand_is_what_the_library_reads(
    tmp_path_factory: pytest.TempPathFactory, layout: object, random: object
) -> None:
    assert isinstance(random, Random)
    assert isinstance(layout, tuple)
    path = tmp_path_factory.mktemp("w") / "w"
    path.write_bytes(header_bytes(layout) + b"".join(random.randbytes(spec.num_bytes) for spec in layout))
    assert tuple(read_tensors(path)) == layout or sum(spec.num_bytes == 0 for spec in layout)
    assert set(read_tensors(path)) == set(layout)
    with safe_open(path, "pt") as opened:
        assert set(opened.keys()) == {spec.name for spec in layout}
        for spec in layout:
            assert tuple(opened.get_slice(spec.name).get_shape()) == spec.shape
            assert opened.get_slice(spec.name).get_dtype() == spec.dtype
            if not spec.dtype.startswith(("F8_E8", "F8_E4M3FNUZ", "F8_E5M2FNUZ")):
                assert opened.get_tensor(spec.name).shape == spec.shape


def broken(header: object, tail: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + tail


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        (10**12).to_bytes(8, "little") + b"{}",
        broken(b"not json"),
        broken(b"\xff\xfe"),
        broken([1, 2]),
        broken({"a": 3}),
        broken({"a": {"dtype": "F32", "shape": [1]}}, b"1234"),
        broken({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        broken({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234"),
        broken({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"1234"),
        broken({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"),
        broken({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678"),
        broken({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"123"),
        broken({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345"),
        broken({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in "ab"}, b"1234"),
        broken({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 2**82]}}, b"1234"),
        broken(b"[" * 100_000),
    ],
)
def test_a_broken_file_is_told_as_such(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(CorruptStateError, match="/w"):
        read_tensors(tmp_path / "w")
    with pytest.raises(CorruptStateError, match="/w"):
        load_weights(nn.Linear(1, 1), tmp_path / "w")
