"""The identity of a run's dataset at submission."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3005"
down_revision = "3004"


def upgrade() -> None:
    """Add the column; of runs of before it is not known."""
    op.add_column("runs", sa.Column("dataset_identity", sa.Text, nullable=False, server_default=""), schema="supervisor")
