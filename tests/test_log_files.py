"""Logs are rotated without a lost line, and read across rotations."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modyn.log_files import LogLimits, LogReader, rotate


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("copy", [False, True], ids=["rename", "copy"])
def test_a_limited_number_of_older_files_is_kept(tmp_path: Path, copy: bool) -> None:
    log, limits = tmp_path / "x.log", LogLimits(max_bytes=3, keep=2)
    assert not rotate(log, limits, copy=copy)
    for line in ("a", "b", "c", "d"):
        append(log, f"{line}\n")
        assert not rotate(log, limits, copy=copy)
        append(log, f"{line}\n")
        assert rotate(log, limits, copy=copy)
    assert (tmp_path / "x.log.1").read_text() == "d\nd\n"
    assert (tmp_path / "x.log.2").read_text() == "c\nc\n"
    assert names(tmp_path) == [*(["x.log"] if copy else []), "x.log.1", "x.log.2"]
    assert not copy or log.read_text() == ""


@pytest.mark.parametrize("copy", [False, True], ids=["rename", "copy"])
def test_a_reader_gets_each_line_once_regardless_of_rotations(tmp_path: Path, copy: bool) -> None:
    log, limits = tmp_path / "x.log", LogLimits(max_bytes=0, keep=3)
    append(log, "0\n1\n")
    rotate(log, limits, copy=copy)
    append(log, "2\n3")
    reader = LogReader(log)
    assert reader.lines() == ["0", "1", "2"]
    assert reader.lines() == []
    append(log, "\n4\n")
    rotate(log, limits, copy=copy)
    assert reader.lines() == ["3", "4"]
    append(log, "5\n")
    rotate(log, limits, copy=copy)
    append(log, "6\n7 is being writ")
    assert reader.lines() == ["5", "6"]
    append(log, "ten\n")
    assert reader.lines() == ["7 is being written"]
    assert LogReader(log).lines() == ["0", "1", "2", "3", "4", "5", "6", "7 is being written"]
    assert LogReader(tmp_path / "none.log").lines() == []


PROGRAM = """
import itertools, os, subprocess, sys, threading
from pathlib import Path
from modyn.log_files import LogLimits, write_output_to
log = sys.argv[1]
write_output_to(Path(log), LogLimits(max_bytes=1_000, keep=100_000, check_every_s=0.002))
def work(name):
    for number in itertools.count():
        os.write(2, b"%s %d\\n" % (name.encode(), number))
        if Path(log + ".5").exists():
            break
threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
subprocess.run([sys.executable, "-c", "print('child')"])
"""


def test_a_process_that_rotates_its_output_loses_no_line(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    seen: list[str] = []
    reader = LogReader(log)
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(log)]) as process:
        while process.poll() is None:
            seen += reader.lines()
            time.sleep(0.005)
    assert process.returncode == 0
    seen += reader.lines()
    assert len(names(tmp_path)) > 5
    lines = LogReader(log).lines()
    for name in "abc":
        numbers = [int(line.split()[1]) for line in lines if line.startswith(f"{name} ")]
        assert numbers == list(range(len(numbers)))
    assert lines.count("child") == 1
    assert sorted(seen) == sorted(lines)


FULL = """
import json, logging, resource, sys
from modyn.log_files import dropped_lines, protect_output
from modyn.rpc.logs import configure_logs, get_logger

class Odd:
    def __repr__(self):
        raise ValueError("no text")

protect_output()
configure_logs("storage")
logger = get_logger("files")
logger.info("before")
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, unlimited[1]))
logger.info("lost")
logging.getLogger("library").warning("lost too")
print("and this", file=sys.stderr)
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
logger.info("odd", value=Odd())
logger.info("after")
sys.stdout.write(str(dropped_lines()))
"""


def test_lines_that_cannot_be_written_are_counted_and_raise_nothing(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with log.open("ab") as file:
        done = subprocess.run([sys.executable, "-c", FULL], check=False, stdout=subprocess.PIPE, stderr=file, text=True)
    assert (done.returncode, done.stdout) == (0, "4"), log.read_text()
    lines = [json.loads(line) for line in log.read_text().split("\n") if line]
    assert [(line["event"], line.get("number")) for line in lines] == [
        ("before", None),
        ("log_lines_dropped", 3),
        ("log_line_dropped", None),
        ("after", None),
    ]
    assert (lines[2]["line"], lines[2]["error"]) == ("odd", "ValueError")
