"""Files of modules whose change ends a session."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from modyn.workers.worker_process import ImportedFiles


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    (tmp_path / "early_package").mkdir()
    (tmp_path / "early_package" / "__init__.py").write_text("")
    importlib.import_module("early_package")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_that_is_altered_or_removed_has_changed(folder: Path) -> None:
    path = folder / "late_module.py"
    path.write_text("VALUE = 1")
    os.utime(path, (1, 1))
    files = ImportedFiles()
    importlib.import_module("late_module")
    files.remember()
    assert not files.have_changed()
    path.write_text("VALUE = 22")
    assert files.have_changed()
    path.unlink()
    assert files.have_changed()


def test_a_module_that_was_written_after_the_look_before_may_not_be_what_was_imported(folder: Path) -> None:
    files = ImportedFiles()
    path = folder / "fresh_module.py"
    path.write_text("VALUE = 1")
    os.utime(path, (2**33, 2**33))
    importlib.import_module("fresh_module")
    files.remember()
    assert files.have_changed()


def test_modules_of_packages_that_were_there_do_not_count(folder: Path) -> None:
    files = ImportedFiles()
    path = folder / "early_package" / "generated.py"
    path.write_text("VALUE = 1")
    importlib.import_module("early_package.generated")
    files.remember()
    path.write_text("VALUE = 22")
    assert not files.have_changed()
