"""Modyn decides when to retrain and on which samples, and reports the quality and the cost."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modyn import dataset, errors
    from modyn.client import Client

__version__ = "0.1.0"
__all__ = ["Client", "__version__", "dataset", "errors"]


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


def __getattr__(name: str) -> Any:
    # Imports are late, so that `import modyn` in a service or worker imports neither the client nor pandas.
    if name == "Client":
        from modyn.client import Client

        return Client
    if name in ("dataset", "errors"):
        return import_module(f"modyn.{name}")
    raise AttributeError(f"module 'modyn' has no attribute '{name}'")
