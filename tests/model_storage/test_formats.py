"""Every format gives back the weights that it was given, of any dtype, and runs nothing that it reads."""

from __future__ import annotations

import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from modyn.errors import CorruptStateError, InvalidArgumentError
from modyn.model_storage.compression import compress, decompress
from modyn.model_storage.formats import MODEL_FORMATS, FullModelFormat
from modyn.model_storage.section import Algorithm
from modyn.models.weights import (
    DTYPE_BITS,
    Layout,
    TensorSpec,
    header_bytes,
    load_weights,
    read_statistics,
    read_tensors,
    save_weights,
    weights_sha256,
    wire_order,
)
from modyn.zstd import zstd

FORMATS = ["BinaryFullModel", "PyTorchFullModel", "SafetensorsFullModel"]
ALGORITHMS: list[Algorithm | None] = [None, "ZIP_DEFLATED", "zstd"]

LAYOUTS = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__"),
        st.sampled_from(sorted(name for name, bits in DTYPE_BITS.items() if bits >= 8)),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    max_size=6,
    unique_by=lambda item: item[0],
).map(lambda items: wire_order(TensorSpec(*item) for item in items))


def make(id_: str) -> FullModelFormat:
    kind = MODEL_FORMATS.get(id_)
    return kind(kind.Config())


def write(path: Path, layout: Layout, random: Random) -> None:
    path.write_bytes(header_bytes(layout) + b"".join(random.randbytes(spec.num_bytes) for spec in layout))


def test_registry_is_the_explicit_list() -> None:
    assert [id_ for id_ in MODEL_FORMATS if MODEL_FORMATS.plugins[id_].distribution == "modyn"] == FORMATS


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("id_", FORMATS)
@given(layout=LAYOUTS, random=st.randoms(use_true_random=False))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, id_: str, algorithm: Algorithm | None, layout: Layout, random: Random
) -> None:
    folder = tmp_path_factory.mktemp("f")
    put, encoded, packed, unpacked, got = (folder / name for name in ("put", "encoded", "packed", "unpacked", "got"))
    write(put, layout, random)
    before = put.read_bytes()
    make(id_).encode(put, encoded)
    if algorithm is None:
        unpacked = encoded
    else:
        compress(encoded, packed, algorithm)
        decompress(packed, unpacked, algorithm, encoded.stat().st_size)
        assert unpacked.read_bytes() == encoded.read_bytes()
    make(id_).decode(unpacked, layout, got)
    assert weights_sha256(got) == weights_sha256(put)
    assert put.read_bytes() == before
    make(id_).encode(put, folder / "again")
    assert (folder / "again").read_bytes() == encoded.read_bytes()


TENSORS = {
    **{
        str(dtype): torch.randint(0, 2, (2, 3)).to(dtype)
        for dtype in (
            *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32),
            *(torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
            *(torch.float8_e4m3fn, torch.float8_e5m2),
        )
    },
    "scalar": torch.tensor(3.5, dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "layer.0.größe": torch.randn(70, 3, 2),
}


@pytest.mark.parametrize("mapped", [False, True])
def test_torch_reads_a_pytorch_model_without_running_code(tmp_path: Path, mapped: bool) -> None:
    save_file(TENSORS, tmp_path / "put")
    make("PyTorchFullModel").encode(tmp_path / "put", tmp_path / "model.pt")
    found = torch.load(tmp_path / "model.pt", weights_only=True, mmap=mapped)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (found[name].dtype, found[name].shape, found[name].stride()) == (tensor.dtype, tensor.shape, tensor.stride()), name
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def test_every_format_gives_torch_the_same_weights(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "put")
    layout = wire_order(read_tensors(tmp_path / "put"))
    for id_ in FORMATS:
        make(id_).encode(tmp_path / "put", tmp_path / f"{id_}.encoded")
        make(id_).decode(tmp_path / f"{id_}.encoded", layout, tmp_path / f"{id_}.got")
        assert weights_sha256(tmp_path / f"{id_}.got") == weights_sha256(tmp_path / "put")
        found = load_file(tmp_path / f"{id_}.got")
        assert all(
            torch.equal(found[name].reshape(-1).view(torch.uint8), t.reshape(-1).view(torch.uint8)) for name, t in TENSORS.items()
        )


def test_raw_weights_are_smaller_than_any_other(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "put")
    make("BinaryFullModel").encode(tmp_path / "put", tmp_path / "raw")
    assert (tmp_path / "raw").stat().st_size == 24 + sum(tensor.nbytes for tensor in TENSORS.values())


class Hostile:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


def test_a_hostile_pickle_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    layout = (TensorSpec("a", "F32", (2,)),)
    write(tmp_path / "put", layout, Random(0))
    with zipfile.ZipFile(tmp_path / "hostile.pt", "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(Hostile(), protocol=2))
        archive.writestr("model/version", b"3\n")
        archive.writestr("model/data/0", b"12345678")
    make("PyTorchFullModel").decode(tmp_path / "hostile.pt", layout, tmp_path / "got")
    assert (tmp_path / "got").read_bytes().endswith(b"12345678")
    with pytest.raises(pickle.UnpicklingError, match="Weights only"):
        torch.load(tmp_path / "hostile.pt", weights_only=True)
    assert not Path("executed").exists()
    pickle.loads(pickle.dumps(Hostile()))  # The pickle is hostile indeed.
    assert Path("executed").exists()


def test_a_dtype_that_torch_cannot_load_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "put", (TensorSpec("odd", "F4", (4,)),), Random(0))
    with pytest.raises(InvalidArgumentError, match="F4 of tensor 'odd'"):
        make("PyTorchFullModel").encode(tmp_path / "put", tmp_path / "encoded")


@pytest.mark.parametrize("algorithm", ["ZIP_DEFLATED", "zstd"])
def test_a_bomb_is_stopped_at_the_size_that_went_in(tmp_path: Path, algorithm: Algorithm) -> None:
    (tmp_path / "plain").write_bytes(bytes(50_000_000))
    compress(tmp_path / "plain", tmp_path / "bomb", algorithm)
    with pytest.raises(CorruptStateError, match="more than the 1000 bytes"):
        decompress(tmp_path / "bomb", tmp_path / "out", algorithm, 1000)
    assert (tmp_path / "out").stat().st_size <= 2_000_000


def test_a_flipped_bit_of_a_zstd_file_is_found_or_changes_nothing(tmp_path: Path) -> None:
    """Text that does not compress counts too: without a checksum its damage would go unnoticed."""
    plain = Random(0).randbytes(60) + bytes(60)
    (tmp_path / "plain").write_bytes(plain)
    compress(tmp_path / "plain", tmp_path / "packed", "zstd")
    packed = (tmp_path / "packed").read_bytes()
    for place in range(len(packed)):
        flipped = bytearray(packed)
        flipped[place] ^= 4
        (tmp_path / "flipped").write_bytes(flipped)
        (tmp_path / "out").unlink(missing_ok=True)
        with suppress(CorruptStateError):
            decompress(tmp_path / "flipped", tmp_path / "out", "zstd", len(plain))
            assert (tmp_path / "out").read_bytes() == plain, place


def test_a_zstd_file_of_another_library_is_unpacked(tmp_path: Path) -> None:
    """Modyn wrote it with the package zstandard 0.25, which states the size in the frame."""
    (tmp_path / "packed").write_bytes(bytes.fromhex("28b52ffd6020027d000040776569676874732001001557152e"))
    decompress(tmp_path / "packed", tmp_path / "plain", "zstd", 800)
    assert (tmp_path / "plain").read_bytes() == b"weights " * 100


def test_a_zstd_file_that_wants_much_memory_is_refused(tmp_path: Path) -> None:
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 30})
    (tmp_path / "greedy").write_bytes(compressor.compress(bytes(10_000_000)) + compressor.flush())
    with pytest.raises(CorruptStateError, match="cannot be unpacked"):
        decompress(tmp_path / "greedy", tmp_path / "out", "zstd", 10_000_000)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("id_", FORMATS)
@given(statistics=st.binary(min_size=1, max_size=300))
def test_statistics_of_preprocessing_are_part_of_a_version(
    id_: str, algorithm: Algorithm | None, statistics: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every format returns the statistics with the weights, and the hash covers them."""
    folder = tmp_path_factory.mktemp("model")
    paths = [folder / name for name in ("sent", "encoded", "packed", "unpacked", "wire", "without")]
    sent, encoded, packed, unpacked, wire, without = paths
    network = torch.nn.Linear(3, 2)
    save_weights(network, sent, statistics)
    save_weights(network, without)
    make(id_).encode(sent, encoded)
    if algorithm is not None:
        compress(encoded, packed, algorithm)
        decompress(packed, unpacked, algorithm, encoded.stat().st_size)
    make(id_).decode(encoded if algorithm is None else unpacked, wire_order(read_tensors(sent)), wire)
    assert read_statistics(wire) == statistics
    assert read_statistics(without) is None
    assert weights_sha256(wire) == weights_sha256(sent) != weights_sha256(without)
    loaded = torch.nn.Linear(3, 2)
    load_weights(loaded, wire)
    assert torch.equal(loaded.weight, network.weight)
