"""Classes of a dataset: numbered in the order of their names, appended and never renumbered, over files, restarts and processes."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.errors import DataError, InvalidArgumentError
from modyn.storage.catalogue.catalogue import Catalogue
from modyn.storage.datasets import DatasetStore
from modyn.storage.model.schema import DatasetSchema
from tests.support.running_storage import RunningStorage, files_dataset, running_storage

PNG = b"\x89PNG\r\n\x1a\n and pixels, "


@pytest.fixture
def storage(module_storage: RunningStorage) -> RunningStorage:
    return module_storage


def write(folder: Path, path: str, time: int = 1000, content: bytes = PNG) -> None:
    """Write an image whose bytes name it."""
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content + path.encode() if content == PNG else content)
    os.utime(place, (time, time))


def images(folder: Path, source: str = "", *, name: str = "", watch: bool = False, **options: Any) -> DatasetConfig:
    return files_dataset(folder, options, "image_folder", source, name=name, watch=watch)


def by_path(storage: RunningStorage, name: str) -> dict[str, tuple[int, int]]:
    """Label and time of each readable image, by its path."""
    keys = np.arange(storage.client.dataset(name).next_key)
    found = storage.client.samples_by_key(name, keys)
    paths = [payload.removeprefix(PNG).decode() for payload in storage.payloads_of(keys, name)]
    return dict(zip(paths, zip(found.labels.tolist(), found.timestamps.tolist(), strict=True), strict=True))


def test_classes_are_numbered_by_name_and_new_ones_appended(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "by-name"
    for path, time in {"dogs/z.jpg": 10, "cats/2013/a.png": 20, "émus/x": 30}.items():
        write(folder, path, time)
    storage.index(images(folder))
    info = storage.client.dataset("by-name")
    assert info.classes == ("cats", "dogs", "émus")
    assert info.schema is not None
    assert info.schema.described() == {"classes": "0 cats, 1 dogs, 2 émus"}
    assert by_path(storage, "by-name") == {"dogs/z.jpg": (1, 10), "cats/2013/a.png": (0, 20), "émus/x": (2, 30)}
    write(folder, "bees/b.png", 5)
    write(folder, "ants/a.png", 40)
    write(folder, "dogs/a.png", 50)
    storage.ingest("by-name")
    assert storage.client.dataset("by-name").classes == ("cats", "dogs", "émus", "ants", "bees")
    assert by_path(storage, "by-name")["bees/b.png"] == (4, 5)
    assert by_path(storage, "by-name")["dogs/a.png"] == (1, 50)


def test_what_is_no_image_of_a_class_is_named(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "named"
    write(folder, "cats/a.png")
    write(folder, "cats/.DS_Store", content=b"hidden")
    write(folder, "cats/notes.txt", content=b"text")
    write(folder, "README.md", content=b"text")
    write(folder, "loose.png")
    (folder / "birds").mkdir()
    storage.index(images(folder))
    reasons = storage.reasons("named")
    assert sorted(reasons) == ["README.md", "birds", "loose.png", "notes.txt"]
    assert "is a class folder without an image" in reasons["birds"]
    assert "begins like no JPEG" in reasons["notes.txt"]
    assert f"it is in no class folder; move it to {folder}/CLASS/" in reasons["loose.png"]
    assert storage.ingest("named").problems == 0, "told once"
    assert sorted(storage.reasons("named")) == ["README.md", "birds", "loose.png", "notes.txt"]
    assert storage.client.dataset("named").classes == ("cats",), "an empty class has no number"
    write(folder, "birds/b.png")
    storage.ingest("named")
    assert "birds" not in storage.reasons("named")
    assert storage.client.dataset("named").classes == ("cats", "birds")


def test_classes_without_samples_keep_their_numbers(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "no-samples"
    write(folder, "cats/a.jpg", content=b"not an image")
    storage.index(images(folder))
    assert storage.client.dataset("no-samples").classes == ("cats",)
    with pytest.raises(InvalidArgumentError, match="label_classes of dataset 'no-samples' is None, .*register it again"):
        storage.client.change_dataset(images(folder, label_classes=["dogs"]))


def test_a_moved_image_is_gone_from_its_class_and_new_in_the_other(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    for path in ("cats/a.png", "dogs/b.png"):
        write(folder, path)
    storage.index(images(folder))
    (folder / "cats" / "a.png").rename(folder / "dogs" / "a.png")
    storage.ingest("moved")
    assert "indexed but gone" in storage.reasons("moved")["a.png"]
    assert storage.client.samples_by_key("moved", np.arange(3)).labels.tolist() == [0, 1, 1]
    with pytest.raises(DataError, match=r"cats/a\.png"):
        storage.payloads_of([0], "moved")
    write(folder, "dogs/b.png", 2000, PNG + b"rewritten")
    storage.ingest("moved")
    assert "rewritten" in storage.reasons("moved")["b.png"]


def test_times_are_in_the_path_below_the_class(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "in-path"
    for path in ("class 1999/2013/01/a.png", "class 1999/2014/12/b.png", "class 1999/c.png"):
        write(folder, path)
    storage.index(images(folder, r"name:(\d{4}/\d\d)", timestamp_format="%Y/%m"))
    found = {path: time for path, (_, time) in by_path(storage, "in-path").items()}
    assert found == {"class 1999/2013/01/a.png": 1356998400, "class 1999/2014/12/b.png": 1417392000}
    assert "does not match 'c.png'" in storage.reasons("in-path")["c.png"]


def test_times_are_in_a_file_beside(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "beside"
    for path in ("cats/a.png", "cats/b, c.png", "dogs/d.png"):
        write(folder, path)
    times = "path,camera,time\ncats/a.png,1,2020-01-01\n'cats/b, c.png',2,100\n./dogs/d.png,3,soon\n"
    (folder / "times.csv").write_text(times.replace("'", '"'))
    storage.index(images(folder, times="times.csv"))
    assert by_path(storage, "beside") == {"cats/b, c.png": (0, 100), "cats/a.png": (0, 1577836800)}
    assert "its time in times.csv cannot be read" in storage.reasons("beside")["d.png"]
    write(folder, "dogs/e.png")
    storage.ingest("beside")
    assert "add a line with the path dogs/e.png" in storage.reasons("beside")["e.png"]
    (folder / "times.csv").write_text("path,time\ndogs/d.png,200\ndogs/e.png,300\n")
    storage.ingest("beside")
    assert by_path(storage, "beside")["dogs/e.png"] == (1, 300)
    with pytest.raises(InvalidArgumentError, match="times of dataset 'beside' is"):
        storage.client.change_dataset(images(folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*times.csv"),
        (b"file,time\n", "names no column path"),
        (b"", "names no column path and no column time"),
        (b"path,time\na/b.png,1\na/b.png,2\n", "line 3, gives a/b.png a second time"),
        (b"path,time\n\xff,1\n", "is not CSV in UTF-8"),
    ],
)
def test_a_wrong_file_of_times_is_named(content: bytes | None, message: str, storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / f"{abs(hash((content, message)))}"
    write(folder, "a/b.png")
    if content is not None:
        (folder / "times.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        storage.index(images(folder, times="times.csv"))
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            storage.ingest(folder.name)
        assert len(storage.client.problems(folder.name)) == 1, "listed as long as it lasts"
    (folder / "times.csv").write_bytes(b"path,time\na/b.png,7\n")
    storage.ingest(folder.name)
    assert storage.client.problems(folder.name) == []
    assert by_path(storage, folder.name) == {"a/b.png": (0, 7)}


STEPS = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 2000)), min_size=1, max_size=5), min_size=1, max_size=4
)


@given(steps=STEPS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_numbers_are_stable_for_any_order_of_files(steps: list[list[tuple[str, int]]], storage: RunningStorage) -> None:
    """A later ingestion appends its new classes in the order of their names; a number never changes its class."""
    expected: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder, number = Path(name) / Path(name).name, 0
        storage.client.register_dataset(images(folder))
        for step in steps:
            for label, time in step:
                write(folder, f"{label}/{number}.png", time)
                number += 1
            storage.ingest(folder.name)
            expected += sorted({label for label, _ in step}.difference(expected))
            assert storage.client.dataset(folder.name).classes == tuple(expected)
        found = by_path(storage, folder.name)
        assert len(found) == number
        assert all(expected[label] == path[0] for path, (label, _) in found.items())
        storage.client.delete_dataset(folder.name)


def test_numbers_are_stable_over_restarts_and_processes(quick_config: SystemConfig, tmp_path: Path) -> None:
    """Two services ingest one folder at once, and a third one after both."""
    folder = tmp_path / "both"
    config = images(folder)
    with running_storage(quick_config) as storage:
        storage.client.register_dataset(config)
        other = DatasetStore(quick_config, Catalogue.open(quick_config))
        try:
            for number in range(6):
                for label in ("mfc", "zma", "aez")[number % 3]:
                    write(folder, f"{label}/{number}.png", 1000 - number)
                with ThreadPoolExecutor(2) as pool:
                    for done in [
                        pool.submit(lambda store: list(store.ingest("both")), store) for store in (storage.store, other)
                    ]:
                        done.result()
        finally:
            other.close()
    with running_storage(quick_config) as storage:
        write(folder, "b/last.png")
        storage.ingest("both")
        classes = storage.client.dataset("both").classes
        assert classes == ("c", "f", "m", "a", "z", "e", "b")
        found = by_path(storage, "both")
        assert len(found) == 19
        assert all(classes[label] == path[0] for path, (label, _) in found.items())


def test_a_schema_of_an_earlier_version_has_no_classes() -> None:
    text = '{"payloads": "csv", "columns": [], "decided_by": "", "mixed_order": false, "casts": []}'
    assert DatasetSchema.from_json(text).classes == ()
    schema = DatasetSchema("unknown", (), classes=("a", "ü"))
    assert DatasetSchema.from_json(schema.to_json()) == schema
    many = DatasetSchema("unknown", (), classes=tuple(map(str, range(60)))).described()["classes"]
    assert many.endswith("49 49 and 10 more")
