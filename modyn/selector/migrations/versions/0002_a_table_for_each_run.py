"""Rows of each run lie in a table of their own, as a copy of its log, and `num_rows` counts them."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    # Rows were the only record of a run before there were logs for all; such a run says so when it is used, and starts anew.
    op.execute("DROP TABLE selector.samples CASCADE")
    op.execute("UPDATE selector.runs SET num_samples = 0")
    op.alter_column("runs", "num_samples", new_column_name="num_rows", schema="selector")
    op.drop_column("runs", "float_labels", schema="selector")
