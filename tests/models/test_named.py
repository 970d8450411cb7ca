"""Models by name that are not registered: what is checked, and what a wrong name, file, argument or checkpoint says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modyn.config.base import Severity
from modyn.errors import ConfigError
from modyn.models import check_model
from modyn.models.calls import embedding, forward, last_layer, num_logits
from modyn.models.classes import num_classes
from modyn.models.libraries import hub
from modyn.models.names import Pretrained
from modyn.models.weights import build_model
from tests.support.libraries import TINY_BERT, model_libraries, needs, tiny_bert

torch.set_num_threads(1)

__all__ = ["model_libraries"]  # a fixture
pytestmark = pytest.mark.usefixtures("model_libraries")

NET = """
import dataclasses
from torch import nn


@dataclasses.dataclass
class Size:
    width: int


class Net(nn.Module):
    def __init__(self, width, num_classes=3, *, bias=True):
        super().__init__()
        self.layer = nn.Linear(Size(width).width, num_classes, bias)

    def forward(self, x):
        return self.layer(x)


def small(num_classes: int = 2) -> Net:
    return Net(4, num_classes)


def wide(**options) -> Net:
    return Net(9, **options)


def no_module():
    return "no network"


class Other:
    pass


NUMBER = 3
"""
FILE = "./net.py"


def check(id_: str, config: dict[str, Any], definition: str = NET) -> list[tuple[str, str]]:
    return [(problem.path, problem.message) for problem in check_model(id_, config, definition, Pretrained())]


def test_classes_and_functions_of_a_file_are_models() -> None:
    assert check(f"{FILE}:Net", {"width": 5}) == check(f"{FILE}:small", {}) == check(f"{FILE}:wide", {"bias": False}) == []
    assert build_model(f"{FILE}:Net", {"width": 5, "bias": False}, NET).state_dict()["layer.weight"].shape == (3, 5)
    assert build_model(f"{FILE}:small", {"num_classes": 7}, NET).state_dict()["layer.weight"].shape == (7, 4)
    assert build_model("torch.nn:Linear", {"in_features": 2, "out_features": 3}).state_dict()["weight"].shape == (3, 2)


@pytest.mark.parametrize(
    ("id_", "config", "path", "told"),
    [
        (f"{FILE}:Nte", {}, "model.id", "'./net.py' has no 'Nte', did you mean 'Net'? It has "),
        (f"{FILE}:Other", {}, "model.id", "is a class that is not an nn.Module"),
        (f"{FILE}:NUMBER", {}, "model.id", "is a int; name a subclass of nn.Module, or a function"),
        (f"{FILE}:Net", {}, "model.config.width", "is required: './net.py:Net' takes it"),
        (f"{FILE}:Net", {"width": 2, "numclasses": 3}, "model.config.numclasses", "did you mean 'num_classes'? Allowed: width,"),
        ("torch.nn:Linaer", {}, "model.id", "'torch.nn' has no 'Linaer', did you mean 'Linear'?"),
        ("torchvison:resnet50", {}, "model.id", "cannot import 'torchvison': ModuleNotFoundError"),
        ("torchvison:resnet50", {}, "model.id", "did you mean 'torchvision'?"),
        ("./net.py", {}, "model.id", "names no class of the file; write './net.py:NAME'"),
    ],
)
def test_a_wrong_name_or_argument_is_found_without_building(id_: str, config: dict[str, Any], path: str, told: str) -> None:
    ((found, message),) = check(id_, config)
    assert (found, told in message) == (path, True), message


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "the content of './net.py' is missing; submit the pipeline where the file is"),
        ("x = 1\ndef Net(:\n", "./net.py, line 2: SyntaxError: "),
        ("x = 1\n\nraise RuntimeError('sorry')\n", "./net.py, line 3: RuntimeError: sorry"),
        ("import net_helpers\n", "line 1: ModuleNotFoundError: No module named 'net_helpers'; a run keeps this file only"),
        ("import sys\nsys.exit(3)\n", "./net.py, line 2: SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_run_is_named_with_its_line(source: str, told: str) -> None:
    ((path, message),) = check(f"{FILE}:Net", {}, source)
    assert (path, told in message) == ("model.id", True), message


def test_arguments_that_a_function_passes_on_are_refused_when_the_network_is_built() -> None:
    with pytest.raises(
        ConfigError, match="model.config.num_clases: './net.py:wide' takes no such .* did you mean 'num_classes'?"
    ):
        build_model(f"{FILE}:wide", {"num_clases": 3}, NET)
    with pytest.raises(ConfigError, match="model.id: './net.py:no_module' built a str, not an nn.Module"):
        build_model(f"{FILE}:no_module", {}, NET)


def test_a_missing_library_is_named_with_its_extra() -> None:
    """Run in another process, because this process can import the libraries."""
    extras = {"torchvision": "vision", "timm": "timm", "transformers": "text"}
    code = (
        "from importlib.util import find_spec; from modyn.models import check_model\n"
        f"print([find_spec(name) is not None or str(*check_model(name + ':net', {{}})) for name in {list(extras)}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ, timeout=60)
    for library, found in zip(extras, literal_eval(done.stdout), strict=True):
        missing = f"warning: model.id: {library} is not installed here; `pip install 'modyn[{extras[library]}]'` installs it"
        assert found in (True, missing)


def test_libraries_stay_off_the_network_unless_the_pipeline_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with hub(download=False):
        assert os.environ["HF_HUB_OFFLINE"] == "1"
    with hub(download=True):
        assert "HF_HUB_OFFLINE" not in os.environ


def test_labels_are_compared_with_the_classes_of_a_library_s_model() -> None:
    assert num_classes({"id": "timm:resnet18", "config": {"num_classes": 7}}) == 7
    assert num_classes({"id": "transformers:tiny", "config": {"num_labels": 4}}) == 4
    assert num_classes({"id": "torchvision:resnet18"}) is None
    assert num_classes({"id": "./net.py:Net", "config": {"num_classes": 7}}) is None


# --- torchvision -----------------------------------------------------------------------------------------------------------------

SHUFFLE = "torchvision:shufflenet_v2_x0_5"
SHUFFLE_FILE = "shufflenetv2_x0.5-f707e7126e.pth"


@pytest.fixture
def torch_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of torchvision and timm."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@needs("torchvision")
@pytest.mark.parametrize(
    ("name", "config", "path", "told"),
    [
        ("resnet5", {}, "model.id", "torchvision has no model 'resnet5', did you mean 'resnet50'?"),
        ("resnet18", {"weights": "DEFAUT"}, "model.config.weights", "did you mean 'DEFAULT'?"),
        ("resnet18", {"pretrained": True}, "model.config.pretrained", "write weights: DEFAULT"),
        ("fcn_resnet50", {"weights_backbone": "DEFAULT"}, "model.config.weights_backbone", "write weights for the whole model"),
    ],
)
def test_wrong_names_of_torchvision(name: str, config: dict[str, Any], path: str, told: str) -> None:
    ((found, message),) = check(f"torchvision:{name}", config)
    assert (found, told in message) == (path, True), message


@needs("torchvision")
def test_an_argument_that_torchvision_passes_on_is_compared_with_those_of_the_class() -> None:
    with pytest.raises(ConfigError, match="model.config.num_clases: .* did you mean 'num_classes'"):
        build_model("torchvision:resnet18", {"num_clases": 3})


@needs("torchvision")
def test_weights_of_torchvision_come_from_the_cache_only_and_run_no_code(torch_home: Path) -> None:
    """With another number of classes, the last layer keeps its random weights."""
    config = {"weights": "DEFAULT", "num_classes": 3}
    (problem,) = check_model(SHUFFLE, config, pretrained=Pretrained())
    assert problem.severity is Severity.UNAVAILABLE
    assert f"put https://download.pytorch.org/models/{SHUFFLE_FILE} at {torch_home / SHUFFLE_FILE}" in problem.message
    with pytest.raises(ConfigError, match="model.config.weights: the weights DEFAULT are not in torchvision's cache"):
        build_model(SHUFFLE, config, pretrained=Pretrained())
    assert build_model(SHUFFLE, config).state_dict()["fc.weight"].shape == (3, 1024)

    donor = build_model(SHUFFLE, {"num_classes": 1000})
    torch.save(donor.state_dict(), torch_home / SHUFFLE_FILE)
    assert check_model(SHUFFLE, config, pretrained=Pretrained()) == []
    found = build_model(SHUFFLE, config, pretrained=Pretrained())
    same = {
        name for name, value in found.state_dict().items() if torch.equal(value, donor.state_dict().get(name, torch.zeros(0)))
    }
    assert set(found.state_dict()) - same == {"fc.weight", "fc.bias"}

    torch.save(donor, torch_home / SHUFFLE_FILE)  # a pickle of the whole module, which names classes to call
    with pytest.raises(Exception, match="Weights only load failed"):
        build_model(SHUFFLE, config, pretrained=Pretrained())


# --- timm ------------------------------------------------------------------------------------------------------------------------


@needs("timm")
@pytest.mark.parametrize(
    ("name", "config", "path", "told"),
    [
        ("tset_vit", {}, "model.id", "timm has no model 'tset_vit'"),
        ("vit_small_patch16_242", {}, "model.id", "did you mean 'vit_small_patch16_224'?"),
        ("test_vit", {"checkpoint_path": "x.pth"}, "model.config.checkpoint_path", "timm may run code of such a file"),
        ("test_vit", {"pretrained_cfg_overlay": {"file": "x.pth"}}, "model.config.pretrained_cfg_overlay.file", "safetensors"),
        ("test_vit", {"pretrained_cfg": {"file": "x.pth"}}, "model.config.pretrained_cfg", "it may name any file or URL"),
        ("test_vit", {"pretrained_cfg_overlay": {"url": "x"}}, "model.config.pretrained_cfg_overlay.url", "from a local file"),
        (
            "test_vit",
            {"pretrained": True},
            "model.config",
            "are not in timm's cache on this machine: put them there, or set model.download",
        ),
    ],
)
def test_wrong_names_of_timm(
    name: str, config: dict[str, Any], path: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    ((found, message),) = check(f"timm:{name}", config)
    assert (found, told in message) == (path, True), message


@needs("timm")
def test_models_of_timm_say_which_layer_is_their_last() -> None:
    model = build_model("timm:test_vit", {"num_classes": 5, "img_size": 32}).eval()
    assert (last_layer(model), num_logits(model)) == (model.head, 5)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(last_layer(model)(embedding(model, images)), forward(model, images))
    with pytest.raises(ConfigError, match="model.config.num_clases: .* did you mean 'num_classes'"):
        build_model("timm:test_vit", {"num_clases": 3})


@needs("timm")
def test_timm_reads_pretrained_weights_from_a_file(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    config = {"num_classes": 5, "img_size": 32}
    donor = build_model("timm:test_vit", config)
    save_file(donor.state_dict(), tmp_path / "vit.safetensors")
    overlay = {"file": str(tmp_path / "vit.safetensors"), "num_classes": 5}
    config |= {"pretrained": True, "pretrained_cfg_overlay": overlay}  # type: ignore[dict-item]
    assert check("timm:test_vit", config) == []
    found = build_model("timm:test_vit", config, pretrained=Pretrained())
    assert all(torch.equal(value, donor.state_dict()[name]) for name, value in found.state_dict().items())


# --- transformers ----------------------------------------------------------------------------------------------------------------


@needs("transformers")
@pytest.mark.parametrize(
    ("config", "changed", "path", "told"),
    [
        ({"num_lables": 3}, {}, "model.config.num_lables", "did you mean 'num_labels'?"),
        ({"trust_remote_code": True}, {}, "model.config.trust_remote_code", "no code of a checkpoint is run"),
        ({}, {"model_type": "my_net", "auto_map": {"AutoConfig": "code.py"}}, "model.id", "code of a checkpoint is not run"),
        ({}, {}, "model.config", "has no weights on this machine; for random weights, write model.config.pretrained: false"),
    ],
)
def test_wrong_configurations_of_transformers(
    config: dict[str, Any], changed: dict[str, Any], path: str, told: str, tmp_path: Path
) -> None:
    folder = tiny_bert(tmp_path / "tiny")
    definition = json.dumps({**json.loads((folder / "config.json").read_text()), **changed})
    (problem,) = check_model("transformers:./tiny", config, definition, Pretrained(str(folder)))
    assert (problem.path, told in problem.message) == (path, True), problem.message


@needs("transformers")
def test_a_folder_of_transformers_gives_the_weights_and_is_needed_once(tmp_path: Path) -> None:
    """The stored version needs `config.json` only, and the folder may be gone."""
    import transformers

    folder = tiny_bert(tmp_path / "tiny")
    definition = (folder / "config.json").read_text()
    donor = transformers.AutoModelForSequenceClassification.from_config(transformers.AutoConfig.from_pretrained(folder))
    donor.save_pretrained(folder)
    pretrained = Pretrained(str(folder))
    assert check_model("transformers:./tiny", {}, definition, pretrained) == []
    found = build_model("transformers:./tiny", {}, definition, pretrained)
    assert all(torch.equal(value, donor.state_dict()[name]) for name, value in found.state_dict().items())

    with pytest.raises(ConfigError, match="transformers cannot build './tiny': .*size"):
        build_model("transformers:./tiny", {"num_labels": 7}, definition, pretrained)
    changed = {"num_labels": 7, "ignore_mismatched_sizes": True}
    assert num_logits_of(build_model("transformers:./tiny", changed, definition, pretrained)) == 7
    shutil.rmtree(folder)
    assert num_logits_of(build_model("transformers:./tiny", {"num_labels": 7}, definition)) == 7


def num_logits_of(model: nn.Module) -> int:
    return last_layer(model).out_features


@needs("transformers")
def test_a_name_that_is_not_in_the_cache_is_refused_without_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    ((path, message),) = check("transformers:org/no-such-model", {}, "")
    assert path == "model.id"
    assert message.startswith("'org/no-such-model' is not in transformers' cache on this machine: name a folder")


@needs("transformers")
def test_outputs_of_transformers_are_their_logits_and_tied_weights_stay_tied(tmp_path: Path) -> None:
    definition = json.dumps(TINY_BERT)
    model = build_model("transformers:./tiny", {"num_labels": 4}, definition).eval()
    tokens = {"input_ids": torch.tensor([[1, 5, 2], [1, 2, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    logits = forward(model, tokens)
    assert logits.shape == (2, 4)
    torch.testing.assert_close(last_layer(model)(embedding(model, tokens)), logits)
