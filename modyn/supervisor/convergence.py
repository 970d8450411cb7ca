"""When the steps of a run that learns online pause, and when they start again. A pure function of the triggers before, as the journal has them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from itertools import islice

from modyn.config.online import ONLINE, ConvergenceConfig, load_online
from modyn.config.pipeline import Pipeline
from modyn.supervisor.detectors.page_hinkley import PageHinkley, PageHinkleyConfig
from modyn.supervisor.error_rows import ErrorRow, are_errors, error_rows, mean
from modyn.supervisor.records import TriggerRecord
from modyn.tolerance import exceeds


class ConvergenceCheck:
    """Takes the triggers of a run in order, and says whether the next steps pause; the rule is that of `ConvergenceConfig`.

    After a trigger that is not online, steps begin anew. The verdict stands from trigger to trigger: within a stretch of steps nothing changes.
    """

    def __init__(self, config: ConvergenceConfig | None) -> None:
        """Args: config: None: steps never pause."""
        self._config = config
        self.change = ""
        """Why the newest trigger has changed whether steps pause, for messages; empty: it has not."""
        self._begin()

    def _begin(self) -> None:
        self._rows = RecentRows(2 * self._config.window if self._config else 0)
        self._rises: RiseTest | None = None
        """While steps pause."""

    @property
    def paused(self) -> bool:
        """Whether new samples are only tested."""
        return self._rises is not None

    def add(self, trigger: TriggerRecord) -> None:
        """Take the next trigger, once it has ended."""
        self.change = ""
        if self._config is None:
            return
        if not trigger.online:
            if trigger.model_id is not None:
                self._begin()
            return
        for row in error_rows(trigger.training_result):
            if self._rises is None:
                self._rows.add(row)
            elif self._rises.add(row):
                self._start_again(self._rises)
                return
        if self._rises is None:
            self._pause_if_flat(self._config, are_errors(trigger.training_result))

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


def convergence_of(pipeline: Pipeline) -> ConvergenceCheck:
    """The check of the section `online` of a pipeline; without one, steps never pause."""
    config = load_online(pipeline.section(ONLINE))
    return ConvergenceCheck(None if config is None else config.convergence)


class RecentRows:
    """The newest rows: those that a window of `num_samples` ends in, wherever it is cut between rows, and no more."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._largest = 0
        self._rows: deque[ErrorRow] = deque()
        self._held = 0

    def add(self, row: ErrorRow) -> None:
        """Take the next row."""
        self._rows.append(row)
        self._held += row.num
        self._largest = max(self._largest, row.num)
        while self._held - self._rows[0].num >= self._num_samples + self._largest:
            self._held -= self._rows.popleft().num

    def newest(self, num_samples: int) -> Iterator[ErrorRow]:
        """The newest rows that reach `num_samples`, in order; all where they do not."""
        count = held = 0
        for row in reversed(self._rows):
            count, held = count + 1, held + row.num
            if held >= num_samples:
                break
        return islice(self._rows, len(self._rows) - count, None)

    def halves(self, window: int) -> tuple[float, float] | None:
        """The mean over the rows before the newest `window` samples, and over these; None: there are fewer than `window` before."""
        newest = list(self.newest(window))
        before = list(islice(self._rows, len(self._rows) - len(newest)))
        if sum(row.num for row in before) < window:
            return None
        return mean(before), mean(newest)


class RiseTest:
    """Page-Hinkley test of rows against those before: each row's mean less `level`, in standard deviations of the mean of so many samples.

    The deviation of a sample is estimated from the rows before, which the test takes first. That of errors is at least the one of a share of
    (errors + 1) / (samples + 2): a model that made no error so far is not expected to make none.
    """

    def __init__(self, config: ConvergenceConfig, before: list[ErrorRow], errors: bool) -> None:
        """Args: before: the rows of the window before the pause, one at least. errors: sums are of errors 0 or 1."""
        self.level = self.newest = mean(before)
        num, squares = sum(row.num for row in before), sum(row.num * (row.total / row.num - self.level) ** 2 for row in before)
        variance = squares / max(len(before) - 1, 1)
        if errors:
            share = (sum(row.total for row in before) + 1) / (num + 2)
            variance = max(variance, share * (1 - share))
        self._deviation = max(math.sqrt(variance), 1e-6 * abs(self.level), 1e-12)
        options = PageHinkleyConfig(min_instances=1, delta=config.rise, threshold=config.threshold, alpha=1.0, mode="up")
        self._test = PageHinkley(options)
        for row in before:
            self._test.update(self._standardized(row))

    def add(self, row: ErrorRow) -> bool:
        """Take the next row, and say whether the error has risen."""
        self.newest = row.total / row.num
        return self._test.update(self._standardized(row))

    def _standardized(self, row: ErrorRow) -> float:
        return (row.total / row.num - self.level) * math.sqrt(row.num) / self._deviation
