"""Section `retention` of the system file: what is removed automatically."""

from __future__ import annotations

from pydantic import Field

from modyn.config.base import Section
from modyn.retention import KeepLimits


class RetentionConfig(Section):
    """What is removed by itself. By default nothing is: each limit is off until it is set. A model version stays, with its run, that is promoted,
    that `serving.pinned` of a run names, or that a server held when the servers of a run reported last, within a week. The newest version of a run
    with a section `serving` stays as long as the run."""

    every_s: float = Field(3600.0, gt=0, le=7 * 86_400, description="seconds between two looks")
    runs_max_age_d: float | None = Field(
        None, gt=0, description="days after which a run that has finished, failed or was stopped is removed"
    )
    runs_max_number: int | None = Field(None, ge=0, description="such runs that are kept, the newest ones")
    models_max_age_d: float | None = Field(None, gt=0, description="days after which a model version is removed")
    models_max_number: int | None = Field(None, ge=1, description="model versions kept of each run, the newest ones")
    models_max_bytes: int | None = Field(None, ge=0, description="size of all model versions; the oldest are removed first")
    files_max_age_d: float | None = Field(
        None,
        gt=0,
        description="days after which a file is removed that was set aside: segments in `quarantine/` of a dataset, models in that of model storage, "
        "trainings in `finished/` "
        "whose model was never stored",
    )
    files_max_bytes: int | None = Field(
        None, ge=0, description="size of the files that were set aside, by service; the oldest are removed first"
    )

    @property
    def runs(self) -> KeepLimits:
        """The limits of runs."""
        return KeepLimits(_seconds(self.runs_max_age_d), self.runs_max_number)

    @property
    def models_of_run(self) -> KeepLimits:
        """The limits of the model versions of one run."""
        return KeepLimits(_seconds(self.models_max_age_d), self.models_max_number)

    @property
    def models(self) -> KeepLimits:
        """The limits of all model versions together."""
        return KeepLimits(max_bytes=self.models_max_bytes)

    @property
    def files(self) -> KeepLimits:
        """The limits of files that were set aside."""
        return KeepLimits(_seconds(self.files_max_age_d), max_bytes=self.files_max_bytes)


def _seconds(days: float | None) -> float | None:
    return None if days is None else days * 86_400
