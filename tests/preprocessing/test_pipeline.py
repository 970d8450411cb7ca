"""Components one after the other: what passes, what comes out, what is refused, and what a file says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from modyn.errors import ConfigError, ConflictError, CorruptStateError, DataError
from modyn.preprocessing import COMPONENTS, Features, Preprocessing, check_preprocessing_section
from modyn.preprocessing.statistics.state_bytes import encode_state
from tests.preprocessing.streams import batch, pipeline

DOCUMENT = Path(__file__).parents[2] / "docs/how-to/preprocessing.md"
CRITEO: list[dict[str, Any]] = [
    {"id": "Imputer", "strategy": "median"},
    {"id": "StandardScaler"},
    {"id": "OneHotEncoder", "max_categories": 4},
]


def test_components_read_what_the_ones_before_have_made() -> None:
    preprocessing = pipeline(*CRITEO, columns="n c")
    found = preprocessing.update_and_transform(batch(n=[1, None, 3], c=["x", "y", None]))
    np.testing.assert_allclose(found.dense[:, 0], np.array([-1, 0, 1]) * 1.5**0.5, atol=1e-2)
    assert found.indices.tolist() == [1, 2, 0]
    ranges = [(entry.column, entry.sparse, entry.start, entry.width) for entry in preprocessing.ranges]
    assert ranges == [("n", False, 0, 1), ("c", True, 0, 5)]
    assert (preprocessing.num_dense, preprocessing.num_sparse, preprocessing.num_features) == (1, 5, 6)
    summary = preprocessing.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["rows"] == 3
    assert list(summary["components"]) == ["0 Imputer", "1 StandardScaler", "2 OneHotEncoder"]


def test_statistics_of_two_parts_merge_and_others_are_refused() -> None:
    one, other = pipeline(*CRITEO, columns="n c"), pipeline(*CRITEO, columns="n c")
    one.update(batch(n=[1, 2], c=["x", "y"]))
    other.update(batch(n=[3, 9], c=["z", "x"]))
    one.merge(other)
    found = one.summary()
    assert found["rows"] == 4
    assert found["components"]["1 StandardScaler"]["n"]["mean"] == pytest.approx(3.75)
    assert one.transform(batch(n=[0], c=["z"])).indices.tolist() == [3]
    with pytest.raises(ConflictError, match="different preprocessing sections"):
        one.merge(pipeline(columns="n"))


def test_the_bytes_are_the_same_in_another_process() -> None:
    program = (
        "import sys; from tests.preprocessing.test_pipeline import CRITEO; from tests.preprocessing.streams import batch, pipeline\n"
        "p = pipeline(*CRITEO, columns='n c'); p.update(batch(n=[0.1, None, 7], c=['x', None, 'y']))\n"
        "sys.stdout.buffer.write(p.to_bytes())"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=DOCUMENT.parents[2], env=environment)
        for environment in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    ]
    assert runs[0].stdout == runs[1].stdout
    restored = Preprocessing.from_bytes(runs[0].stdout)
    assert restored.to_bytes() == runs[0].stdout
    assert isinstance(restored.transform(batch(n=[1], c=["x"])), Features)


def test_a_vocabulary_explosion_stays_within_its_bound() -> None:
    preprocessing = pipeline({"id": "OneHotEncoder", "max_categories": 100}, columns="c0 c1")
    for at in range(50):
        values = [f"{at}-{number}" for number in range(200)]
        found = preprocessing.update_and_transform(batch(c0=values, c1=["same"] * 200))
        assert found.num_features == 202
        assert found.indices.max() < 202
    assert len(preprocessing.to_bytes()) < 5000
    summary = preprocessing.summary()["components"]["0 OneHotEncoder"]
    assert summary["c0"]["over_bound"] == 9900
    assert summary["c0"]["over_bound_share"] == 0.99
    assert preprocessing.over_bound() == {"0 OneHotEncoder": {"c0": 0.99}}
    assert summary["c1"] == {**summary["c1"], "categories": 1, "over_bound": 0}


def test_a_missing_number_is_refused_where_nothing_fills_it() -> None:
    preprocessing = pipeline(columns="n0 n1")
    with pytest.raises(DataError, match="row 1 has no value in column 'n1'; add an Imputer"):
        preprocessing.transform(batch(n0=[1, 2], n1=[1, None]))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            1e200,
            r"row 1 has 1e\+200 in column 'n1', which is too large: numbers beyond ±1e\+140 count as missing; correct it, or add",
        ),
        (-1e200, r"row 1 has -1e\+200 in column 'n1', which is too large"),
        (float("inf"), "row 1 has no value in column 'n1'; add an Imputer"),
    ],
)
def test_a_number_whose_square_overflows_is_not_called_missing(value: float, said: str) -> None:
    preprocessing = pipeline({"id": "StandardScaler"}, columns="n0 n1")
    for step in (preprocessing.update_and_transform, preprocessing.transform):
        with pytest.raises(DataError, match=said):
            step(batch(n0=[1, 2], n1=[1, value]))


def test_a_wrong_batch_changes_no_statistics() -> None:
    preprocessing = pipeline(*CRITEO, columns="n c")
    before = preprocessing.to_bytes()
    with pytest.raises(DataError, match="column 'c' is missing"):
        preprocessing.update(batch(n=[1]))
    assert preprocessing.to_bytes() == before


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "preprocessing.columns: is required"),
        ({"columns": {}}, "preprocessing.columns: "),
        ({"columns": {"n": "number"}, "component": []}, "there is no such key, did you mean 'components'?"),
        ({"columns": {"c": "category"}}, "preprocessing.columns.c: no component makes features of this category; add a OneHotEncoder"),
        ({"columns": {"t": "text"}}, "preprocessing.columns.t: no component makes features of this text; add TokenCounts"),
        ({"components": [{}]}, "preprocessing.components.0.id: is required"),
        ({"components": [{"id": "StandartScaler"}]}, "components.0.id: there is no preprocessing component 'StandartScaler'"),
        ({"components": [{"id": "StandardScaler", "columns": ["m"]}]}, "components.0.columns.0: there is no column 'm' here"),
        ({"components": [{"id": "StandardScaler", "columns": []}]}, "components.0.columns: "),
        ({"components": [{"id": "OneHotEncoder"}]}, "components.0.columns: there is nothing to read here: OneHotEncoder takes columns of the kind"),
        ({"components": [{"id": "OneHotEncoder", "columns": ["n"]}]}, "components.0.columns.0: 'n' is of the kind number here"),
        ({"components": [{"id": "OneHotEncoder", "max_categories": 0}]}, "components.0.max_categories: 0 is wrong"),
        ({"components": [{"id": "Bucketizer"}, {"id": "StandardScaler"}]}, "components.1.columns: there is nothing to read here"),
        ({"components": [{"id": "FeatureHasher"}, {"id": "StandardScaler", "columns": ["n"]}]}, "components.1.columns.0: there is no column 'n'"),
    ],
)  # fmt: skip
def test_a_wrong_section_is_refused_with_its_place(section: dict[str, Any], message: str) -> None:
    whole = {"columns": {"n": "number"}, **section} if section else section
    with pytest.raises(ConfigError) as raised:
        Preprocessing(whole)
    assert message in str(raised.value)
    assert any(message in str(problem) for problem in check_preprocessing_section(whole))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("number", {"id": "PolynomialFeatures", "degree": 5}, "96,560,545 combinations of 100 columns are more than 100,000"),
        ("category", {"id": "CrossFeatures", "degree": 4}, "3,921,225 combinations of 100 columns are more than 100,000"),
    ],
)
def test_more_combinations_than_memory_holds_are_refused(kind: str, options: dict[str, Any], message: str) -> None:
    names = [f"c{at}" for at in range(100)]
    section = {"columns": dict.fromkeys(names, kind), "components": [{**options, "columns": names}]}
    (found,) = check_preprocessing_section(section)
    assert (found.path, message in found.message) == ("preprocessing.components.0.columns", True)


def test_a_state_of_another_section_is_refused() -> None:
    state = pipeline(*CRITEO, columns="n c").state()
    with pytest.raises(CorruptStateError, match="restore a state of this pipeline"):
        pipeline().load_state(state)
    with pytest.raises(CorruptStateError, match="has no valid 'section'"):
        Preprocessing.from_bytes(encode_state({"state": state}))


def test_the_example_of_the_documentation() -> None:
    text = DOCUMENT.read_text()
    section = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])["preprocessing"]
    assert check_preprocessing_section(section) == []
    preprocessing = Preprocessing(section)
    payload = b'{"age": 31, "income": null, "site": "a.example", "device": 7, "query": "Red shoes, red"}'
    found = preprocessing.update_and_transform(preprocessing.parser.parse([payload, b"{}"]))
    assert len(found) == 2
    assert f"{preprocessing.num_dense} dense and {preprocessing.num_sparse:,} sparse" in text


def test_the_documentation_lists_every_component() -> None:
    text = DOCUMENT.read_text()
    listed = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `") and line.split("`")[1][0].isupper()}
    assert listed == {id_ for id_, plugin in COMPONENTS.plugins.items() if plugin.distribution == "modyn"}
