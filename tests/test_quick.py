"""`make quick` finds the tests that a change can have broken, the nearest first, and says what it left out."""

from __future__ import annotations

import os
import subprocess
import sys
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
    with pytest.raises(SystemExit, match=r"'gone' is no commit of this repository; say `make quick BASE=main`"):
        changed_files(root, "gone")


def test_without_a_main_branch_the_last_commit_is_the_base(root: Path) -> None:
    git(root, "branch", "--move", "trunk")
    assert default_base(root) == "HEAD"


@pytest.mark.parametrize(("seconds", "left"), [(0.0, ["tests/test_a.py", "tests/test_b.py"]), (1000.0, [])])
def test_what_there_was_no_time_for_is_named(root: Path, seconds: float, left: list[str]) -> None:
    files = ["tests/test_b.py", "tests/test_a.py"]
    program = (
        f"import pytest; from tests.support.quick import Deadline; files = {files}; deadline = Deadline({seconds}, files)\n"
        "pytest.main(['-q', '--rootdir', '.', *files], plugins=[deadline]); print(deadline.failed, sorted(deadline.left_out()))"
    )
    for name in files:
        (root / name).write_text("def test_one():\n    pass\n\n\ndef test_other():\n    pass\n")
    (root / "tests" / "support" / "quick.py").write_text(Path(quick.__file__).read_text())
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([sys.executable, "-c", program], cwd=root, env=alone, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"False {left}", done.stdout + done.stderr
    assert ("4 passed" in done.stdout) == (not left)
