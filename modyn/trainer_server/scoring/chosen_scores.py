"""Scores of the last selection of a sample-then-batch training. The selector receives these scores like other scores of samples.

Imports torch: for workers only.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from modyn.errors import ModynError
from modyn.rpc.logs import get_logger
from modyn.trainer_server.disk.chosen_set import ChosenRows, read_chosen_set
from modyn.trainer_server.disk.files import chosen_path, feedback_path, selections_dir
from modyn.trainer_server.disk.row_log import RowLog
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.loop.loop import Hook, Training
from modyn.trainer_server.result import FeedbackResult
from modyn.trainer_server.scoring.downsampling_record import DownsamplingRecord
from modyn.trainer_server.scoring.sample_scores import CHOSEN_WIDTHS, feedback_rows

_CHUNK_ROWS: Final = 65_536


class ChosenScores(Hook):
    """Stores the samples of the last selection at the end of a training, with 20 bytes a sample.

    The hook is used if the selection strategy requests no scores. Otherwise `SampleScores` also keeps the chosen samples, for each epoch.
    """

    name = "feedback"

    def __init__(self, inputs: TrainingInputs, period: int) -> None:
        """Args: period: number of epochs between two selections."""
        self._folder = selections_dir(inputs.context.folder, inputs.request)
        self._log = RowLog(feedback_path(inputs.context.folder, inputs.request))
        self._period = period

    def result(self, training: Training) -> FeedbackResult | None:
        """Write the rows, and return the description of the file; None if the rows are lost, which is logged."""
        [record] = training.hooks_of(DownsamplingRecord)
        number = record.num_selections - 1
        try:
            self._write(read_chosen_set(chosen_path(self._folder, number)), number * self._period)
        except ModynError as error:  # The model is more important than the scores.
            get_logger("training").warning("chosen_samples_lost", reason=error.message)
            return None
        return FeedbackResult(CHOSEN_WIDTHS, self._log.num_rows, self._log.crc32, time.time_ns() // 1000)

    def _write(self, rows: ChosenRows, epoch: int) -> None:
        """Write all rows, for the epoch that followed the selection."""
        self._log.begin()
        for first in range(0, len(rows), _CHUNK_ROWS):
            part = slice(first, first + _CHUNK_ROWS)
            keys, weights = rows.chosen.keys[part], rows.chosen.weights[part]
            scores = np.full(len(keys), np.nan, np.float32) if rows.scores is None else rows.scores[part]
            self._log.append(feedback_rows(keys, np.full(len(keys), epoch), np.stack((scores, weights), 1)))
        self._log.commit()
