"""Files whose parser crashes, hangs or takes all memory: set aside, and nothing else comes of it."""

from __future__ import annotations

import gc
import os
import signal
import time
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
from modyn.errors import DataError
from modyn.storage.files.file_system import UnusableNowError
from modyn.storage.formats import FILE_FORMATS, REGISTRY, build_format
from modyn.storage.formats.base import FileFormat, FormatConfig
from modyn.storage.formats.csv import CsvFormat
from modyn.storage.ingest.format_runner import FILES_TOGETHER, FormatRunner, IndexingBounds, _Packed
from modyn.storage.ingest.limits import IngestLimits
from modyn.storage.model.samples import IndexedFiles, IndexedSamples
from modyn.storage.model.schema import DatasetSchema, SchemaColumn
from modyn.testing.waiting import eventually
from modyn.workers.bounded_process import BoundedProcess, EndedError
from tests.support.running_storage import RunningStorage, binary_dataset, start_storage, write_records
from tests.support.unruly_formats import Unruly, UnrulyHere, UnrulyTogether

pytestmark = pytest.mark.usefixtures("bare_fork_server")

MEMORY = 1 << 28


@pytest.fixture
def runner() -> Iterator[FormatRunner]:
    with closing(FormatRunner()) as made:
        yield made


@pytest.fixture
def storage(make_config: Callable[..., SystemConfig], quick_config: SystemConfig, stack: ExitStack) -> RunningStorage:
    """A service whose processes may take little memory."""
    settings = {"settle_s": 0.05, "indexing_memory_bytes": MEMORY}
    return start_storage(make_config(state_dir=quick_config.state_dir, storage=settings), stack)


def register(storage: RunningStorage, folder: Path, kind: type[FileFormat], **files: str) -> None:
    folder.mkdir()
    for i, (name, content) in enumerate(files.items()):
        (folder / f"{name}.u").write_text(content)
        os.utime(folder / f"{name}.u", (1000 + i, 1000 + i))
    storage.client.register_dataset(binary_dataset(folder, "unruly"))
    storage.store.dataset("unruly").format = kind(FormatConfig())


def looked(storage: RunningStorage) -> dict[str, str]:
    """The reasons after a look as of a watcher."""
    storage.store._scan(storage.store.dataset("unruly"))
    return storage.reasons("unruly")


def labels(storage: RunningStorage) -> list[int]:
    return sorted(
        storage.client.samples_by_key("unruly", np.arange(storage.client.dataset("unruly").num_samples)).labels.tolist()
    )


@pytest.mark.parametrize("kind", [Unruly, UnrulyTogether])
def test_a_file_at_which_its_parser_crashes_is_set_aside_and_the_others_are_indexed(
    storage: RunningStorage, tmp_path: Path, kind: type[FileFormat]
) -> None:
    bad = {"b": "abort", "d": "segv", "f": "allocate"}
    register(storage, tmp_path / "data", kind, a="1", c="3", e="5", g="7", i="9", **bad)
    write_records(tmp_path / "other" / "a.bin", range(5), 1000)
    storage.client.register_dataset(binary_dataset(tmp_path / "other"))
    assert storage.ingest("unruly").problems == len(bad)
    assert labels(storage) == [1, 3, 5, 7, 9]
    found = storage.reasons("unruly")
    read = f"the process in which {kind.__name__} read it"
    advice = (
        "the library that reads it failed, which a damaged file, or one of a newer kind, brings about: write it again, in another way; the other "
        "files are indexed, and the log of storage may say more"
    )
    ends = {
        "b": f"crashed: SIGABRT; {advice}",
        "d": f"crashed: SIGSEGV; {advice}",
        "f": f"took more than {MEMORY:,} bytes of memory; write it in smaller parts, or raise storage.indexing_memory_bytes in the "
        "system file",
    }
    for name in bad:
        assert found[f"{name}.u"] == f"{tmp_path / 'data' / name}.u cannot be indexed: {read} {ends[name]}"
    assert storage.ingest("numbers").samples_indexed == 5
    assert looked(storage) == found, "they are not tried again before they change"
    (tmp_path / "data" / "b.u").write_text("2")
    eventually(lambda: "b.u" not in looked(storage))
    assert labels(storage) == [1, 2, 3, 5, 7, 9]


def test_a_page_that_unpacks_to_more_than_a_process_may_hold_is_the_problem_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"x": pa.array([bytes(MEMORY)]), "y": [1]})
    pq.write_table(table, path, use_dictionary=False, compression="zstd", write_statistics=False)
    assert path.stat().st_size < 100_000
    built = build_format("ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "y"})
    with (
        closing(FormatRunner(IndexingBounds(MEMORY))) as runner,
        pytest.raises(DataError, match=r"a\.parquet cannot be indexed: .* memory"),
    ):
        list(runner.index(built, str(path)))


def test_a_file_whose_process_something_else_ends_is_tried_again(storage: RunningStorage, tmp_path: Path) -> None:
    register(storage, tmp_path / "data", Unruly, a="killed", b="2")
    assert storage.ingest("unruly").problems == 1
    (reason,) = storage.reasons("unruly").values()
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
    assert storage.reasons("unruly") == {"a.u": f"Unruly failed on {path}: KeyError; the log of storage has the details"}
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
def test_a_group_of_small_files_is_indexed_in_order_for_any_amount_held(
    storage: RunningStorage, tmp_path: Path, held_samples: int
) -> None:
    """A file that fails does not affect the others of its request."""
    files = {f"{i:02}": str(i) for i in range(20)} | {"05": "segv", "11": "bug", "12": "killed"}
    register(storage, tmp_path / "data", Unruly, **files)
    storage.store.dataset("unruly").limits = IngestLimits(held_samples=held_samples)
    assert storage.ingest("unruly").problems == 3
    found = storage.client.samples_by_key("unruly", np.arange(17)).labels.tolist()
    assert found == [i for i in range(20) if i not in (5, 11, 12)]
    assert sorted(storage.reasons("unruly")) == ["05.u", "11.u", "12.u"]


def test_files_that_hang_one_after_the_other_are_left_to_the_next_look(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.u" for i in range(8)]
    for path in paths:
        path.write_text("hang")
    with closing(FormatRunner(IndexingBounds(timeout_s=0.5))) as runner:
        found = runner.index_files(UnrulyTogether(FormatConfig()), list(map(str, paths)))
    assert list(found.problems) == list(range(8))
    left = [i for i, error in found.problems.items() if "is not indexed yet: other files took 1 s" in error.message]
    assert left == list(range(1, 8)), "all together take half a second, and so does the first one"
    assert all("it is tried again" in error.message for error in found.problems.values())


def test_a_file_that_waits_hinders_the_others_once(
    make_config: Callable[..., SystemConfig], quick_config: SystemConfig, stack: ExitStack, tmp_path: Path
) -> None:
    settings = {"settle_s": 0.05, "indexing_timeout_s": 0.5}
    storage = start_storage(make_config(state_dir=quick_config.state_dir, storage=settings), stack)
    register(storage, tmp_path / "data", UnrulyTogether, a="hang", b="1", c="hang", d="2", e="3")

    def are_indexed() -> bool:
        storage.ingest("unruly")
        return storage.client.dataset("unruly").num_samples == 3

    eventually(are_indexed)
    assert labels(storage) == [1, 2, 3]
    assert all("in which it waited" in reason or "other files took" in reason for reason in storage.reasons("unruly").values())
    assert sorted(storage.reasons("unruly")) == ["a.u", "c.u"]


def test_the_start_of_a_process_is_not_part_of_the_time_of_a_file(tmp_path: Path) -> None:
    class SlowToStart(FormatRunner):
        """Each process starts as slowly as two requests may last."""

        def _start(self) -> BoundedProcess:
            time.sleep(0.4)
            return super()._start()

    with closing(SlowToStart(IndexingBounds(timeout_s=0.2))) as runner:
        _, problems = together(runner, tmp_path, ["hang", "hang"])
    assert "gave no answer" in problems[0], "it was asked alone"


def together(runner: FormatRunner, folder: Path, contents: list[str]) -> tuple[IndexedFiles, dict[int, str]]:
    """Return the samples and problems of files that are indexed together."""
    paths = [folder / f"{i}.u" for i in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    found = runner.index_files(UnrulyTogether(FormatConfig()), list(map(str, paths)))
    return found, {i: error.message for i, error in found.problems.items()}


def test_of_files_that_are_indexed_together_one_that_fails_hinders_no_other(runner: FormatRunner, tmp_path: Path) -> None:
    bad = {30: "bug", 40: "killed", 50: "segv", FILES_TOGETHER + 3: "bug"}
    found, problems = together(runner, tmp_path, [bad.get(i, str(i)) for i in range(FILES_TOGETHER + 10)])
    assert problems.keys() == bad.keys()
    for i, reason in problems.items():
        assert str(tmp_path / f"{i}.u") in reason
    assert found.labels[found.good()].tolist() == found.good().tolist()
    assert len(found.good()) == FILES_TOGETHER + 6


def test_files_that_are_indexed_together_take_one_process_and_one_more_for_each_that_ends_it(
    runner: FormatRunner, tmp_path: Path
) -> None:
    processes = {int(together(runner, tmp_path, ["1", "2", "3"])[0].timestamps[0]) for _ in range(5)}
    assert len(processes) == 1
    found, problems = together(runner, tmp_path, [str(i) if i != 20 else "segv" for i in range(60)])
    assert list(problems) == [20]
    assert len(set(found.timestamps[found.good()].tolist())) == 2, "before the file that ends it, and after"


class Lacking(FormatRunner):
    """A machine without memory for another process."""

    num_started = 0

    def _start(self) -> BoundedProcess:
        self.num_started += 1
        raise EndedError("could not be started: Resource temporarily unavailable")


def test_what_the_machine_lacks_is_asked_for_once_and_is_the_problem_of_each_file(tmp_path: Path) -> None:
    with closing(Lacking()) as runner:
        _, problems = together(runner, tmp_path, ["1", "2", "3"])
    assert runner.num_started == 1
    for i, reason in problems.items():
        assert reason.startswith(f"{tmp_path / str(i)}.u cannot be indexed: ")
        assert reason.endswith("could not be started: Resource temporarily unavailable; it is tried again")
    assert list(problems) == [0, 1, 2]


class KilledOnTheWay(FormatRunner):
    """Something kills each idle process between the look at it and the request."""

    def _take(self) -> BoundedProcess | None:
        if (process := super()._take()) is not None:
            os.kill(process.pid, signal.SIGKILL)
            eventually(lambda: process.has_ended)
        return process


def test_a_process_that_is_killed_before_it_is_asked_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.u").write_text("1")
    with closing(KilledOnTheWay()) as runner:
        found = [next(runner.index(Unruly(FormatConfig()), str(tmp_path / "a.u"))) for _ in range(3)]
        assert len({chunk.timestamps for chunk in found}) == 3


def test_a_file_is_blamed_for_the_silence_of_a_process_that_works(tmp_path: Path) -> None:
    """A waiting process may wait for a disk. A working process is not at fault if a busy machine gives it too little processor time."""
    (tmp_path / "h.u").write_text("hang")
    (tmp_path / "s.u").write_text("spin")

    def problem(runner: FormatRunner, path: Path) -> DataError:
        with pytest.raises(DataError, match="gave no answer for 0.5 s") as caught:
            list(runner.index(Unruly(FormatConfig()), str(path)))
        return caught.value

    def blamed(runner: FormatRunner) -> bool:
        error = problem(runner, tmp_path / "s.u")
        is_bad = not isinstance(error, UnusableNowError)
        assert error.message.endswith("correct it, or raise storage.indexing_timeout_s in the system file") == is_bad
        return is_bad

    with closing(FormatRunner(IndexingBounds(timeout_s=0.5))) as runner:
        waits = problem(runner, tmp_path / "h.u")
        assert isinstance(waits, UnusableNowError)
        assert waits.message.endswith("in which it waited: for a disk, a server or a processor; it is tried again")
        eventually(lambda: blamed(runner))


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


def test_the_garbage_collector_may_end_a_request_at_any_moment(runner: FormatRunner, tmp_path: Path) -> None:
    (tmp_path / "a.u").write_text("1")
    left = [runner.index(Unruly(FormatConfig()), str(tmp_path / "a.u"))]
    pid = next(left[0]).timestamps
    left.append(left)  # type: ignore[arg-type]
    del left
    with runner._lock:  # where a collection waited for this very thread
        gc.collect()
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_format_of_our_own_indexes_here(runner: FormatRunner, tmp_path: Path) -> None:
    (tmp_path / "a.u").write_text("1")
    (chunk,) = runner.index(UnrulyHere(FormatConfig()), str(tmp_path / "a.u"))
    assert chunk.timestamps == os.getpid()


def test_which_formats_are_isolated() -> None:
    """Formats are isolated if foreign libraries read their files, or if they belong to another package, even if they extend one of ours."""

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
    built = build_format("ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "y"})
    same(runner, built, path)
    for decided in ("string", "binary"):
        built.schema = DatasetSchema("values", (SchemaColumn("x", decided),), "first.parquet")
        same(runner, built, path)


def same(runner: FormatRunner, built: FileFormat, path: Path) -> None:
    here, there = list(built.index(str(path))), list(runner.index(built, str(path)))
    assert len(here) == len(there)
    for mine, other in zip(here, there, strict=True):
        for column in ("offsets", "lengths", "labels", "timestamps"):
            assert np.array_equal(getattr(mine, column), getattr(other, column))
        assert (mine.end, list(mine.skipped), mine.schema) == (other.end, list(other.skipped), other.schema)


@given(st.lists(st.integers(0, 100), max_size=6, unique=True), st.integers(0, 10**9))
def test_offsets_are_sent_as_they_are_or_as_a_range(numbers: list[int], first: int) -> None:
    offsets = np.array(numbers, np.int64) + first
    found = IndexedSamples(offsets, 1, np.zeros(len(offsets), np.int64), 0, 0)
    back = _Packed.of(found, None).samples(None).offsets
    assert (back.tolist(), back.dtype) == (offsets.tolist(), np.dtype(np.int64))
