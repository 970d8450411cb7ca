"""The built-in decoder of images, against Pillow and NumPy by hand."""

from __future__ import annotations

import io
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from modyn.config.base import check_section
from modyn.dataset.chunks import PreparedValues
from modyn.dataset.config import DataConfig
from modyn.dataset.decode import BatchPipeline
from modyn.errors import DataError, UserCodeError
from modyn.storage.model.samples import Payloads
from tests.dataset.test_decode import payloads, pipeline

IMAGENET = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)


def encoded(width: int, height: int, kind: str = "PNG", mode: str = "RGB", seed: int = 0, **options: Any) -> bytes:
    """Smooth random pixels, as photos have."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 4, 4), np.uint8)
    image = Image.fromarray(small, "RGBA").resize((width, height), Image.Resampling.BICUBIC).convert("RGB").convert(mode)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def by_hand(data: bytes, size: int, mode: str = "RGB", reduced: int = 1) -> npt.NDArray[np.uint8]:
    """Resize the short side and cut out the centre. Args: reduced: factor by which the JPEG decoder reduces the image."""
    image: Image.Image = Image.open(io.BytesIO(data))
    width, height = image.size
    if reduced > 1:
        image.draft(None, (width // reduced, height // reduced))
        assert image.size == (-(-width // reduced), -(-height // reduced))
    image = image.convert(mode)
    scaled = (size, int(size * height / width)) if width < height else (int(size * width / height), size)
    image = image.resize(scaled, Image.Resampling.BILINEAR, box=(0, 0, width / reduced, height / reduced))
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    pixels = np.asarray(image)[top : top + size, left : left + size]
    return np.moveaxis(pixels.reshape(size, size, -1), 2, 0)


def decoded(*images: bytes, training: bool = True, config: dict[str, Any] | None = None, **options: Any) -> npt.NDArray[Any]:
    fields = {"decode": {"image": {"size": 16, **options}}} | (config or {})
    data, _ = pipeline(training=training, **fields).run(payloads(*images))
    assert isinstance(data, torch.Tensor)
    found: npt.NDArray[Any] = data.numpy()
    return found


KINDS = [
    ("PNG", "RGB"),
    ("PNG", "L"),
    ("PNG", "P"),
    ("PNG", "RGBA"),
    ("PNG", "LA"),
    ("PNG", "1"),
    ("GIF", "P"),
    ("BMP", "RGB"),
    ("TIFF", "RGB"),
]


@pytest.mark.parametrize(("kind", "saved"), [*KINDS, ("WEBP", "RGB"), ("TIFF", "CMYK"), ("JPEG", "CMYK")])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_kind_of_image_is_decoded_to_its_pixels(kind: str, saved: str, mode: str) -> None:
    image = encoded(40, 23, kind, saved)
    found = decoded(image, mode=mode)
    assert found.dtype == np.float32
    assert np.array_equal(found[0], by_hand(image, 16, mode).astype(np.float32) / np.float32(255))


@pytest.mark.parametrize("size", [(16, 16), (16, 40), (41, 16), (7, 5), (3, 200), (31, 33), (1, 1)])
def test_the_short_side_is_resized_and_the_centre_cut_out(size: tuple[int, int]) -> None:
    image = encoded(*size)
    assert np.array_equal(decoded(image)[0] * np.float32(255), by_hand(image, 16))


@pytest.mark.parametrize(
    ("size", "reduced"), [((31, 40), 1), ((32, 40), 2), ((90, 63), 2), ((64, 200), 4), ((300, 129), 8), ((600, 500), 8)]
)
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_is_decoded_smaller_where_enough_pixels_remain(size: tuple[int, int], reduced: int, progressive: bool) -> None:
    image = encoded(*size, kind="JPEG", quality=90, progressive=progressive)
    assert np.array_equal(decoded(image)[0] * np.float32(255), by_hand(image, 16, reduced=reduced))
    assert np.abs(decoded(image)[0] * 255 - by_hand(image, 16)).mean() < 6, "close to the image that is decoded whole"


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pillow_and_simplejpeg_give_the_same_bits(subsampling: int, mode: str) -> None:
    """Where simplejpeg is installed, it decodes JPEG."""
    sizes = {(31, 40): 1, (16, 17): 1, (33, 64): 2, (129, 300): 8, (257, 130): 8, (640, 427): 8, (70, 65): 4}
    for i, (size, reduced) in enumerate(sizes.items()):
        image = encoded(*size, "JPEG", subsampling=subsampling, quality=80 + i, progressive=i % 2 == 0, seed=i)
        assert np.array_equal(decoded(image, mode=mode)[0] * np.float32(255), by_hand(image, 16, mode, reduced))


def test_an_image_of_too_many_pixels_is_refused_also_by_simplejpeg() -> None:
    image = bytearray(encoded(60, 60, "JPEG"))
    sizes = image.index(b"\xff\xc0") + 5  # after marker, length and precision of the frame header
    image[sizes : sizes + 4] = struct.pack(">HH", 20_000, 20_000)
    with pytest.raises(DataError, match="sample 0 .* cannot be decoded: Image size .400000000 pixels. exceeds limit"):
        decoded(bytes(image))


def test_pixels_are_normalised_in_float32() -> None:
    images = [encoded(20, 30, seed=seed) for seed in range(3)]
    pixels = np.stack([by_hand(image, 16) for image in images]).astype(np.float32) / np.float32(255)
    mean, std = (values[:, None, None] for values in IMAGENET)
    assert np.array_equal(decoded(*images, normalize="imagenet"), (pixels - mean) / std)
    own = decoded(*images, normalize={"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.5, 1]})
    assert np.array_equal(own, (pixels - np.float32(0.5)) / np.array([0.25, 0.5, 1], np.float32)[:, None, None])


def test_training_and_evaluation_get_the_same_bits_in_any_batch_and_thread() -> None:
    images = [encoded(50 + i, 90 - i, "JPEG" if i % 2 else "PNG", seed=i) for i in range(12)]
    whole = decoded(*images, normalize="imagenet")
    with ThreadPoolExecutor(4) as pool:
        alone = list(pool.map(lambda image: decoded(image, training=False, normalize="imagenet"), images))
    assert np.array_equal(whole, np.concatenate(alone))


def test_transformations_get_pixels_and_normalising_follows() -> None:
    images = [encoded(16, 16, seed=seed) for seed in range(2)]
    fields = {"transformations": ["lambda image: image.flip(-1)"], "random_transformations": ["lambda image: 255 - image"]}
    plain = decoded(*images)
    assert np.array_equal(decoded(*images, training=False, config=fields), plain[..., ::-1])
    inverted = 255 - np.stack([by_hand(image, 16) for image in images])[..., ::-1]
    assert np.array_equal(decoded(*images, config=fields), inverted.astype(np.float32) / np.float32(255))
    with pytest.raises(UserCodeError, match=r"must return their pixels, uint8 \(n, 3, height, width\).*of torch.float32"):
        decoded(*images, config={"transformations": ["lambda image: image / 255"]})


def test_a_cache_keeps_pixels_and_the_batch_from_it_is_the_same() -> None:
    arrived = payloads(*[encoded(20, 18, seed=seed) for seed in range(3)])
    config = DataConfig.model_validate({"dataset_id": "d", "decode": {"image": {"size": 16, "normalize": "imagenet"}}})
    assert (config.keeps_decoded, config.runs_per_sample, config.runs_code, config.may_draw) == (True, False, False, False)
    made, kept = BatchPipeline(config, training=True), dict[int, torch.Tensor]()

    def keep(tier: str, keys: Any, values: Any) -> None:
        kept.update(zip(keys.tolist(), values, strict=True) if tier == "decoded" else ())

    first, _ = made.run(arrived, keep=keep)
    assert {(value.dtype, tuple(value.shape)) for value in kept.values()} == {(torch.uint8, (3, 16, 16))}
    held = PreparedValues([None] * 3, [kept[0], None, kept[2]])
    empty = Payloads(arrived.keys, arrived.labels, arrived.data, arrived.offsets)
    again, _ = made.run(empty, prepared=held)
    assert isinstance(first, torch.Tensor)
    assert isinstance(again, torch.Tensor)
    assert torch.equal(first, again)


TALL = encoded(2, 400)
JPEG = encoded(60, 60, "JPEG")
DEEP = io.BytesIO()
Image.fromarray(np.full((20, 20), 40_000, np.uint16)).save(DEEP, "PNG")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "its 0 bytes are no image; known are JPEG, PNG, WEBP, BMP, GIF, TIFF"),
        (b"no image at all", "its 15 bytes are no image"),
        (JPEG[: len(JPEG) // 2], "cannot be decoded: .*truncated"),
        (encoded(60, 60)[:200], "cannot be decoded"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "no image|cannot be decoded"),
        (TALL, "it has 2 × 400 pixels, and one side may be 100 times as long as the other"),
        (DEEP.getvalue(), "more than 8 bits for each channel .*convert it to 8 bits"),
    ],
)
def test_a_sample_that_is_no_image_is_named(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"sample 1 of dataset 'd': .*{message}") as caught:
        decoded(encoded(16, 16), data, encoded(16, 16))
    assert caught.value.sample_key == 1


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        ({"decode": {"image": {"size": 0}}}, "data.decode.image.size", "greater than or equal to 1"),
        ({"decode": {"image": {}}}, "data.decode.image.size", "is required"),
        ({"decode": {"image": {"size": 8, "mode": "BGR"}}}, "data.decode.image.mode", "'RGB' or 'L'"),
        ({"decode": {"image": {"size": 8, "sizes": 3}}}, "data.decode.image.sizes", "did you mean 'size'"),
        ({"decode": {"images": {"size": 8}}}, "data.decode.images", "did you mean 'image'"),
        ({"decode": {"image": {"size": 8, "normalize": "imagnet"}}}, "data.decode.image.normalize", "write imagenet"),
        (
            {"decode": {"image": {"size": 8, "mode": "L", "normalize": "imagenet"}}},
            "data.decode.image.normalize.mean",
            "mode L has 1",
        ),
        (
            {"decode": {"image": {"size": 8, "normalize": {"mean": [0.5], "std": [1]}}}},
            "data.decode.image.normalize.mean",
            "1 numbers",
        ),
        (
            {"decode": {"image": {"size": 8, "mode": "L", "normalize": {"mean": [0.5], "std": [0]}}}},
            "data.decode.image.normalize.std.0",
            "greater than 0",
        ),
        ({"decode": {"image": {"size": 8}}, "record_layout": {"dtype": "u1"}}, "data", "decode and record_layout are given"),
        ({"decode": {"image": {"size": 8}}, "tokenizer": "a.b:c"}, "data.tokenizer", "is for texts"),
    ],
)
def test_wrong_options_are_named(fields: dict[str, Any], path: str, message: str) -> None:
    problems = check_section(DataConfig, {"dataset_id": "d", **fields}, "data")
    assert path in [problem.path for problem in problems]
    assert message in "; ".join(problem.message for problem in problems if problem.path == path)
