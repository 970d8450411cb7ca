"""Class folders: a file is one image, and the first folder of its path within the dataset's folder is its class."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Final, Literal

import numpy as np
from pydantic import field_validator

from modyn.errors import ConfigError, DataError
from modyn.storage.files.file_system import NameEndings, mtime_ns
from modyn.storage.files.local import reading
from modyn.storage.formats.base import FormatConfig, WholeFileFormat
from modyn.storage.formats.timestamps import out_of_range
from modyn.storage.model.samples import IndexedFiles

IMAGE_ENDINGS: Final = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Usual endings of images, in lower case. Other names may be images too: the content decides."""
_IMAGE: Final = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|BM|RIFF....WEBP|II[*+]\0|MM\0[*+]", re.DOTALL)
"""First bytes of JPEG, PNG, GIF, BMP, WebP and TIFF."""
_HEAD_BYTES: Final = 16
_THREADS: Final = 4
"""Number of threads that read the beginnings of images. The threads wait for the disk."""


class ImageFolderConfig(FormatConfig):
    """Options of `image_folder`."""

    label_type: Literal["int"] = "int"
    """Labels are the numbers of the classes."""
    times: str = ""
    """CSV file in the dataset's folder with the columns `path` and `time` of images."""

    @field_validator("times")
    @classmethod
    def _within(cls, path: str) -> str:
        if path and (os.path.isabs(path) or ".." in path.split("/")):
            raise ValueError(f"'{path}' is not a path within the dataset's folder; write it from there, such as times.csv")
        return os.path.normpath(path) if path else path


class ImageFolderFormat(WholeFileFormat):
    """Images (JPEG, PNG, WebP, BMP, GIF or TIFF) in class folders, see docs/how-to/datasets.md. Hidden files are left out."""

    Config: ClassVar[type[ImageFolderConfig]] = ImageFolderConfig
    config: ImageFolderConfig
    isolated = False
    row_times = (r"(?!)", "a file of one image has no rows: an image_folder allows '' and 'name:REGEX', or the option times")

    def __init__(self, config: ImageFolderConfig, timestamp_source: str = "") -> None:
        """Raises: ConfigError: see `FileFormat`; or there are two sources of times."""
        self.brings_times = bool(config.times)
        super().__init__(config, timestamp_source)
        if config.times and timestamp_source:
            raise ConfigError(
                f"times come from the option times, {config.times}, and from timestamp_source '{timestamp_source}'; remove one of the two"
            )

    @property
    def names_classes(self) -> bool:
        """Return True."""
        return True

    def endings(self) -> NameEndings:
        """Return that names have any ending, so that a file that is no image is reported."""
        return NameEndings("")

    def is_sample(self, path: str) -> bool:
        """Whether a file holds an image by its path within the dataset's folder: it is not hidden, and not the file of times."""
        return not path.startswith(".") and "/." not in path and path != self.config.times

    def class_of(self, path: str) -> str:
        """Return the class of a file by its path within the dataset's folder; empty: it is in no class folder, or the folder's name is not UTF-8."""
        name, slash, _ = path.partition("/")
        return name if slash and _is_text(name) else ""

    def index_files(self, paths: Sequence[str]) -> IndexedFiles:
        """Read the first bytes of the files. Labels are 0, and times are modification times: storage replaces them by `class_of` and the path."""
        step = max(1, -(-len(paths) // _THREADS))
        slices = [paths[first : first + step] for first in range(0, len(paths), step)]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="images") as pool:
            found = list(itertools.chain.from_iterable(pool.map(lambda some: [self._look(path) for path in some], slices)))
        problems = {i: one for i, one in enumerate(found) if isinstance(one, DataError)}
        sizes, mtimes = np.array([(0, 0) if isinstance(one, DataError) else one for one in found], np.int64).reshape(-1, 2).T
        return IndexedFiles(sizes, np.zeros(len(paths), np.int64), mtimes // 10**9, problems, mtimes)

    def _look(self, path: str) -> tuple[int, int] | DataError:
        """Return size and modification time (ns) of an image, or why the file cannot be used."""
        try:
            with reading(path), self.open(path, buffering=0) as file:
                head, status = file.read(_HEAD_BYTES), os.fstat(file.fileno())
        except DataError as error:
            return error
        if not _IMAGE.match(head):
            why = "it begins like no JPEG, PNG, WebP, BMP, GIF or TIFF" if head else "it is empty"
            return DataError(f"cannot use {path}: {why}; write the image again, or remove the file")
        time = mtime_ns(status)
        if not (self.config.times or self.name_pattern or -(2**63) < time < 2**63 - 1):
            return out_of_range(path)
        return status.st_size, time


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
