"""Nothing outside of `storage.dataset_roots` is opened, even through links, and no message contains the content of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from modyn.config.system import SystemConfig
from modyn.errors import ConfigError, DataError, SecurityError
from modyn.storage.files.file_system import Roots
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats import build_format
from modyn.storage.read.record_readers import RecordReaders
from tests.support.running_storage import RunningStorage, image_dataset, start_storage, write_image

SECRET = "PASSWORD=7secret7"
OPTIONS: dict[str, dict[str, object]] = {
    "SingleSampleFileWrapper": {"file_extension": ".png", "label_file_extension": ".label"},
    "BinaryFileWrapper": {"record_size": 1, "label_size": 1},
    "CsvFileWrapper": {"label_index": 0},
    "JsonLinesFileWrapper": {"label_field": "y"},
    "ParquetFileWrapper": {"payload_columns": ["x"], "label_column": "y"},
    "TarFileWrapper": {"payload_extension": "jpg"},
}
ENDINGS = [
    ("SingleSampleFileWrapper", "file_extension"),
    ("SingleSampleFileWrapper", "label_file_extension"),
    *((name, "file_extension") for name in list(OPTIONS)[1:]),
]


@pytest.fixture
def confined(
    make_config: Callable[..., SystemConfig], quick_config: SystemConfig, stack: ExitStack, tmp_path: Path
) -> RunningStorage:
    """A storage that may read `tmp_path / "root"` only."""
    settings = quick_config.storage.model_copy(update={"dataset_roots": (tmp_path / "root",)})
    return start_storage(quick_config.model_copy(update={"storage": settings}), stack)


@pytest.mark.parametrize(("file_wrapper", "option"), ENDINGS)
@pytest.mark.parametrize("ending", ["/x.lbl", "x/../../../etc/passwd", "..", ".png\0"])
def test_an_ending_that_could_lead_elsewhere_is_refused(file_wrapper: str, option: str, ending: str) -> None:
    with pytest.raises(ConfigError, match="is not an ending of a file's name"):
        build_format(file_wrapper, OPTIONS[file_wrapper] | {option: ending})


def test_registering_such_an_ending_is_refused(storage: RunningStorage, tmp_path: Path) -> None:
    config = image_dataset(tmp_path / "data")
    climbing = {"file_extension": "x.png", "label_file_extension": "/../../secret"}
    with pytest.raises(ConfigError, match="is not an ending of a file's name"):
        storage.client.register_dataset(config.model_copy(update={"file_wrapper_config": climbing}))


@pytest.mark.parametrize("through_folder", [False, True])
def test_a_label_outside_the_roots_is_not_read(confined: RunningStorage, tmp_path: Path, through_folder: bool) -> None:
    secrets = tmp_path / "elsewhere"
    write_image(secrets, "a", b"image", 7, 1000)
    (secrets / "b.label").write_text(SECRET)
    data = tmp_path / "root" / "data"
    write_image(data, "a", b"image", 1, 1000)
    write_image(data, "b", b"image", 1, 1000)
    write_image(data, "good", b"image", 3, 1000)
    for name in "ab":
        (data / f"{name}.label").unlink()
        target = secrets / f"{name}.label"
        if through_folder:
            (tmp_path / "root" / "link").unlink(missing_ok=True)
            (tmp_path / "root" / "link").symlink_to(secrets)
            target = tmp_path / "root" / "link" / f"{name}.label"
        (data / f"{name}.label").symlink_to(target)
    confined.client.register_dataset(image_dataset(data))
    assert confined.ingest("images").samples_indexed == 1
    problems = confined.client.problems("images")
    assert sorted(os.path.basename(problem.path) for problem in problems) == ["a.label", "a.png", "b.label", "b.png"]
    for problem in problems:
        assert "outside the folders that storage may read" in problem.reason
        assert "secret" not in problem.reason


def test_a_label_may_be_a_link_within_the_roots(confined: RunningStorage, tmp_path: Path) -> None:
    data = tmp_path / "root" / "data"
    write_image(data, "a", b"image", 5, 1000)
    (data / "a.label").rename(tmp_path / "root" / "labels")
    (data / "a.label").symlink_to(tmp_path / "root" / "labels")
    confined.client.register_dataset(image_dataset(data))
    assert confined.ingest("images").samples_indexed == 1
    assert confined.client.samples_by_key("images", np.asarray([0])).labels.tolist() == [5]


@pytest.mark.parametrize("file_wrapper", list(OPTIONS)[1:])
def test_a_file_that_was_exchanged_for_a_link_is_not_indexed(file_wrapper: str, tmp_path: Path) -> None:
    """Its listing found an ordinary file; each format opens it by itself."""
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").write_text(f"1,{SECRET}\n")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    built = build_format(file_wrapper, OPTIONS[file_wrapper])
    built.roots = (str(tmp_path / "root"),)
    with pytest.raises(DataError, match="outside the folders that storage may read"):
        list(built.index(str(tmp_path / "root" / "link")))
    with pytest.raises(DataError, match="outside the folders that storage may read"):
        LocalFiles(str(tmp_path / "root"), Roots.of([tmp_path / "root"])).open(str(tmp_path / "root" / "link"))


def test_a_file_that_was_exchanged_for_a_link_is_not_served(confined: RunningStorage, tmp_path: Path) -> None:
    """Its size and time are those with which it was indexed."""
    data = tmp_path / "root" / "data"
    write_image(data, "a", b"image", 5, 1000)
    confined.client.register_dataset(image_dataset(data))
    confined.ingest("images")
    secret = tmp_path / "secret"
    secret.write_bytes(b"hush!")
    os.utime(secret, (1000, 1000))
    (data / "a.png").unlink()
    (data / "a.png").symlink_to(secret)
    with pytest.raises(DataError, match="outside the folders that storage may read"):
        next(confined.payloads.fetch("images", np.asarray([0])))


def test_the_place_of_a_file_is_asked_of_the_file(tmp_path: Path) -> None:
    for folder in ("root", "root-2"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_bytes(folder.encode())
    roots = Roots.of([tmp_path / "root"])
    files = LocalFiles(str(tmp_path), roots)
    with files.open(str(tmp_path / "root-2" / ".." / "root" / "a")) as file:
        assert file.read() == b"root"
    for outside in ("root-2/a", "root/../root-2/a"):
        with pytest.raises(DataError, match="outside"):
            files.open(str(tmp_path / outside))
    assert RecordReaders(1, roots=roots).roots == roots
    with pytest.raises(SecurityError, match="outside"):
        LocalFiles(str(tmp_path), roots).check(roots)


@pytest.mark.parametrize(
    ("file_wrapper", "options", "content"),
    [
        ("CsvFileWrapper", {}, f"{SECRET},1\n"),
        ("CsvFileWrapper", {"label_index": None, "label_column": "PASSWORD=7sec7"}, f"{SECRET},1\n"),
        ("JsonLinesFileWrapper", {}, f'{{"y": "{SECRET}"}}\n'),
        ("JsonLinesFileWrapper", {}, SECRET),
        ("ParquetFileWrapper", {}, SECRET),
        ("TarFileWrapper", {}, SECRET * 100),
    ],
)
def test_content_is_not_quoted(file_wrapper: str, options: dict[str, object], content: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(DataError) as caught:
        list(build_format(file_wrapper, OPTIONS[file_wrapper] | options).index(str(tmp_path / "file")))
    assert "secret" not in caught.value.message
