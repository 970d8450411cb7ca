"""What the last selection of a training in sample-then-batch has chosen, with its scores: sent to the selector as other scores of samples are.

Imports torch: for workers only.
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from modyn.errors import ModynError
from modyn.rpc.logs import get_logger
from modyn.trainer_server.chosen_set import ChosenRows, read_chosen_set
from modyn.trainer_server.downsampling_record import DownsamplingRecord
from modyn.trainer_server.feedback_file import FeedbackFile
from modyn.trainer_server.files import chosen_path, feedback_path, selections_dir
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.loop import Hook, Training
from modyn.trainer_server.sample_scores import CHOSEN_WIDTHS

_CHUNK_ROWS: Final = 65_536


class ChosenScores(Hook):
    """Keeps once, at the end of a training, what its last selection has chosen: 20 bytes a chosen sample.

    For a training whose selection strategy asks for no scores; where it does, `SampleScores` keeps these too, for each epoch.
    """

    name = "feedback"

    def __init__(self, inputs: TrainingInputs, period: int) -> None:
        """Args: period: epochs between two selections."""
        self._folder = selections_dir(inputs.context.folder, inputs.request)
        self._file = FeedbackFile(feedback_path(inputs.context.folder, inputs.request), CHOSEN_WIDTHS)
        self._period = period

    def result(self, training: Training, num_keys: int) -> dict[str, Any]:
        """Write the rows; return what the result of the training has under `feedback`: nothing where they are lost, which is logged."""
        record = next(hook for hook in training.hooks if isinstance(hook, DownsamplingRecord))
        number = record.num_selections - 1
        try:
            self._write(read_chosen_set(chosen_path(self._folder, number)), number * self._period)
        except ModynError as error:  # The model is worth more.
            get_logger("training").warning("chosen_samples_lost", reason=error.message)
            return {}
        kept = {"num_rows": self._file.num_rows, "crc32": self._file.crc32}
        return {"scores": CHOSEN_WIDTHS, **kept, "attempt": time.time_ns() // 1000}

    def _write(self, rows: ChosenRows, epoch: int) -> None:
        """Write all rows, as of the epoch that followed the selection."""
        self._file.begin()
        for first in range(0, len(rows), _CHUNK_ROWS):
            part = slice(first, first + _CHUNK_ROWS)
            keys, weights = rows.chosen.keys[part], rows.chosen.weights[part]
            scores = np.full(len(keys), np.nan, np.float32) if rows.scores is None else rows.scores[part]
            self._file.append(keys, np.full(len(keys), epoch), np.stack((scores, weights), 1))
        self._file.sync()
