"""What `modyn data register NAME FOLDER` finds in a folder."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import shlex
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from modyn.cli import data
from modyn.cli.data import _option
from modyn.cli.folder_contents import Given, Recognised, recognise
from modyn.errors import ConfigError
from modyn.storage.formats import build_format

ROWS = "\n".join(f"2013-01-{day:02},{day % 3},{day / 7:.3f}" for day in range(1, 29))
Write = Callable[[Mapping[str, str | bytes]], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writer(files: Mapping[str, str | bytes]) -> str:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(tmp_path)

    return writer


def look(folder: str, source: str = "", **options: Any) -> Recognised:
    """Recognise a folder; the format accepts what was chosen, and the command says the same."""
    found = recognise(Given("d", folder, options, source))
    build_format(found.wrapper, found.options, found.timestamp_source)
    parts = shlex.split(found.command("d", folder))
    assert parts[:5] == ["modyn", "data", "register", "d", folder]
    assert parts[6] == found.wrapper
    assert dict(map(_option, [parts[i + 1] for i, part in enumerate(parts) if part == "-o"])) == dict(found.options)
    return found


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def tar(*names: str, content: bytes = b"1") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def test_class_folders(write: Write) -> None:
    found = look(write({"cats/a.JPG": b"", "cats/2013/b.png": b"", "big dogs/c.webp": b"", "cats/.DS_Store": b"", "README": b""}))
    assert (found.wrapper, found.options, found.timestamp_source) == ("image_folder", {}, "")
    assert found.said[0] == "3 images in 2 class folders: big dogs, cats"
    assert found.said[-1] == "not used: 1 other files (README)"
    found = look(write({"when.csv": "path,time\ncats/a.JPG,2013-01-01\n"}))
    assert found.options == {"times": "when.csv"}
    assert look(str(found and Path(write({}))), r"name:(\d{4})").timestamp_source == r"name:(\d{4})"


def test_dates_in_the_paths_of_images_are_times(write: Write) -> None:
    found = look(write({"cats/a-2013-01-31.png": b"", "dogs/2013-02-01/b.png": b""}))
    times = build_format(found.wrapper, found.options, found.timestamp_source).name_pattern
    assert times is not None
    assert times.times(["", ""], ["a-2013-01-31.png", "2013-02-01/b.png"]) == [1359590400, 1359676800]
    assert look(write({"dogs/c.png": b""})).timestamp_source == ""


def test_images_with_label_files(write: Write) -> None:
    found = look(write({"a.png": b"", "a.label": "1", "in/b.png": b"", "in/b.label": "0"}))
    assert (found.wrapper, found.options) == (
        "SingleSampleFileWrapper",
        {"file_extension": ".png", "label_file_extension": ".label"},
    )


@pytest.mark.parametrize(
    ("files", "options", "source"),
    [
        ({"a.csv": f"date,label,x\n{ROWS}"}, {"label_column": "label"}, "column:date"),
        ({"a.csv": f"when,kind,x\n{ROWS}"}, {"label_column": "kind"}, "column:when"),
        ({"a.csv": ROWS}, {"label_index": 1}, "column:0"),
        (
            {"a.tsv": f"date,label,x\n{ROWS}".replace(",", "\t")},
            {"separator": "\t", "file_extension": ".tsv", "label_column": "label"},
            "column:date",
        ),
        ({"a.csv.gz": gzip.compress(f"Date,Label,x\n{ROWS}".encode())}, {"label_column": "Label"}, "column:Date"),
        ({"a.csv": f"date,x,target\n{ROWS}"}, {"label_column": "target", "label_type": "float"}, "column:date"),
        (
            {"a.csv": f"date,label,x\n{ROWS.replace('-', '')}"},
            {"label_column": "label", "timestamp_format": "%Y%m%d"},
            "column:date",
        ),
        ({"a.csv": f"x,label\n{'1.5,1' * 1}\n2.5,0\n"}, {"label_column": "label"}, ""),
        ({"a.csv": "good film,pos\nfine,pos\nbad film,neg\nsad,neg\n"}, {"label_index": 1, "label_type": "class"}, ""),
        ({"a.csv": "ts,y\n1359636300,1\n1359636301,0\n"}, {"label_column": "y"}, "column:ts"),
        ({"a.csv": "ts,y\n1359636300000,1\n1359636301000,0\n"}, {"label_column": "y", "timestamp_format": "ms"}, "column:ts"),
    ],
)
def test_csv(files: dict[str, Any], options: dict[str, Any], source: str, write: Write) -> None:
    found = look(write(files))
    assert (found.wrapper, found.options, found.timestamp_source) == ("CsvFileWrapper", options, source)


@pytest.mark.parametrize(
    ("objects", "options", "source"),
    [
        ([{"label": 1, "time": "2013-01-31T12:00:00Z", "x": 1.5}], {"label_field": "label"}, "field:time"),
        ([{"kind": i % 2, "id": 1000 + i, "x": [i]} for i in range(9)], {"label_field": "kind"}, ""),
        ([{"y": 0.5, "timestamp": 1359636300}], {"label_field": "y", "label_type": "float"}, "field:timestamp"),
    ],
)
def test_json_lines(objects: list[dict[str, Any]], options: dict[str, Any], source: str, write: Write) -> None:
    text = "\n".join(map(json.dumps, objects)).encode()
    found = look(write({"a.jsonl.bz2": bz2.compress(text)}))
    assert (found.wrapper, found.options, found.timestamp_source) == ("JsonLinesFileWrapper", options, source)


def test_parquet(write: Write) -> None:
    times = pa.array([1, 2], pa.timestamp("s"))
    found = look(write({"a.parquet": parquet(image=[b"x", b"y"], label=[0, 1], seen=times, note=["a", "b"])}))
    assert (found.wrapper, found.timestamp_source) == ("ParquetFileWrapper", "column:seen")
    assert found.options == {"payload_columns": ["image"], "label_column": "label"}
    assert found.said[-2:] == ("payload: image", "left out: note")
    found = look(write({"a.parquet": parquet(a=[1.5, 2], b=[3, 4], label=[0, 1])}))
    assert found.options == {"payload_columns": ["a", "b"], "label_column": "label"}
    with pytest.raises(ConfigError, match="(?s)several columns may be the payload.*payload_columns=.*text"):
        look(write({"a.parquet": parquet(text=["a", "b"], b=[3.5, 4], label=[0, 1])}))
    assert look(write({}), payload_columns=["text"]).options == {"label_column": "label", "payload_columns": ["text"]}


def test_tar(write: Write) -> None:
    found = look(write({"a.tar": tar("1.jpg", "1.cls", "2.jpg", "2.cls")}))
    assert (found.wrapper, found.options) == ("TarFileWrapper", {"payload_extension": "jpg", "label_extension": "cls"})
    found = look(write({"a.tar": tar("1.jpg", "1.json", content=b'{"label": 3, "width": 500}')}))
    assert found.options == {"payload_extension": "jpg", "label_extension": "json", "label_field": "label"}
    with pytest.raises(ConfigError, match="several may be payloads"):
        look(write({"a.tar": tar("1.jpg", "1.png", "1.cls")}))


AMBIGUOUS: dict[str, tuple[dict[str, str | bytes], str]] = {
    "several labels": (
        {"a.csv": "label,class\n1,2\n0,1\n"},
        r"several columns may be the label.*-o label_column=label\n.*-o label_column=class",
    ),
    "no label": (
        {"a.csv": "a,b\n1.5,x\n2.5,y\n"},
        r"no column has a usual name of a label.*-o label_column=a -o label_type=float",
    ),
    "several times": (
        {"a.csv": "date,time,label\n2013-01-01,12,1\n"},
        r"several columns may be the time.*--timestamp-source column:date",
    ),
    "time in no known format": ({"a.csv": "date,label\n31/01/2013,1\n01/02/2013,1\n"}, "add -o timestamp_format="),
    "kinds": (
        {"a/b.png": b"", "b.csv": f"date,label,x\n{ROWS}"},
        r"several kinds.*-o label_column=label.*--format image_folder",
    ),
    "parts of a dataset": (
        {"train/cats/a.png": b"", "test/cats/b.png": b""},
        "folders test, train, which are probably parts of a dataset",
    ),
    "loose images": ({"a/b.png": b"", "c.png": b""}, r"1 images outside of class folders \(c.png\)"),
    "endings": ({"a.csv": "label\n1\n", "b.tsv": "label\n1\n"}, r"that end in .csv and .tsv"),
    "nothing": ({}, "holds no files"),
    "unknown": ({"a.bin": b"", "b.bin": b"", "c": b""}, r"no files of a known kind \(2 × .bin, 1 × without an ending\)"),
    "no json": ({"a.jsonl": "{}\n[1]\n"}, "line 2 of .*a.jsonl is not a JSON object"),
    "no parquet": ({"a.parquet": b"no"}, "a.parquet cannot be read as Parquet"),
    "no archive": ({"a.tar": b"no"}, "a.tar cannot be read as an uncompressed tar archive"),
    "other text": ({"a.csv": "label\nä\n".encode("latin-1")}, "is not UTF-8"),
    "open quote": ({"a.csv": 'text,label\n"' + "x" * 200_000}, "a.csv cannot be read as CSV: field larger than field limit"),
    "far times": ({"a.parquet": parquet(label=[1], time=pa.array([1 << 40], pa.timestamp("s")))}, "parquet cannot be looked at"),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_what_is_not_clear_is_an_error_with_the_commands_to_choose_from(case: str, write: Write) -> None:
    files, message = AMBIGUOUS[case]
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        look(write(files))


def test_given_options_replace_what_is_found(write: Write) -> None:
    folder = write({"a.csv": "label,class,date,time\n1,2,2013-01-01,5\n0,1,2013-01-02,6\n"})
    found = look(folder, "column:date", label_column="class", max_bad_rows=3)
    assert (found.options, found.timestamp_source) == ({"label_column": "class", "max_bad_rows": 3}, "column:date")
    write({"a.csv": "n,kind,x\n" + "".join(f"{day % 2},{day % 3},{day / 7:.3f}\n" for day in range(28))})
    assert look(folder, "column:n", timestamp_format="s").options == {"label_column": "kind", "timestamp_format": "s"}
    with pytest.raises(ConfigError, match="a.csv cannot be read as CSV"):
        look(folder, separator=";;")


def test_a_dry_run_says_what_it_would_do_and_asks_no_service(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write({"cats/a.png": b"", "dogs/b.png": b""})
    data.register("pets", folder, dry_run=True)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "2 images in 2 class folders: cats, dogs"
    assert said[-1] == f"as by: modyn data register pets {folder} --format image_folder"
    data.register("pets", folder, option=["file_extension=.png", "label_file_extension=.label"], dry_run=True)
    options = "-o file_extension=.png -o label_file_extension=.label"
    assert capsys.readouterr().err == f"as by: modyn data register pets {folder} --format SingleSampleFileWrapper {options}\n"
    with pytest.raises(typer.BadParameter, match="leave out --records and --format"):
        data.register("pets", folder, wrapper="image_folder", dry_run=True)
    with pytest.raises(ConfigError, match="is not a folder of this machine"):
        data.register("pets", f"{folder}/gone")
    with pytest.raises(ConfigError, match="name: 'a/b' is wrong"):
        data.register("a/b", folder)
