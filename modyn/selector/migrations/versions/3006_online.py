"""Proactive training: the section of a run, and which triggers are its steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3006"
down_revision = "3005"


def upgrade() -> None:
    """Add both columns; runs of before had no such section."""
    op.add_column("runs", sa.Column("online", sa.JSON), schema="selector")
    op.add_column("triggers", sa.Column("online", sa.Boolean, nullable=False, server_default="false"), schema="selector")
