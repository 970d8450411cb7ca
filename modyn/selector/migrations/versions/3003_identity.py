"""The identity of the dataset that a run's keys are of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3003"
down_revision = "3002"


def upgrade() -> None:
    """Add the column; of runs of before it is not known."""
    op.add_column("runs", sa.Column("dataset_identity", sa.Text, nullable=False, server_default=""), schema="selector")
