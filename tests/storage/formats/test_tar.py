"""Tar shards, against Python's tarfile module."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.errors import ConfigError, DataError
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FileFormat
from modyn.testing.format_checks import read_file
from tests.support.format_examples import add_member

Members = Sequence[tuple[str, bytes]]


def shards(timestamp_source: str = "", **config: object) -> FileFormat:
    return build_format("TarFileWrapper", {"payload_extension": "jpg", **config}, timestamp_source)


def write_tar(
    path: Path, members: Members, mode: str = "w", tar_format: int = tarfile.PAX_FORMAT, encoding: str = "utf-8"
) -> None:
    with tarfile.open(path, mode, format=tar_format, encoding=encoding) as archive:  # type: ignore[call-overload]
        for name, content in members:
            add_member(archive, name, content)


def sample_members(samples: Sequence[tuple[bytes, int]], prefix: str = "") -> list[tuple[str, bytes]]:
    return [
        (f"{prefix}{i:05}.{extension}", content)
        for i, (payload, label) in enumerate(samples)
        for extension, content in (("jpg", payload), ("cls", str(label).encode()))
    ]


@settings(max_examples=2 * settings().max_examples)
@given(
    names=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0./"), min_size=1, max_size=130), unique=True, max_size=6
    ),
    folder=st.sampled_from(["", "train/", "./", "a.b/c/", "x" * 120 + "/"]),
    payloads=st.lists(st.binary(min_size=1, max_size=1100), min_size=6, max_size=6),
    tar_format=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    label_first=st.booleans(),
)
def test_members_are_those_that_python_reads(
    tmp_path_factory: pytest.TempPathFactory,
    names: list[str],
    folder: str,
    payloads: list[bytes],
    tar_format: int,
    label_first: bool,
) -> None:
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    members: list[tuple[str, bytes]] = []
    for i, name in enumerate(names):
        pair = [(f"{folder}{name}.jpg", payloads[i]), (f"{folder}{name}.cls", str(i).encode())]
        members += [*(pair[::-1] if label_first else pair), (f"{folder}{name}.seg.png", b"other")]
    write_tar(path, members, tar_format=tar_format)
    with tarfile.open(path) as archive:
        expected = [(member.offset_data, member.size) for member in archive if member.name.endswith(".jpg")]
    found = [
        place
        for chunk in shards().index(str(path))
        for place in zip(chunk.offsets.tolist(), np.asarray(chunk.lengths).tolist(), strict=True)
    ]
    assert found == expected
    assert read_file(shards(), path).samples == [(payloads[i], i) for i in range(len(names))]


def test_a_member_that_is_not_a_sample_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    (tmp_path / "README").write_text("x")
    with tarfile.open(path, "w") as archive:
        archive.add(tmp_path, "folder", recursive=False)
        archive.add(tmp_path / "README", "README")
        archive.add(tmp_path / "README", "folder/.hidden.jpg")
        add_member(archive, "link.jpg", b"", type=tarfile.SYMTYPE, linkname="README")
        for name, content in sample_members([(b"p", 1)]):
            add_member(archive, name.upper(), content)
    assert read_file(shards(payload_extension=".JPG"), path).samples == [(b"p", 1)]


def test_a_global_header_and_sizes_in_base_256_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "for all"}) as archive:
        for name, content in sample_members([(b"p" * 700, 1), (b"q", 2)]):
            add_member(archive, name, content, pax_headers={"mtime": "1.5"})
    assert read_file(shards(), path).samples == [(b"p" * 700, 1), (b"q", 2)]
    archive_bytes = bytearray(path.read_bytes())
    with tarfile.open(path) as archive:
        at = archive.getmembers()[0].offset_data - 512
    archive_bytes[at + 124 : at + 136] = b"\x80" + (700).to_bytes(11, "big")
    archive_bytes[at + 148 : at + 156] = b" " * 8
    archive_bytes[at + 148 : at + 156] = b"%06o\0 " % sum(archive_bytes[at : at + 512])
    path.write_bytes(archive_bytes)
    assert read_file(shards(), path).samples == [(b"p" * 700, 1), (b"q", 2)]


def test_labels_and_times_in_json_members(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    members = [
        ("a.jpg", b"p"),
        ("a.json", b'{"m": {"y": 0.5, "t": "1970-01-02"}}'),
        ("b.json", b'{"m": {"y": 2, "t": 5}}'),
        ("b.jpg", b"q"),
    ]
    write_tar(path, members)
    found = read_file(shards("field:m.t", label_extension="json", label_field="m.y", label_type="float"), path)
    assert (found.samples, found.timestamps) == ([(b"p", 0.5), (b"q", 2.0)], [86400, 5])


@pytest.mark.parametrize("compression", ["gz", "bz2", "xz"])
def test_a_compressed_archive_is_refused(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, sample_members([(b"p", 1)]), f"w:{compression}")
    with pytest.raises(DataError, match="is compressed with .*; unpack it"):
        read_file(shards(), path)


def test_an_archive_cut_anywhere_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    samples = [(b"p" * 600, 1), (b"q", 2)]
    write_tar(path, sample_members(samples), tar_format=tarfile.USTAR_FORMAT)
    content = path.read_bytes()
    # After a whole sample the archive might as well end, if it said so.
    for size in [*range(0, 4608 + 512, 64), 4608 + 511]:
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match=r"a\.tar, byte (\d+): (the archive|the sample .* has no member)") as caught:
            read_file(shards(), path)
        place = int(caught.value.message.split("byte ")[1].split(":")[0])
        assert place <= size
    for size in (4608 + 512, 4608 + 1024):
        path.write_bytes(content[:size])
        assert read_file(shards(), path).samples == samples


def test_samples_that_would_be_missing_are_told(tmp_path: Path) -> None:
    one, two, both = tmp_path / "1.tar", tmp_path / "2.tar", tmp_path / "both.tar"
    write_tar(one, sample_members([(b"p", 1)]))
    write_tar(two, sample_members([(b"q", 2)]))
    both.write_bytes(one.read_bytes() + two.read_bytes())
    with pytest.raises(DataError, match="byte 10240: there is data after the end of the archive"):
        read_file(shards(), both)
    with tarfile.open(one, "a") as archive:
        add_member(archive, "copy.jpg", b"", type=tarfile.LNKTYPE, linkname="00000.jpg")
    with pytest.raises(DataError, match=r"byte 2048: 'copy\.jpg' is stored as a link .* --hard-dereference"):
        read_file(shards(), one)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (b"10 path=a\n0 a=b\n", "this pax header is damaged"),
        (b"6 a=b\n4 a=\n" + b"9" * 5000 + b" a=b\n", "this pax header is damaged"),
        (b"14 size=-1024\n", "the size in its pax header is not a number"),
    ],
)
def test_a_damaged_pax_header_is_told(tmp_path: Path, records: bytes, message: str) -> None:
    path = tmp_path / "a.tar"
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(records)
    write_tar(path, sample_members([(b"p", 1)]), tar_format=tarfile.USTAR_FORMAT)
    path.write_bytes(header.tobuf() + records.ljust(-(-len(records) // 512) * 512, b"\0") + path.read_bytes())
    with pytest.raises(DataError, match=message):
        read_file(shards(), path)


def test_a_negative_size_is_not_a_number(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, sample_members([(b"p", 1)]), tar_format=tarfile.USTAR_FORMAT)
    content = bytearray(path.read_bytes())
    content[1024 + 124 : 1024 + 136] = b"-0000002000\0"
    content[1024 + 148 : 1024 + 156] = b" " * 8
    content[1024 + 148 : 1024 + 156] = b"%06o\0 " % sum(content[1024:1536])
    path.write_bytes(content)
    with pytest.raises(DataError, match="a field of it is not a number"):
        read_file(shards(), path)


def test_a_damaged_header_in_the_middle_is_not_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, sample_members([(b"p", 1), (b"q", 2)]), tar_format=tarfile.USTAR_FORMAT)
    content = bytearray(path.read_bytes())
    content[2048 + 10] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="byte 2048: this is not a header of a tar archive: its checksum is wrong"):
        read_file(shards(), path)
    path.write_bytes(b"no archive at all" * 100)
    with pytest.raises(DataError, match="byte 0: this is not a header of a tar archive"):
        read_file(shards(), path)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a.jpg", b"p")], r"byte 0: the sample 'a' has no member '.cls', only '.jpg'; add it"),
        ([("a.jpg", b"p"), ("b.jpg", b"p"), ("a.cls", b"1")], "the sample 'a' has no member '.cls'"),
        ([("a.cls", b"1"), ("a.txt", b"p")], "has no member '.jpg', only '.cls', '.txt'"),
        (
            [("a.jpg", b"p"), ("a.cls", b"cat")],
            "byte 1536: the label of the sample 'a' cannot be read: 'cat' is not an int64 label",
        ),
        ([("a.jpg", b"p"), ("a.cls", b"9223372036854775808")], "'9223372036854775808' is out of the range of int64"),
        ([("a.jpg", b"p"), ("a.cls", b"1_0")], "'1_0' is not an int64 label"),
        ([("a.jpg", b"p"), ("a.cls", b"1" * (2**20 + 1))], "at most 1048576 are allowed"),
    ],
)
def test_incomplete_samples_and_bad_labels_are_named(tmp_path: Path, members: Members, message: str) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, members, tar_format=tarfile.USTAR_FORMAT)
    with pytest.raises(DataError, match=message):
        read_file(shards(), path)


@pytest.mark.parametrize(
    ("text", "problem"), [(b"1e400", "out of the range of float64"), (b"nan", "not a float64"), (b"1_0", "not")]
)
def test_float_labels_are_finite_decimal_numbers(tmp_path: Path, text: bytes, problem: str) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, [("a.jpg", b"p"), ("a.cls", text)])
    with pytest.raises(DataError, match=problem):
        read_file(shards(label_type="float"), path)
    write_tar(path, [("a.jpg", b"p"), ("a.cls", b" -1.5e3\n"), ("b.jpg", b"q"), ("b.cls", b"+.5")])
    assert read_file(shards(label_type="float"), path).samples == [(b"p", -1500.0), (b"q", 0.5)]


@pytest.mark.parametrize(
    ("config", "source"),
    [
        ({"payload_extension": ".CLS"}, ""),
        ({}, "field:t"),
        ({}, "column:0"),
        ({"label_field": "a."}, ""),
        ({"label_field": "y"}, "field:3"),
    ],
)
def test_wrong_options_are_refused(config: dict[str, object], source: str) -> None:
    with pytest.raises(ConfigError):
        shards(source, **config)
