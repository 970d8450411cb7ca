"""The files that belong to the state of a run's policy after a trigger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3004"
down_revision = "3003"


def upgrade() -> None:
    """Add the column; policies of before had none."""
    op.add_column("triggers", sa.Column("state_files", sa.JSON, nullable=False, server_default="{}"), schema="selector")
