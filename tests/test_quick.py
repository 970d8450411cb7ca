"""`make quick` finds the tests that a change can have broken, the nearest first, and says what it left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import quick
from tests.support.quick import affected, changed_files, default_base

FILES = {
    "modyn/__init__.py": "",
    "modyn/low.py": "X = 1\n",
    "modyn/high.py": "def f():\n    from modyn.low import X\n    return X\n",
    "modyn/registry.py": "POLICIES = {'Low': 'modyn.low:X'}\n",
    "modyn/alone.py": "",
    "tests/conftest.py": "",
    "tests/support/tools.py": "import modyn.high\n",
    "tests/test_low.py": "import modyn.low\n",
    "tests/test_high.py": "from modyn import high\n",
    "tests/test_registry.py": "from modyn.registry import POLICIES\n",
    "tests/test_tools.py": "from tests.support.tools import modyn\nPAGE = 'docs/page.md'\n",
    "tests/test_proto.py": "from modyn.proto import storage_pb2\n",
    "tests/test_core.py": "from modyn import _core\n",
    "tests/inner/conftest.py": "import modyn.alone\n",
    "tests/inner/test_inner.py": "",
    "docs/page.md": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", root, *who, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def commit(root: Path) -> str:
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "--message", "x")
    return git(root, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("modyn/low.py", ["tests/test_low.py", "tests/test_high.py", "tests/test_registry.py", "tests/test_tools.py"]),
        ("modyn/high.py", ["tests/test_high.py", "tests/test_tools.py"]),
        ("modyn/alone.py", ["tests/inner/test_inner.py"]),
        ("tests/support/tools.py", ["tests/test_tools.py"]),
        ("tests/test_low.py", ["tests/test_low.py"]),
        ("tests/inner/conftest.py", ["tests/inner/test_inner.py"]),
        ("docs/page.md", ["tests/test_tools.py"]),
        ("protos/modyn/proto/storage.proto", ["tests/test_proto.py"]),
        ("cpp/src/scan.cpp", ["tests/test_core.py"]),
        ("docs/unknown.md", []),
        ("modyn/gone.py", []),
    ],
)
def test_tests_are_found_by_imports(root: Path, changed: str, tests: list[str]) -> None:
    assert affected(root, [changed]) == tests


def test_a_change_of_what_all_tests_share_affects_all(root: Path) -> None:
    assert affected(root, ["tests/conftest.py"]) == sorted(name for name in FILES if "/test_" in name)


def test_committed_uncommitted_deleted_and_untracked_files_are_changes(root: Path) -> None:
    git(root, "switch", "--quiet", "--create", "work")
    (root / "modyn" / "high.py").write_text("")
    commit(root)
    (root / "modyn" / "low.py").write_text("X = 2\n")
    (root / "modyn" / "alone.py").unlink()
    (root / "tests" / "test_new.py").write_text("")
    base = default_base(root)
    assert base == git(root, "rev-parse", "main")[:12]
    assert changed_files(root, base) == ["modyn/alone.py", "modyn/high.py", "modyn/low.py", "tests/test_new.py"]
    assert changed_files(root, "HEAD") == ["modyn/alone.py", "modyn/low.py", "tests/test_new.py"]
    with pytest.raises(SystemExit, match=r"'gone' is not a commit of this repository; say `make quick BASE=main`"):
        changed_files(root, "gone")


def test_without_a_main_branch_the_last_commit_is_the_base(root: Path) -> None:
    git(root, "branch", "--move", "trunk")
    assert default_base(root) == "HEAD"


BLOCKED = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])"


@pytest.mark.parametrize(
    ("last_start", "end", "test", "told"),
    [
        (0, 1000, "pass", "no time for all tests of 2 of 2 files: tests/test_b.py, tests/test_a.py"),
        (1000, 1000, "pass", "all tests of 2 files ran"),
        (1000, 1000, "raise OSError", "failed: tests/test_b.py::test_one\nso it stopped before it had run all tests of 2 of 2 files: {}"),
        (1000, 8, "import time; time.sleep(100)", "cut off, since the time was over: tests/test_b.py::test_one\nno time for all tests of {}"),
        (1000, 2, f"{BLOCKED}; time.sleep(100)", "{}killed, since it did not stop: tests/test_b.py::test_one"),
    ],
    ids=["no time", "enough", "a failure", "a test too long", "a test that does not stop"],
)  # fmt: skip
def test_what_did_not_run_is_named(root: Path, last_start: float, end: float, test: str, told: str) -> None:
    files = ["tests/test_b.py", "tests/test_a.py"]
    program = (
        "import pytest, time; from tests.support.quick import Deadline; now = time.monotonic()\n"
        f"files = {files}; deadline = Deadline(now + {last_start}, files, now + {end})\n"
        "pytest.main(['-q', '-x', '--rootdir', '.', *files], plugins=[deadline]); deadline.close(); print(deadline.summary())"
    )
    for name in files:
        head = BLOCKED if BLOCKED in test else ""
        (root / name).write_text(f"{head}\ndef test_one():\n    {test}\n\n\ndef test_other():\n    pass\n")
    (root / "tests" / "support" / "quick.py").write_text(Path(quick.__file__).read_text())
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([sys.executable, "-c", program], cwd=root, env=alone, capture_output=True, text=True, check=False)
    first, _, last = told.partition("{}")
    assert first in done.stdout, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith(last), done.stdout + done.stderr
    assert ("4 passed" in done.stdout) == (told == "all tests of 2 files ran")


def test_the_clock_starts_with_make_and_setup_takes_of_the_time() -> None:
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "BASE")}
    command = ["make", "--dry-run", "quick"]
    shown = subprocess.run(command, cwd=quick.ROOT, env=alone, capture_output=True, text=True, check=True).stdout
    began = re.search(r"tests\.support\.quick --base \"\" --began (\d+)$", shown, re.MULTILINE)
    assert began is not None, shown
    assert abs(int(began[1]) - time.time()) < 600


def test_where_others_took_all_the_time_nothing_runs(root: Path) -> None:
    (root / "tests" / "support" / "quick.py").write_text(Path(quick.__file__).read_text())
    (root / "tests" / "test_low.py").write_text("import modyn.low\n\n\ndef test_one():\n    pass\n")
    command = [sys.executable, "-m", "tests.support.quick", "--began", str(time.time() - 80)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "no time for all tests of" in done.stdout, done.stdout + done.stderr
    assert "tests/test_low.py" in done.stdout
