"""Runs can be removed, and the number of one that was is never given to another."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3008"
down_revision = "3007"


def upgrade() -> None:
    """Add the mark of runs that are being removed, and a sequence in place of the largest number that there is."""
    column = sa.Column("removing", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("runs", column, schema="supervisor")
    op.execute("CREATE SEQUENCE supervisor.run_numbers")
    op.execute("SELECT setval('supervisor.run_numbers', (SELECT 1 + coalesce(max(number), 0) FROM supervisor.runs), false)")
