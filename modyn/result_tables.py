"""The half of `modyn.Client` that says what came out of runs: tables of pandas, the report, and simulations on what a run has received."""

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
    from modyn.supervisor.simulation import PolicyFile, SimulationProgress


class ResultTables(Connections):
    """Results of runs. Raises, from every method: NotFoundError: there is no such run."""

    def results(self, run_id: str) -> RunResults:
        """Return the results of a run as tables. Raises: NotFoundError, UnavailableError: no pandas."""
        from modyn.analysis.results import read_results

        return read_results(self.supervisor, self.evaluator, run_id)

    def triggers(self, run_id: str) -> pd.DataFrame:
        """Return the triggers of a run, one row each. Raises: NotFoundError, UnavailableError: no pandas."""
        from modyn.analysis.times import with_times

        return with_times(self.results(run_id).triggers)

    def checks(self, run_id: str) -> pd.DataFrame:
        """Return the checks of a run's trigger policy that looked at data, one row each: position, timestamp, fires, seconds, and a column for
        each name of evidence. Raises: NotFoundError, UnavailableError: no pandas."""
        from modyn.analysis.checks import checks_with_times

        return checks_with_times(self.supervisor.checks(run_id))

    def prequential(self, run_id: str) -> pd.DataFrame:
        """Return what a run that learns online said of its new samples before it was trained on them, one row for each step: mean loss and error
        of the step, over all so far, windowed and faded. Raises: NotFoundError, UnavailableError: no pandas."""
        from modyn.analysis.prequential import prequential_table
        from modyn.analysis.times import with_times

        return with_times(prequential_table(self.supervisor.triggers(run_id, with_losses=False)))

    def served(self, run_id: str) -> pd.DataFrame:
        """Return what `modyn serve` answered of a run, one row for each interval of time, version and role (serving, canary, shadow, pinned): start
        and width (seconds) of the interval, first and last report in it, requests, and the p50 and p99 of their seconds, within 6 %. Intervals are
        minutes for the newest day, hours for 90 days, days before. Raises: NotFoundError, UnavailableError: no pandas."""
        from modyn.analysis.serving_chart import serving_table
        from modyn.analysis.times import with_times

        return with_times(serving_table(self.supervisor.served(run_id)))

    def inputs(self, run_id: str) -> pd.DataFrame:
        """Return what an InputGuard of `preprocessing` has seen, one row for each training and column: rows, and the shares that are missing and
        unlike all before. Raises: NotFoundError, UnavailableError: no pandas."""
        from modyn.analysis.inputs import inputs_table
        from modyn.analysis.times import with_times

        return with_times(inputs_table(self.supervisor.triggers(run_id, with_losses=False)))

    def selections(self, run_id: str) -> pd.DataFrame:
        """Return what the triggers of a run chose from and what they chose, one row each: candidates, chosen, share chosen by the trigger before,
        ages, weights, and what downsampling did in the training, with quantiles of its weights and seconds. The first call reads the samples of
        each trigger once. Raises: NotFoundError, UnavailableError: no pandas."""
        from modyn.analysis.selections import selection_tables

        return selection_tables(self.supervisor, self.selector, run_id).selections

    def chosen(self, run_id: str, trigger_id: int, limit: int | None = None, *, whole_set: bool = False) -> pd.DataFrame:
        """Return the samples that the training of a trigger chose, one row each in stream order: key, weight, timestamp, label, path, and what it
        scored, with `downsampling_score` and `downsampling_weight` where downsampling chose. `chosen` is missing where the training did not keep
        what it chose, as in batch-then-sample without `keep_scores`, or has not ended: then all of its trigger set is listed.

        Args: limit: only the first so many; None: all. whole_set: also samples that were not chosen.
        Raises: NotFoundError, UnavailableError: no pandas.
        """
        from modyn.analysis.chosen_samples import chosen_samples, training_result_of
        from modyn.analysis.times import with_times

        result = training_result_of(self.supervisor, run_id, trigger_id)
        number = arguments.count("limit", limit)
        found = chosen_samples(self.selector, self.storage, run_id, trigger_id, result, number, whole_set=whole_set)
        return with_times(found.table)

    def class_shares(self, run_id: str) -> pd.DataFrame:
        """Return the classes of each trigger of a run, one row each: candidates and chosen samples, their shares, and the share that was trained
        on after downsampling, missing where the training has other classes (`label_transformer_function`).
        Raises: NotFoundError, UnavailableError: no pandas."""
        from modyn.analysis.selections import selection_tables

        return selection_tables(self.supervisor, self.selector, run_id).class_shares

    def trained_class_shares(self, run_id: str) -> pd.DataFrame:
        """Return the classes of the trainings of a run with downsampling, one row for each trigger and class as the training has it: the share
        before downsampling, and after it. Raises: NotFoundError, UnavailableError: no pandas."""
        from modyn.analysis.selections import selection_tables

        return selection_tables(self.supervisor, self.selector, run_id).trained_class_shares

    def feedback(self, run_id: str, trigger_id: int | None = None) -> pd.DataFrame:
        """Return what the trainings of a run, or that of one trigger, scored: a row for each sample and epoch, in the order of the training, with
        trigger_id, epoch, key, and a column for each score. Raises: NotFoundError: the trigger has none. UnavailableError: no pandas."""
        from modyn.analysis.feedback import feedback_table

        return feedback_table(self.selector, run_id, trigger_id)

    def evaluations(self, run_id: str) -> pd.DataFrame:
        """Return the evaluations of a run, one row for each model, interval and metric. Raises: NotFoundError, UnavailableError: no pandas."""
        from modyn.analysis.times import with_times

        return with_times(self.results(run_id).evaluations)

    def scores(self, run_id: str) -> pd.DataFrame:
        """Return the pipeline scores of a run, one row for each handler, dataset and metric. Raises: NotFoundError, UnavailableError: no pandas."""
        from modyn.analysis.results import scores

        results = self.results(run_id)
        return scores(results.triggers, results.evaluations, results.handlers)

    def report(self, run_id: str, path: Path | str | None = None) -> Path:
        """Write the HTML report of a run and return its path, by default `modyn-report-<run>.html` here.
        Raises: NotFoundError, UnavailableError: the file cannot be written, or no pandas."""
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
        out: Path | str | None = None,
        progress: Callable[[SimulationProgress], None] = lambda _: None,
    ) -> pd.DataFrame:
        """Simulate trigger policies on a dataset or on the stream of a run, without training: one row each; see docs/simulate.md.

        Args: policies: the path of a file, or the `trigger` sections by name; lists in them are grids. dataset: its samples in [from, to).
        run_id: in its place, what a run has received; its models, seconds and evaluations are the reference. model_id: a model in place of the
        run's, or by which a dataset is looked at. data: how samples of the dataset are decoded, in place of the section in the file and of that
        of the model's run. seconds_per_sample, seconds_per_trigger: of a training, in place of the run's. price_per_hour: of training: the table
        gets a column `price`. out: folder where the simulation is saved every few seconds; called again, it goes on. progress: called a few times
        a second.
        Raises: ConfigError: every mistake in the file, with its line, also policies that lack a model or a `data` section. InvalidArgumentError: the
        arguments contradict each other. ConflictError: `out` holds another simulation. NotFoundError, UnavailableError: no pandas.
        """
        from modyn.analysis.simulation import simulate
        from modyn.supervisor.simulation import (
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
        return simulate(self, file.sections, options, None if out is None else Path(out), progress, price_per_hour)


def table_of(kind: type[Any], records: Sequence[Any], without: Sequence[str] = ()) -> pd.DataFrame:
    """Return records as a table, one row each. Raises: UnavailableError: no pandas."""
    from modyn.analysis.times import records_table

    return records_table(kind, records, without)
