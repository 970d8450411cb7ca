"""Which triggers are the steps of proactive training."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3014"
down_revision = "3013"


def upgrade() -> None:
    """Add `online` to `triggers`; until now none was."""
    op.add_column("triggers", sa.Column("online", sa.Boolean, nullable=False, server_default="false"), schema="supervisor")
