"""What a stream detector is: it takes a series number by number, and says where the distribution that they are drawn from has changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar, Literal

from modyn.config.base import Section


class StreamDetector(ABC):
    """A stream detector, built from its `Config` once for each series. After a detection it begins anew."""

    Config: ClassVar[type[Section]]
    takes: ClassVar[Literal["errors", "shares", "numbers"]] = "numbers"
    """What its numbers must be: errors 0 or 1, shares from 0 to 1, or any real ones."""

    def __init__(self, config: Any, seed: int = 0) -> None:
        """Args: config: a checked `Config`. seed: of what the detector draws."""
        self.config: Any = config
        self.seed = seed

    @abstractmethod
    def update(self, value: float) -> bool:
        """Take the next number of the series, and say whether the distribution has changed before it.

        Args: value: a number as of `takes`.
        """

    @abstractmethod
    def evidence(self) -> Mapping[str, float]:
        """Named numbers that the newest verdict was made from, for explanations: first what is compared, then the `threshold`."""

    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON."""
        return {name.removeprefix("_"): deepcopy(value) for name, value in vars(self).items() if name.startswith("_")}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()` of a detector with the same configuration."""
        for name, value in state.items():
            setattr(self, f"_{name}", deepcopy(value))
