"""Tags of runs, and numbers of runs by pipeline."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "3009"
down_revision = "3008"


def upgrade() -> None:
    """Add the tags, and count the runs of each pipeline from the numbers in the names of those that there are."""
    op.add_column("runs", sa.Column("tags", JSONB, nullable=False, server_default="[]"), schema="supervisor")
    op.create_table(
        "pipelines",
        sa.Column("slug", sa.Text, primary_key=True),
        sa.Column("num_runs", sa.BigInteger, nullable=False),
        schema="supervisor",
    )
    op.execute(
        "INSERT INTO supervisor.pipelines SELECT regexp_replace(run_id, '-[0-9]+$', ''), max(number) FROM supervisor.runs GROUP BY 1"
    )
