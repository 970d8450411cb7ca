"""The part of `modyn.Client` for results of runs: pandas tables, the report, and simulations."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modyn.atomic_write import writing_for_user
from modyn.config import arguments
from modyn.connections import Connections
from modyn.records import RunId

if TYPE_CHECKING:
    import pandas as pd

    from modyn.analysis.results import RunResults
    from modyn.supervisor.simulation.run_simulation import PolicyFile, SimulationProgress


class ResultTables(Connections):
    """Results of runs. Every method raises NotFoundError if the run does not exist."""

    def results(self, run_id: str) -> RunResults:
        """Return the results of a run as tables. Raises: NotFoundError."""
        from modyn.analysis.results import read_results

        return read_results(self.supervisor, self.evaluator, run_id)

    def triggers(self, run_id: str) -> pd.DataFrame:
        """Return one row for each trigger of a run. Raises: NotFoundError."""
        from modyn.analysis.times import with_times

        return with_times(self.results(run_id).triggers)

    def checks(self, run_id: str) -> pd.DataFrame:
        """Return one row for each check in which a run's trigger policy examined data: position, timestamp, fires, seconds, and a column for each
        name of evidence. Raises: NotFoundError."""
        from modyn.analysis.check_table import checks_with_times

        return checks_with_times(self.supervisor.checks(run_id))

    def prequential(self, run_id: str) -> pd.DataFrame:
        """Return the prequential test of a run with online learning: new samples are tested before training on them. The row of a step has mean
        loss and error of the step, and the means over all samples so far, over a window, and faded. Raises: NotFoundError.
        """
        from modyn.analysis.prequential import prequential_table
        from modyn.analysis.times import with_times

        return with_times(prequential_table(self.supervisor.triggers(run_id, with_losses=False)))

    def served(self, run_id: str) -> pd.DataFrame:
        """Return the served requests of a run, one row for each time interval, version and role (serving, canary, shadow, pinned). Columns: start
        and width (seconds) of the interval, first and last report, number of requests, and p50 and p99 of their latencies in seconds (error at
        most 6 %). Intervals are minutes in the newest day, hours in the newest 90 days, and days for older requests. Raises: NotFoundError.
        """
        from modyn.analysis.charts.serving import serving_table
        from modyn.analysis.times import with_times

        return with_times(serving_table(self.supervisor.served(run_id)))

    def inputs(self, run_id: str) -> pd.DataFrame:
        """Return the counts of an InputGuard of `preprocessing`, one row for each training and column: number of rows, share of missing values, and
        share of values unlike all earlier values. Raises: NotFoundError.
        """
        from modyn.analysis.results import inputs_table
        from modyn.analysis.times import with_times

        return with_times(inputs_table(self.supervisor.triggers(run_id, with_losses=False)))

    def selections(self, run_id: str) -> pd.DataFrame:
        """Return one row for each trigger of a run: numbers of candidates and of chosen samples, share of the chosen samples that the previous
        trigger also chose, ages, weights, and the downsampling in the training, with its seconds and quantiles of its weights. The first call reads
        the samples of each trigger once. Raises: NotFoundError."""
        from modyn.analysis.selections import selection_tables

        return selection_tables(self.supervisor, self.selector, run_id).selections

    def chosen(self, run_id: str, trigger_id: int, limit: int | None = None, *, whole_set: bool = False) -> pd.DataFrame:
        """Return one row for each sample that the training of a trigger chose, in stream order: key, weight, timestamp, label, path, and scores,
        with `downsampling_score` and `downsampling_weight` if downsampling chose the samples. If the training has not ended, or did not keep its
        choice (as in batch-then-sample without `keep_scores`), the result is the whole trigger set without a value of `chosen`.

        Args: limit: largest number of samples; None: all. whole_set: include samples that were not chosen.
        Raises: NotFoundError.
        """
        from modyn.analysis.chosen_samples import chosen_samples, training_result_of
        from modyn.analysis.times import with_times

        result = training_result_of(self.supervisor, run_id, trigger_id)
        number = arguments.count("limit", limit)
        found = chosen_samples(self.selector, self.storage, run_id, trigger_id, result, number, whole_set=whole_set)
        return with_times(found.table)

    def class_shares(self, run_id: str) -> pd.DataFrame:
        """Return one row for each trigger and class of a run: numbers and shares of candidates and of chosen samples, and the share after
        downsampling, which is missing if the training has other classes (`label_transformer_function`).
        Raises: NotFoundError."""
        from modyn.analysis.selections import selection_tables

        return selection_tables(self.supervisor, self.selector, run_id).class_shares

    def trained_class_shares(self, run_id: str) -> pd.DataFrame:
        """Return the class shares before and after downsampling, one row for each class of each training with downsampling. Raises: NotFoundError."""
        from modyn.analysis.selections import selection_tables

        return selection_tables(self.supervisor, self.selector, run_id).trained_class_shares

    def feedback(self, run_id: str, trigger_id: int | None = None) -> pd.DataFrame:
        """Return the scores of all trainings of a run, or of one trigger. There is a row for each sample and epoch, in the order of the training,
        with trigger_id, epoch, key, and a column for each score. Raises: NotFoundError: the trigger has no scores."""
        from modyn.analysis.feedback import feedback_table

        return feedback_table(self.selector, run_id, trigger_id)

    def evaluations(self, run_id: str) -> pd.DataFrame:
        """Return the evaluations of a run, one row for each model, interval and metric. `attrs["notes"]` names outdated scores. Raises:
        NotFoundError."""
        from modyn.analysis.results import sample_notes
        from modyn.analysis.times import with_times

        evaluations = self.results(run_id).evaluations
        table = with_times(evaluations)
        table.attrs["notes"] = sample_notes(evaluations, run_id)
        return table

    def scores(self, run_id: str) -> pd.DataFrame:
        """Return the pipeline scores of a run, one row for each handler, dataset and metric. Raises: NotFoundError."""
        from modyn.analysis.results import scores

        results = self.results(run_id)
        return scores(results.triggers, results.evaluations, results.handlers)

    def report(self, run_id: str, path: Path | str | None = None) -> Path:
        """Write the HTML report of a run and return its path, by default `modyn-report-<run>.html` in the current folder.
        Raises: NotFoundError, UnavailableError: the file cannot be written, or pandas is not installed."""
        from modyn.analysis.report import write_report
        from modyn.analysis.results import read_results
        from modyn.analysis.selections import selection_tables

        target = Path(path or f"modyn-report-{run_id}.html")
        with writing_for_user(target):
            promotions = self.model_storage.promotions(RunId(run_id))
            results = read_results(
                self.supervisor,
                self.evaluator,
                run_id,
                with_losses=True,
                with_checks=True,
                with_served=True,
                promotions=promotions,
            )
            return write_report(results, target, selection_tables(self.supervisor, self.selector, run_id))

    def simulate(
        self,
        policies: Path | str | Mapping[str, Mapping[str, Any]] | PolicyFile,
        *,
        dataset: str | None = None,
        run_id: str | None = None,
        from_timestamp: int | str | dt.datetime | None = None,
        to_timestamp: int | str | dt.datetime | None = None,
        model_id: int | None = None,
        data: Mapping[str, Any] | None = None,
        seconds_per_sample: float | None = None,
        seconds_per_trigger: float | None = None,
        price_per_hour: float | None = None,
        progress: Callable[[SimulationProgress], None] = lambda _: None,
    ) -> pd.DataFrame:
        """Simulate trigger policies on a dataset or on the stream of a run, without training. Returns one row for each policy. See
        docs/how-to/simulate.md.

        Args: policies: path of a file, or `trigger` sections by name; a list of values in a section is a grid. dataset: use the samples of this
        dataset in [from, to). run_id: use the stream of this run instead; its models, seconds and evaluations are the reference. model_id: model
        for policies that examine data, instead of the run's models. data: section that defines how samples of the dataset are decoded, instead of
        the section in the file or of the model's run. seconds_per_sample, seconds_per_trigger: training times, instead of the times of the run.
        price_per_hour: price of training, which adds a column `price`. progress: called a few times per second.
        Raises: ConfigError: the file has mistakes (all are listed, with their lines), or policies lack a model or a `data` section.
        InvalidArgumentError: the arguments contradict each other. NotFoundError.
        """
        from modyn.analysis.simulation import simulate
        from modyn.supervisor.simulation.run_simulation import (
            SimulationOptions,
            check_amount,
            check_policies,
            load_policies,
            training_seconds,
        )

        file = load_policies(policies)
        times = (arguments.timestamp("from_timestamp", from_timestamp), arguments.timestamp("to_timestamp", to_timestamp))
        seconds = training_seconds(seconds_per_trigger, seconds_per_sample)
        check_amount("price_per_hour", price_per_hour)
        options = SimulationOptions(dataset, run_id, *times, model_id, seconds, data or file.data)
        check_policies(self, file, options)
        return simulate(self, file.sections, options, progress, price_per_hour)


def table_of(kind: type[Any], records: Sequence[Any], without: Sequence[str] = ()) -> pd.DataFrame:
    """Return a table with one row for each record. Raises: UnavailableError: pandas is not installed."""
    from modyn.analysis.times import records_table

    return records_table(kind, records, without)
