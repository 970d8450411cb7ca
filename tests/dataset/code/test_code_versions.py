"""Changes of code that change the code version."""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from modyn.dataset.code.code_versions import code_version

_NUMBERS = itertools.count()
_IMPORTS = ("import {0}\n", "from {0} import VALUE\n", "def late():\n    from {0} import VALUE\n    return VALUE\n")
_FORMS = st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from(_IMPORTS))


@given(edges=st.lists(_FORMS, max_size=8), changed=st.integers(0, 4), packages=st.sets(st.integers(0, 4)))
def test_code_is_another_version_where_a_local_module_that_it_reaches_has_changed(
    tmp_path: Path, edges: list[tuple[int, int, str]], changed: int, packages: set[int]
) -> None:
    """Module 0 is named; any graph of imports, cycles too, among modules and packages (whose import stands in a submodule)."""
    number = next(_NUMBERS)
    folder = tmp_path / str(number)
    names = [f"local_{number}_{i}" for i in range(5)]
    for i, name in enumerate(names):
        file = folder / name / "inner.py" if i in packages else folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("VALUE = 1\n" + "".join(form.format(names[to]) for start, to, form in edges if start == i))
    reached = {0}
    for _ in names:
        reached |= {to for start, to, _ in edges if start in reached}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        importlib.invalidate_caches()
        section = {"bytes_parser_function": f"{names[0]}:f"}
        before = code_version(section)
        assert code_version(section) == before
        file = folder / names[changed] / "inner.py" if changed in packages else folder / f"{names[changed]}.py"
        file.write_text(file.read_text() + "OTHER = 2\n")
        assert (code_version(section) != before) == (changed in reached)


def test_libraries_that_decode_count_by_their_versions_for_any_code() -> None:
    found = code_version({})
    assert {name for name, number in found.items() if number} >= {"modyn", "numpy", "pillow", "torch"}
    assert code_version({"bytes_parser_function": "import simplejpeg"}).keys() == found.keys() >= {"simplejpeg", "torchvision"}


def test_installed_packages_that_local_code_imports_count_by_their_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "local_with_pydantic.py").write_text("import json\nimport pydantic\nimport no_such_package\nimport torch\n")
    (tmp_path / "broken_local.py").write_text("this is no Python\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = code_version({"tokenizer": "local_with_pydantic:f", "bytes_parser_function": "broken_local:f"})
    assert found["pydantic"] == importlib.metadata.version("pydantic")
    assert found["no_such_package"] == ""
    assert len(found["broken_local"]) == len(found["local_with_pydantic"]) > 20
    assert not {"json", "annotated_types"} & set(found)


def test_of_code_that_reaches_more_files_than_are_read_only_the_named_part_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, reached = tmp_path / "names_a_large_local.py", tmp_path / "very_large_local"
    named.write_text("import very_large_local\n")
    reached.mkdir()
    for i in range(2001):
        (reached / f"m{i}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    section = {"tokenizer": f"{named.stem}:f"}
    with capture_logs() as logs:
        before = code_version(section)
        assert code_version(section) == before
        (reached / "m0.py").write_text("VALUE = 1\n")
        assert code_version(section) == before
        named.write_text("import very_large_local as large\n")
        assert code_version(section) != before
    assert [(line["event"], line["packages"]) for line in logs] == [("imports_not_followed", [named.stem])]


def test_a_named_package_of_more_files_than_are_read_counts_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "large_and_named"
    package.mkdir()
    for i in range(2001):
        (package / f"m{i}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    section = {"tokenizer": "large_and_named:f"}
    before = code_version(section)
    assert code_version(section) == before
    (package / "m2000.py").write_text("VALUE = 1\n")
    assert code_version(section) != before
