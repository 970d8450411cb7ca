"""An encrypted Parquet file is named as what it is, before Arrow is asked for what ends the process."""

from __future__ import annotations

import base64
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from modyn.errors import DataError
from modyn.storage.formats import build_format
from modyn.testing.format_checks import read_file


class Keys(pe.KmsClient):  # type: ignore[misc]
    """A service of keys that keeps nothing secret."""

    def wrap_key(self, key: bytes, master: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, master: str) -> bytes:
        return base64.b64decode(key)


def write_encrypted(path: Path, columns: list[str], *, plaintext_footer: bool) -> None:
    table = pa.table({"x": [1.5, 2.5], "y": [1, 2], "z": [3, 4]})
    how = pe.EncryptionConfiguration(footer_key="k", column_keys={"c": columns}, plaintext_footer=plaintext_footer)
    keys = pe.CryptoFactory(lambda _: Keys()).file_encryption_properties(pe.KmsConnectionConfig(), how)
    with pq.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("columns", [["x"], ["y"], ["z"], ["x", "y", "z"]])
@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_it_is_said_so(tmp_path: Path, columns: list[str], plaintext_footer: bool) -> None:
    path = tmp_path / "a.parquet"
    write_encrypted(path, columns, plaintext_footer=plaintext_footer)
    with pytest.raises(DataError, match=r"a\.parquet is encrypted Parquet, wholly or in some columns, and Modyn has no keys"):
        list(build_format("ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "y"}).index(str(path)))


@pytest.mark.parametrize("num_columns", [1, 2000])
def test_a_footer_of_any_length_is_none_of_an_encrypted_file(tmp_path: Path, num_columns: int) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"y": [1], **{f"x{i}": [2.0] for i in range(num_columns)}}), path)
    built = build_format("ParquetFileWrapper", {"payload_columns": ["x0"], "label_column": "y"})
    assert [label for _, label in read_file(built, path).samples] == [1]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1\xff\xff\xff\x7fPAR1", b"PAR1" + b"\0" * 50 + b"\x10\0\0\0PAR1"])
def test_what_has_no_footer_is_no_parquet(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        list(build_format("ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "y"}).index(str(path)))
