"""Decide when the steps of online learning pause and resume. The decision is a pure function of the earlier journalled triggers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from itertools import islice

from modyn.config.online import ConvergenceConfig
from modyn.supervisor.detectors.page_hinkley import PageHinkley, PageHinkleyConfig
from modyn.supervisor.journal.records import TriggerRecord
from modyn.tolerance import exceeds
from modyn.trainer_server.client import ErrorRow, mean_error


class ConvergenceCheck:
    """Decides from the triggers of a run, in order, whether the next online steps pause. `ConvergenceConfig` documents the rule.

    Steps resume after a trigger that is not online. The decision changes only at triggers, never between two steps of one trigger.
    """

    def __init__(self, config: ConvergenceConfig | None) -> None:
        """Args: config: the rule; None if steps never pause."""
        self._config = config
        self.change = ""
        """Reason why the newest trigger has paused or resumed steps, for messages; empty if the newest trigger changed nothing."""
        self._begin()

    def _begin(self) -> None:
        self._rows = RecentRows(2 * self._config.window if self._config else 0)
        self._rises: RiseTest | None = None
        """The test for a rise of the error; None unless steps are paused."""

    @property
    def paused(self) -> bool:
        """Whether steps are paused, so that new samples are only tested."""
        return self._rises is not None

    def add(self, trigger: TriggerRecord) -> None:
        """Process the next trigger after the trigger has ended."""
        self.change = ""
        if self._config is None:
            return
        if not trigger.online:
            if trigger.model_id is not None:
                self._begin()
            return
        if (tests := trigger.training_result.prequential) is None:
            return
        for row in tests.rows:
            # `_rises` is set while steps pause. A rise of the error ends the pause.
            if self._rises is None:
                self._rows.add(row)
            elif self._rises.add(row):
                self._start_again(self._rises)
                return
        if self._rises is None:
            self._pause_if_flat(self._config, tests.measure == "error")

    def _pause_if_flat(self, config: ConvergenceConfig, errors: bool) -> None:
        window, tolerance = config.window, config.tolerance
        if (halves := self._rows.halves(window)) is None:
            return
        before, newest = halves
        if not exceeds(abs(newest - before), tolerance * abs(before), before):
            self.change = (
                f"steps pause: the prequential error is flat, {newest:.4g} over the newest {window:,} samples and {before:.4g} over those before; "
                "new samples are only tested"
            )
            self._rises = RiseTest(config, list(self._rows.newest(window)), errors)

    def _start_again(self, rises: RiseTest) -> None:
        self._begin()
        self.change = (
            f"steps start again: the prequential error has risen, from {rises.level:.4g} before the pause to {rises.newest:.4g}"
        )


class RecentRows:
    """The newest rows: at least `num_samples` samples plus the samples of the largest row, because a window may begin within a row."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._largest = 0
        self._rows: deque[ErrorRow] = deque()
        self._held = 0

    def add(self, row: ErrorRow) -> None:
        """Add the next row, and drop rows that are not needed any more."""
        self._rows.append(row)
        self._held += row.num
        self._largest = max(self._largest, row.num)
        while self._held - self._rows[0].num >= self._num_samples + self._largest:
            self._held -= self._rows.popleft().num

    def newest(self, num_samples: int) -> Iterator[ErrorRow]:
        """Return the newest rows with at least `num_samples` samples in total, in order; all rows if all have fewer samples."""
        count = held = 0
        for row in reversed(self._rows):
            count, held = count + 1, held + row.num
            if held >= num_samples:
                break
        return islice(self._rows, len(self._rows) - count, None)

    def halves(self, window: int) -> tuple[float, float] | None:
        """Return two mean errors over whole rows: of the rows before the newest `window` samples, and of the rows with the newest `window` samples.
        Return None if the earlier rows have fewer than `window` samples.
        """
        newest = list(self.newest(window))
        before = list(islice(self._rows, len(self._rows) - len(newest)))
        if sum(row.num for row in before) < window:
            return None
        return mean_error(before), mean_error(newest)


class RiseTest:
    """Page-Hinkley test of new rows against earlier rows. The test number of a row with n samples is the row's mean minus `level`, divided by the
    standard deviation of a mean of n samples.

    The standard deviation of one sample is estimated from the earlier rows, which also pass through the test before the new rows. For errors, the
    deviation is at least the deviation for an error rate of (errors + 1) / (samples + 2), because a model may make its first error later.
    """

    def __init__(self, config: ConvergenceConfig, before: list[ErrorRow], errors: bool) -> None:
        """Args: before: rows of the window before the pause, at least one. errors: whether the sums count errors of 0 or 1."""
        self.level = self.newest = mean_error(before)
        num, squares = sum(row.num for row in before), sum(row.num * (row.total / row.num - self.level) ** 2 for row in before)
        variance = squares / max(len(before) - 1, 1)
        if errors:
            share = (sum(row.total for row in before) + 1) / (num + 2)
            variance = max(variance, share * (1 - share))
        # The lower bounds prevent a division by 0 if all rows are equal.
        self._deviation = max(math.sqrt(variance), 1e-6 * abs(self.level), 1e-12)
        options = PageHinkleyConfig(min_instances=1, delta=config.rise, threshold=config.threshold, alpha=1.0, mode="up")
        self._test = PageHinkley(options)
        for row in before:
            self._test.update(self._standardized(row))

    def add(self, row: ErrorRow) -> bool:
        """Process the next row; return whether the error has risen."""
        self.newest = row.total / row.num
        return self._test.update(self._standardized(row))

    def _standardized(self, row: ErrorRow) -> float:
        return (row.total / row.num - self.level) * math.sqrt(row.num) / self._deviation
