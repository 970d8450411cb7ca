"""Import of torchvision, which may be installed without its compiled operators."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any, Final

_OPERATORS: Final = ("nms", "qnms")
_DEFINED: Final[list[Any]] = []
"""Libraries of the defined schemas. If a library were garbage collected, its schemas would be gone."""


def import_torchvision() -> Any:
    """Import torchvision. Its compiled operators do not load with a torch of another build, for example torchvision of PyPI with a torch for CPUs.
    Classification models and transformations do not need these operators, but the import needs two of their schemas, which are then defined.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision warns of each compiled part that does not load.
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            if "torchvision::" not in str(error) or _DEFINED:
                raise
        import torch

        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in _OPERATORS:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DEFINED.append(library)
        return importlib.import_module("torchvision")
