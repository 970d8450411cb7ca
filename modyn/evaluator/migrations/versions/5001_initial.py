"""Creates the tables of evaluations and their results."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from modyn.db.engine import columns

revision = "5001"
down_revision = None


def upgrade() -> None:
    """Create the tables `evaluations` and `results`."""
    op.create_table(
        "evaluations",
        *columns(sa.Text, "evaluation_id", primary_key=True),
        *columns(sa.Text, "run_id handler dataset state error error_reason", nullable=False),
        *columns(sa.BigInteger, "trigger_id model_id samples_seen samples_total", nullable=False),
        *columns(sa.DateTime(timezone=True), "changed_at", nullable=False, server_default=sa.func.now()),
        schema="evaluator",
    )
    op.create_index("evaluations_of_run", "evaluations", ["run_id"], schema="evaluator")
    evaluation = sa.ForeignKey("evaluator.evaluations.evaluation_id", ondelete="CASCADE")
    op.create_table(
        "results",
        sa.Column("evaluation_id", sa.Text, evaluation, primary_key=True),
        *columns(sa.BigInteger, "interval_start interval_end interval_anchor", primary_key=True),
        *columns(sa.Text, "metric", primary_key=True),
        *columns(sa.BigInteger, "model_id num_samples num_listed", nullable=False),
        *columns(sa.Text, "dataset_digest metric_digest note", nullable=False),
        *columns(sa.Double, "value"),
        # '' and null mean: not known.
        *columns(sa.Text, "dataset_identity", nullable=False, server_default=""),
        *columns(sa.BigInteger, "num_deleted"),
        schema="evaluator",
    )
    op.create_index("results_of_model", "results", ["model_id", "dataset_digest"], schema="evaluator")
