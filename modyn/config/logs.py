"""The section `logs` of the system configuration."""

from __future__ import annotations

from pydantic import Field

from modyn.config.base import Section
from modyn.log_files import LogLimits


class LogsConfig(Section):
    """Size of the log files of embedded services and of workers. Services in containers log to their engine."""

    max_bytes: int = Field(
        20 << 20, ge=2**10, description="a log file that has grown beyond this becomes `NAME.log.1`, and a new one begins"
    )
    keep: int = Field(3, ge=0, le=1000, description="older files kept of each log")

    @property
    def limits(self) -> LogLimits:
        """The same values, as the record that log files take."""
        return LogLimits(self.max_bytes, self.keep)
