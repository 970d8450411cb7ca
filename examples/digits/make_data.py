"""Write handwritten digits that change over ten years: 1,797 real images, as PNG files with label files.

The images ship with scikit-learn (UCI "Optical Recognition of Handwritten Digits"). The images are spread over 2010-2019 so that the
shares of classes drift (small digits first, large digits later). In 2014-2016 the digits are turned by 35 degrees and dark on a bright background. A
file's modification time is the time of its sample. Equal seeds give equal files.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

YEARS = range(2010, 2020)
SHIFTED_YEARS = range(2014, 2017)
IMAGE_SIZE = 16
TEST_SHARE = 0.4
SEED = 7


def make_digits(folder: Path, seed: int = SEED) -> int:
    """Write `folder/train` and `folder/test`, and return the number of images. Existing files are written again with the same content."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images: npt.NDArray[np.float64] = digits.images
    labels: npt.NDArray[np.int64] = digits.target
    rng = np.random.default_rng(seed)
    years = assign_years(labels, rng)
    is_test = rng.random(len(labels)) < TEST_SHARE
    for index in range(len(labels)):
        year = YEARS[years[index]]
        split = "test" if is_test[index] else "train"
        path = folder / split / str(year) / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(images[index], shifted=year in SHIFTED_YEARS).save(path)
        path.with_suffix(".label").write_text(f"{labels[index]}\n")
        when = dt.datetime(year, 1, 1, tzinfo=dt.UTC).timestamp() + int(rng.integers(0, 365 * 86_400))
        for file in (path, path.with_suffix(".label")):
            os.utime(file, (when, when))
    return len(labels)


def assign_years(labels: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return the year (0-9) of each image: int64 (n,). Each year has the same number of images. Small digits tend to have early years."""
    order = np.argsort(labels / 9 + rng.normal(0, 0.9, len(labels)), kind="stable")
    years = np.empty(len(labels), np.int64)
    years[order] = np.arange(len(labels)) * len(YEARS) // len(labels)
    return years


def draw(pixels: npt.NDArray[np.float64], *, shifted: bool) -> Image.Image:
    """Return an 8x8 image with values 0-16 as a 16x16 gray image. Args: shifted: whether the digit is turned, and dark on a bright background."""
    image = Image.fromarray((pixels * (255 / 16)).astype(np.uint8)).resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC)
    if not shifted:
        return image
    turned = image.rotate(35, Image.Resampling.BICUBIC)
    return Image.fromarray((225 - 0.6 * np.asarray(turned, np.float64)).clip(0, 255).astype(np.uint8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print(f"{make_digits(folder)} images in {folder}")


if __name__ == "__main__":
    main()
