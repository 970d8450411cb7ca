"""The files of a run: its logs of samples, and its trigger sets with the files of its policy beside them."""

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
    """Where the files of a run are. directory: of this run alone; made by its log."""

    run_id: RunId
    directory: Path

    @property
    def log(self) -> SampleLog:
        """The samples that the run was informed of."""
        return SampleLog(self.run_id, self.directory)

    @property
    def labelled(self) -> LabelledStream | None:
        """These samples in the order of their labels; None: each label came with its sample."""
        return LabelledStream.find(self.run_id, self.directory, self.log)

    @property
    def selectable(self) -> SampleLog | LabelledStream:
        """The samples with labels, in the order of these: what trigger sets are selected from, and numbered by."""
        return self.labelled or self.log

    def begin_labels(self, first: int) -> LabelledStream:
        """Let labels come late from sample number `first` on, durably. Raises ConflictError: fewer are held."""
        return LabelledStream.begin(self.run_id, self.directory, self.log, first)

    @property
    def feedback(self) -> FeedbackFiles:
        """What its trainings have scored."""
        return FeedbackFiles(self.directory / "feedback", self.run_id)

    @property
    def triggers(self) -> Path:
        """The folder of the trigger sets; there once the first is written."""
        return self.directory / "triggers"

    def set_path(self, trigger_id: int) -> Path:
        """The file of a trigger set."""
        return self.triggers / f"{trigger_id:06}.set"

    def open_set(self, info: TriggerSetInfo) -> TriggerSet:
        """Open the file of an existing trigger set. Raises CorruptStateError: it is missing, damaged or another one."""
        path = self.set_path(info.trigger_id)
        if not path.exists():
            raise CorruptStateError(
                f"the trigger set {path} is missing; restore it from a backup, or delete run '{self.run_id}' and start it anew"
            )
        found = TriggerSet(path, self.selectable)
        if (found.header.keys_sha256, found.header.partition_size) != (info.keys_checksum, info.partition_size):
            raise CorruptStateError(
                f"the trigger set {path} is not the one of trigger {info.trigger_id} of run '{self.run_id}'; restore the right one"
            )
        return found

    def names_beside_sets(self) -> set[str]:
        """Names of all files in the folder of the trigger sets, these included. Raises OSError."""
        return {path.name for path in self.triggers.iterdir()} if self.triggers.exists() else set()

    def remove(self, names: Set[str]) -> None:
        """Remove files beside the trigger sets that no trigger to come needs. One that cannot be removed now goes at the next start."""
        logger = get_logger("selector")
        for name in names:
            path = self.triggers / name
            try:
                path.unlink(missing_ok=True)
                logger.info("file_removed", run_id=self.run_id, path=str(path))
            except OSError as error:
                logger.warning("file_not_removed", run_id=self.run_id, path=str(path), error=str(error))


def set_aside_orphan(directory: Path, orphans: Path) -> None:
    """Move away a folder that no row names: a registration was cut off, or the database is another or an older one.

    It is never deleted, because in the latter case that would delete all samples. Args: orphans: where to; made with the first one.
    """
    aside = orphans / f"{directory.name}.{time.time_ns()}"
    make_folder(orphans)
    directory.rename(aside)
    get_logger("selector").warning("orphan_set_aside", path=str(directory), to=str(aside))
