"""A served version decodes images exactly as its training did."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from modyn.dataset.config import ImageDecoding
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.serving.messages.signature import Tensor
from modyn.serving.observations.storage_log import image_of
from modyn.serving.served_model import served_model
from modyn.serving.versions.image_predictor import ImagePredictor
from modyn.serving.versions.predictor import warm_up
from tests.dataset.test_decode import payloads, pipeline

OPTIONS: dict[str, Any] = {"size": 12, "normalize": "imagenet"}


def photo(seed: int, kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (30 + seed, 40, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def request(*images: bytes) -> dict[str, Tensor]:
    values = np.empty(len(images), np.object_)
    values[:] = images
    return {"image": values}


def predictor(module: nn.Module | None = None) -> ImagePredictor:
    return ImagePredictor(module or nn.Flatten(), ImageDecoding.model_validate(OPTIONS))


def test_a_request_gets_the_bits_that_the_training_had() -> None:
    images = [photo(seed, "PNG" if seed % 2 else "JPEG") for seed in range(5)]
    trained, _ = pipeline(decode={"image": OPTIONS}).run(payloads(*images))
    assert isinstance(trained, torch.Tensor)
    served = predictor()
    assert [(given.name, given.datatype, given.shape) for given in served.signature.inputs] == [("image", "BYTES", (-1,))]
    assert np.array_equal(served.predict(request(*images))["output"], trained.flatten(1).numpy())
    warm_up(served, 2)
    assert served.predict(request())["output"].shape == (0, 3 * 12 * 12)


def test_a_value_that_is_no_image_is_named() -> None:
    for call in (predictor().predict, predictor().check):
        with pytest.raises(InvalidArgumentError, match="input 'image', row 1: its 2 bytes are no image"):
            call(request(photo(0), b"no"))
    with pytest.raises(ConfigError, match="does not take the inputs"):
        predictor(nn.Linear(5, 2))


@pytest.mark.parametrize(
    ("data", "serving", "decodes"),
    [
        ({"decode": {"image": OPTIONS}, "random_transformations": ["a.b:C"]}, {}, True),
        ({"decode": {"image": OPTIONS}, "transformations": ["a.b:C"]}, {}, False),
        ({"decode": {"image": OPTIONS}}, {"inputs": ["3,12,12"]}, False),
        ({"record_layout": {"dtype": "u1"}}, {}, False),
    ],
)
def test_only_what_serving_does_as_the_evaluation_is_decoded(
    data: dict[str, Any], serving: dict[str, Any], decodes: bool
) -> None:
    found = served_model("run-1", {"data": {"dataset_id": "d", **data}, "serving": serving}, {})
    assert (found.decoding is not None) == decodes


def test_an_observation_is_stored_as_the_image() -> None:
    assert image_of(request(photo(3))) == photo(3)


def test_tensors_are_not_stored_where_a_run_decodes_images() -> None:
    data = {"dataset_id": "d", "decode": {"image": OPTIONS}}
    for dataset, inputs in {"d": (), "other": ("3,12,12",)}.items():
        found = served_model("run-1", {"data": data, "serving": {"observations": dataset, "inputs": [*inputs]}}, {})
        assert found.settings.observations == dataset
    with pytest.raises(ConfigError, match="serving.observations: .* decodes images of dataset 'd'"):
        served_model("run-1", {"data": data, "serving": {"observations": "d", "inputs": ["3,12,12"]}}, {})
