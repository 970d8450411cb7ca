"""The built-in decoder of images, `data.decode.image`. Training, evaluation and serving use it alike."""

from __future__ import annotations

import io
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import torch
from PIL import Image, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin

from modyn.dataset.config import ImageDecoding

_PLUGINS: Final = (TiffImagePlugin, WebPImagePlugin)
"""Pillow loads these two only when they are imported."""
_FORMATS: Final = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
_simplejpeg: Any = import_module("simplejpeg") if find_spec("simplejpeg") else None
_LEAST_SIDE: Final = 16
"""Pixels from which the sizes differ to which simplejpeg can reduce an image."""
_MOST_PIXELS: Final = Image.MAX_IMAGE_PIXELS or 0
"""Pillow decodes larger images. It warns of them, and refuses twice this number of pixels before it allocates memory."""
_LONGEST: Final = 100
"""Largest ratio of the sides of an image. The long side is resized before it is cut."""
_DEEP_MODES: Final = ("I", "F", "I;16")
"""Beginnings of Pillow's modes with more than 8 bits for a channel. Pillow would cut such values off."""


def _from_simplejpeg(
    data: bytes | memoryview, size: int
) -> tuple[Image.Image, tuple[int, int], tuple[float, float, float, float]] | None:
    """Return the pixels of a JPEG as `draft` and `load` of Pillow would, its width and height, and the box of `draft`; None: Pillow must decode the
    file, because simplejpeg is not installed, or refuses the file, or because its results could differ."""
    if _simplejpeg is None or bytes(data[:3]) != b"\xff\xd8\xff":
        return None
    try:
        height, width, colours, _ = _simplejpeg.decode_jpeg_header(data)
        if colours != "YCbCr" or min(width, height) < _LEAST_SIDE or width * height > _MOST_PIXELS:
            return None
        by = next((factor for factor in (8, 4, 2) if min(width, height) // size >= factor), 1)
        shape = (-(-height // by), -(-width // by), 3)
        pixels = _simplejpeg.decode_jpeg(data, min_height=shape[0], min_width=shape[1])
    except ValueError:
        return None
    return (Image.fromarray(pixels), (width, height), (0.0, 0.0, width / by, height / by)) if pixels.shape == shape else None


class ImageDecoder:
    """Decodes images as `config` says. Thread-safe; Pillow releases the GIL while it decodes and resizes.

    Rule: the first frame of the image, without the rotation in EXIF, is converted to `mode` (transparency is dropped). A JPEG is decoded by Pillow's
    `draft` at the smallest of 1/1, 1/2, 1/4 and 1/8 of its size whose short side has at least `size` pixels. The short side is resized to `size` and
    the long side to floor(size · long / short), with Pillow's bilinear filter, which averages where it reduces. The centre square is cut out, from
    pixel round((side - size) / 2) on. Last, x becomes (x / 255 - mean) / std in float32. Apart from `draft`, this equals `Resize(size)`,
    `CenterCrop(size)`, `ToTensor()` and `Normalize(mean, std)` of torchvision for images of Pillow. If simplejpeg is installed, it decodes most JPEG
    files to the same bits in half the time.
    """

    def __init__(self, config: ImageDecoding) -> None:
        self._size, self._mode = config.size, config.mode
        self.shape = (config.num_channels, config.size, config.size)
        """Shape of a decoded image."""
        known = config.normalize
        self._scale = None if known is None else torch.tensor([known.mean, known.std], dtype=torch.float32)[..., None, None]
        """Mean and standard deviation of each channel; None: pixels are not normalised."""

    def decode(self, data: bytes | memoryview) -> torch.Tensor:
        """Return the pixels, uint8 (channels, size, size). Raises: ValueError: the bytes are no image that can be decoded; the message is the
        reason."""
        try:
            return self._pixels(data)
        except MemoryError:
            raise
        except UnidentifiedImageError as error:
            raise ValueError(f"its {len(data)} bytes are no image; known are {', '.join(_FORMATS)}") from error
        except Exception as error:  # Pillow raises errors of many classes for damaged images.
            raise ValueError(f"the image cannot be decoded: {error or type(error).__name__}") from error

    def _pixels(self, data: bytes | memoryview) -> torch.Tensor:
        size = self._size
        if (found := _from_simplejpeg(data, size)) is not None:
            image, (width, height), box = found
            self._check_sides(width, height)
            return self._cut(image.convert(self._mode), width, height, box)
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.mode.startswith(_DEEP_MODES):
                raise ValueError(f"its pixels have more than 8 bits for each channel (mode {image.mode}); convert it to 8 bits")
            width, height = image.size
            self._check_sides(width, height)
            # A side that no reduction divides is rounded up. The box leaves the fraction out, so that proportions stay.
            _, box = image.draft(None, (size, size)) or ("", (0.0, 0.0, width, height))
            return self._cut(image.convert(self._mode), width, height, box)

    def _check_sides(self, width: int, height: int) -> None:
        if max(width, height) > _LONGEST * min(width, height):
            raise ValueError(f"it has {width} × {height} pixels, and one side may be {_LONGEST} times as long as the other")

    def _cut(self, image: Image.Image, width: int, height: int, box: tuple[float, float, float, float]) -> torch.Tensor:
        """Resize an image and cut out its centre. Args: width, height: of the file. box: part of `image` that shows the whole file."""
        size = self._size
        long = size * max(width, height) // min(width, height)
        resized = image.resize((size, long) if width <= height else (long, size), Image.Resampling.BILINEAR, box)
        left, top = (round((side - size) / 2) for side in resized.size)
        pixels = np.asarray(resized.crop((left, top, left + size, top + size)))
        return torch.from_numpy(np.array(pixels.reshape(size, size, -1).transpose(2, 0, 1), order="C"))

    def normalized(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return a batch of decoded images, uint8 (n, channels, size, size), as float32."""
        values = pixels.to(torch.float32).div_(255)
        return values if self._scale is None else values.sub_(self._scale[0]).div_(self._scale[1])
