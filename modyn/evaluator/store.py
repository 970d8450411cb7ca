"""Evaluations and results in PostgreSQL. One transaction writes the results of an evaluation and its state `finished`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Double, ForeignKey, MetaData, Table, Text, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from modyn.db.engine import Database, columns
from modyn.errors import UnavailableError
from modyn.evaluator.client import EvaluationRequest, EvaluationResult, EvaluationStatus
from modyn.evaluator.records import Score
from modyn.evaluator.versions import DataVersion
from modyn.json_codec import sanitize
from modyn.records import EvalInterval, Interval, JobState, RunId

metadata = MetaData(schema="evaluator")

evaluations = Table(
    "evaluations",
    metadata,
    Column("evaluation_id", Text, primary_key=True),
    Column("run_id", Text, nullable=False, index=True),
    *columns(BigInteger, "trigger_id model_id samples_seen samples_total", nullable=False),
    # state: queued until the evaluation has ended
    *columns(Text, "handler dataset state error error_reason", nullable=False),
    Column("changed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

results = Table(
    "results",
    metadata,
    Column("evaluation_id", Text, ForeignKey("evaluator.evaluations.evaluation_id", ondelete="CASCADE"), primary_key=True),
    *columns(BigInteger, "interval_start interval_end interval_anchor", primary_key=True),
    Column("metric", Text, primary_key=True),
    # dataset_digest: from DataVersion.digest; metric_digest: from metric_digests
    *columns(Text, "dataset_identity dataset_digest metric_digest note", nullable=False),
    # num_listed: number of samples in the interval at the time of the evaluation. num_deleted: from DataVersion; NULL if not known
    *columns(BigInteger, "model_id num_samples num_listed", nullable=False),
    Column("num_deleted", BigInteger),
    Column("value", Double),
)

_ROWS_A_FETCH = 1000
"""Number of rows that are in memory at once while results are read."""

ScoreKey = tuple[Interval, str]
"""Key of a score for one model and one version of the data: the interval, and the digest of the metric."""


class EvaluationStore:
    """The tables of the evaluator, which persist across restarts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def abandon_unfinished(self) -> int:
        """Mark the unfinished evaluations of an earlier process as stopped. Returns the number of these evaluations."""
        statement = (
            update(evaluations)
            .where(evaluations.c.state == JobState.QUEUED.value)
            .values(
                state=JobState.STOPPED.value,
                error="the evaluator stopped before this evaluation ended; start it again",
                error_reason=UnavailableError.reason,
                changed_at=func.now(),
            )
            .returning(evaluations.c.evaluation_id)
        )
        with self._database.session() as session:
            return len(session.execute(statement).all())

    def status(self, evaluation_id: str) -> EvaluationStatus | None:
        """Return the stored status of an evaluation, or None if the id is unknown."""
        with self._database.session() as session:
            row = session.execute(select(evaluations).where(evaluations.c.evaluation_id == evaluation_id)).one_or_none()
        if row is None:
            return None
        values = {field.name: row._mapping[field.name] for field in fields(EvaluationStatus)}
        return EvaluationStatus(**{**values, "state": JobState(row.state)})

    def put(self, request: EvaluationRequest, status: EvaluationStatus) -> None:
        """Write the status of an evaluation that was started, was started again, failed, or was stopped."""
        with self._database.session() as session:
            session.execute(_upsert(_row(request, status)))

    def finish(
        self,
        request: EvaluationRequest,
        status: EvaluationStatus,
        scores: Mapping[ScoreKey, Score],
        data: DataVersion,
        metrics: Mapping[str, str],
    ) -> None:
        """Write the status of an evaluation, and its results: one score of `scores` for each interval and metric.

        Args: data: the version of the data. metrics: digest of each metric by label.
        """
        rows = [
            {
                "evaluation_id": status.evaluation_id,
                "interval_start": interval.start,
                "interval_end": interval.end,
                "interval_anchor": interval.anchor,
                "metric": label,
                "model_id": request.model_id,
                "dataset_identity": data.identity,
                "dataset_digest": data.digest,
                "metric_digest": digest,
                "value": score.value,
                "note": sanitize(score.note),
                "num_samples": score.num_samples,
                "num_listed": score.num_listed,
                "num_deleted": data.num_deleted,
            }
            for interval in dict.fromkeys(request.intervals)
            for label, digest in metrics.items()
            for score in [scores[Interval(interval.start, interval.end), digest]]
        ]
        with self._database.session() as session:
            session.execute(_upsert(_row(request, status)))
            session.execute(delete(results).where(results.c.evaluation_id == status.evaluation_id))
            if rows:
                session.execute(insert(results), rows)

    def delete_run(self, run_id: RunId) -> None:
        """Delete the evaluations of a run and the results of these evaluations."""
        with self._database.session() as session:
            session.execute(delete(evaluations).where(evaluations.c.run_id == run_id))

    def evaluation_ids(self, run_id: RunId) -> frozenset[str]:
        """Return the ids of all evaluations of a run."""
        with self._database.session() as session:
            return frozenset(session.scalars(select(evaluations.c.evaluation_id).where(evaluations.c.run_id == run_id)))

    def known(self, model_id: int, data: DataVersion) -> dict[ScoreKey, Score]:
        """Return all scores of the model `model_id` for one version of the data with the same number of deletions."""
        same_data = (results.c.dataset_digest == data.digest, results.c.num_deleted == data.num_deleted)
        statement = select(results).where(results.c.model_id == model_id, *same_data)
        with self._database.session() as session:
            rows = session.execute(statement).all()
        found: dict[ScoreKey, Score] = {}
        for row in rows:
            interval = Interval(row.interval_start, row.interval_end)
            score = Score(interval, row.metric, row.value, row.note, row.num_samples, row.num_listed)
            found[interval, row.metric_digest] = score
        return found

    def results(self, run_id: RunId, evaluation_ids: Sequence[str] = ()) -> Iterator[EvaluationResult]:
        """Yield all results of a run, ordered by trigger, handler, dataset, registration of the dataset, metric and interval, while the results are
        read from the database.

        Args: evaluation_ids: yield only results of these evaluations; empty to yield all.
        """
        key = [*evaluations.c["trigger_id", "handler", "dataset", "model_id"]]
        key += results.c["dataset_identity", "metric", "interval_start", "interval_end", "interval_anchor"]
        statement = (
            select(*key, *results.c["value", "note", "num_samples", "num_deleted"])
            .join_from(evaluations, results, results.c.evaluation_id == evaluations.c.evaluation_id)
            .where(evaluations.c.run_id == run_id, evaluations.c.state == JobState.FINISHED.value)
            .order_by(*key, evaluations.c.changed_at.desc())
        )
        if evaluation_ids:
            statement = statement.where(evaluations.c.evaluation_id.in_(evaluation_ids))
        with self._database.session() as session:
            found = session.execute(statement, execution_options={"yield_per": _ROWS_A_FETCH})
            for _, rows in groupby(found, lambda row: row[: len(key)]):
                row = next(rows)  # If several evaluations cover the same interval, the newest is first; the others are skipped.
                values = {name: value for name, value in row._mapping.items() if not name.startswith("interval_")}
                interval = EvalInterval(row.interval_start, row.interval_end, row.interval_anchor)
                yield EvaluationResult(run_id=run_id, interval=interval, **values)


def _row(request: EvaluationRequest, status: EvaluationStatus) -> dict[str, Any]:
    asked = {name: getattr(request, name) for name in ("run_id", "trigger_id", "model_id", "handler")}
    as_texts = {"dataset": str(request.dataset["dataset_id"]), "state": status.state.value, "error": sanitize(status.error)}
    return {**asked, **asdict(status), **as_texts}


def _upsert(row: Mapping[str, Any]) -> Any:
    statement = insert(evaluations).values(**row)
    return statement.on_conflict_do_update(index_elements=["evaluation_id"], set_={**row, "changed_at": func.now()})
