"""Stream detectors, registered by `id`. A stream detector detects changes in the distribution of a series of numbers."""

from __future__ import annotations

from typing import Final

from modyn.registry import Registry
from modyn.supervisor.detectors.base import StreamDetector

__all__ = ["DETECTORS", "StreamDetector"]

_HERE: Final = "modyn.supervisor.detectors"

DETECTORS: Final[Registry[type[StreamDetector]]] = Registry(
    group="modyn.stream_detectors",
    kind="stream detector",
    builtin={
        "ADWIN": f"{_HERE}.adwin:ADWIN",
        "DDM": f"{_HERE}.error_rate:DDM",
        "EDDM": f"{_HERE}.error_rate:EDDM",
        "HDDM_A": f"{_HERE}.hoeffding:HDDMA",
        "HDDM_W": f"{_HERE}.hoeffding:HDDMW",
        "KSWIN": f"{_HERE}.kswin:KSWIN",
        "PageHinkley": f"{_HERE}.page_hinkley:PageHinkley",
    },
)
