"""What goes on before the training itself, or between its epochs, as its status names it. For workers only."""

from __future__ import annotations

from typing import Final

from modyn.workers import JobConnection

NOTHING_SEEN: Final = {"samples_seen": 0, "samples_total": None, "batches_seen": 0, "loss": None, "samples_per_s": 0.0}
"""Progress of a training that has not begun."""


class StagedConnection(JobConnection):
    """Names with each message what goes on. The caller sends `stage: ""` by the connection itself once the stage is over."""

    def __init__(self, connection: JobConnection, stage: str) -> None:
        """Args: stage: as in `TrainingStatus`."""
        self.name, self.device, self.models, self.memory = connection.name, connection.device, connection.models, {}
        self._outer = connection
        self._stage = stage

    def send(self, message: object) -> None:
        """Send the message with the stage."""
        assert isinstance(message, dict)
        self._outer.send({**message, "stage": self._stage})

    @property
    def stopping(self) -> bool:
        """As of the job."""
        return self._outer.stopping
