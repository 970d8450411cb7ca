"""The spellings of `model.id`, and the files that a pipeline keeps of its models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from modyn.config.yaml_source import load_yaml
from modyn.errors import ConfigError
from modyn.models.names import (
    ModelKind,
    ModelName,
    Pretrained,
    changed_sources,
    check_sources,
    definition_of,
    text_sha256,
    with_sources,
)

NET = "import torch\n\n\nclass Net(torch.nn.Linear):\n    '''A line: with # signs,\ttabs and trailing spaces.   '''\n"
TEXT = "model:\n  id: ./nets/net.py:Net  # mine\ntraining: {batch_size: 4}\n"


@pytest.mark.parametrize(
    ("id_", "name"),
    [
        ("ResNet18", ModelName(ModelKind.REGISTERED, "ResNet18")),
        ("my_package.nets:Net", ModelName(ModelKind.IMPORTED, "Net", "my_package.nets")),
        ("my_package:Net.small", ModelName(ModelKind.IMPORTED, "Net.small", "my_package")),
        ("net.py:Net", ModelName(ModelKind.FILE, "Net", "net.py")),
        ("../a b/net.py:Net", ModelName(ModelKind.FILE, "Net", "../a b/net.py")),
        ("torchvision:resnet50", ModelName(ModelKind.TORCHVISION, "resnet50")),
        ("timm:vit_small_patch16_224.augreg_in21k", ModelName(ModelKind.TIMM, "vit_small_patch16_224.augreg_in21k")),
        ("transformers:org/name", ModelName(ModelKind.TRANSFORMERS, "org/name")),
    ],
)
def test_an_id_has_one_of_the_spellings(id_: str, name: ModelName) -> None:
    assert ModelName.parse(id_) == name


@pytest.mark.parametrize(
    ("id_", "told"),
    [
        ("./net.py", r"names no class of the file; write './net.py:NAME'"),
        ("net.py:", r"write 'net.py:NAME'"),
        ("timm:", "names no model; write 'timm:NAME'"),
        ("my-package.nets:Net", "is not the name of a model: write a registered id, package.module:Name"),
        ("./net:Net", "./file.py:Name"),
    ],
)
def test_other_ids_are_refused_with_the_spelling_that_is_near(id_: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ModelName.parse(id_)


def test_a_pipeline_keeps_the_file_of_its_model(tmp_path: Path) -> None:
    """Lines of other sections stay the same, so that messages name the lines of the user's file. A pipeline that has the file keeps it."""
    net = tmp_path / "nets" / "net.py"
    net.parent.mkdir()
    net.write_text(NET)
    found = with_sources(TEXT, str(tmp_path / "p.yaml"))
    assert found.startswith(TEXT)
    data = load_yaml(found, "p.yaml").data
    assert data["sources"] == {"./nets/net.py": {"path": str(net), "text": NET}}
    assert definition_of(data, data["model"]["id"]) == NET
    assert check_sources(data) == []

    assert changed_sources(data) == []
    net.write_text(NET + "# changed\n")
    assert with_sources(found, str(tmp_path / "p.yaml")) == found
    (note,) = changed_sources(data)
    assert note.startswith(
        f"{net} has changed since the run was submitted (SHA-256 {text_sha256(net.read_text())[:12]} instead of"
    )
    net.unlink()
    assert changed_sources(data) == []


def test_a_pipeline_in_json_keeps_the_file_too(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    found = with_sources(json.dumps({"model": {"id": "net.py:Net"}}), str(tmp_path / "p.json"))
    assert yaml.safe_load(found)["sources"]["net.py"]["text"] == NET


def test_a_missing_file_is_named_with_the_place_of_its_name(tmp_path: Path) -> None:
    policy = {"name": "CoresetStrategy", "downsampling_config": {"il_training_config": {"il_model_id": "./small.py:Net"}}}
    pipeline = {"model": {"id": "transformers:./tiny"}, "selection_strategy": policy}
    text = yaml.safe_dump(pipeline)
    assert with_sources(text, str(tmp_path / "p.yaml")) == text
    assert [(problem.path, problem.message.partition(":")[0]) for problem in check_sources(pipeline)] == [
        ("model.id", "there is no file './tiny/config.json'"),
        ("selection_strategy.downsampling_config.il_training_config.il_model_id", "there is no file './small.py'"),
    ]
    (tmp_path / "small.py").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="cannot read .*small.py"):
        with_sources(text, str(tmp_path / "p.yaml"))
    with pytest.raises(ConfigError, match=r"cannot read ~no_such_user/net\.py"):
        with_sources("model: {id: '~no_such_user/net.py:Net'}", str(tmp_path / "p.yaml"))


def test_a_folder_of_transformers_is_kept_by_its_configuration(tmp_path: Path) -> None:
    """A name without `./` is a folder if the folder exists, and otherwise a name in the library's cache."""
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text('{"model_type": "bert"}')
    for id_ in ("transformers:./models/tiny", "transformers:models/tiny"):
        text = yaml.safe_dump({"model": {"id": id_, "download": True}})
        data = load_yaml(with_sources(text, str(tmp_path / "p.yaml")), "p.yaml").data
        assert definition_of(data, id_) == '{"model_type": "bert"}'
        assert Pretrained.of(data, id_) == Pretrained(str(tmp_path / "models" / "tiny"), download=True)
    assert check_sources({"model": {"id": "transformers:org/name"}}) == []
