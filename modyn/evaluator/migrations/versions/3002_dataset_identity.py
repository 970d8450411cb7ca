"""The identity of the dataset that a score is of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3002"
down_revision = "3001"


def upgrade() -> None:
    """Add the column; of scores of before it is not known."""
    column = sa.Column("dataset_identity", sa.Text, nullable=False, server_default="")
    op.add_column("results", column, schema="evaluator")
