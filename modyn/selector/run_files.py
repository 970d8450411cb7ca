"""The files of a run: its logs of samples, its trigger sets, the state files of its policy next to the sets, and the scores of its trainings."""

from __future__ import annotations

import time
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from modyn.atomic_write import make_folder
from modyn.errors import CorruptStateError
from modyn.records import RunId, TriggerSetInfo
from modyn.rpc.logs import get_logger
from modyn.selector.labelled_stream import LabelledStream
from modyn.selector.sample_log import SampleLog
from modyn.selector.trigger_set import TriggerSet
from modyn.selector.window import FeedbackFiles


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run. directory: folder of the run, which `SampleLog.create` creates."""

    run_id: RunId
    directory: Path

    @property
    def log(self) -> SampleLog:
        """The log of all samples of the run, in the order of arrival."""
        return SampleLog(self.run_id, self.directory)

    @property
    def labelled(self) -> LabelledStream | None:
        """The run's samples in the order in which their labels arrived; None if each label arrived with its sample."""
        return LabelledStream.find(self.run_id, self.directory, self.log)

    @property
    def selectable(self) -> SampleLog | LabelledStream:
        """The samples with labels, in the order of their labels. Trigger sets are selected from these samples, and refer to the numbers of the
        samples in this order."""
        return self.labelled or self.log

    def begin_labels(self, first: int) -> LabelledStream:
        """Store durably that labels arrive late from sample number `first` on. Raises ConflictError: the run has fewer samples."""
        return LabelledStream.begin(self.run_id, self.directory, self.log, first)

    @property
    def feedback(self) -> FeedbackFiles:
        """The scores of the run's trainings."""
        return FeedbackFiles(self.directory / "feedback", self.run_id)

    @property
    def triggers(self) -> Path:
        """The folder of the trigger sets. The first set creates this folder."""
        return self.directory / "triggers"

    def set_path(self, trigger_id: int) -> Path:
        """Return the path of a trigger set."""
        return self.triggers / f"{trigger_id:06}.set"

    def open_set(self, info: TriggerSetInfo) -> TriggerSet:
        """Open the file of an existing trigger set. Raises CorruptStateError: the file is missing or damaged, or contains another set."""
        path = self.set_path(info.trigger_id)
        if not path.exists():
            raise CorruptStateError(
                f"the trigger set {path} is missing; restore it from a backup, or delete run '{self.run_id}' and start it again"
            )
        found = TriggerSet(path, self.selectable)
        if (found.header.keys_sha256, found.header.partition_size) != (info.keys_checksum, info.partition_size):
            raise CorruptStateError(
                f"the trigger set {path} is not the one of trigger {info.trigger_id} of run '{self.run_id}'; restore the right one"
            )
        return found

    def names_in_folder(self) -> set[str]:
        """Return the names of all files in the folder of the trigger sets, including the sets. Raises OSError."""
        return {path.name for path in self.triggers.iterdir()} if self.triggers.exists() else set()

    def remove(self, names: Set[str]) -> None:
        """Remove files that no later trigger needs from the folder of the trigger sets. If a file cannot be removed now, the next start of the
        selector removes it."""
        logger = get_logger("selector")
        for name in names:
            path = self.triggers / name
            try:
                path.unlink(missing_ok=True)
                logger.info("file_removed", run_id=self.run_id, path=str(path))
            except OSError as error:
                logger.warning("file_not_removed", run_id=self.run_id, path=str(path), error=str(error))


def set_aside_orphan(directory: Path, orphans: Path) -> None:
    """Move a run's folder without a row in the database to `orphans`. Either a crash interrupted the registration of its run, or the folder belongs
    to another database, for example if the database is an older backup.

    The folder is never deleted, because a service that was started with a wrong database would otherwise lose all samples. Args: orphans: target
    folder, created when needed.
    """
    # The time makes the name unique: a folder of this name may have been set aside before.
    aside = orphans / f"{directory.name}.{time.time_ns()}"
    make_folder(orphans)
    directory.rename(aside)
    get_logger("selector").warning("orphan_set_aside", path=str(directory), to=str(aside))
