"""Files with one sample each, and times from file names."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from modyn.errors import ConfigError, DataError
from modyn.storage.formats import build_format
from modyn.storage.formats.base import WholeFileFormat
from modyn.testing.format_checks import read_file, resume_point

OPTIONS: dict[str, object] = {"file_extension": ".png", "label_file_extension": ".label"}


def images(timestamp_source: str = "", **config: object) -> WholeFileFormat:
    found = build_format("SingleSampleFileWrapper", OPTIONS | config, timestamp_source)
    assert isinstance(found, WholeFileFormat)
    return found


def write(folder: Path, stem: str, payload: bytes, label: str | None, mtime: int = 0) -> str:
    path = folder / f"{stem}.png"
    path.write_bytes(payload)
    if label is not None:
        (folder / f"{stem}.label").write_text(label)
    os.utime(path, (mtime, mtime))
    return str(path)


def test_many_files_at_once_with_their_labels_and_times(tmp_path: Path) -> None:
    names = ["a", "with space", "quote'\"", "数据 ü", "a.png"]
    paths = [write(tmp_path, name, b"x" * (i + 1), f" {i - 2}\n", mtime=1000 + i) for i, name in enumerate(names)]
    found = images().index_files(paths)
    assert not found.problems
    assert found.lengths.tolist() == [1, 2, 3, 4, 5]
    assert found.labels.tolist() == [-2, -1, 0, 1, 2]
    assert found.timestamps.tolist() == [1000, 1001, 1002, 1003, 1004]


@pytest.mark.parametrize("mode", [0, 0o044, 0o040, 0o004])
def test_a_file_without_permission_is_a_problem_before_a_training_reads_it(mode: int) -> None:
    """The rights of others do not count for the owner."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:  # not below `tmp_path`, which is closed to other users
        folder = Path(name)
        paths = [write(folder, stem, b"x", "1") for stem in ("secret", "good")]
        folder.chmod(0o755)
        Path(paths[0]).chmod(mode)
        if user == 0:  # root may read everything, so be nobody for a moment
            os.chown(paths[0], 65534, 65534)
            os.seteuid(65534)
        try:
            found = images().index_files(paths)
        finally:
            os.seteuid(user)
    assert found.good().tolist() == [1]
    assert "secret.png: Permission denied" in found.problems[0].message


def test_bad_files_do_not_disturb_the_others(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, "good", b"x", "1"),
        write(tmp_path, "unlabelled", b"x", None),
        write(tmp_path, "empty", b"", "1"),
        str(tmp_path / "gone.png"),
        write(tmp_path, "wrong", b"x", "cat"),
        write(tmp_path, "huge", b"x", "9223372036854775808"),
        write(tmp_path, "long", b"x", "1" * 1000),
        write(tmp_path, "fine", b"xy", "-7"),
    ]
    found = images().index_files(paths)
    assert found.good().tolist() == [0, 7]
    assert found.labels[found.good()].tolist() == [1, -7]
    messages = {i: found.problems[i].message for i in found.problems}
    assert "unlabelled.label" in messages[1]
    assert "No such file" in messages[1]
    assert "it is empty" in messages[2]
    assert "gone.png" in messages[3]
    assert "its content 'cat' is not an int64 label" in messages[4]
    assert "out of the range" in messages[5]
    assert sorted(messages) == [1, 2, 3, 4, 5, 6]


def test_one_file_alone_gives_one_sample(tmp_path: Path) -> None:
    format_ = images(label_type="float")
    path = write(tmp_path, "a", b"payload", "0.5", mtime=42)
    (samples,) = format_.index(path)
    assert (samples.offsets.tolist(), samples.lengths, samples.labels.tolist(), samples.timestamps) == ([0], 7, [0.5], 42)
    resume = resume_point(Path(path), samples.end, 1)
    write(tmp_path, "a", b"PAYLOAD", "0.5")
    with pytest.raises(DataError, match="was rewritten"):
        read_file(format_, Path(path), resume)
    os.unlink(path)
    with pytest.raises(DataError, match="cannot use .*a.png: No such file"):
        list(format_.index(path))


def test_names_tell_samples_from_labels() -> None:
    format_ = images()
    assert format_.holds_samples("/x/a.png")
    assert not format_.holds_samples("/x/a.label")
    assert format_.companions("/x.png/a.png") == ("/x.png/a.label",)
    with pytest.raises(ConfigError, match="label files would be taken for samples"):
        images(label_file_extension=".label.png")


def test_a_name_without_a_time_is_a_problem_of_that_file(tmp_path: Path) -> None:
    paths = [write(tmp_path, stem, b"x", "1") for stem in ("a2000-01-01", "b", "a2000-13-01")]
    found = images(r"name:a(.*)\.png").index_files(paths)
    assert found.good().tolist() == [0]
    assert "does not match 'b.png'" in found.problems[1].message
    assert "'2000-13-01' is neither a time in seconds since 1970 nor ISO 8601" in found.problems[2].message
