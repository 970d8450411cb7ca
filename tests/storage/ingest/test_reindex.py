"""Data files that were changed after they were indexed: found by a scrub, taken again on request, each sample once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modyn.client import Client
from modyn.errors import DataError, NotFoundError, UnavailableError
from modyn.records import DeletedSamples, Interval
from modyn.storage.periodic_scrub import PeriodicScrub, ScrubPace
from tests.support.running_storage import RunningStorage, files_dataset, image_dataset, rewrite, write_image


def labels(storage: RunningStorage, name: str) -> dict[int, int]:
    """Label by key of all samples."""
    batches = storage.client.samples_in_interval(name, Interval(), 1000)
    return {int(key): int(label) for batch in batches for key, label in zip(batch.keys, batch.labels, strict=True)}


@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "periodic"])
def test_a_file_of_the_same_size_and_time_is_found_by_a_scrub(numbers: RunningStorage, by_hand: bool) -> None:
    dataset = numbers.store.dataset("numbers")
    path = Path(dataset.snapshot().paths[0])
    content = path.read_bytes()
    rewrite(path, content[:-1] + b"\x07")
    assert numbers.ingest().problems == 0, "a scan compares size and time"
    if by_hand:
        (found,) = numbers.client.scrub_dataset("numbers")
        assert (found.path, "was rewritten" in found.reason) == (str(path), True)
    else:
        PeriodicScrub(numbers.store, 3600.0, ScrubPace(factor=0.0)).scrub_all()
    assert [problem.path for problem in numbers.client.problems("numbers")] == [str(path)]
    with pytest.raises(DataError, match="was changed after it was indexed"):
        numbers.data_of([0])
    rewrite(path, content)
    numbers.ingest()
    assert numbers.client.problems("numbers") == []
    assert numbers.client.scrub_dataset("numbers") == []
    assert len(numbers.data_of([0])) == 1


def test_a_corrected_file_is_taken_again(storage: RunningStorage, tmp_path: Path) -> None:
    """The problem of its row and the refusal of the file say so."""
    path = tmp_path / "data" / "rows.csv"
    config = files_dataset(path.parent, {"label_index": 0, "max_bad_rows": 1}, name="rows")
    path.write_text("1,a\n2,b\nwrong,c\n4,d\n")
    (path.parent / "others.csv").write_text("9,z\n")
    storage.index(config)
    before = labels(storage, "rows")
    assert sorted(before.values()) == [1, 2, 4, 9]
    (bad,) = storage.client.problems("rows")
    assert "once it is corrected, `modyn data reindex` takes it again" in bad.reason
    path.write_text("1,a\n2,b\n3,c\n4,d\n")
    storage.ingest("rows")
    assert any("with `modyn data reindex`" in problem.reason for problem in storage.client.problems("rows"))
    deleted = storage.client.forget_file("rows", str(path))
    keys = [key for key, label in before.items() if label != 9]
    assert deleted == DeletedSamples("rows", storage.client.dataset("rows").identity, str(path), 3, min(keys))
    assert storage.client.dataset("rows").num_deleted == 3, "which tells scores from before apart"
    assert labels(storage, "rows") == {key: label for key, label in before.items() if label == 9}
    storage.ingest("rows")
    after = labels(storage, "rows")
    assert sorted(after.values()) == [1, 2, 3, 4, 9]
    assert {key for key, label in after.items() if label != 9}.isdisjoint(before), "a key is never given twice"
    assert storage.client.problems("rows") == []
    assert (storage.client.dataset("rows").num_skipped, storage.client.dataset("rows").num_samples) == (0, 5)
    deleted = storage.client.forget_file("rows", "rows.csv")
    assert (deleted.num_samples, deleted.first_key) == (4, min(key for key, label in after.items() if label != 9))
    deleted = storage.client.forget_file("rows", "rows.csv")
    assert (deleted.num_samples, deleted.first_key) == (0, None), "one that broke off is repeated"
    storage.ingest("rows")
    assert sorted(labels(storage, "rows").values()) == [1, 2, 3, 4, 9]
    with (
        Client(storage.config, wait_s=0.01) as client,
        pytest.raises(
            UnavailableError, match="no sample of rows.csv was deleted, because runs that have read it cannot be informed"
        ),
    ):
        client.reindex("rows", "rows.csv")  # No supervisor runs.
    assert sorted(labels(storage, "rows").values()) == [1, 2, 3, 4, 9]
    with path.open("a") as file:
        file.write("5,e\n")
    storage.ingest("rows")
    assert sorted(labels(storage, "rows").values()) == [1, 2, 3, 4, 5, 9], "it can grow as before"


def test_a_file_that_cannot_be_taken_again_loses_no_sample(storage: RunningStorage, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    config = files_dataset(folder, source="column:1")
    path, away = folder / "rows.csv", tmp_path / "away"
    path.write_text("1,2024-01-01\n2,2024-01-02\n")
    storage.index(config)
    before = labels(storage, "kept")
    folder.rename(away)
    with pytest.raises(
        NotFoundError, match=f"{path} is missing, and no sample of it was deleted: restore it, or mount what it is on"
    ):
        storage.client.forget_file("kept", str(path))
    away.rename(folder)
    for content, reason in (
        ("1,2024-01-01\nwrong,2024-01-02\n", f"no sample was deleted, since .*; correct it and repeat: .*{path}, line 2"),
        ("", f"no sample was deleted, since .*{path} holds no sample that can be used now"),
        ("1,2024\n", "no sample was deleted, since .*the times here, 2024, are most likely years"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=reason):
            storage.client.forget_file("kept", str(path))
    assert labels(storage, "kept") == before == {0: 1, 1: 2}
    path.write_text("3,2024-01-01\n")
    assert storage.client.forget_file("kept", str(path)).num_samples == 2
    storage.ingest("kept")
    assert labels(storage, "kept") == {2: 3}


def test_a_file_of_one_sample_and_its_label_are_taken_again(storage: RunningStorage, tmp_path: Path) -> None:
    for number in range(4):
        write_image(tmp_path / "data", f"{number}", bytes([number]), number, 5000 + number)
    storage.index(image_dataset(tmp_path / "data"))
    (path,) = (tmp_path / "data").glob("2.*g")
    path.with_suffix(".label").write_text("none")
    with pytest.raises(DataError, match="no sample was deleted"):
        storage.client.forget_file("images", str(path))
    assert labels(storage, "images") == {number: number for number in range(4)}
    write_image(tmp_path / "data", "2", b"\x22", 22, 6000)
    assert storage.client.forget_file("images", str(path)).num_samples == 1
    storage.ingest("images")
    assert labels(storage, "images") == {0: 0, 1: 1, 3: 3, 4: 22}
    (batch,) = storage.payloads.fetch("images", np.array([4]))
    assert bytes(batch.payload(0)) == b"\x22"
    assert storage.client.dataset("images").num_files == 4


def test_a_file_that_was_set_aside_is_refused_with_its_problem(storage: RunningStorage, tmp_path: Path) -> None:
    """The file has no samples to delete. The next ingestion after its correction indexes it."""
    folder = tmp_path / "aside"
    config = files_dataset(folder)
    (folder / "a.csv").write_text("1,x\n")
    (folder / "b.csv").write_text("wrong,y\n")
    storage.index(config)
    for path in ("b.csv", str(folder / "b.csv")):
        with pytest.raises(NotFoundError) as refused:
            storage.client.forget_file("aside", path)
        (problem,) = storage.client.problems("aside")
        assert refused.value.message.startswith(
            f"{folder}/b.csv was set aside, so that it has no samples to delete: {problem.reason}"
        )
        assert refused.value.message.endswith("Once it is corrected, `modyn data ingest aside` takes it")
    (folder / "b.csv").write_text("2,y\n")
    (folder / "c.csv").write_text("3,z\n")
    with pytest.raises(NotFoundError, match=r"c\.csv is not indexed yet; `modyn data ingest aside` takes it"):
        storage.client.forget_file("aside", "c.csv")
    storage.ingest("aside")
    assert sorted(labels(storage, "aside").values()) == [1, 2, 3]


def test_a_file_that_is_not_indexed_is_refused_with_the_nearest(numbers: RunningStorage) -> None:
    path = numbers.store.dataset("numbers").files.path(0)
    with pytest.raises(NotFoundError, match=f"no file {path[:-1]} is indexed in dataset 'numbers'.*{path}"):
        numbers.client.forget_file("numbers", path[:-1])
