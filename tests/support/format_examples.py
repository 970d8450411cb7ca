"""A small file of each file format, and what is to be found in it."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from modyn.testing.format_checks import Sample

SAMPLES: list[Sample] = [(b"one", 1), (b"two", -2), (b"", 3), (b"four four", 2**63 - 1)]
SAME_SIZE: list[Sample] = [(payload.ljust(9), label) for payload, label in SAMPLES]


def csv_rows(samples: Sequence[Sample]) -> bytes:
    return b"".join(b"%d,%s\n" % (int(label), payload) for payload, label in samples)


def json_lines(samples: Sequence[Sample]) -> bytes:
    return b"".join(b'{"y": %d, "x": "%s"}\n' % (int(label), payload) for payload, label in samples)


def records(samples: Sequence[Sample]) -> bytes:
    return b"".join(struct.pack("<q9s", int(label), payload) for payload, label in samples)


def add_member(archive: tarfile.TarFile, name: str, content: bytes, **fields: Any) -> None:
    """Add a file to an archive. fields: other attributes of its `TarInfo`."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field_name, value in fields.items():
        setattr(member, field_name, value)
    archive.addfile(member, io.BytesIO(content))


def tar_of(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Make an archive of members by name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members:
            add_member(archive, name, content)
    return file.getvalue()


def tar(samples: Sequence[Sample]) -> bytes:
    parts = [((f"{i:04}.bin", payload), (f"{i:04}.cls", b"%d" % int(label))) for i, (payload, label) in enumerate(samples)]
    return tar_of(member for pair in parts for member in pair)


def parquet(samples: Sequence[Sample]) -> bytes:
    file = io.BytesIO()
    table = pa.table({"y": pa.array([int(y) for _, y in samples]), "x": pa.array([x for x, _ in samples], pa.binary())})
    pq.write_table(table, file, row_group_size=3)
    return file.getvalue()


def one_file(samples: Sequence[Sample]) -> bytes:
    return samples[0][0]


def as_lines(rows: Callable[[Sequence[Sample]], bytes]) -> Callable[[Sequence[Sample]], list[Sample]]:
    """Return the samples that a line format finds: the whole line is the payload."""
    return lambda samples: [(rows([sample]).rstrip(b"\n"), sample[1]) for sample in samples]


@dataclass(frozen=True)
class Example:
    write: Callable[[Sequence[Sample]], bytes]
    name: str
    config: dict[str, Any]
    samples: list[Sample] = field(default_factory=lambda: SAMPLES)
    found: Callable[[Sequence[Sample]], list[Sample]] = list


EXAMPLES = {
    "BinaryFileWrapper": Example(records, "a.bin", {"record_size": 17, "label_size": 8}, SAME_SIZE),
    "CsvFileWrapper": Example(csv_rows, "a.csv", {"label_index": 0}, found=as_lines(csv_rows)),
    "JsonLinesFileWrapper": Example(json_lines, "a.jsonl", {"label_field": "y"}, found=as_lines(json_lines)),
    "ParquetFileWrapper": Example(parquet, "a.parquet", {"payload_columns": ["x"], "label_column": "y"}),
    "SingleSampleFileWrapper": Example(
        one_file, "a.png", {"file_extension": ".png", "label_file_extension": ".label"}, [(b"one image", 7)]
    ),
    "TarFileWrapper": Example(tar, "a.tar", {"payload_extension": "bin"}, [sample for sample in SAMPLES if sample[0]]),
    "image_folder": Example(one_file, "cats/a.gif", {}, [(b"GIF89a and pixels", 0)]),
}
