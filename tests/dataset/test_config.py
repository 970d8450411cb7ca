"""The data section is checked without executing anything in it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from modyn.config.base import load_section
from modyn.dataset.code.user_code import EXTRAS, check_function, imported_name, missing_extras
from modyn.dataset.config import DataConfig, RecordLayout
from modyn.errors import ConfigError

PARSER = "def bytes_parser_function(data: memoryview):\n    return torch.tensor(list(data))\n"


def load(**fields: Any) -> DataConfig:
    return load_section(DataConfig, {"dataset_id": "digits", "bytes_parser_function": PARSER} | fields, "data")


def test_a_valid_section() -> None:
    config = load(transformations=["transforms.Normalize((0.5,), (0.5,))", "lambda x: x / 2", "my.module:Scale(2, by=[1, 2])"])
    assert config.runs_per_sample
    assert config.may_draw


def test_checking_executes_nothing() -> None:
    source = "raise RuntimeError('executed')\n" + PARSER
    config = load(bytes_parser_function=source, transformations=["print('executed') or exit(3)", "no.such.module:name"])
    assert config.bytes_parser_function == source


def test_checking_needs_no_torch() -> None:
    sections = [
        {"dataset_id": "d", "bytes_parser_function": PARSER, "transformations": ["transforms.Normalize((0.5,), (0.5,))"]},
        {"dataset_id": "d", "record_layout": {"dtype": "<f4", "shape": [2]}, "tokenizer": "my.module:tokenizer"},
    ]
    code = (
        "import sys, modyn.dataset.order.batch_plan\nfrom modyn.config.base import check_section\nfrom modyn.dataset.config import DataConfig\n"
        f"assert not [p for s in {sections!r} for p in check_section(DataConfig, s, 'data')]\nsys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        ({"bytes_parser_function": "def other(x):\n    return x\n"}, "data.bytes_parser_function", "it defines other"),
        (
            {"bytes_parser_function": "def bytes_parser_function(x, y):\n    return x\n"},
            "data.bytes_parser_function",
            "1 argument",
        ),
        ({"bytes_parser_function": "def bytes_parser_function(:\n"}, "data.bytes_parser_function", "line 1"),
        ({"bytes_parser_function": "a.b:c(1)"}, "data.bytes_parser_function", "leave the parentheses"),
        ({"label_transformer_function": "x = 1"}, "data.label_transformer_function", "it defines none"),
        ({"transformations": ["transforms.Resize("]}, "data.transformations", "neither a Python expression"),
        ({"transformations": ["a.b:C(open('x'))"]}, "data.transformations", "literals"),
        ({"tokenizer": "not importable"}, "data.tokenizer", "package.module:name"),
        ({"record_layout": {"dtype": "uint8"}}, "data", "bytes_parser_function and record_layout are given"),
        ({"bytes_parser_function": None}, "data", "none is given"),
        ({"transformation": []}, "data.transformation", "did you mean 'transformations'?"),
        (
            {"bytes_parser_function": None, "record_layout": {"dtype": "complex64"}},
            "data.record_layout.dtype",
            "not an element type",
        ),
        ({"bytes_parser_function": None, "record_layout": {"dtype": "f4", "offset": -1}}, "data.record_layout.offset", "greater"),
        (
            {"bytes_parser_function": None, "record_layout": {"dtype": "f4", "shape": [0]}},
            "data.record_layout.shape",
            "at least 1",
        ),
        ({"dataset_id": ""}, "data.dataset_id", "at least 1 character"),
    ],
)
def test_mistakes_name_path_and_remedy(fields: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**fields)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "source", ["def f(*args): ...", "def f(a, b=1): ...", "def f(a, *, c=1): ...", "import os\ndef f(a): ..."]
)
def test_functions_that_take_one_argument(source: str) -> None:
    assert check_function(source, "f", 1) == source


@pytest.mark.parametrize("source", ["def f(): ...", "def f(a, b): ...", "def f(a, *, c): ...", "class f: ..."])
def test_functions_that_do_not(source: str) -> None:
    with pytest.raises(ValueError, match=r"argument|must define"):
        check_function(source, "f", 1)


def test_importable_names() -> None:
    assert imported_name("a.b:C.d") is not None
    found = imported_name("a.b:C(1, x='y')")
    assert found is not None
    assert (found.path, found.arguments) == ("a.b:C", ((1,), {"x": "y"}))
    assert imported_name("lambda: 0") is None
    assert imported_name("x[1:2]") is None


def test_missing_extras_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "transforms", "no_such_package")
    (message,) = missing_extras(["transforms.Resize(2)", "lambda x: x"])
    assert "pip install no_such_package" in message


def test_bytes_of_a_record() -> None:
    assert RecordLayout(dtype=">i2", shape=(3, 4)).num_bytes == 24
    assert RecordLayout(dtype="float32").num_bytes == 4
