"""Run the tests that a change can have broken, those nearest to it first, for as long as there is time: `make quick`.

No test starts in the last sixth of the time. One that still runs shortly before its end is cut off, and named.

A test file is as far from a changed file as the shortest chain of imports between them is long. `"modyn.package.module:name"` in a registry counts
as an import, the conftest.py files above a test do, and the name of another file in a test's text does.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("modyn", "tests", "benchmark", "examples")
SHOWN = 20
CUT_OFF_S = 7.0
"""Before the end: a test that still runs is cut off, and has so long to stop its services."""
UPSTREAM = ("@{upstream}", "origin/main", "main")
_IN_TEXT = re.compile(r"(?:modyn|tests|benchmark|examples)(?:\.\w+)+")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code of pytest, 0 if there is nothing to run."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.quick", description=__doc__)
    parser.add_argument("--base", default="", help="commit to compare with; default: where this branch left its upstream or main")
    parser.add_argument("--seconds", type=float, default=90.0, help="all that it takes")
    parser.add_argument("--began", type=float, default=time.time(), help="when that began, as `date +%%s` has it")
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.began + options.seconds - time.time()
    base = options.base or default_base(ROOT)
    changed = changed_files(ROOT, base)
    chosen = affected(ROOT, changed)
    print(f"{len(changed)} files differ from {base}; {len(chosen)} test files can be affected", flush=True)
    if not chosen:
        return 0
    deadline = Deadline(end - options.seconds / 6, chosen, end)
    marks = ["-m", "not slow and not exhaustive"]
    code = pytest.main(["-q", "-x", "--no-header", *marks, *(str(ROOT / path) for path in chosen)], plugins=[deadline])
    deadline.close()
    print(deadline.summary())
    # All that was collected may be slow, or come too late.
    may_be = (pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.INTERRUPTED)
    return 0 if code in may_be and not deadline.failed else int(code)


class Deadline:
    """Collects and starts nothing once the time is over, ends the test that runs too long, and keeps the order of the files."""

    def __init__(self, last_start: float, files: Sequence[str], end: float) -> None:
        """Args: last_start: by `time.monotonic`; a third of the time until then goes into imports of tests at most. end: of the process."""
        now = time.monotonic()
        self._last_import, self._last_start, self._end = now + (last_start - now) / 3, last_start, end
        self._order = {path: number for number, path in enumerate(files)}
        self._left = dict.fromkeys(files)
        self._last: dict[str, str] = {}
        self._running, self._output = "", os.dup(1)  # pytest takes the first while a test runs
        self._is_closed = threading.Event()
        self.cut_off = ""
        """The test that was."""
        self.failed: list[str] = []
        """Tests and files that failed."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        if isinstance(collector, pytest.Module) and time.monotonic() > self._last_import:
            return pytest.CollectReport(collector.nodeid, "passed", None, [])
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._order[_relative(item)])
        last = {_relative(item): item.nodeid for item in items}
        self._last = {nodeid: path for path, nodeid in last.items()}

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        if report.when == "teardown" and report.nodeid in self._last:
            self._left.pop(self._last[report.nodeid], None)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if time.monotonic() > self._last_start:
            item.session.shouldstop = "the time is over"
            return True
        is_first, self._running = not self._running, item.nodeid
        if is_first:
            signal.signal(signal.SIGUSR2, self._interrupt)  # SIGALRM is that of pytest-timeout
            threading.Thread(target=self._watch, args=(threading.get_ident(),), daemon=True).start()
        return None

    def _watch(self, main_thread: int) -> None:
        if not self._is_closed.wait(max(0.0, self._end - CUT_OFF_S - time.monotonic())):
            signal.pthread_kill(main_thread, signal.SIGUSR2)
        if not self._is_closed.wait(max(0.0, self._end - time.monotonic())):
            os.write(self._output, f"{self.summary()}\nkilled, since it did not stop: {self._running}\n".encode())
            os._exit(pytest.ExitCode.INTERRUPTED)

    def _interrupt(self, *_: object) -> None:
        if not self._is_closed.is_set():
            self.cut_off = self._running
            raise KeyboardInterrupt

    def close(self) -> None:
        """The tests have ended."""
        self._is_closed.set()

    def left_out(self) -> list[str]:
        """Files of which not every test ran."""
        return list(self._left)

    def summary(self) -> str:
        """Return lines that name the tests that did not run, and the reasons."""
        left = self.left_out()
        shown = ", ".join(left[:SHOWN]) + (f" and {len(left) - SHOWN} others" if len(left) > SHOWN else "")
        files = f"all tests of {len(left)} of {len(self._order)} files: {shown}"
        lines = [f"cut off, since the time was over: {self.cut_off}"] if self.cut_off else []
        if self.failed:
            lines.append(f"failed: {', '.join(dict.fromkeys(self.failed))}")
            lines += [f"so it stopped before it had run {files}"] if left else []
        elif left:
            lines.append(f"no time for {files}")
        return "\n".join(lines) or f"all tests of {len(self._order)} files ran"


def _relative(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).as_posix()


def default_base(root: Path) -> str:
    """The commit at which the branch left its upstream or main; HEAD where there is neither, which compares with the last commit."""
    for name in UPSTREAM:
        if found := _git(root, "merge-base", "HEAD", name, check=False):
            return found[0][:12]
    return "HEAD"


def changed_files(root: Path, base: str) -> list[str]:
    """Files that differ from `base`: committed since, uncommitted, untracked, deleted. Raises: SystemExit: `base` is no commit here."""
    if not _git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}", check=False):
        raise SystemExit(f"'{base}' is not a commit of this repository; say `make quick BASE=main` or another one")
    return sorted({
        *_git(root, "diff", "--name-only", "--no-renames", base),
        *_git(root, "ls-files", "--others", "--exclude-standard"),
    })  # fmt: skip


def affected(root: Path, changed: Iterable[str]) -> list[str]:
    """Test files that a change of these files can break, the nearest first. Paths are relative to `root`."""
    modules = {_module(path): path for folder in FOLDERS for path in _python_files(root, folder)}
    known = set(modules)
    users: dict[str, set[str]] = {}
    for name, path in modules.items():
        for used in {*_imported(root / path, known), *_conftests(path, known)}:
            users.setdefault(used, set()).add(name)
    distance: dict[str, int] = {}
    waiting: deque[tuple[str, int]] = deque()
    for path in changed:
        waiting += [(name, 0) for name in _starts(root, path, modules)]
    while waiting:
        name, far = waiting.popleft()
        if name not in distance:
            distance[name] = far
            waiting += [(user, far + 1) for user in users.get(name, ())]
    tests = [(far, modules[name]) for name, far in distance.items() if name in modules and _is_test(modules[name])]
    return [path for _, path in sorted(tests)]


def _starts(root: Path, path: str, modules: dict[str, str]) -> Iterator[str]:
    """Names of the modules that a changed file is, or that depend on it though they do not import it."""
    if path.startswith("cpp/"):
        yield "modyn._core"
    elif path.startswith("protos/"):
        name = Path(path).stem
        yield from (f"modyn.proto.{name}_pb2", f"modyn.proto.{name}_pb2_grpc")
    elif path.endswith(".py"):
        yield _module(path)
    else:
        names = [name for name, file in modules.items() if _is_test(file) and Path(path).name in _text(root / file)]
        yield from names


def _git(root: Path, *arguments: str, check: bool = True) -> list[str]:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines() if done.returncode == 0 else []


def _python_files(root: Path, folder: str) -> Iterator[str]:
    for path in (root / folder).rglob("*.py"):
        relative = path.relative_to(root).as_posix()
        if not relative.startswith("modyn/proto/") and "/build/" not in relative:
            yield relative


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_test(path: str) -> bool:
    return path.startswith("tests/") and Path(path).name.startswith("test_")


def _conftests(path: str, known: set[str]) -> Iterator[str]:
    if path.startswith("tests/"):
        parents = (_module((parent / "conftest.py").as_posix()) for parent in Path(path).parents if parent.parts)
        yield from (name for name in parents if name in known and name != _module(path))


@cache
def _text(path: Path) -> str:
    return path.read_text()


def _imported(path: Path, known: set[str]) -> Iterator[str]:
    """Modules that a file imports anywhere, or names in a string, and the packages that they are in."""
    try:
        tree = ast.parse(_text(path))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
            names = _IN_TEXT.findall(node.value)
        for name in names:
            if name in known or name.startswith(("modyn.proto.", "modyn._core")):
                yield name


if __name__ == "__main__":
    sys.exit(main())
