"""What a trigger chose from and what it chose, once somebody asked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3005"
down_revision = "3004"


def upgrade() -> None:
    """Add the column; it is filled when somebody asks."""
    op.add_column("triggers", sa.Column("summary", sa.JSON), schema="selector")
