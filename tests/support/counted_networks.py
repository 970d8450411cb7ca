"""How many networks a session of a worker builds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from modyn.models.networks import MLPNetwork
from modyn.models.specs import LogisticRegression
from modyn.registry import load_object
from modyn.workers import JobConnection


class Counted(MLPNetwork):
    """Counts those that are made in this process."""

    built: ClassVar[int] = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Counted.built += 1


def count_built(commands: Sequence[tuple[str, object]], connection: JobConnection) -> int:
    """Task of a worker process of its own: each command by its task and its request; returns how many networks they built."""
    LogisticRegression.network = f"{__name__}:Counted"
    for task, request in commands:
        function: Any = load_object(task)
        function(request, connection)
    return Counted.built
