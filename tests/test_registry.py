"""Policies are found by id, ours and those of installed packages, and nothing is imported before it is used."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from modyn.errors import ConfigError
from modyn.registry import Plugin, Registry, load_object, nearest
from tests.support.plugins import write_metadata


def registry(**builtin: str) -> Registry[object]:
    return Registry("modyn.tests", "colour", builtin)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with one installed distribution that brings the colour `Green`."""
    write_metadata(tmp_path, "paint", {"modyn.tests": {"Green": "paint:Green"}})
    (tmp_path / "paint.py").write_text("class Green: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_ours_and_installed_ones_are_found_alike(installed: Path) -> None:
    colours = registry(Red="fractions:Fraction")
    assert colours.ids() == ["Green", "Red"]
    assert colours.get("Green").__name__ == "Green"  # type: ignore[attr-defined]
    assert colours.plugins["Green"] == Plugin("modyn.tests", "Green", "paint:Green", "paint")
    assert colours.plugins["Red"].distribution == "modyn"
    assert "Green" in colours
    assert "Blue" not in colours


def test_a_package_that_takes_the_name_of_a_builtin_is_listed_as_broken(installed: Path) -> None:
    colours = registry(Green="decimal:Decimal", Red="fractions:Fraction")
    assert colours.get("Green") is Decimal
    assert colours.ids() == ["Green", "Red"]
    problem = "colour 'Green' of package paint (paint:Green) has the name of a built-in one, which is used: rename it or uninstall the package"
    assert [(plugin.id, plugin.distribution, plugin.problem) for plugin in colours.listed()] == [
        ("Green", "modyn", ""),
        ("Green", "paint", problem),
        ("Red", "modyn", ""),
    ]
    assert colours.preload() == problem


def test_two_packages_with_one_id_are_told(
    installed: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    write_metadata(other, "dye", {"modyn.tests": {"Green": "dye:Green"}})
    monkeypatch.syspath_prepend(str(other))
    with pytest.raises(ConfigError, match=r"registered twice.*(dye.*paint|paint.*dye)"):
        registry().get("Green")
    assert registry(Green="decimal:Decimal").get("Green") is Decimal


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise RuntimeError('no paint')", "cannot import 'paint:Green': RuntimeError: no paint"),
        ("class Green pass", "cannot import 'paint:Green': SyntaxError"),
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("class Green: pass", "the colour paint:Green has no class `Config` of its options.*correct the package paint"),
    ],
)
def test_a_broken_package_fails_only_what_names_it(installed: Path, source: str, told: str) -> None:
    (installed / "paint.py").write_text(source)
    sys.modules.pop("paint", None)
    colours = registry(Red="fractions:Fraction")
    colours.preload()
    assert re.search(told, colours.problem("Green"))
    assert "paint" in colours.problem("Green")
    assert colours.ids() == ["Green", "Red"]
    assert colours.get("Red") is Fraction


def test_an_unknown_id_names_the_nearest_all_and_how_to_add_one() -> None:
    colours = registry(Red="fractions:Fraction", Yellow="decimal:Decimal")
    with pytest.raises(ConfigError) as caught:
        colours.get("Yelow")
    assert caught.value.message == (
        "there is no colour 'Yelow', did you mean 'Yellow'? Registered: Red, Yellow. "
        "Your own package can add one through the entry-point group 'modyn.tests'"
    )


def test_an_id_that_is_still_to_come_says_so_until_a_package_brings_it(request: pytest.FixtureRequest) -> None:
    def colours() -> Registry[object]:
        return Registry("modyn.tests", "colour", {"Red": "fractions:Fraction"}, not_yet=("Green",))

    with pytest.raises(ConfigError, match="^'Green' is not available yet; available: Red$"):
        colours().get("Green")
    assert "Green" not in colours()
    request.getfixturevalue("installed")
    assert colours().get("Green").__name__ == "Green"  # type: ignore[attr-defined]


def test_what_cannot_be_imported_says_what_to_do() -> None:
    with pytest.raises(
        ConfigError, match=r"cannot import 'no_such_package:X'.*install the package in the environment of the service"
    ):
        registry(X="no_such_package:X").get("X")
    with pytest.raises(ConfigError, match=r"cannot import 'decimal:NoSuchName'"):
        load_object("decimal:NoSuchName")
    with pytest.raises(ConfigError, match="write 'package.module:name'"):
        load_object("decimal")


def test_both_spellings_of_a_path_work() -> None:
    assert load_object("decimal:Decimal") is load_object("decimal.Decimal")


@pytest.mark.parametrize(("name", "expected"), [("Adm", ", did you mean 'Adam'?"), ("zzz", "")])
def test_nearest(name: str, expected: str) -> None:
    assert nearest(name, ["Adam", "SGD"]) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MulticlassPrecision", "Precision"),  # contained in the name
        ("MultilabelAUROC", "AUROC"),  # as ROC is
        ("Retrieval", "RetrievalPrecision"),
        ("Precison", "Precision"),
        ("RetrievalPrecison", "RetrievalPrecision"),  # very close comes first
        ("precision", "Precision"),
        ("LogAUC", "AUROC"),  # nothing better
        ("bandwidth", ""),  # that `id` is in it says nothing
    ],
)
def test_the_nearest_of_names_that_contain_each_other(name: str, expected: str) -> None:
    names = ["ROC", "AUROC", "RetrievalPrecision", "Precision", "AveragePrecision", "id"]
    assert nearest(name, names) == (f", did you mean '{expected}'?" if expected else "")


def test_names_of_any_length_and_number_are_compared_in_a_moment() -> None:
    start = time.process_time()
    assert nearest("Adam" * 2**18, ["Adam", "SGD"]) == nearest("Adam", ["Adam" * 2**18]) == ""
    assert nearest("Adam", ["Adm", *(f"A{number}d" for number in range(200_000))]) == ", did you mean 'Adm'?"
    assert time.process_time() - start < 1


def test_listing_imports_nothing() -> None:
    program = (
        "import sys; from modyn.registry import Registry; "
        "r = Registry('modyn.tests', 'x', {'A': 'sqlite3:connect'}); r.ids(); print('sqlite3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
