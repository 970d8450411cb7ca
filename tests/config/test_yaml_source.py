"""The YAML reader: plain data with lines, and one message per mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.base import Problem
from modyn.config.yaml_source import MAX_CHARACTERS, load_yaml, with_lines
from modyn.errors import ConfigError

TEXT = """\
# a comment
model:
  id: ResNet18   # trailing
  config: {num_classes: 42, widths: [1, 2]}
data:
  bytes_parser_function: |
    def bytes_parser_function(data):
      return data
  since: 2020-01-31
training:
  optimizers:
    - name: default
      lr: 1e-3
    - name: second
  use_previous_model: True
"""


def test_values_are_plain_data_and_dates_stay_text() -> None:
    data = load_yaml(TEXT, "p.yaml").data
    assert data["model"] == {"id": "ResNet18", "config": {"num_classes": 42, "widths": [1, 2]}}
    assert data["data"]["since"] == "2020-01-31"
    assert data["data"]["bytes_parser_function"] == "def bytes_parser_function(data):\n  return data\n"
    assert data["training"]["optimizers"][0]["lr"] == 0.001
    assert data["training"]["use_previous_model"] is True
    assert json.loads(json.dumps(data)) == data


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("model", 2),
        ("model.id", 3),
        ("model.config.widths.1", 4),
        ("data.bytes_parser_function", 6),
        ("training.optimizers.1", 14),
        ("training.optimizers.0.lr", 13),
        ("training.batch_size", 10),
        ("training.optimizers.7.lr", 11),
        ("nothing.like.this", 2),
        ("", 2),
    ],
)
def test_locates_a_value_or_what_is_closest_above_it(path: str, line: int) -> None:
    assert load_yaml(TEXT, "p.yaml").locate(path) == line


def test_problems_are_told_by_line_and_once() -> None:
    source = load_yaml(TEXT, "p.yaml")
    problems = [
        Problem("training.batch_size", "is required"),
        Problem("model.id", "is odd"),
        Problem("training.batch_size", "is required"),
    ]
    assert with_lines(problems, source) == ["p.yaml:3: model.id: is odd", "p.yaml:10: training.batch_size: is required"]


def test_merge_keys_and_aliases() -> None:
    source = load_yaml("base: &base {a: 1, b: 2}\nchild:\n  <<: *base\n  b: 3\nsame: *base\n", "p.yaml")
    assert source.data == {"base": {"a": 1, "b": 2}, "child": {"a": 1, "b": 3}, "same": {"a": 1, "b": 2}}
    assert source.locate("child.b") == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.yaml: is empty"),
        ("# nothing\n", "p.yaml: is empty"),
        ("- a\n- b\n", "p.yaml:1: is not a mapping of sections"),
        ("just text", "p.yaml:1: is not a mapping of sections"),
        ("a: 1\nb: 2\na: 3\n", "p.yaml:1: a: is given twice, on lines 1 and 3; remove one"),
        ("t:\n  x: 1\n  x: 2\n", "p.yaml:2: t.x: is given twice, on lines 2 and 3"),
        ("a: [1\nb: 2\n", "not valid YAML"),
        ("a: 1\n\tb: 2\n", "p.yaml:2: column 1: not valid YAML"),
        ("a: *nope\n", "p.yaml:1: column 4: not valid YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("a: \x00", "not valid YAML"),
        ("a: !!python/object/apply:os.system ['touch hacked']\n", "p.yaml:1: a: the tag"),
        ("a: !!binary aGVsbG8=\n", "is not allowed"),
        ("1: x\n", "the key '1' is not text"),
        ("[1, 2]: x\n", "the key that is a list or mapping is not text"),
        ("a: .nan\n", "p.yaml:1: a: .nan is not a finite number"),
        ("a:\n  b: 9007199254740993\n", "p.yaml:2: a.b: 9007199254740993 is too large"),
        ("a: " + "[" * 60 + "]" * 60, "is nested too deeply"),
        ("a: " + "[" * 1000, "is nested too deeply"),
        ("x" * (MAX_CHARACTERS + 1), "at most"),
    ],
)
def test_mistakes_name_file_line_and_path(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_yaml(text, "p.yaml")
    assert message in caught.value.message
    assert caught.value.message.startswith("p.yaml")
    assert not list(tmp_path.iterdir()), "checking a file must not run anything in it"


def test_all_mistakes_are_listed_in_the_order_of_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        load_yaml("a: .inf\nb: {c: !x 1}\na: 2\n", "p.yaml")
    assert [line.split(": ")[0] for line in caught.value.message.splitlines()] == ["p.yaml:1", "p.yaml:1", "p.yaml:2"]


def test_aliases_cannot_blow_up() -> None:
    levels = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(ConfigError, match="more than 100000 values after its aliases are expanded"):
        load_yaml("\n".join(levels), "p.yaml")


_LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8) | st.floats(-1e6, 1e6)
_TREES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=12
)


@given(st.dictionaries(st.text(min_size=1, max_size=6), _TREES, min_size=1, max_size=4))
def test_reads_what_another_library_wrote(data: dict[str, object]) -> None:
    # Explicit quotes, because what counts as plain text differs between YAML 1.1 (PyYAML) and 1.2.
    text = yaml.safe_dump(data, default_style='"', allow_unicode=False)
    assert load_yaml(text, "p.yaml").data == data
