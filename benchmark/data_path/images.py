"""The JPEG files of figure d: 160 x 160 pixels, gradients with noise, 5 to 30 KB, each with a label file. And how they are decoded."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image

from modyn.config.dataset import DatasetConfig

SIDE, BATCH_SIZE = 160, 128
_DISTINCT = 300
"""Number of different images. It takes longer to make an image than to decode it, so files repeat after this number."""

PIL = """
import io
from PIL import Image

def bytes_parser_function(data):
    return torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("RGB")))
"""
PIL_BATCH = """
import io
from PIL import Image

def batch_parser_function(data, offsets):
    images = np.empty((len(offsets) - 1, 160, 160, 3), np.uint8)
    for i, image in enumerate(images):
        image[...] = Image.open(io.BytesIO(data[offsets[i] : offsets[i + 1]])).convert("RGB")
    return torch.from_numpy(images)
"""
SIMPLEJPEG = """
import simplejpeg

def bytes_parser_function(data):
    return torch.from_numpy(simplejpeg.decode_jpeg(data))
"""
SIMPLEJPEG_BATCH = """
import simplejpeg

def batch_parser_function(data, offsets):
    images = np.empty((len(offsets) - 1, 160, 160, 3), np.uint8)
    for i, image in enumerate(images):
        simplejpeg.decode_jpeg(data[offsets[i] : offsets[i + 1]], buffer=image)
    return torch.from_numpy(images)
"""
"""Both decoders release the interpreter's lock, so threads decode on several cores."""


def write_images(folder: Path, num_files: int, side: int = SIDE) -> Path:
    """Write `num_files` files `<number>.jpg`, each with a `<number>.label`, and return their folder."""
    folder.mkdir(parents=True)
    images = [_jpeg(number, side) for number in range(min(_DISTINCT, num_files))]
    for number in range(num_files):
        stem = folder / f"{number:06d}"
        stem.with_suffix(".jpg").write_bytes(images[number % len(images)])
        stem.with_suffix(".label").write_text(str(label_of(number)))
        os.utime(stem.with_suffix(".jpg"), (1_000_000, 1_000_000))
    return folder


def label_of(number: int) -> int:
    return number % 10


def images_dataset(name: str, folder: Path) -> DatasetConfig:
    options = {"file_extension": ".jpg", "label_file_extension": ".label"}
    return DatasetConfig(
        name=name, base_path=folder, file_wrapper="SingleSampleFileWrapper", file_wrapper_config=options, watch=False
    )


def _jpeg(number: int, side: int) -> bytes:
    """Make smooth colours with coarse and fine noise. Its strength, and so the size of the file, grows with `number`."""
    random = np.random.default_rng([7, number])
    y, x = np.mgrid[0:side, 0:side].astype(np.float32) * (2 * np.pi / side)
    waves = random.uniform(-1, 1, (3, 5))
    smooth = np.stack([128 + 90 * np.sin(a * x + b * y + 3 * c) * np.cos(d * x - e * y) for a, b, c, d, e in waves], -1)
    strength = 3 + 105 * (number % 100) / 100
    coarse = random.normal(0, strength, (side // 2, side // 2, 3)).repeat(2, 0).repeat(2, 1)
    pixels = np.clip(smooth + coarse + random.normal(0, strength / 3, smooth.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=93)
    return file.getvalue()
