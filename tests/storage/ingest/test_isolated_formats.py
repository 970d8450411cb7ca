"""Files whose parser crashes, hangs or takes all memory: set aside, and nothing else comes of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.system import SystemConfig
from modyn.storage.files.file_system import UnusableNowError
from modyn.storage.formats import FILE_FORMATS, REGISTRY, build_format
from modyn.storage.formats.base import FileFormat, FormatConfig
from modyn.storage.formats.csv import CsvFormat
from modyn.storage.ingest.format_runner import FormatRunner, IndexingBounds, _Packed
from modyn.storage.ingest.limits import IngestLimits
from modyn.storage.model.samples import IndexedSamples
from modyn.testing.waiting import eventually
from tests.support.running_storage import RunningStorage, binary_dataset, start_storage, write_records
from tests.support.unruly_formats import Unruly, UnrulyHere, UnrulyTogether

MEMORY = 1 << 28


@pytest.fixture
def runner() -> Iterator[FormatRunner]:
    with closing(FormatRunner()) as made:
        yield made


@pytest.fixture
def storage(make_config: Callable[..., SystemConfig], quick_config: SystemConfig, stack: ExitStack) -> RunningStorage:
    """A service whose processes may take little memory and little time."""
    settings = {"settle_s": 0.05, "indexing_memory_bytes": MEMORY, "indexing_timeout_s": 1.0}
    return start_storage(make_config(state_dir=quick_config.state_dir, storage=settings), stack)


def register(storage: RunningStorage, folder: Path, kind: type[FileFormat], **files: str) -> None:
    folder.mkdir()
    for i, (name, content) in enumerate(files.items()):
        (folder / f"{name}.u").write_text(content)
        os.utime(folder / f"{name}.u", (1000 + i, 1000 + i))
    storage.client.register_dataset(binary_dataset(folder, "unruly"))
    storage.store.dataset("unruly").format = kind(FormatConfig())


def reasons(storage: RunningStorage) -> dict[str, str]:
    return {os.path.basename(problem.path): problem.reason for problem in storage.client.problems("unruly")}


def looked(storage: RunningStorage) -> dict[str, str]:
    """The reasons after a look as of a watcher."""
    storage.store._scan(storage.store.dataset("unruly"))
    return reasons(storage)


def labels(storage: RunningStorage) -> list[int]:
    return sorted(
        storage.client.samples_by_key("unruly", np.arange(storage.client.dataset("unruly").num_samples)).labels.tolist()
    )


@pytest.mark.parametrize("kind", [Unruly, UnrulyTogether])
def test_a_file_at_which_its_parser_crashes_or_hangs_is_set_aside_and_the_others_are_indexed(
    storage: RunningStorage, tmp_path: Path, kind: type[FileFormat]
) -> None:
    bad = {"b": "abort", "d": "segv", "f": "allocate"}
    if kind is Unruly:
        bad["h"] = "hang"
    register(storage, tmp_path / "data", kind, a="1", c="3", e="5", g="7", i="9", **bad)
    write_records(tmp_path / "other" / "a.bin", range(5), 1000)
    storage.client.register_dataset(binary_dataset(tmp_path / "other"))
    assert storage.ingest("unruly").problems == len(bad)
    assert labels(storage) == [1, 3, 5, 7, 9]
    found = reasons(storage)
    read = f"the process in which {kind.__name__} read it"
    ends = {
        "b": "crashed: SIGABRT; write it again; the log of storage may say where that was",
        "d": "crashed: SIGSEGV; write it again; the log of storage may say where that was",
        "f": f"took more than {MEMORY:,} bytes of memory; write it in smaller parts, or raise storage.indexing_memory_bytes in the "
        "system file",
        "h": "gave no answer for 1 s; correct it, or raise storage.indexing_timeout_s in the system file",
    }
    for name in bad:
        assert found[f"{name}.u"] == f"{tmp_path / 'data' / name}.u cannot be indexed: {read} {ends[name]}"
    assert storage.ingest("numbers").samples_indexed == 5
    assert looked(storage) == found, "they are not tried again before they change"
    (tmp_path / "data" / "b.u").write_text("2")
    eventually(lambda: "b.u" not in looked(storage))
    assert labels(storage) == [1, 2, 3, 5, 7, 9]


def test_a_file_whose_process_something_else_ends_is_tried_again(storage: RunningStorage, tmp_path: Path) -> None:
    register(storage, tmp_path / "data", Unruly, a="killed", b="2")
    assert storage.ingest("unruly").problems == 1
    (reason,) = reasons(storage).values()
    assert reason.endswith("was ended by SIGKILL, which is what the kernel sends when memory runs out; it is tried again")
    content = (tmp_path / "data" / "a.u").stat()
    (tmp_path / "data" / "a.u").write_text("000001")  # as long, and of the same time
    os.utime(tmp_path / "data" / "a.u", ns=(content.st_mtime_ns, content.st_mtime_ns))
    eventually(lambda: not looked(storage))
    assert labels(storage) == [1, 2]


def test_an_error_of_the_parser_is_tried_again(storage: RunningStorage, tmp_path: Path) -> None:
    register(storage, tmp_path / "data", Unruly, a="bug", b="2")
    assert storage.ingest("unruly").problems == 1
    path = tmp_path / "data" / "a.u"
    assert reasons(storage) == {"a.u": f"Unruly failed on {path}: KeyError; the log of storage has the details"}
    assert labels(storage) == [2]


def test_nothing_is_lost_when_the_process_is_killed_between_two_files(storage: RunningStorage, tmp_path: Path) -> None:
    register(storage, tmp_path / "data", Unruly, a="1")
    storage.ingest("unruly")
    for number in (2, 3):
        (killed,) = {process.pid for process in storage.store._runner._idle}
        os.kill(killed, signal.SIGKILL)
        (tmp_path / "data" / f"{number}.u").write_text(str(number))
        assert storage.ingest("unruly").problems == 0
        assert labels(storage) == list(range(1, number + 1))


@pytest.mark.parametrize("held_samples", [1, 3, 100])
def test_a_group_of_small_files_is_indexed_in_order_whatever_is_held_of_it(
    storage: RunningStorage, tmp_path: Path, held_samples: int
) -> None:
    """Of one file that fails, the others of its request are none the worse."""
    files = {f"{i:02}": str(i) for i in range(20)} | {"05": "segv", "11": "bug", "12": "killed"}
    register(storage, tmp_path / "data", Unruly, **files)
    storage.store.dataset("unruly").limits = IngestLimits(held_samples=held_samples)
    assert storage.ingest("unruly").problems == 3
    found = storage.client.samples_by_key("unruly", np.arange(17)).labels.tolist()
    assert found == [i for i in range(20) if i not in (5, 11, 12)]
    assert sorted(reasons(storage)) == ["05.u", "11.u", "12.u"]


def test_files_that_hang_one_after_the_other_are_left_to_the_next_look(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.u" for i in range(8)]
    for path in paths:
        path.write_text("hang")
    with closing(FormatRunner(IndexingBounds(timeout_s=0.5))) as runner:
        found = runner.index_files(UnrulyTogether(FormatConfig()), list(map(str, paths)))
    assert list(found.problems) == list(range(8))
    left = [i for i, error in found.problems.items() if isinstance(error, UnusableNowError)]
    assert left in (list(range(1, 8)), list(range(2, 8))), "each takes half a second, and all together one"
    assert "it is tried again" in found.problems[7].message


def test_one_process_serves_one_file_after_the_other_and_none_remains(runner: FormatRunner, tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.u" for i in range(20)]
    for i, path in enumerate(paths):
        path.write_text(str(i))
    found = [chunk for path in paths for chunk in runner.index(Unruly(FormatConfig()), str(path))]
    assert [chunk.labels.tolist() for chunk in found] == [[i] for i in range(20)]
    (pid,) = {chunk.timestamps for chunk in found}
    assert pid != os.getpid()
    runner.close()
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_format_of_our_own_indexes_here(runner: FormatRunner, tmp_path: Path) -> None:
    (tmp_path / "a.u").write_text("1")
    (chunk,) = runner.index(UnrulyHere(FormatConfig()), str(tmp_path / "a.u"))
    assert chunk.timestamps == os.getpid()


def test_which_formats_are_isolated() -> None:
    """Those whose files libraries read that are not ours, and all of other packages, also where they extend one of ours."""

    class Extended(CsvFormat):
        """Rows."""

    assert {id_ for id_ in FILE_FORMATS if REGISTRY.get(id_).isolated} == {"ParquetFileWrapper", "JsonLinesFileWrapper"}
    assert Extended.isolated


@pytest.mark.parametrize("source", ["", "field:t"])
def test_lines_are_found_in_a_process_as_they_are_found_here(runner: FormatRunner, tmp_path: Path, source: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"y": {i}, "t": {i * i}}}\n' for i in range(500)) + "bad\n" + '{"y": 7, "t": 8}\n')
    same(runner, build_format("JsonLinesFileWrapper", {"label_field": "y", "max_bad_rows": 5}, source), path)


def test_rows_are_found_in_a_process_as_they_are_found_here(runner: FormatRunner, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [str(i) for i in range(500)], "y": range(500)}), path, row_group_size=70)
    same(runner, build_format("ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "y"}), path)


def same(runner: FormatRunner, built: FileFormat, path: Path) -> None:
    here, there = list(built.index(str(path))), list(runner.index(built, str(path)))
    assert len(here) == len(there)
    for mine, other in zip(here, there, strict=True):
        for column in ("offsets", "lengths", "labels", "timestamps"):
            assert np.array_equal(getattr(mine, column), getattr(other, column))
        assert (mine.end, list(mine.skipped)) == (other.end, list(other.skipped))


@given(st.lists(st.integers(0, 100), max_size=6, unique=True), st.integers(0, 10**9))
def test_offsets_are_sent_as_they_are_or_as_a_range(numbers: list[int], first: int) -> None:
    offsets = np.array(numbers, np.int64) + first
    found = IndexedSamples(offsets, 1, np.zeros(len(offsets), np.int64), 0, 0)
    back = _Packed.of(found).samples().offsets
    assert (back.tolist(), back.dtype) == (offsets.tolist(), np.dtype(np.int64))
