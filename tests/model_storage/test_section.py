"""The section `model_storage`: what is allowed, and how mistakes are told."""

from __future__ import annotations

from typing import Any

import pytest

from modyn.model_storage.section import ModelStorageSection, validate_section


def difference(**options: Any) -> dict[str, Any]:
    return {"incremental_model_strategy": {"name": "WeightsDifference", **options}}


@pytest.mark.parametrize(
    "section",
    [
        None,
        {},
        {"full_model_strategy": {"name": "PyTorchFullModel", "zip": True, "zip_algorithm": "zstd"}},
        {"full_model_strategy": {"name": "BinaryFullModel", "zip": True}, "full_model_interval": None},
        {"incremental_model_strategy": None},
        {**difference(), "full_model_interval": 5},
        difference(zip=True, zip_algorithm="ZIP_DEFLATED", config={"operator": "xor", "split_exponent": True, "rle": False}),
        difference(zip=False, config={"rle": True}),
    ],
)
def test_valid(section: dict[str, Any] | None) -> None:
    assert validate_section({"pipeline": {"name": "p"}, "model_storage": section}) == []
    assert validate_section({}) == []


def test_default_is_safetensors_without_compression() -> None:
    strategy = ModelStorageSection().full_model_strategy
    assert (strategy.name, strategy.zip) == ("SafetensorsFullModel", False)


@pytest.mark.parametrize(
    ("section", "path", "told"),
    [
        ({"full_model_strategy": {"name": "PytorchFullModel"}}, "full_model_strategy.name", "did you mean 'PyTorchFullModel'?"),
        ({"full_model_strategy": {"zipp": True}}, "full_model_strategy.zipp", "did you mean 'zip'?"),
        ({"full_model_strategy": {"zip_algorithm": "ZIP_DEFLATE"}}, "full_model_strategy.zip_algorithm", "'ZIP_DEFLATED'"),
        ({"full_model_strategy": {"config": {"a": 1}}}, "full_model_strategy.config.a", "there is no such key"),
        ({"incremental_model_strategy": {"name": "WeightDifference"}}, "incremental_model_strategy.name", "'WeightsDifference'"),
        ({"incremental_model_strategy": {}}, "incremental_model_strategy.name", "is required"),
        (difference(config={"operator": "add"}), "incremental_model_strategy.config.operator", "'sub' or 'xor'"),
        (difference(config={"rles": True}), "incremental_model_strategy.config.rles", "did you mean 'rle'?"),
        ({**difference(), "full_model_interval": 0}, "full_model_interval", "0 is wrong"),
        ({"full_model_interval": 5}, "full_model_interval", "no effect without incremental_model_strategy"),
        (difference(zip=False, zip_algorithm="ZIP_DEFLATED"), "incremental_model_strategy.zip", "set zip: true"),
        ({"full_model_strategy": {"zip_algorithm": "zstd"}}, "full_model_strategy", "zip_algorithm is zstd, but zip is false"),
        ({"full_model_strategy": {"zip": False, "zip_algorithm": "zstd"}}, "full_model_strategy", "set zip: true"),
        ({"full_model": {}}, "full_model", "did you mean 'full_model"),
        ([1], None, "dictionary"),
    ],
)
def test_wrong(section: Any, path: str | None, told: str) -> None:
    (problem,) = validate_section({"model_storage": section})
    assert problem.path == ("model_storage" if path is None else f"model_storage.{path}")
    assert told in problem.message
