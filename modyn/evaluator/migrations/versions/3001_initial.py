"""Evaluations and their results."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3001"
down_revision = None


def upgrade() -> None:
    """Tables `evaluations` and `results`."""
    op.create_table(
        "evaluations",
        sa.Column("evaluation_id", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("trigger_id", sa.BigInteger, nullable=False),
        sa.Column("model_id", sa.BigInteger, nullable=False),
        sa.Column("handler", sa.Text, nullable=False),
        sa.Column("dataset", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("samples_seen", sa.BigInteger, nullable=False),
        sa.Column("samples_total", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("error_reason", sa.Text, nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        schema="evaluator",
    )
    op.create_index("evaluations_of_run", "evaluations", ["run_id"], schema="evaluator")
    op.create_table(
        "results",
        sa.Column(
            "evaluation_id", sa.Text, sa.ForeignKey("evaluator.evaluations.evaluation_id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("interval_start", sa.BigInteger, primary_key=True),
        sa.Column("interval_end", sa.BigInteger, primary_key=True),
        sa.Column("interval_anchor", sa.BigInteger, primary_key=True),
        sa.Column("metric", sa.Text, primary_key=True),
        sa.Column("model_id", sa.BigInteger, nullable=False),
        sa.Column("dataset_digest", sa.Text, nullable=False),
        sa.Column("metric_digest", sa.Text, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("num_samples", sa.BigInteger, nullable=False),
        sa.Column("num_listed", sa.BigInteger, nullable=False),
        schema="evaluator",
    )
    op.create_index("results_of_model", "results", ["model_id", "dataset_digest"], schema="evaluator")
