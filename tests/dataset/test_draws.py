"""Seeds reach the functions of the user: a generator for those that take one, seeded global generators for those that may draw from them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from modyn.config.base import Severity
from modyn.dataset.code.user_code import check_function, may_draw
from modyn.dataset.config import DataConfig
from modyn.trainer_server.check import check
from tests.support.training import MemoryData, RecordedReport, small_pipeline, train_in_memory

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

HEAD = "def batch_parser_function(data, offsets{}):\n    rows = torch.from_numpy(data.reshape(len(offsets) - 1, -1).view(np.float32).copy())\n"
GLOBAL = HEAD.format("") + "    return rows + 0.1 * torch.randn(rows.shape)\n"
BY_NUMPY = HEAD.format("") + "    return rows + np.float32(np.random.random())\n"
HANDED = HEAD.format(", generator") + "    return rows + 0.1 * torch.randn(rows.shape, generator=generator)\n"
QUIET = HEAD.format("") + "    return rows\n"
SAMPLE = """
def bytes_parser_function(data, *, generator):
    sample = torch.frombuffer(bytearray(data), dtype=torch.float32)
    return sample + torch.randn(6, generator=generator)
"""
LABELS = (
    "def label_transformer_function(labels, generator):\n    return torch.randint(0, 10, labels.shape, generator=generator)\n"
)


def weights(folder: Path, data: dict[str, Any], workers: int = 1, seed: int = 7, epochs: int = 2) -> str:
    pipeline = small_pipeline(
        {"dataloader_workers": workers, "seed": seed, "epochs_per_trigger": epochs}, data={"dataset_id": "fake", **data}
    )
    return train_in_memory(pipeline, MemoryData(), folder).trained.weights_sha256


@pytest.mark.parametrize(
    "data",
    [
        {"batch_parser_function": GLOBAL},
        {"batch_parser_function": BY_NUMPY},
        {"batch_parser_function": HANDED},
        {"bytes_parser_function": SAMPLE},
        {"batch_parser_function": QUIET, "label_transformer_function": LABELS},
    ],
    ids=["global", "numpy", "generator", "generator of samples", "labels"],
)
def test_one_seed_gives_one_model_though_functions_draw(tmp_path: Path, data: dict[str, Any]) -> None:
    first = weights(tmp_path / "0", data)
    torch.rand(3)
    workers = (1,) if "bytes_parser_function" in data else (1, 3)  # processes take long to start
    assert {weights(tmp_path / str(i), data, workers=i) for i in workers} == {first}
    assert weights(tmp_path / "other", data, seed=8) != first


def test_what_is_drawn_differs_between_batches_and_epochs(tmp_path: Path) -> None:
    constant = HANDED.replace("generator=generator)", "generator=generator.manual_seed(1))")
    assert weights(tmp_path / "a", {"batch_parser_function": HANDED}) != weights(
        tmp_path / "b", {"batch_parser_function": constant}
    )


@pytest.mark.parametrize(
    ("text", "draws"),
    [
        (GLOBAL, True),
        (BY_NUMPY, True),
        (HANDED, False),
        (QUIET, False),
        ("def f(x):\n    import random\n    return x", True),
        ("def f(x):\n    from random import shuffle\n    return x", True),
        ("def f(x):\n    return torch.nn.functional.dropout(x)", True),
        ("def f(x):\n    return x.normal_()", True),
        ("def f(operand):\n    return transforms.Normalize(operand).grand.brand", False),
        ("random:shuffle", True),
        ("drawing_module:noisy", True),
        ("drawing_module:calls_noisy", True),
        ("drawing_module:quiet", False),
        ("drawing_package.inner:noisy", True),
        ("drawing_module:Noise", True),
        ("no_such_module:f", False),
        ("math:sqrt", False),
    ],
)
def test_what_may_draw_as_far_as_its_source_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, draws: bool
) -> None:
    source = (
        "import numpy as np\nraise SystemExit('this is not imported')\n"
        "def noisy(x):\n    return x + np.random.random()\n"
        "def calls_noisy(x):\n    return noisy(x)\n"
        "def quiet(x):\n    return x\n"
        "class Noise:\n    def __call__(self, x):\n        return noisy(x)\n"
    )
    (tmp_path / "drawing_module.py").write_text(source)
    (tmp_path / "drawing_package").mkdir()
    (tmp_path / "drawing_package" / "__init__.py").write_text("raise SystemExit('nor is this')")
    (tmp_path / "drawing_package" / "inner.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert may_draw(text) is draws


@pytest.mark.parametrize(
    "arguments", ["data, offsets, generator", "data, offsets, generator=None", "data, offsets, *, generator", "data, offsets"]
)
def test_a_generator_may_be_a_parameter_of_any_function(arguments: str) -> None:
    source = f"def batch_parser_function({arguments}):\n    return data"
    assert check_function(source, "batch_parser_function", 2) == source


@pytest.mark.parametrize(
    "arguments", ["data, generator", "data, offsets, other", "data, offsets, generator, other", "data, *, offsets"]
)
def test_other_parameters_may_not(arguments: str) -> None:
    with pytest.raises(ValueError, match="is called with 2 argument"):
        check_function(f"def batch_parser_function({arguments}):\n    return data", "batch_parser_function", 2)


def test_check_says_which_functions_may_draw() -> None:
    data = {
        "dataset_id": "fake",
        "batch_parser_function": GLOBAL,
        "deterministic_transformations": ["lambda x: x + torch.rand(1)"],
    }
    found = check(small_pipeline(data=data), RecordedReport())
    assert [(problem.path, problem.severity) for problem in found] == [
        ("data.batch_parser_function", Severity.WARNING),
        ("data.deterministic_transformations.0", Severity.WARNING),
    ]
    assert "a parameter `generator`, which gets a seeded torch.Generator" in found[0].message
    assert not DataConfig.model_validate({"dataset_id": "fake", "batch_parser_function": QUIET}).may_draw
