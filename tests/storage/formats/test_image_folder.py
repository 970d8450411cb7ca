"""Class folders of images, each file alone. Classes are numbered by ingestion, see `tests/storage/ingest/test_class_folders.py`."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import cast

import pytest
from PIL import Image

from modyn.errors import ConfigError
from modyn.storage.formats import build_format
from modyn.storage.formats.image_folder import ImageFolderFormat


def folder(timestamp_source: str = "", **options: object) -> ImageFolderFormat:
    return cast("ImageFolderFormat", build_format("image_folder", options, timestamp_source))


def image(kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (200, 10, 30)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_the_content_decides_what_an_image_is(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "no-ending"
    path.write_bytes(image(kind))
    os.utime(path, (1234, 1234))
    found = folder().index_files([str(path)])
    assert not found.problems
    assert (found.lengths.tolist(), found.timestamps.tolist()) == ([len(image(kind))], [1234])


def test_files_that_are_no_images_are_named_and_do_not_disturb_others(tmp_path: Path) -> None:
    contents = {"a.png": image(), "empty.png": b"", "notes.txt": b"not an image", "b.png": image()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    paths = [str(tmp_path / name) for name in [*contents, "gone.png"]]
    found = folder().index_files(paths)
    assert found.good().tolist() == [0, 3]
    messages = {os.path.basename(paths[i]): error.message for i, error in found.problems.items()}
    assert "it is empty" in messages["empty.png"]
    assert messages["notes.txt"].startswith(
        f"cannot use {tmp_path / 'notes.txt'}: it begins like no JPEG, PNG, WebP, BMP, GIF or TIFF"
    )
    assert "file vanished" in messages["gone.png"]


def test_a_class_is_the_first_folder() -> None:
    names = {"cats/a.png": "cats", "big cats/2013/a.png": "big cats", "a.png": "", os.fsdecode(b"\xff/a.png"): ""}
    assert {path: folder().class_of(path) for path in names} == names
    shown = {"cats/a.png": True, "cats/.DS_Store": False, ".thumbs/a.png": False, "times.csv": False, "cats/times.csv": True}
    assert {path: folder(times="times.csv").is_sample(path) for path in shown} == shown


@pytest.mark.parametrize(
    ("options", "source", "message"),
    [
        ({"label_type": "float"}, "", "label_type"),
        ({"times": "/etc/passwd"}, "", "is not a path within the dataset's folder"),
        ({"times": "../times.csv"}, "", "is not a path within the dataset's folder"),
        ({"times": "times.csv"}, r"name:(\d+)", "remove one of the two"),
        ({}, "column:1", "an image_folder allows '' and 'name:REGEX'"),
        ({"timestamp_format": "%Y"}, "", "set timestamp_source, or leave it out"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        folder(source, **options)
