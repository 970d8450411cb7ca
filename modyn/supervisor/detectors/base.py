"""Base class of stream detectors. A detector receives a series number by number, and reports changes of the distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, Literal

from modyn.config.base import Section
from modyn.supervisor.evidence import Evidence


class StreamDetector(ABC):
    """A stream detector, built from its `Config` once for each series. The detector starts again after a detection."""

    Config: ClassVar[type[Section]]
    takes: ClassVar[Literal["errors", "shares", "numbers"]] = "numbers"
    """The numbers that the detector accepts: errors (0 or 1), shares (from 0 to 1), or any real numbers."""

    def __init__(self, config: Any, seed: int = 0) -> None:
        """Args: config: a checked `Config`. seed: seed of random draws."""
        self.config: Any = config
        self.seed = seed

    @abstractmethod
    def update(self, value: float) -> bool:
        """Process the next number of the series; return whether the detector detects a change at this number.

        Args: value: a number of the type that `takes` names.
        """

    @abstractmethod
    def evidence(self) -> Sequence[Evidence]:
        """Return the numbers of the newest verdict. The first record has the compared number and its threshold. The list is empty before the first
        comparison.
        """

    def state(self) -> dict[str, Any]:
        """Return the state that survives a restart, as JSON."""
        return {name.removeprefix("_"): deepcopy(value) for name, value in vars(self).items() if name.startswith("_")}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()` of a detector with the same configuration."""
        for name, value in state.items():
            setattr(self, f"_{name}", deepcopy(value))
