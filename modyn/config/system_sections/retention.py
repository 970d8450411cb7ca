"""Section `retention` of the system file: automatic removal."""

from __future__ import annotations

from pydantic import Field

from modyn.config.base import Section
from modyn.keep_limits import KeepLimits


class RetentionConfig(Section):
    """Limits after which runs, model versions and files are removed. Each limit is off until it is set. A model version is kept, with its run, if the
    version is promoted, if `serving.pinned` of a run names it, or if a server reported it within the last week. The newest version of a run with a
    section `serving` is kept as long as the run."""

    every_s: float = Field(3600.0, gt=0, le=7 * 86_400, description="seconds between two checks of the limits")
    runs_max_age_d: float | None = Field(None, gt=0, description="days after which a finished, failed or stopped run is removed")
    runs_max_number: int | None = Field(None, ge=0, description="number of such runs that are kept; the newest ones stay")
    models_max_age_d: float | None = Field(None, gt=0, description="days after which a model version is removed")
    models_max_number: int | None = Field(
        None, ge=1, description="number of model versions of each run that are kept; the newest ones stay"
    )
    models_max_bytes: int | None = Field(None, ge=0, description="total size of all model versions; the oldest are removed first")
    files_max_age_d: float | None = Field(
        None,
        gt=0,
        description="days after which a file that was set aside is removed: segments in `quarantine/` of a dataset, models in `quarantine/` of model "
        "storage, and trainings in `finished/` whose model was never stored",
    )
    files_max_bytes: int | None = Field(
        None, ge=0, description="total size of the files that were set aside, for each service; the oldest are removed first"
    )

    @property
    def runs(self) -> KeepLimits:
        """Return the limits of runs."""
        return KeepLimits(_seconds(self.runs_max_age_d), self.runs_max_number)

    @property
    def models_of_run(self) -> KeepLimits:
        """Return the limits of the model versions of one run."""
        return KeepLimits(_seconds(self.models_max_age_d), self.models_max_number)

    @property
    def models(self) -> KeepLimits:
        """Return the limits of all model versions together."""
        return KeepLimits(max_bytes=self.models_max_bytes)

    @property
    def files(self) -> KeepLimits:
        """Return the limits of files that were set aside."""
        return KeepLimits(_seconds(self.files_max_age_d), max_bytes=self.files_max_bytes)


def _seconds(days: float | None) -> float | None:
    return None if days is None else days * 86_400
